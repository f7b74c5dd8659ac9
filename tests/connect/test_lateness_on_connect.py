"""Lateness in a session of Spark Connect is that of the same rows in memory: of frames, tables and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from tests.spark.test_spark_lateness import orders

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.connect, pytest.mark.slow]


def test_rows_are_as_late_as_in_memory(spark: SparkSession, tmp_path: Path) -> None:
    rows = orders(1_000)
    found, expected = (
        cj.lateness(each, event_time="at", arrival="came", partition="desk", every="3 seconds", max_ahead="1 second")
        for each in (spark.createDataFrame(rows), rows)
    )
    assert (found.rows, found.counts, found.left_out) == (len(rows), expected.counts, expected.left_out)
    parts = rows["number"] // 60_000
    expected = cj.lateness(rows.assign(part=parts), event_time="at", arrival="part", max_ahead=None)
    for _, part in rows.groupby(parts):
        spark.createDataFrame(part[["at"]]).write.format("delta").mode("append").save(f"{tmp_path}/table")
    found = cj.lateness(cj.sources.delta(f"{tmp_path}/table"), event_time="at", max_ahead=None)
    assert (found.counts, found.largest_ms) == (expected.counts, expected.largest_ms)
    with pytest.raises(cj.ConfigurationError, match="arrival: expected a column's name, got None"):
        cj.lateness(spark.createDataFrame(rows), event_time="at")
    with pytest.raises(cj.ConfigurationError, match="can't be read"):
        cj.lateness(cj.sources.delta(f"{tmp_path}/none"), event_time="at")
