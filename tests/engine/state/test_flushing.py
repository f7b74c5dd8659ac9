"""What a state value holds of rows in segments is enough to find them again, and is nothing where there are none."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cojoin.engine.state.flushing import attach, settle
from cojoin.engine.state.segmented_table import OWNED, KeptRows, whole_tables
from cojoin.engine.state.segments import Segmenting, SegmentOptions
from cojoin.errors import CheckpointError
from tests.segments import MemoryStore

ROWS = pa.table({"id": [1, 2], "tier": ["gold", "none"]})


def kept(rows: pa.Table = ROWS) -> dict[str, KeptRows]:
    return {"versions": KeptRows(rows, ["id"], "versions")}


def test_without_segments_it_is_the_tables_alone() -> None:
    for segmenting in (None, Segmenting(MemoryStore()), Segmenting(MemoryStore(), SegmentOptions())):
        settled = settle(kept(), segmenting)
        assert (settled.described, settled.tables, settled.written) == ({}, {"versions": ROWS}, 0)


def test_rows_in_segments_are_found_again() -> None:
    store = MemoryStore()
    settled = settle(kept(), Segmenting(store, SegmentOptions(0)))
    assert settled.tables.keys() == {"versions", OWNED + "versions"}
    assert settled.tables["versions"].num_rows == 0
    assert settled.written == sum(map(len, store.files.values())) > 0
    again = kept(settled.tables["versions"])
    attach(again, settled.described, settled.tables, Segmenting(store))
    assert again["versions"].whole() == whole_tables(settled.described, settled.tables, store)["versions"]
    assert sorted(again["versions"].whole().column("id").to_pylist()) == [1, 2]
    with pytest.raises(CheckpointError, match="nothing says where they lie; run the query with its own checkpoint"):
        attach(kept(), settled.described, settled.tables, None)
