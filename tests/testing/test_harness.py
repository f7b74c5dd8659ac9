from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.state import ListStateDescriptor, StateTtlConfig, ValueStateDescriptor
from cojoin.engine.time.timers import TimeDomain
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.rows import row_class
from cojoin.errors import CojoinError, FunctionError, SchemaError
from cojoin.testing import (
    Element,
    Harness,
    HarnessError,
    HarnessInput,
    Record,
    Rejected,
    SideRecord,
    StatusChange,
    Timer,
    Watermark,
)
from tests.testing.functions import CUSTOMERS, OUTPUT, TRADES, UNKNOWN, EnrichTrades, enrich

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


def test_the_log_has_the_yields_in_their_order_whatever_their_output() -> None:
    class Alternates(KeyedCoProcessFunction):
        def process_element1(self, trade: Any, ctx: Any) -> Iterator[Any]:
            yield 1, "a"
            yield UNKNOWN, (2,)
            yield 3, "b"
            ctx.timer_service().register_event_time_timer(ctx.timestamp())

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            return [(UNKNOWN, (4,)), (5, "c"), (UNKNOWN, (6,))]

    harness = Harness(Alternates(), OUTPUT, input1=TRADES, input2=CUSTOMERS, side_outputs=[UNKNOWN])
    harness.process_element1(("a", 1, 1.0), 7)
    harness.process_watermark(7)
    assert [event.value[0] for event in harness.take()[:-1]] == [1, 2, 3, 4, 5, 6]


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


def test_every_call_has_a_function_of_its_own_as_in_spark() -> None:
    class Remembers(KeyedCoProcessFunction):
        def __init__(self) -> None:
            self.seen = 0

        def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
            self.seen += 1
            yield (self.seen,)

    for fresh, expected in ((True, [1, 1]), (False, [1, 2])):
        options = {"input1": PERSON, "input2": PERSON, "order": "arrival", "fresh_calls": fresh}
        with Harness(Remembers(), "seen long", **options) as harness:
            harness.process_element1(("Ada",), 1)
            harness.process_element1(("Ada",), 1)
        assert [row.seen for row in harness.output] == expected


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


def test_a_call_that_fails_leaves_the_harness_as_it_was() -> None:
    class Fails(EnrichTrades):
        def process_element1(self, trade: Any, ctx: Any) -> Any:
            if trade.amount is None:
                raise ValueError("no amount")  # noqa: EM101, TRY003
            return super().process_element1(trade, ctx)

    harness = Harness(Fails(), OUTPUT, input1=TRADES, input2=CUSTOMERS, side_outputs=[UNKNOWN], order="arrival")
    harness.process_element2(("a", "gold"), 1)
    before = harness.snapshot()
    with pytest.raises(
        FunctionError,
        match=r"Fails.process_element1 raised ValueError: no amount \(.*test_harness.py:\d+, in \w+\); input 'trades'",
    ):
        harness.process_element1(("a", 1, None), 2)
    assert harness.snapshot() == before
    harness.process_element1(("a", 2, 1.0), 2)
    assert harness.output == [(2, "gold")]


class Counts(KeyedCoProcessFunction):
    """Fails at a row without amount, and at a timer after that."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen", "long"))

    def process_element1(self, trade: Any, ctx: Any) -> None:
        self.seen.update((self.seen.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp())
        ctx.timer_service().register_processing_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        raise ValueError(timestamp)


@pytest.mark.parametrize("key_groups", [1, 3])
def test_a_call_that_fails_leaves_watermark_clock_and_status_where_they_were(key_groups: int) -> None:
    options: Any = {"input1": TRADES, "input2": CUSTOMERS, "order": "arrival", "key_groups": key_groups}
    harness = Harness(Counts(), OUTPUT, **options)
    for key in "abc":
        harness.process_element1((key, 1, 1.0), 5)
    before = harness.snapshot()
    for call in (
        lambda: harness.process_watermark(9),
        lambda: harness.set_processing_time(9),
        harness.end_input,
        lambda: harness.restore(b"no snapshot"),
    ):
        with pytest.raises(CojoinError):
            call()
        assert harness.snapshot() == before
        assert (harness.current_watermark(), harness.status(), harness.state("a")) == (NONE, "active", {"seen": 1})
    assert harness.log == []
    harness.process_watermark(4)
    assert harness.take() == [Watermark(4)]


def test_where_the_function_lives_on_only_a_restore_follows_a_failure() -> None:
    options: Any = {"input1": TRADES, "input2": CUSTOMERS, "order": "arrival", "fresh_calls": False}
    harness = Harness(Counts(), OUTPUT, **options)
    harness.process_element1(("a", 1, 1.0), 5)
    with pytest.raises(SchemaError):
        harness.process_element1(("a", "no number", 1.0), 5)
    before = harness.snapshot()
    with pytest.raises(FunctionError, match="ValueError: 5"):
        harness.process_watermark(9)
    for call in (lambda: harness.process_watermark(10), lambda: harness.set_idle(1), harness.end_input):
        with pytest.raises(HarnessError, match="the call before failed half way"):
            call()
    harness.restore(before)
    harness.process_watermark(4)
    assert (harness.current_watermark(), harness.state("a")) == (4, {"seen": 1})


def test_the_end_fires_what_was_set_before_and_nothing_follows() -> None:
    harness = enrich()
    harness.process_element1(("a", 7, 1.0), 50)
    harness.process_element2(("a", "gold"), 20)
    harness.end_input()
    assert harness.take() == [Record((7, "gold"), 50), Watermark(END_OF_TIME), StatusChange("finished")]
    assert (harness.timers(), harness.state("a"), harness.report().drained) == ([], {}, True)
    for call in (
        harness.end_input,
        lambda: harness.process_watermark(1),
        lambda: harness.process_element1(("a", 1, 1.0), 1),
    ):
        with pytest.raises(HarnessError, match="the inputs have ended, and nothing can follow"):
            call()


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


def test_lost_rows_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = enrich()
    monkeypatch.setattr("cojoin.engine.keyed_process.KeyedCoProcessOperator.held_rows", lambda self: self._held)
    admit = type(harness._operators[0])._admit

    def loses(self: Any, side: int, rows: Any, watermark: int) -> Any:
        admitted, rejected = admit(self, side, rows, watermark)
        return admitted.slice(0, 0), rejected

    monkeypatch.setattr("cojoin.engine.keyed_process.KeyedCoProcessOperator._admit", loses)
    message = r"input 'trades': rows were lost, or counted twice: 1 in, but 0 done \+ 0 buffered \+ 0 rejected"
    with pytest.raises(HarnessError, match=message):
        harness.process_element1(("a", 7, 1.0), 1)
    assert issubclass(HarnessError, AssertionError)
    assert issubclass(HarnessError, CojoinError)


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
