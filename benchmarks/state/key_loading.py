"""How long ``cojoin.debug`` takes to load a key of a large checkpoint, in a warm session.

    python -m benchmarks.state.key_loading [--rows 2000000 20000000] [--keys 5] [--smoke]

For each size an as-of join has that many versions in force, one a customer, in 32 key groups, and a snapshot of them.
Several keys are loaded, the first one to warm the session up. Each loaded version is compared with what was written.
Beside the seconds stand those of a job of Spark's that counts the snapshot's rows without their content, for what the
machine does besides.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from benchmarks.findings import Findings, open_input
from benchmarks.session import make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["measure"]

KEY_GROUPS, SECONDS = 32, 5.0
DDL = {
    "trades": "trade_id bigint, customer_id bigint, event_time timestamp",
    "customers": "customer_id bigint, event_time timestamp, tier string, credit double",
}


def measure(spark: SparkSession, folder: Path, rows: int, keys: int, findings: Findings) -> None:
    """Make a checkpoint with so many rows, and load some of its keys."""
    started = time.perf_counter()
    customers = spark.range(rows).select(
        F.col("id").alias("customer_id"),
        F.timestamp_seconds(1_768_435_200 + F.col("id") % 60).alias("event_time"),
        F.concat(F.lit("tier-"), F.col("id") % 1_000).alias("tier"),
        (F.col("id") * 0.5).alias("credit"),
    )
    customers.write.parquet(str(folder / "customers"))
    # Two trades move time past the versions; a third waits.
    trades = spark.range(3).selectExpr("id AS trade_id", "id AS customer_id", "timestamp_seconds(1768438800 + id)")
    trades.toDF("trade_id", "customer_id", "event_time").write.parquet(str(folder / "trades"))
    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness("0 seconds")
    inputs = (open_input(folder, name, ddl, 1_000, watermark) for name, ddl in DDL.items())
    joined = cj.connect(*inputs, key_groups=KEY_GROUPS).asof_join()
    query = joined.start(
        output=cj.sinks.delta(str(folder / "out")),
        checkpoint=str(folder / "checkpoint"),
        trigger=cj.Trigger.available_now(),
        checkpoint_interval=1,
    )
    query.await_termination(progress=False)
    print(f"{rows:,} rows: made in {time.perf_counter() - started:.0f} s", flush=True)
    taken, beside = [], []
    for number in range(keys + 1):
        key = (number * 7_919_777) % rows
        started = time.perf_counter()
        debugger = cj.debug(str(folder / "checkpoint"), joined, key=key)
        taken.append(time.perf_counter() - started)
        found = [*debugger.state.to_pylist(), *debugger.waiting[1].to_pylist()][0]
        assert (found["customer_id"], found["tier"]) == (key, f"tier-{key % 1_000}"), found
        started = time.perf_counter()
        spark.read.format("delta").load(str(folder / "checkpoint" / "state")).select("key_group").collect()
        beside.append(time.perf_counter() - started)
    told = f"median {statistics.median(taken[1:]):.2f} s, at most {max(taken[1:]):.2f} s, the first {taken[0]:.2f} s"
    told += f"; a job of Spark's beside: {statistics.median(beside[1:]):.2f} s"
    asked = f"a key of a checkpoint of {rows:,} rows is loaded in at most {SECONDS:.0f} s"
    findings.add(asked, told, holds=max(taken[1:]) <= SECONDS)


def main() -> None:
    """Run the measure for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000_000, 20_000_000])
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="a small size, to see that it works")
    chosen = parser.parse_args()
    findings = Findings()
    with tempfile.TemporaryDirectory() as root:
        spark = make_session("key loading", Path(root), memory="6g")
        for rows in [50_000] if chosen.smoke else chosen.rows:
            folder = Path(root) / str(rows)
            folder.mkdir()
            measure(spark, folder, rows, chosen.keys, findings)
        spark.stop()
    raise SystemExit(0 if findings.hold else 1)


if __name__ == "__main__":
    main()
