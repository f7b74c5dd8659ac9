"""Savepoints of a query that runs, waits, has stopped: they wait for no batch, and keep two queries apart."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.checkpoints.stored_state import StoredState
from tests.spark.data import generate
from tests.spark.refused import refused
from tests.spark.saved import Saved

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIVE = cj.Trigger.processing_time("0 seconds")


@pytest.mark.slow  # Three queries; each push has savepoints on Spark Connect, and in the simulation.
def test_a_live_query_is_saved_and_kept_to_itself(spark: SparkSession, tmp_path: Path) -> None:
    streams = generate(trades=120, customers=40, seed=5)
    saved = Saved(spark, tmp_path / "old", streams.write(tmp_path, files=2))
    query = saved.start(trigger=LIVE, checkpoint_interval=None)
    with refused("no batch is finished yet", kind=cj.CheckpointError):
        query.savepoint()
    while query.batches < 2:
        assert query.exception() is None
        time.sleep(0.05)
    # It waits for files now: no batch comes, and none is needed.
    first = query.savepoint()
    assert first == query.savepoint() == cj.Snapshot(saved.files.root, at=1)
    with refused("another query runs on it", "stop it, or choose another checkpoint", kind=cj.CheckpointError):
        saved.start()
    assert query.is_active
    assert query.stop(savepoint=True) == first
    assert [(each.batch_id, each.kind) for each in saved.snapshots.all()] == [(1, "savepoint")]
    snapshot = saved.snapshots.read(1)
    assert snapshot is not None
    saved.state.check(snapshot)
    state = StoredState.of_snapshot(saved.state, snapshot)
    assert query.progress is not None
    waiting = tuple(each.buffered for each in query.progress.inputs)
    assert tuple(state.rows(name).count() for name in ("held1", "held2")) == waiting
    # Another run begins at once, with a higher epoch, and a drained query has nothing to save.
    ended = saved.run(trigger=cj.Trigger.available_now(drain=True), checkpoint_interval=1)
    manifest = saved.manifests.last()
    assert manifest is not None
    assert manifest.epoch == 2
    with refused("its query was drained", kind=cj.CheckpointError):
        ended.savepoint()
    assert saved.rows() == streams.enriched()
