"""The user's contract: a function over two keyed inputs, with PyFlink's names (``pyflink.datastream``).

The callbacks of one key never overlap and see the rows and timers of that key in the declared order. A function must
keep what it remembers in states: its own attributes are copied fresh for every call of a key group, so they carry
nothing over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cojoin.rows import Row
    from cojoin.state import (
        ListState,
        ListStateDescriptor,
        MapState,
        MapStateDescriptor,
        ValueState,
        ValueStateDescriptor,
    )
    from cojoin.timers import TimerService

__all__ = ["Context", "KeyedCoProcessFunction", "Order", "RuntimeContext"]

Order: TypeAlias = Literal["event_time", "arrival"]
"""In which order a function sees its rows.

- *event_time*: rows wait until the watermark passes them; rows and timers come in one sequence of time. Deterministic;
  late rows are rejected.
- *arrival*: Flink's. A micro-batch's rows come at once, late ones too; then the watermark moves and timers fire.
"""


class RuntimeContext(ABC):
    """What ``open`` gets: the way to the keyed states."""

    @abstractmethod
    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """Give the handle of a value state."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """Give the handle of a list state."""

    @abstractmethod
    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """Give the handle of a map state."""


class Context:
    """What the callbacks get: the current key, its time, and the timers.

    One object serves a whole call, so it must not be kept beyond a callback.
    """

    __slots__ = ("_key", "_timer_service", "_timestamp")

    def __init__(self, timer_service: TimerService) -> None:
        self._timer_service = timer_service
        self._key: Any = None
        self._timestamp = 0

    def timestamp(self) -> int:
        """Give the row's event time, or the timer's time, in epoch milliseconds (floored)."""
        return self._timestamp

    def get_current_key(self) -> Any:
        """Give the current key: its value, or a row where the key has several columns."""
        return self._key

    def timer_service(self) -> TimerService:
        """Give the timers and the watermark."""
        return self._timer_service


class KeyedCoProcessFunction:
    """A function over two keyed inputs with state and timers. Subclass it; every callback may be left out.

    The callbacks return None or an iterable of rows (usually they are generators): tuples or dicts that fit the
    ``output_type``.

    >>> class Latest(KeyedCoProcessFunction):
    ...     def open(self, ctx):
    ...         self.customer = ctx.get_state(ValueStateDescriptor("customer", "tier string"))
    ...     def process_element1(self, trade, ctx):
    ...         yield trade.trade_id, self.customer.value()
    ...     def process_element2(self, customer, ctx):
    ...         self.customer.update({"tier": customer.tier})
    """

    def open(self, ctx: RuntimeContext) -> None:
        """Get the states. Called once for each call of a key group, before its first element."""

    def process_element1(self, value: Row, ctx: Context) -> Iterable[Any] | None:
        """Take a row of the first (left) input."""

    def process_element2(self, value: Row, ctx: Context) -> Iterable[Any] | None:
        """Take a row of the second (right) input."""

    def on_timer(self, timestamp: int, ctx: Context) -> Iterable[Any] | None:
        """Take a timer that fires, in epoch milliseconds."""

    def close(self) -> None:
        """Let go of what ``open`` took. Called at the end of each call, after an error too."""
