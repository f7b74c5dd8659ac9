from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from cojoin.checkpoints.segment_files import SegmentFolder
from cojoin.engine.joins import AsofJoin, IntervalJoin
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.rescaling import SpilledTables, assemble, cut, key_columns, merged_header
from cojoin.errors import CheckpointError
from tests.programs import OUTPUT, Ledger
from tests.segments import MemoryStore
from tests.streams import specs

if TYPE_CHECKING:
    from numpy.typing import NDArray

INPUTS = specs()


def by_length(keys: pa.Table) -> NDArray[np.int64]:
    return np.array([len(key) for key in keys.column(0).to_pylist()], dtype=np.int64)


def test_every_table_has_its_key() -> None:
    inputs = specs(composite=True)
    for name in ("held1", "left", "waiting", "timers", "processing_timers", "state:x"):
        assert key_columns(name, inputs) == ["customer", "region"]
    for name in ("held2", "right", "versions"):
        assert key_columns(name, inputs) == ["id", "zone"]


@pytest.mark.parametrize(
    "operation",
    [
        AsofJoin(direction="nearest", suffixes=("", "_customer")),
        IntervalJoin("1 ms", "2 ms", suffixes=("", "_customer")),
        KeyedCoProcess(Ledger(), OUTPUT),
    ],
)
def test_every_table_of_an_operator_can_be_cut(operation: Any) -> None:
    _, tables = operation.create_operator(*INPUTS).parts()
    pieces = cut(tables, INPUTS, by_length, 3)
    assert [piece.keys() for piece in pieces] == [tables.keys()] * 3
    assert {name: table.schema for name, table in assemble(pieces).items()} == {
        name: table.schema for name, table in tables.items()
    }


def test_a_cut_keeps_every_row_once_and_in_order() -> None:
    timers = pa.table({"customer": ["bb", "", "a", "cc", ""], "@timestamp": [1, 2, 3, 4, 5]})
    pieces = cut({"timers": timers}, INPUTS, by_length, 4)
    assert [piece["timers"].column("@timestamp").to_pylist() for piece in pieces] == [[2, 5], [3], [1, 4], []]
    assert assemble(pieces)["timers"].column("@timestamp").to_pylist() == [2, 5, 3, 1, 4]
    with pytest.raises(AssertionError, match="a key group out of range"):
        cut({"timers": timers}, INPUTS, by_length, 2)
    with pytest.raises(CheckpointError, match="table 'held2' has no column 'id', which is part of the query's key"):
        cut({"held2": timers}, INPUTS, by_length, 2)


def test_key_groups_of_before_and_after_a_change_become_one() -> None:
    old = pa.table({"customer": ["a"], "@value": pa.array([1], pa.int32())})
    new = pa.table({"customer": ["b"], "@value": pa.array([2], pa.int64())})
    whole = assemble([{"state:visits": old}, {}, {"state:visits": new, "state:added": new}])
    assert whole["state:visits"].to_pylist() == [{"customer": "a", "@value": 1}, {"customer": "b", "@value": 2}]
    assert whole["state:visits"].schema == whole["state:added"].schema == new.schema
    text = pa.table({"customer": ["b"], "@value": ["x"]})
    with pytest.raises(CheckpointError, match=r"state 'visits': .*column '@value' changes from string to int"):
        assemble([{"state:visits": old}, {"state:visits": text}])
    with pytest.raises(CheckpointError, match="table 'held1': "):
        assemble([{"held1": old}, {"held1": text}])


def test_a_flag_is_known_by_its_place() -> None:
    """An input got a column of the flag's name, so the flag another."""
    old = pa.table({"k": ["a", "b"], "matched": [True, False]})
    new = pa.table({"k": ["c"], "matched": pa.array([None], pa.bool_()), "_matched": [True]})
    for pieces, flags in (([old, new], [True, False, True]), ([new, old], [True, True, False])):
        whole = assemble([{"left": piece} for piece in pieces])["left"]
        assert whole.column_names == ["k", "matched", "_matched"]
        assert whole.column("matched").to_pylist() == [None] * 3
        assert whole.column("_matched").to_pylist() == flags


def test_spilled_tables_come_back_in_ranges_with_all_rows_of_a_key_together() -> None:
    keys = [f"customer {number % 40}" for number in range(400)]
    held = pa.table({"customer": pa.array([*keys, *[None] * 100]), "number": range(500)})
    states = pa.table({"customer": [f"customer {number}" for number in range(40)], "@value": range(40)})
    stores: list[MemoryStore] = []

    def opened() -> MemoryStore:
        stores.append(MemoryStore())
        return stores[-1]

    tables = SpilledTables(INPUTS, 1_000, opened)
    tables.add({"held1": held.slice(0, 10)})
    assert not stores
    for start in range(10, 500, 100):
        tables.add({"held1": held.slice(start, 100), "state:visits": states.slice(start // 10, 10)})
    assert len(stores) == 1
    assert tables.whole() is None
    ranges = list(tables.ranges())
    assert len(ranges) > 5
    assert [last for last, _ in ranges] == sorted(last for last, _ in ranges)
    assert ranges[-1][0] == (1 << 64) - 1
    seen: set[str | None] = set()
    for _, found in ranges:
        rows = [row for row in found["held1"].to_pylist() if row["customer"] is not None]
        assert seen.isdisjoint(row["customer"] for row in rows)
        assert {row["customer"] for row in rows} >= {row["customer"] for row in found["state:visits"].to_pylist()}
        seen |= {row["customer"] for row in rows}
        for customer in {row["customer"] for row in rows}:
            numbers = [row["number"] for row in rows if row["customer"] == customer]
            assert numbers == sorted(numbers), "the rows of a key keep their order"
    assert sorted(row for _, found in ranges for row in found["held1"].column("number").to_pylist()) == list(range(500))
    # Rows without a key are spread, since they need not be together.
    assert max(found["held1"].column("customer").null_count for _, found in ranges) < 50
    whole = assemble([found for _, found in ranges])["state:visits"]
    assert sorted(whole.column("@value").to_pylist()) == list(range(1, 40))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux shows what is mapped")
def test_a_spilled_file_is_mapped_only_while_it_is_read(tmp_path: Path) -> None:
    tables = SpilledTables(INPUTS, 1_000, lambda: SegmentFolder(tmp_path.as_uri()))
    for start in range(0, 1_000, 100):
        keys = [f"customer {number}" for number in range(start, start + 100)]
        tables.add({"held1": pa.table({"customer": keys})})
    kept = []
    for _, found in tables.ranges():
        kept.append(found["held1"])
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert sum(table.num_rows for table in kept) == 1_000
    tables.add({"held1": pa.table({"customer": ["one more"] * 100})})
    next(tmp_path.iterdir()).unlink()
    with pytest.raises(CheckpointError, match=r"restored rows on the local disk can't be read again: .*; see to this"):
        list(tables.ranges())


def test_tables_within_their_bytes_stay_in_memory() -> None:
    tables = SpilledTables(INPUTS, None, MemoryStore)
    tables.add({"held1": pa.table({"customer": ["a"] * 1_000})})
    tables.add({"held1": pa.table({"customer": ["b"]})})
    whole = tables.whole()
    assert whole is not None
    assert whole["held1"].num_rows == 1_001


def test_headers_are_merged_into_one() -> None:
    counts = {"rows_in": 3, "done": 1, "late_applied": 1, "rejected": {"late": 1}}
    other = {"rows_in": 5, "done": 3, "late_applied": 0, "rejected": {"late": 1, "null_key": 1}}
    shared = {"operator": "O", "watermark": {"merge": {"current": 1}}}
    one = {**shared, "counts": [counts, other], "rows_out": 2, "processing_time": 7, "saved": {"at": 1}}
    two = {**shared, "counts": [other, counts], "rows_out": 3, "processing_time": 9, "saved": None}
    both = {"rows_in": 8, "done": 4, "late_applied": 1, "rejected": {"late": 2, "null_key": 1}}
    assert merged_header([one, two]) == {
        **shared,
        "counts": [both, both],
        "rows_out": 5,
        "processing_time": 9,
        "saved": None,
    }
    assert one["saved"] == {"at": 1}
    behind = {"merge": {"current": 0}}
    assert merged_header([one, {**two, "watermark": behind}])["watermark"] == behind
