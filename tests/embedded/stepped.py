"""Small streams with everything that goes wrong in a stream, joins and functions over them, and how they are cut.

Rows come out of order by more than the watermark allows, without a key, without an event time, and from the year 2200.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import cojoin as cj

if TYPE_CHECKING:
    from collections.abc import Callable

MORNING = 1_768_467_600_000_000
FAR_FUTURE = 7_258_118_400_000_000
SECOND = 1_000_000
TIME = pa.timestamp("us", "UTC")
TRADES = pa.schema([("trade", pa.int64()), ("id", pa.string()), ("at", TIME), ("part", pa.int32())])
CUSTOMERS = pa.schema(
    [("customer", pa.string()), ("since", TIME), ("tier", pa.string()), ("gone", pa.bool_()), ("part", pa.int32())]
)
TRADES_DDL = "trade bigint, id string, at timestamp, part int"
CUSTOMERS_DDL = "customer string, since timestamp, tier string, gone boolean, part int"

UNKNOWN = cj.OutputTag("unknown", "trade bigint, at timestamp")
OUTPUT_DDL = "what string, id string, number bigint, tier string"


class Watch(cj.KeyedCoProcessFunction):
    """Trades with their tier; a reminder of each three seconds later; trades of unknown customers go elsewhere."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def open(self, ctx: cj.RuntimeContext) -> None:
        ttl = cj.StateTtlConfig("20 seconds", time_domain="event_time")
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string", ttl=ttl))
        self.trades = ctx.get_list_state(cj.ListStateDescriptor("trades", "bigint"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        # Lost with each micro-batch, so what it counts shows how the batches were cut.
        key = ctx.get_current_key()
        self.calls[key] += 1
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 3_000)
        self.trades.add(trade.trade)
        tier = self.tier.value()
        if tier is None:
            yield UNKNOWN, (trade.trade, trade.at)
        else:
            yield "trade", key, self.calls[key], tier

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        self.tier.update(customer.tier)

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Any:
        yield "timer", ctx.get_current_key(), timestamp, ",".join(map(str, self.trades.get()))
        self.trades.clear()


class Clocked(cj.KeyedCoProcessFunction):
    """Tells of each trade by the clock, once in its own batch and once an hour later."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.last = ctx.get_state(cj.ValueStateDescriptor("last", "bigint"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        now = ctx.timer_service().current_processing_time()
        ctx.timer_service().register_processing_time_timer(now)
        ctx.timer_service().register_processing_time_timer(now + 3_600_000)
        self.last.update(trade.trade)
        yield "trade", ctx.get_current_key(), now, None

    def process_element2(self, customer: Any, ctx: cj.Context) -> Any:
        yield "customer", ctx.get_current_key(), self.last.value(), customer.tier

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Any:
        yield "timer", ctx.get_current_key(), timestamp, str(self.last.value())


def _watch(order: Any) -> Callable[[cj.ConnectedInputs], cj.Joined]:
    return lambda pair: pair.process(Watch(), OUTPUT_DDL, order=order, side_outputs=UNKNOWN)


JOINS: dict[str, Callable[[cj.ConnectedInputs], cj.Joined]] = {
    "as-of": lambda pair: pair.asof_join(suffixes=("", "_customer")),
    "as-of inner": lambda pair: pair.asof_join("inner", tolerance="8 s", suffixes=("", "_customer")),
    "forward": lambda pair: pair.asof_join(direction="forward", suffixes=("", "_customer")),
    "nearest": lambda pair: pair.asof_join(direction="nearest", tolerance="5 s", suffixes=("", "_customer")),
    "temporal": lambda pair: pair.temporal_join(deletes="gone", retention="30 s", suffixes=("", "_customer")),
    "interval": lambda pair: pair.interval_join("-4 s", "2 s", suffixes=("", "_customer")),
    "interval full": lambda pair: pair.interval_join("-4 s", "2 s", "full", suffixes=("", "_customer")),
    "function": _watch("event_time"),
    "function in arrival": _watch("arrival"),
    "clock": lambda pair: pair.process(Clocked(), OUTPUT_DDL, order="arrival"),
}


CASES = [(name, number, 10 * number + place) for number in (1, 2, 3) for place, name in enumerate(JOINS)]
"""The 30 cases that run on Spark: a join, how often it came before, and the seed."""


@dataclass(frozen=True)
class Case:
    """Rows in the order in which they arrive, how many of them each batch takes, and the inputs' settings."""

    trades: pa.Table
    customers: pa.Table
    cuts: list[tuple[int, int]]
    settings: dict[str, Any]

    def connect(self, trades: Any, customers: Any, **options: Any) -> cj.ConnectedInputs:
        left = cj.Input(trades, key="id", event_time="at", name="trades", **self.settings)
        right = cj.Input(customers, key="customer", event_time="since", name="customers", **self.settings)
        return cj.connect(left, right, **options)

    def batches(self) -> list[tuple[pa.Table, pa.Table]]:
        found, places = [], [0, 0]
        for pair in self.cuts:
            left, right = (
                table.slice(place, count)
                for table, place, count in zip((self.trades, self.customers), places, pair, strict=True)
            )
            found.append((left, right))
            places = [place + count for place, count in zip(places, pair, strict=True)]
        return found


def draw_case(seed: int, name: str = "as-of", batches: int = 3) -> Case:
    """Draw a case for one of ``JOINS`` from a seed."""
    dice = random.Random(seed)
    tables = []
    for schema in (TRADES, CUSTOMERS):
        rows = [_row(dice, number, schema) for number in range(dice.randint(9, 16))]
        tables.append(pa.Table.from_pylist(rows, schema=schema))
    cuts: list[tuple[int, int]] = [(0, 0)]
    # Spark calls nothing in a batch without any row, so it would not report such a batch's own time.
    while (0, 0) in cuts:
        parts = []
        for table in tables:
            bounds = [0, *sorted(dice.randint(1, table.num_rows) for _ in range(batches - 1)), table.num_rows]
            parts.append([stop - start for start, stop in pairwise(bounds)])
        cuts = list(zip(*parts, strict=True))
    settings: dict[str, Any] = {
        "watermark": cj.WatermarkStrategy.for_bounded_out_of_orderness(dice.choice(["0 s", "2 s"])),
        "partition": dice.choice([(), "part"]),
        "late": dice.choice([None, None, "apply"]),
    }
    if name == "function":
        del settings["late"]  # in event-time order late rows are always rejected
    return Case(tables[0], tables[1], cuts, settings)


def _row(dice: random.Random, number: int, schema: pa.Schema) -> dict[str, Any]:
    # Time goes on by some two seconds a row, and every sixth row is half a minute late.
    behind = dice.choice([0, 0, 0, 1, 4, 30]) * SECOND
    moment: int | None = MORNING + number * 2 * SECOND - behind + dice.randint(0, 999)
    moment = dice.choice([None, FAR_FUTURE]) if dice.random() < 0.1 else moment
    key = None if dice.random() < 0.06 else dice.choice("aabc")
    part = number % 2
    if schema is TRADES:
        return {"trade": number, "id": key, "at": moment, "part": part}
    tier = dice.choice(["gold", "silver", None])
    return {"customer": key, "since": moment, "tier": tier, "gone": dice.random() < 0.2, "part": part}


def rows_of(table: pa.Table) -> list[str]:
    """Return rows as sorted texts."""
    return sorted(map(repr, zip(*(column.to_pylist() for column in table.columns), strict=True)))
