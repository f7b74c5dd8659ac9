"""What rows tell of time: each source partition's largest timestamp and largest mark, which watermarks follow.

A row with a null key counts, since its event time is valid; other rejected rows do not, nor deletes whose times are not
in the source's order (``row_changes``). It costs one pass over the
times, and one grouping if the input has partition columns.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from cojoin.engine.inputs import reject_reasons, watermark_marks
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.values.rows import decode_column

if TYPE_CHECKING:
    from typing import Literal

    from cojoin.engine.inputs import InputSpec

__all__ = ["ObservedTimes", "control_of"]

_NULL_KEY = 1


@dataclass
class ObservedTimes:
    """The largest timestamps and marks of an input's rows so far, by source partition, in epoch milliseconds."""

    partitions: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)

    def add(self, rows: pa.Table, spec: InputSpec, processing_time: int) -> None:
        """Add rows.

        Args:
            rows: Rows of the input.
            spec: The input.
            processing_time: The micro-batch's processing time in epoch milliseconds.

        Raises:
            FunctionError: A user's watermark generator failed.
        """
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
    """Return the control row that one map task would send after these rows.

    Args:
        number: 1 (left) or 2 (right).
        rows: The rows.
        spec: Their input.
        processing_time: The micro-batch's processing time in epoch milliseconds; 0 if it is unknown.
    """
    observed = ObservedTimes()
    observed.add(rows, spec, processing_time)
    return Control(number, observed.partitions, rows.num_rows, processing_time, observed.marks)
