"""The snapshot of an operator: what it keeps, as JSON values and Arrow tables, and how that is restored.

It keeps the rows that wait for the watermark, the watermarks, the counters and the subclass's tables; while a commit of
a table's changes is half read, also the rejected versions of it (``row_changes``). ``parts`` and
``snapshot`` return all of it. ``flush`` returns what lies in the state value, and leaves the rows of segments where
they are. ``load`` restores a whole state, and ``load_parts`` one key group's part of a state that was divided anew.

The header names the operator's class, so that a query never continues another operator's state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.counts import InputCounts
from cojoin.engine.state.flushing import attach, flush
from cojoin.engine.state.segmented_table import without_shadowed
from cojoin.engine.time.operator_watermark import OperatorWatermark
from cojoin.engine.values import codec
from cojoin.engine.values.schema_evolution import evolve
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.state.segmented_table import SegmentedTable
    from cojoin.engine.state.segments import Segment, SegmentContext
    from cojoin.engine.time.operator_watermark import TimePolicy

__all__ = ["RestorableOperator"]


_OWN = frozenset({"held1", "held2", "rejected1", "rejected2"})
"""The tables of the operator itself."""


class RestorableOperator(ABC):
    """What an operator keeps for its key group, which can be written to a snapshot and restored from one.

    Args:
        inputs: The left and the right input.
        time: How the operator's watermark is computed from the inputs' watermarks.
    """

    saved: dict[str, Any] | None = None
    """Where the last snapshot of this state is stored, as noted by the caller; the engine only keeps it."""

    segmenting: SegmentContext | None = None
    """How the operator may read and write segments; None keeps all rows in the state value."""

    table: dict[str, Any] | None = None
    """The load of a table whose rows are the right input's (``TableLoad.as_dict``); None where none came."""

    def __init__(self, inputs: tuple[InputSpec, InputSpec], time: TimePolicy | None = None) -> None:
        self.inputs = inputs
        self.watermark = OperatorWatermark([spec.watermark for spec in inputs], time)
        self.counts = (InputCounts(), InputCounts())
        self.processing_time = 0
        self.rows_out = 0
        self._held = tuple(spec.schema.empty_table() for spec in inputs)
        self._rejected = [self._rejected_rows(spec, None) for spec in inputs]

    @abstractmethod
    def state_tables(self) -> dict[str, pa.Table]:
        """Return the subclass's state as tables; of ``segmented_tables`` the memtables."""

    @abstractmethod
    def load_state_tables(self, tables: dict[str, pa.Table]) -> None:
        """Restore what ``state_tables`` returned."""

    def segmented_tables(self) -> Mapping[str, SegmentedTable]:
        """Return the tables whose rows may lie in segments."""
        return {}

    def waiting_rows(self) -> tuple[int, int]:
        """Return how many rows of each input the subclass has taken but not done."""
        return 0, 0

    def parts(self) -> tuple[dict[str, Any], dict[str, pa.Table]]:
        """Return all that the operator keeps, in segments too: JSON values, and tables whose rows carry their keys."""
        tables = self._tables()
        return self._header(), tables | {name: rows.read_all() for name, rows in self.segmented_tables().items()}

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
            **({} if self.table is None else {"table": self.table}),
        }

    def _tables(self) -> dict[str, pa.Table]:
        held = {f"held{number}": table for number, table in enumerate(self._held, start=1)}
        rejected = {
            f"rejected{number}": table for number, table in enumerate(self._rejected, start=1) if table.num_rows
        }
        return {**held, **rejected, **self.state_tables()}

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
        return _stored_rows(spec, spec.schema, table)

    @staticmethod
    def _rejected_rows(spec: InputSpec, table: pa.Table | None) -> pa.Table:
        """Return stored rejected rows of an input in the columns that decide; earlier versions stored all columns."""
        columns = [] if spec.changes is None else spec.changes.remembered_columns(spec.key)
        if table is not None:
            table = table.select([name for name in columns if name in table.column_names])
        return _stored_rows(spec, pa.schema([spec.schema.field(name) for name in columns]), table)

    def check_states(self) -> None:  # noqa: B027 - joins declare no states
        """Check that the restored states fit the declared ones, before any row is processed.

        Raises:
            CheckpointError: A stored state can't become what is declared, or is no longer declared.
        """


def _stored_rows(spec: InputSpec, schema: pa.Schema, table: pa.Table | None) -> pa.Table:
    """Return stored rows of an input in a schema; None means no rows.

    Raises:
        CheckpointError: Their columns can't become those of the schema.
    """
    if table is None:
        return schema.empty_table()
    return evolve(table, schema, f"input {spec.name!r}", fixed=spec.key)
