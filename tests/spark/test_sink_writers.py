"""What an output's writer makes of a checkpoint that is older or newer than its output, before the first batch."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.session.sessions import adapter_of
from cojoin.spark.sinks.batch_marker import BatchMarker
from cojoin.spark.sinks.sink import OutputId, Position
from tests.spark.data import rows, table
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cojoin.spark.sinks.sink import Sink, SinkWriter

pytestmark = pytest.mark.spark

OUTPUT = OutputId("0b8e", "output")


def position(next_batch: int, **written: Any) -> Position:
    return Position("/lake/checkpoint", next_batch, written)


def write(spark: SparkSession, sink: Sink, *batches: int) -> tuple[SinkWriter, list[dict[str, Any]]]:
    """Write batches of a row each, the batch's number, and return the writer with the places it gave."""
    writer = sink.open(spark, OUTPUT)
    places = [
        {**writer.write(spark.range(each, each + 1), BatchMarker(each, 1, each, "offsets")), "batch_id": each}
        for each in batches
    ]
    return writer, places


def test_a_delta_table_must_be_as_the_checkpoint_left_it(spark: SparkSession, tmp_path: Path) -> None:
    sink = cj.sinks.delta(f"{tmp_path}/out")
    _, (first, second) = write(spark, sink, 0, 1)
    for next_batch, known in ((1, first), (2, second), (1, {})):
        sink.open(spark, OUTPUT).check(position(next_batch, **known))
    with refused("has the query's batches up to 1, and the checkpoint continues with batch 0", kind=cj.CheckpointError):
        sink.open(spark, OUTPUT).check(position(0))
    with refused(
        "records that batch 2 was written to it, and it has the query's batches up to 1", kind=cj.CheckpointError
    ):
        sink.open(spark, OUTPUT).check(position(3, **(second | {"batch_id": 2})))
    with refused("it is another table of that name", kind=cj.CheckpointError):
        sink.open(spark, OUTPUT).check(position(2, **(second | {"id": "77aa"})))
    with refused("it has none of the query's batches", kind=cj.CheckpointError):
        sink.open(spark, OutputId("77aa", "output")).check(position(2, **second))
    shutil.rmtree(tmp_path / "out")
    with refused("the table does not exist", kind=cj.CheckpointError):
        sink.open(spark, OUTPUT).check(position(2, **second))


@pytest.mark.parametrize("kind", ["plain", "partitioned", "by name"])
def test_a_run_that_takes_over_creates_the_table_that_it_has_to_fence(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Else a former run that stood still would create it later, with a batch of its own."""
    location = "taken_over" if kind == "by name" else f"{tmp_path}/out"
    sink = cj.sinks.delta(location, partition_by=["day"] if kind == "partitioned" else [])
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    frame = spark.createDataFrame([(1, "monday")], "id long, day string")
    try:
        former = sink.open(spark, OutputId("0b8e", "output", 1, schema=schema))
        former.check(position(0))
        assert not (tmp_path / "out").exists()
        ours = sink.open(spark, OutputId("0b8e", "output", 2, takes_over=True, schema=schema))
        ours.check(position(0))
        with refused("fenced off: another run of this query has taken over at epoch 2", kind=cj.QueryFailedError):
            former.write(frame, BatchMarker(0, 1, 1, "offsets"))
        assert ours.write(frame, BatchMarker(0, 1, 1, "offsets"))["version"] == 1
        found = spark.table(location) if kind == "by name" else table(spark, tmp_path / "out")
        assert rows(found) == [(1, "monday")]
        detail = spark.sql(f"DESCRIBE DETAIL {location if kind == 'by name' else f'delta.`{location}`'}").first()
        assert detail is not None
        assert detail.partitionColumns == (["day"] if kind == "partitioned" else [])
    finally:
        spark.sql("DROP TABLE IF EXISTS taken_over")


def test_a_batch_that_is_there_is_passed_over_only_if_it_is_the_same(spark: SparkSession, tmp_path: Path) -> None:
    sink = cj.sinks.delta(f"{tmp_path}/out")
    write(spark, sink, 0, 1)
    again = sink.open(spark, OUTPUT)
    again.check(position(1))
    again.write(spark.range(1, 2), BatchMarker(1, 1, 1, "offsets"))
    cases = (
        (BatchMarker(1, 2, 1, "offsets"), "it had 1 rows then and has 2 now"),
        (BatchMarker(1, 1, 7, "offsets"), "its 1 rows are different now"),
        (
            BatchMarker(1, 1, 1, "offsets", upsert={"key": ["id"], "conflict": "last"}),
            "it was written without upsert= then, now with upsert=['id'], conflict='last'",
        ),
        (BatchMarker(1, 1, 1, "others"), "it ended at other source offsets then"),
        (BatchMarker(1, 0, 0, "offsets"), "it had 1 rows then and has 0 now"),
        (BatchMarker(0, 1, 0, "offsets"), "the table has the query's batches up to 1 already"),
    )
    for marker, why in cases:
        with refused(why, kind=cj.QueryFailedError):
            again.compare(marker)
        if marker.rows:
            with refused(why, kind=cj.QueryFailedError):
                again.write(spark.range(5), marker)
    assert rows(table(spark, tmp_path / "out")) == [(0,), (1,)]


def test_a_parquet_folder_must_be_the_query_s_own_and_as_the_checkpoint_left_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = cj.sinks.parquet(f"{tmp_path}/out")
    _, (first, _) = write(spark, sink, 0, 1)
    sink.open(spark, OUTPUT).check(position(2, **first))
    with refused("has the query's batches up to 1, and the checkpoint continues with batch 0", kind=cj.CheckpointError):
        sink.open(spark, OUTPUT).check(position(0))
    with refused("such as batch_id=0, that this query did not write", kind=cj.CheckpointError):
        sink.open(spark, OutputId("77aa", "output")).check(position(0))
    # What an earlier try of a batch has left goes, where the batch has no rows now.
    again = sink.open(spark, OUTPUT)
    again.check(position(1, **first))
    again.write_nothing(BatchMarker(1, 0, 0, "offsets"))
    assert [row[0] for row in rows(spark.read.parquet(f"{tmp_path}/out"), "batch_id")] == [0]
    (tmp_path / "out" / "_cojoin.json").write_text("{}")
    with refused("_cojoin.json", "is damaged", kind=cj.CheckpointError):
        sink.open(spark, OUTPUT).check(position(1, **first))
    # As release 0.5.0 left it: the checkpoint knows the folder.
    (tmp_path / "out" / "_cojoin.json").unlink()
    sink.open(spark, OUTPUT).check(position(1, **first))
    with refused("that this query did not write", kind=cj.CheckpointError):
        sink.open(spark, OUTPUT).check(position(1))


def test_a_table_that_only_spark_writes_needs_delta_before_the_query_starts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(self: Any) -> None:
        msg = "this Spark has no Delta"
        raise cj.errors.EnvironmentSetupError(msg)

    monkeypatch.setattr(type(adapter_of(spark)), "check_delta", lacks)
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    cj.sinks.delta(f"{tmp_path}/out").check_writer(spark, schema, "output")
    with refused(
        f"output: Delta {tmp_path}/out: only Spark writes it (partition_by=['day']), and this Spark has no Delta",
        kind=cj.errors.EnvironmentSetupError,
    ):
        cj.sinks.delta(f"{tmp_path}/out", partition_by="day").check_writer(spark, schema, "output")
    with refused("only Spark writes it (no table has that name)", kind=cj.errors.EnvironmentSetupError):
        cj.sinks.delta("nowhere_yet").check_writer(spark, schema, "output")
    # Another writer upgrades the table while the query runs.
    out, rows = f"{tmp_path}/upgraded", pa.schema([("id", pa.int64())])
    spark.sql(f"CREATE TABLE delta.`{out}` (id bigint) USING delta")
    writer = cj.sinks.delta(out).open(spark, OUTPUT)
    assert writer.target(rows, 0) is not None
    spark.sql(f"ALTER TABLE delta.`{out}` ADD CONSTRAINT few CHECK (id < 9)")
    assert writer.target(rows, 0) is None
    why = "only Spark writes it (its CHECK constraint 'few'), and this Spark has no Delta"
    with refused(why, kind=cj.errors.EnvironmentSetupError):
        writer.write(spark.range(1), BatchMarker(0, 1, 0, "offsets"))
