"""The operator over two keyed inputs on which every join and every function runs; each key group has one instance.

It buffers the rows that wait for the watermark, as one Arrow table for each input. It keeps each source partition's
largest timestamp, and the counters. It removes a row from its buffer once it passes the row to the subclass.

It processes a micro-batch's rows and control rows. It folds the watermarks first, so all key groups agree on the
watermark before the batch, which decides what is late, and on the watermark after it, which decides what is due. It
emits what is due in the same batch. At the end of input the watermark first advances as far as the rows move it, and
then to the end of time.

The law of conservation, for each input: rows in = rows done + rows buffered + rows rejected, counted since the query's
first batch. Subclasses count the rows that they have done, and the rows that wait in buffers of their own. A version of
a join is done once the watermark has reached it, although the join keeps it.

A row with a null key that was admitted is due at its own time, and then emitted without a match, and done: the subclass
never sees it. This also holds after a restore into a query whose input rejects such rows.

It costs a comparison of each buffered row's time in each batch, and a copy of the buffered and the due rows where some
are due and others are not.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from cojoin.engine.inputs import fault_table, has_null_key, rejected_table, split_admitted
from cojoin.engine.operator_snapshot import RestorableOperator
from cojoin.engine.time.control_rows import ONE_PARTITION
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.rows import beyond_python
from cojoin.engine.values.tables import concat, up_to_millis
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cojoin.engine.inputs import InputSpec, LatePolicy
    from cojoin.engine.table_load import TableLoad
    from cojoin.engine.time.control_rows import Control
    from cojoin.engine.time.input_watermark import InputWatermark
    from cojoin.engine.time.operator_watermark import TimePolicy

__all__ = ["OUTPUT", "REJECTED", "Batch", "Emission", "Operator", "Sides"]

OUTPUT, REJECTED = "output", "rejected"
"""The names of the main output and of the output of rejected rows; a side output is named by its tag's id."""

_BEYOND = "time_beyond_python"

Sides: TypeAlias = "tuple[pa.Table, pa.Table]"
"""The rows of the left (first) and of the right (second) input."""


@dataclass(frozen=True)
class Batch:
    """One key group's part of a micro-batch.

    Attributes:
        rows: The rows of both inputs, as they came.
        controls: What the map tasks observed of both inputs.
        end_of_input: Whether all inputs are finished after these rows.
        processing_time: The micro-batch's processing time in epoch milliseconds; 0 if it is unknown. The largest value
            in the controls is used if it is greater.
        resumed: Whether the query was not running before this batch, so that idleness timeouts restart.
        holds: The upper bounds of the inputs' watermarks in this batch, in epoch milliseconds, by input number; an
            input has one if its source is known to have more rows from then on.
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
    """A piece of an operator's output.

    Attributes:
        kind: The output to which it belongs: ``"output"``, ``"rejected"``, or a side output's tag id.
        table: Rows in that output's schema.
    """

    kind: str
    table: pa.Table


class Operator(RestorableOperator):
    """The operator of one key group; subclasses decide what a due row does.

    Its methods are called in this order: restore, process, then flush or snapshot, then close.

    Args:
        inputs: The left and the right input.
        late: What happens to late rows of each input, where the input does not say.
        time: How the operator's watermark is computed from the inputs' watermarks.
        holds_rows: Whether rows are buffered until the watermark reaches them; otherwise they are due at once.
    """

    output_delay_ms: int = 0
    """How far an output row's event time may be behind the watermark when the row is emitted, in milliseconds."""

    shows_rows: bool = False
    """Whether a user's function sees the rows, as Python's values; those with a time that has none are rejected."""

    def __init__(
        self,
        inputs: tuple[InputSpec, InputSpec],
        late: tuple[LatePolicy, LatePolicy],
        time: TimePolicy | None = None,
        *,
        holds_rows: bool = True,
    ) -> None:
        super().__init__(inputs, time)
        self._late = tuple(spec.late or default for spec, default in zip(inputs, late, strict=True))
        self._holds_rows = holds_rows

    @abstractmethod
    def advance(self, due: Sides, before: int, after: int, last_event: int | None) -> Iterator[Emission]:
        """Process the rows that are due, and emit what the watermark's advance makes due.

        It adds the rows that are done to ``counts``; ``waiting_rows`` counts those that it keeps.

        Args:
            due: The due rows of both inputs, in no order.
            before: The operator's watermark before this advance, in epoch milliseconds.
            after: The operator's watermark after this advance, in epoch milliseconds.
            last_event: At the end of time, the largest timestamp seen in any input; else None.
        """

    def unmatched(self, side: int, rows: pa.Table) -> pa.Table:
        """Return rows of a side that match nothing as rows of the output, in the total order.

        Args:
            side: 0 for the left input, 1 for the right.
            rows: Its rows, which have a null key.

        Raises:
            CheckpointError: The operation emits none; only a state that is not its own has them.
        """
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
            is_within = side + 1 in batch.holds and not batch.end_of_input
            kept, open_ = self._without_superseded(side, concat([self._held[side], fresh]), is_within=is_within)
            waiting.append(kept)
            undecided.append(open_)
        last_event = self.watermark.max_timestamp()
        ends = after == END_OF_TIME
        yield from self._advance_to((waiting[0], waiting[1]), before, after, last_event if ends else None)
        self._held = (concat([self._held[0], undecided[0]]), concat([self._held[1], undecided[1]]))
        if batch.end_of_input and not ends:
            self.watermark.finish()
            yield from self._advance_to((self._held[0], self._held[1]), after, self.watermark.current(), last_event)

    def _take_load(self, load: TableLoad) -> None:
        """Finish the right input, and forget its rows before a refresh."""
        right = self.watermark.inputs[1]
        if load.largest is not None:
            right.observe(ONE_PARTITION, load.largest)
        right.set_status(None, "finished")
        self.counts[1].rows_in += load.rows
        if self.table is not None:
            self.counts[1].done += self._held[1].num_rows
            self._held = (self._held[0], self.inputs[1].schema.empty_table())
            self.forget_table()
        self.table = load.as_dict(self.processing_time)

    def forget_table(self) -> None:
        """Forget all rows of the right input that the subclass keeps, before those of a refresh come.

        Raises:
            CheckpointError: The operation can't forget them; its query allows no refresh.
        """
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

    def _without_superseded(self, side: int, waiting: pa.Table, *, is_within: bool) -> Sides:
        """Split off the deletes that are replaced in their own commit, which are counted as done.

        Args:
            side: 0 for the left input, 1 for the right.
            waiting: The rows that are buffered or new.
            is_within: Whether more rows of the same commit may come.

        Returns:
            The other rows, and of them the deletes that wait until their commit is read, since rejected versions of it
            may replace them.
        """
        spec, counts, rejected = self.inputs[side], self.counts[side], self._rejected[side]
        if spec.changes is None:
            return waiting, waiting.slice(0, 0)
        kept = spec.changes.without_superseded(waiting, spec.key)
        undecided = kept.slice(0, 0)
        if rejected.num_rows:
            half_read = spec.changes.of_newest_commit(rejected, waiting) if is_within else rejected.slice(0, 0)
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
        """Split rows into those to process and those to reject; count the rejected and the late ones.

        Args:
            side: 0 for the left input, 1 for the right.
            rows: Its rows.
            watermark: The watermark by which they are late, in epoch milliseconds.
            snapshot: The version of the table that is the initial snapshot of its feed; None where none may come.
            promised: The time up to which late rows have broken their table's promise, in epoch milliseconds.
        """
        spec, counts = self.inputs[side], self.counts[side]
        if spec.changes is not None and spec.max_ahead_ms is not None:
            rows = spec.changes.deletes_in_time(rows, self.processing_time + spec.max_ahead_ms)
        admitted, rejected = split_admitted(rows, spec, self.processing_time)
        if spec.changes is not None:
            admitted = spec.changes.from_the_beginning(admitted, snapshot)
        if self.shows_rows and (beyond := beyond_python(admitted)).any():
            rejected[_BEYOND] = admitted.filter(pa.array(beyond))
            admitted = admitted.filter(pa.array(~beyond))
        late = up_to_millis(spec.micros(admitted), watermark)
        if spec.event_time is not None and late.any():
            if promised > NONE and spec.changes is not None:
                broken = admitted.filter(pa.array(up_to_millis(spec.micros(admitted), promised)))
                counts.add_late_commits(spec.changes.commits_of(broken))
            if self._late[side] == "reject":
                rejected["late"] = admitted.filter(pa.array(late))
                admitted = admitted.filter(pa.array(~late))
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
        """Select the due rows, buffer the others, run the subclass, and count the output.

        Args:
            waiting: The rows of both inputs that are buffered or new.
            before: The operator's watermark before this advance, in epoch milliseconds.
            after: The operator's watermark after this advance, in epoch milliseconds.
            last_event: At the end of time, the largest timestamp seen in any input; else None.
        """
        due, held = [], []
        for spec, table in zip(self.inputs, waiting, strict=True):
            is_due = up_to_millis(spec.micros(table), max(after, self._due_at_once(spec)))
            if not self._holds_rows or spec.event_time is None or is_due.all():
                due.append(table)
                held.append(table.slice(0, 0))
            elif not is_due.any():
                due.append(table.slice(0, 0))
                held.append(table)
            else:
                due.append(table.filter(pa.array(is_due)))
                held.append(table.filter(pa.array(~is_due)))
        self._held = (held[0], held[1])
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
        is_null = has_null_key(due[side], key)
        rows = due[side].filter(pa.array(is_null))
        due[side] = due[side].filter(pa.array(~is_null))
        self.counts[side].done += rows.num_rows
        return [Emission(OUTPUT, self.unmatched(side, rows))]

    def _take_beyond_python(self, side: int, due: list[pa.Table], watermark: int) -> list[Emission]:
        """Reject the due rows that no function can see; only cojoin 0.5 and earlier have buffered such rows."""
        if not self.shows_rows or not (beyond := beyond_python(due[side])).any():
            return []
        rows = due[side].filter(pa.array(beyond))
        due[side] = due[side].filter(pa.array(~beyond))
        self.counts[side].rejected[_BEYOND] += rows.num_rows
        return [Emission(REJECTED, rejected_table(rows, self.inputs[side], _BEYOND, watermark))]

    def _due_at_once(self, spec: InputSpec) -> int:
        """Return the time up to which an input's rows are due whatever the watermark, in epoch milliseconds."""
        del spec
        return NONE

    def held_rows(self) -> Sides:
        """Return the buffered rows of both inputs, which wait for the watermark."""
        return self._held[0], self._held[1]

    def close(self) -> None:
        """Release the operator's resources; called once, also after an error."""

    def report(self) -> dict[str, Any]:
        """Return the counters, buffers and watermarks after the batch, as JSON values."""
        return {
            "inputs": [
                counts.as_dict() | {"buffered": held.num_rows + waiting}
                for counts, held, waiting in zip(self.counts, self._held, self.waiting_rows(), strict=True)
            ],
            "rows_out": self.rows_out,
            "watermark": self.watermark.current(),
            "output_delay_ms": self.output_delay_ms,
            "input_watermarks": [
                {
                    "watermark": each.current(),
                    "max_timestamp": each.max_timestamp(),
                    "partitions": each.partitions(),
                    "holding_partition": each.holding_partition(),
                    "status": each.status(),
                    "source_agrees": each.source_agrees,
                    "idle_partitions": [name for name, status in each.statuses().items() if status == "idle"],
                    **_of_feed(spec),
                    **_of_readings(spec, each),
                    **({} if spec.reading is None else {"reading": spec.reading}),
                    **({"table": self.table} if side and self.table is not None else {}),
                }
                for side, (spec, each) in enumerate(zip(self.inputs, self.watermark.inputs, strict=True))
            ],
            "holding_input": self.watermark.holding_input(),
            "processing_time": self.processing_time,
            "details": self.details(),
        }

    def details(self) -> dict[str, int]:
        """Return the counters that the subclass adds to the report."""
        return {}


def _of_readings(spec: InputSpec, watermark: InputWatermark) -> dict[str, Any]:
    """Return a report's values of how an input is held, of its idleness and of its promise, where it has them."""
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


def _of_feed(spec: InputSpec) -> dict[str, bool]:
    """Return what a report says of an input that is the changes of a table; nothing of others."""
    return {} if spec.changes is None or not spec.changes.is_feed else {"reads_changes": True}
