"""The round trip of a state's tables: cut by key group and put together again they are what they were, or refused."""

from __future__ import annotations

import zlib
from collections import Counter
from itertools import starmap
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cojoin.checkpoints.inspect.key_state import STATE
from cojoin.engine.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from cojoin.engine.state.descriptors import stored_type
from cojoin.engine.time.watermarks import NONE
from cojoin.spark.savepoints.erase import without_partitions
from cojoin.spark.savepoints.state_packing import assemble_group, largest_times, pack_rows
from cojoin.spark.savepoints.state_parts import (
    DOMAIN,
    MATCHED,
    TIMESTAMP,
    WAITS_FOR,
    PartShape,
    domains,
    waits,
)
from tests.streams import CUSTOMERS, TRADES, specs, table

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUPS = 3
KEY = pa.schema([("customer", pa.string())])
WEEK = StateTtlConfig("7 days", time_domain="event_time")
STATES = {
    "value": ValueStateDescriptor("value", "version bigint, tier string"),
    "timed": ValueStateDescriptor("timed", "double", ttl=WEEK),
    "list": ListStateDescriptor("list", "bigint", ttl=WEEK),
    "map": MapStateDescriptor("map", "string", "array<bigint>"),
}
keys = st.sampled_from(["a", "b", "", "ß", "a.b", "`"])
numbers = st.integers(-(1 << 63), (1 << 63) - 1)
accesses = st.integers(-(10**12), 10**12)


def group_of(key: Any) -> int:
    return zlib.crc32(repr(key).encode()) % GROUPS


def packed(rows: pa.Table, shape: PartShape) -> list[tuple[int, str, bytes]]:
    """Pack rows in two tasks, as Spark would."""
    spec_keys = [rows.column(at).to_pylist() for at in shape.keys]
    groups = pa.array([group_of(key) for key in zip(*spec_keys, strict=True)], pa.int32())
    names = [f"c{at}" for at in range(rows.num_columns)]
    numbered = rows.rename_columns(names).append_column("group", groups)
    found = []
    for half in (numbered.slice(0, rows.num_rows // 2), numbered.slice(rows.num_rows // 2)):
        batch = pack_rows(half, shape, range(GROUPS))
        found += [(row["label"], row["name"], row["payload"]) for row in batch.to_pylist()]
    return found


def whole(
    parts: Sequence[tuple[pa.Table, PartShape]], schemas: dict[str, pa.Schema]
) -> tuple[dict[str, list[Any]], Counter[str]]:
    """Return the rows of all key groups by table, after checking that each key is in its own."""
    pieces = [piece for rows, shape in parts for piece in packed(rows, shape)]
    found: dict[str, list[Any]] = {name: [] for name in schemas}
    faults: Counter[str] = Counter()
    for group in range(GROUPS):
        mine = [(name, pa.py_buffer(payload)) for label, name, payload in pieces if label == group]
        tables, wrong = assemble_group(mine, schemas, specs())
        faults += wrong
        assert set(tables) == set(schemas)
        for name, each in tables.items():
            assert each.schema.names[:-1] == schemas[name].names[:-1]
            assert {group_of((row[0],)) for row in map(tuple, map(dict.values, each.to_pylist()))} <= {group}
            found[name] += each.to_pylist()
    return found, faults


def rows_of(values: Any) -> list[str]:
    return sorted(map(repr, values))


@st.composite
def entries(draw: Any) -> dict[str, pa.Table]:
    """Draw what each state has: at most one entry a key."""
    found = {}
    values = {
        "value": st.fixed_dictionaries({"version": st.none() | numbers, "tier": st.none() | keys}),
        "timed": st.fixed_dictionaries({"@value": st.floats(allow_nan=False), "@event_time": accesses}),
        "list": st.lists(st.fixed_dictionaries({"@value": numbers, "@event_time": accesses}), max_size=3),
        "map": st.dictionaries(keys, st.none() | st.lists(numbers, max_size=2), max_size=3).map(
            lambda each: [*each.items()]
        ),
    }
    for name, descriptor in STATES.items():
        drawn = draw(st.dictionaries(keys, values[name], max_size=5))
        columns = [pa.array([*drawn], pa.string()), pa.array([*drawn.values()], stored_type(descriptor))]
        found[name] = pa.table(columns, names=["customer", "@value"])
    return found


@given(entries())
def test_states_come_back_by_key_group_without_empty_lists_and_maps(drawn: dict[str, pa.Table]) -> None:
    schemas = {STATE + name: rows.schema for name, rows in drawn.items()}
    shapes = [PartShape(name, "state", STATE + name, rows.schema, rows.schema, (0,)) for name, rows in drawn.items()]
    found, faults = whole([*zip(drawn.values(), shapes, strict=True)], schemas)
    assert not faults
    for name, rows in drawn.items():
        expected = [row for row in rows.to_pylist() if name not in ("list", "map") or row["@value"]]
        assert rows_of(found[STATE + name]) == rows_of(expected)


@given(entries(), st.sampled_from([*STATES]))
def test_a_key_that_comes_twice_is_told_whatever_the_state(drawn: dict[str, pa.Table], name: str) -> None:
    rows = drawn[name]
    if name in ("list", "map"):
        rows = rows.filter(pa.array([bool(row["@value"]) for row in rows.to_pylist()], pa.bool_()))
    shape = PartShape(f"state {name!r}", "state", STATE + name, rows.schema, rows.schema, (0,))
    _, faults = whole([(pa.concat_tables([rows, rows]), shape)], {STATE + name: rows.schema})
    assert sum(faults.values()) == rows.num_rows
    assert all(f"state {name!r}: a key occurs more than once, such as customer=" in why for why in faults)


timers = st.lists(st.tuples(keys, st.sampled_from(["event_time", "processing_time"]), numbers), max_size=12)


@given(timers)
def test_timers_come_back_once_each_in_their_domain(drawn: list[tuple[str, str, int]]) -> None:
    schema = KEY.append(pa.field(TIMESTAMP, pa.int64()))
    target = schema.append(pa.field(DOMAIN, pa.string()))
    columns = [[each[at] for each in drawn] for at in (0, 2, 1)]
    rows = pa.table([pa.array(each, field.type) for each, field in zip(columns, target, strict=True)], schema=target)
    schemas = {"timers": schema, "processing_timers": schema}
    shape = PartShape("timers", "timers", "timers", target, target, (0,), allowed=domains(schemas, by_clock=True))
    found, faults = whole([(rows, shape)], schemas)
    assert not faults
    for domain, name in (("event_time", "timers"), ("processing_time", "processing_timers")):
        expected = {(key, timestamp) for key, mine, timestamp in drawn if mine == domain}
        assert sorted(map(tuple, map(dict.values, found[name]))) == sorted(expected)
    without_clock = PartShape("timers", "timers", "timers", target, target, (0,), allowed={"event_time": "timers"})
    _, faults = whole([(rows, without_clock)], schemas)
    assert sum(faults.values()) == sum(domain == "processing_time" for _, domain, _ in drawn)


customer = st.tuples(keys, st.just(1), st.integers(0, 40_000), st.just(0), st.integers(0, 9), st.none() | keys)


@given(st.lists(customer, max_size=12), st.integers(-1, 41))
def test_versions_after_the_watermark_wait_for_it(drawn: list[tuple[Any, ...]], watermark: int) -> None:
    right = specs()[1]
    shape = PartShape("versions", "versions", "versions", CUSTOMERS, CUSTOMERS, (0,), right.event_time, watermark)
    schemas = {"versions": CUSTOMERS, "held2": CUSTOMERS}
    found, faults = whole([(table(drawn, CUSTOMERS), shape)], schemas)
    assert not faults
    in_force = [row for row in drawn if row[2] // 1_000 <= watermark]
    assert rows_of(found["versions"]) == rows_of(table(in_force, CUSTOMERS).to_pylist())
    assert rows_of([*found["versions"], *found["held2"]]) == rows_of(table(drawn, CUSTOMERS).to_pylist())
    latest = largest_times({"versions": table(drawn, CUSTOMERS)}, specs())
    assert latest == [None, max((row[2] // 1_000 for row in drawn), default=None)]


trade = st.tuples(
    keys, st.just(1), st.integers(0, 40_000), st.just(0), st.integers(0, 9), st.none() | st.just(1.5), st.just([])
)
reasons = st.sampled_from(["the watermark", "rows to pair with", "nobody"])


@given(st.lists(st.tuples(trade, reasons, st.sampled_from([None, True, False])), max_size=12))
def test_buffered_rows_go_where_they_wait(drawn: list[tuple[Any, str, bool | None]]) -> None:
    flagged = TRADES.append(pa.field("matched", pa.bool_()))
    schemas = {"held1": TRADES, "left": flagged}
    target = TRADES.append(pa.field(WAITS_FOR, pa.string())).append(pa.field(MATCHED, pa.bool_()))

    def rows(chosen: list[Any]) -> pa.Table:
        plain = table([row for row, _, _ in chosen], TRADES)
        columns = [
            pa.array([each[1] for each in chosen], pa.string()),
            pa.array([each[2] for each in chosen], pa.bool_()),
        ]
        return pa.table([*plain.columns, *columns], schema=target)

    left = specs()[0]
    shape = PartShape("buffered", "buffered", "0", target, target, (0,), left.event_time, allowed=waits(schemas, 0))
    _, faults = whole([(rows(drawn), shape)], schemas)
    assert sum(faults.values()) == sum(reason == "nobody" for _, reason, _ in drawn)
    known = [each for each in drawn if each[1] != "nobody"]
    found, faults = whole([(rows(known), shape)], schemas)
    assert not faults
    held = [row for row, reason, _ in known if reason == "the watermark"]
    assert rows_of(found["held1"]) == rows_of(table(held, TRADES).to_pylist())
    pairs = [(row, bool(flag)) for row, reason, flag in known if reason == "rows to pair with"]
    expected = starmap(lambda row, flag: {**table([row], TRADES).to_pylist()[0], "matched": flag}, pairs)
    assert rows_of(found["left"]) == rows_of(expected)


def test_values_of_a_narrower_type_are_widened_and_nulls_are_told() -> None:
    found = pa.schema([("customer", pa.string()), ("@value", pa.int32())])
    target = pa.schema([("customer", pa.string()), ("@value", pa.int64())])
    shape = PartShape("state 'n'", "state", "state:n", found, target, (0,))
    rows = pa.table([["a", "b"], pa.array([1, 2], pa.int32())], schema=found)
    assert whole([(rows, shape)], {"state:n": target})[0]["state:n"][0]["@value"] in (1, 2)
    nothing = pa.table([["a", None], pa.array([None, 2], pa.int32())], schema=found)
    _, faults = whole([(nothing, shape)], {"state:n": target})
    assert len(faults) == 2
    assert any("a null key: customer=" in why for why in faults)
    timed = pa.schema([("customer", pa.string()), ("@value", stored_type(STATES["list"]))])
    rows = pa.table([["a"], pa.array([[(5, None)]], timed.field(1).type)], schema=timed)
    shape = PartShape("state 'l'", "state", "state:l", timed, timed, (0,))
    assert "a null last_access" in next(iter(whole([(rows, shape)], {"state:l": timed})[1]))


def test_a_partition_that_is_taken_out_leaves_the_watermark_where_it_is() -> None:
    watermark = {
        "merge": {
            "current": 5,
            "channels": {'["a"]': [5, "active", True], '["b"]': [9, "idle", True]},
            "emptied": False,
        },
        "largest": {'["a"]': 7, '["b"]': 9},
        "marks": {'["a"]': 7, '["b"]': 9},
        "silent_since": {'["a"]': None},
        "never_spoke": [False, None],
        "declared": None,
        "clock": NONE,
    }
    left = without_partitions(watermark, {'["a"]'})
    assert left["merge"] == {"current": 5, "channels": {'["b"]': [9, "idle", True]}, "emptied": False}
    assert (left["marks"], left["silent_since"]) == ({'["b"]': 9}, {})
    assert left["largest"] == {'["b"]': 9, "[]": 7}
    assert '["a"]' in watermark["merge"]["channels"], "the original is not changed"


def test_a_null_key_is_no_fault_where_the_row_waits_for_its_time_to_come_out_unmatched() -> None:
    """Of the fault only what waits for something else is told, also where another row's null is in another column."""
    rows = table([(None, 1, 5_000, 0, 0, 1.0, None), ("a", None, 5_000, 0, 0, 2.0, None)], TRADES)
    schema = TRADES.append(pa.field(WAITS_FOR, pa.string())).append(pa.field(MATCHED, pa.bool_()))
    allowed = {"the watermark": "held1", "rows to pair with": "left"}
    for second, expected in (("the watermark", 0), ("rows to pair with", 1)):
        reasons = pa.array(["the watermark", second], pa.string())
        whole = rows.append_column(WAITS_FOR, reasons).append_column(MATCHED, pa.nulls(2, pa.bool_()))
        shape = PartShape("rows", "buffered", "0", schema, schema, (0, 1), "at", allowed=allowed, null_keys=True)
        faults = shape.faults(whole)
        assert sum(faults.values()) == expected
        assert all("a null key" in text and "customer=a," in text for text in faults)
    strict = PartShape("rows", "buffered", "0", schema, schema, (0, 1), "at", allowed=allowed)
    assert sum(strict.faults(whole).values()) == 2
