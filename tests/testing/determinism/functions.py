"""Functions with a planted dependence, and rows for them."""

from __future__ import annotations

import random
import time
import uuid
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.api.connect import connect
from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.input import Input
from cojoin.engine.state import ListStateDescriptor, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cojoin.api.connect import ConnectedInputs
    from cojoin.api.joined import Joined

OUTPUT = "trade_id long, seen string"
START = 1_768_467_600
TIERS = ["gold", "silver", "tin"]


def pair(count: int = 16, seed: int = 1) -> ConnectedInputs:
    """Connect as many trades as customers, of four keys; many of their times tie."""
    rng = random.Random(seed)

    def times() -> pa.Array:
        return pa.array([(START + rng.randrange(count)) * 1_000_000 for _ in range(count)], pa.timestamp("us", "UTC"))

    def words(of: Sequence[str]) -> pa.Array:
        return pa.array([rng.choice(of) for _ in range(count)], pa.string())

    trades = pa.table({"trade_id": pa.array(range(count)), "customer_id": words("abcd"), "event_time": times()})
    customers = pa.table({"customer_id": words("abcd"), "tier": words(TIERS), "event_time": times()})
    columns: Any = {"key": "customer_id", "event_time": "event_time"}
    return connect(Input(trades, name="trades", **columns), Input(customers, name="customers", **columns))


def apply(function: KeyedCoProcessFunction, count: int = 16, **options: Any) -> Joined:
    return pair(count).process(function, OUTPUT, **options)


class LatestTier(KeyedCoProcessFunction):
    """Each trade with its customer's latest tier. Right in event time; in arrival order it goes by the arrival."""

    def open(self, ctx: Any) -> None:
        self.tier = ctx.get_state(ValueStateDescriptor("tier", "string"))

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        yield trade.trade_id, self.tier.value()

    def process_element2(self, customer: Any, ctx: Any) -> None:
        self.tier.update(customer.tier)


class CountsOverKeys(KeyedCoProcessFunction):
    """Numbers the trades with a counter in an attribute."""

    def __init__(self) -> None:
        self.count = 0

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        self.count += 1
        yield trade.trade_id, str(self.count)


class IteratesSet(KeyedCoProcessFunction):
    """Each trade with the tiers so far, in the order of a set."""

    def open(self, ctx: Any) -> None:
        self.tiers = ctx.get_list_state(ListStateDescriptor("tiers", "string"))

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        for tier in set(self.tiers.get()):
            yield trade.trade_id, tier

    def process_element2(self, customer: Any, ctx: Any) -> None:
        self.tiers.add(customer.tier)


class IteratesConstantSet(KeyedCoProcessFunction):
    """Each trade with all tiers, in the order of a set."""

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        for tier in set(TIERS):
            yield trade.trade_id, tier


class ReadsDay(KeyedCoProcessFunction):
    """Each trade with the day of the month, which a repeated run does not change."""

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        yield trade.trade_id, str(date.today().day)  # noqa: DTZ011 - the fault that is planted


class ReadsProcessingTime(KeyedCoProcessFunction):
    """Each trade with the micro-batch's processing time."""

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        yield trade.trade_id, str(ctx.timer_service().current_processing_time() > 0)


class NoticesCuts(KeyedCoProcessFunction):
    """Tells the first trade of a key in each micro-batch from the others."""

    def open(self, ctx: Any) -> None:
        self.keys: set[str] = set()

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        yield trade.trade_id, "later" if trade.customer_id in self.keys else "first"
        self.keys.add(trade.customer_id)


class ReadsWatermark(KeyedCoProcessFunction):
    """Each trade with the watermark, which in arrival order depends on the cuts."""

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        yield trade.trade_id, str(ctx.timer_service().current_watermark())


class DrawsId(KeyedCoProcessFunction):
    """Each trade with a random id."""

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        yield trade.trade_id, str(uuid.uuid4())


class CountsInClass(KeyedCoProcessFunction):
    """Numbers the trades with a counter in an attribute of the class, which outlives every copy."""

    count = 0

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        CountsInClass.count += 1
        yield trade.trade_id, str(CountsInClass.count)


class FailsWithoutTier(LatestTier):
    """Fails where a trade comes before any tier of its key."""

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        yield trade.trade_id, self.tier.value().upper()


class FailsSecondTime(KeyedCoProcessFunction):
    """Fails where a key that has been seen has no row in an attribute."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen", "boolean"))
        self.rows: dict[str, Any] = {}

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        before = self.rows[trade.customer_id].trade_id if self.seen.value() else None
        yield trade.trade_id, str(before)
        self.rows[trade.customer_id] = trade
        self.seen.update(True)


class Slow(KeyedCoProcessFunction):
    """Takes two milliseconds for each trade."""

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        time.sleep(0.002)
        yield trade.trade_id, "slow"


class Stateless(KeyedCoProcessFunction):
    """Passes trades on: right in every order."""

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        yield trade.trade_id, trade.customer_id


class HoldsGenerator(Stateless):
    """Has an attribute that can't be pickled."""

    def __init__(self) -> None:
        self.numbers = (number for number in range(3))


JOINS = {
    "asof": pair().asof_join(),
    "nearest": pair().asof_join(direction="nearest", tolerance="3 seconds"),
    "temporal": pair().temporal_join("inner", retention="5 seconds"),
    "interval": pair().interval_join("-2 seconds", "1 second", "full"),
    "latest": apply(LatestTier()),
    "stateless": apply(Stateless(), order="arrival"),
}
"""Joins, and functions without a fault."""
