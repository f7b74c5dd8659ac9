"""The rows of static joins come out as they are, whatever their columns; key groups follow the size of files."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

import cojoin as cj
from cojoin.session.sessions import adapter_of
from cojoin.spark.spark_execution import _static_groups

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

AT = datetime(2026, 1, 15, 9, tzinfo=timezone.utc)
ODD = (
    "Statistics string, `a b` array<struct<x: int, y: string>>, m map<string, decimal(20, 3)>, "
    "n timestamp_ntz, s struct<z: int not null>"
)


def frames(spark: SparkSession, columns: str, values: list[Any]) -> list[cj.Input]:
    """Return trades with some columns, and a customer of the key 1."""
    left = spark.createDataFrame([(key, AT, *values) for key in (1, 2, 2, None)], f"k int, at timestamp, {columns}")
    right = spark.createDataFrame([(1, AT, "gold")], "k int, at timestamp, tier string")
    return [cj.Input(each, key="k", event_time="at", name=name) for each, name in ((left, "left"), (right, "right"))]


def test_rows_of_odd_columns_come_out_as_they_are(spark: SparkSession) -> None:
    value = ["mine", [{"x": 1, "y": None}], {"k": Decimal(5)}, AT.replace(tzinfo=None), {"z": 7}]
    joined = cj.connect(*frames(spark, ODD, value)).asof_join(suffixes=("", "_right"))
    with pytest.warns(cj.MissingRowsWarning, match="1 of 4 rows of 'left' were rejected"):
        frame, rows = _collected(joined)
    assert "Statistics" in frame.columns
    assert [each for each in frame.columns if each.lower().endswith("statistics")] == ["Statistics"]
    assert [(row.k, row.Statistics, row["a b"][0].x, row.s.z, row.tier) for row in sorted(rows)] == [
        (1, "mine", 1, 7, "gold"),
        (2, "mine", 1, 7, None),
        (2, "mine", 1, 7, None),
    ]
    assert all(str(row.m["k"]) == "5.000" for row in rows)
    assert frame.select("tier").distinct().count() == 2
    assert frame.alias("a").join(frame.alias("b"), "k").count() == 5
    assert joined.to_dataframe("rejected").count() == 1


def _collected(joined: cj.Joined) -> tuple[DataFrame, list[Any]]:
    frame = joined.to_dataframe()
    rows = frame.collect()
    adapter_of(frame.sparkSession).await_listeners(20_000)
    return frame, rows


class Keys(cj.KeyedCoProcessFunction):
    """Yields the key of each trade."""

    def process_element1(self, trade: cj.Row, ctx: cj.Context) -> Any:
        yield (trade.k,)


def test_rows_of_a_function_whose_columns_are_never_null_keep_that(spark: SparkSession) -> None:
    declared = StructType([StructField("k", IntegerType(), nullable=False)])
    frame = cj.connect(*frames(spark, "a int", [1])).process(Keys(), declared).to_dataframe()
    assert frame.schema == declared
    assert sorted(frame.collect()) == [(1,), (2,), (2,)]


def test_a_join_without_rows_is_empty_with_its_columns(spark: SparkSession) -> None:
    left, right = frames(spark, "a int", [1])
    nothing = cj.Input(left.source.where("k = 9"), key="k", event_time="at", name="left")
    frame: DataFrame = cj.connect(nothing, right).asof_join(suffixes=("", "_right")).to_dataframe()
    assert frame.collect() == []
    assert frame.columns == ["k", "at", "a", "right_event_time", "tier"]


def test_large_files_get_more_key_groups_and_other_plans_no_more(spark: SparkSession, tmp_path: Path) -> None:
    path = f"{tmp_path}/trades"
    pd.DataFrame({"k": range(1_000), "at": AT, "a": "x"}).to_parquet(path)
    read = cj.Input(spark.read.parquet(path), key="k", event_time="at", name="trades")
    joined = cj.connect(read, cj.Input(spark.read.parquet(path), key="k", event_time="at", name="others"))
    left, right = joined._execution.bound
    assert left.reads_files
    assert joined._key_groups == 1
    sizes = {id(left): 40 << 20, id(right): 24 << 20}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cojoin.spark.spark_execution._size", lambda each: sizes[id(each)])
        assert _static_groups(8, (left, right)) == 16
        assert _static_groups(32, (left, right)) == 32
        for each in (left, right):
            patch.setitem(vars(each), "reads_files", False)
        assert _static_groups(8, (left, right)) == 8


def test_large_files_are_joined_by_more_tasks_than_cores(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/trades"
    pd.DataFrame({"k": range(1_000), "at": AT, "a": "x"}).to_parquet(path)
    sides = [cj.Input(spark.read.parquet(path), key="k", event_time="at", name=name) for name in ("one", "two")]
    monkeypatch.setattr("cojoin.spark.spark_execution._size", lambda _: 8 << 20)
    joined = cj.connect(*sides, key_groups=16).asof_join(suffixes=("", "_two"))
    assert joined.to_dataframe().rdd.getNumPartitions() <= 2
    monkeypatch.setattr("cojoin.spark.spark_execution._BYTES_OF_TASK", (16 << 20) // 11)
    frame = joined.to_dataframe()
    assert frame.rdd.getNumPartitions() == 11
    assert frame.where("a_two = 'x'").count() == 1_000
