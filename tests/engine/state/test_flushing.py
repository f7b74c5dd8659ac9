"""What a state value holds of rows in segments is enough to find them again, and is nothing where there are none."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cojoin.engine.state.flushing import attach, flush
from cojoin.engine.state.segmented_table import SHADOWED, SegmentedTable, whole_tables
from cojoin.engine.state.segments import SegmentContext, SegmentOptions
from cojoin.errors import CheckpointError
from tests.segments import MemoryStore

ROWS = pa.table({"id": [1, 2], "tier": ["gold", "none"]})


def kept(rows: pa.Table = ROWS) -> dict[str, SegmentedTable]:
    return {"versions": SegmentedTable(rows, ["id"], "versions")}


def test_without_segments_it_is_the_tables_alone() -> None:
    for segmenting in (None, SegmentContext(MemoryStore()), SegmentContext(MemoryStore(), SegmentOptions())):
        flushed = flush(kept(), segmenting)
        assert (flushed.described, flushed.tables, flushed.written) == ({}, {"versions": ROWS}, 0)


def test_rows_in_segments_are_found_again() -> None:
    store = MemoryStore()
    flushed = flush(kept(), SegmentContext(store, SegmentOptions(0)))
    assert flushed.tables.keys() == {"versions", SHADOWED + "versions"}
    assert flushed.tables["versions"].num_rows == 0
    assert flushed.written == sum(map(len, store.files.values())) > 0
    again = kept(flushed.tables["versions"])
    attach(again, flushed.described, flushed.tables, SegmentContext(store))
    assert again["versions"].read_all() == whole_tables(flushed.described, flushed.tables, store)["versions"]
    assert sorted(again["versions"].read_all().column("id").to_pylist()) == [1, 2]
    with pytest.raises(CheckpointError, match="nothing says where they lie; run the query with its own checkpoint"):
        attach(kept(), flushed.described, flushed.tables, None)
