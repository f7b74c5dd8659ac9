from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd  # noqa: TC002 - Spark reads the hint
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from cojoin.spark.batch.arrow_limits import RowSizes, counted_by_rows, runs_python

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

MAX_BYTES, MAX_ROWS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"
MB = 1 << 20


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of its own, as a stream has one."""
    own = spark.newSession()
    own.conf.set(MAX_ROWS, "2000")
    return own


def limits(session: SparkSession) -> tuple[str | None, str | None]:
    return session.conf.get(MAX_BYTES), session.conf.get(MAX_ROWS)


def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from (pa.RecordBatch.from_pydict({"rows": [batch.num_rows]}) for batch in batches)


def sizes(frame: DataFrame) -> list[int]:
    """How many rows cross at once."""
    return [row.rows for row in frame.mapInArrow(counted, "rows long").collect()]


def call(left: int, right: int, state: int = 0) -> dict[str, Any]:
    return {"row_bytes": [left, right], "state_bytes": state}


@pytest.mark.parametrize(
    ("batches", "are_small"),
    [
        ([], False),
        ([[call(100, 0)], [], [call(90, 0)]], False),
        ([[call(100, 0), call(0, 4096)]], True),
        ([[call(100, 0)], [call(0, 50)], []], True),
        ([[call(100, 100)], [call(5000, 100)], [call(100, 100)]], False),
        ([[call(10, 10, 200 * MB), call(10, 10, 57 * MB)]], False),
        ([[call(10, 10, 257 * MB)], [call(10, 10, 256 * MB)]], True),
    ],
)
def test_rows_are_small_once_both_inputs_have_shown_so(batches: list[list[dict[str, Any]]], are_small: bool) -> None:
    seen = RowSizes()
    for batch in batches:
        seen.observe(batch)
    assert seen.are_small == are_small


@pytest.mark.spark
def test_meanwhile_rows_are_counted(session: SparkSession) -> None:
    before = limits(session)
    with counted_by_rows(session):
        assert sizes(session.range(0, 3000, 1, 1)) == [1024, 1024, 952]
        assert limits(session)[0] == str((1 << 31) - 1)
    assert limits(session) == before
    assert sizes(session.range(0, 3000, 1, 1)) == [2000, 1000]


@pytest.mark.spark
def test_limits_of_the_users_stay(session: SparkSession) -> None:
    session.conf.set(MAX_ROWS, "700")
    with counted_by_rows(session):
        assert sizes(session.range(0, 1000, 1, 1)) == [700, 300]
    session.conf.set(MAX_BYTES, "4096")
    with counted_by_rows(session):
        assert max(sizes(session.range(0, 1000, 1, 1))) < 700
    assert limits(session) == ("4096", "700")


@pytest.mark.spark
def test_the_limits_come_back_after_a_fault(session: SparkSession) -> None:
    before = limits(session)
    with pytest.raises(ZeroDivisionError), counted_by_rows(session):
        _ = 1 / 0
    assert limits(session) == before


@pytest.mark.spark
def test_tasks_of_a_streams_batch_see_it_though_they_were_planned_before(session: SparkSession, tmp_path: Path) -> None:
    session.range(0, 3000, 1, 1).write.parquet(str(tmp_path / "in"))
    seen = []

    def take(batch: DataFrame, _: int) -> None:
        with counted_by_rows(batch.sparkSession):
            seen.extend(row.rows for row in batch.collect())

    stream = session.readStream.schema("id long").parquet(str(tmp_path / "in")).mapInArrow(counted, "rows long")
    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert (max(seen), sum(seen)) == (1024, 3000)


@pytest.mark.spark
def test_python_before_an_input_is_found(spark: SparkSession) -> None:
    @F.pandas_udf("long")  # type: ignore[call-overload, untyped-decorator]
    def same(values: pd.Series) -> pd.Series:
        return values

    numbers, stream = spark.range(3), spark.readStream.format("rate").load()
    assert not runs_python(numbers)
    assert not runs_python(stream.where("value > 1"))
    assert runs_python(numbers.select(same("id")).where("id > 1"))
    assert runs_python(numbers.mapInArrow(counted, "rows long"))
    assert runs_python(stream.withColumn("more", F.udf(lambda value: value, "long")("value")))
