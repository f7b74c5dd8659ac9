"""A function with every kind of state, and timers of both domains; workers import it from here."""

from __future__ import annotations

from typing import Any

import cojoin as cj

OUTPUT = "trade_id bigint, at bigint, why string, held string"

_WEEK = cj.StateTtlConfig("7 days", time_domain="event_time")
_HOUR = cj.StateTtlConfig("10 seconds", time_domain="event_time", update_type="on_read_and_write")


class Sum(cj.AggregateFunction):
    """The amounts and how many there were."""

    def create_accumulator(self) -> Any:
        return (0.0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator.total + value, accumulator.count + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator.total, accumulator.count


class KeepAll(cj.KeyedCoProcessFunction):
    """Emits with each trade and each timer all that it holds, so that nothing can be missing without being seen."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "version bigint, tier string", ttl=_WEEK))
        self.last = ctx.get_state(cj.ValueStateDescriptor("last", "timestamp"))
        self.seen = ctx.get_list_state(cj.ListStateDescriptor("seen", "bigint", ttl=_HOUR))
        self.ids = ctx.get_list_state(cj.ListStateDescriptor("ids", "id bigint, `a.b` string"))
        self.sums = ctx.get_map_state(cj.MapStateDescriptor("sums", "string", "double", ttl=_HOUR))
        self.by_tier = ctx.get_map_state(cj.MapStateDescriptor("by tier", "string", "array<bigint>"))
        self.least = ctx.get_reducing_state(cj.ReducingStateDescriptor("least", min, "double"))
        self.total = ctx.get_aggregating_state(
            cj.AggregatingStateDescriptor("total", Sum(), "total double, count bigint", ttl=_WEEK)
        )

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        amount = trade.amount or 0.0
        self.last.update(trade.event_time)
        self.seen.add(trade.trade_id)
        self.ids.add((trade.trade_id, None))
        self.sums.put(str(trade.trade_id % 3), amount)
        version, tier = self.tier.value() or (None, "none")
        self.by_tier.put(tier or "?", [*(self.by_tier.get(tier or "?") or []), trade.trade_id])
        self.least.add(amount)
        self.total.add(amount)
        timers = ctx.timer_service()
        timers.register_event_time_timer(ctx.timestamp() + 7_000)
        timers.register_processing_time_timer(timers.current_processing_time() + 10**12)
        yield trade.trade_id, ctx.timestamp(), f"trade at {version}", self._held()

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        self.tier.update((customer.version, customer.tier))

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Any:
        by_clock = ctx.time_domain() is cj.TimeDomain.PROCESSING_TIME
        yield ctx.get_current_key(), None if by_clock else timestamp, ctx.time_domain().value, self._held()

    def _held(self) -> str:
        return str(
            (
                self.tier.value(),
                self.last.value(),
                self.seen.get(),
                self.ids.get(),
                self.sums.items(),
                self.by_tier.items(),
                self.least.get(),
                self.total.get(),
            )
        )
