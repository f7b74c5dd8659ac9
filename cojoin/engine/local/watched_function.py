"""A user's function whose callbacks are observed one by one, while the operator runs as it always does.

After each callback that returned rows or nothing, an observer gets what the callback got and what it yielded. A result
that is not iterable is passed on as it is, since the operator raises the error about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from cojoin.engine.functions import KeyedCoProcessFunction

if TYPE_CHECKING:
    from collections.abc import Callable

    from cojoin.engine.functions import Context
    from cojoin.engine.keyed_process_operator import KeyedCoProcessOperator

__all__ = ["Callback", "Observer", "watch"]


class Callback(NamedTuple):
    """One callback.

    Attributes:
        side: 0 or 1 for a row of the left or the right input; None for a timer.
        value: The row, or the timer's timestamp in epoch milliseconds.
        yielded: What it yielded, not yet converted.
    """

    side: int | None
    value: Any
    yielded: list[Any]


Observer: TypeAlias = "Callable[[Callback, Context], None]"
"""A function that is called after each callback, with the callback's context."""


def watch(operator: KeyedCoProcessOperator, observer: Observer) -> None:
    """Have an operator's function observed; call this before its first batch."""

    def watched(function: KeyedCoProcessFunction) -> KeyedCoProcessFunction:
        # Messages name the function's class.
        return type(type(function).__name__, (_Watched,), {})(function, observer)  # type: ignore[no-any-return]

    operator.watch(watched)


class _Watched(KeyedCoProcessFunction):
    def __init__(self, function: KeyedCoProcessFunction, observer: Observer) -> None:
        self._function, self._observer = function, observer

    def open(self, ctx: Any) -> Any:
        return self._function.open(ctx)

    def close(self) -> Any:
        return self._function.close()

    def process_element1(self, value: Any, ctx: Context) -> Any:
        return self._observed(0, value, self._function.process_element1(value, ctx), ctx)

    def process_element2(self, value: Any, ctx: Context) -> Any:
        return self._observed(1, value, self._function.process_element2(value, ctx), ctx)

    def on_timer(self, timestamp: int, ctx: Context) -> Any:
        return self._observed(None, timestamp, self._function.on_timer(timestamp, ctx), ctx)

    def _observed(self, side: int | None, value: Any, result: Any, ctx: Context) -> Any:
        if result is not None and not hasattr(result, "__iter__"):
            return result
        yielded = [] if result is None else list(result)
        self._observer(Callback(side, value, yielded), ctx)
        return yielded
