"""A function whose callbacks are looked at one by one, while the operator runs a batch as it always does.

After each callback it notes what was given, what came out, and the key's states and timers. Looking changes nothing:
no state is read through its handle, so no time-to-live is prolonged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.keyed_process import KeyedCoProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cojoin.engine.functions import Context
    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.keyed_process_operator import KeyedCoProcessOperator
    from cojoin.engine.keyed_state_backend import KeyedStateBackend
    from cojoin.engine.time.operator_watermark import TimePolicy

__all__ = ["Call", "WatchedProcess"]


class Call(NamedTuple):
    """One callback.

    Attributes:
        side: 0 or 1 for a row of the left or the right input; None for a timer.
        row: The row.
        timestamp: The event time of the row, or the time of the timer, in epoch milliseconds.
        domain: The timer's time domain.
        watermark: The watermark that the callback saw.
        yielded: What it yielded, not yet converted.
        state: The key's states afterwards.
        timers: The key's timers afterwards: domain and time.
    """

    side: int | None
    row: Any
    timestamp: int | None
    domain: str | None
    watermark: int
    yielded: list[Any]
    state: dict[str, Any]
    timers: list[tuple[str, int]]


@dataclass(frozen=True)
class WatchedProcess(KeyedCoProcess):
    """A process whose operators note each callback in ``calls``."""

    calls: list[Call] = field(default_factory=list, compare=False)

    @classmethod
    def of(cls, process: KeyedCoProcess) -> WatchedProcess:
        """Return the same process, watched."""
        return cls(**{each.name: getattr(process, each.name) for each in fields(KeyedCoProcess)})

    def create_operator(
        self, left: InputSpec, right: InputSpec, time: TimePolicy | None = None
    ) -> KeyedCoProcessOperator:
        """Return the operator of one key group."""
        operator = super().create_operator(left, right, time)
        # The operator names the function's class in its messages.
        watched = type(type(self.function).__name__, (_Watched,), {})
        operator.watch(lambda function: watched(function, operator.state_backend, self.calls))
        return operator


class _Watched(KeyedCoProcessFunction):
    def __init__(self, function: KeyedCoProcessFunction, backend: KeyedStateBackend, calls: list[Call]) -> None:
        self._function, self._backend, self._calls = function, backend, calls

    def open(self, ctx: Any) -> Any:
        return self._function.open(ctx)

    def close(self) -> Any:
        return self._function.close()

    def process_element1(self, value: Any, ctx: Context) -> Any:
        return self._call(self._function.process_element1, value, ctx, 0)

    def process_element2(self, value: Any, ctx: Context) -> Any:
        return self._call(self._function.process_element2, value, ctx, 1)

    def on_timer(self, timestamp: int, ctx: Context) -> Any:
        return self._call(self._function.on_timer, timestamp, ctx, None)

    def _call(self, callback: Callable[..., Iterable[Any] | None], value: Any, ctx: Context, side: int | None) -> Any:
        timestamp = value if side is None else ctx.timestamp()
        domain = ctx.time_domain().value if side is None else None
        watermark = ctx.timer_service().current_watermark()
        result = callback(value, ctx)
        if result is not None and not hasattr(result, "__iter__"):
            # The operator says what is wrong with it.
            return result
        yielded = list(result or ())
        row = None if side is None else value
        state, timers = self._backend.current_entries(), self._backend.current_timers()
        self._calls.append(Call(side, row, timestamp, domain, watermark, yielded, state, timers))
        return yielded
