"""The state table in a session of Spark: tasks write it, and Spark's own writer and reader of Delta go on with it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from cojoin.checkpoints.state_commits import Claim
from cojoin.errors import CheckpointError, EnvironmentSetupError, QueryFailedError
from cojoin.session.sessions import adapter_of
from tests.checkpoints.state_stand_ins import SnapshotWriter, rows_of_groups

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_COLUMNS = ("batch_id", "key_group", "segment", "header", "content_batch_id", "fingerprint", "content", "tables")


def by_delta(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the table as Spark's own reader of Delta reads it."""
    return spark.read.format("delta").load(f"{folder}/state")


def save_by_spark(spark: SparkSession, folder: Path, batch_id: int, claim: Claim) -> None:
    """Write a batch's rows as release 0.5.0 does."""
    rows = spark.createDataFrame(rows_of_groups(batch_id)).write.format("delta").mode("overwrite")
    rows = rows.partitionBy("batch_id", "segment").option("replaceWhere", f"batch_id = {batch_id}")
    rows.option("txnAppId", claim.app_id).option("txnVersion", str(claim.version)).save(f"{folder}/state")


def test_tasks_write_a_snapshot_in_one_job(spark: SparkSession, tmp_path: Path) -> None:
    writer = SnapshotWriter(spark, tmp_path)
    writer.write(3)
    context: Any = spark.sparkContext
    context.setJobGroup("a snapshot", "")
    second = writer.write(5)
    context.setLocalProperty("spark.jobGroup.id", None)
    assert len(context.statusTracker().getJobIdsForGroup("a snapshot")) == 1
    assert second.content_batch_ids == {"5": [0], "3": [1]}
    assert writer.rows_of(5) == [(-1,), (0,), (1,), (5,)]
    read = by_delta(spark, tmp_path).orderBy("batch_id", "key_group").collect()
    assert [(row.batch_id, row.key_group, row.segment) for row in read] == [
        (3, 0, 0),
        (3, 1, 1),
        (5, 0, 0),
        (5, 1, None),
    ]
    assert [row.content is None for row in read] == [False, False, False, True]
    assert writer.cleaner.clean([3]) > 0
    assert writer.rows_of(5) == [(-1,), (0,), (1,), (5,)]
    assert by_delta(spark, tmp_path).count() == 3


@pytest.mark.slow
def test_a_table_begun_by_spark_goes_on_here_and_back(spark: SparkSession, tmp_path: Path) -> None:
    writer = SnapshotWriter(spark, tmp_path)
    save_by_spark(spark, tmp_path, 3, Claim.of_run(1, 3))
    claim = Claim.of_run(1, 4)
    snapshot = writer.write(4, claim=claim)
    assert writer.rows_of(4) == [(-1,), (0,), (1,), (4,)]
    save_by_spark(spark, tmp_path, 5, claim)
    assert by_delta(spark, tmp_path).where("batch_id = 5").count() == 0, "Delta skips what has the claim"
    save_by_spark(spark, tmp_path, 3, Claim.of_run(1, 5))
    with pytest.raises(QueryFailedError, match="fenced off"):
        writer.write(3, claim=claim)
    writer.saved = [None, None]
    writer.write(3, claim=Claim.of_run(2, 3))
    assert by_delta(spark, tmp_path).groupBy("batch_id").count().orderBy("batch_id").collect() == [(3, 2), (4, 2)]
    assert writer.table.has(snapshot)
    assert writer.rows_of(3) == [(-1,), (0,), (1,), (3,)]
    assert writer.cleaner.clean([3, 4]) > 0
    assert by_delta(spark, tmp_path).count() == 0


@pytest.mark.slow  # Two snapshots by Spark; that the feature is seen, test_what_this_does_not_serve_is_sparks shows.
def test_a_table_with_deletion_vectors_is_sparks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(self: Any) -> None:
        msg = "this Spark has no Delta"
        raise EnvironmentSetupError(msg)

    writer = SnapshotWriter(spark, tmp_path)
    writer.write(3)
    writer.write(4)
    table = f"delta.`{tmp_path}/state`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    assert writer.rows_of(4) == [(-1,), (0,), (1,), (4,)]
    writer.saved = [None, None]
    with pytest.raises(QueryFailedError, match="fenced off"):
        writer.write(5, claim=Claim.of_run(0, 5))
    writer.saved = [None, None]
    sixth = writer.write(6)
    assert writer.rows_of(6) == [(-1,), (0,), (1,), (6,)]
    begun = writer.commits.next_savepoint()
    assert writer.commits.end_savepoints().version > begun.version
    with pytest.raises(CheckpointError, match="other savepoints were"):
        writer.write(7, kind="savepoint", claim=begun)
    assert writer.cleaner.clean([3, 4]) > 0
    assert writer.table.has(sixth)
    assert {row.batch_id for row in by_delta(spark, tmp_path).select("batch_id").distinct().collect()} == {6}
    monkeypatch.setattr(type(adapter_of(spark)), "check_delta", lacks)
    why = "its table 'state': only Spark writes it (its feature 'deletionVectors'), and this Spark has no Delta"
    with pytest.raises(EnvironmentSetupError, match=re.escape(why)):
        writer.write(8)
