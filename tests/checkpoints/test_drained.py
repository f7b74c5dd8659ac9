"""A checkpoint whose query was drained says so where a snapshot is missing; without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.checkpoints.checkpoint import find_snapshot
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.progress_rows import RecordedBatch
from cojoin.checkpoints.snapshots import SnapshotIndex, Snapshots
from cojoin.debugging.debugger import nothing_of
from cojoin.storage.local_store import LocalStore
from tests.checkpoints.reports import manifest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("drained", [False, True])
@pytest.mark.parametrize("at", [None, 3])
def test_a_missing_snapshot_of_a_drained_query_is_told_with_what_to_do(
    tmp_path: Path, drained: bool, at: int | None
) -> None:
    files = LocalStore(str(tmp_path))
    for batch_id in (0, 1, 2):
        Manifests(files).write(manifest(batch_id, drained=drained and batch_id == 2))
    of_drained = "Its query was drained after batch 2, so no state is left, and no further snapshot can be taken: "
    wanted = "" if at is None else " of batch 3"
    with pytest.raises(cj.CheckpointError) as caught:
        find_snapshot(files, at)
    assert f"no snapshot{wanted} exists; it has none. " in str(caught.value)
    assert (of_drained + "to see states, run the query again with a new checkpoint" in str(caught.value)) is drained
    assert ("A snapshot is taken every checkpoint_interval" in str(caught.value)) is not drained
    Snapshots(files).write(SnapshotIndex(manifest(1), "checkpoint", 1, 0, 0, 0, {"1": [0]}, "", remembered=True))
    with pytest.raises(cj.CheckpointError) as caught:
        find_snapshot(files, 3)
    assert "it has those of batches 1. " in str(caught.value)
    assert (of_drained + "take one of those, with at=" in str(caught.value)) is drained


def test_a_damaged_manifest_does_not_hide_that_the_snapshot_is_missing(tmp_path: Path) -> None:
    files = LocalStore(str(tmp_path))
    Manifests(files).write(manifest(0, drained=True))
    (name,) = (tmp_path / "manifest").glob("*.json")
    name.write_text("{")
    with pytest.raises(cj.CheckpointError, match=r"no snapshot exists; it has none\. A snapshot is taken every"):
        find_snapshot(files)


def test_a_snapshot_after_a_drain_has_nothing_of_a_key_and_says_why() -> None:
    before, after = (RecordedBatch.of_report(manifest(2, drained=drained).report) for drained in (False, True))
    told = "the snapshot of batch 2 has nothing of key 7"
    assert nothing_of(7, before, []) == told
    assert nothing_of(7, before, [6, 8]) == f"{told}; keys that it has are, for example, 6, 8"
    assert nothing_of(7, after, []) == (
        f"{told}: the query was drained with this batch, so no state is left; take an earlier snapshot, with at="
    )
