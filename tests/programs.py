"""Functions that use all that a function has: the properties run them, and so does the simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

OUTPUT = pa.schema(
    [("key", pa.string()), ("what", pa.string()), ("at", pa.int64()), ("watermark", pa.int64()), ("seen", pa.string())]
)


def told(ctx: Any, what: str, *seen: Any) -> tuple[Any, ...]:
    """Make an output row of all that a callback sees."""
    key = ctx.get_current_key()
    spelled = "/".join(map(str, key)) if isinstance(key, tuple) else key
    return spelled, what, ctx.timestamp(), ctx.timer_service().current_watermark(), repr(seen)


class EnrichTrades(KeyedCoProcessFunction):
    """Tells each trade's tier; a customer record expires after 7 ms, unless another replaces it."""

    def open(self, ctx: Any) -> None:
        self.customer = ctx.get_state(ValueStateDescriptor("customer", "tier string, expires long"))

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        customer = self.customer.value()
        yield told(ctx, "trade", trade.amount, trade.tags, customer and customer[0])

    def process_element2(self, customer: Any, ctx: Any) -> None:
        before = self.customer.value()
        if before is not None:
            ctx.timer_service().delete_event_time_timer(before[1])
        expires = ctx.timestamp() + 7
        self.customer.update((customer.tier, expires))
        ctx.timer_service().register_event_time_timer(expires)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        row = told(ctx, "expired", tuple(self.customer.value()))
        self.customer.clear()
        return [row]


class Ledger(KeyedCoProcessFunction):
    """Keeps amounts in a list and counts in a map; sets timers ahead and in the past, deletes and sets them anew."""

    def open(self, ctx: Any) -> None:
        self.amounts = ctx.get_list_state(ListStateDescriptor("amounts", "double"))
        self.counts = ctx.get_map_state(MapStateDescriptor("counts", "string", "long"))

    def process_element1(self, trade: Any, ctx: Any) -> None:
        self.amounts.add(trade.amount)
        for ahead in (2, 9, -3):
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + ahead)

    def process_element2(self, customer: Any, ctx: Any) -> Iterator[Any]:
        tier = customer.tier or "none"
        self.counts.put(tier, (self.counts.get(tier) or 0) + 1)
        timers = ctx.timer_service()
        timers.delete_event_time_timer(ctx.timestamp() + 2)
        timers.register_event_time_timer(ctx.timestamp() + 2)
        timers.delete_event_time_timer(ctx.timestamp() + 1)
        yield told(ctx, "customer", self.counts.items())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        timers, amounts = ctx.timer_service(), self.amounts.get()
        yield told(ctx, "timer", amounts, self.counts.items())
        if len(amounts) > 3:
            self.amounts.update(amounts[2:])
        if timestamp % 3 == 0:
            timers.register_event_time_timer(timestamp + 4)
        if timestamp % 5 == 0:
            timers.register_event_time_timer(timestamp - 1)
        timers.delete_event_time_timer(timestamp + 3)
        if timestamp % 7 == 0:
            self.counts.remove("gold")
            timers.register_event_time_timer(timestamp + 3)


class Sessions(KeyedCoProcessFunction):
    """Counts both inputs' rows until none came for 6 ms."""

    def open(self, ctx: Any) -> None:
        self.session = ctx.get_state(ValueStateDescriptor("session", "rows long, ends long"))

    def process_element1(self, value: Any, ctx: Any) -> None:
        rows, ends = self.session.value() or (0, None)
        if ends is not None:
            ctx.timer_service().delete_event_time_timer(ends)
        self.session.update((rows + 1, ctx.timestamp() + 6))
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 6)

    process_element2 = process_element1

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield told(ctx, "session", tuple(self.session.value()))
        self.session.clear()


class Heartbeat(KeyedCoProcessFunction):
    """Sets its next timer whenever one fires, for ever."""

    def process_element1(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield told(ctx, "beat")
        ctx.timer_service().register_event_time_timer(timestamp + 5)
