"""The rows that a batch emitted, each with its output, event time and key, which the operator's tables lack.

A function's rows are in the order in which its callbacks yielded them, over all outputs. Their times and keys are those
of the callbacks, which an observer notes. A join's rows are in the order of its tables, and have times and keys in
their columns. The rejected rows are apart, since a batch emits them before all others.

It costs some microseconds a row.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from cojoin.engine.joins import IntervalJoin
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.side_outputs import OutputTag
from cojoin.engine.time.timers import TimeDomain
from cojoin.engine.values.rows import decode_rows
from cojoin.engine.values.tables import event_millis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cojoin.engine.functions import Context
    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.local.watched_function import Callback
    from cojoin.engine.operator import Emission
    from cojoin.engine.plan import Plan

__all__ = ["EmittedRow", "GroupOutput", "Rejected", "RowNotes"]


@dataclass(frozen=True)
class Rejected:
    """A rejected row.

    Attributes:
        input: The name of its input.
        reason: ``"late"``, ``"null_key"``, ``"null_event_time"``, ``"too_far_ahead"``, ``"time_beyond_python"`` or
            ``"ends_before_it_begins"``.
        row: Its columns, as JSON values.
        timestamp: Its event time in epoch milliseconds; None if it has none.
        watermark: The operator's watermark before the row's batch, in epoch milliseconds; None if there was none yet.
    """

    input: str
    reason: str
    row: Mapping[str, Any]
    timestamp: int | None = None
    watermark: int | None = None


class EmittedRow(NamedTuple):
    """A row of the main output or of a side output.

    Attributes:
        output: ``"output"``, or a side output's tag id.
        value: The row.
        timestamp: The event time in epoch milliseconds. In a function it is the time of the input row or event-time
            timer whose callback yielded the row; None if that row has no event time, and for rows of a processing-time
            timer. In an as-of or temporal join it is the left row's time, in an interval join the later of both times.
        key: The values of its key columns.
    """

    output: str
    value: Any
    timestamp: int | None
    key: tuple[Any, ...]


class RowNotes(list["tuple[str, int | None, tuple[Any, ...]]"]):
    """The output, event time and key of each row that a function's callbacks yielded; its ``add`` is an observer."""

    def add(self, callback: Callback, context: Context) -> None:
        """Note the rows of a callback."""
        if callback.yielded:
            by_clock = callback.side is None and context.time_domain() is TimeDomain.PROCESSING_TIME
            timestamp = None if by_clock else context.timestamp()
            key = context.get_current_key()
            key = key if isinstance(key, tuple) else (key,)
            self += [(_output_of(item), timestamp, key) for item in callback.yielded]


def _output_of(item: Any) -> str:
    is_beside = type(item) is tuple and len(item) == 2 and isinstance(item[0], OutputTag)
    return item[0].tag_id if is_beside else OUTPUT


@dataclass(frozen=True)
class GroupOutput:
    """The emissions of one key group in one batch.

    Attributes:
        plan: What was run.
        emissions: The tables, in their order.
        notes: The notes about a function's rows; None for a join, and where none were taken.
    """

    plan: Plan
    emissions: list[Emission] = field(default_factory=list)
    notes: RowNotes | None = None

    def rejected_tables(self) -> list[pa.Table]:
        """Return the tables of rejected rows."""
        return [each.table for each in self.emissions if each.kind == REJECTED]

    def rejected(self) -> list[Rejected]:
        """Return the rejected rows."""
        return [row for table in self.rejected_tables() for row in _rejected_rows(table)]

    def rows(self, beyond: Callable[[str], Any] | None = None) -> Iterator[EmittedRow]:
        """Yield the rows of all outputs in their order, but not the rejected ones.

        Args:
            beyond: What makes a value of a time beyond Python's years, as ``decode_rows`` takes it.
        """
        others = [each for each in self.emissions if each.kind != REJECTED]
        if self.notes is None:
            for each in others:
                yield from self._of_join(each.table, beyond)
            return
        values: dict[str, list[Any]] = defaultdict(list)
        for each in others:
            values[each.kind] += decode_rows(each.table, beyond)
        sources = {kind: iter(rows) for kind, rows in values.items()}
        for output, timestamp, key in self.notes:
            yield EmittedRow(output, next(sources[output]), timestamp, key)

    def _of_join(self, table: pa.Table, beyond: Callable[[str], Any] | None) -> Iterator[EmittedRow]:
        left, right = self.plan.inputs
        # The left's columns come first; the result may have renamed them.
        places = [left.schema.names.index(name) for name in left.key]
        rows, times = decode_rows(table, beyond), _joined_times(self.plan.operation, left, right, table)
        for row, timestamp in zip(rows, times, strict=True):
            yield EmittedRow(OUTPUT, row, timestamp, tuple(row[place] for place in places))


def _rejected_rows(table: pa.Table) -> list[Rejected]:
    micros = table.column("event_time").cast(pa.int64()).to_pylist()
    columns = [table.column(name).to_pylist() for name in ("input", "reason", "row", "watermark")]
    return [
        Rejected(name, reason, json.loads(row), None if time is None else time // 1_000, watermark)
        for name, reason, row, watermark, time in zip(*columns, micros, strict=True)
    ]


def _joined_times(operation: Any, left: InputSpec, right: InputSpec, table: pa.Table) -> list[int | None]:
    taken = {name.lower() for name in left.schema.names}
    own = str(right.event_time)
    of_right = own if own.lower() not in taken else f"{right.name}_event_time"
    columns = [table.column(left.schema.names.index(str(left.event_time)))]
    if isinstance(operation, IntervalJoin):
        columns.append(table.column(of_right))
    millis = [_millis(column) for column in columns]
    return [max((each for each in row if each is not None), default=None) for row in zip(*millis, strict=True)]


def _millis(column: pa.ChunkedArray) -> list[int | None]:
    micros = column.cast(pa.int64()).combine_chunks()
    floored = event_millis(micros.fill_null(0).to_numpy(zero_copy_only=False)).tolist()
    return [each if known else None for each, known in zip(floored, micros.is_valid().to_pylist(), strict=True)]
