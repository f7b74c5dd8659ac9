"""The user's contract: a function over two keyed inputs, with PyFlink's names (``pyflink.datastream``).

The callbacks of one key never overlap and see the rows and timers of that key in the declared order. A function must
keep what it remembers in states: its own attributes are copied fresh for every call of a key group, so they carry
nothing over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cojoin.rows import Row
    from cojoin.state import (
        AggregatingState,
        AggregatingStateDescriptor,
        ListState,
        ListStateDescriptor,
        MapState,
        MapStateDescriptor,
        ReducingState,
        ReducingStateDescriptor,
        ValueState,
        ValueStateDescriptor,
    )
    from cojoin.timers import TimeDomain, TimerService

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

    @abstractmethod
    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """Give the handle of a reducing state."""

    @abstractmethod
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """Give the handle of an aggregating state."""


class Context:
    """What the callbacks get: the current key, its time, and the timers.

    One object serves a whole call, so it must not be kept beyond a callback.
    """

    __slots__ = ("_domain", "_key", "_timer_service", "_timestamp")

    def __init__(self, timer_service: TimerService) -> None:
        self._timer_service = timer_service
        self._key: Any = None
        self._timestamp: int | None = 0
        self._domain: TimeDomain | None = None

    def timestamp(self) -> int | None:
        """Give the row's event time, or the timer's time, in epoch milliseconds (floored).

        None for a row of an input without event time.
        """
        return self._timestamp

    def time_domain(self) -> TimeDomain:
        """Tell which clock the timer went by; only in ``on_timer``.

        Raises:
            FunctionError: It is asked for a row.
        """
        if self._domain is None:
            msg = "ctx.time_domain() has an answer in on_timer only: a row has no time domain"
            raise FunctionError(msg)
        return self._domain

    def get_current_key(self) -> Any:
        """Give the current key: its value, or a row where the key has several columns."""
        return self._key

    def timer_service(self) -> TimerService:
        """Give the timers and the watermarks."""
        return self._timer_service

    def __getattr__(self, name: str) -> NoReturn:
        # Reached only where there is nothing of this name.
        if name.startswith("get_") and name.endswith("state"):
            msg = f"ctx.{name} is not declared here: states are asked for in open(self, ctx), and kept on self"
            raise FunctionError(msg)
        if name == "output":
            msg = "ctx.output does not exist: yield (tag, row) for a side output, as in PyFlink"
            raise FunctionError(msg)
        msg = f"a context has no {name!r}"
        raise AttributeError(msg)


class KeyedCoProcessFunction:
    """A function over two keyed inputs with state and timers. Subclass it; every callback may be left out.

    The callbacks return None or an iterable of rows (usually they are generators): tuples or dicts that fit the
    ``output_type``, or ``(OutputTag, row)`` for a side output. ``open`` and ``close`` give nothing out.

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
        """Take a timer that fires, in epoch milliseconds; ``ctx.time_domain()`` tells of which clock."""

    def close(self) -> None:
        """Let go of what ``open`` took. Called at the end of each call, after an error too."""
