"""The operator that runs a ``KeyedCoProcessFunction`` for one key group: Arrow tables in and out, Python rows between.

It keeps each declared state and the timers, as Arrow tables with the key's columns, and the rows that wait for the
watermark (``operator``). A batch decodes only the keys that have a due row or a due timer.

It emits the rows that the callbacks yield, in pieces, separately for the main output and each side output.

In the order ``"event_time"`` the rows and event-time timers of a key are processed in timestamp order, independent of
batching. ``current_watermark()`` is t - 1 in a row of time t, and t in a timer of time t; a timer that is registered at
or below the watermark before the batch sees that watermark. (Beam: ``@RequiresTimeSortedInput``.)

In the order ``"arrival"`` the batch's rows are processed at once and see the watermark before the batch; then the due
timers fire and see the watermark after it. (Flink: ``KeyedCoProcessOperator``.)

In both orders processing-time timers fire last.

It costs some microseconds of Python for each row or timer. In Spark each key group gets a new operator in each
micro-batch, with a copy of the function; ``open`` and ``close`` are called if the batch has a due row or a due timer.
Flink calls ``open`` once for each task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.callbacks import CallbackRunner, fault
from cojoin.engine.due_rows import DueRows
from cojoin.engine.function_clock import FunctionClock
from cojoin.engine.functions import Context, OpenContext, own_copy
from cojoin.engine.keyed_state_backend import KeyedStateBackend
from cojoin.engine.operator import OUTPUT, Emission, Operator, Sides
from cojoin.engine.side_outputs import encode_outputs
from cojoin.engine.time.timers import MAX_STALLED_TIMERS, TimeDomain
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.user_frames import defined_at
from cojoin.errors import CheckpointError, CojoinError, FunctionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cojoin.engine.functions import KeyedCoProcessFunction
    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.keyed_process import KeyedCoProcess
    from cojoin.engine.operator import Batch
    from cojoin.engine.state.segmented_table import SegmentedTable
    from cojoin.engine.time.operator_watermark import TimePolicy

__all__ = ["KeyedCoProcessOperator"]


class KeyedCoProcessOperator(Operator):
    """The operator that runs a function for one key group."""

    shows_rows = True

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
        key_schema = pa.schema([left.schema.field(name) for name in left.key])
        self._state_backend = KeyedStateBackend(key_schema, self._name)
        self._context = Context(self._state_backend.timer_service)
        self._state_backend.clock = FunctionClock(self._context, self._state_backend.timer_service, by_time=by_time)
        if not process.sets_processing_time_timers:
            self._state_backend.timer_service.refusal = (
                f"{self._name}: the query does not expect timers of processing time, which need micro-batches without "
                f"rows; say so with process(..., processing_time_timers=True)"
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
        service = self._state_backend.timer_service
        service.processing_time = self.processing_time
        own_before, self._own_watermarks = self._own_watermarks, self._input_watermarks()
        service.input_watermarks = None if self._by_time else own_before
        for counts, rows in zip(self.counts, due, strict=True):
            counts.done += rows.num_rows
        # In arrival order timers fire only when the watermark moves; in event-time order whenever it has reached them.
        # Before the first watermark nothing is due, not even a timer at the smallest timestamp.
        until = after if after > NONE and (self._by_time or after > before) else None
        if not (due[0].num_rows or due[1].num_rows or self._state_backend.has_due_timers(until, clock)):
            return
        keys = [spec.keys(table) for spec, table in zip(self.inputs, due, strict=True)]
        codes, row_codes = self._state_backend.begin(keys, until, clock)
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
        for _ in self._fire_timers(run, until, clock, after, drains=last_event is not None):
            yield from self._flush(run)
        yield from self._flush(run)
        # From here on a time-to-live uses the watermark, since no row and no timer is current.
        self._context._timestamp, service.watermark = None, after  # noqa: SLF001
        self._state_backend.end()

    def _fire_timers(
        self, run: CallbackRunner, until: int | None, clock: int, after: int, *, drains: bool
    ) -> Iterator[None]:
        """Fire the timers of all keys, of event time first; in a drain, repeat until no event-time timer is due."""
        backend = self._state_backend
        service, domains = backend.timer_service, (backend.timers, backend.processing_timers)
        stalled = 0
        while stalled < MAX_STALLED_TIMERS:
            service.input_watermarks = None if self._by_time else self._own_watermarks
            if until is not None:
                yield from run.fire_timers(TimeDomain.EVENT_TIME, until, None if self._by_time else after)
            service.input_watermarks = self._own_watermarks
            yield from run.fire_timers(TimeDomain.PROCESSING_TIME, clock, after)
            if not drains or until is None or not domains[0].due(until):
                return
            went_on = [each.goes_on() for each in domains]
            stalled = 0 if any(went_on) else stalled + 1
        msg = (
            f"{self._name}: in a drain, timers of event time and of processing time set each other for ever, and time "
            f"does not go on; set the next one above the one that fires"
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
            given = callback(OpenContext(self._state_backend))
        except CojoinError:
            raise
        except Exception as error:
            msg = f"{self._name}.open {fault(error)}"
            raise FunctionError(msg) from error
        self._refuse_rows(given, "open")

    def close(self) -> None:
        """Close the function, if it was opened.

        Raises:
            FunctionError: ``close`` raised an error, or yields rows.
        """
        if not self._opened:
            return
        self._opened = False
        callback: Any = self._function.close
        try:
            given = callback()
        except Exception as error:
            msg = f"{self._name}.close {fault(error)}"
            raise FunctionError(msg) from error
        self._refuse_rows(given, "close")

    def _refuse_rows(self, given: Any, callback: str) -> None:
        if given is not None:
            msg = (
                f"{self._name}.{callback} yields or returns rows (a {type(given).__name__}); it has no key and no time "
                f"to give them; emit them in process_element1, process_element2 or on_timer"
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
        except FunctionError as found:
            return FunctionError(f"{found}; {where}{defined_at(function, callback)}")
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
        """Open the function, and check that the stored states fit those that it declares, before any row is processed.

        Raises:
            CheckpointError: A stored state can't become what is declared, or is no longer declared.
            FunctionError: ``open`` raised an error, or yields rows.
        """
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
