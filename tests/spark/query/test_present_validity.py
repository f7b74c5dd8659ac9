"""Rows with a span of validity on Spark: joined as in memory, and refused before the start where they contradict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

KEY, BEGIN, END = "a.b", "valid ä", "to`here"


def spans(spark: SparkSession, *rows: tuple[int, str, int, int | None]) -> DataFrame:
    frame = spark.createDataFrame(list(rows), "id bigint, tier string, begins bigint, ends bigint")
    times = ("timestamp_seconds(begins) begins", "timestamp_seconds(ends) ends")
    return frame.selectExpr("id", "tier", *times).toDF(KEY, "tier", BEGIN, END)


def joined(trades: object, customers: object) -> cj.Joined:
    valid = cj.Input(customers, KEY, valid_from=BEGIN, valid_to=END, name="customers")
    return cj.connect(cj.Input(trades, KEY, "time", "trades"), valid).temporal_join()


def test_rows_with_validity_give_on_spark_what_they_give_in_memory(spark: SparkSession) -> None:
    customers = spans(spark, (7, "silver", 20, 50), (7, "gold", 50, 80), (8, "never", 20, 20), (8, "late", 90, None))
    trades = spark.sql("select explode(array(7L, 8L)) id, timestamp_seconds(at) time from range(0, 100, 10) t(at)")
    trades = trades.toDF(KEY, "time")
    on_spark = joined(trades, customers).to_dataframe().orderBy(f"`{KEY}`", "time").toArrow()
    in_memory = (
        joined(trades.toArrow(), customers.toArrow()).to_arrow().sort_by([(KEY, "ascending"), ("time", "ascending")])
    )
    assert on_spark.column_names == [KEY, "time", "tier", BEGIN, END]
    assert on_spark.to_pylist() == in_memory.to_pylist()
    assert on_spark["tier"].to_pylist()[1:9] == [None, *["silver"] * 3, *["gold"] * 3, None]


def test_rows_that_contradict_are_refused_with_their_number_and_an_example(spark: SparkSession) -> None:
    trades = spark.sql("select 7L id, timestamp_seconds(1) time").toDF(KEY, "time")
    overlapping = spans(
        spark, (7, "a", 20, 60), (7, "b", 50, None), (8, "c", 10, None), (8, "d", 30, 40), (9, "e", 5, 5)
    )
    with refused("2 rows are valid while another row of the same a.b is", "as in Row(a.b='7'"):
        joined(trades, overlapping).to_dataframe()
    with refused("1 row ends before it begins", "Row(a.b='9'"):
        joined(trades, spans(spark, (9, "a", 60, 20), (9, "b", 70, None))).to_dataframe()
