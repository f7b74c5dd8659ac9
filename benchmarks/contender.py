"""One contender in a process of its own: ``python benchmarks/contender.py NAME DATA WORK``.

Prints one JSON line: seconds from the query's start to its end, each batch's seconds, and the peak memory of the
process tree. The session's start is left out for all alike. The result is checked against the oracle before the line
is printed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from generate import CUSTOMERS_DDL, DISORDER_SECONDS, TRADES_DDL
from memory import PeakMemory
from oracle import check

import cojoin as cj

FILES_PER_BATCH = 2
KEY_GROUPS = 8
OUTPUT_DDL = """trade_id bigint, customer_id bigint, event_time timestamp, amount double, symbol string,
    customers_event_time timestamp, tier string, credit double"""


class EnrichTrades(cj.KeyedCoProcessFunction):
    """Each trade with the customer in force: rows come in the order of time, so a state is all it takes."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        """Get the state."""
        self.customer = ctx.get_state(
            cj.ValueStateDescriptor("customer", "event_time timestamp, tier string, credit double")
        )

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        """Emit the trade with the customer in force."""
        yield (*trade, *(self.customer.value() or (None, None, None)))

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        """Put a customer record in force."""
        self.customer.update((customer.event_time, customer.tier, customer.credit))


class EnrichTradesByTimer(cj.KeyedCoProcessFunction):
    """The same as Flink's users write it: each trade waits in a state for a timer of its own."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        """Get the states."""
        self.customer = ctx.get_state(
            cj.ValueStateDescriptor("customer", "event_time timestamp, tier string, credit double")
        )
        self.waiting = ctx.get_list_state(cj.ListStateDescriptor("waiting", OUTPUT_DDL))

    def process_element1(self, trade: Any, ctx: cj.Context) -> None:
        """Keep the trade with the customer in force until time has passed it."""
        customer = self.customer.value()
        self.waiting.add((*trade, *(customer or (None, None, None))))
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        """Put a customer record in force."""
        self.customer.update((customer.event_time, customer.tier, customer.credit))

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Any:
        """Emit the trades of this instant."""
        yield from self.waiting
        self.waiting.clear()


FUNCTIONS = {"asof": None, "rows": EnrichTrades(), "rows-whole": EnrichTrades(), "timers": EnrichTradesByTimer()}


def inputs(spark: Any, data: Path) -> tuple[Any, Any]:
    """Open both streams, a few files a batch."""
    return tuple(
        spark.readStream.schema(ddl).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(data / name))
        for name, ddl in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
    )


def run_cojoin(spark: Any, data: Path, work: Path, function: Any = None) -> list[float]:
    """Run the as-of join, or the function, into Delta."""
    trades, customers = inputs(spark, data)
    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{DISORDER_SECONDS} seconds")
    pair = cj.connect(
        cj.Input(trades, key="customer_id", event_time="event_time", name="trades", watermark=watermark),
        cj.Input(customers, key="customer_id", event_time="event_time", name="customers", watermark=watermark),
        key_groups=KEY_GROUPS,
    )
    joined = pair.asof_join() if function is None else pair.process(function, OUTPUT_DDL)
    query = joined.start(
        output=cj.sinks.delta(str(work / "out")),
        checkpoint=str(work / "checkpoint"),
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination(progress=False)
    assert query.progress is not None
    assert query.progress.is_conserved
    manifests = sorted((work / "checkpoint" / "manifest").glob("*.json"))
    durations = [json.loads(path.read_text())["durations_ms"] for path in manifests]
    if "--parts" in sys.argv:
        for each in durations:
            print(each, file=sys.stderr)
    return [(each["execute"] + each.get("output", 0)) / 1000 for each in durations]


def run_plain(spark: Any, data: Path, work: Path) -> list[float]:
    """Read, shuffle by key and write the same rows with Spark alone: the floor."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    trades, customers = inputs(spark, data)
    both = trades.unionByName(customers, allowMissingColumns=True).repartition(F.col("customer_id"))
    query = (
        both.writeStream.format("delta")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(work / "out"))
    )
    query.awaitTermination()
    return [progress["batchDuration"] / 1000 for progress in query.recentProgress if progress["numInputRows"]]


def main() -> None:
    """Run one contender and check what it wrote."""
    name, data, work = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    spark = cj.spark_session(
        f"benchmark {name}",
        master="local[2]",
        conf={"spark.ui.enabled": "false", "spark.driver.memory": "2g", "spark.log.level": "ERROR"},
    )
    with PeakMemory() as memory:
        started = time.perf_counter()
        plain = name.startswith("plain")
        batches = run_plain(spark, data, work) if plain else run_cojoin(spark, data, work, FUNCTIONS[name])
        seconds = time.perf_counter() - started
    result = spark.read.format("delta").load(str(work / "out"))
    if plain:
        rows = result.count()
        assert rows == sum(spark.read.parquet(str(data / folder)).count() for folder in ("trades", "customers"))
    else:
        check(data, result.select("trade_id", "tier", "credit").toPandas())
    print(json.dumps({"name": name, "seconds": seconds, "batches": batches, "peak_bytes": memory.peak}))


if __name__ == "__main__":
    main()
