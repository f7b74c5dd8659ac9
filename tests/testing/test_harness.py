from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.state import ListStateDescriptor, StateTtlConfig, ValueStateDescriptor
from cojoin.engine.time.timers import TimeDomain
from cojoin.engine.time.watermarks import NONE
from cojoin.testing import (
    AsofJoin,
    Harness,
    HarnessInput,
    Record,
    SideRecord,
    Timer,
    Watermark,
)
from tests.testing.functions import CUSTOMERS, OUTPUT, TRADES, UNKNOWN, enrich

if TYPE_CHECKING:
    from collections.abc import Iterator


PERSON = HarnessInput("name string", key="name")


def test_in_event_time_order_rows_wait_for_the_watermark() -> None:
    with enrich() as harness:
        harness.process_element1({"customer_id": "a", "trade_id": 7, "amount": 2.5}, 1_500)
        harness.process_element2(("a", "gold"), 1_000)
        harness.process_element1(("b", 8, 1.0), 1_200)
        assert harness.take() == []
        assert [row.trade_id for row in harness.buffered(1)] == [8, 7]
        assert harness.state("a") == {}
        harness.process_watermark(1_500)
        first, second, last = harness.take()
    assert {first, second} == {Record((7, "gold"), 1_500), SideRecord("unknown", (8,), 1_200)}
    assert last == Watermark(1_500)
    assert (harness.output, harness.side_output(UNKNOWN)) == ([(7, "gold")], [(8,)])
    assert harness.side_output("unknown")[0].trade_id == 8
    assert harness.state("a") == {"tier": "gold"}
    assert harness.timers() == harness.timers("a") == [Timer("a", "event_time", 11_000)]
    assert harness.timers("b") == []
    assert harness.state_entries() == {"tier": 1}


def test_in_arrival_order_rows_come_at_once() -> None:
    harness = enrich(order="arrival")
    harness.process_element2(("a", "gold"), 1_000)
    harness.process_element1(("a", 7, 2.5), 5)
    assert harness.take() == [Record((7, "gold"), 5)]
    harness.process_watermark(11_000)
    assert harness.state("a") == {}
    assert harness.buffered(1) == []


def test_what_a_processing_time_timer_gives_has_no_time() -> None:
    class Waits(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> None:
            service = ctx.timer_service()
            service.register_processing_time_timer(service.current_processing_time() + 5)

        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
            assert ctx.time_domain() is TimeDomain.PROCESSING_TIME
            yield timestamp, None
            yield UNKNOWN, (timestamp,)

    harness = Harness(Waits(), OUTPUT, input1=TRADES, input2=CUSTOMERS, side_outputs=[UNKNOWN], order="arrival")
    harness.set_processing_time(100)
    harness.process_element1(("a", 1, 1.0), 7)
    assert harness.timers() == [Timer("a", "processing_time", 105)]
    assert harness.processing_time_wakeup() == 105
    harness.set_processing_time(104)
    assert harness.take() == []
    harness.set_processing_time(105)
    assert harness.take() == [Record((105, None)), SideRecord("unknown", (105,))]
    assert harness.processing_time_wakeup() is None


def test_the_function_is_closed() -> None:
    calls = []

    class Opens(KeyedCoProcessFunction):
        def __deepcopy__(self, memo: Any) -> Opens:
            return self

        def open(self, ctx: Any) -> None:
            calls.append("open")

        def close(self) -> None:
            calls.append("close")

    with Harness(Opens(), "text string", input1=PERSON, input2=PERSON, order="arrival", fresh_calls=False) as harness:
        harness.process_element1(("Ada",), 1)
        harness.process_element1(("Ada",), 1)
        assert calls == ["open"]
    assert calls == ["open", "close"]


def test_the_report_is_a_querys() -> None:
    harness = enrich()
    assert harness.report().batch_id == -1
    harness.process_element1(("a", 7, 1.0), 50)
    harness.process_watermark1(50)
    report = harness.report()
    assert report.is_conserved
    assert (report.watermark, report.holding_input, report.inputs[0].watermark) == (NONE, "customers", 50)
    assert (report.inputs[0].buffered, report.batch_id) == (1, 1)
    assert "trades" in report.table()


def test_states_show_what_has_not_expired_even_if_no_row_came_since() -> None:
    class Keeps(KeyedCoProcessFunction):
        def __init__(self, domain: Any) -> None:
            self.ttl = StateTtlConfig("100 ms", time_domain=domain)

        def open(self, ctx: Any) -> None:
            self.value = ctx.get_state(ValueStateDescriptor("value", "long", ttl=self.ttl))
            self.list = ctx.get_list_state(ListStateDescriptor("list", "long"))

        def process_element1(self, value: Any, ctx: Any) -> None:
            self.value.update(1)
            self.list.add(2)

    for domain in ("processing_time", "event_time"):
        options: Any = {"input1": PERSON, "input2": PERSON, "order": "arrival"}
        harness = Harness(Keeps(domain), "text string", **options)
        harness.set_processing_time(1_000)
        harness.process_watermark(1_000)
        harness.process_element1(("Ada",), 1_000)
        for time, expected in ((1_099, {"value": 1, "list": [2]}), (1_100, {"list": [2]})):
            harness.set_processing_time(time)
            harness.process_watermark(time)
            assert harness.state("Ada") == expected


def test_a_key_of_several_columns_is_a_tuple() -> None:
    two = HarnessInput("name string, town string", key=["name", "town"])

    class Counts(KeyedCoProcessFunction):
        def open(self, ctx: Any) -> None:
            self.count = ctx.get_state(ValueStateDescriptor("count", "long"))

        def process_element1(self, value: Any, ctx: Any) -> None:
            self.count.update((self.count.value() or 0) + 1)
            ctx.timer_service().register_event_time_timer(5)

    harness = Harness(Counts(), "text string", input1=two, input2=two, order="arrival", key_groups=3)
    for town in ("Rome", "Oslo", "Rome"):
        harness.process_element1(("Ada", town), 1)
    assert harness.state(("Ada", "Rome")) == {"count": 2}
    assert harness.timers(("Ada", "Oslo")) == [(("Ada", "Oslo"), "event_time", 5)]
    assert len(harness.timers()) == 2


def test_a_harness_shows_itself_and_nothing_changes() -> None:
    trades = HarnessInput("id long, trade long", key="id", name="trades")
    customers = HarnessInput("id long, tier string", key="id", name="customers")
    harness = Harness.of(AsofJoin(), input1=trades, input2=customers)
    assert repr(harness).startswith("Harness: asof_join() of 'trades' with 'customers'\n")
    assert repr(harness).endswith("before the first call; watermark none; rows out 0")
    harness.process_element1((1, 1), 1_000)
    harness.process_watermark(1_500)
    before = harness.snapshot()
    assert repr(harness).endswith("calls: 2; watermark 1970-01-01 00:00:01.500; rows out 1")
    assert "1970-01-01 00:00:01.500" in harness._repr_html_()
    assert harness.snapshot() == before
