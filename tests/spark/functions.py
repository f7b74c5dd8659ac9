"""Functions that the tests run; workers import them from here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cojoin as cj


class EnrichTrades(cj.KeyedCoProcessFunction):
    """Each trade with the customer in force: in event-time order a state is all that it takes."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.customer = ctx.get_state(cj.ValueStateDescriptor("customer", "version bigint, tier string"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        version, tier = self.customer.value() or (None, None)
        yield trade.trade_id, trade.event_time, trade.amount, version, tier

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        self.customer.update((customer.version, customer.tier))


class CountCalls(cj.KeyedCoProcessFunction):
    """Writes a line to a file at every call of a key group; a timer far ahead keeps every key group busy at the end."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self, ctx: cj.RuntimeContext) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, b"call\n")
        os.close(descriptor)

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 86_400_000)
        yield (trade.trade_id,)


class Deletes(cj.KeyedCoProcessFunction):
    """Deletes a file at each trade."""

    def __init__(self, path: str) -> None:
        self.path = path

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        Path(self.path).unlink(missing_ok=True)
        yield (trade.trade_id,)


class Mendable(cj.KeyedCoProcessFunction):
    """Raises at one trade until it is mended."""

    def __init__(self, bad_trade: int | None) -> None:
        self.bad_trade = bad_trade

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        if trade.trade_id == self.bad_trade:
            msg = f"no price for trade {trade.trade_id}"
            raise LookupError(msg)
        yield (trade.trade_id,)


UNKNOWN = cj.OutputTag("unknown-customers", "trade_id bigint, event_time timestamp")
SEEN = cj.OutputTag("seen", "customer_id bigint")
SNAPSHOT = cj.OutputTag("snapshot", "customer_id bigint")


class SplitTrades(cj.KeyedCoProcessFunction):
    """Trades of customers that are not known yet go to a side output, the customers themselves to another."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        tier = self.tier.value()
        yield (trade.trade_id, tier) if tier else (UNKNOWN, (trade.trade_id, trade.event_time))

    def process_element2(self, customer: Any, ctx: cj.Context) -> Any:
        self.tier.update(customer.tier or "none")
        yield SEEN, (ctx.get_current_key(),)


class Reminder(cj.KeyedCoProcessFunction):
    """Reminds of each trade once by the clock, at once and an hour later; keeps its number in a state."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.trades = ctx.get_list_state(cj.ListStateDescriptor("trades", "bigint"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> None:
        timers = ctx.timer_service()
        self.trades.add(trade.trade_id)
        timers.register_processing_time_timer(timers.current_processing_time() + 1)
        timers.register_processing_time_timer(timers.current_processing_time() + 3_600_000)

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Any:
        overdue = ctx.timer_service().current_processing_time() >= timestamp
        for trade_id in self.trades.get():
            yield trade_id, ctx.time_domain().value, overdue


class LookUp(cj.KeyedCoProcessFunction):
    """Each trade with the tier of its customer, whose rows come before it."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        yield trade.trade_id, self.tier.value()

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        self.tier.update(customer.tier)


class Customers(cj.KeyedCoProcessFunction):
    """Yields the key of each customer to a side output named as a part of a batch."""

    def process_element2(self, customer: Any, ctx: cj.Context) -> Any:
        yield SNAPSHOT, (ctx.get_current_key(),)
