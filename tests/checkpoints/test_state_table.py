"""The state table: what a snapshot writes and what cleaning removes, in a session that is a stand-in."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest

from cojoin.checkpoints.lease import Lease
from cojoin.checkpoints.snapshot_row import snapshot_row
from cojoin.checkpoints.snapshots import SNAPSHOT_FORM, BeingRemovedError, Snapshots
from cojoin.checkpoints.state_commits import Claim
from cojoin.checkpoints.state_table import StateTable
from cojoin.errors import CheckpointError, QueryFailedError
from cojoin.storage.documents import numbered_name, write_document
from tests.checkpoints.reports import manifest
from tests.checkpoints.state_stand_ins import SnapshotWriter as Writer
from tests.checkpoints.state_stand_ins import StandInSession, without_spark

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Any:
    without_spark(monkeypatch)
    return StandInSession()


def test_a_snapshot_of_a_query_that_was_taken_over_does_not_count(spark: Any, tmp_path: Path) -> None:
    """Its successor may have cleaned its rows: an index would name what is gone."""
    writer = Writer(spark, tmp_path)
    writer.write(3)

    def taken_over() -> None:
        assert writer.files.names("state/batch_id=5"), "the last look comes once the rows are written"
        msg = "another query took over"
        raise QueryFailedError(msg)

    with pytest.raises(QueryFailedError, match="took over"):
        writer.write(5, check=taken_over)
    assert writer.snapshots.batch_ids() == [3]


def test_snapshots_share_what_did_not_change_and_cleaning_leaves_it(spark: Any, tmp_path: Path) -> None:
    writer = Writer(spark, tmp_path)
    first = writer.write(3)
    remembered = list(writer.saved)
    second = writer.write(5)
    writer.saved = remembered
    assert writer.write(5) == second, "a batch that runs again writes the same in its place"
    assert first.content_batch_ids == {"3": [0, 1]}
    assert second.content_batch_ids == {"5": [0], "3": [1]}
    assert second.written_bytes < second.state_bytes
    assert (second.rows, second.key_groups, second.kind) == (4, 2, "checkpoint")
    assert writer.write(6, groups=1) is None, "without every key group there is no snapshot"
    assert writer.snapshots.batch_ids() == [3, 5]
    assert writer.rows_of(3) == [(-1,), (0,), (1,), (3,)]
    expected = [(-1,), (0,), (1,), (5,)]
    assert writer.rows_of(5) == expected
    assert writer.snapshots.obsolete(1) == [3]
    assert writer.cleaner.clean([3]) > 0
    folders = sorted(path.name for path in (tmp_path / "state" / "batch_id=3").iterdir())
    assert folders == ["segment=1"], "what batch 5 points to"
    assert writer.rows_of(5) == expected
    assert writer.cleaner.clean([]) == 0


def test_a_snapshot_that_its_query_has_replaced_while_it_was_read_says_so(spark: Any, tmp_path: Path) -> None:
    """Its batch was executed again from another plan, as after a power failure."""
    writer, index = Writer(spark, tmp_path), "snapshots/000000000003.json"
    former, text = writer.write(3), writer.files.read(index)
    assert text is not None
    assert writer.write(3, clock=1).seal != former.seal
    for read in (writer.table.headers, writer.table.check, writer.table.pinned):
        with pytest.raises(CheckpointError, match="has removed or replaced it while it was read; start again"):
            read(former)
    # The rows are written before the index.
    writer.files.write(index, text)
    with pytest.raises(CheckpointError, match=r"not those that were written; restore another snapshot$"):
        writer.table.headers(former)
    lease = Lease.acquire(writer.files)
    with pytest.raises(CheckpointError, match=r"if its query still runs \(.+\), it may be writing"):
        writer.table.headers(former)
    lease.release()


def names_of(folder: Path) -> set[str]:
    return {each.name for each in (folder / "state" / "batch_id=3").rglob("*.parquet")}


def test_cleaning_removes_only_the_files_that_it_has_found(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A savepoint of the same batch may have been taken while it stood still."""
    writer, other = Writer(spark, tmp_path), Writer(spark, tmp_path)
    writer.write(3)
    before = names_of(tmp_path)

    def stands_still() -> None:
        monkeypatch.setattr(Snapshots, "_is_interrupted", lambda *_: True)
        assert other.cleaner.clean([]) > 0
        assert names_of(tmp_path) == set()
        other.write(3, kind="savepoint")

    assert writer.cleaner.clean([3], check=stands_still) == 0
    assert writer.rows_of(3) == [(-1,), (0,), (1,), (3,)]
    assert not before & names_of(tmp_path)
    assert [each.kind for each in writer.snapshots.all()] == ["savepoint"]


def test_the_rows_of_an_interrupted_savepoint_are_removed(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(spark, tmp_path)
    writer.write(2)
    writer.snapshots.begin(manifest(3), 2)

    def killed() -> None:
        msg = "the machine went down"
        raise OSError(msg)

    with pytest.raises(OSError, match="went down"):
        writer.write(3, kind="savepoint", check=killed)
    assert writer.cleaner.clean([]) == 0, "it may still be being taken"
    assert names_of(tmp_path)
    monkeypatch.setattr("cojoin.checkpoints.snapshots._SAFE_SECONDS", -1.0)
    assert writer.cleaner.clean([]) > 0
    assert not (tmp_path / "state" / "batch_id=3").exists()
    assert writer.files.names("snapshots_removed") == []
    assert writer.snapshots.batch_ids() == [2]
    assert writer.rows_of(2) == [(-1,), (0,), (1,), (2,)]


def test_a_savepoint_that_was_taken_for_interrupted_does_not_count(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(spark, tmp_path)
    monkeypatch.setattr("cojoin.checkpoints.snapshots._SAFE_SECONDS", -1.0)
    writer.snapshots.begin(manifest(3), 2)

    def stands_still() -> None:
        # A cleaning begins meanwhile, and has not yet ended.
        (begun,) = writer.snapshots.removed()
        assert writer.snapshots.bar(begun)

    with pytest.raises(BeingRemovedError):
        writer.write(3, kind="savepoint", check=stands_still)
    assert writer.snapshots.batch_ids() == []
    assert writer.cleaner.clean([]) > 0
    writer.saved = [None, None]
    snapshot = writer.write(3, kind="savepoint")
    assert writer.table.has(snapshot)
    writer.cleaner.clean([3])
    assert not writer.table.has(snapshot)


def test_what_the_query_builds_on_and_savepoints_are_kept(spark: Any, tmp_path: Path) -> None:
    writer = Writer(spark, tmp_path)
    for batch_id, kind in ((1, "savepoint"), (2, "checkpoint"), (3, "checkpoint")):
        writer.write(batch_id, kind=kind)
    assert writer.snapshots.obsolete(1) == [2]
    assert writer.snapshots.obsolete(1, savepoints_too=True) == [1, 2]
    assert writer.snapshots.obsolete(5) == []


def test_rows_are_those_of_the_files_that_the_log_names(spark: Any, tmp_path: Path) -> None:
    # Spark takes the second folder for a pattern.
    for name in ("plain folder", "[pattern]"):
        writer = Writer(spark, tmp_path / name)
        writer.write(3)
        former = names_of(tmp_path / name)
        writer.saved = [None, None]
        snapshot = writer.write(3)
        assert (snapshot.rows, snapshot.content_batch_ids) == (4, {"3": [0, 1]})
        assert names_of(tmp_path / name) > former, "those of the earlier attempt are there until the batch is cleaned"
        assert writer.rows_of(3) == [(-1,), (0,), (1,), (3,)]
        assert writer.table.pinned(snapshot).has(snapshot)
        writer.cleaner.clean([3])
        assert not (tmp_path / name / "state" / "batch_id=3").exists()


def test_a_table_that_only_spark_reads_is_named_where_there_is_no_delta(spark: Any, tmp_path: Path) -> None:
    writer = Writer(spark, tmp_path)
    snapshot = writer.write(3)
    action = {"metaData": {"id": "x", "configuration": {"delta.columnMapping.mode": "name"}}}
    (tmp_path / "state" / "_delta_log" / f"{1:020d}.json").write_text(json.dumps(action))
    expected = r"its column mapping \(delta.columnMapping.mode = name\) makes Spark's reader of Delta necessary"
    for read in (writer.table.headers, writer.table.contents):
        with pytest.raises(CheckpointError, match=expected):
            read(snapshot)


def test_files_that_are_gone_or_damaged_are_named(spark: Any, tmp_path: Path) -> None:
    writer = Writer(spark, tmp_path)
    snapshot = writer.write(3)
    pinned = writer.table.pinned(snapshot)
    log = tmp_path / "state" / "_delta_log" / f"{0:020d}.json"
    text = log.read_text()
    log.write_text('{"txn": {')
    for read in (writer.table.headers, pinned.headers, StateTable(spark, writer.files).pinned):
        with pytest.raises(CheckpointError, match=r"its table state can't be read: .*; restore another snapshot"):
            read(snapshot)
    log.write_text(text)
    next((tmp_path / "state" / "batch_id=3").rglob("*.parquet")).unlink()
    reads: list[Any] = [writer.table.headers, writer.table.contents, writer.table.check, pinned.contents]
    for read_content in reads:
        with pytest.raises(CheckpointError, match="files of its table state are gone, vacuumed or deleted"):
            read_content(snapshot)
    assert not writer.table.has(snapshot)


def test_a_savepoint_that_was_taken_for_interrupted_does_not_bring_its_rows_back(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim is over, whatever it has written into the table's folder."""
    writer = Writer(spark, tmp_path)
    writer.write(2)
    claim = writer.commits.next_savepoint()
    writer.snapshots.begin(manifest(3), 2)
    assert writer.cleaner.clean([]) == 0, "it may still be being taken"
    monkeypatch.setattr("cojoin.checkpoints.snapshots._SAFE_SECONDS", -1.0)

    def killed() -> None:
        msg = "the machine went down"
        raise OSError(msg)

    with pytest.raises(OSError, match="went down"):
        writer.write(3, kind="savepoint", check=killed)
    assert writer.cleaner.clean([]) > 0
    monkeypatch.setattr("cojoin.checkpoints.snapshots._SAFE_SECONDS", 24 * 3600.0)
    before = sorted(writer.files.names("state/_delta_log"))
    with pytest.raises(BeingRemovedError, match="taken it for interrupted"):
        writer.write(3, kind="savepoint", claim=claim)
    assert sorted(writer.files.names("state/_delta_log")) == before
    writer.saved = [None, None]
    assert writer.write(3, kind="savepoint", claim=writer.commits.next_savepoint()) is not None
    assert writer.rows_of(3) == [(-1,), (0,), (1,), (3,)]


def test_cleaning_keeps_what_a_savepoint_may_point_to_while_it_is_being_taken(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(spark, tmp_path)
    writer.write(2)
    writer.snapshots.begin(manifest(3), 2, writer.snapshots.holders())
    assert writer.snapshots.promised() == {(2, 0), (2, 1)}
    with monkeypatch.context() as later:
        later.setattr("cojoin.checkpoints.snapshots._SAFE_SECONDS", -1.0)
        assert writer.snapshots.promised() == {(2, 0), (2, 1)}, "it counts in the end, unless a cleaning bars it"
    writer.cleaner.clean([2])
    assert writer.snapshots.batch_ids() == []
    assert {path.name for path in (tmp_path / "state" / "batch_id=2").iterdir()} >= {"segment=0", "segment=1"}
    writer.write(3, kind="savepoint")
    writer.snapshots.finish(3)
    assert writer.cleaner.clean([]) > 0
    assert [path.name for path in (tmp_path / "state" / "batch_id=2").iterdir()] == ["segment=1"]
    assert writer.rows_of(3) == [(-1,), (0,), (1,), (3,)]
    assert writer.files.names("snapshots_removed") == []


@pytest.mark.parametrize("moment", ["before the files are listed", "before they are removed"])
def test_a_savepoint_that_is_taken_while_old_content_is_removed_keeps_its_rows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Its rows lie where content was that no snapshot needs any more."""
    writer, other = Writer(spark, tmp_path), Writer(spark, tmp_path)
    writer.write(3)
    writer.write(4)
    assert writer.cleaner.clean([3]) > 0
    assert names_of(tmp_path), "the content to which the next snapshot points"
    writer.saved = [None, None]
    writer.write(5)
    taken: list[Any] = []

    def take() -> None:
        if not taken:
            taken.append(other.write(3, kind="savepoint", claim=writer.commits.next_savepoint()))

    looks: list[int] = []

    def look(*arguments: Any) -> Any:
        found = real(*arguments)
        looks.append(1)
        if len(looks) == 2:
            take()
        return found

    real = writer.cleaner._look
    if moment == "before the files are listed":
        monkeypatch.setattr(writer.cleaner, "_look", look)
        writer.cleaner.clean([4])
    else:
        writer.cleaner.clean([4], check=take)
    assert taken
    assert writer.rows_of(3) == [(-1,), (0,), (1,), (3,)]
    assert [each.batch_id for each in writer.snapshots.all()] == [3, 5]


def test_a_run_does_not_write_over_a_snapshot_of_its_successor(spark: Any, tmp_path: Path) -> None:
    writer = Writer(spark, tmp_path)
    writer.commits.fence_runs(1)
    assert not writer.files.exists("state"), "there is nothing to protect"
    writer.write(3, claim=Claim.of_run(1, 3))
    writer.commits.fence_runs(2)
    with pytest.raises(QueryFailedError, match="fenced off"):
        writer.write(4, claim=Claim.of_run(1, 4))
    writer.saved = [None, None]
    writer.write(3, claim=Claim.of_run(2, 3))
    writer.write(4, claim=Claim.of_run(2, 4))
    assert writer.rows_of(4) == [(-1,), (0,), (1,), (4,)]
    writer.commits.fence_runs(2)
    writer.write(5, claim=Claim.of_run(2, 5))


def test_the_files_of_snapshots_are_known_by_a_listing_that_has_the_newest_one(spark: Any, tmp_path: Path) -> None:
    writer = Writer(spark, tmp_path)
    snapshots, named = writer.snapshots, {}
    for batch_id in (3, 5, 7):
        index = writer.write(batch_id)
        named[batch_id] = f"{batch_id:012d}-00000-x.arrow"
        with_files = replace(index, manifest=replace(index.manifest, segments=(named[batch_id],)))
        name = numbered_name("snapshots", batch_id)
        write_document(writer.files, name, SNAPSHOT_FORM, asdict(with_files))
    begun = replace(manifest(8), segments=("taken now",))
    snapshots.begin(begun, 2)
    assert snapshots.segments(7) == {*named.values(), "taken now"}
    with mock.patch.object(Snapshots, "all", return_value=[snapshots.read(3), snapshots.read(5)]):
        with pytest.raises(CheckpointError, match=r"lacks that of batch 7, .*nothing was deleted"):
            snapshots.segments(7)
        # Another process may have removed it.
        assert snapshots.segments(9) == {named[3], named[5], "taken now"}


def test_a_snapshot_keeps_the_files_that_its_rows_name(spark: Any, tmp_path: Path) -> None:
    """Where Spark computes a batch's rows twice, they may name other files than the calls that were counted."""
    writer = Writer(spark, tmp_path)
    rows = []
    for group in range(2):
        runs = {"held1": [[[f"of the row of group {group}", 1, 0, 5, "digest"], 0, 0, 0]]}
        header = {"processing_time": 5, "watermark": 3, "runs": runs}
        rows.append(snapshot_row(group, 3, header, {"held1": pa.table({"id": [1]})})[0])
    counted, frame = replace(manifest(3), segments=("of the calls",)), spark.createDataFrame(pa.concat_tables(rows))
    writer.table.write(frame, counted, "checkpoint", 2, remembered=True, claim=Claim.of_run(1, 3))
    assert writer.snapshots.segments(3) == {"of the calls", "of the row of group 0", "of the row of group 1"}
