"""States and timers of touched keys come as Python values and go back as Arrow."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.keyed_state_backend import KeyedStateBackend, TouchedKeys, decode_keys, entry_of, rows_of, size_of
from cojoin.engine.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from cojoin.errors import CheckpointError, FunctionError
from tests.engine.state.stores import handle
from tests.engine.state.test_keyed_state import Mean

SCHEMAS = [
    pa.schema([("id", pa.string())]),
    pa.schema([("id", pa.string()), ("region", pa.int32())]),
    pa.schema([("flag", pa.bool_()), ("at", pa.timestamp("us", "UTC")), ("raw", pa.binary())]),
]


@given(st.data(), st.sampled_from(SCHEMAS))
def test_oracle_rows_are_found_by_their_keys(data: st.DataObject, schema: pa.Schema) -> None:
    values: dict[Any, Any] = {
        pa.string(): st.sampled_from(["", "a", "b"]),
        pa.int32(): st.integers(0, 2),
        pa.bool_(): st.booleans(),
        pa.timestamp("us", "UTC"): st.integers(0, 2).map(lambda day: datetime(2024, 1, 1 + day, tzinfo=timezone.utc)),
        pa.binary(): st.sampled_from([b"", b"\x00", b"ab"]),
    }
    rows = st.lists(st.tuples(*(values[field.type] for field in schema)), max_size=6)

    def table(of: list[Any]) -> pa.Table:
        pieces = [of[: len(of) // 2], of[len(of) // 2 :]]
        return pa.concat_tables(
            [
                pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in each], schema)
                for each in pieces
            ]
        )

    first, second, rest = data.draw(rows), data.draw(rows), data.draw(rows)
    touched = TouchedKeys([table(first), table(second)])
    keys = [tuple(row.values()) for row in touched.keys.to_pylist()]
    assert len(touched) == len(keys) == len(set(keys))
    assert [[keys[code] for code in codes] for codes in touched.codes] == [first, second]
    expected = [keys.index(row) if row in keys else -1 for row in rest]
    assert touched.find(table(rest).append_column("@value", [[0] * len(rest)])).tolist() == expected


@pytest.mark.parametrize("schema", SCHEMAS)
def test_no_keys_find_nothing(schema: pa.Schema) -> None:
    touched = TouchedKeys([schema.empty_table()])
    row = {"id": "a", "region": 1, "flag": True, "at": datetime(2024, 1, 1, tzinfo=timezone.utc), "raw": b""}
    table = pa.Table.from_pylist([{name: row[name] for name in schema.names}], schema)
    assert touched.find(table).tolist() == [-1]
    assert touched.find(schema.empty_table()).tolist() == []


COMPOSITE = pa.schema([("customer", pa.string()), ("region", pa.int32())])
TABLE = pa.table({"customer": ["a", "a"], "region": pa.array([1, 2], pa.int32()), "@value": [5, 6]})


def test_a_key_is_found_as_functions_see_it() -> None:
    for key, entry in zip([("a", 1), decode_keys(TABLE.select(COMPOSITE.names))[1]], (5, 6), strict=True):
        assert entry_of(rows_of(TABLE, COMPOSITE, key, "F")) == entry
    assert entry_of(rows_of(TABLE, COMPOSITE, ("z", 1), "F")) is None


def test_a_key_of_one_column_is_its_value() -> None:
    table = pa.table({"customer": ["a"], "@value": [[1, 2]]})
    assert entry_of(rows_of(table, pa.schema([("customer", pa.string())]), "a", "F")) == [1, 2]
    assert size_of(table)["rows"] == 1


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("a", "F: key: expected a tuple of customer, region, got 'a'"),
        (("a",), "F: key: expected a tuple of customer, region"),
        (("a", "1"), "F: key column 'region': expected int, got '1'"),
        ((None, 1), "F: key column 'customer': expected string, got None"),
    ],
)
def test_a_key_that_can_not_be_one_is_refused(key: Any, said: str) -> None:
    with pytest.raises(FunctionError) as caught:
        rows_of(TABLE, COMPOSITE, key, "F")
    assert said in str(caught.value)


SINGLE = pa.schema([("customer", pa.string())])
TOTAL = ValueStateDescriptor("total", "long")


def keys(*values: Any, names: tuple[str, ...] = ("customer",)) -> pa.Table:
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    types = [pa.string(), pa.int32()][: len(names)]
    columns = [pa.array([row[place] for row in rows], dtype) for place, dtype in enumerate(types)]
    return pa.Table.from_arrays(columns, list(names))


def add(
    store: KeyedStateBackend, left: pa.Table, right: pa.Table | None = None, watermark: int = -1, clock: int = -1
) -> list[Any]:
    """Count one up for each touched key; give the keys in the order in which they are touched."""
    total = store.get_state(TOTAL)
    codes, _ = store.begin([left, left.slice(0, 0) if right is None else right], store.due_timers(watermark, clock))
    touched = []
    for store.key_context.code in codes:
        touched.append(store.key_of(store.key_context.code))
        total.update((total.value() or 0) + 1)
    store.end()
    return touched


def totals(store: KeyedStateBackend) -> dict[Any, int]:
    table = store.tables()["state:total"]
    return {tuple(row.values())[:-1]: row["@value"] for row in table.to_pylist()}


def test_only_the_touched_keys_change() -> None:
    store = KeyedStateBackend(SINGLE, "F")
    add(store, keys("a", "b", "a"))
    assert add(store, keys("b")) == ["b"]
    assert totals(store) == {("a",): 1, ("b",): 2}


def test_the_rights_keys_are_the_same_keys_under_other_names() -> None:
    store = KeyedStateBackend(COMPOSITE, "F")
    left = keys(("a", 1), ("a", 2), names=("customer", "region"))
    right = keys(("a", 2), ("", 1), names=("id", "zone"))
    assert sorted(add(store, left, right)) == [("", 1), ("a", 1), ("a", 2)]
    add(store, left.slice(0, 0), right)
    assert totals(store) == {("a", 1): 1, ("a", 2): 2, ("", 1): 2}


def test_a_key_with_a_due_timer_is_touched() -> None:
    store = KeyedStateBackend(SINGLE, "F")
    codes, _ = store.begin([keys("a", "b"), keys()])
    for store.key_context.code, timestamp in zip(codes, (5, 9), strict=True):
        store.timers.register(timestamp)
    store.end()
    assert (store.timer_count(), store.has_due_timers(4, 0), store.has_due_timers(5, 0)) == (2, False, True)
    assert add(store, keys("c"), watermark=5) == ["c", "a"]
    assert store.timer_count() == 2
    assert store.earliest_timers() == (5, None)


def test_a_key_with_a_due_timer_of_the_clock_is_touched() -> None:
    store = KeyedStateBackend(SINGLE, "F")
    (code,), _ = store.begin([keys("a"), keys()])
    store.key_context.code = code
    store.processing_timers.register(7)
    store.end()
    assert (store.has_due_timers(9, 6), store.has_due_timers(-1, 7)) == (False, True)
    assert add(store, keys(), clock=7) == ["a"]
    assert store.timers_of() == [("a", "processing_time", 7)]


def test_a_cleared_key_leaves_nothing_behind() -> None:
    store = KeyedStateBackend(SINGLE, "F")
    add(store, keys("a"))
    total = store.get_state(TOTAL)
    (code,), _ = store.begin([keys("a"), keys()])
    store.key_context.code = code
    total.clear()
    store.end()
    assert totals(store) == {}


def test_states_are_loaded_when_they_are_asked_for_within_a_batch() -> None:
    store, again = KeyedStateBackend(SINGLE, "F"), KeyedStateBackend(SINGLE, "F")
    add(store, keys("a", "b"))
    again.load_tables(store.tables())
    (code,), _ = again.begin([keys("b"), keys()])
    again.key_context.code = code
    assert again.get_state(TOTAL).value() == 1
    again.end()
    assert totals(again) == {("a",): 1, ("b",): 1}


def test_a_state_that_is_no_longer_asked_for_is_kept() -> None:
    store, again = KeyedStateBackend(SINGLE, "F"), KeyedStateBackend(SINGLE, "F")
    add(store, keys("a"))
    again.load_tables(store.tables())
    again.begin([keys("a"), keys()])
    again.end()
    assert totals(again) == {("a",): 1}


def test_the_same_state_may_be_asked_for_twice_but_not_as_another() -> None:
    store = KeyedStateBackend(SINGLE, "F")
    assert store.get_state(TOTAL) is store.get_state(ValueStateDescriptor("total", pa.int64()))
    with pytest.raises(FunctionError, match="F: state 'total' is declared twice"):
        store.get_state(ValueStateDescriptor("total", "int"))
    with pytest.raises(FunctionError, match="F: state 'total' is declared twice"):
        store.get_state(ValueStateDescriptor("total", "long", ttl=StateTtlConfig("1 day")))
    with pytest.raises(FunctionError, match="F: state 'total' is declared twice"):
        store.get_map_state(MapStateDescriptor("total", "string", "long"))


def test_a_descriptor_must_be_of_the_states_kind() -> None:
    with pytest.raises(FunctionError, match="F: expected a ListStateDescriptor, got ValueStateDescriptor"):
        KeyedStateBackend(SINGLE, "F").get_list_state(TOTAL)  # type: ignore[arg-type]
    store = KeyedStateBackend(SINGLE, "F")
    mean = AggregatingStateDescriptor("mean", Mean(), "total double, count long")
    for got, kind in (
        (store.get_list_state(ListStateDescriptor("l", "int")), ListState),
        (store.get_map_state(MapStateDescriptor("m", "int", "int")), MapState),
        (store.get_reducing_state(ReducingStateDescriptor("r", max, "int")), ReducingState),
        (store.get_aggregating_state(mean), AggregatingState),
    ):
        assert isinstance(got, kind)


def test_stored_keys_and_types_must_be_the_declared_ones() -> None:
    store = KeyedStateBackend(SINGLE, "F")
    add(store, keys("a"))
    with pytest.raises(CheckpointError, match="F: the checkpoint's states have the key customer string"):
        KeyedStateBackend(COMPOSITE, "F").load_tables(store.tables())
    again = KeyedStateBackend(SINGLE, "F")
    again.load_tables(store.tables())
    with pytest.raises(CheckpointError, match="it changes from bigint to int"):
        again.get_state(ValueStateDescriptor("total", "int"))


TTL = StateTtlConfig("1 day")
PAIR = "visits int, tier string"
WIDER_PAIR = "since timestamp, tier string, visits long"


@pytest.mark.parametrize("ttl", [None, TTL])
@pytest.mark.parametrize(
    ("before", "after", "write", "expected"),
    [
        (
            lambda ttl: ValueStateDescriptor("s", PAIR, ttl=ttl),
            lambda ttl: ValueStateDescriptor("s", WIDER_PAIR, ttl=ttl),
            lambda state: state.update((7, "gold")),
            (None, "gold", 7),
        ),
        (
            lambda ttl: ListStateDescriptor("s", PAIR, ttl=ttl),
            lambda ttl: ListStateDescriptor("s", WIDER_PAIR, ttl=ttl),
            lambda state: state.add_all([(7, "gold"), (8, None)]),
            [(None, "gold", 7), (None, None, 8)],
        ),
        (
            lambda ttl: MapStateDescriptor("s", "string", PAIR, ttl=ttl),
            lambda ttl: MapStateDescriptor("s", "string", WIDER_PAIR, ttl=ttl),
            lambda state: state.put("k", (7, "gold")),
            {"k": (None, "gold", 7)},
        ),
        (
            lambda ttl: ReducingStateDescriptor("s", max, "int", ttl=ttl),
            lambda ttl: ReducingStateDescriptor("s", max, "double", ttl=ttl),
            lambda state: state.add(7),
            7.0,
        ),
        (
            lambda ttl: AggregatingStateDescriptor("s", Mean(), "total float, count int", ttl=ttl),
            lambda ttl: AggregatingStateDescriptor("s", Mean(), "total double, count long, note string", ttl=ttl),
            lambda state: state.add(7.0),
            (7.0, 1, None),
        ),
    ],
    ids=["value", "list", "map", "reducing", "aggregating"],
)
def test_a_state_may_be_declared_wider_than_it_is_stored(
    before: Any, after: Any, write: Any, expected: Any, ttl: StateTtlConfig | None
) -> None:
    store, again = KeyedStateBackend(SINGLE, "F"), KeyedStateBackend(SINGLE, "F")
    old = handle(store, before(ttl))
    codes, _ = store.begin([keys("a", "b"), keys()])
    for store.key_context.code in codes:
        write(old)
    store.end()
    again.load_tables(store.tables())
    new = handle(again, after(ttl))
    assert again.state_of("a") == again.state_of("b") == {"s": expected}
    (code,), _ = again.begin([keys("b"), keys()])
    again.key_context.code = code
    assert not isinstance(new, ListState) or new.get() == expected
    new.clear()
    again.end()
    assert (again.state_of("a"), again.state_of("b")) == ({"s": expected}, {})


def test_a_state_may_be_asked_for_wider_within_a_batch() -> None:
    again = KeyedStateBackend(SINGLE, "F")
    again.load_tables({"state:total": pa.table({"customer": ["a", "b"], "@value": pa.array([1, 2], pa.int32())})})
    assert again.undeclared() == ["total"]
    assert add(again, keys("b")) == ["b"]
    assert again.undeclared() == []
    assert totals(again) == {("a",): 1, ("b",): 3}
    assert again.timer_count() == 0


def test_a_key_that_was_never_null_may_be_so() -> None:
    strict = pa.schema([pa.field("customer", pa.string(), nullable=False)])
    store, again = KeyedStateBackend(strict, "F"), KeyedStateBackend(SINGLE, "F")
    add(store, keys("a").cast(strict))
    again.load_tables(store.tables())
    add(again, keys("a"))
    assert totals(again) == {("a",): 2}
    with pytest.raises(CheckpointError, match="have the key customer string"):
        store.load_tables(again.tables())


def test_a_state_that_a_batch_does_not_use_stays_as_it_is() -> None:
    store = KeyedStateBackend(SINGLE, "F")
    add(store, keys("a", "b"))
    before = store.tables()["state:total"]
    store.begin([keys("a"), keys()])
    store.end()
    assert store.tables()["state:total"] is before


def test_no_key_is_current_before_the_first_and_after_the_last() -> None:
    """So ``open`` and ``close`` can't use a state, not even one that holds something."""
    store, again = KeyedStateBackend(SINGLE, "F"), KeyedStateBackend(SINGLE, "F")
    add(store, keys("a"))
    with pytest.raises(FunctionError, match="F: state 'total': no key is current"):
        store.get_state(TOTAL).value()
    again.load_tables(store.tables())
    again.begin([keys("a"), keys()])
    with pytest.raises(FunctionError, match="F: state 'total': no key is current"):
        again.get_state(TOTAL).update(5)
    again.end()
    assert totals(again) == {("a",): 1}


def test_many_batches_leave_few_pieces() -> None:
    store = KeyedStateBackend(SINGLE, "F")
    for number in range(100):
        add(store, keys(str(number)))
    assert store.tables()["state:total"].column(0).num_chunks < 20
    assert len(totals(store)) == 100


def test_a_keys_states_and_timers_can_be_read_between_batches() -> None:
    store = KeyedStateBackend(COMPOSITE, "F")
    codes, _ = store.begin([keys(("a", 1), ("b", 2), names=("customer", "region")), COMPOSITE.empty_table()])
    total, seen = store.get_state(TOTAL), store.get_list_state(ListStateDescriptor("seen", "tier string"))
    for store.key_context.code in codes:
        total.update(5)
        store.timers.register(9)
    seen.add(("gold",))
    store.processing_timers.register(3)
    store.end()
    assert store.state_of(("a", 1)) == {"total": 5}
    assert store.state_of(("b", 2)) == {"total": 5, "seen": [("gold",)]}
    assert store.state_of(("z", 1)) == {}
    last = [(("b", 2), "event_time", 9), (("b", 2), "processing_time", 3)]
    assert store.timers_of() == [(("a", 1), "event_time", 9), *last]
    assert store.timers_of(("b", 2)) == last
    sizes = store.sizes()
    assert {name: size["rows"] for name, size in sizes.items()} == {
        "timers": 2,
        "processing_timers": 1,
        "state:total": 2,
        "state:seen": 1,
    }
    assert all(size["bytes"] > 0 for size in sizes.values())


def test_what_has_expired_is_not_shown_and_not_kept_in_a_snapshot() -> None:
    store = KeyedStateBackend(SINGLE, "F")
    forgetful = store.get_state(ValueStateDescriptor("v", "long", ttl=StateTtlConfig("10 ms")))
    by_time = store.get_list_state(
        ListStateDescriptor("l", "long", ttl=StateTtlConfig("10 ms", time_domain="event_time"))
    )
    store.timer_service.watermark = store.timer_service.processing_time = 0
    (code,), _ = store.begin([keys("a"), keys()])
    store.key_context.code = code
    forgetful.update(1)
    by_time.add(2)
    store.end()
    store.timer_service.processing_time = 10
    assert store.state_of("a") == {"l": [2]}
    assert store.sizes()["state:v"]["rows"] == 1
    assert store.tables()["state:v"].num_rows == 0
    store.timer_service.watermark = 10
    assert store.state_of("a") == {}
    assert store.tables()["state:l"].num_rows == 0
