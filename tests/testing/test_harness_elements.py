"""Rows come in any form, one at a time, in a batch or all at once."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.time.watermarks import END_OF_TIME
from cojoin.engine.values.rows import row_class
from cojoin.testing import (
    Element,
    Harness,
    HarnessError,
    HarnessInput,
    Record,
    Rejected,
    SideRecord,
    Watermark,
)
from tests.testing.functions import CUSTOMERS, OUTPUT, TRADES, UNKNOWN, EnrichTrades, enrich

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_row_may_be_given_in_any_form() -> None:
    harness = enrich(order="arrival")
    at = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=1_500)
    names = ("customer_id", "trade_id", "amount")
    harness.process_element1(row_class(names)(("a", 1, 1.0)), at)
    harness.process_element1(row_class((*names, "event_time"))(("a", 2, 1.0, 2)))
    harness.process_element1(["a", 3, 1.0, at])
    harness.process_element1({"customer_id": "a", "trade_id": 4, "amount": None, "event_time": 4})
    harness.process_element1(Element(("a", 5, 1.0), -1).value, -1)
    assert [event.timestamp for event in harness.take()] == [1, 2, 1, 4, -1]


def test_the_event_time_column_may_be_declared_anywhere() -> None:
    person = HarnessInput("at timestamp, name string", key="name", event_time="at")

    class Tells(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield (f"{value.name} {value.at:%S} {ctx.timestamp()}",)

    with Harness(Tells(), "text string", input1=person, input2=person, order="arrival") as harness:
        harness.process_element1(("Ada",), 7_000)
        harness.process_element1((8_000, "Bob"))
    assert [row.text for row in harness.output] == ["Ada 07 7000", "Bob 08 8000"]


def test_rejected_rows_are_told_with_their_reason() -> None:
    far = HarnessInput(TRADES.columns, key="customer_id", name="trades", max_ahead="1 second")
    harness = enrich(input1=far, processing_time=1_000)
    harness.process_element1(("a", 1, None), None)
    harness.process_element1((None, 2, 1.0), 5)
    harness.process_element1(("a", 3, 1.0), 2_001)
    harness.process_watermark(500)
    harness.process_element1(("a", 4, 1.0), 500)
    assert harness.rejected == [event for event in harness.log if isinstance(event, Rejected)]
    told = [(each.reason, each.row["trade_id"], each.timestamp, each.watermark) for each in harness.rejected]
    assert told == [
        ("null_event_time", 1, None, None),
        ("null_key", 2, 5, None),
        ("too_far_ahead", 3, 2_001, None),
        ("late", 4, 500, 500),
    ]
    assert {each.input for each in harness.rejected} == {"trades"}
    assert harness.report().emitted == {"output": 0, "rejected": 1}


def test_a_batch_has_its_rows_in_the_declared_order_and_late_is_judged_before_it() -> None:
    strategy = {"watermark": TRADES.watermark.for_monotonous_timestamps()}
    trades = HarnessInput(TRADES.columns, key="customer_id", **strategy)
    customers = HarnessInput(CUSTOMERS.columns, key="customer_id", **strategy)
    harness = enrich(input1=trades, input2=customers)
    harness.process_batch(
        [Element(("a", 1, 1.0), 20), Element(("a", 2, 1.0), 9), ("a", 3, 1.0, 15)], [Element(("a", "gold"), 10)]
    )
    harness.process_batch((), [("z", "tin", 30)])
    assert harness.take() == [
        *(SideRecord("unknown", (2,), 9), Watermark(9)),
        *(Record((3, "gold"), 15), Watermark(19)),
    ]


def test_a_static_run_is_one_batch_to_the_end_of_time() -> None:
    class TellsWatermark(EnrichTrades):
        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
            yield ctx.timer_service().current_watermark(), "timer"

    options: Any = {"input1": TRADES, "input2": CUSTOMERS, "side_outputs": [UNKNOWN]}
    for order, seen in (("event_time", 10_010), ("arrival", END_OF_TIME)):
        harness = Harness(TellsWatermark(), OUTPUT, order=order, **options)  # type: ignore[arg-type]
        harness.run_static([("a", 7, 1.0, 20)], [("a", "gold", 10)])
        told = [event for event in harness.log if isinstance(event, (Record, SideRecord))]
        first = Record((7, "gold"), 20) if order == "event_time" else SideRecord("unknown", (7,), 20)
        assert told == [first, Record((seen, "timer"), 10_010)]
        with pytest.raises(HarnessError, match="nothing can follow"):
            harness.process_watermark(1)
    used = enrich()
    used.process_watermark(1)
    with pytest.raises(HarnessError, match="got one after 1 calls"):
        used.run_static()
