"""The queries whose checkpoints each release leaves to the next: what they read, what they do, where all of it lies.

They are not changed once a release has written them: a checkpoint goes on only with the query that it holds. A source's
log, a table's place and a manifest name full paths, so each release's checkpoints lie at one fixed place, where the
tests put them while they hold its lock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cojoin as cj
from cojoin.engine.state.segments import SegmentOptions
from tests.spark.data import CUSTOMERS_DDL, FIVE_SECONDS, TRADES_DDL

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

__all__ = ["CASES", "Case", "Place", "place_of"]

CLOCK_MS = 300_000
"""After how long the function's timers of processing time are due: its checkpoint was written before."""

NEW_CUSTOMERS = cj.OutputTag("new-customers", "customer_id bigint")
EVENTS_DDL = "what string, trade_id bigint, tier string, trades bigint, total double, mean double, by_tier string"
PAUSE, DRAIN = cj.Trigger.available_now(), cj.Trigger.available_now(drain=True)


class Mean(cj.AggregateFunction):
    """The mean of all amounts."""

    def create_accumulator(self) -> Any:
        return (0, 0.0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return (accumulator[0] + 1, accumulator[1] + value)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[1] / accumulator[0]


class Everything(cj.KeyedCoProcessFunction):
    """Keeps a state of each kind, and timers of both domains; the first trades are told once more by the clock."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        month = cj.StateTtlConfig("30 days", time_domain="event_time")
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string", ttl=month))
        self.trades = ctx.get_list_state(cj.ListStateDescriptor("trades", "bigint"))
        self.due = ctx.get_list_state(cj.ListStateDescriptor("due", "bigint"))
        self.by_tier = ctx.get_map_state(cj.MapStateDescriptor("by_tier", "string", "bigint", ttl=month))
        self.total = ctx.get_reducing_state(cj.ReducingStateDescriptor("total", lambda one, two: one + two, "double"))
        self.mean = ctx.get_aggregating_state(
            cj.AggregatingStateDescriptor("mean", Mean(), "count bigint, total double")
        )

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        timers, tier = ctx.timer_service(), self.tier.value() or "none"
        self.trades.add(trade.trade_id)
        self.by_tier.put(tier, (self.by_tier.get(tier) or 0) + 1)
        self.total.add(trade.amount or 0.0)
        self.mean.add(trade.amount or 0.0)
        timers.register_event_time_timer(ctx.timestamp() + 20_000)
        if trade.trade_id < 6:
            self.due.add(trade.trade_id)
            timers.register_processing_time_timer(timers.current_processing_time() + CLOCK_MS)
        yield self._told("trade", trade.trade_id)

    def process_element2(self, customer: Any, ctx: cj.Context) -> Any:
        if self.tier.value() is None:
            yield NEW_CUSTOMERS, (customer.customer_id,)
        self.tier.update(customer.tier or "none")

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Any:
        if ctx.time_domain() == cj.TimeDomain.EVENT_TIME:
            yield self._told("event time", None)
        else:
            for trade_id in self.due.get():
                yield ("clock", trade_id, None, None, None, None, None)
            self.due.clear()

    def _told(self, what: str, trade_id: int | None) -> tuple[Any, ...]:
        by_tier = ", ".join(f"{tier}: {count}" for tier, count in sorted(self.by_tier.items()))
        trades = len([*self.trades.get()])
        return (what, trade_id, self.tier.value(), trades, self.total.get(), self.mean.get(), by_tier)


@dataclass(frozen=True)
class Place:
    """Where one checkpoint lies, with all that its query reads and writes.

    Attributes:
        root: The folder.
    """

    root: Path

    @property
    def checkpoint(self) -> str:
        return str(self.root / "checkpoint")

    @property
    def origin(self) -> str:
        """The checkpoint that this one was restored from, if it was."""
        return str(self.root / "origin")

    @property
    def output(self) -> str:
        return str(self.root / "out")

    def inputs(self, *, delta_trades: bool) -> list[cj.Input]:
        """Describe both inputs; a batch takes a file."""
        options = {"maxFilesPerTrigger": 1}
        shared: dict[str, Any] = {"key": "customer_id", "event_time": "event_time", "sequence": "position"}
        sources = [
            cj.sources.delta(str(self.root / name), options=options)
            if delta_trades and name == "trades"
            else cj.sources.files(str(self.root / name), "parquet", schema=ddl, options=options)
            for name, ddl in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
        ]
        return [
            cj.Input(source, name=name, watermark=FIVE_SECONDS, **shared)
            for source, name in zip(sources, ("trades", "customers"), strict=True)
        ]

    def add(self, spark: SparkSession, number: int, *, delta_trades: bool) -> None:
        """Let a piece of the input arrive, which lies in ``pieces``."""
        for name in ("trades", "customers"):
            piece = self.root / "pieces" / f"{number:02d}-{name}.parquet"
            if delta_trades and name == "trades":
                rows = spark.read.schema(TRADES_DDL).parquet(str(piece))
                rows.coalesce(1).write.format("delta").mode("append").save(str(self.root / name))
            else:
                (self.root / name).mkdir(exist_ok=True)
                piece.rename(self.root / name / f"{number:05d}.parquet")


def place_of(release: str, case: str) -> Place:
    """Return where a release's checkpoint lies, on every machine."""
    return Place(Path("/tmp") / f"cojoin-release-{release}" / case)


def _asof(pair: cj.ConnectedInputs) -> cj.Joined:
    return pair.asof_join(suffixes=("", "_customer"))


def _in_segments(pair: cj.ConnectedInputs) -> cj.Joined:
    """Let no row stay in the state value, and each batch merge all segments."""
    joined = _asof(pair)
    joined._plan = replace(joined.plan, segments=SegmentOptions(0, ratio=1000.0))
    return joined


@dataclass(frozen=True)
class Case:
    """A query, and how it runs.

    Attributes:
        name: What its checkpoint shows.
        join: Makes the query of the connected inputs.
        interval: A snapshot every so many batches.
        delta_trades: Whether the trades are a Delta table, and not files.
        is_over: Whether it was drained, so that nothing can go on.
        key_groups: How many key groups it has.
    """

    name: str
    join: Callable[[cj.ConnectedInputs], cj.Joined]
    interval: int | None = None
    delta_trades: bool = False
    is_over: bool = False
    key_groups: int = 2

    def run(self, place: Place, trigger: cj.Trigger = PAUSE, key_groups: int | None = None, **options: Any) -> cj.Query:
        """Run the query on its checkpoint, or on another that ``options`` name."""
        given = {
            "checkpoint": place.checkpoint,
            "output": cj.sinks.delta(place.output),
            "checkpoint_interval": self.interval,
            "retained_checkpoints": 2,
            "trigger": trigger,
        }
        inputs = place.inputs(delta_trades=self.delta_trades)
        joined = self.join(cj.connect(*inputs, key_groups=key_groups or self.key_groups))
        query = joined.start(**(given | options))
        query.await_termination(progress=False)
        return query


CASES = {
    case.name: case
    for case in (
        Case("asof", _asof, interval=1, delta_trades=True),
        Case(
            "function",
            lambda pair: pair.process(Everything(), EVENTS_DDL, side_outputs=[NEW_CUSTOMERS]),
            interval=1,
        ),
        Case("segments", _in_segments),
        Case("killed", _asof, interval=1),
        Case(
            "savepoints",
            lambda pair: pair.interval_join("-3 seconds", "3 seconds", "full", suffixes=("", "_customer")),
        ),
        Case("restored", _asof, key_groups=3),
        Case("half-restored", _asof, key_groups=3),
        Case("drained", lambda pair: pair.temporal_join(suffixes=("", "_customer")), is_over=True),
    )
}
