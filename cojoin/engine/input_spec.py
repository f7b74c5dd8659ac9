"""An input as the engine sees it, the check that admits or rejects its rows, and the times that admitted rows report.

A row is rejected if its event time or known time is null, if it is too far ahead of the clock, if its key is null
(unless its input lets such rows out unmatched), or if its validity ends before it begins; the first of these reasons is
reported. The operator, which has the watermark, decides whether a row is late. The map side runs the same check, so
both always agree.

Watermarks are computed from the largest timestamp and mark of each source partition in a batch (``ObservedTimes``). Of
the rejected rows only those with a null key count, since their event time is valid. A delete of a table or of a row's
validity (``row_changes``) neither moves the watermark nor is it too far ahead, unless its time is that of its commit.
That costs one pass over the times, and one grouping if the input has partition columns.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.key_groups import is_hashed
from cojoin.engine.row_changes import DELETED, NEVER_ENDS
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.time_axis import TimeAxis, micros_of
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.arguments import check_word
from cojoin.engine.values.rows import Row, decode_column, decode_rows, dump_json
from cojoin.engine.values.tables import event_millis
from cojoin.errors import ConfigurationError, FunctionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from cojoin.engine.operator import Sides
    from cojoin.engine.ordering import Ranks
    from cojoin.engine.row_changes import RowChanges
    from cojoin.engine.time.known_time import KnownTime

LatePolicy: TypeAlias = Literal["reject", "apply"]
"""The treatment of a row at or below the operator's watermark before its batch.

- *reject*: it goes to the ``rejected`` output.
- *apply*: it is processed nevertheless, and counted as ``late_applied``.
"""

NullKeyPolicy: TypeAlias = Literal["reject", "unmatched"]
"""The treatment of a row if any column of its key is null; it matches no other row, as in SQL.

- *reject*: it goes to the ``rejected`` output.
- *unmatched*: it waits for its own time, as every row does, and is then emitted as a row without a match.
"""

Reason: TypeAlias = Literal[
    "null_key",
    "null_event_time",
    "null_known_at",
    "too_far_ahead",
    "moved_back",
    "ends_before_it_begins",
    "no_moment",
    "time_beyond_python",
    "late",
    "undecodable",
    "unavailable_value",
    "tombstone",
    "gone",
]
"""The reason why a row is rejected. A table's row keeps its former state if the new one is rejected (``row_changes``).

- *null_key*: a column of its key is null.
- *null_event_time*: its event time is null.
- *null_known_at*: its known time is null.
- *too_far_ahead*: its event time, or its known time, is later than the batch's processing time by more than
  ``max_ahead``.
- *moved_back*: a change of its table has moved its event time back. By known times the new row would never match, since
  the end of the former one is later.
- *ends_before_it_begins*: its ``valid_to`` is before its ``valid_from``.
- *no_moment*: its event time, or its known time, is out of the range of timestamps in its unit or zone; or a clock
  change repeats it or leaves it out, and ``clock_change`` is ``"reject"``.
- *time_beyond_python*: a time of it is beyond the years 1 to 9999, which Python's datetimes can't show to a function.
- *late*: its timestamp is at or below the operator's watermark before its batch.
- *undecodable*: its source returned a record that does not decode as a row of the input (``cojoin.kafka``).
- *unavailable_value*: its source could not read a value of it, as Debezium large ones that an update did not change.
- *tombstone*: its source returned a record without a value.
- *gone*: its source no longer has a range of records; the whole range is one row.
"""

_ADMITTED, _NULL_KEY = 0, 1
_REASONS = ("null_key", "null_event_time", "too_far_ahead", "ends_before_it_begins", "no_moment", "null_known_at")

_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Spark's spelling of the floats that JSON numbers can't express."""

_TIME = pa.timestamp("us", "UTC")

_BEGINNING = -(1 << 63)
"""The time in epoch microseconds from which rows of a table without event time are known."""

_LAST = (1 << 63) - 1
"""The end in epoch microseconds of a row whose validity has none."""

DIRECT = "direct"
"""How rows are read that the workers make of files or records, and not Spark (``InputSpec.reading``)."""

REJECTED_SCHEMA = pa.schema(
    [
        pa.field("input", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("watermark", pa.int64()),
        pa.field("event_time", _TIME),
        pa.field("row", pa.string()),
    ]
)
"""The columns of a rejected row of any input: the input's name, the reason, the operator's watermark before the batch
(in epoch milliseconds, null where there is none), the row's event time, and the whole row as JSON."""

STAMPED_SCHEMA = pa.schema([*REJECTED_SCHEMA, pa.field("batch_id", pa.int64()), pa.field("processing_time", _TIME)])
"""The columns of a query's table of rejected rows: those, then the micro-batch and its processing time."""


@dataclass(frozen=True)
class InputSpec:
    """The specification of one input of the operator. It is picklable, and holds no data and no Spark objects.

    Attributes:
        name: The input's name in messages and reports, such as ``"trades"``.
        schema: Its declared columns; event time is ``timestamp[us, UTC]``, or as ``axis`` says.
        key: The names of its key columns.
        event_time: Its event-time column; None where its rows have no event time (``order="arrival"`` only).
        partition: The columns that identify a row's source partition; none means one partition.
        sequence: The columns that order rows of one partition at the source, such as Kafka's offset.
        watermark: The strategy that computes its watermark.
        max_ahead_ms: How far a row may be ahead of processing time, in milliseconds; None means any distance.
        late: What happens to late rows; None means the operation's default.
        static: Whether its rows are a version of a table, which come at once (``TableLoad``). Without event time they
            are known from the beginning of time.
        refreshes: Whether later versions of the table replace its rows.
        changes: The reading of its rows as versions and deletes; None where they are neither.
        reading: How files or topics are read: ``DIRECT``, or the reason why Spark reads them. None for other sources.
        null_key: What happens to rows with a null in their key.
        axis: The meaning of event times without a zone, dates and whole numbers; None for timestamps.
        known: The time from which its rows are known, as versions of a join; None where that is their event time.
        row_number: A column that numbers the rows of a run in memory. If both inputs have one, a join's result is the
            numbers of its rows, and the rest is left to the caller (``embedded.frame_matches``).
    """

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    event_time: str | None
    partition: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    watermark: WatermarkStrategy = field(default_factory=WatermarkStrategy)
    max_ahead_ms: int | None = None
    late: LatePolicy | None = None
    static: bool = False
    refreshes: bool = False
    changes: RowChanges | None = None
    reading: str | None = None
    null_key: NullKeyPolicy = "reject"
    axis: TimeAxis | None = None
    known: KnownTime | None = None
    row_number: str | None = None

    def event_micros(self, table: pa.Table) -> NDArray[np.int64]:
        """Return the event times of rows of this input in epoch microseconds.

        A null is 0. Without event time all rows have one time: 0, or the beginning of time for a table's rows. With
        known times the deletes of a feed have their commit's time, if that is later.
        """
        if self.event_time is None:
            return np.full(table.num_rows, _BEGINNING if self.static else 0, dtype=np.int64)
        return self._not_before_commits(table, micros_of(table, self.event_time, self.axis))

    def _not_before_commits(self, table: pa.Table, micros: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return times of rows where, with known times, those of a feed's deletes are not before their commits."""
        if self.known is None or self.changes is None or self.known.committed_at is None:
            return micros
        commits = micros_of(table, self.known.committed_at, None)
        return np.where(self.changes.deleted(table), np.maximum(micros, commits), micros)

    @property
    def clock(self) -> str | None:
        """The column by which its watermark moves: the known time's if it is one, else the event time's."""
        return self.event_time if self.known is None or self.known.column is None else self.known.column

    def ends(self, table: pa.Table) -> NDArray[np.int64]:
        """Return the ends of rows with known times and a span of validity, in epoch microseconds; the last for none."""
        assert self.known is not None
        assert self.known.valid_to is not None
        ends = micros_of(table, self.known.valid_to, self.axis)
        has_none = pc.is_null(table.column(self.known.valid_to)).to_numpy() | (ends >= NEVER_ENDS)
        return np.where(has_none, _LAST, ends)

    def without_time(self, table: pa.Table) -> NDArray[np.bool_]:
        """Return which rows have a null in the columns of ``micros``."""
        columns = [self.event_time, None if self.known is None else self.known.column]
        return has_null_key(table, [name for name in columns if name is not None])

    def known_micros(self, table: pa.Table) -> NDArray[np.int64]:
        """Return the known times of rows in epoch microseconds; a feed's delete is known at its commit, or later."""
        assert self.known is not None
        return self._not_before_commits(table, self.known.micros(table, self.event_micros(table)))

    def micros(self, table: pa.Table) -> NDArray[np.int64]:
        """Return the times by which the watermark passes rows: event times, or effective times (``known_time``)."""
        micros = self.event_micros(table)
        # A feed's deletes have their commit's time, at least.
        return micros if self.known is None else self.known.effective(table, micros)

    def moments(self, table: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Return the event times of rows of this input as ``timestamp[us, UTC]``; null where a row has none."""
        if self.event_time is None:
            return pa.nulls(table.num_rows, _TIME)
        times = table.column(self.event_time)
        return times.cast(_TIME) if self.axis is None else self.axis.timestamps(times)

    def clock_changed(self, rows: pa.Table) -> int:
        """Return the number of event times, or of begins and ends, that a clock change repeats or leaves out."""
        if self.changes is not None:
            return self.changes.clock_changed(rows)
        named = [(self.axis, self.event_time)]
        named += [] if self.known is None else [(self.known.axis, self.known.column)]
        return sum(int(axis.changed(rows.column(name)).sum()) for axis, name in named if axis and name)

    @property
    def declared_axis(self) -> TimeAxis | None:
        """The meaning of times as the input declares it, which may be that of its known times alone."""
        return self.time_axis or (None if self.known is None else self.known.axis)

    @property
    def time_axis(self) -> TimeAxis | None:
        """The meaning of the source's times: of its event times, or of its spans of validity."""
        return self.axis if self.changes is None else self.changes.axis

    def millis(self, table: pa.Table) -> NDArray[np.int64]:
        """Return ``micros`` in epoch milliseconds."""
        return event_millis(self.micros(table))

    def ahead_millis(self, table: pa.Table) -> NDArray[np.int64]:
        """Return the times that may not be too far ahead of the clock, in epoch milliseconds; a delay is left out."""
        has_delay = self.known is not None and self.known.column is None
        return event_millis(self.event_micros(table) if has_delay else self.micros(table))

    def timestamps(self, table: pa.Table) -> NDArray[np.int64]:
        """Return the timestamps of rows of this input in epoch milliseconds; ``NONE`` if it has no event time."""
        if self.event_time is None:
            return np.full(table.num_rows, NONE, dtype=np.int64)
        return self.millis(table)

    def keys(self, table: pa.Table) -> pa.Table:
        """Return the key columns of a table of this input."""
        return table.select(list(self.key))

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns, with their types."""
        return pa.schema([self.schema.field(name) for name in self.key])

    @property
    def spreading(self) -> tuple[str, ...]:
        """The columns by whose hash rows with a null key are spread over the key groups; their keys have few hashes."""
        return tuple(field.name for field in self.source_schema if is_hashed(field.type))

    @property
    def source_order(self) -> tuple[str, ...]:
        """The columns of the source's own order: the partition's, then the sequence's, each once."""
        return tuple(dict.fromkeys((*self.partition, *self.sequence)))

    @property
    def source_schema(self) -> pa.Schema:
        """The columns of the source's rows, without those that are added when they are made versions and deletes."""
        added = {field.name for field in self.changes.added} if self.changes else ()
        return pa.schema([field for field in self.schema if field.name not in added])

    @property
    def deletes(self) -> str | None:
        """The boolean column that is true in deletes; None if the rows have no deletes."""
        return None if self.changes is None else DELETED

    @property
    def technical(self) -> tuple[str, ...]:
        """The columns that a join's result leaves out, since they only say how rows are versions and deletes."""
        return () if self.changes is None else self.changes.technical

    @property
    def ranks(self) -> Ranks | None:
        """The ranks of rows of one microsecond, before the source's own order and after it; None if they have none."""
        return None if self.changes is None else self.changes.ranks

    def moving(self, table: pa.Table) -> NDArray[np.bool_]:
        """Return which rows may move the watermark, and be too far ahead of the clock."""
        return np.ones(table.num_rows, dtype=bool) if self.changes is None else self.changes.moves_time(table)


def reject_reasons(table: pa.Table, spec: InputSpec, processing_time: int) -> NDArray[np.int8]:
    """Return for each row, judged alone, 0 if it is admitted, else its reason's place in ``_REASONS``, from 1."""
    reasons = np.zeros(table.num_rows, dtype=np.int8)
    if spec.changes is not None:
        reasons[spec.changes.ends_before_it_begins(table)] = 4
    if spec.null_key == "reject":
        for name in spec.key:
            _mark_nulls(table, name, reasons, 1)
    # A wrong time outranks a null key: rows with a null key move the watermark, and a wrong time must not.
    if spec.event_time is not None:
        if spec.max_ahead_ms is not None:
            reasons[(spec.ahead_millis(table) > processing_time + spec.max_ahead_ms) & spec.moving(table)] = 3
        if spec.axis is not None:
            reasons[spec.axis.misfits(table.column(spec.event_time))] = 5
        _mark_unknown(table, spec, reasons)
        if spec.known is None or spec.changes is None:
            _mark_nulls(table, spec.event_time, reasons, 2)
        else:
            # A delete of a row without event time takes effect at its commit.
            reasons[pc.is_null(table.column(spec.event_time)).to_numpy() & ~spec.changes.deleted(table)] = 2
    return reasons


def watermark_marks(
    table: pa.Table, spec: InputSpec, timestamps: NDArray[np.int64], processing_time: int
) -> NDArray[np.int64]:
    """Return each row's mark, from which its partition's watermark is computed (``watermark_strategies``).

    Rows without event time may carry a mark in their own column. A mark further ahead of the clock than ``max_ahead``
    counts as none, because it would make all later rows late, as a wrong event time would.
    """
    generator = spec.watermark.generator
    label = f"input {spec.name!r}: {type(generator).__name__}.marks"
    try:
        marks = generator.marks(table, timestamps)
    except Exception as error:
        msg = f"{label} raised {type(error).__name__}: {error}"
        raise FunctionError(msg) from error
    if not isinstance(marks, np.ndarray) or marks.dtype.kind != "i" or marks.shape != timestamps.shape:
        kind = f"{marks.dtype} of {marks.size}" if isinstance(marks, np.ndarray) else type(marks).__name__
        msg = f"{label}: expected a numpy array of {timestamps.size} int64, one a row, got {kind}"
        raise FunctionError(msg)
    if spec.max_ahead_ms is None:
        return marks
    return np.where(marks > processing_time + spec.max_ahead_ms, NONE, marks)


def check_late(late: Any, label: str) -> None:
    """Check an input's policy for late rows; None means the operation's default."""
    if late is not None:
        check_word(f"{label}: late", late, get_args(LatePolicy))


def check_null_key(null_key: Any, label: str) -> None:
    """Check an input's policy for rows with a null key."""
    check_word(f"{label}: null_key", null_key, get_args(NullKeyPolicy))


def refuse_known(spec: InputSpec, operation: str, why: str) -> None:
    """Refuse an input whose rows have known times; ``operation`` takes none, for the reason ``why``."""
    if spec.known is not None:
        argument = "delay" if spec.known.column is None else "known_at"
        msg = (
            f"{argument}: {operation} takes none, and input {spec.name!r} has it: {why}; it is for the right input of "
            f"temporal_join, and of asof_join with direction='backward'"
        )
        raise ConfigurationError(msg)


def has_null_key(table: pa.Table, key: Sequence[str]) -> NDArray[np.bool_]:
    """Return which rows have a null in any column of their key.

    >>> has_null_key(pa.table({"id": [1, None], "zone": ["a", "b"]}), ["id", "zone"]).tolist()
    [False, True]
    """
    nulls = np.zeros(table.num_rows, dtype=bool)
    for name in key:
        if table.column(name).null_count:
            nulls |= table.column(name).is_null().to_numpy()
    return nulls


def _mark_unknown(table: pa.Table, spec: InputSpec, reasons: NDArray[np.int8]) -> None:
    """Mark the rows whose known time is null or has no moment, or whose validity ends before it begins."""
    known = spec.known
    if known is None or known.column is None:
        return
    if known.valid_to is not None:
        reasons[spec.ends(table) < spec.event_micros(table)] = 4
    column = table.column(known.column)
    misfits = np.zeros(table.num_rows, dtype=bool) if known.axis is None else known.axis.misfits(column)
    nulls = pc.is_null(column).to_numpy()
    if spec.changes is not None:
        # A delete is known at its commit, whatever the deleted row has there.
        deleted = spec.changes.deleted(table)
        misfits, nulls = misfits & ~deleted, nulls & ~deleted
    reasons[misfits] = 5
    reasons[nulls] = 6


def _mark_nulls(table: pa.Table, column: str, reasons: NDArray[np.int8], reason: int) -> None:
    if table.column(column).null_count:
        reasons[pc.is_null(table.column(column)).to_numpy()] = reason


def split_admitted(table: pa.Table, spec: InputSpec, processing_time: int) -> tuple[pa.Table, dict[str, pa.Table]]:
    """Return the admitted rows in their order, and the rejected rows by each reason that occurs."""
    reasons = reject_reasons(table, spec, processing_time)
    if not reasons.any():
        return table, {}
    rejected = {
        reason: table.filter(pa.array(reasons == code))
        for code, reason in enumerate(_REASONS, start=1)
        if (reasons == code).any()
    }
    return table.filter(pa.array(reasons == _ADMITTED)), rejected


def rejected_table(table: pa.Table, spec: InputSpec, reason: str, watermark: int) -> pa.Table:
    """Return rows of an input as rows of the ``rejected`` output; ``watermark`` is the operator's before the batch."""
    count = table.num_rows
    # A rejected time may be out of the range of Python's datetimes; it is written as text.
    rows = [dump_json(_json(row)) for row in decode_rows(table, beyond=str)]
    return pa.Table.from_arrays(
        [
            pa.array([spec.name] * count, pa.string()),
            pa.array([reason] * count, pa.string()),
            pa.array([None if watermark == NONE else watermark] * count, pa.int64()),
            spec.moments(table),
            pa.array(rows, pa.string()),
        ],
        schema=REJECTED_SCHEMA,
    )


def fault_table(faults: Sequence[tuple[str, str]], name: str, watermark: int) -> pa.Table:
    """Return a source's faults, of each its reason and its JSON, as rows of the ``rejected`` output."""
    count = len(faults)
    return pa.Table.from_arrays(
        [
            pa.array([name] * count, pa.string()),
            pa.array([reason for reason, _ in faults], pa.string()),
            pa.array([None if watermark == NONE else watermark] * count, pa.int64()),
            pa.nulls(count, _TIME),
            pa.array([known for _, known in faults], pa.string()),
        ],
        schema=REJECTED_SCHEMA,
    )


def stamped(rejected: pa.Table, batch_id: int, processing_time: int) -> pa.Table:
    """Return rows of the ``rejected`` output with their micro-batch and its processing time in milliseconds."""
    count = rejected.num_rows
    batches = pa.repeat(pa.scalar(batch_id, pa.int64()), count)
    times = pa.repeat(pa.scalar(1_000 * processing_time, pa.int64()), count).cast(_TIME)
    return pa.Table.from_arrays([*rejected.columns, batches, times], schema=STAMPED_SCHEMA)


def _json(value: Any) -> Any:  # noqa: PLR0911 - one for each class
    """Return a decoded value as JSON values: rows and maps as objects, bytes as hex digits, other types as strings."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Row):
        return {name: _json(item) for name, item in zip(value._fields, value, strict=True)}
    if isinstance(value, dict):
        return {key if isinstance(key, str) else _text(_json(key)): _json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE[str(value)]
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dump_json(value)


@dataclass
class ObservedTimes:
    """The largest timestamps and marks of an input's rows so far, by source partition, in epoch milliseconds."""

    partitions: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)

    def add(self, rows: pa.Table, spec: InputSpec, processing_time: int) -> None:
        """Add rows of an input, in a micro-batch of a processing time in epoch milliseconds."""
        counts = (reject_reasons(rows, spec, processing_time) <= _NULL_KEY) & spec.moving(rows)
        if not counts.any():
            return
        millis = spec.timestamps(rows)
        marks = watermark_marks(rows, spec, millis, processing_time)
        if not spec.partition:
            self._raise(ONE_PARTITION, int(millis[counts].max()), int(marks[counts].max()))
            return
        # Columns are named by position, since a user's column may have any name.
        places = [f"p{at}" for at in range(len(spec.partition))]
        columns = [rows.column(name) for name in spec.partition]
        table = pa.table([*columns, pa.array(millis), pa.array(marks)], names=[*places, "timestamp", "mark"])
        largest = table.filter(pa.array(counts)).group_by(places).aggregate([("timestamp", "max"), ("mark", "max")])
        partitions = zip(*(decode_column(largest.column(name), str) for name in places), strict=True)
        maxima = [largest.column(name).to_pylist() for name in ("timestamp_max", "mark_max")]
        for partition, timestamp, mark in zip(partitions, *maxima, strict=True):
            self._raise(json.dumps(partition, default=str), timestamp, mark)

    def _raise(self, partition: str, timestamp: int, mark: int) -> None:
        self.partitions[partition] = max(self.partitions.get(partition, timestamp), timestamp)
        self.marks[partition] = max(self.marks.get(partition, mark), mark)


def control_of(number: Literal[1, 2], rows: pa.Table, spec: InputSpec, processing_time: int = 0) -> Control:
    """Return the control row that one map task would send after these rows of input 1 (left) or 2 (right)."""
    observed = ObservedTimes()
    observed.add(rows, spec, processing_time)
    return Control(number, observed.partitions, rows.num_rows, processing_time, observed.marks)


def controls_of(rows: Sides, inputs: tuple[InputSpec, InputSpec], processing_time: int = 0) -> list[Control]:
    """Return the control rows that one map task for each input would send after these rows."""
    (left, right), (one, two) = rows, inputs
    return [control_of(1, left, one, processing_time), control_of(2, right, two, processing_time)]
