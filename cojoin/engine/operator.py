"""The operator over two keyed inputs on which every join and every function runs; each key group has one instance.

It buffers the rows that wait for the watermark, as one Arrow table for each input, and beyond a limit in files
(``waiting_rows``). It keeps each source partition's largest timestamp, and the counters. It removes a row from its
buffer once it passes the row to the subclass.

It processes a micro-batch's rows and control rows. It folds the control rows into the watermarks first, so all key
groups agree on two watermarks: the one before the batch decides which rows are late, and the one after it which rows
are due. Due rows are processed in the same batch. At the end of input the watermark first advances as far as the rows
move it, and then to the end of time.

The law of conservation, for each input: rows in = rows done + rows buffered + rows rejected, counted since the query's
first batch. Subclasses count the rows that are done, and the rows that wait in their own buffers. A version of a join
is done once the watermark has reached it, although the join keeps it.

An admitted row with a null key is due at its own time. It is then emitted without a match and is done; the subclass
never gets it. This also holds after a restore into a query whose input rejects such rows.

A *load* of a table (``TableLoad``) brings all rows of one version of the table to the right side at once. A key group's
part comes whole in one micro-batch, with a closing message that counts its rows. From then on the input is finished, so
it never holds the watermark back. A later load, a *refresh*, replaces all rows of the former load: those that are
buffered or kept are forgotten and counted as done. Rows that were emitted never change.

A snapshot has the buffers, the watermarks, the counters and the subclass's tables. While a commit of a table's changes
is half read, it also has the commit's rejected versions (``row_changes``). The header names the operator's class, so
that a query never continues another operator's state.

Due rows that are in files are passed to the subclass in slices of event time, one after the other, as if they had
become due in several batches.

Each batch compares the time of each row that is buffered in memory. Where some rows are due and others are not, it also
copies both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from cojoin.engine.batch_report import InputCounts
from cojoin.engine.display import cut, show_row
from cojoin.engine.input_spec import fault_table, has_null_key, rejected_table, split_admitted
from cojoin.engine.rescaling import assemble
from cojoin.engine.state.named_files import SEGMENTS
from cojoin.engine.state.segmented_table import attach, by_key_range, flush, without_shadowed
from cojoin.engine.state.segments import SegmentOptions
from cojoin.engine.state.waiting_rows import WaitingRows, slice_bounds
from cojoin.engine.time.control_rows import ONE_PARTITION
from cojoin.engine.time.operator_watermark import OperatorWatermark
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values import codec
from cojoin.engine.values.rows import beyond_python
from cojoin.engine.values.schema_evolution import evolve
from cojoin.engine.values.tables import concat, take_rows, up_to_millis
from cojoin.errors import CheckpointError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from cojoin.engine.input_spec import InputSpec, LatePolicy
    from cojoin.engine.rescaling import SpilledTables
    from cojoin.engine.state.segmented_table import Flushed, HashRange, SegmentedTable
    from cojoin.engine.state.segments import Segment, SegmentContext
    from cojoin.engine.state.waiting_rows import Run
    from cojoin.engine.time.control_rows import Control
    from cojoin.engine.time.operator_watermark import InputWatermark, TimePolicy

OUTPUT, REJECTED = "output", "rejected"
"""The names of the main output and of the output of rejected rows; a side output is named by its tag's id."""

_BEYOND = "time_beyond_python"

Sides: TypeAlias = "tuple[pa.Table, pa.Table]"
"""The rows of the left (first) and of the right (second) input."""

_OWN = frozenset({"held1", "held2", "rejected1", "rejected2"})
"""The tables of this class; the others are the subclass's."""


@dataclass(frozen=True)
class TableLoad:
    """The closing message of a load, for one key group.

    Attributes:
        load: The load's name; a later load of the query has a greater number in it.
        table_id: The table's id.
        version: The table's version.
        rows: How many rows the load has for the key group.
        largest: The largest timestamp in the whole load, in epoch milliseconds; None without one.
        batch_id: The micro-batch that takes the load.
    """

    load: str
    table_id: str
    version: int
    rows: int
    largest: int | None = None
    batch_id: int = -1

    def as_dict(self, processing_time: int) -> dict[str, Any]:
        """Return the state's record of the load, with the processing time of its micro-batch, as JSON values."""
        return {
            "load": self.load,
            "table_id": self.table_id,
            "version": self.version,
            "batch_id": self.batch_id,
            "loaded_at": processing_time,
        }


def refuse_refresh(right: InputSpec, label: str, why: str) -> None:
    """Refuse a right input that is refreshed; ``label`` is the operation, ``why`` the reason."""
    if right.refreshes:
        msg = (
            f"refresh: {label} takes no refresh of input {right.name!r}: {why}; leave refresh= out and restart the "
            f"query for a newer version, or use asof_join or temporal_join"
        )
        raise ConfigurationError(msg)


@dataclass(frozen=True)
class Batch:
    """One key group's part of a micro-batch.

    Attributes:
        rows: The rows of both inputs, as they came.
        controls: The control rows of the map tasks, of both inputs.
        end_of_input: Whether all inputs are finished after these rows.
        processing_time: The micro-batch's processing time in epoch milliseconds; 0 if it is unknown. The largest value
            in the controls is used if it is greater.
        resumed: Whether the query was not running before this batch, so that idleness timeouts restart.
        holds: The upper bounds of the inputs' watermarks in this batch, in epoch milliseconds, by input number. An
            input has one if its source has rows left, from that time on.
        snapshots: The version of the table that is the initial snapshot of an input's change feed, by input number; an
            input has one if this batch may have rows of that snapshot.
        load: The load of a table whose rows are the right input's rows of this batch; None in most batches.
    """

    rows: Sides
    controls: Sequence[Control] = ()
    end_of_input: bool = False
    processing_time: int = 0
    resumed: bool = False
    holds: Mapping[int, int] = field(default_factory=dict)
    snapshots: Mapping[int, int] = field(default_factory=dict)
    load: TableLoad | None = None


@dataclass(frozen=True)
class Emission:
    """A piece of an output, in its schema: of ``"output"``, ``"rejected"`` or a side output's tag id."""

    kind: str
    table: pa.Table


class Operator(ABC):
    """The operator of one key group; subclasses decide what a due row does.

    Its methods are called in this order: restore, process, then flush or snapshot, then close. ``late`` has the default
    policies for late rows; an input's own policy takes precedence. With ``holds_rows`` rows are buffered until the
    watermark reaches them; otherwise they are due at once.
    """

    saved: dict[str, Any] | None = None
    """Where the last snapshot of this state is stored, as noted by the caller; the engine only keeps it."""

    segmenting: SegmentContext | None = None
    """How the operator may read and write segments; None keeps all rows in the state value."""

    table: dict[str, Any] | None = None
    """The load of a table whose rows are the right input's (``TableLoad.as_dict``); None where none came."""

    output_delay_ms: int = 0
    """How far an output row's event time may be behind the watermark when the row is emitted, in milliseconds."""

    _drains_in_slices: bool = True
    """Whether due rows may be passed to ``advance`` in slices at the end of input, too."""

    _is_partial: bool = False
    """Whether this batch has further slices of due rows. Processing-time timers fire with the last slice."""

    shows_rows: bool = False
    """Whether a user's function gets the rows as Python values; a row with a time that Python lacks is rejected."""

    def __init__(
        self,
        inputs: tuple[InputSpec, InputSpec],
        late: tuple[LatePolicy, LatePolicy],
        time: TimePolicy | None = None,
        *,
        holds_rows: bool = True,
    ) -> None:
        self.inputs = inputs
        self.watermark = OperatorWatermark([spec.watermark for spec in inputs], time)
        self.counts = (InputCounts(), InputCounts())
        self.processing_time = 0
        self.rows_out = 0
        self._late = tuple(spec.late or default for spec, default in zip(inputs, late, strict=True))
        self._holds_rows = holds_rows
        self._held = (self._buffer(0, None), self._buffer(1, None))
        self._rejected = [self._rejected_rows(spec, None) for spec in inputs]
        # The bytes of files that this batch has written so far, and whether this state or a former one names files.
        self._written, self._named_files = 0, False

    @abstractmethod
    def advance(self, due: Sides, before: int, after: int, last_event: int | None) -> Iterator[Emission]:
        """Process the due rows of both inputs, which are in no order, and emit what the watermark's advance makes due.

        ``before`` and ``after`` are the operator's watermarks before and after this advance. At the end of time,
        ``last_event`` is the largest timestamp seen in any input; otherwise it is None. The subclass adds the rows that
        are done to ``counts``; its ``waiting_rows`` returns the number of those that are not done.
        """

    def unmatched(self, side: int, rows: pa.Table) -> pa.Table:
        """Return a side's rows with a null key as output rows without a match, in the total order."""
        del rows
        msg = (
            f"{type(self).__name__}: the state has rows of input {self.inputs[side].name!r} with a null key, which "
            f"this operation never keeps; put the checkpoint back from a backup"
        )
        raise CheckpointError(msg)

    def process(self, batch: Batch) -> Iterator[Emission]:
        """Process a micro-batch; exhaust the iterator before taking a report or a snapshot."""
        before, promised = self.watermark.current(), [each.promised for each in self.watermark.inputs]
        if batch.resumed:
            self.watermark.resume()
        self.processing_time = max(
            filter(None, (batch.processing_time, *(each.processing_time for each in batch.controls))),
            default=self.processing_time,
        )
        self.watermark.hold(batch.holds)
        self.watermark.begin(self.processing_time)
        self.watermark.fold(batch.controls)
        for control in batch.controls:
            self.counts[control.input - 1].add_received(control)
            yield from self._reject_faults(control, before)
        if batch.load is not None:
            self._take_load(batch.load)
        self.watermark.tick(self.processing_time)
        after = self.watermark.current()
        waiting, undecided = [], []
        for side in (0, 1):
            # A table's rows are never late.
            limit = NONE if side and batch.load is not None else before
            fresh, rejections = self._admit(
                side, batch.rows[side], limit, batch.snapshots.get(side + 1), min(limit, promised[side])
            )
            yield from rejections
            is_half_read = side + 1 in batch.holds and not batch.end_of_input
            present, moved_back = self._without_moved_back(side, concat([self._held[side].memory, fresh]), limit)
            yield from moved_back
            kept, deletes = self._without_superseded(side, present, is_half_read=is_half_read)
            waiting.append(kept)
            undecided.append(deletes)
        last_event = self.watermark.max_timestamp()
        ends = after == END_OF_TIME
        yield from self._advance_to((waiting[0], waiting[1]), before, after, last_event if ends else None)
        for held, rows in zip(self._held, undecided, strict=True):
            held.memory = concat([held.memory, rows])
        if batch.end_of_input and not ends:
            self.watermark.finish()
            in_memory = (self._held[0].memory, self._held[1].memory)
            yield from self._advance_to(in_memory, after, self.watermark.current(), last_event)

    def _take_load(self, load: TableLoad) -> None:
        """Finish the right input; where the load is a refresh, forget the rows of the former load."""
        right = self.watermark.inputs[1]
        if load.largest is not None:
            right.observe(ONE_PARTITION, load.largest)
        right.set_status(None, "finished")
        self.counts[1].rows_in += load.rows
        if self.table is not None:
            self.counts[1].done += self._held[1].rows
            self._held[1].forget()
            self.forget_table()
        self.table = load.as_dict(self.processing_time)

    def forget_table(self) -> None:
        """Forget all rows of the right input that the subclass keeps, before it gets those of a refresh."""
        msg = (
            f"{type(self).__name__}: input {self.inputs[1].name!r} was loaded before, and can't be loaded again: a "
            f"file in control/ of the checkpoint is not the one that was written; put the checkpoint back from a backup"
        )
        raise CheckpointError(msg)

    def _reject_faults(self, control: Control, watermark: int) -> Iterator[Emission]:
        """Count the faults, which the source returned instead of rows, and emit them as rejected."""
        if control.faults:
            self.counts[control.input - 1].rejected.update(reason for reason, _ in control.faults)
            name = self.inputs[control.input - 1].name
            yield Emission(REJECTED, fault_table(control.faults, name, watermark))

    def _without_moved_back(self, side: int, rows: pa.Table, watermark: int) -> tuple[pa.Table, list[Emission]]:
        """Reject the buffered and new rows that a change of their table has moved back (``row_changes``).

        Return the other rows, and the rejected ones as emissions. The deletes that they replace will be dropped.
        """
        spec = self.inputs[side]
        if spec.changes is None or spec.known is None:
            return rows, []
        is_moved = spec.changes.moved_back(rows, spec.key)
        if not is_moved.any():
            return rows, []
        moved, others = _parted(rows, is_moved)
        self.counts[side].rejected["moved_back"] += moved.num_rows
        self._rejected[side] = concat([self._rejected[side], spec.changes.replacing(moved, spec.key, None)])
        return others, [Emission(REJECTED, rejected_table(moved, spec, "moved_back", watermark))]

    def _without_superseded(self, side: int, waiting: pa.Table, *, is_half_read: bool) -> Sides:
        """Drop the deletes that a version of their own commit replaces, and count them as done.

        Return the other rows, and separately the deletes that a rejected version of a half-read commit may replace.
        These wait until the commit is read. ``is_half_read`` is whether more rows of the newest commit may come.
        """
        spec, counts, rejected = self.inputs[side], self.counts[side], self._rejected[side]
        if spec.changes is None:
            return waiting, waiting.slice(0, 0)
        kept = spec.changes.without_superseded(waiting, spec.key)
        undecided = kept.slice(0, 0)
        if rejected.num_rows:
            half_read = spec.changes.of_newest_commit(rejected, waiting) if is_half_read else rejected.slice(0, 0)
            waits = spec.changes.may_be_replaced_by(kept, half_read, spec.key)
            replaced = spec.changes.replaced_by(kept, rejected, spec.key) & ~waits
            counts.unchanged += int(replaced.sum())
            undecided, kept = kept.filter(pa.array(waits)), kept.filter(pa.array(~(replaced | waits)))
            self._rejected[side] = half_read
        counts.done += waiting.num_rows - kept.num_rows - undecided.num_rows
        return kept, undecided

    def _admit(
        self, side: int, rows: pa.Table, watermark: int, snapshot: int | None, promised: int
    ) -> tuple[pa.Table, list[Emission]]:
        """Split new rows into those to process and those to reject; count the rejected and the late ones.

        A row is late if its time is at most ``watermark``. If it is also at most ``promised``, the row's commit has
        broken its table's promise. ``snapshot`` is the version of the table that is the initial snapshot of its feed;
        None where no row of it may come.
        """
        spec, counts = self.inputs[side], self.counts[side]
        if spec.changes is not None and spec.max_ahead_ms is not None:
            rows = spec.changes.deletes_in_time(rows, self.processing_time + spec.max_ahead_ms)
        admitted, rejected = split_admitted(rows, spec, self.processing_time)
        if spec.changes is not None:
            admitted = spec.changes.from_the_beginning(admitted, snapshot)
        if self.shows_rows and (beyond := beyond_python(admitted)).any():
            rejected[_BEYOND], admitted = _parted(admitted, beyond)
        counts.clock_changed += spec.clock_changed(admitted)
        late = up_to_millis(spec.micros(admitted), watermark)
        if spec.event_time is not None and late.any():
            if promised > NONE and spec.changes is not None:
                broken = admitted.filter(pa.array(up_to_millis(spec.micros(admitted), promised)))
                counts.add_late_commits(spec.changes.commits_of(broken))
            if self._late[side] == "reject":
                rejected["late"], admitted = _parted(admitted, late)
            else:
                counts.late_applied += int(late.sum())
        for reason, table in rejected.items():
            counts.rejected[reason] += table.num_rows
        if spec.changes is not None and rejected:
            new = [spec.changes.replacing(table, spec.key, snapshot) for table in rejected.values()]
            self._rejected[side] = concat([self._rejected[side], *new])
        return admitted, [
            Emission(REJECTED, rejected_table(table, spec, reason, watermark)) for reason, table in rejected.items()
        ]

    def _advance_to(self, waiting: Sides, before: int, after: int, last_event: int | None) -> Iterator[Emission]:
        """Process all due rows, in slices if some are in files, and buffer the other rows in memory."""
        due = []
        for spec, table, held in zip(self.inputs, waiting, self._held, strict=True):
            is_due = up_to_millis(spec.micros(table), max(after, self._due_at_once(spec)))
            if not self._holds_rows or spec.event_time is None:
                is_due[:] = True
            rows, held.memory = _parted(table, is_due)
            due.append(rows)
        if not any(held.has_due(after) for held in self._held):
            yield from self._advance((due[0], due[1]), before, after, last_event)
            return
        slice_bytes = (self.options or SegmentOptions()).slice_bytes
        is_whole = last_event is not None and not self._drains_in_slices
        samples = [] if is_whole else [each for held in self._held for each in held.samples(after, slice_bytes)]
        in_memory = [_by_time(rows, spec.millis(rows)) for rows, spec in zip(due, self.inputs, strict=True)]
        starts = [0, 0]
        for until in slice_bounds(samples, after, slice_bytes):
            self._is_partial, part = until < after, []
            for side, (held, (rows, times)) in enumerate(zip(self._held, in_memory, strict=True)):
                stop = int(np.searchsorted(times, until, "right")) if self._is_partial else rows.num_rows
                part.append(concat([held.take(until), rows.slice(starts[side], stop - starts[side])]))
                starts[side] = stop
            yield from self._advance((part[0], part[1]), before, until, last_event)
            before = until
            if self._is_partial:
                self.flush_tables()

    def _advance(self, rows: Sides, before: int, after: int, last_event: int | None) -> Iterator[Emission]:
        """Process the due rows that the subclass does not get, run ``advance`` for the others, and count the output."""
        due = list(rows)
        apart = [self._take_null_keys(side, due) + self._take_beyond_python(side, due, before) for side in (0, 1)]
        for emission in chain(*apart, self.advance((due[0], due[1]), before, after, last_event)):
            if emission.table.num_rows:
                if emission.kind == OUTPUT:
                    self.rows_out += emission.table.num_rows
                yield emission

    def _take_null_keys(self, side: int, due: list[pa.Table]) -> list[Emission]:
        """Take the rows with a null key out of the due rows of a side, count them as done, and emit them."""
        key = self.inputs[side].key
        if not any(due[side].column(name).null_count for name in key):
            return []
        rows, due[side] = _parted(due[side], has_null_key(due[side], key))
        self.counts[side].done += rows.num_rows
        return [Emission(OUTPUT, self.unmatched(side, rows))]

    def _take_beyond_python(self, side: int, due: list[pa.Table], watermark: int) -> list[Emission]:
        """Reject the due rows with a time that Python lacks; only cojoin 0.5 and earlier have buffered such rows."""
        if not self.shows_rows or not (beyond := beyond_python(due[side])).any():
            return []
        rows, due[side] = _parted(due[side], beyond)
        self.counts[side].rejected[_BEYOND] += rows.num_rows
        return [Emission(REJECTED, rejected_table(rows, self.inputs[side], _BEYOND, watermark))]

    def _due_at_once(self, spec: InputSpec) -> int:
        """Return the time up to which an input's rows are due whatever the watermark, in epoch milliseconds."""
        del spec
        return NONE

    @property
    def options(self) -> SegmentOptions | None:
        """The limits above which state is written to files; None where all of it stays in the state value."""
        return None if self.segmenting is None else self.segmenting.options

    def by_key_range(
        self, tables: Collection[SegmentedTable], rows: Sequence[tuple[pa.Table, pa.Table]]
    ) -> Iterator[tuple[HashRange | None, list[pa.Table]]]:
        """Yield ranges of keys with their rows (``segmented_table.by_key_range``), and flush the tables in between."""
        for within, pieces in by_key_range(tables, rows, self.options):
            yield within, pieces
            if within is not None:
                self.flush_tables()

    def held_rows(self) -> Sides:
        """Return the buffered rows of both inputs, which wait for the watermark."""
        return self._held[0].read_all(), self._held[1].read_all()

    def _buffer(self, side: int, rows: pa.Table | None) -> WaitingRows:
        return WaitingRows(self.input_rows(side, rows), self.inputs[side].millis, partial(self.input_rows, side))

    def _spills(self, side: int) -> bool:
        """Return whether an input's waiting rows may be in files; rows of changes may not: each batch compares them."""
        return self.inputs[side].changes is None

    def close(self) -> None:  # noqa: B027 - joins hold no resources
        """Release the operator's resources; called once, also after an error."""

    def report(self) -> dict[str, Any]:
        """Return the counters, buffers and watermarks after the batch, as JSON values."""
        return {
            "inputs": [
                counts.as_dict() | {"buffered": held.rows + waiting}
                for counts, held, waiting in zip(self.counts, self._held, self.waiting_rows(), strict=True)
            ],
            "rows_out": self.rows_out,
            "watermark": self.watermark.current(),
            "output_delay_ms": self.output_delay_ms,
            "input_watermarks": [
                {
                    "watermark": watermark.current(),
                    "max_timestamp": watermark.max_timestamp(),
                    "partitions": watermark.partitions(),
                    "holding_partition": watermark.holding_partition(),
                    "status": watermark.status(),
                    "source_agrees": watermark.source_agrees,
                    "idle_partitions": [name for name, status in watermark.statuses().items() if status == "idle"],
                    **({"reads_changes": True} if spec.changes is not None and spec.changes.is_feed else {}),
                    **_of_readings(spec, watermark),
                    **({} if spec.reading is None else {"reading": spec.reading}),
                    **({"table": self.table} if side and self.table is not None else {}),
                }
                for side, (spec, watermark) in enumerate(zip(self.inputs, self.watermark.inputs, strict=True))
            ],
            "holding_input": self.watermark.holding_input(),
            "processing_time": self.processing_time,
            "details": self.details(),
            **self._large_key(),
        }

    def _large_key(self) -> dict[str, Any]:
        """Return the report's entry on the largest key that may need more than a task's memory; empty without one."""
        noted = [table.large for table in self.segmented_tables().values() if table.large is not None]
        if not noted or self.options is None:
            return {}
        large = max(noted, key=attrgetter("bytes"))
        shown = cut(show_row(large.key)) or "()"
        return {"large_key": {**large._asdict(), "key": shown, "memory": self.options.memory_bytes}}

    def details(self) -> dict[str, int]:
        """Return the counters that the subclass adds to the report."""
        return {}

    @abstractmethod
    def state_tables(self) -> dict[str, pa.Table]:
        """Return the subclass's state as tables; those of ``segmented_tables`` without the rows in segments."""

    @abstractmethod
    def load_state_tables(self, tables: dict[str, pa.Table]) -> None:
        """Restore what ``state_tables`` returned."""

    def segmented_tables(self) -> Mapping[str, SegmentedTable]:
        """Return the tables whose rows may be in segments."""
        return {}

    def waiting_rows(self) -> tuple[int, int]:
        """Return how many rows of each input the subclass has taken but not done."""
        return 0, 0

    def parts(self) -> tuple[dict[str, Any], dict[str, pa.Table]]:
        """Return the operator's whole state, rows in files included: JSON values, and tables with the key columns."""
        # The subclass removes what has expired when it makes its tables.
        tables = self._tables() | self._buffers(WaitingRows.read_all)
        return self._header(), tables | {name: rows.read_all() for name, rows in self.segmented_tables().items()}

    def snapshot(self) -> bytes:
        """Return the operator's whole state as versioned bytes."""
        return codec.encode(*self.parts())

    def flush(self) -> tuple[dict[str, Any], dict[str, pa.Table], int]:
        """Write memtables and waiting rows that are too large as files, and return the content of the state value.

        It is that of ``parts`` with the files' names in place of their rows. The last value is the bytes written.
        """
        if self.segmenting is not None:
            spilled = [held for side, held in enumerate(self._held) if self._spills(side)]
            self._written += sum(held.flush(self.segmenting) for held in spilled)
        tables, flushed = self._tables(), self.flush_tables()
        written, self._written = self._written, 0
        runs = {name: held.describe() for name, held in self._named() if held.runs}
        # Release 0.6, which deletes files that only snapshots name, refuses a state that has the entry.
        self._named_files = self._named_files or bool(runs or flushed.described)
        header = {**self._header(), SEGMENTS: flushed.described, **({codec.RUNS: runs} if self._named_files else {})}
        return header, {**tables, **flushed.tables}, written

    def flush_tables(self) -> Flushed:
        """Write memtables that are too large as segments; also between parts of a batch, which each copy them."""
        before = self.waiting_rows()
        flushed = flush(self.segmented_tables(), self.segmenting)
        for counts, were, are in zip(self.counts, before, self.waiting_rows(), strict=True):
            # Rows that have expired are done when a compaction removes them.
            counts.done += were - are
        self._written += flushed.written
        return flushed

    def _header(self) -> dict[str, Any]:
        return {
            "operator": type(self).__name__,
            "watermark": self.watermark.snapshot(),
            "counts": [counts.as_dict() for counts in self.counts],
            "rows_out": self.rows_out,
            "processing_time": self.processing_time,
            "saved": self.saved,
            **({} if self.table is None else {"table": self.table}),
        }

    def _tables(self) -> dict[str, pa.Table]:
        rejected = {
            f"rejected{number}": table for number, table in enumerate(self._rejected, start=1) if table.num_rows
        }
        return {**self._buffers(lambda held: held.memory), **rejected, **self.state_tables()}

    def _named(self) -> list[tuple[str, WaitingRows]]:
        return [(f"held{number}", held) for number, held in enumerate(self._held, start=1)]

    def _buffers(self, rows_of: Callable[[WaitingRows], pa.Table]) -> dict[str, pa.Table]:
        return {name: rows_of(held) for name, held in self._named()}

    def restore(self, data: bytes) -> None:
        """Restore what ``snapshot`` returned, or the encoded result of ``flush``."""
        self.load(*codec.decode(data))

    def load(self, header: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> None:
        """Restore what ``parts`` returned; a missing table is empty.

        Rows of an input that has changed since are converted to its present columns (``schema_evolution``).
        """
        if header.get("operator") != type(self).__name__:
            msg = (
                f"the checkpoint was written by {header.get('operator')}, the query runs {type(self).__name__}; "
                f"run the query that wrote it, or start with a new checkpoint"
            )
            raise CheckpointError(msg)
        held = (self._buffer(0, tables.get("held1")), self._buffer(1, tables.get("held2")))
        for name, rows in zip(("held1", "held2"), held, strict=True):
            rows.attach(header.get(codec.RUNS, {}).get(name, ()), self.segmenting)
        described = header.get(SEGMENTS, {})
        self._named_files = codec.RUNS in header
        own = without_shadowed(described, tables)
        self._rejected = [
            self._rejected_rows(spec, tables.get(f"rejected{number}"))
            for number, spec in enumerate(self.inputs, start=1)
        ]
        self.load_state_tables({name: table for name, table in own.items() if name not in _OWN})
        attach(self.segmented_tables(), described, tables, self.segmenting)
        self._held = held
        self.watermark.restore(header["watermark"])
        for counts, saved in zip(self.counts, header["counts"], strict=True):
            counts.restore(saved)
        self.rows_out = header["rows_out"]
        self.processing_time = header["processing_time"]
        self.saved = header.get("saved")
        self.table = header.get("table")

    def load_parts(self, header: Mapping[str, Any], tables: Mapping[str, pa.Table], *, keeps_counts: bool) -> None:
        """Restore this key group's part of a state that was cut into other key groups (``rescaling``).

        The counters of rows done and rejected can't be divided by key, so exactly one key group gets them
        (``keeps_counts``). Every key group counts its own buffered rows, so the law of conservation holds in each.
        """
        self.load(header, tables)
        if not keeps_counts:
            self.counts, self.rows_out = (InputCounts(), InputCounts()), 0
        self._count_rows_in()

    def load_spilled(self, header: Mapping[str, Any], spilled: SpilledTables, *, keeps_counts: bool) -> None:
        """Restore as ``load_parts`` does, with one range of hashes in memory at a time where the tables are in files.

        A range's rows are moved to files of the state where these may have them; the rest is loaded at the end.
        """
        whole = spilled.whole()
        if whole is not None:
            self.load_parts(header, whole, keeps_counts=keeps_counts)
            return
        assert self.segmenting is not None
        assert spilled.store is not None
        rest: list[dict[str, pa.Table]] = []
        runs: list[list[Run]] = [[], []]
        segments: dict[str, list[Segment]] = {}
        for last, tables in spilled.ranges():
            self.load(header, tables)
            for side, held in enumerate(self._held):
                runs[side] += held.move(spilled.store) if self._spills(side) else []
            for name, table in self.segmented_tables().items():
                segments.setdefault(name, []).extend(table.move(self.segmenting, last))
            rest.append(self._tables())
        self.load_parts(header, assemble(rest), keeps_counts=keeps_counts)
        for held, moved in zip(self._held, runs, strict=True):
            held.adopt(moved, spilled.store, self.segmenting)
        for name, table in self.segmented_tables().items():
            table.adopt(segments.get(name, []), self.segmenting)
        self._count_rows_in()

    def _count_rows_in(self) -> None:
        for counts, held, waiting in zip(self.counts, self._held, self.waiting_rows(), strict=True):
            counts.rows_in = counts.done + held.rows + waiting + counts.rejected.total()

    def input_rows(self, side: int, table: pa.Table | None) -> pa.Table:
        """Return stored rows in an input's present columns; key columns keep their types, which the hash depends on."""
        spec = self.inputs[side]
        return _stored_rows(spec, spec.schema, table)

    @staticmethod
    def _rejected_rows(spec: InputSpec, table: pa.Table | None) -> pa.Table:
        """Return stored rejected rows in ``remembered_columns``; earlier releases of cojoin stored all columns."""
        columns = [] if spec.changes is None else spec.changes.remembered_columns(spec.key)
        if table is not None:
            table = table.select([name for name in columns if name in table.column_names])
        return _stored_rows(spec, pa.schema([spec.schema.field(name) for name in columns]), table)

    def check_states(self) -> None:  # noqa: B027 - joins declare no states
        """Check that the restored states fit the declared ones, before any row is processed."""


def _by_time(rows: pa.Table, millis: NDArray[np.int64]) -> tuple[pa.Table, NDArray[np.int64]]:
    """Return rows sorted by their timestamps, and the sorted timestamps."""
    order = np.argsort(millis, kind="stable")
    return take_rows(rows, order), millis[order]


def _parted(rows: pa.Table, chosen: NDArray[np.bool_]) -> tuple[pa.Table, pa.Table]:
    """Return the chosen rows and the others, without a copy where one part is empty."""
    if chosen.all():
        return rows, rows.slice(0, 0)
    if not chosen.any():
        return rows.slice(0, 0), rows
    return rows.filter(pa.array(chosen)), rows.filter(pa.array(~chosen))


def _stored_rows(spec: InputSpec, schema: pa.Schema, table: pa.Table | None) -> pa.Table:
    """Return stored rows of an input in a schema; None means no rows."""
    if table is None:
        return schema.empty_table()
    return evolve(table, schema, f"input {spec.name!r}", fixed=spec.key)


def _of_readings(spec: InputSpec, watermark: InputWatermark) -> dict[str, Any]:
    """Return the report's entries on what holds an input back, its idleness and its promise, where there are any."""
    idleness, held_by, quiet_since = spec.watermark.idleness, watermark.held_by(), watermark.quiet_since()
    return {
        **({} if held_by is None else {"held_by": held_by}),
        **({} if idleness is None else {"has_idleness": True, "idle_after_ms": idleness.timeout_ms}),
        **({} if quiet_since is None else {"quiet_since": quiet_since}),
        **(
            {"promise": {**watermark.promise, "watermark": watermark.promised}}
            if watermark.promise is not None and spec.watermark.generator.takes_promises
            else {}
        ),
    }
