"""Queries most of whose state lies in segments: through crashes, restarts, savepoints and restores nothing is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest

import cojoin as cj
from cojoin.checkpoints import segment_files
from cojoin.checkpoints.manifest import Manifest, Manifests
from cojoin.checkpoints.segment_files import SegmentFolder
from cojoin.engine.state.segments import SegmentOptions
from tests.spark.data import Folders, generate
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


def segmented(joined: cj.Joined) -> cj.Joined:
    """Let no row stay in the state value, and each batch merge all segments."""
    joined._plan = replace(joined.plan, segments=SegmentOptions(0, ratio=1000.0))
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
def test_a_functions_states_lie_in_segments_and_its_snapshots_need_none(spark: SparkSession, tmp_path: Path) -> None:
    streams = generate(trades=200, customers=100, seed=29)
    saved = Saved(spark, tmp_path / "function", streams.write(tmp_path, files=2), key_groups=2)
    saved.run(segmented(saved.function()), checkpoint_interval=2)
    assert named_by(saved, 1)
    for path in (saved.folder / "checkpoint" / "segments").iterdir():
        path.unlink()
    snapshot = saved.snapshots.read(1)
    assert snapshot is not None
    saved.state.check(snapshot)
    states = cj.read_state(spark, saved.checkpoint, at=1).states["customer"]
    known = streams.customers.customer_id.nunique()
    assert known // 2 < states.count() <= known


def test_where_pyarrow_can_not_write_all_state_stays_in_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    streams = generate(trades=30, customers=20, seed=31)
    saved = Saved(spark, tmp_path / "whole", streams.write(tmp_path, files=1), key_groups=1)
    with mock.patch.object(SegmentFolder, "write", side_effect=OSError("no such file system")):
        query = saved.run(segmented(saved.join()), DRAIN)
    assert saved.rows() == streams.enriched()
    assert query.progress is not None
    assert query.progress.segment_bytes_written == 0
    assert not files_of(saved)
