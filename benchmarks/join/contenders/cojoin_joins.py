"""cojoin: the as-of join, two row functions that do the same, and the other joins.

`rows` puts out each trade as it comes in the order of time, `timers` keeps it in a state until a timer of its own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cojoin as cj
from benchmarks.join.contender import OUTPUT_DDL, Contender, Job, tell, timed
from benchmarks.join.generate import DISORDER_SECONDS
from benchmarks.join.oracle import INTERVAL_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ABOUT = {
    "asof": "cojoin: asof_join",
    "rows": "cojoin: a row function with a value state",
    "timers": "cojoin: a row function with a timer for each trade",
}
CONTENDERS = (
    Contender("asof", _ABOUT["asof"], __name__, sink="delta"),
    Contender("asof-by-spark", f"{_ABOUT['asof']}, its files read by Spark", __name__, sink="delta"),
    Contender("asof-from-delta", f"{_ABOUT['asof']} of Delta tables", __name__, sink="delta", source="delta"),
    Contender("asof-by-deltas-source", f"{_ABOUT['asof']}, Delta's own source", __name__, sink="delta", source="delta"),
    # Known at their event times, so that the answer is the same.
    Contender("asof-known", f"{_ABOUT['asof']} with known times", __name__, sink="delta"),
    Contender("rows", _ABOUT["rows"], __name__, sink="delta"),
    Contender("timers", _ABOUT["timers"], __name__, sink="delta"),
    Contender("forward", "cojoin: asof_join, forward", __name__, sink="delta", answer="forward"),
    Contender("nearest", "cojoin: asof_join, nearest", __name__, sink="delta", answer="nearest"),
    Contender("interval", "cojoin: interval_join, ten minutes of versions", __name__, sink="delta", answer="interval"),
    Contender("asof-parquet", _ABOUT["asof"], __name__),
    Contender("rows-parquet", _ABOUT["rows"], __name__),
    Contender("static", "cojoin: asof_join of static rows", __name__, static=True),
)
FROM_DELTA = [each.name for each in CONTENDERS if each.source == "delta"]
KEY_GROUPS = 8
CUSTOMER_DDL = "event_time timestamp, tier string, credit double"


class EnrichTrades(cj.KeyedCoProcessFunction):
    """Each trade with the customer in force: rows come in the order of time, so a state is all it takes."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        """Get the state."""
        self.customer = ctx.get_state(cj.ValueStateDescriptor("customer", CUSTOMER_DDL))

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
        self.customer = ctx.get_state(cj.ValueStateDescriptor("customer", CUSTOMER_DDL))
        self.waiting = ctx.get_list_state(cj.ListStateDescriptor("waiting", OUTPUT_DDL))

    def process_element1(self, trade: Any, ctx: cj.Context) -> None:
        """Keep the trade with the customer in force until time has passed it."""
        self.waiting.add((*trade, *(self.customer.value() or (None, None, None))))
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        """Put a customer record in force."""
        self.customer.update((customer.event_time, customer.tier, customer.credit))

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Any:
        """Emit the trades of this instant."""
        yield from self.waiting
        self.waiting.clear()


FUNCTIONS = {"rows": EnrichTrades, "timers": EnrichTradesByTimer}


def _join(pair: cj.ConnectedInputs, name: str) -> cj.Joined:
    match name:
        case "interval":
            return pair.interval_join(f"-{INTERVAL_SECONDS} seconds", "0 seconds")
        case "forward" | "nearest":
            return pair.asof_join(direction=name)
    return pair.asof_join()


def _run_static(spark: SparkSession, job: Job) -> None:
    from benchmarks.join.spark_side import read_inputs  # noqa: PLC0415

    sides = [
        cj.Input(frame, key="customer_id", event_time="event_time", name=name)
        for name, frame in zip(("trades", "customers"), read_inputs(spark, job), strict=True)
    ]
    with timed():
        cj.connect(*sides, key_groups=KEY_GROUPS).asof_join().to_dataframe().write.parquet(str(job.out))


def run(spark: SparkSession, job: Job) -> None:
    """Run one of them."""
    from benchmarks.join.spark_side import as_tables, batch_seconds, open_sources  # noqa: PLC0415

    if job.name == "static":
        _run_static(spark, job)
        return

    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{DISORDER_SECONDS} seconds")
    tables = as_tables(job) if job.name in FROM_DELTA else None
    sides = [
        cj.Input(source, key="customer_id", event_time="event_time", name=name, watermark=watermark)
        for name, source in zip(("trades", "customers"), open_sources(job, tables), strict=True)
    ]
    if job.name == "asof-known":
        sides[1] = replace(sides[1], known_at="event_time")
    spark.conf.set("spark.cojoin.parquet", "spark" if job.name == "asof-by-spark" else "")
    spark.conf.set("spark.cojoin.delta", "spark" if job.name == "asof-by-deltas-source" else "")
    function = FUNCTIONS.get(job.name.removesuffix("-parquet"))
    others = {each.id for each in spark.streams.active}
    with timed():
        pair = cj.connect(*sides, key_groups=KEY_GROUPS)
        joined = _join(pair, job.name) if function is None else pair.process(function(), OUTPUT_DDL)
        query = joined.start(
            output=(cj.sinks.delta if job.sink == "delta" else cj.sinks.parquet)(str(job.out)),
            checkpoint=str(job.work / "checkpoint"),
            trigger=cj.Trigger.available_now(drain=True),
        )
        (stream,) = (each for each in spark.streams.active if each.id not in others)
        query.await_termination(progress=False)
    assert query.progress is not None
    assert query.progress.is_conserved
    # What is measured is what is told.
    assert {each.reading == "direct" for each in query.progress.inputs} == {"-by-" not in job.name}
    manifests = [json.loads(path.read_text()) for path in sorted((job.work / "checkpoint" / "manifest").glob("*.json"))]
    durations = [each["content"]["durations_ms"] for each in manifests]
    tell("batches", seconds=batch_seconds(stream), parts=durations)


def main() -> None:
    """Run one of them in a session of its own."""
    from benchmarks.join.spark_side import open_session  # noqa: PLC0415

    job = Job.of_arguments()
    run(open_session(job.name), job)


if __name__ == "__main__":
    main()
