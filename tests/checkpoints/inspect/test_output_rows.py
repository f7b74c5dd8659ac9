"""Rows are found in an output by their values, and none is left out without a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from cojoin.checkpoints.inspect.output_rows import Output, find_rejected
from cojoin.engine.input_spec import InputSpec, rejected_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("trade_id", pa.int64()), ("event_time", pa.timestamp("us", "UTC"))])
TRADES = InputSpec("trades", SCHEMA, ("trade_id",), "event_time")


def test_a_rejected_row_is_found_among_many_with_longer_numbers(spark: SparkSession, tmp_path: Path) -> None:
    numbers = [*range(10_000, 10_300), 1, 2, 2, 2]
    rows = pa.table([pa.array(numbers, pa.int64()), pa.nulls(len(numbers), SCHEMA.field(1).type)], schema=SCHEMA)
    spark.createDataFrame(rejected_table(rows, TRADES, "late", 0)).coalesce(1).write.format("delta").save(str(tmp_path))
    output = Output("rejected", str(tmp_path), "query")
    found = find_rejected(spark, output, [(TRADES, {"trade_id": 1})], 20)
    assert (len(found.rows), found.total, found.note) == (1, 1, None)
    found = find_rejected(spark, output, [(TRADES, {"trade_id": 2})], 2)
    assert (len(found.rows), found.total) == (2, 3)
