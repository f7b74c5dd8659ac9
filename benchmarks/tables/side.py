"""One contender in a process of its own: ``python -m benchmarks.tables.side NAME FOLDER``; it prints JSON at its end.

- ``static``: a static side of cojoin's, ``cj.sources.delta(table, static=True)``.
- ``feed``: the table's snapshot and change feed, ``cj.sources.delta(table, changes=True)``.
- ``spark``: Spark's stream-static join, which reads the table anew in each micro-batch.

Each warms up on a small shop before it is timed. The first joined row is there with the output's first commit that has
files.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from benchmarks.footprint import Footprint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CONTENDERS", "Shop", "make_session"]

CONTENDERS = ("static", "feed", "spark")
TRADES_DDL = "trade_id bigint, customer_id bigint, event_time timestamp, amount double"
KEY_GROUPS, WARM_ROWS = 32, 20_000


@dataclass(frozen=True)
class Shop:
    """Customers as a Delta table, some of them changed once, and trades as files, one for each micro-batch.

    Attributes:
        folder: Where they lie.
        customers: How many customers the table has.
        changes: How many of them were changed by a second commit.
        trades: How many trades.
        batches: How many micro-batches.
    """

    folder: Path
    customers: int
    changes: int
    trades: int
    batches: int

    def write(self, spark: SparkSession) -> None:
        """Write the table and the files."""
        table = f"delta.`{self.folder}/customers`"
        spark.sql(
            f"create table {table} (customer_id bigint, tier string, credit double) using delta "
            f"tblproperties (delta.enableChangeDataFeed = true)"
        )
        customers = spark.range(self.customers).select(
            F.col("id").alias("customer_id"), self.tier(F.lit(0)).alias("tier"), (F.col("id") * 0.5).alias("credit")
        )
        customers.write.format("delta").mode("append").save(f"{self.folder}/customers")
        if self.changes:
            # Ids from zero on, so few files are written anew.
            changed = "concat('tier-', customer_id % 1000, '-', 1)"
            spark.sql(f"update {table} set tier = {changed} where customer_id < {self.changes}")
        size = -(-self.trades // self.batches)
        for number in range(self.batches):
            trades = spark.range(number * size, min(self.trades, (number + 1) * size), 1, 2).select(
                F.col("id").alias("trade_id"),
                self.customer.alias("customer_id"),
                F.timestamp_millis(1_700_000_000_000 + F.col("id")).alias("event_time"),
                (F.col("id") % 1_000 / 10).alias("amount"),
            )
            trades.coalesce(1).write.mode("append").parquet(f"{self.folder}/trades")

    @property
    def customer(self) -> Any:
        """The customer of a trade: some trades have none that is in the table."""
        return F.pmod(F.xxhash64("id"), F.lit(self.customers + self.customers // 100))

    @staticmethod
    def tier(change: Any) -> Any:
        """The tier of a customer after so many changes."""
        return F.concat(F.lit("tier-"), F.col("id") % 1_000, F.lit("-"), change)

    def expected(self, spark: SparkSession) -> DataFrame:
        """Return what a trade finds, without a join."""
        trades = spark.range(self.trades).select(F.col("id").alias("trade_id"), self.customer.alias("id"))
        known = F.col("id") < self.customers
        tier = self.tier(F.when(F.col("id") < self.changes, 1).otherwise(0))
        return trades.select(
            "trade_id", F.when(known, tier).alias("tier"), F.when(known, F.col("id") * 0.5).alias("credit")
        )

    @property
    def trade_files(self) -> dict[str, str]:
        """The options of the stream of trades."""
        return {"maxFilesPerTrigger": "1"}


def make_session(name: str, memory: str) -> SparkSession:
    """Start Spark with two cores as a user has it, for all contenders alike."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
    }
    return cj.spark_session(f"tables {name}", master="local[2]", conf=settings)


def digest(frame: DataFrame) -> list[str]:
    """Return the count of rows and a sum of their hashes."""
    hashed = F.xxhash64("trade_id", "tier", "credit").cast("decimal(38,0)")
    row: Any = frame.agg(F.count(F.lit(1)), F.sum(hashed)).first()
    return [str(row[0]), str(row[1])]


def with_spark(spark: SparkSession, shop: Shop, place: str) -> None:
    """Join by Spark's stream-static join."""
    trades = spark.readStream.schema(TRADES_DDL).options(**shop.trade_files).parquet(f"{shop.folder}/trades")
    customers = spark.read.format("delta").load(f"{shop.folder}/customers")
    joined = trades.join(customers, "customer_id", "left").writeStream.format("delta")
    joined.option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True).start(
        f"{place}/out"
    ).awaitTermination()


def with_cojoin(shop: Shop, place: str, *, feed: bool) -> None:
    """Join with a static side, or with the table's change feed."""
    table = f"{shop.folder}/customers"
    trades = cj.sources.files(f"{shop.folder}/trades", "parquet", schema=TRADES_DDL, options=shop.trade_files)
    left = cj.Input(trades, "customer_id", "event_time", "trades")
    if feed:
        source = cj.sources.delta(table, changes=True)
        pair = cj.connect(
            left, cj.Input(source, "customer_id", "_commit_timestamp", "customers"), key_groups=KEY_GROUPS
        )
        joined = pair.temporal_join()
    else:
        source = cj.sources.delta(table, static=True)
        joined = cj.connect(left, cj.Input(source, "customer_id", None, "customers"), key_groups=KEY_GROUPS).asof_join()
    query = joined.start(
        output=cj.sinks.delta(f"{place}/out"),
        checkpoint=f"{place}/checkpoint",
        trigger=cj.Trigger.available_now(drain=True),
        checkpoint_interval=None,
    )
    query.await_termination(progress=False)


def timed(spark: SparkSession, shop: Shop, name: str, place: str) -> dict[str, Any]:
    """Run a contender, and return its times and its CPU in seconds, and the digest of its rows."""
    # Beside other work on the machine, CPU seconds tell more than time does.
    footprint = Footprint()
    used = footprint.cpu_seconds()
    started, done, first = time.perf_counter(), threading.Event(), []
    watcher = threading.Thread(target=_watch, args=(Path(place) / "out" / "_delta_log", done, first))
    watcher.start()
    try:
        if name == "spark":
            with_spark(spark, shop, place)
        else:
            with_cojoin(shop, place, feed=name == "feed")
        seconds = time.perf_counter() - started
        used = footprint.cpu_seconds() - used
    finally:
        done.set()
        watcher.join()
    rows = spark.read.format("delta").load(f"{place}/out")
    return {
        "first": round(first[0] - started, 2),
        "end": round(seconds, 2),
        "cpu": round(used, 1),
        "digest": digest(rows),
    }


def _watch(log: Path, done: threading.Event, first: list[float]) -> None:
    """Note when the first commit with files is there."""
    while not first:
        commits = sorted(log.glob("*.json")) if log.exists() else []
        if any('"add":' in commit.read_text() for commit in commits) or done.is_set():
            first.append(time.perf_counter())
        done.wait(0.05)


def main() -> None:
    """Warm up, run one contender, and print what it took."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    described = json.loads((folder / "shop.json").read_text())
    spark = make_session(name, described.pop("memory"))
    small = Shop(folder / name / "small", WARM_ROWS, WARM_ROWS // 10, WARM_ROWS, 2)
    small.write(spark)
    timed(spark, small, name, f"{folder}/{name}/warm")
    shop = Shop(folder / "shop", **described)
    found = timed(spark, shop, name, f"{folder}/{name}/run")
    print(json.dumps({**found, "right": digest(shop.expected(spark)) == found["digest"]}))
    spark.stop()


if __name__ == "__main__":
    main()
