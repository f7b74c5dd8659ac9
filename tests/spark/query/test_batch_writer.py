"""A run that was taken over removes nothing of its successor's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.checkpoints.claimed_checkpoint import ClaimedCheckpoint
from cojoin.checkpoints.lease import Lease
from cojoin.checkpoints.manifest import Manifest, Manifests
from cojoin.checkpoints.progress_table import ProgressTable
from cojoin.checkpoints.snapshots import SnapshotIndex, Snapshots
from cojoin.engine.batch_report import BatchReport
from cojoin.session.sessions import open_store
from cojoin.session.spark_checkpoint import OFFSETS
from cojoin.spark.batch.call import EMITTED_DDL
from cojoin.spark.query.batch_protocol import OpenOutput
from cojoin.spark.query.batch_writer import BatchWriter
from cojoin.spark.sinks.sink import OutputId, Position
from tests.checkpoints.leases import held_by
from tests.spark.data import asof, connect
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.spark.sinks.batch_marker import BatchMarker

pytestmark = pytest.mark.spark

QUERY_ID, BATCH = "0b8e", 1


@pytest.mark.parametrize("left_over", ["a folder", "a snapshot"])
def test_what_a_successor_wrote_stays_where_the_batch_had_no_rows(
    spark: SparkSession, tmp_path: Path, two_frames: tuple[DataFrame, DataFrame], left_over: str
) -> None:
    """Another run takes over while the batch is executed: what is there of that batch may be the other run's."""
    positioned = (each.selectExpr("*", "1L position") for each in two_frames)
    plan = asof(connect(*positioned))._plan
    files = open_store(spark, f"{tmp_path}/checkpoint")
    files.write(f"{OFFSETS}/{BATCH}", "v1\n{}\n-\n-\n-")
    folder = tmp_path / "output" / f"batch_id={BATCH}"
    if left_over == "a folder":
        folder.mkdir(parents=True)
        (folder / "part.parquet").touch()
    else:
        report = replace(BatchReport.before_the_first(("trades", "customers")), batch_id=BATCH)
        manifest = Manifest(QUERY_ID, report, [], {}, {})
        Snapshots(files).write(SnapshotIndex(manifest, "checkpoint", 3, 0, 0, 0, {}, "", remembered=True))
    outputs = {}
    for name in plan.outputs:
        sink = cj.sinks.parquet(f"{tmp_path}/{name}")
        outputs[name] = OpenOutput(sink, sink.open(spark, OutputId(QUERY_ID, name)))
        (tmp_path / name / f"batch_id={BATCH - 1}").mkdir(parents=True)
        written = {**sink.place(), "batch_id": BATCH - 1}
        outputs[name].writer.check(Position(files.root, BATCH, written))

    def take_over(marker: BatchMarker) -> None:
        del marker
        held_by(files)

    outputs["output"].writer.compare = take_over  # type: ignore[method-assign]
    manifests = Manifests(files)
    lease = Lease.acquire(files)
    checkpoint = ClaimedCheckpoint(files, QUERY_ID, lease, manifests, ProgressTable(spark, files, manifests), None)
    writer = BatchWriter(plan, checkpoint, outputs, lambda report: None, 3, row_limit_only=False)
    with refused("fenced off: another query took over at epoch 7", kind=cj.CojoinError):
        writer(spark.createDataFrame([], EMITTED_DDL), BATCH)
    assert folder.exists() == (left_over == "a folder")
    assert Snapshots(files).batch_ids() == ([BATCH] if left_over == "a snapshot" else [])
