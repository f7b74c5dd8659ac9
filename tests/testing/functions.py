"""Functions and inputs that the tests of the harness share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.engine.functions import KeyedCoProcessFunction, OutputTag
from cojoin.engine.state import ValueStateDescriptor
from cojoin.testing import Harness, HarnessInput

if TYPE_CHECKING:
    from collections.abc import Iterator

UNKNOWN = OutputTag("unknown", "trade_id long")
TRADES = HarnessInput("customer_id string, trade_id long, amount double", key="customer_id", name="trades")
CUSTOMERS = HarnessInput("customer_id string, tier string", key="customer_id", name="customers")
OUTPUT = "trade_id long, tier string"


class EnrichTrades(KeyedCoProcessFunction):
    """Each trade with its customer's tier; trades of nobody go beside; a customer is forgotten after 10 s."""

    def open(self, ctx: Any) -> None:
        self.tier = ctx.get_state(ValueStateDescriptor("tier", "string"))

    def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
        if self.tier.value() is None:
            yield UNKNOWN, (trade.trade_id,)
        else:
            yield trade.trade_id, self.tier.value()

    def process_element2(self, customer: Any, ctx: Any) -> None:
        self.tier.update(customer.tier)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10_000)

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        self.tier.clear()


def enrich(**options: Any) -> Harness:
    """Return a harness of ``EnrichTrades``."""
    return Harness(
        EnrichTrades(), OUTPUT, **{"input1": TRADES, "input2": CUSTOMERS, "side_outputs": [UNKNOWN], **options}
    )
