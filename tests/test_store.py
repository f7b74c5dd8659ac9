from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cojoin.errors import CheckpointError, FunctionError
from cojoin.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from cojoin.store import KeyedStore

SINGLE = pa.schema([("customer", pa.string())])
COMPOSITE = pa.schema([("customer", pa.string()), ("region", pa.int32())])
TOTAL = ValueStateDescriptor("total", "long")


def keys(*values: Any, names: tuple[str, ...] = ("customer",)) -> pa.Table:
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    types = [pa.string(), pa.int32()][: len(names)]
    columns = [pa.array([row[place] for row in rows], dtype) for place, dtype in enumerate(types)]
    return pa.Table.from_arrays(columns, list(names))


def add(store: KeyedStore, left: pa.Table, right: pa.Table | None = None, watermark: int = -1) -> list[Any]:
    """Count one up for each touched key; give the keys in the order in which they are touched."""
    total = store.get_state(TOTAL)
    codes, _ = store.begin([left, left.slice(0, 0) if right is None else right], watermark)
    touched = []
    for store.cursor.code in codes:
        touched.append(store.key_of(store.cursor.code))
        total.update((total.value() or 0) + 1)
    store.end()
    return touched


def totals(store: KeyedStore) -> dict[Any, int]:
    table = store.tables()["state:total"]
    return {tuple(row.values())[:-1]: row["@value"] for row in table.to_pylist()}


def test_only_the_touched_keys_change() -> None:
    store = KeyedStore(SINGLE, "F")
    add(store, keys("a", "b", "a"))
    assert add(store, keys("b")) == ["b"]
    assert totals(store) == {("a",): 1, ("b",): 2}


def test_the_rights_keys_are_the_same_keys_under_other_names() -> None:
    store = KeyedStore(COMPOSITE, "F")
    left = keys(("a", 1), ("a", 2), names=("customer", "region"))
    right = keys(("a", 2), ("", 1), names=("id", "zone"))
    assert sorted(add(store, left, right)) == [("", 1), ("a", 1), ("a", 2)]
    add(store, left.slice(0, 0), right)
    assert totals(store) == {("a", 1): 1, ("a", 2): 2, ("", 1): 2}


def test_a_key_with_a_due_timer_is_touched() -> None:
    store = KeyedStore(SINGLE, "F")
    codes, _ = store.begin([keys("a", "b"), keys()], -1)
    for store.cursor.code, timestamp in zip(codes, (5, 9), strict=True):
        store.timers.register(timestamp)
    store.end()
    assert (store.timer_count(), store.has_due_timers(4), store.has_due_timers(5)) == (2, False, True)
    assert add(store, keys("c"), watermark=5) == ["c", "a"]
    assert store.timer_count() == 2


def test_a_cleared_key_leaves_nothing_behind() -> None:
    store = KeyedStore(SINGLE, "F")
    add(store, keys("a"))
    total = store.get_state(TOTAL)
    (code,), _ = store.begin([keys("a"), keys()], -1)
    store.cursor.code = code
    total.clear()
    store.end()
    assert totals(store) == {}


def test_states_are_loaded_when_they_are_asked_for_within_a_batch() -> None:
    store, again = KeyedStore(SINGLE, "F"), KeyedStore(SINGLE, "F")
    add(store, keys("a", "b"))
    again.load_tables(store.tables())
    (code,), _ = again.begin([keys("b"), keys()], -1)
    again.cursor.code = code
    assert again.get_state(TOTAL).value() == 1
    again.end()
    assert totals(again) == {("a",): 1, ("b",): 1}


def test_a_state_that_is_no_longer_asked_for_is_kept() -> None:
    store, again = KeyedStore(SINGLE, "F"), KeyedStore(SINGLE, "F")
    add(store, keys("a"))
    again.load_tables(store.tables())
    again.begin([keys("a"), keys()], -1)
    again.end()
    assert totals(again) == {("a",): 1}


def test_the_same_state_may_be_asked_for_twice_but_not_as_another() -> None:
    store = KeyedStore(SINGLE, "F")
    assert store.get_state(TOTAL) is store.get_state(ValueStateDescriptor("total", pa.int64()))
    with pytest.raises(FunctionError, match="F: state 'total' is declared twice"):
        store.get_state(ValueStateDescriptor("total", "int"))
    with pytest.raises(FunctionError, match="F: state 'total' is declared twice"):
        store.get_map_state(MapStateDescriptor("total", "string", "long"))


def test_a_descriptor_must_be_of_the_states_kind() -> None:
    with pytest.raises(FunctionError, match="F: expected a ListStateDescriptor, got ValueStateDescriptor"):
        KeyedStore(SINGLE, "F").get_list_state(TOTAL)  # type: ignore[arg-type]
    assert KeyedStore(SINGLE, "F").get_list_state(ListStateDescriptor("l", "int")).get() == []


def test_stored_keys_and_types_must_be_the_declared_ones() -> None:
    store = KeyedStore(SINGLE, "F")
    add(store, keys("a"))
    with pytest.raises(CheckpointError, match="F: the checkpoint's states have the key customer string"):
        KeyedStore(COMPOSITE, "F").load_tables(store.tables())
    again = KeyedStore(SINGLE, "F")
    again.load_tables(store.tables())
    with pytest.raises(CheckpointError, match="declares int"):
        again.get_state(ValueStateDescriptor("total", "int"))
