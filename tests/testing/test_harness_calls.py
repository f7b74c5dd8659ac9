"""A call runs as in Spark, appends its events to the log in order, and changes nothing if it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.keyed_process import KeyedCoProcessOperator
from cojoin.engine.state import ValueStateDescriptor
from cojoin.engine.time.watermarks import NONE
from cojoin.errors import CojoinError, FunctionError, SchemaError
from cojoin.testing import (
    Harness,
    HarnessError,
    HarnessInput,
    Watermark,
)
from tests.testing.functions import CUSTOMERS, OUTPUT, TRADES, UNKNOWN, EnrichTrades, enrich

if TYPE_CHECKING:
    from collections.abc import Iterator

PERSON = HarnessInput("name string", key="name")


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
        match=r"Fails.process_element1 raised ValueError: no amount \(.*test_harness_calls.py:\d+, in \w+\); "
        r"input 'trades'",
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


def test_lost_rows_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = enrich()
    monkeypatch.setattr("cojoin.engine.keyed_process.KeyedCoProcessOperator.held_rows", lambda self: self._held)
    admit = type(harness._run.operators[0])._admit

    def loses(self: Any, *arguments: Any) -> Any:
        admitted, rejected = admit(self, *arguments)
        return admitted.slice(0, 0), rejected

    monkeypatch.setattr(KeyedCoProcessOperator, "_admit", loses)
    message = r"input 'trades': rows were lost, or counted twice: 1 in, but 0 done \+ 0 buffered \+ 0 rejected"
    with pytest.raises(HarnessError, match=message):
        harness.process_element1(("a", 7, 1.0), 1)
    assert issubclass(HarnessError, AssertionError)
    assert issubclass(HarnessError, CojoinError)
