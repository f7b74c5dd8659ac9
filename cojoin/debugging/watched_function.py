"""A function whose callbacks are noted one by one: what each got, what it yielded, and the key's states and timers.

Noting changes nothing: no state is read through its handle, so no time-to-live is prolonged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.local.watched_function import watch

if TYPE_CHECKING:
    from cojoin.engine.functions import Context
    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.keyed_process_operator import KeyedCoProcessOperator
    from cojoin.engine.local.watched_function import Callback
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
        backend = operator.state_backend

        def note(callback: Callback, ctx: Context) -> None:
            side, value, yielded = callback
            self.calls.append(
                Call(
                    side,
                    None if side is None else value,
                    value if side is None else ctx.timestamp(),
                    ctx.time_domain().value if side is None else None,
                    ctx.timer_service().current_watermark(),
                    yielded,
                    backend.current_entries(),
                    backend.current_timers(),
                )
            )

        watch(operator, note)
        return operator
