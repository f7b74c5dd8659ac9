"""The operator over two keyed inputs on which every join and every function runs; each key group has one instance.

It keeps the rows that wait for the watermark, as one Arrow table for each input; each source partition's largest
timestamp; and the counters. It forgets a row once the row is done.

It processes a micro-batch's rows and control rows. It folds the watermarks first, so all key groups agree on the
watermark before the batch, which decides what is late, and on the watermark after it, which decides what is due. It
emits what is due in the same batch. At the end of input the watermark first advances as far as the rows move it, and
then to the end of time.

The law of conservation, for each batch and input: rows in = rows done + rows buffered + rows rejected. Subclasses count
the rows that they have done, and the rows that wait in their own buffers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from cojoin.engine.counts import InputCounts
from cojoin.engine.inputs import fault_table, rejected_table, split_admitted
from cojoin.engine.state.flushing import attach, flush
from cojoin.engine.state.segmented_table import own_tables
from cojoin.engine.time.operator_watermark import OperatorWatermark, TimePolicy
from cojoin.engine.time.watermarks import END_OF_TIME
from cojoin.engine.values import codec
from cojoin.engine.values.schema_evolution import evolve
from cojoin.engine.values.tables import concat
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cojoin.engine.inputs import InputSpec, LatePolicy
    from cojoin.engine.state.segmented_table import SegmentedTable
    from cojoin.engine.state.segments import Segment, SegmentContext
    from cojoin.engine.time.operator_watermark import Control

__all__ = ["OUTPUT", "REJECTED", "Batch", "Emission", "InputCounts", "Operator", "Sides"]

OUTPUT, REJECTED = "output", "rejected"
"""The names of the main output and of the output of rejected rows; a side output is named by its tag's id."""

Sides: TypeAlias = "tuple[pa.Table, pa.Table]"
"""The rows of the left (first) and of the right (second) input."""


@dataclass(frozen=True)
class Batch:
    """One key group's part of a micro-batch.

    Attributes:
        rows: The rows of both inputs, as they came.
        controls: What the map tasks observed of both inputs.
        end_of_input: Whether all inputs are finished after these rows.
        processing_time: The micro-batch's processing time in epoch milliseconds; 0 where only the controls have it, or
            it is unknown.
        resumed: Whether the query was not running before this batch, so that the silence since the last batch does not
            count.
        holds: For some inputs, by number, how far their watermark may advance in this batch, in epoch milliseconds,
            since their source is known to have more rows from then on.
    """

    rows: Sides
    controls: Sequence[Control] = ()
    end_of_input: bool = False
    processing_time: int = 0
    resumed: bool = False
    holds: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Emission:
    """A piece of an operator's output.

    Attributes:
        kind: The output to which it belongs: ``"output"``, ``"rejected"``, or a side output's tag id.
        table: Rows in that output's schema.
    """

    kind: str
    table: pa.Table


class Operator(ABC):
    """The operator of one key group: restore, process, snapshot, close. Subclasses decide what a due row does.

    Args:
        inputs: The left and the right input.
        late: What happens to late rows of each input, where the input does not say.
        time: How the operator's watermark is computed from the inputs' watermarks.
        holds_rows: Whether rows wait until the watermark passes them; otherwise they are due at once.
    """

    output_delay_ms: int = 0
    """How far an output row's event time may be behind the watermark when the row is emitted, in milliseconds."""

    saved: dict[str, Any] | None = None
    """Where the last snapshot of this state is stored, as noted by the caller; the engine only keeps it."""

    segmenting: SegmentContext | None = None
    """How the operator may read and write segments; None keeps all rows in the state value."""

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
        self._held = tuple(spec.schema.empty_table() for spec in inputs)

    @abstractmethod
    def advance(self, due: Sides, before: int, after: int, last_event: int | None) -> Iterator[Emission]:
        """Process the rows that are due, and emit what the watermark's advance makes due.

        It adds the rows that are done to ``counts``; ``waiting_rows`` counts those that it keeps.

        Args:
            due: The due rows of both inputs, in no order.
            before: The operator's watermark before, in epoch milliseconds.
            after: The operator's watermark after, in epoch milliseconds.
            last_event: At the end of time, the largest timestamp seen in any input; else None.
        """

    @abstractmethod
    def state_tables(self) -> dict[str, pa.Table]:
        """Return the subclass's state as tables; of ``segmented_tables`` the memtables."""

    @abstractmethod
    def load_state_tables(self, tables: dict[str, pa.Table]) -> None:
        """Restore what ``state_tables`` returned."""

    def process(self, batch: Batch) -> Iterator[Emission]:
        """Process a micro-batch; exhaust the iterator before taking a report or a snapshot."""
        before = self.watermark.current()
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
            self.counts[control.input - 1].rows_in += control.rows + len(control.faults)
            yield from self._reject_faults(control, before)
        self.watermark.tick(self.processing_time)
        after = self.watermark.current()
        waiting = []
        for side in (0, 1):
            fresh, rejections = self._admit(side, batch.rows[side], before)
            yield from rejections
            waiting.append(concat([self._held[side], fresh]))
        last_event = self.watermark.max_timestamp()
        ends = after == END_OF_TIME
        yield from self._advance_to((waiting[0], waiting[1]), before, after, last_event if ends else None)
        if batch.end_of_input and not ends:
            self.watermark.finish()
            yield from self._advance_to((self._held[0], self._held[1]), after, self.watermark.current(), last_event)

    def _reject_faults(self, control: Control, watermark: int) -> Iterator[Emission]:
        """Count the faults, which the source returned instead of rows, and emit them as rejected."""
        if control.faults:
            self.counts[control.input - 1].rejected.update(reason for reason, _ in control.faults)
            name = self.inputs[control.input - 1].name
            yield Emission(REJECTED, fault_table(control.faults, name, watermark))

    def _admit(self, side: int, rows: pa.Table, watermark: int) -> tuple[pa.Table, list[Emission]]:
        """Split rows into those to process and those to reject; count the rejected and the late ones."""
        spec, counts = self.inputs[side], self.counts[side]
        admitted, rejected = split_admitted(rows, spec, self.processing_time)
        late = spec.millis(admitted) <= watermark
        if spec.event_time is not None and late.any():
            if self._late[side] == "reject":
                rejected["late"] = admitted.filter(pa.array(late))
                admitted = admitted.filter(pa.array(~late))
            else:
                counts.late_applied += int(late.sum())
        for reason, table in rejected.items():
            counts.rejected[reason] += table.num_rows
        return admitted, [
            Emission(REJECTED, rejected_table(table, spec, reason, watermark)) for reason, table in rejected.items()
        ]

    def _advance_to(self, waiting: Sides, before: int, after: int, last_event: int | None) -> Iterator[Emission]:
        due, held = [], []
        for spec, table in zip(self.inputs, waiting, strict=True):
            is_due = spec.millis(table) <= after
            if not self._holds_rows or is_due.all():
                due.append(table)
                held.append(table.slice(0, 0))
            else:
                due.append(table.filter(pa.array(is_due)))
                held.append(table.filter(pa.array(~is_due)))
        self._held = (held[0], held[1])
        for emission in self.advance((due[0], due[1]), before, after, last_event):
            if emission.table.num_rows:
                if emission.kind == OUTPUT:
                    self.rows_out += emission.table.num_rows
                yield emission

    def segmented_tables(self) -> Mapping[str, SegmentedTable]:
        """Return the tables whose rows may lie in segments."""
        return {}

    def waiting_rows(self) -> tuple[int, int]:
        """Return how many rows of each input the subclass has taken but not done."""
        return 0, 0

    def held_rows(self) -> Sides:
        """Return the rows of both inputs that wait for the watermark."""
        return self._held[0], self._held[1]

    def close(self) -> None:  # noqa: B027 - most operators hold nothing
        """Release what the operator holds; called once, also after an error."""

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
                }
                for each in self.watermark.inputs
            ],
            "holding_input": self.watermark.holding_input(),
            "processing_time": self.processing_time,
            "details": self.details(),
        }

    def details(self) -> dict[str, int]:
        """Return the counters that the subclass adds to the report."""
        return {}

    def parts(self) -> tuple[dict[str, Any], dict[str, pa.Table]]:
        """Return all that the operator keeps, in segments too: JSON values, and tables whose rows carry their keys."""
        tables = self._tables()
        return self._header(), tables | {name: rows.whole() for name, rows in self.segmented_tables().items()}

    def snapshot(self) -> bytes:
        """Return all that the operator keeps, as versioned bytes."""
        return codec.encode(*self.parts())

    def flush(self) -> tuple[dict[str, Any], dict[str, pa.Table], int]:
        """Return the content of the state value, after memtables that are too large were written as segments.

        Returns:
            As ``parts``, but with the segments' names in place of their rows; and the number of bytes written.
        """
        tables = self._tables()
        flushed = flush(self.segmented_tables(), self.segmenting)
        return {**self._header(), "segments": flushed.described}, {**tables, **flushed.tables}, flushed.written

    def segments(self) -> list[Segment]:
        """Return the segments that the state names."""
        return [segment for rows in self.segmented_tables().values() for segment in rows.segments]

    def _header(self) -> dict[str, Any]:
        return {
            "operator": type(self).__name__,
            "watermark": self.watermark.snapshot(),
            "counts": [counts.as_dict() for counts in self.counts],
            "rows_out": self.rows_out,
            "processing_time": self.processing_time,
            "saved": self.saved,
        }

    def _tables(self) -> dict[str, pa.Table]:
        held = {f"held{number}": table for number, table in enumerate(self._held, start=1)}
        return {**held, **self.state_tables()}

    def restore(self, data: bytes) -> None:
        """Restore what ``snapshot`` returned, or the encoded result of ``flush``.

        Raises:
            CodecError: The bytes can't be read.
            CheckpointError: As ``load`` says.
        """
        self.load(*codec.decode(data))

    def load(self, header: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> None:
        """Restore what ``parts`` returned.

        Rows of an input that has changed since are converted to its present columns (``schema_evolution``).

        Args:
            header: The JSON values.
            tables: The tables; a missing one is empty.

        Raises:
            CheckpointError: They were written by another operator, or have columns that can't become the inputs'.
        """
        if header.get("operator") != type(self).__name__:
            msg = (
                f"the checkpoint was written by {header.get('operator')}, the query runs {type(self).__name__}; "
                f"run the query that wrote it, or start with a new checkpoint"
            )
            raise CheckpointError(msg)
        held = (self.input_rows(0, tables.get("held1")), self.input_rows(1, tables.get("held2")))
        described = header.get("segments", {})
        own = own_tables(described, tables)
        self.load_state_tables({name: table for name, table in own.items() if name not in {"held1", "held2"}})
        attach(self.segmented_tables(), described, tables, self.segmenting)
        self._held = held
        self.watermark.restore(header["watermark"])
        for counts, saved in zip(self.counts, header["counts"], strict=True):
            counts.restore(saved)
        self.rows_out = header["rows_out"]
        self.processing_time = header["processing_time"]
        self.saved = header.get("saved")

    def load_parts(self, header: Mapping[str, Any], tables: Mapping[str, pa.Table], *, keeps_counts: bool) -> None:
        """Restore this key group's part of a state that was cut into other key groups (``rescaling``).

        The counters of rows done and rejected can't be divided by key, so one key group gets all of them. Every key
        group counts its own buffered rows, so the law of conservation holds in each.

        Args:
            header: The merged header, the same for every key group.
            tables: This key group's tables; a missing one is empty.
            keeps_counts: Whether this key group gets those counters; exactly one must.

        Raises:
            CheckpointError: As ``load`` says.
        """
        self.load(header, tables)
        if not keeps_counts:
            self.counts, self.rows_out = (InputCounts(), InputCounts()), 0
        for counts, held, waiting in zip(self.counts, self._held, self.waiting_rows(), strict=True):
            counts.rows_in = counts.done + held.num_rows + waiting + counts.rejected.total()

    def input_rows(self, side: int, table: pa.Table | None) -> pa.Table:
        """Return stored rows of an input in its present columns.

        The key columns keep their types, since the hash of a key decides its key group.

        Args:
            side: 0 for the left input, 1 for the right.
            table: The rows as they were stored; None means no rows.

        Raises:
            CheckpointError: Their columns can't become the input's.
        """
        spec = self.inputs[side]
        if table is None:
            return spec.schema.empty_table()
        return evolve(table, spec.schema, f"input {spec.name!r}", fixed=spec.key)

    def check_states(self) -> None:  # noqa: B027 - joins declare no states
        """Check that the restored states fit the declared ones, before any row is processed.

        Raises:
            CheckpointError: A stored state can't become what is declared, or is no longer declared.
        """
