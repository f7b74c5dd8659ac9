"""Queries most of whose state lies in segments: through crashes, restarts, savepoints and restores nothing is lost."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from pyspark.errors import PythonException

import cojoin as cj
from cojoin.checkpoints import segment_files
from cojoin.checkpoints.manifest import Manifest, Manifests
from cojoin.checkpoints.segment_files import SegmentFolder
from cojoin.engine.state.segments import SegmentOptions
from tests.spark.data import SECOND, Folders, connect, generate
from tests.spark.refused import refused
from tests.spark.saved import DRAIN, Saved

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FILES = 4


def evenly(rows: pd.DataFrame) -> list[pd.DataFrame]:
    return [rows.iloc[positions] for positions in np.array_split(np.arange(len(rows)), FILES + 1)]


def segmented(joined: cj.Joined, memory: int = 16 * 500) -> cj.Joined:
    """Let no row stay in the state value, each batch merge all segments, and a restore have few rows in memory."""
    joined._plan = replace(joined.plan, segments=SegmentOptions(0, ratio=1000.0, memory_bytes=memory))
    return joined


def files_of(saved: Saved) -> set[str]:
    return {path.name for path in (saved.folder / "checkpoint" / "segments").iterdir() if path.name[0] != "."}


def named_by(saved: Saved, batch_id: int) -> set[str]:
    manifest = saved.manifests.read(batch_id)
    assert manifest is not None
    return set(manifest.segments)


def crash_at(batch_id: int) -> Any:
    """Let a batch's manifest be the first thing that can't be written."""
    write = Manifests.write

    def failing(self: Manifests, manifest: Manifest) -> None:
        if manifest.batch_id == batch_id:
            msg = "the machine went down"
            raise OSError(msg)
        write(self, manifest)

    return mock.patch.object(Manifests, "write", failing)


@pytest.fixture(autouse=True)
def three_batches() -> Iterator[None]:
    """Let three batches be enough to forget a file."""
    with mock.patch.object(segment_files, "KEPT_MANIFESTS", 3):
        yield


@pytest.mark.slow
def test_through_a_crash_a_savepoint_and_a_restore_nothing_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    streams, folders = generate(seed=23), Folders(tmp_path)
    pieces = list(zip(evenly(streams.trades), evenly(streams.customers), strict=True))

    def add(some: Any) -> None:
        for trades, customers in some:
            folders.add_trades(trades)
            folders.add_customers(customers)

    add(pieces[:FILES])
    old = Saved(spark, tmp_path / "old", folders)
    with crash_at(1), pytest.raises(cj.QueryFailedError, match="the machine went down"):
        old.run(segmented(old.join()), checkpoint_interval=None)
    written = files_of(old)
    assert any(int(name[:12]) == 1 for name in written)
    query = old.run(segmented(old.join()), checkpoint_interval=None)
    # The batch that was run again wrote the same files.
    assert named_by(old, 1) <= written
    last = FILES - 1
    needed = set.union(*(named_by(old, each) for each in range(last - 2, last + 1)))
    there = files_of(old)
    assert needed <= there
    assert {name for name in there - needed if int(name[:12]) <= last - 2} == set()
    assert written - there, "nothing was cleaned"
    report = query.progress
    assert report is not None
    assert report.state_bytes > sum(
        (old.folder / "checkpoint" / "segments" / each).stat().st_size for each in there & named_by(old, last)
    )
    assert report.segment_bytes_written > 0

    # Whoever looks at the state sees the whole of it.
    state = cj.read_state(spark, old.checkpoint)
    assert state.origin == "state store"
    assert state.versions.count() == report.details["versions_in_force"] > 5

    gone = min(named_by(old, last))
    path = old.folder / "checkpoint" / "segments" / gone
    content = path.read_bytes()
    path.unlink()
    with refused(f"after batch {last}", gone, f"{len(content):,} bytes", "missing", kind=cj.CheckpointError):
        query.savepoint()
    path.write_bytes(content[:-8])
    add(pieces[FILES:])
    with refused(gone, f"expected {len(content):,} bytes", "cut off", "restore", kind=cj.QueryFailedError):
        old.run(segmented(old.join()), checkpoint_interval=None)
    path.write_bytes(content)
    savepoint = query.savepoint()

    new = Saved(spark, tmp_path / "new", folders, key_groups=7)
    new.run(segmented(new.join()), DRAIN, restore_from=savepoint, checkpoint_interval=None)
    assert sorted([*old.rows(), *new.rows()], key=str) == sorted(streams.enriched(), key=str)
    new.assert_conserved()


@pytest.mark.slow
def test_a_functions_states_lie_in_segments_which_its_snapshots_name(spark: SparkSession, tmp_path: Path) -> None:
    streams = generate(trades=200, customers=100, seed=29)
    saved = Saved(spark, tmp_path / "function", streams.write(tmp_path, files=2), key_groups=2)
    saved.run(segmented(saved.function()), checkpoint_interval=2)
    snapshot = saved.snapshots.read(1)
    assert snapshot is not None
    assert set(snapshot.manifest.segments) == named_by(saved, 1) <= files_of(saved)
    saved.state.check(snapshot)
    states = cj.read_state(spark, saved.checkpoint, at=1).states["customer"]
    known = streams.customers.customer_id.nunique()
    assert known // 2 < states.count() <= known
    gone = min(named_by(saved, 1))
    (saved.folder / "checkpoint" / "segments" / gone).unlink()
    with refused(gone, "missing", "restore a snapshot", kind=cj.CheckpointError):
        saved.state.check(snapshot)
    state = cj.read_state(spark, saved.checkpoint, at=1)
    with pytest.raises(PythonException, match=f"{gone}: the state names this file"):
        sum(each.count() for each in [*state.states.values(), *state.buffered.values()])


@contextlib.contextmanager
def without_names() -> Iterator[None]:
    """Let manifests name no files, as where Spark has computed the batch again and its files have other names."""
    write = Manifests.write

    def other(self: Manifests, manifest: Manifest) -> None:
        write(self, replace(manifest, segments=()))

    with mock.patch.object(Manifests, "write", other):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("computed", ["once", "twice"])
def test_the_files_of_a_savepoint_outlive_the_batches_after_it(
    spark: SparkSession, tmp_path: Path, computed: str
) -> None:
    streams, folders = generate(seed=31), Folders(tmp_path)
    pieces = list(zip(evenly(streams.trades), evenly(streams.customers), strict=True))
    saved = Saved(spark, tmp_path / "old", folders, key_groups=2)
    for number, (trades, customers) in enumerate(pieces):
        folders.add_trades(trades)
        folders.add_customers(customers)
        with without_names() if computed == "twice" and not number else contextlib.nullcontext():
            query = saved.run(segmented(saved.join()), checkpoint_interval=2, retained_checkpoints=1)
        if not number:
            savepoint, rows = query.savepoint(), saved.rows()
    snapshot = saved.snapshots.read(savepoint.at)
    last = saved.manifests.last()
    assert snapshot is not None
    assert last is not None
    assert not {*snapshot.manifest.segments} & {*last.segments}
    assert {*snapshot.manifest.segments, *last.segments} <= files_of(saved)
    # The other snapshots' files are gone with them, and those of the last batches stay.
    recent = [named_by(saved, each) for each in saved.manifests.batch_ids()[-3:]]
    kept = {name for each in saved.snapshots.all() for name in each.manifest.segments}
    others = files_of(saved) - kept - set.union(*recent)
    assert {name for name in others if int(name[:12]) <= last.batch_id - 2} == set()
    new = Saved(spark, tmp_path / "new", folders, key_groups=3)
    new.run(new.join(), DRAIN, restore_from=savepoint)
    assert sorted([*rows, *new.rows()], key=str) == sorted(streams.enriched(), key=str)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [None, "1m"])
def test_the_sessions_memory_for_a_task_counts_and_may_be_less_than_a_row(
    spark: SparkSession, tmp_path: Path, memory: str | None
) -> None:
    streams, folders = generate(trades=60, customers=400, seed=5), Folders(tmp_path)
    streams.customers["tier"] = streams.customers["tier"].where(streams.customers["version"] > 0, "x" * 3_000_000)
    saved = Saved(spark, tmp_path / "q", folders, key_groups=2)
    folders.add_trades(streams.trades[:1])
    folders.add_customers(streams.customers)
    if memory is not None:
        spark.conf.set("spark.cojoin.memory", memory)
    try:
        saved.run()
        assert bool(files_of(saved)) is (memory is not None)
        folders.add_trades(streams.trades[1:])
        saved.run(trigger=DRAIN)
    finally:
        spark.conf.unset("spark.cojoin.memory")
    assert sorted(saved.rows(), key=str) == sorted(streams.enriched(), key=str)


def test_an_interval_joins_rows_in_segments_survive_restarts_and_rescaling(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    streams, folders = generate(trades=120, customers=120, seed=37), Folders(tmp_path)
    pieces = list(zip(evenly(streams.trades), evenly(streams.customers), strict=True))

    def joined(saved: Saved) -> cj.Joined:
        pair = connect(*folders.sources(), key_groups=saved.key_groups)
        interval = pair.interval_join("-60 seconds", "30 seconds", how="left", suffixes=("", "_right"))
        return segmented(interval, 16 * 200)

    old, new = (Saved(spark, tmp_path / name, folders, key_groups=count) for name, count in (("old", 2), ("new", 3)))
    for trades, customers in pieces[:3]:
        folders.add_trades(trades)
        folders.add_customers(customers)
        query = old.run(joined(old), checkpoint_interval=None)
    assert named_by(old, 2)
    savepoint = query.savepoint()
    for trades, customers in pieces[3:]:
        folders.add_trades(trades)
        folders.add_customers(customers)
    caplog.clear()
    new.run(joined(new), DRAIN, restore_from=savepoint, checkpoint_interval=1)
    new.assert_conserved()
    # Keys that do not fit are in the report of each batch that has read them, and the first of a run is logged.
    manifests = [new.manifests.read(each) for each in new.manifests.batch_ids()]
    large = [each.report.large_key["key"] for each in manifests if each and each.report.large_key]
    assert len(large) > 1
    (line,) = [
        each.getMessage() for each in caplog.records if "with their copies may need more than" in each.getMessage()
    ]
    assert f": the key {large[0]} has " in line
    last = new.manifests.last()
    assert last is not None
    assert [each.rows_in for each in last.report.inputs] == [len(streams.trades), len(streams.customers)]
    found = [row for each in (old, new) for row in each.output().select("trade_id", "version").collect()]
    pairs = streams.trades.merge(streams.customers, on="customer_id", suffixes=("", "_right"))
    apart = pairs.event_time_right - pairs.event_time
    pairs = pairs[(apart >= -60 * SECOND) & (apart <= 30 * SECOND)]
    alone = [(trade, None) for trade in streams.trades.trade_id if trade not in set(pairs.trade_id)]
    expected = [*zip(pairs.trade_id, pairs.version, strict=True), *alone]
    assert sorted(map(tuple, found), key=str) == sorted(expected, key=str)
    assert alone
    assert len(pairs) > len(alone)


def test_where_pyarrow_can_not_write_all_state_stays_in_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    streams = generate(trades=30, customers=20, seed=31)
    saved = Saved(spark, tmp_path / "whole", streams.write(tmp_path, files=1), key_groups=1)
    with mock.patch.object(SegmentFolder, "write", side_effect=OSError("no such file system")):
        query = saved.run(segmented(saved.join()), DRAIN)
    assert saved.rows() == streams.enriched()
    assert query.progress is not None
    assert query.progress.segment_bytes_written == 0
    assert not files_of(saved)
