"""The operator that runs a ``KeyedCoProcessFunction`` for one key group, and its configuration.

The operator keeps each declared state and the timers, as Arrow tables with the key's columns, and the rows that wait
for the watermark (``operator``). A batch decodes only the keys that have a due row or a due timer, in chunks of whole
keys, so only about one chunk of Python rows is in memory at a time. It emits the rows that the callbacks yield, in
pieces, separately for the main output and each side output.

In the order ``"event_time"`` the rows and event-time timers of a key are processed in timestamp order, independent of
batching. ``current_watermark()`` is t - 1 in a row of time t, and t in a timer of time t; a timer that is registered at
or below the watermark before the batch sees that watermark. (Beam: ``@RequiresTimeSortedInput``.)

In the order ``"arrival"`` the batch's rows are processed at once, a key's left rows before its right ones, each by
source sequence and content (``ordering``), and see the watermark before the batch; then the due timers fire and see the
watermark after it. (Flink: ``KeyedCoProcessOperator``.)

In both orders processing-time timers fire last. Where the touched keys have more state than a slice, the order
``"event_time"`` takes one range of keys after another, and the timers of a range fire after its rows.

It costs some microseconds of Python for each row or timer. In Spark each key group gets a new operator in each
micro-batch, with a copy of the function; ``open`` and ``close`` are called if the batch has a due row or a due timer.
Flink calls ``open`` once for each task.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from cojoin.engine.callbacks import CallbackRunner, defined_at, fault
from cojoin.engine.functions import (
    Context,
    KeyedCoProcessFunction,
    OpenContext,
    Order,
    OutputTag,
    check_callbacks,
    check_tags,
    encode_outputs,
    own_copy,
)
from cojoin.engine.input_spec import refuse_known
from cojoin.engine.keyed_state_backend import FunctionClock, KeyedStateBackend
from cojoin.engine.operator import OUTPUT, Emission, Operator, Sides, refuse_refresh
from cojoin.engine.ordering import OrderedPart, arrival_order, total_order
from cojoin.engine.time.timers import MAX_STALLED_TIMERS, TimeDomain
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.arguments import check_word
from cojoin.engine.values.rows import decode_rows
from cojoin.engine.values.tables import event_millis, take_rows
from cojoin.engine.values.types import schema_to_ddl
from cojoin.errors import CheckpointError, CojoinError, ConfigurationError, FunctionError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.operator import Batch
    from cojoin.engine.state.segmented_table import SegmentedTable
    from cojoin.engine.time.operator_watermark import TimePolicy


_OWN_COLUMNS = ("@timestamp", "@value")
"""The columns that the tables of timers and states have besides the key's."""


@dataclass(frozen=True)
class KeyedCoProcess:
    """The configuration of an operator that runs a function; it checks the function, its callbacks and its tags.

    ``processing_time_timers`` is whether the function sets processing-time timers, which need micro-batches without
    rows. None means that it does if one of its methods refers to ``register_processing_time_timer``; static methods,
    class methods and functions outside the class are not examined.
    """

    function: KeyedCoProcessFunction
    output: pa.Schema
    order: Order = "event_time"
    side_outputs: tuple[OutputTag, ...] = ()
    processing_time_timers: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.function, KeyedCoProcessFunction):
            hint = "; make an instance of it" if isinstance(self.function, type) else ""
            msg = f"function: expected an instance of a KeyedCoProcessFunction, got {self.function!r}{hint}"
            raise ConfigurationError(msg)
        check_callbacks(self.function)
        if self.processing_time_timers not in (True, False, None):
            msg = f"processing_time_timers: expected True, False or None, got {self.processing_time_timers!r}"
            raise ConfigurationError(msg)
        check_word("order", self.order, get_args(Order))
        object.__setattr__(self, "side_outputs", check_tags(self.side_outputs, type(self.function).__name__))

    @property
    def sets_processing_time_timers(self) -> bool:
        """Whether the function sets processing-time timers."""
        if self.processing_time_timers is not None:
            return self.processing_time_timers
        return any(
            _references(member.__code__, "register_processing_time_timer")
            for kind in type(self.function).__mro__
            for member in vars(kind).values()
            if isinstance(member, FunctionType)
        )

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        """Return the declared columns of the result, after checking the inputs and their policies for late rows."""
        refuse_refresh(right, "process", "what a function has made of former rows in its states can't be taken back")
        if not left.key:
            msg = (
                f"process: inputs {left.name!r} and {right.name!r} have no key (key=()), and a function's states and "
                f"timers are those of a key; give both inputs a key column, such as one with the same value in all rows"
            )
            raise ConfigurationError(msg)
        for spec in (left, right):
            if spec.null_key == "unmatched":
                msg = (
                    f"input {spec.name!r}: null_key='unmatched': a function is called by key, and rows with a null in "
                    f"it have none; leave null_key= out, so that they are rejected and counted, or give such rows a "
                    f"key before, such as coalesce(key, 'none')"
                )
                raise ConfigurationError(msg)
            for name in spec.key:
                if name in _OWN_COLUMNS:
                    msg = (
                        f"input {spec.name!r}: key column {name!r}: the states' tables have one of this name; rename it"
                    )
                    raise SchemaError(msg)
            refuse_known(spec, "process", "a function reads the known time as a column of the row")
            if self.order == "event_time" and spec.event_time is None:
                msg = f"input {spec.name!r} has no event time; give it event_time=, or use order='arrival'"
                raise ConfigurationError(msg)
            if self.order == "event_time" and spec.late == "apply":
                msg = (
                    f"input {spec.name!r}: late='apply' can't be kept in event-time order, where time never goes back; "
                    f"use order='arrival', or leave late rows to the rejected output"
                )
                raise ConfigurationError(msg)
        return self.output

    def create_operator(
        self, left: InputSpec, right: InputSpec, time: TimePolicy | None = None
    ) -> KeyedCoProcessOperator:
        """Return the operator of one key group."""
        return KeyedCoProcessOperator(self, left, right, time)

    def describe(self) -> dict[str, Any]:
        """Return the settings that must stay the same for a checkpoint to be used again, as JSON values."""
        return {
            "operator": "process",
            "function": type(self.function).__qualname__,
            "order": self.order,
            "side_outputs": {tag.tag_id: schema_to_ddl(tag.schema) for tag in self.side_outputs},
        }


def _references(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(
        _references(constant, name) for constant in code.co_consts if isinstance(constant, CodeType)
    )


class _Advance(NamedTuple):
    """The times of one ``advance``; rows and timers are due up to ``until``, those of processing time to ``clock``."""

    before: int
    until: int | None
    after: int
    clock: int
    last_event: int | None

    @property
    def drains(self) -> bool:
        """Whether this is the last one."""
        return self.last_event is not None


class KeyedCoProcessOperator(Operator):
    """The operator that runs a function for one key group."""

    shows_rows = True

    # A drain counts the timers that it leaves, for each key at once.
    _drains_in_slices = False

    def __init__(
        self, process: KeyedCoProcess, left: InputSpec, right: InputSpec, time: TimePolicy | None = None
    ) -> None:
        by_time = process.order == "event_time"
        policy: Any = "reject" if by_time else "apply"
        super().__init__((left, right), (policy, policy), time, holds_rows=by_time)
        self._by_time = by_time
        self._process = process
        self._function = own_copy(process.function)
        self._name = type(process.function).__name__
        self._state_backend = KeyedStateBackend(left.key_schema, self._name)
        self._context = Context(self._state_backend.timer_service)
        self._state_backend.clock = FunctionClock(self._context, self._state_backend.timer_service, by_time=by_time)
        if not process.sets_processing_time_timers:
            self._state_backend.timer_service.refusal = (
                f"{self._name}: the query does not expect timers of processing time, which need micro-batches without "
                f"rows; declare them with process(..., processing_time_timers=True)"
            )
        self._yielded: list[Any] = []
        self._opened = False
        self._own_watermarks = (NONE, NONE)

    @property
    def state_backend(self) -> KeyedStateBackend:
        """The states and timers."""
        return self._state_backend

    def watch(self, make: Callable[[KeyedCoProcessFunction], KeyedCoProcessFunction]) -> None:
        """Replace the function with one that calls it, before any batch; for tools that look at each callback."""
        self._function = make(self._function)

    def advance(self, due: Sides, before: int, after: int, last_event: int | None) -> Iterator[Emission]:
        """Call the function for the due rows and timers of every touched key."""
        clock = END_OF_TIME if self.watermark.status() == "finished" else self.processing_time
        if self._is_partial:
            clock = NONE
        service = self._state_backend.timer_service
        service.processing_time = self.processing_time
        own_before, self._own_watermarks = self._own_watermarks, self._input_watermarks()
        service.input_watermarks = own_before
        for counts, rows in zip(self.counts, due, strict=True):
            counts.done += rows.num_rows
        # In arrival order timers fire only when the watermark moves; in event-time order whenever it has reached them.
        # Before the first watermark nothing is due, not even a timer at the smallest timestamp.
        until = after if after > NONE and (self._by_time or after > before) else None
        if not (due[0].num_rows or due[1].num_rows or self._state_backend.has_due_timers(until, clock)):
            return
        moment = _Advance(before, until, after, clock, last_event)
        timers = self._state_backend.due_timers(until, clock)
        rows = [
            *((each, spec.keys(each)) for spec, each in zip(self.inputs, due, strict=True)),
            *zip(timers, timers, strict=True),
        ]
        # In arrival order the timers of all keys fire by timestamp, so there is one range.
        tables = self.segmented_tables().values() if self._by_time else ()
        for _, (left, right, *of_timers) in self.by_key_range(tables, rows):
            yield from self._call((left, right), of_timers, moment)

    def _call(self, due: Sides, timers: Sequence[pa.Table], moment: _Advance) -> Iterator[Emission]:
        """Call the function for the due rows and timers of some keys; ``timers`` are the keys of the timers."""
        before, until, after, _, last_event = moment
        service = self._state_backend.timer_service
        if self._by_time:
            service.input_watermarks = None
        keys = [spec.keys(table) for spec, table in zip(self.inputs, due, strict=True)]
        codes, row_codes = self._state_backend.begin(keys, timers)
        self._open()
        run = CallbackRunner(self._function, self._state_backend, self._context, self.inputs, self._yielded, last_event)
        due_rows = DueRows(due, self.inputs)
        for code, rows in due_rows.by_key(codes, row_codes, by_time=self._by_time):
            if not self._by_time:
                steps = run.in_arrival(code, rows, before)
            elif until is not None:
                steps = run.in_event_time(code, rows, before, until)
            else:
                # A processing-time timer is due before the first watermark; no row is, as all timestamps exceed NONE.
                assert not due[0].num_rows
                assert not due[1].num_rows
                continue
            for _ in steps:
                yield from self._flush(run)
        for _ in self._fire_timers(run, moment):
            yield from self._flush(run)
        yield from self._flush(run)
        # From here on a time-to-live uses the watermark, since no row and no timer is current.
        self._context._timestamp, service.watermark = None, after  # noqa: SLF001
        self._state_backend.end()

    def _fire_timers(self, run: CallbackRunner, moment: _Advance) -> Iterator[None]:
        """Fire the touched keys' timers, of event time first; in a drain, repeat until no event-time timer is due."""
        until, clock, after = moment.until, moment.clock, moment.after
        backend = self._state_backend
        service, domains = backend.timer_service, (backend.timers, backend.processing_timers)
        stalled = 0
        while stalled < MAX_STALLED_TIMERS:
            service.input_watermarks = None if self._by_time else self._own_watermarks
            if until is not None:
                yield from run.fire_timers(TimeDomain.EVENT_TIME, until, None if self._by_time else after)
            service.input_watermarks = self._own_watermarks
            yield from run.fire_timers(TimeDomain.PROCESSING_TIME, clock, after)
            if not moment.drains or until is None or not domains[0].due(until):
                return
            advanced = [timers.has_advanced() for timers in domains]
            stalled = 0 if any(advanced) else stalled + 1
        msg = (
            f"{self._name}: in a drain, timers of event time and of processing time keep re-registering each other "
            f"without advancing time (endless loop); set the next one above the one that fires"
        )
        raise FunctionError(msg)

    def process(self, batch: Batch) -> Iterator[Emission]:
        """Process a micro-batch; see ``Operator.process``."""
        self._own_watermarks = self._input_watermarks()
        return super().process(batch)

    def _input_watermarks(self) -> tuple[int, int]:
        left, right = self.watermark.inputs
        return left.current(), right.current()

    def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        # An ``open`` with a yield returns a generator, whatever its type says, and its body would never run.
        callback: Any = self._function.open
        try:
            result = callback(OpenContext(self._state_backend))
        except CojoinError:
            raise
        except Exception as error:
            msg = f"{self._name}.open {fault(error)}"
            raise FunctionError(msg) from error
        self._refuse_rows(result, "open")

    def close(self) -> None:
        """Close the function, if it was opened, and refuse rows that ``close`` yields."""
        if not self._opened:
            return
        self._opened = False
        callback: Any = self._function.close
        try:
            result = callback()
        except Exception as error:
            msg = f"{self._name}.close {fault(error)}"
            raise FunctionError(msg) from error
        self._refuse_rows(result, "close")

    def _refuse_rows(self, result: Any, callback: str) -> None:
        if result is not None:
            msg = (
                f"{self._name}.{callback} yields or returns rows (a {type(result).__name__}), for which it has no key "
                f"and no time; emit them in process_element1, process_element2 or on_timer"
            )
            raise FunctionError(msg)

    def _flush(self, run: CallbackRunner) -> Iterator[Emission]:
        try:
            tables = self._encode(self._yielded, self._name)
        except FunctionError as error:
            raise self._located(error, run) from error
        yield from (Emission(tag_id or OUTPUT, table) for tag_id, table in tables)
        self._yielded.clear()
        run.forget()

    def _encode(self, yielded: list[Any], owner: str) -> list[tuple[str | None, pa.Table]]:
        return list(encode_outputs(yielded, self._process.output, self._process.side_outputs, owner))

    def _located(self, error: FunctionError, run: CallbackRunner) -> FunctionError:
        """Return the error about a row that does not fit its output, with the callback that yielded the row."""
        function = self._process.function
        place, stop = 0, len(self._yielded)
        while stop - place > 1:
            middle = (place + stop) // 2
            try:
                self._encode(self._yielded[place:middle], self._name)
                place = middle
            except FunctionError:
                stop = middle
        callback, where = run.origin(place)
        try:
            self._encode(self._yielded[place:stop], f"{self._name}.{callback}")
        except FunctionError as own:
            return FunctionError(f"{own}; {where}{defined_at(function, callback)}")
        # Each row fits by itself, so no single callback is at fault.
        return FunctionError(f"{error}{defined_at(function)}")

    def state_tables(self) -> dict[str, pa.Table]:
        """Return the tables of the states and timers."""
        return self._state_backend.tables()

    def load_state_tables(self, tables: dict[str, pa.Table]) -> None:
        """Restore the states and timers."""
        self._state_backend.load_tables(tables)

    def segmented_tables(self) -> dict[str, SegmentedTable]:
        """Return the states' tables."""
        return self._state_backend.segmented_tables()

    def check_states(self) -> None:
        """Open the function, and check before any row that the stored states fit those that it declares."""
        self._open()
        if undeclared := self._state_backend.undeclared():
            state, them = ("state", "it") if len(undeclared) == 1 else ("states", "them")
            listed = f"{state} {', '.join(map(repr, undeclared))}"
            msg = (
                f"{self._name}: the checkpoint holds the {listed}, which open no longer declares; declare {them}, used "
                f"or not, or start with a new checkpoint"
            )
            raise CheckpointError(msg)

    def details(self) -> dict[str, int]:
        """Return how many timers wait, and how many a drain left unfired."""
        return {"timers": self._state_backend.timer_count(), "timers_not_fired": self._state_backend.timers_not_fired()}


_CHUNK_ROWS = 50_000


class DueRows:
    """The due rows of both inputs in one micro-batch."""

    def __init__(self, due: Sides, inputs: tuple[InputSpec, InputSpec]) -> None:
        self._due, self._inputs = due, inputs

    def by_key(
        self, touched: Sequence[int], row_codes: Sequence[NDArray[np.int64]], *, by_time: bool
    ) -> Iterator[tuple[int, Iterator[tuple[Any, ...]]]]:
        """Yield each touched key's code with its rows in order: (timestamp, whether of the second input, row).

        ``touched`` are the codes of the keys that have a due row or a due timer, ascending; ``row_codes`` the codes of
        each input's rows. With ``by_time`` the order is ``"event_time"``, otherwise ``"arrival"``.
        """
        due = self._due
        micros = [spec.micros(table) for spec, table in zip(self._inputs, due, strict=True)]
        # In the order of arrival, a table's rows come before the rows that look them up.
        places = (0, 1) if self._inputs[1].static and not by_time else (1, 0)
        parts = [
            OrderedPart(codes, times, rank, table, spec.source_order, ranks=spec.ranks)
            for codes, times, table, spec, rank in zip(row_codes, micros, due, self._inputs, places, strict=True)
        ]
        order = total_order(parts) if by_time else arrival_order(parts)
        codes = np.concatenate(row_codes)[order]
        millis = event_millis(np.concatenate(micros))[order]
        starts = np.searchsorted(codes, touched, "left").tolist()
        stops = np.searchsorted(codes, touched, "right").tolist()
        for first, last in pairwise(_chunk_bounds(stops)):
            begin, end = starts[first], stops[last - 1]
            columns = self._decode(order[begin:end], millis[begin:end])
            for position in range(first, last):
                rows = slice(starts[position] - begin, stops[position] - begin)
                yield touched[position], zip(*(column[rows] for column in columns), strict=True)

    def _decode(self, positions: NDArray[np.int64], millis: NDArray[np.int64]) -> tuple[list[Any], ...]:
        """Return the times, sides and rows at some positions, which count the left rows first, then the right ones."""
        count = self._due[0].num_rows
        from_right = positions >= count
        flags: list[bool] = from_right.tolist()
        left = decode_rows(take_rows(self._due[0], positions[~from_right]))
        right = decode_rows(take_rows(self._due[1], positions[from_right] - count))
        rows: list[Any] = list(left or right)
        if left and right:
            sides = iter(left), iter(right)
            rows = [next(sides[flag]) for flag in flags]
        times: list[Any] = millis.tolist()
        if any(spec.event_time is None for spec in self._inputs):
            timed = [spec.event_time is not None for spec in self._inputs]
            times = [time if timed[flag] else None for time, flag in zip(times, flags, strict=True)]
        return times, flags, rows


def _chunk_bounds(stops: list[int]) -> list[int]:
    """Return the bounds of runs of keys of about ``_CHUNK_ROWS`` rows each, from where each key's rows end."""
    bounds, limit = [0], _CHUNK_ROWS
    for position, stop in enumerate(stops, start=1):
        if stop >= limit or position == len(stops):
            bounds.append(position)
            limit = stop + _CHUNK_ROWS
    return bounds
