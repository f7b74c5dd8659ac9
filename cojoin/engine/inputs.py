"""An input as the engine sees it, and which of its rows are admitted.

A row with a null event time, one too far ahead of the clock, and one with a null key is rejected with the first of
these reasons. Only the last moves the watermark: nothing is wrong with its time. Whether a row is late is the
operator's to say: it knows the watermark. The map side asks for the same verdict, so both agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.choices import check_word
from cojoin.engine.values.rows import Row, decode_rows
from cojoin.engine.values.tables import event_micros, event_millis
from cojoin.engine.values.texts import dump_json
from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "REJECTED_SCHEMA",
    "InputSpec",
    "LatePolicy",
    "Reason",
    "check_late",
    "fault_table",
    "reject_reasons",
    "rejected_table",
    "watermark_marks",
]

LatePolicy: TypeAlias = Literal["reject", "apply"]
"""What becomes of a row at or below the operator's watermark before its batch.

- *reject*: it goes to the ``rejected`` output.
- *apply*: it is processed all the same, and counted as ``late_applied``.
"""

Reason: TypeAlias = Literal["null_key", "null_event_time", "too_far_ahead", "late", "undecodable", "tombstone", "gone"]
"""Why a row is rejected.

- *null_key*: a column of its key is null.
- *null_event_time*: its event time is null.
- *too_far_ahead*: its event time is later than the batch's processing time by more than ``max_ahead``.
- *late*: its timestamp is at or below the operator's watermark before its batch.
- *undecodable*: its source gave a record that is none of the input's (``cojoin.kafka``).
- *tombstone*: its source gave a record without a value.
- *gone*: its source no longer has a range of records; the range is one row.
"""

_ADMITTED, _REASONS = 0, ("null_key", "null_event_time", "too_far_ahead")

_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Spark's own spelling of them in JSON, where numbers can't be."""

_TIME = pa.timestamp("us", "UTC")

REJECTED_SCHEMA = pa.schema(
    [
        pa.field("input", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("watermark", pa.int64()),
        pa.field("event_time", _TIME),
        pa.field("row", pa.string()),
    ]
)
"""A rejected row of any input: the input's name, the reason, the operator's watermark before the batch (in epoch
milliseconds; null is none), the row's event time, and the whole row as JSON."""


@dataclass(frozen=True)
class InputSpec:
    """One input of the operator. Picklable; holds no data and no Spark.

    Attributes:
        name: What people call it, such as ``"trades"``.
        schema: Its columns as declared; event time is ``timestamp[us, UTC]``.
        key: The names of its key columns.
        event_time: The name of its event-time column; None where its rows have no time (``order="arrival"`` only).
        partition: The columns that tell which source partition a row came from; none means one partition.
        sequence: The columns that order rows of one partition at the source, such as Kafka's offset.
        watermark: How its watermark follows its rows.
        max_ahead_ms: How far a row may be ahead of processing time, in milliseconds; None means any distance.
        late: What becomes of late rows; None leaves it to the operation.
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

    def micros(self, table: pa.Table) -> NDArray[np.int64]:
        """Return the event times of rows of this input in epoch microseconds; 0 where it is null, or there is none."""
        if self.event_time is None:
            return np.zeros(table.num_rows, dtype=np.int64)
        return event_micros(table, self.event_time)

    def millis(self, table: pa.Table) -> NDArray[np.int64]:
        """Return the timestamps of rows of this input in epoch milliseconds."""
        return event_millis(self.micros(table))

    def timestamps(self, table: pa.Table) -> NDArray[np.int64]:
        """Return what rows of this input say of time, in epoch milliseconds: ``NONE`` where they have no event time."""
        if self.event_time is None:
            return np.full(table.num_rows, NONE, dtype=np.int64)
        return self.millis(table)

    def keys(self, table: pa.Table) -> pa.Table:
        """Return the key columns of a table of this input."""
        return table.select(list(self.key))

    @property
    def source_order(self) -> tuple[str, ...]:
        """The columns of the source's own sequence: the partition's, then the sequence's, each once."""
        return tuple(dict.fromkeys((*self.partition, *self.sequence)))


def reject_reasons(table: pa.Table, spec: InputSpec, processing_time: int) -> NDArray[np.int8]:
    """Judge every row by itself.

    Returns:
        0 for an admitted row, else 1 + the position of its reason.
    """
    reasons = np.zeros(table.num_rows, dtype=np.int8)
    for name in spec.key:
        _mark_nulls(table, name, reasons, 1)
    # A fault of the time outweighs one of the key: else a null key would let a poisoned timestamp move the watermark.
    if spec.event_time is not None:
        if spec.max_ahead_ms is not None:
            reasons[spec.millis(table) > processing_time + spec.max_ahead_ms] = 3
        _mark_nulls(table, spec.event_time, reasons, 2)
    return reasons


def watermark_marks(
    table: pa.Table, spec: InputSpec, timestamps: NDArray[np.int64], processing_time: int
) -> NDArray[np.int64]:
    """Return each row's mark, by which its partition's watermark goes (``strategies``).

    Rows without time may still say how far time has come, in a column of their own. A mark further ahead of the clock
    than ``max_ahead`` says nothing: it would end the join as a poisoned time would.

    Raises:
        FunctionError: A generator of the user's raised an error, or gave other than a whole number a row.
    """
    generator = spec.watermark.generator
    what = f"input {spec.name!r}: {type(generator).__name__}.marks"
    try:
        marks = generator.marks(table, timestamps)
    except Exception as error:
        msg = f"{what} raised {type(error).__name__}: {error}"
        raise FunctionError(msg) from error
    if not isinstance(marks, np.ndarray) or marks.dtype.kind != "i" or marks.shape != timestamps.shape:
        kind = f"{marks.dtype} of {marks.size}" if isinstance(marks, np.ndarray) else type(marks).__name__
        msg = f"{what}: expected a numpy array of {timestamps.size} int64, one a row, got {kind}"
        raise FunctionError(msg)
    if spec.max_ahead_ms is None:
        return marks
    return np.where(marks > processing_time + spec.max_ahead_ms, NONE, marks)


def check_late(late: Any, what: str) -> None:
    """Refuse what is no way to treat late rows; None leaves it to the operation.

    Raises:
        ConfigurationError: It is none of ``LatePolicy``.
    """
    if late is not None:
        check_word(f"{what}: late", late, get_args(LatePolicy))


def _mark_nulls(table: pa.Table, column: str, reasons: NDArray[np.int8], reason: int) -> None:
    if table.column(column).null_count:
        reasons[pc.is_null(table.column(column)).to_numpy()] = reason


def split_admitted(table: pa.Table, spec: InputSpec, processing_time: int) -> tuple[pa.Table, dict[str, pa.Table]]:
    """Part the admitted rows from the rejected ones, by reason.

    Returns:
        The admitted rows in their order, and for each reason that occurs its rows.
    """
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
    """Turn rows of an input into rows of the ``rejected`` output.

    Args:
        table: The rows.
        spec: Their input.
        reason: Why they are rejected.
        watermark: The operator's watermark before the batch, in epoch milliseconds.
    """
    count = table.num_rows
    # What is rejected may well be the moment that Python can't hold: its spelling stands for it.
    rows = [dump_json(_json(row)) for row in decode_rows(table, beyond=str)]
    return pa.Table.from_arrays(
        [
            pa.array([spec.name] * count, pa.string()),
            pa.array([reason] * count, pa.string()),
            pa.array([None if watermark == NONE else watermark] * count, pa.int64()),
            pa.nulls(count, _TIME) if spec.event_time is None else table.column(spec.event_time).cast(_TIME),
            pa.array(rows, pa.string()),
        ],
        schema=REJECTED_SCHEMA,
    )


def fault_table(faults: Sequence[tuple[str, str]], name: str, watermark: int) -> pa.Table:
    """Turn what a source gave that is no row into rows of the ``rejected`` output.

    Args:
        faults: Each with its reason, and as JSON what is known of it.
        name: The input's name.
        watermark: The operator's watermark before the batch, in epoch milliseconds.
    """
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


def _json(value: Any) -> Any:  # noqa: PLR0911 - one a class
    """Return a decoded value as JSON has it: rows and maps are objects, bytes hex digits, what it lacks a string."""
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
