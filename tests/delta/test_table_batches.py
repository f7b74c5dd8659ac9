"""Batches of one application: each once, whoever writes in between, and none of a run that was fenced off."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from cojoin.delta.table_batches import NO_BATCH, FencedOffError, TableBatches
from cojoin.delta.table_writer import NewTable
from cojoin.errors import QueryFailedError
from cojoin.storage.local_store import LocalStore
from cojoin.storage.parquet_files import WrittenFile
from tests.delta.tables import APP, SCHEMA, by_hand, data_file, features, ids, writer
from tests.delta.tables import append as append_to

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def batches(folder: Path, epoch: int | None = None, **properties: str) -> TableBatches:
    return TableBatches(LocalStore(str(folder), "table"), "out", APP, epoch, properties)


def append(found: TableBatches, folder: Path, batch_id: int, *, is_done: Callable[[int], bool] | None = None) -> int:
    """Append a batch of one row, the batch's number."""
    file = data_file(folder / "out", [batch_id])
    written = WrittenFile(file.path, 1, file.size, file.modified, file.statistics or "")
    is_done = is_done or (lambda newest: newest >= batch_id)
    return found.append(SCHEMA, [written], batch_id, query_id="0b8e", is_done=is_done).version


def test_what_others_write_in_between_is_seen(tmp_path: Path) -> None:
    ours = batches(tmp_path)
    assert ours.look() == (None, NO_BATCH)
    assert [append(ours, tmp_path, batch_id) for batch_id in (0, 1)] == [0, 1]
    append_to(writer(tmp_path / "out"), tmp_path / "out", 7, app_id="another")
    assert ours.look()[1] == 1
    append(batches(tmp_path), tmp_path, 2)
    assert append(ours, tmp_path, 2) == 3
    assert ids(tmp_path / "out") == [0, 1, 2, 7]


def test_of_two_drivers_that_commit_a_batch_at_the_same_moment_one_looks_again(tmp_path: Path) -> None:
    ours, theirs = batches(tmp_path), batches(tmp_path)
    append(ours, tmp_path, 0)
    asked: list[int] = []

    def is_done(newest: int) -> bool:
        if not asked:
            append(theirs, tmp_path, 1)
        asked.append(newest)
        return newest >= 1

    assert append(ours, tmp_path, 1, is_done=is_done) == 1
    assert asked == [0, 1]
    assert ids(tmp_path / "out") == [0, 1]


def test_a_run_that_another_has_taken_over_can_not_commit(tmp_path: Path) -> None:
    ours, theirs = batches(tmp_path, 1), batches(tmp_path, 2)
    theirs.fence("0b8e")
    assert not (tmp_path / "out").exists(), "a table that is not there is not fenced"
    append(ours, tmp_path, 0)
    theirs.fence("0b8e")
    theirs.fence("0b8e")
    assert theirs.look()[1] == 0
    for use in (lambda: append(ours, tmp_path, 1), ours.look, lambda: ours.fence("0b8e")):
        with pytest.raises(FencedOffError, match="taken over at epoch 2; this one held epoch 1") as caught:
            use()
        assert caught.value.epoch == 2
    assert append(theirs, tmp_path, 1) == 2
    assert batches(tmp_path).look()[1] == 1


def test_a_takeover_between_the_look_and_the_commit_is_noticed(tmp_path: Path) -> None:
    ours, theirs = batches(tmp_path, 1), batches(tmp_path, 2)

    def is_done(newest: int) -> bool:
        # Our commit would make the table.
        theirs.fence("0b8e", NewTable(SCHEMA))
        return newest >= 0

    with pytest.raises(FencedOffError):
        append(ours, tmp_path, 0, is_done=is_done)
    assert theirs.look()[1] == NO_BATCH
    assert append(theirs, tmp_path, 0) == 1
    assert ids(tmp_path / "out") == [0]


def test_another_table_of_that_name_is_another_table(tmp_path: Path) -> None:
    ours = batches(tmp_path)
    for batch_id in (0, 1, 2):
        append(ours, tmp_path, batch_id)
    before, newest = ours.look()
    assert newest == 2
    shutil.rmtree(tmp_path / "out")
    append_to(writer(tmp_path / "out"), tmp_path / "out", 7, app_id="another")
    after, newest = ours.look()
    assert newest == NO_BATCH
    assert after != before
    assert append(ours, tmp_path, 3) == 1


def test_what_only_spark_may_write_is_named(tmp_path: Path) -> None:
    assert batches(tmp_path).refusal(SCHEMA) is None
    assert batches(tmp_path, **{"delta.enableChangeDataFeed": "true"}).refusal(SCHEMA) is None
    why = batches(tmp_path, **{"delta.columnMapping.mode": "name"}).refusal(SCHEMA)
    assert why == "new tables have properties that only Spark gives: delta.columnMapping.mode"
    by_hand(tmp_path / "out", features("rowTracking"))
    assert batches(tmp_path).refusal(SCHEMA) == "its feature 'rowTracking'"
    with pytest.raises(QueryFailedError, match="its feature 'rowTracking' does not allow this commit"):
        append(batches(tmp_path), tmp_path, 0)
