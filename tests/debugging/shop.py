"""A query that ran over small Delta tables or folders, batch by batch, and what each batch really wrote."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import cojoin as cj

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

MORNING = datetime(2026, 1, 15, 9, tzinfo=timezone.utc)
TIME = pa.timestamp("us", "UTC")
TRADES = pa.schema([("trade_id", pa.int64()), ("customer_id", pa.int64()), ("event_time", TIME)])
CUSTOMERS = pa.schema([("customer_id", pa.int64()), ("event_time", TIME), ("tier", pa.string())])
DDL = {
    "trades": "trade_id bigint, customer_id bigint, event_time timestamp",
    "customers": "customer_id bigint, event_time timestamp, tier string",
}
NAMES = ("trades", "customers")

# (trade_id, customer_id, second) and (customer_id, second, tier), batch by batch; customer 8 moves time, too.
BATCHES: list[tuple[list[tuple[int, int, int]], list[tuple[int, int, str]]]] = [
    ([(1, 7, 0), (2, 8, 10)], [(8, 10, "basic")]),
    ([(3, 7, 20), (4, 8, 30)], [(8, 30, "silver")]),
    ([(5, 8, 70)], [(7, 65, "gold"), (8, 70, "gold")]),
    ([(6, 7, 80), (7, 7, 90), (8, 8, 100)], [(8, 100, "basic")]),
    # Trade 9 is late, since time was at 100 already; trade 10 is not.
    ([(9, 7, 40), (10, 7, 150), (11, 9, 160)], [(9, 155, "basic")]),
    ([(12, 8, 300)], [(8, 300, "gold")]),
    ([(13, 7, 310), (14, 8, 320)], [(7, 305, "none"), (8, 320, "basic")]),
]


def at(second: float) -> datetime:
    return MORNING + timedelta(seconds=second)


def millis(second: float) -> int:
    return round(at(second).timestamp() * 1000)


def tables(number: int) -> tuple[pa.Table, pa.Table]:
    trades, customers = BATCHES[number]
    left = [{"trade_id": trade, "customer_id": key, "event_time": at(second)} for trade, key, second in trades]
    right = [{"customer_id": key, "event_time": at(second), "tier": tier} for key, second, tier in customers]
    return pa.Table.from_pylist(left, TRADES), pa.Table.from_pylist(right, CUSTOMERS)


class Tiers(cj.KeyedCoProcessFunction):
    """Each trade with the newest tier; one without a tier waits for a minute."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string"))
        self.open_trades = ctx.get_map_state(cj.MapStateDescriptor("open_trades", "bigint", "bigint"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        if self.tier.value() is not None:
            yield trade.trade_id, trade.customer_id, self.tier.value()
            return
        deadline = ctx.timestamp() + 60_000
        self.open_trades.put(trade.trade_id, deadline)
        ctx.timer_service().register_event_time_timer(deadline)

    def process_element2(self, customer: Any, ctx: cj.Context) -> Any:
        if customer.tier == "none":
            self.tier.clear()
            return
        self.tier.update(customer.tier)
        for trade_id in self.open_trades:
            yield trade_id, customer.customer_id, customer.tier
        self.open_trades.clear()

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Any:
        for trade_id in [trade_id for trade_id, deadline in self.open_trades.items() if deadline <= timestamp]:
            self.open_trades.remove(trade_id)
            yield trade_id, ctx.get_current_key(), None


class LoudTiers(Tiers):
    """The same in capitals; this is what is to be tried."""

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        for trade_id, customer_id, tier in super().process_element1(trade, ctx):
            yield trade_id, customer_id, tier.upper()


class Forgetful(cj.KeyedCoProcessFunction):
    """Declares none of the states."""

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        yield trade.trade_id, trade.customer_id, None


class FailingTiers(Tiers):
    """Stumbles over a trade."""

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        if trade.trade_id == 7:
            msg = "no trade 7"
            raise LookupError(msg)
        return super().process_element1(trade, ctx)


OUTPUT = "trade_id bigint, customer_id bigint, tier string"


@dataclass
class Shop:
    """The query's folder, and the rows that each of its batches wrote."""

    spark: SparkSession
    root: Path
    written: dict[int, list[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def checkpoint(self) -> str:
        return str(self.root / "checkpoint")

    def append(self, numbers: range, *, delta: bool) -> None:
        for number in numbers:
            for name, table in zip(NAMES, tables(number), strict=True):
                if delta:
                    rows = self.spark.createDataFrame(table).coalesce(1)
                    rows.write.format("delta").mode("append").save(str(self.root / name))
                    continue
                (self.root / name).mkdir(parents=True, exist_ok=True)
                path = self.root / name / f"{number:03d}.parquet"
                pq.write_table(table, path)
                # Spark takes files by their time of modification.
                os.utime(path, (1_700_000_000 + number,) * 2)

    def source(self, name: str, *, delta: bool, root: Path | None = None) -> Any:
        place, options = str((root or self.root) / name), {"maxFilesPerTrigger": 1}
        if delta:
            return cj.sources.delta(place, options=options)
        return cj.sources.files(place, "parquet", schema=DDL[name], options=options)

    def pair(self, *, delta: bool, **sources: Any) -> cj.ConnectedInputs:
        shared: dict[str, Any] = {"key": "customer_id", "event_time": "event_time"}
        left, right = (
            cj.Input(sources[name] if name in sources else self.source(name, delta=delta), name=name, **shared)
            for name in NAMES
        )
        return cj.connect(left, right, key_groups=3)

    def run(self, joined: cj.Joined, *, drain: bool = False, interval: int | None = 2) -> None:
        def keep(rows: DataFrame, batch_id: int) -> None:
            self.written[batch_id] = [tuple(row) for row in rows.collect()]

        query = joined.start(
            output=keep,
            checkpoint=self.checkpoint,
            trigger=cj.Trigger.available_now(drain=drain),
            checkpoint_interval=interval,
            retained_checkpoints=10,
        )
        query.await_termination(progress=False)
