"""A function as users write them, with states, a map of deadlines, timers and a side output."""

from __future__ import annotations

from typing import Any

from cojoin import KeyedCoProcessFunction, MapStateDescriptor, OutputTag, ValueStateDescriptor

UNKNOWN = OutputTag("unknown", "trade_id long, customer_id long")
OUTPUT = "kind string, trade_id long, tier string, amount double, total double"
LIMIT = 120.0
HOLD = 1_200_000


class Tiers(KeyedCoProcessFunction):
    """Each trade with its customer's tier and total so far; a large one is confirmed after 20 minutes.

    A change of tier confirms the held trades at once with the new tier. A customer without a change for two hours is
    forgotten, and trades of unknown customers go to a side output.
    """

    def open(self, ctx: Any) -> None:
        self.tier = ctx.get_state(ValueStateDescriptor("tier", "tier string, since long"))
        self.total = ctx.get_state(ValueStateDescriptor("total", "double"))
        self.held = ctx.get_map_state(MapStateDescriptor("held", "long", "array<struct<trade_id:long,amount:double>>"))

    def process_element1(self, trade: Any, ctx: Any) -> Any:
        tier = self.tier.value()
        if tier is None:
            yield UNKNOWN, (trade.trade_id, trade.customer_id)
            return
        total = (self.total.value() or 0.0) + trade.amount
        self.total.update(total)
        yield "trade", trade.trade_id, tier.tier, trade.amount, total
        if trade.amount > LIMIT:
            deadline = ctx.timestamp() + HOLD
            self.held.put(deadline, [*(self.held.get(deadline) or []), (trade.trade_id, trade.amount)])
            ctx.timer_service().register_event_time_timer(deadline)

    def process_element2(self, customer: Any, ctx: Any) -> Any:
        before = self.tier.value()
        since = ctx.timestamp()
        if customer.tier is None:
            self.tier.update((None if before is None else before.tier, since))
        else:
            self.tier.update((customer.tier, since))
            if before is not None and before.tier != customer.tier:
                for deadline in sorted(self.held.keys()):
                    for trade_id, amount in self.held.get(deadline):
                        yield "early", trade_id, customer.tier, amount, None
                    ctx.timer_service().delete_event_time_timer(deadline)
                self.held.clear()
                self.total.clear()
        ctx.timer_service().register_event_time_timer(since + 6 * HOLD)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        tier = self.tier.value()
        for trade_id, amount in self.held.get(timestamp) or []:
            yield "confirmed", trade_id, tier.tier if tier else None, amount, None
        self.held.remove(timestamp)
        if tier is not None and tier.since + 6 * HOLD == timestamp:
            self.tier.clear()
            self.total.clear()
