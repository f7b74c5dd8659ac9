"""Control rows: what one map task saw of one input, sent in band with the data rows to every key group.

From them every key group computes the same watermarks (``input_watermark``), also in a batch that Spark runs again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.engine.time.complete_reading import CompleteReading
    from cojoin.engine.time.watermarks import Status

__all__ = ["ONE_PARTITION", "REPEATED", "UNAVAILABLE", "Control"]

ONE_PARTITION = "[]"
"""The name of the only source partition of an input whose partitions have no names."""

REPEATED = "repeated: a tombstone that repeats a delete"
"""What a source returns instead of a row for a tombstone whose delete came as a row before; it is counted as done."""


UNAVAILABLE = "unavailable: a row before it has nulls instead of values that its source could not read"
"""The fault that a source returns after a row in which it set unreadable values to null; it is counted separately."""


@dataclass(frozen=True)
class Control:
    """What one map task saw of one input, or what is known of it from outside; it travels in band with the rows.

    Attributes:
        input: 1 (left) or 2 (right).
        partitions: Each source partition's largest timestamp in epoch milliseconds.
        rows: How many rows the task sent to the receiving key group.
        processing_time: The micro-batch's processing time in epoch milliseconds.
        marks: Each source partition's largest mark, from which its watermark is computed (``watermark_strategies``);
            None where the marks are the largest timestamps.
        watermarks: Watermarks of source partitions that were computed elsewhere, in epoch milliseconds.
        statuses: Statuses of source partitions; the name ``None`` is the whole input.
        faults: What the source read that is not a row: for each the reason, and what is known of it as JSON.
        tombstones: How many tombstones it read that repeat a delete (``REPEATED``), which are no rows.
        unavailable: How many of the rows have nulls instead of values that the source could not read
            (``UNAVAILABLE``).
        source_watermarks: Watermarks of source partitions, in epoch milliseconds, derived from the times by which the
            source is read, such as Kafka's record timestamps. They count only while the newest rows' event times are
            near these times.
        agrees: Whether the newest rows' event times are near these times; None where no row came.
        unread: Those of these partitions that are known to hold more rows. Where the source's times do not count, these
            partitions hold the watermark back until they send something.
        reading: That the input was read to its end; None in every batch but the last of a run over what is there.
    """

    input: Literal[1, 2]
    partitions: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0
    processing_time: int = 0
    marks: Mapping[str, int] | None = None
    watermarks: Mapping[str, int] = field(default_factory=dict)
    statuses: Mapping[str | None, Status] = field(default_factory=dict)
    faults: Sequence[tuple[str, str]] = ()
    tombstones: int = 0
    unavailable: int = 0
    source_watermarks: Mapping[str, int] = field(default_factory=dict)
    agrees: bool | None = None
    unread: Sequence[str] = ()
    reading: CompleteReading | None = None
