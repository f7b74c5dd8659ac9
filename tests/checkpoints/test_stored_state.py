"""Spark's own state: a missing one is told from a damaged one, and what a snapshot takes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from cojoin.checkpoints.stored_state import _read_values, lasting
from cojoin.engine.state.named_files import SEGMENTS, NamedFiles
from cojoin.engine.state.segmented_table import SegmentedTable, flush
from cojoin.engine.state.segments import SegmentContext, SegmentOptions
from cojoin.engine.values import codec
from cojoin.errors import CheckpointError
from cojoin.storage.local_store import LocalStore
from tests.segments import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path


class Unreadable:
    """The values of a state, whose reading fails."""

    def __init__(self, message: str) -> None:
        self.error = PySparkException(message)

    def mapInArrow(self, *_: Any) -> Unreadable:  # noqa: N802 - Spark's name
        return self

    def collect(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("[CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS] 3.delta does not exist.", "is missing; it has"),
        ("java.io.FileNotFoundException: 3.delta", "is missing; it has"),
        ("[CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_KEY_SIZE] key size -7", "can't be read: .* key size -7; put"),
        ("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] other keys", "can't be read: .* other keys; put spark/state back"),
    ],
)
def test_a_state_that_is_damaged_is_not_called_missing(tmp_path: Path, message: str, said: str) -> None:
    values: Any = Unreadable(message)
    with pytest.raises(CheckpointError, match=f"Spark's own state after batch 7 {said}"):
        _read_values(values, LocalStore(str(tmp_path)), 7, dict)


def test_another_error_of_spark_is_left_as_it_is(tmp_path: Path) -> None:
    values: Any = Unreadable("Connection refused")
    with pytest.raises(PySparkException, match="Connection refused"):
        _read_values(values, LocalStore(str(tmp_path)), 7, dict)


def test_a_snapshot_copies_the_rows_whose_files_release_0_6_would_delete() -> None:
    store = MemoryStore()
    kept = SegmentedTable(pa.table({"id": [1, 2], "tier": ["gold", "none"]}), ["id"], "versions")
    kept.flush(SegmentContext(store, SegmentOptions(0)))
    flushed = flush({"versions": kept}, None)
    header = {SEGMENTS: flushed.described, codec.WRITTEN: [0, 3, "query"], "watermark": 5}
    before, copied = lasting(codec.encode(header, flushed.tables), store)
    assert before == {"watermark": 5}
    assert sorted(copied["versions"].column("id").to_pylist()) == [1, 2]
    now, named = lasting(codec.encode({**header, codec.RUNS: {}}, flushed.tables), store)
    assert NamedFiles.of(now).files() == list(kept.segments)
    assert named["versions"].num_rows == 0
