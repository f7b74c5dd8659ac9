"""Runs a ``KeyedCoProcessFunction`` for one key group: Arrow in, Python rows for the function, Arrow out.

Keeps: each declared state and the timers, as Arrow tables with the key's columns; rows that wait (``operator``). Only
the keys that a batch touches, by a due row or a due timer, are decoded. Emits: what the callbacks yield, key by key, in
pieces. Order ``"event_time"``: a key's rows and timers in one sequence of time, rows of a millisecond before its
timers, whatever the batches were; a row of time t sees the watermark t - 1, a timer t sees t. Order ``"arrival"``: the
batch's rows at once, seeing the watermark before the batch, then the due timers, seeing the one after. Costs: some
microseconds of Python a row or timer.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pyarrow as pa

from cojoin.encoding import encode_rows
from cojoin.errors import CojoinError, ConfigurationError, FunctionError, did_you_mean
from cojoin.functions import Context, KeyedCoProcessFunction, Order
from cojoin.inputs import event_micros, event_millis
from cojoin.operator import Operator, Sides
from cojoin.ordering import OrderedPart, arrival_order, total_order
from cojoin.rows import decode_rows, describe_row
from cojoin.store import KeyedStore
from cojoin.watermarks import NONE, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from cojoin.inputs import InputSpec

__all__ = ["KeyedCoProcess", "KeyedCoProcessOperator"]

_PIECE_ROWS = 50_000


@dataclass(frozen=True)
class KeyedCoProcess:
    """The configuration of a function's run.

    Attributes:
        function: The user's function; every call of a key group gets a copy of its own.
        output: The columns of what it yields.
        order: In which order it sees its rows.

    Raises:
        ConfigurationError: The function is no instance of ``KeyedCoProcessFunction``, or the order is unknown.
    """

    function: KeyedCoProcessFunction
    output: pa.Schema
    order: Order = "event_time"

    def __post_init__(self) -> None:
        if not isinstance(self.function, KeyedCoProcessFunction):
            hint = "; make an instance of it" if isinstance(self.function, type) else ""
            msg = f"function: expected an instance of a KeyedCoProcessFunction, got {self.function!r}{hint}"
            raise ConfigurationError(msg)
        if self.order not in get_args(Order):
            near = did_you_mean(str(self.order), get_args(Order))
            msg = f"order: expected 'event_time' or 'arrival', got {self.order!r}{near}"
            raise ConfigurationError(msg)

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        """Give the declared columns of the result."""
        del left, right
        return self.output

    def create_operator(self, left: InputSpec, right: InputSpec) -> KeyedCoProcessOperator:
        """Make the operator of one key group."""
        return KeyedCoProcessOperator(self, left, right)

    def describe(self) -> dict[str, Any]:
        """Give what makes two functions' runs the same query, as JSON values."""
        return {"operator": "process", "function": type(self.function).__qualname__, "order": self.order}


class KeyedCoProcessOperator(Operator):
    """Runs a function for one key group."""

    def __init__(self, process: KeyedCoProcess, left: InputSpec, right: InputSpec) -> None:
        by_time = process.order == "event_time"
        policy: Any = "reject" if by_time else "apply"
        super().__init__((left, right), (policy, policy), holds_rows=by_time)
        self._by_time = by_time
        self._output = process.output
        self._function = copy.deepcopy(process.function)
        self._name = type(process.function).__name__
        key_schema = pa.schema([left.schema.field(name) for name in left.key])
        self._store = KeyedStore(key_schema, self._name)
        self._yielded: list[Any] = []
        self._opened = False

    def advance(self, due: Sides, before: int, after: int, last_event: int | None) -> Iterator[pa.Table]:
        """Call the function for the due rows and timers of every touched key."""
        if not (due[0].num_rows or due[1].num_rows or self._store.has_due_timers(after)):
            return
        codes, row_codes = self._store.begin(
            [spec.keys(table) for spec, table in zip(self.inputs, due, strict=True)], after
        )
        self._open()
        self._store.timer_service.processing_time = self.processing_time
        run = _KeyRun(self._function, self._store, name=self._name, inputs=self.inputs, yielded=self._yielded)
        rows = self._rows_by_key(due, row_codes)
        for code in codes:
            run.select(code)
            start, stop = rows.bounds(code)
            if self._by_time:
                run.in_event_time(rows, start, stop, after=after, last_event=last_event)
            else:
                run.in_arrival(rows, start, stop, before=before, after=after, last_event=last_event)
            if len(self._yielded) >= _PIECE_ROWS:
                yield self._flush()
        yield self._flush()
        self._store.end()

    def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        try:
            self._function.open(self._store)
        except CojoinError:
            raise
        except Exception as error:
            msg = f"{self._name}.open {_fault(error)}"
            raise FunctionError(msg) from error

    def close(self) -> None:
        """Close the function, if it was opened.

        Raises:
            FunctionError: It raised an error.
        """
        if not self._opened:
            return
        self._opened = False
        try:
            self._function.close()
        except Exception as error:
            msg = f"{self._name}.close {_fault(error)}"
            raise FunctionError(msg) from error

    def _flush(self) -> pa.Table:
        table = encode_rows(self._yielded, self._output, self._name)
        self._yielded.clear()
        return table

    def _rows_by_key(self, due: Sides, row_codes: list[NDArray[np.int64]]) -> _DueRows:
        parts = [
            OrderedPart(codes, event_micros(table, spec.event_time), rank, table, spec.source_order)
            for codes, table, spec, rank in zip(row_codes, due, self.inputs, (1, 0), strict=True)
        ]
        order = total_order(parts) if self._by_time else arrival_order(parts)
        millis = event_millis(np.concatenate([part.micros for part in parts]))[order]
        codes = np.concatenate(row_codes)[order]
        sides = order >= due[0].num_rows
        values = self._decode(due[0], 0) + self._decode(due[1], 1)
        return _DueRows(codes, millis.tolist(), sides.tolist(), [values[position] for position in order.tolist()])

    def _decode(self, rows: pa.Table, side: int) -> list[Any]:
        try:
            return list(decode_rows(rows))
        except OverflowError:
            msg = (
                f"{self._name}: input {self.inputs[side].name!r} has a time beyond the years 1 to 9999, which Python's "
                f"datetimes can't show to the function; cast the column to bigint, or reject such rows with max_ahead"
            )
            raise FunctionError(msg) from None

    def state_tables(self) -> dict[str, pa.Table]:
        """Give the states and timers."""
        return self._store.tables()

    def load_state_tables(self, tables: dict[str, pa.Table]) -> None:
        """Take the states and timers."""
        self._store.load_tables(tables)

    def details(self) -> dict[str, int]:
        """Report the timers that wait, and those that a drain left."""
        return {"timers": self._store.timer_count(), "timers_not_fired": self._store.timers.not_fired}


@dataclass(frozen=True)
class _DueRows:
    """The due rows of both inputs, sorted by key code and then by the declared order."""

    codes: NDArray[np.int64]
    millis: list[int]
    from_right: list[bool]
    values: list[Any]

    def bounds(self, code: int) -> tuple[int, int]:
        return int(np.searchsorted(self.codes, code, "left")), int(np.searchsorted(self.codes, code, "right"))


class _KeyRun:
    """Calls the function for one key after the other."""

    def __init__(
        self,
        function: KeyedCoProcessFunction,
        store: KeyedStore,
        *,
        name: str,
        inputs: tuple[InputSpec, InputSpec],
        yielded: list[Any],
    ) -> None:
        self._callbacks = (function.process_element1, function.process_element2)
        self._on_timer = function.on_timer
        self._store = store
        self._timers = store.timers
        self._name = name
        self._inputs = inputs
        self._yielded = yielded
        self._service = store.timer_service
        self._context = Context(store.timer_service)
        self._code = -1

    def select(self, code: int) -> None:
        """Make a key the current one."""
        self._code = self._store.cursor.code = code
        self._context._key = self._store.key_of(code)  # noqa: SLF001 - the context is read-only to functions
        self._service.watermark = NONE

    def in_event_time(self, rows: _DueRows, start: int, stop: int, *, after: int, last_event: int | None) -> None:
        """Take the key's rows and timers in one sequence of time."""
        service, context, timers, code = self._service, self._context, self._timers, self._code
        first, second = self._callbacks
        millis, from_right, values, yielded = rows.millis, rows.from_right, rows.values, self._yielded
        now = None
        for position in range(start, stop):
            timestamp = millis[position]
            if timestamp != now:
                now = timestamp
                if timers.is_due(code, timestamp - 1):
                    self._sweep(timestamp - 1, last_event, None)
                service.watermark = timestamp - 1
                context._timestamp = timestamp  # noqa: SLF001
            value = values[position]
            try:
                result = second(value, context) if from_right[position] else first(value, context)
                if result is not None:
                    yielded.extend(result)
            except Exception as error:
                raise self._row_error(error, value, from_right[position]) from error
        if timers.is_due(code, after):
            self._sweep(after, last_event, None)

    def in_arrival(
        self, rows: _DueRows, start: int, stop: int, *, before: int, after: int, last_event: int | None
    ) -> None:
        """Take the key's rows at once, then its due timers."""
        service, context = self._service, self._context
        service.watermark = before
        for position in range(start, stop):
            context._timestamp = rows.millis[position]  # noqa: SLF001
            value, is_right = rows.values[position], rows.from_right[position]
            try:
                result = self._callbacks[is_right](value, context)
                if result is not None:
                    self._yielded.extend(result)
            except Exception as error:
                raise self._row_error(error, value, is_right) from error
        if after > before and self._timers.is_due(self._code, after):
            self._sweep(after, last_event, after)

    def _sweep(self, watermark: int, last_event: int | None, shown: int | None) -> None:
        """Fire the current key's timers up to a watermark.

        Args:
            watermark: Up to which time.
            last_event: See ``Timers.begin_sweep``.
            shown: The watermark that the function sees; None shows each timer's own time, never going back.
        """
        service, context, on_timer, yielded = self._service, self._context, self._on_timer, self._yielded
        timers = self._timers
        if shown is not None:
            service.watermark = shown
        timers.begin_sweep(watermark, last_event)
        while (timestamp := timers.pop()) is not None:
            if shown is None and timestamp > service.watermark:
                service.watermark = timestamp
            context._timestamp = timestamp  # noqa: SLF001
            try:
                result = on_timer(timestamp, context)
                if result is not None:
                    yielded.extend(result)
            except Exception as error:
                key = context.get_current_key()
                msg = (
                    f"{self._name}.on_timer {_fault(error)}; key {key!r}, timer {timestamp} ({format_time(timestamp)})"
                )
                raise FunctionError(msg) from error

    def _row_error(self, error: Exception, value: Any, is_right: bool) -> FunctionError:
        spec = self._inputs[is_right]
        callback = f"{self._name}.process_element{1 + is_right}"
        return FunctionError(
            f"{callback} {_fault(error)}; "
            f"input {spec.name!r}, key {self._context.get_current_key()!r}, row {describe_row(value)}"
        )


def _fault(error: Exception) -> str:
    """Say what a callback did wrong: it raised, or what it returned was refused in our own frame."""
    is_ours = error.__traceback__ is not None and error.__traceback__.tb_next is None
    if is_ours and isinstance(error, TypeError) and str(error).endswith("object is not iterable"):
        return f"returned what is no iterable of rows ({error}); yield its rows, or return a list of them"
    return f"raised {type(error).__name__}: {error}"
