"""Lateness on Spark, against that of the same rows in memory, whose oracle is the engine."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import cojoin as cj
from cojoin.spark import spark_lateness
from tests.seeds import SEED

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def orders(count: int) -> pd.DataFrame:
    dice = np.random.default_rng(SEED)
    came = np.sort(dice.integers(0, 100_000, count))
    rows = pd.DataFrame(
        {
            "at": pd.to_datetime(came - dice.exponential(3_000, count).astype(np.int64), unit="ms", utc=True),
            "came": pd.to_datetime(came, unit="ms", utc=True),
            "number": came,
            "desk": dice.choice(["london", "tokyo", None], count),
        }
    )
    rows.loc[::50, "at"] = pd.NaT
    rows.loc[7, "at"] = pd.Timestamp("2099-01-01", tz="UTC")
    return rows


@pytest.mark.slow
def test_rows_on_spark_are_as_late_as_in_memory(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = orders(2_000)
    frame = spark.createDataFrame(rows)
    arguments: dict[str, Any] = {"partition": "desk", "every": "3 seconds", "max_ahead": "1 second"}
    with monkeypatch.context() as patched:
        # Several ranges; what follows has one.
        patched.setattr(spark_lateness, "_RANGE_ROWS", 300)
        found, expected = (cj.lateness(each, event_time="at", arrival="came", **arguments) for each in (frame, rows))
    assert (found.rows, found.counts, found.left_out) == (len(rows), expected.counts, expected.left_out)
    assert found.largest_ms == expected.largest_ms

    # A table's rows arrive with their commits, and those of files when the files were written.
    parts = rows["number"] // 60_000
    expected = cj.lateness(rows.assign(part=parts), event_time="at", arrival="part", max_ahead=None)
    for number, part in rows.groupby(parts):
        spark.createDataFrame(part[["at"]]).write.format("delta").mode("append").save(f"{tmp_path}/table")
        (tmp_path / "files").mkdir(exist_ok=True)
        part[["at"]].to_parquet(f"{tmp_path}/files/{number}.parquet", coerce_timestamps="us")
        os.utime(f"{tmp_path}/files/{number}.parquet", (4e9 - number, 4e9 + number))
    # The clock of the second writer is slow.
    commit = tmp_path / "table/_delta_log/00000000000000000001.json"
    (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)
    commit.write_text(re.sub(r'"timestamp":\d+', '"timestamp":7', commit.read_text("utf-8")), "utf-8")
    table = cj.sources.delta(f"{tmp_path}/table")
    files = cj.sources.files(f"{tmp_path}/files", "parquet", schema="at timestamp")
    for source in (table, files):
        found = cj.lateness(source, event_time="at", max_ahead=None)
        assert (found.counts, found.largest_ms) == (expected.counts, expected.largest_ms)
    # Whoever rewrites files does not say when the rows came.
    spark.sql(f"OPTIMIZE delta.`{tmp_path}/table`").collect()
    assert cj.lateness(table, event_time="at").left_out == {"null_event_time": 40, "null_arrival": 1_960}

    for source, told in (
        (frame, "arrival: expected a column's name, got None"),
        (spark.readStream.format("rate").load(), "is a stream, which has no end"),
        (cj.sources.delta(f"{tmp_path}/table", changes=True), "without changes=True"),
        (cj.sources.delta(f"{tmp_path}/none"), "can't be read"),
    ):
        with pytest.raises(cj.ConfigurationError, match=told):
            cj.lateness(source, event_time="at")
