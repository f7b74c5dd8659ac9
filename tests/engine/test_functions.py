from __future__ import annotations

import inspect
from abc import ABC
from pathlib import Path
from typing import Any

import pytest

from cojoin.engine.functions import Context, KeyedCoProcessFunction, RuntimeContext, check_callbacks
from cojoin.engine.time.timers import Timers, TimerService
from cojoin.engine.values.keys import KeyContext
from cojoin.errors import ConfigurationError, FunctionError
from cojoin.testing import Harness, HarnessInput

PERSON = HarnessInput("name string", key="name")


def test_the_names_are_pyflinks() -> None:
    names = [name for name, _ in inspect.getmembers(KeyedCoProcessFunction, inspect.isfunction)]
    assert names == ["close", "on_timer", "open", "process_element1", "process_element2"]


def test_a_context_gives_the_key_its_time_and_the_timers() -> None:
    service = TimerService(Timers(KeyContext(), "F"), Timers(KeyContext(), "F"))
    context = Context(service)
    context._key, context._timestamp = "a", 5
    assert (context.get_current_key(), context.timestamp(), context.timer_service()) == ("a", 5, service)


def test_nothing_can_be_kept_on_a_context() -> None:
    with pytest.raises(AttributeError):
        Context(TimerService(Timers(KeyContext(), "F"), Timers(KeyContext(), "F"))).total = 5  # type: ignore[attr-defined]


def test_a_runtime_context_is_made_by_the_engine_alone() -> None:
    assert issubclass(RuntimeContext, ABC)
    with pytest.raises(TypeError, match="abstract"):
        RuntimeContext()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("current_watermark", "a context has no 'current_watermark': it is ctx.timer_service().current_watermark()"),
        ("currentWatermark", "it is ctx.timer_service().current_watermark()"),
        ("register_event_time_timer", "it is ctx.timer_service().register_event_time_timer()"),
        ("timerService", "a context has no 'timerService'; did you mean 'timer_service'"),
        ("current_key", "did you mean 'get_current_key'"),
    ],
)
def test_a_context_says_where_a_name_is(name: str, said: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(Context(TimerService(Timers(KeyContext(), "F"), Timers(KeyContext(), "F"))), name)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["get_state", "getState", "getMapState"])
def test_states_are_declared_in_open(name: str) -> None:
    context = Context(TimerService(Timers(KeyContext(), "F"), Timers(KeyContext(), "F")))
    with pytest.raises(FunctionError, match=rf"ctx.{name} can't be called in a callback: declare states in open"):
        getattr(context, name)


def test_the_timer_service_says_which_name_is_meant() -> None:
    service = TimerService(Timers(KeyContext(), "F"), Timers(KeyContext(), "F"))
    for name in ("currentWatermark", "current_watermrk"):
        with pytest.raises(
            AttributeError, match=f"the timer service has no '{name}'; did you mean 'current_watermark'"
        ):
            getattr(service, name)


@pytest.mark.parametrize("name", ["timer_service", "timerService", "timestamp", "get_current_key", "current_watermark"])
def test_in_open_nothing_is_current(name: str) -> None:
    class Asks(KeyedCoProcessFunction):
        def open(self, ctx: Any) -> None:
            getattr(ctx, name)()

    harness = Harness(Asks(), "x int", input1=PERSON, input2=PERSON, order="arrival")
    with pytest.raises(FunctionError, match=rf"Asks.open raised AttributeError: ctx.{name} can't be used in open"):
        harness.process_element1(("a",), 1)


def test_in_open_only_states_are_given() -> None:
    class Asks(KeyedCoProcessFunction):
        def open(self, ctx: Any) -> None:
            ctx.get_value_state()

    harness = Harness(Asks(), "x int", input1=PERSON, input2=PERSON, order="arrival")
    with pytest.raises(
        FunctionError, match="the context of open has no 'get_value_state'; did you mean 'get_map_state'"
    ):
        harness.process_element1(("a",), 1)


def ignored(self: Any, value: Any, ctx: Any) -> None:
    """Be a method that takes two values."""


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("processElement1", "process_element1"),
        ("proces_element2", "process_element2"),
        ("process_element", "process_element1 or process_element2"),
        ("onTimer", "on_timer"),
        ("on_timers", "on_timer"),
    ],
)
def test_a_method_that_is_nearly_a_callback_would_never_be_called(name: str, meant: str) -> None:
    function = type("Enrich", (KeyedCoProcessFunction,), {name: ignored})()
    with pytest.raises(ConfigurationError, match=f"^Enrich.{name} would never be called; did you mean {meant}"):
        check_callbacks(function)


def test_a_method_of_ones_own_may_have_any_other_name() -> None:
    def one_value(self: Any, value: Any) -> None:
        """Be a method that no callback can be."""

    for members in (
        {"process_element": ignored, "process_element1": ignored},
        {"process_elements": ignored, "process_element1": ignored, "process_element2": ignored},
        {"on_time": one_value},
        {"on_event": ignored, "process": ignored, "opened": ignored, "process_element3": 3},
    ):
        check_callbacks(type("Enrich", (KeyedCoProcessFunction,), members)())
    check_callbacks(KeyedCoProcessFunction())


def test_a_function_that_holds_an_open_file_can_not_be_copied() -> None:
    class Reads(KeyedCoProcessFunction):
        def __init__(self) -> None:
            self.file = Path(__file__).open()  # noqa: SIM115

    reads = Reads()
    with (
        reads.file,
        pytest.raises(FunctionError, match=r"Reads can't be copied \(TypeError: .*open files and connections"),
    ):
        Harness(reads, "x int", input1=PERSON, input2=PERSON)
