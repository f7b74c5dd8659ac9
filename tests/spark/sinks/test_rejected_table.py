"""The table of rejected rows, with the batch of each: new ones, and those that a former version has made."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from tests.spark.data import Folders, asof, customers, rows, table, trades

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DRAIN = cj.Trigger.available_now(drain=True)
FORMER = "input string, reason string, watermark bigint, event_time timestamp, row string"


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """Two batches, each of which rejects a trade with a null key."""
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10), (2, None, 10)]))
    folders.add_customers(customers([(1, 1, 5)]))
    folders.add_trades(trades([(3, None, 20), (4, 1, 40)]))
    folders.add_customers(customers([(3, 1, 40)]))
    return folders


def run(spark: SparkSession, folders: Folders, folder: Path, sink: cj.sinks.Sink) -> list[str]:
    """Run a query, and return what was told of the table."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        query = asof(folders.connect(spark)).start(
            output=cj.sinks.delta(f"{folder}/out"), rejected=sink, checkpoint=f"{folder}/checkpoint", trigger=DRAIN
        )
    query.await_termination()
    return [str(each.message) for each in caught if "rejected" in str(each.message)]


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["direct", "spark"])
def test_an_older_table_gets_the_columns_with_its_next_rows(
    spark: SparkSession, folders: Folders, tmp_path: Path, writer: str
) -> None:
    place = f"{tmp_path}/older"
    old = spark.sql("select 'trades' input, 'late' reason, 5L watermark, timestamp_millis(1) event_time, '{}' row")
    old.write.format("delta").save(place)
    spark.conf.set("spark.cojoin.output", writer)
    try:
        assert run(spark, folders, tmp_path, cj.sinks.delta(place)) == []
    finally:
        spark.conf.unset("spark.cojoin.output")
    found = table(spark, place)
    assert found.columns[5:] == ["batch_id", "processing_time"]
    assert rows(found, "reason", "batch_id") == [("late", None), ("null_key", 0), ("null_key", 1)]
    # The first rows and the columns came in one commit.
    history = [row.operation for row in spark.sql(f"describe history delta.`{place}`").collect()]
    assert len(history) == 3


@pytest.mark.slow
def test_a_table_that_can_not_get_them_stays_and_it_is_told(
    spark: SparkSession, folders: Folders, tmp_path: Path
) -> None:
    place = f"{tmp_path}/others"
    spark.createDataFrame([], f"{FORMER}, batch_id string, note string").write.format("delta").save(place)
    (told,) = run(spark, folders, tmp_path, cj.sinks.delta(place))
    assert f"Delta table {place}: it gets no column batch_id" in told
    found = table(spark, place)
    assert found.columns[5:] == ["batch_id", "note", "processing_time"]
    assert rows(found, "reason", "batch_id") == [("null_key", None)] * 2
    assert found.where("processing_time is null").count() == 0
    fixed = f"{tmp_path}/fixed"
    spark.createDataFrame([], FORMER).write.format("delta").save(fixed)
    (told,) = run(spark, folders, tmp_path / "again", cj.sinks.delta(fixed, options={"mergeSchema": False}))
    assert "it gets no column batch_id and processing_time" in told
    assert table(spark, fixed).count() == 2
    assert len(table(spark, fixed).columns) == 5


@pytest.mark.slow
def test_other_sinks_get_the_rows_as_they_were(spark: SparkSession, folders: Folders, tmp_path: Path) -> None:
    columns: list[list[str]] = []
    joined, options = asof(folders.connect(spark)), {"output": cj.sinks.delta(f"{tmp_path}/out"), "trigger": DRAIN}
    joined.start(
        rejected=lambda frame, _: columns.append(frame.columns), checkpoint=f"{tmp_path}/one", **options
    ).await_termination()
    assert columns == [FORMER.replace(",", "").split()[::2]] * 2
