"""Small queries whose checkpoints are read: what waits, what is in force, what was rejected is known by heart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cojoin as cj
from tests.spark.data import CUSTOMERS_DDL, FIVE_SECONDS, TRADES_DDL, Folders, customers, trades

if TYPE_CHECKING:
    from pathlib import Path

CLOCK_FAR = 1 << 62
"""A time, in milliseconds, that no timestamp can hold."""


@dataclass
class Lake:
    """Two folders of files, and what a query made of them."""

    root: Path

    @property
    def checkpoint(self) -> str:
        return str(self.root / "checkpoint")

    @property
    def output(self) -> str:
        return str(self.root / "enriched")

    def connect(self, key_groups: int = 3) -> cj.ConnectedInputs:
        inputs = [
            cj.Input(
                cj.sources.files(str(self.root / name), "parquet", schema=ddl, options={"maxFilesPerTrigger": 1}),
                key="customer_id",
                event_time="event_time",
                name=name,
                sequence="position",
                watermark=FIVE_SECONDS,
            )
            for name, ddl in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
        ]
        return cj.connect(*inputs, key_groups=key_groups)

    def run(self, joined: cj.Joined, **settings: Any) -> cj.Query:
        given = {"output": cj.sinks.delta(self.output), "checkpoint": self.checkpoint, "checkpoint_interval": 1}
        query = joined.start(**{**given, "trigger": cj.Trigger.available_now(), **settings})
        query.await_termination(progress=False)
        return query


def asof_lake(root: Path) -> Lake:
    """Run two batches of an as-of join.

    After batch 0 (watermark 54.999 s): trades 1 and 2 are emitted, trade 3 (70 s) and version 3 (60 s) wait.
    After batch 1 (watermark 79.999 s, held by the customers): trade 3 is emitted with version 3, trade 4 was too late,
    trade 5 has no key, trade 6 (90 s) and version 4 (85 s) wait.
    """
    folders, lake = Folders(root), Lake(root)
    folders.add_trades(trades([(1, 1, 10), (2, 2, 12), (3, 1, 70)]))
    folders.add_customers(customers([(1, 1, 0), (2, 2, 5), (3, 1, 60)]))
    folders.add_trades(trades([(4, 1, 20), (5, None, 80), (6, 1, 90)]))
    folders.add_customers(customers([(4, 1, 85)]))
    lake.run(lake.connect().asof_join(suffixes=("", "_customer")))
    return lake


class Watch(cj.KeyedCoProcessFunction):
    """Keeps a bit of every kind of state, and timers of both domains; it forgets by event time and by the clock."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        week = cj.StateTtlConfig("7 days", time_domain="event_time")
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string", ttl=week))
        self.seen = ctx.get_list_state(cj.ListStateDescriptor("seen", "bigint", ttl=cj.StateTtlConfig("7 days")))
        self.sums = ctx.get_map_state(cj.MapStateDescriptor("sums", "string", "double", ttl=week))
        self.count = ctx.get_state(cj.ValueStateDescriptor("count", "bigint"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        self.seen.add(trade.trade_id)
        self.sums.put("all", (self.sums.get("all") or 0.0) + trade.amount)
        self.count.update((self.count.value() or 0) + 1)
        timers = ctx.timer_service()
        timers.register_event_time_timer(ctx.timestamp() + 3_600_000)
        timers.register_processing_time_timer(timers.current_processing_time() + 3_600_000)
        if trade.trade_id == 2:
            timers.register_event_time_timer(CLOCK_FAR)
        yield (trade.trade_id, self.tier.value())

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        self.tier.update(customer.tier)

    def on_timer(self, timestamp: int, ctx: cj.Context) -> None: ...


def function_lake(root: Path) -> Lake:
    """Run a function: after it trades 1 (10 s, customer 1) and 2 (12 s, customer 2) are done, trade 3 (70 s) waits."""
    folders, lake = Folders(root), Lake(root)
    folders.add_trades(trades([(1, 1, 10), (2, 2, 12), (3, 1, 70)]))
    folders.add_customers(customers([(1, 1, 0), (2, 2, 5), (3, 1, 60)]))
    lake.run(lake.connect(2).process(Watch(), "trade_id bigint, tier string"), checkpoint_interval=None)
    return lake
