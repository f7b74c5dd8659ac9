"""Callbacks come in order, and an error names the user's own line."""

from __future__ import annotations

import json
import sysconfig
import traceback
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cojoin
from cojoin.engine import callbacks
from cojoin.engine.callbacks import defined_at, is_user_file, user_line, user_traceback
from cojoin.engine.functions import Context, KeyedCoProcessFunction, OutputTag
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.state import StateTtlConfig, ValueStateDescriptor
from cojoin.engine.time.operator_watermark import TimePolicy
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.errors import FunctionError
from cojoin.testing import Harness, HarnessInput
from tests.engine.test_keyed_process import customer, trade
from tests.programs import OUTPUT, told
from tests.streams import Rows, Streams, map_side, specs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.engine.keyed_process import KeyedCoProcessOperator

HERE = __file__
LEFT = HarnessInput("k string, amount double", key="k", name="trades")
RIGHT = HarnessInput("k string", key="k", name="customers")


def test_a_folder_beside_the_package_is_the_users() -> None:
    package = Path(cojoin.__file__).parent
    assert is_user_file(str(package.with_name("cojoin_jobs") / "job.py"))
    assert not is_user_file(str(package / "errors.py"))
    assert is_user_file(f"{sysconfig.get_path('stdlib')}_of_mine/job.py")
    assert not is_user_file(json.__file__)


class Enrich(KeyedCoProcessFunction):
    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def process_element1(self, trade: Any, ctx: Context) -> Any:
        if self.wrong == "column":
            yield trade.amuont, 1
        elif self.wrong == "library":
            yield json.loads("{"), 1
        elif self.wrong == "type":
            yield "much", 1
        elif self.wrong == "width":
            yield (1.0,)
        else:
            yield self.helper(), 1

    def helper(self) -> Any:
        return 1 / 0


def line_of(text: str) -> int:
    with open(HERE, encoding="utf-8") as lines:  # noqa: PTH123 - of itself
        return next(number for number, line in enumerate(lines, start=1) if line.strip() == text)


def raised(wrong: str) -> FunctionError:
    harness = Harness(Enrich(wrong), "amount double, n int", input1=LEFT, input2=RIGHT, order="arrival")
    with pytest.raises(FunctionError) as caught:
        harness.process_element1(("a", 1.0), 1)
    return caught.value


@pytest.mark.parametrize(
    ("wrong", "said", "line"),
    [
        ("column", "raised AttributeError: a row has no field 'amuont'", "yield trade.amuont, 1"),
        ("library", "raised JSONDecodeError: ", 'yield json.loads("{"), 1'),
        ("helper", "raised ZeroDivisionError: division by zero", "return 1 / 0"),
    ],
)
def test_what_a_callback_raises_is_told_with_its_line(wrong: str, said: str, line: str) -> None:
    error = raised(wrong)
    assert str(error).startswith(f"Enrich.process_element1 {said}")
    assert f" ({HERE}:{line_of(line)}, in " in str(error)
    shown = traceback.extract_tb(user_traceback(error))
    assert all(is_user_file(frame.filename) for frame in shown)
    assert shown[-1].lineno == line_of(line)


@pytest.mark.parametrize("wrong", ["type", "width"])
def test_what_a_callback_yields_amiss_is_told_with_where_the_callback_is(wrong: str) -> None:
    line = Enrich.process_element1.__code__.co_firstlineno
    assert str(raised(wrong)).endswith(f"; process_element1 is written in {HERE}:{line}")


def test_where_nothing_is_the_users_nothing_is_named() -> None:
    assert user_line(ValueError("never raised")) == ""
    assert user_traceback(ValueError("never raised")) is None
    assert defined_at(object()) == ""


BESIDE = OutputTag("beside", OUTPUT)


def operator(function: KeyedCoProcessFunction, order: Any = "arrival", **settings: Any) -> KeyedCoProcessOperator:
    return KeyedCoProcess(function, OUTPUT, order, **settings).create_operator(*specs())


def feed(
    runs: KeyedCoProcessOperator,
    left: Rows = (),  # type: ignore[assignment]
    right: Rows = (),  # type: ignore[assignment]
    *,
    now: int = 0,
    ends: bool = False,
) -> list[Any]:
    """Run a batch at a processing time; give what came out as (output, what, at)."""
    (batch,) = map_side(Streams(runs.inputs, ([], [])), (list(left), list(right)), 1, now)
    emissions = list(runs.process(replace(batch, end_of_input=ends, processing_time=now)))
    return [
        (each.kind, *tuple(row.values())[1:3])
        for each in emissions
        if each.kind != "rejected"
        for row in each.table.to_pylist()
    ]


class Both(KeyedCoProcessFunction):
    """Sets a timer in each domain; the amount of a trade is how far ahead."""

    def process_element1(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_event_time_timer(ctx.timestamp() + int(value.amount))
        timers.register_processing_time_timer(timers.current_processing_time() + int(value.amount))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield told(ctx, ctx.time_domain().value)


def test_event_time_timers_fire_before_processing_time_timers_of_the_same_batch() -> None:
    left, right = [trade(10, "b", 5), trade(10, "a", 3)], [customer(1)]
    # In event-time order the rows are seen once the watermark has passed them.
    for order, expected in (("arrival", [103, 105]), ("event_time", [203, 205])):
        runs = operator(Both(), order)
        feed(runs, left, right, now=100)
        found = feed(runs, [trade(40, amount=5_000)], [customer(50)], now=200) + feed(runs, now=400)
        by_event, by_clock = (
            [at for _, what, at in found if what == domain] for domain in ("event_time", "processing_time")
        )
        assert (sorted(by_event), by_clock) == ([13, 15], expected)
        assert [what for _, what, _ in found] == ["event_time"] * 2 + ["processing_time"] * 2


def test_in_arrival_order_timers_of_all_keys_fire_by_time() -> None:
    runs = operator(Both())
    assert feed(runs, [trade(10, "b", 5), trade(10, "a", 9), trade(10, "c", 1)], [customer(50)], now=1) == []
    assert [at for _, what, at in feed(runs, [trade(30, "b", 99)], [], now=2) if what == "event_time"] == [11, 15, 19]


def test_a_processing_time_timer_waits_for_the_clock_and_survives_a_restart() -> None:
    runs, restored = operator(Both()), operator(Both())
    feed(runs, [trade(10, amount=5)], now=100)
    assert feed(runs, now=104) == []
    assert runs.state_backend.earliest_timers() == (15, 105)
    restored.restore(runs.snapshot())
    assert feed(restored, now=105) == [("output", "processing_time", 105)]
    assert restored.state_backend.earliest_timers() == (15, None)
    late = operator(Both())
    late.restore(runs.snapshot())
    assert feed(late, now=999) == [("output", "processing_time", 105)], "an overdue one fires at once"


def test_the_end_of_input_fires_what_waits_in_both_domains() -> None:
    runs = operator(Both())
    feed(runs, [trade(10, amount=5_000)], now=100)
    assert feed(runs, now=101, ends=True) == [("output", "event_time", 5_010), ("output", "processing_time", 5_100)]


class Again(KeyedCoProcessFunction):
    """Sets its next timer in the other domain whenever one fires."""

    def process_element1(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_processing_time_timer(5)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield told(ctx, ctx.time_domain().value)
        timers = ctx.timer_service()
        if ctx.time_domain().value == "event_time":
            timers.register_processing_time_timer(timers.current_processing_time() + 7)
        else:
            timers.register_event_time_timer(timestamp + 1_000)


def test_a_drain_ends_where_timers_set_each_other_in_both_domains() -> None:
    runs = operator(Again())
    feed(runs, [trade(10)], now=1)
    assert feed(runs, now=2, ends=True) == [("output", "processing_time", 5)]
    assert runs.details() == {"timers": 0, "timers_not_fired": 1}


@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_in_a_drain_a_timer_of_the_clock_may_set_one_of_event_time(order: Any) -> None:
    class Back(Both):
        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
            yield told(ctx, ctx.time_domain().value)
            if ctx.time_domain().value == "processing_time":
                ctx.timer_service().register_event_time_timer(30)

    runs = operator(Back(), order)
    feed(runs, [trade(10, amount=5), trade(40, "b", amount=5)], [customer(41)], now=1)
    assert feed(runs, now=2, ends=True)[-1] == ("output", "event_time", 30)
    assert runs.details() == {"timers": 0, "timers_not_fired": 0}


def test_in_a_drain_timers_of_both_domains_that_set_each_other_for_ever_are_stopped() -> None:
    class PingPong(Both):
        def on_timer(self, timestamp: int, ctx: Any) -> None:
            timers = ctx.timer_service()
            if ctx.time_domain().value == "event_time":
                timers.register_processing_time_timer(1)
            else:
                timers.register_event_time_timer(1)

    runs = operator(PingPong())
    feed(runs, [trade(10)], now=1)
    with pytest.raises(
        FunctionError, match="PingPong: in a drain, timers of event time and of processing time keep re-registering"
    ):
        feed(runs, now=2, ends=True)


def test_what_lives_by_event_time_outlives_a_timer_of_the_clock() -> None:
    """A state of one key, a timer of another: cleaning up after the batch goes by the watermark."""

    class Keeps(KeyedCoProcessFunction):
        def open(self, ctx: Any) -> None:
            ttl = StateTtlConfig("10 ms", time_domain="event_time")
            self.kept = ctx.get_state(ValueStateDescriptor("kept", "long", ttl=ttl))

        def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield told(ctx, str(self.kept.value()))
            self.kept.update(7)
            if value.amount:
                ctx.timer_service().register_processing_time_timer(500_000)

    for order in ("arrival", "event_time"):
        runs = operator(Keeps(), order)
        feed(runs, [trade(10, "b", 1), trade(12, "a", 0), trade(15, "c", 0)], [customer(50)], now=1)
        feed(runs, now=500_000)
        again = operator(Keeps(), order)
        again.restore(runs.snapshot())
        assert ("output", "7", 16) in feed(again, [trade(16, "a", 0)], [], now=500_001, ends=True)


def test_a_timer_below_the_clock_that_sets_itself_for_ever_is_stopped() -> None:
    class Loop(Again):
        def on_timer(self, timestamp: int, ctx: Any) -> None:
            ctx.timer_service().register_processing_time_timer(timestamp)

    runs = operator(Loop())
    with pytest.raises(
        FunctionError, match="Loop: on_timer set 10,000 timers at or below the one that fires within one sweep"
    ):
        feed(runs, [trade(10)], now=9)


def test_a_function_must_say_that_it_goes_by_the_clock_where_that_can_not_be_seen() -> None:
    def register(ctx: Any) -> None:
        ctx.timer_service().register_processing_time_timer(5)

    class Hidden(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> None:
            register(ctx)

    with pytest.raises(FunctionError, match=r"declare them with process\(\.\.\., processing_time_timers=True\)"):
        feed(operator(Hidden()), [trade(10)])
    runs = operator(Hidden(), processing_time_timers=True)
    feed(runs, [trade(10)])
    assert runs.details()["timers"] == 1
    assert KeyedCoProcess(Both(), OUTPUT).sets_processing_time_timers


def test_a_huge_sweep_leaves_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "_PIECE_ROWS", 500)

    class Many(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> None:
            for ahead in range(1_200):
                ctx.timer_service().register_event_time_timer(ctx.timestamp() + ahead)

        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
            yield told(ctx, "timer")

    for order in ("arrival", "event_time"):
        runs = operator(Many(), order)
        (batch,) = map_side(Streams(runs.inputs, ([], [])), ([trade(10)], []), 1)
        sizes = [each.table.num_rows for each in runs.process(replace(batch, end_of_input=True))]
        assert sizes == [500, 500, 200]


class Inputs(Both):
    """Tells both inputs' own watermarks, and the operator's; and sets a timer in each domain."""

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        super().process_element1(value, ctx)
        yield self.tell(ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield self.tell(ctx)

    def tell(self, ctx: Any) -> Any:
        service = ctx.timer_service()
        return told(ctx, f"{service.current_watermark1()} {service.current_watermark2()} {service.current_watermark()}")


def test_in_arrival_order_the_inputs_own_watermarks_move_between_rows_and_timers() -> None:
    runs = operator(Inputs())
    assert feed(runs, [trade(10, amount=3)], [customer(50)], now=1) == [("output", f"{NONE} {NONE} {NONE}", 10)]
    assert feed(runs, [trade(90, amount=0)], [customer(95)], now=4) == [
        ("output", "9 49 9", 90),
        ("output", "89 94 89", 13),
        ("output", "89 94 89", 4),
    ]
    assert feed(runs, now=4, ends=True) == [("output", f"{END_OF_TIME} {END_OF_TIME} {END_OF_TIME}", 90)]


@pytest.mark.parametrize("cuts", [[], [1], [2], [1, 2, 3]])
def test_in_event_time_order_the_inputs_own_watermarks_do_not_depend_on_the_cuts(cuts: list[int]) -> None:
    """The second input is read much faster than the first, or in step, or not."""
    left, right = [trade(10, amount=2), trade(11, amount=7), trade(30), trade(40)], [customer(50), customer(70)]
    runs, found = operator(Inputs(), "event_time"), []
    for first, last in pairwise([0, *cuts, 4]):
        found += feed(runs, left[first:last], right if first == 0 else [])
    seen = [(what, at) for _, what, at in found if at >= 10]
    expected = [(9, 10), (10, 11), (12, 12), (18, 18), (29, 30), (31, 31)]
    assert seen == [(f"{watermark} {watermark} {watermark}", at) for watermark, at in expected]


def test_time_is_asked_in_timers_only() -> None:
    class Asks(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> None:
            ctx.time_domain()

    with pytest.raises(
        FunctionError, match=r"process_element1 raised FunctionError: ctx.time_domain\(\) is only valid"
    ):
        feed(operator(Asks()), [trade(10)])


class Splits(KeyedCoProcessFunction):
    """Gives each trade to both outputs."""

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield told(ctx, "main")
        yield BESIDE, told(ctx, "beside")


def test_a_side_output_has_its_own_rows() -> None:
    runs = operator(Splits(), side_outputs=(BESIDE,))
    assert sorted(feed(runs, [trade(10), trade(11)])) == [
        ("beside", "beside", 10),
        ("beside", "beside", 11),
        ("output", "main", 10),
        ("output", "main", 11),
    ]
    assert runs.report()["rows_out"] == 2


def test_a_tag_that_was_not_declared_is_named() -> None:
    with pytest.raises(
        FunctionError, match=r"Splits.process_element1: yielded to the side output 'beside', which was not declared"
    ):
        feed(operator(Splits()), [trade(10)])
    other = OutputTag("besides", OUTPUT)
    with pytest.raises(FunctionError, match=r"not declared; did you mean 'besides'"):
        feed(operator(Splits(), side_outputs=(other,)), [trade(10)])


def test_a_side_row_that_does_not_fit_is_named_with_its_output() -> None:
    class Misfit(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield BESIDE, ("a", 5, 5, 5, "x")

    said = r"Misfit.process_element1, side output 'beside': output field 'what': expected string, got 5 \(int\)"
    with pytest.raises(FunctionError, match=said):
        feed(operator(Misfit(), side_outputs=(BESIDE,)), [trade(10)])


@pytest.mark.parametrize("callback", ["open", "close"])
def test_open_and_close_give_nothing_out(callback: str) -> None:
    def yields(self: Any, *ctx: Any) -> Iterator[Any]:
        yield ("a",)

    function = type("Yields", (KeyedCoProcessFunction,), {callback: yields})()
    runs = operator(function)
    with pytest.raises(FunctionError, match=rf"Yields.{callback} yields or returns rows \(a generator\)"):  # noqa: PT012
        feed(runs, [trade(10)])
        runs.close()


def test_a_state_is_asked_for_in_open_only() -> None:
    class Undeclared(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> None:
            ctx.get_state(ValueStateDescriptor("late", "long"))

    said = r"Undeclared.process_element1 raised FunctionError: ctx.get_state can't be called in a callback: declare"
    with pytest.raises(FunctionError, match=said):
        feed(operator(Undeclared()), [trade(10)])


def test_rows_without_time_are_seen_without_one() -> None:
    class Tells(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield told(ctx, "trade")

    left, right = specs()
    runs = KeyedCoProcess(Tells(), OUTPUT, "arrival").create_operator(
        replace(left, event_time=None), right, TimePolicy()
    )
    (batch,) = map_side(Streams((left, right), ([], [])), ([trade(10)], []), 1)
    (emission,) = runs.process(batch)
    assert emission.table.column("at").to_pylist() == [None]


@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_a_processing_time_timer_is_no_moment_of_event_time(order: Any) -> None:
    """What a timer of the clock reads and writes lives by the watermark, where it goes by event time."""

    class Keeps(KeyedCoProcessFunction):
        def open(self, ctx: Any) -> None:
            ttl = StateTtlConfig("100 ms", time_domain="event_time")
            self.kept = ctx.get_state(ValueStateDescriptor("kept", "long", ttl=ttl))

        def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield told(ctx, str(self.kept.value()))
            if value.amount > 0:
                self.kept.update(int(value.amount))
                ctx.timer_service().register_processing_time_timer(1_000_000)

        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
            yield told(ctx, f"timer {self.kept.value()}")
            self.kept.update(7)

    runs = operator(Keeps(), order)
    feed(runs, [trade(10, amount=1), trade(25, amount=-1)], [customer(21)], now=1)
    found = [what for _, what, _ in feed(runs, now=1_000_000)]
    assert found == ["timer 1"]
    assert ("output", "7", 50) in feed(runs, [trade(50, amount=-1)], [customer(500)], now=1_000_001, ends=True)
    runs = operator(Keeps(), order)
    feed(runs, [trade(10, amount=1), trade(25, amount=-1)], [customer(21)], now=1_000_000)
    # In arrival order expiry is judged by the watermark, which still stands at 20.
    seen = "7" if order == "arrival" else "None"
    assert ("output", seen, 500_000) in feed(runs, [trade(500_000, amount=-1)], [], now=1_000_001, ends=True)


def test_a_side_output_declared_with_other_columns_is_told_with_both() -> None:
    class Other(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield OutputTag("beside", "a int, b int"), (1, 2)

    runs = KeyedCoProcess(Other(), OUTPUT, "arrival", (OutputTag("beside", "a int"),)).create_operator(*specs())
    said = '\'beside\' with the columns "a int, b int", but it was declared with "a int"; make one OutputTag'
    with pytest.raises(FunctionError, match=said):
        feed(runs, [trade(10)])


def test_in_event_time_order_a_timer_that_the_clock_set_for_the_past_turns_no_time_back() -> None:
    """Nor does a restart matter to what lives by event time: what has expired stays so."""

    class Past(KeyedCoProcessFunction):
        def open(self, ctx: Any) -> None:
            ttl = StateTtlConfig("10 ms", time_domain="event_time")
            self.kept = ctx.get_state(ValueStateDescriptor("kept", "long", ttl=ttl))

        def process_element1(self, value: Any, ctx: Any) -> None:
            self.kept.update(7)
            ctx.timer_service().register_processing_time_timer(5)

        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
            if ctx.time_domain().value == "processing_time":
                ctx.timer_service().register_event_time_timer(3)
            else:
                yield told(ctx, str(self.kept.value()))
                yield told(ctx, str(ctx.timer_service().current_watermark()))

    for restarts in (False, True):
        runs = operator(Past(), "event_time")
        feed(runs, [trade(2)], [customer(3)], now=1)
        feed(runs, [trade(30, "b")], [customer(30)], now=9)
        if restarts:
            saved, runs = runs.snapshot(), operator(Past(), "event_time")
            runs.restore(saved)
        assert feed(runs, [trade(40, "b")], [customer(40)], now=9) == [("output", "None", 3), ("output", "29", 3)]
