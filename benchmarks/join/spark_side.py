"""What the contenders on Spark share: the session, the two streams in their files' order, and the sinks.

Spark's own watermark never passes the last rows of a bounded run. Who relies on it gets one more file, made before the
clock starts: a trade of nobody's, a day later.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from benchmarks.join.contender import FILES_PER_BATCH, OUTPUT_COLUMNS, tell, timed
from benchmarks.join.generate import CUSTOMERS_DDL, DISORDER_SECONDS, TRADES_DDL
from cojoin.delta.actions import DataFile
from cojoin.delta.table_writer import Change, NewTable, TableWriter
from cojoin.engine.values.types import as_schema
from cojoin.storage.local_store import LocalStore
from cojoin.storage.parquet_files import file_statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from benchmarks.join.contender import Job

__all__ = [
    "MICROS_DDL",
    "as_tables",
    "batch_seconds",
    "from_micros",
    "open_inputs",
    "open_session",
    "open_sources",
    "read_inputs",
    "run_to_its_end",
    "unite",
    "with_an_end",
]

HEAP = "2g"
NOBODY = -1
DAY = timedelta(days=1)
MICROS_DDL = """trade_id bigint, customer_id bigint, event_time bigint, amount double, symbol string,
    customers_event_time bigint, tier string, credit double"""
"""The result's columns with times as epoch microseconds, which cross to Python without pandas' timestamps."""


def open_session(name: str, **settings: str) -> SparkSession:
    """Start Spark with two cores."""
    conf = {"spark.ui.enabled": "false", "spark.driver.memory": HEAP, "spark.log.level": "ERROR", **settings}
    return cj.spark_session(f"benchmark {name}", master="local[2]", conf=conf)


def open_inputs(spark: SparkSession, job: Job, tables: Mapping[str, str] | None = None) -> tuple[DataFrame, DataFrame]:
    """Open both streams, a few files a batch; ``tables`` are those of ``as_tables``, where Delta tables are read."""
    if tables is not None:
        reader = spark.readStream.format("delta").option("maxFilesPerTrigger", FILES_PER_BATCH)
        return reader.load(tables["trades"]), reader.load(tables["customers"])
    trades, customers = (
        spark.readStream.schema(ddl).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(job.data / name))
        for name, ddl in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
    )
    return trades, customers


def read_inputs(spark: SparkSession, job: Job) -> tuple[DataFrame, DataFrame]:
    """Read both inputs as static DataFrames."""
    trades, customers = (
        spark.read.schema(ddl).parquet(str(job.data / name))
        for name, ddl in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
    )
    return trades, customers


def open_sources(job: Job, tables: Mapping[str, str] | None = None) -> tuple[Any, Any]:
    """Describe both streams, as ``open_inputs`` opens them, as sources that cojoin opens itself."""
    if tables is not None:
        options = {"maxFilesPerTrigger": FILES_PER_BATCH}
        return cj.sources.delta(tables["trades"], options=options), cj.sources.delta(
            tables["customers"], options=options
        )
    trades, customers = (
        cj.sources.files(job.data / name, "parquet", schema=ddl, options={"maxFilesPerTrigger": FILES_PER_BATCH})
        for name, ddl in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
    )
    return trades, customers


def as_tables(job: Job) -> dict[str, str]:
    """Make Delta tables of the inputs' files, a commit for each, and return their folders."""
    folders = {}
    for side, ddl in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL)):
        folder = job.work / "tables" / side
        folder.mkdir(parents=True)
        folders[side], schema = str(folder), as_schema(ddl, side)
        writer = TableWriter(LocalStore(str(folder)))
        for number, path in enumerate(job.files(side)):
            os.link(path, folder / path.name)
            known = file_statistics(pq.read_metadata(path), pq.read_schema(path))
            file = DataFile(path.name, path.stat().st_size, int(1000 * path.stat().st_mtime), known)
            writer.commit(Change({side: number}, schema, [file]), lambda _: False, new=NewTable(schema))
    return folders


def with_an_end(job: Job) -> Job:
    """Return the same job with one more file of trades, which lets Spark's watermark pass all others."""
    for side in ("trades", "customers"):
        (job.work / "data" / side).mkdir(parents=True)
        for path in job.files(side):
            os.link(path, job.work / "data" / side / path.name)
    last = job.files("trades")[-1]
    row = pq.read_table(last).slice(0, 1).to_pylist()[0]
    row |= {"customer_id": NOBODY, "event_time": row["event_time"] + DAY}
    end = job.work / "data" / "trades" / "9999.parquet"
    pq.write_table(pa.Table.from_pylist([row], pq.read_schema(last)), end)
    os.utime(end, (last.stat().st_mtime + 1, last.stat().st_mtime + 1))
    return replace(job, data=job.work / "data")


def unite(trades: DataFrame, customers: DataFrame) -> DataFrame:
    """Return both inputs as one stream with Spark's watermark, as one stateful operator for both must have it.

    ``micros`` is the event time as a number, null sides have null columns, and ``is_trade`` says which side it is.
    """
    sides = [
        side.withColumn("is_trade", F.lit(is_trade)).withColumn("micros", F.unix_micros("event_time"))
        for side, is_trade in ((trades, True), (customers, False))
    ]
    both = sides[0].unionByName(sides[1], allowMissingColumns=True)
    return both.withWatermark("event_time", f"{DISORDER_SECONDS} seconds")


def from_micros(frame: DataFrame) -> DataFrame:
    """Turn the result's times into timestamps."""
    times = {name: F.timestamp_micros(name) for name in ("event_time", "customers_event_time")}
    return frame.withColumns(times).select(*OUTPUT_COLUMNS)


def run_to_its_end(make: Callable[[], DataFrame], job: Job, *, mode: str = "append") -> StreamingQuery:
    """Make a streaming DataFrame and write it until its sources are at their ends, and tell how long each batch took.

    To make it, which opens the sources, is timed too, as it is for cojoin, whose start opens them.
    """
    with timed():
        writer: Any = (
            make()
            .writeStream.format(job.sink)
            .outputMode(mode)
            .option("checkpointLocation", str(job.work / "checkpoint"))
            .trigger(availableNow=True)
        )
        query = writer.start(str(job.out))
        query.awaitTermination()
    tell("batches", seconds=batch_seconds(query))
    return query


def batch_seconds(query: StreamingQuery) -> list[float]:
    """Return how long each batch with rows took, Spark's planning and logs included."""
    return [each["batchDuration"] / 1000 for each in query.recentProgress if each["numInputRows"]]
