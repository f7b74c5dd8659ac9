from __future__ import annotations

import inspect
from abc import ABC

import pytest

from cojoin.functions import Context, KeyedCoProcessFunction, RuntimeContext
from cojoin.state import Cursor
from cojoin.timers import Timers, TimerService


def test_the_names_are_pyflinks() -> None:
    names = [name for name, _ in inspect.getmembers(KeyedCoProcessFunction, inspect.isfunction)]
    assert names == ["close", "on_timer", "open", "process_element1", "process_element2"]


def test_a_context_gives_the_key_its_time_and_the_timers() -> None:
    service = TimerService(Timers(Cursor(), "F"), Timers(Cursor(), "F"))
    context = Context(service)
    context._key, context._timestamp = "a", 5
    assert (context.get_current_key(), context.timestamp(), context.timer_service()) == ("a", 5, service)


def test_nothing_can_be_kept_on_a_context() -> None:
    with pytest.raises(AttributeError):
        Context(TimerService(Timers(Cursor(), "F"), Timers(Cursor(), "F"))).total = 5  # type: ignore[attr-defined]


def test_a_runtime_context_is_made_by_the_engine_alone() -> None:
    assert issubclass(RuntimeContext, ABC)
    with pytest.raises(TypeError, match="abstract"):
        RuntimeContext()  # type: ignore[abstract]
