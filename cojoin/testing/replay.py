"""A key's captured history: its rows, cut into micro-batches, with the watermarks after each of them.

A harness runs a captured batch as one micro-batch: its rows, the watermarks that both inputs have reached, and the
processing time. So a row that was late is late again, and a timer fires between the same rows. Its outcome is what the
harness emitted, as JSON values that can be compared and stored.

The batch in which the inputs end says the largest event time of all keys' rows, because a drain fires timers up to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.errors import SchemaError
from cojoin.testing.events import Element, Record, Rejected, SideRecord
from cojoin.testing.json_values import row_from_json, row_to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from cojoin.engine.side_outputs import OutputTag
    from cojoin.testing.harness import Harness

__all__ = ["CapturedBatch", "Outcomes", "TimedRow", "replay", "time_from_json", "time_to_json"]

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - times are written as UTC
_MILLISECOND = timedelta(milliseconds=1)
_END = "end of time"


@dataclass(frozen=True)
class CapturedBatch:
    """A micro-batch of one key.

    Attributes:
        rows: The rows of both inputs, left first, as JSON objects by column name, in the order in which they came.
        watermarks: Both inputs' watermarks after these rows, in epoch milliseconds; ``-2**63`` before the first.
        processing_time: The micro-batch's processing time in epoch milliseconds; 0 if it is unknown.
        last_event: If the inputs end after this batch, the largest event time of all rows, in epoch milliseconds; None
            if they do not end.
    """

    rows: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]] = ((), ())
    watermarks: tuple[int, int] = (NONE, NONE)
    processing_time: int = 0
    last_event: int | None = None


@dataclass(frozen=True)
class TimedRow:
    """An emitted row: its event time in epoch milliseconds, None if it has none, and its JSON object."""

    timestamp: int | None
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Outcomes:
    """What a history of one key made a join or a function emit, each output in its own order.

    Attributes:
        output: The rows of the main output.
        side_outputs: The rows of each side output, by its tag's id.
        rejected: The rejected rows.
    """

    output: Sequence[TimedRow] = ()
    side_outputs: Mapping[str, Sequence[TimedRow]] = field(default_factory=dict)
    rejected: Sequence[Rejected] = ()

    @classmethod
    def of(cls, harness: Harness) -> Outcomes:
        """Return everything that a harness emitted."""
        schemas = {tag.tag_id: tag.schema for tag in _tags(harness)}
        beside: dict[str, list[TimedRow]] = {name: [] for name in schemas}
        for event in harness.log:
            if isinstance(event, SideRecord):
                beside[event.tag].append(_timed(event, schemas[event.tag]))
        main = harness.schema_of()
        return cls([_timed(each, main) for each in harness.log if isinstance(each, Record)], beside, harness.rejected)


def replay(harness: Harness, batches: Iterable[CapturedBatch], state: bytes | None = None) -> Outcomes:
    """Run a key's captured batches, and return what came out.

    Args:
        harness: A new harness, whose inputs have the columns of the rows and make no watermarks of their own.
        batches: The micro-batches in their order.
        state: What was kept before them, as a harness's snapshot; None if there was nothing.

    Raises:
        CheckpointError: The state can't become that of the harness.
        SchemaError: A row does not fit its input's columns.
        FunctionError: The function raised an error.
    """
    if state is not None:
        harness.restore(state)
    inputs = harness._inputs  # noqa: SLF001 - as the other parts of a harness do
    for number, batch in enumerate(batches):
        elements = [
            [Element(row_from_json(row, spec.schema, f"batch {number}: input {spec.name!r}")) for row in rows]
            for rows, spec in zip(batch.rows, inputs, strict=True)
        ]
        ends, now = batch.last_event is not None, batch.processing_time
        seen = {} if batch.last_event is None else {ONE_PARTITION: batch.last_event}
        controls = [
            Control(
                1 if side == 0 else 2,
                seen,
                processing_time=now,
                marks=dict.fromkeys(seen, NONE),
                watermarks={} if watermark == NONE else {ONE_PARTITION: watermark},
            )
            for side, watermark in enumerate(batch.watermarks)
        ]
        harness._call(elements[0], elements[1], controls, end=ends, now=now or None)  # noqa: SLF001 - one micro-batch
    return Outcomes.of(harness)


def time_to_json(millis: int | None) -> str | None:
    """Return a time in epoch milliseconds as a text in UTC; None where there is none.

    >>> time_to_json(1_500), time_to_json(-(2**63))
    ('1970-01-01T00:00:01.500Z', None)
    """
    if millis is None or millis == NONE:
        return None
    if millis == END_OF_TIME:
        return _END
    try:
        return f"{(_EPOCH + millis * _MILLISECOND).isoformat(timespec='milliseconds')}Z"
    except OverflowError:
        return str(millis)


def time_from_json(text: str | None) -> int:
    """Return the epoch milliseconds of what ``time_to_json`` returned; ``-2**63`` for None.

    Raises:
        SchemaError: It is no such text.

    >>> time_from_json("1970-01-01T00:00:01.500Z")
    1500
    """
    if text is None:
        return NONE
    try:
        if text == _END:
            return END_OF_TIME
        if not text.endswith("Z"):
            return int(text)
        return (datetime.fromisoformat(text.removesuffix("Z")) - _EPOCH) // _MILLISECOND
    except (TypeError, ValueError, AttributeError):
        msg = f"expected a time such as '2026-01-15T09:00:00.000Z', got {text!r}"
        raise SchemaError(msg) from None


def _timed(event: Record | SideRecord, schema: pa.Schema) -> TimedRow:
    return TimedRow(event.timestamp, row_to_json(event.value, schema, sort_maps=True))


def _tags(harness: Harness) -> Sequence[OutputTag]:
    return getattr(harness._operation, "side_outputs", ())  # noqa: SLF001
