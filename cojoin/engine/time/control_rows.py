"""Control rows: one map task's observations of one input, sent in band with the data rows to every key group.

From them every key group computes the same watermarks (``operator_watermark``), also in a batch that Spark runs again.

A run over the available rows reads all that its sources have when it begins, and nothing newer. At its end a control
row reports this *complete reading* of an input. The reading's *moment* is read from the clock just before the sources
are asked for what they have, and stored with the plan of the run's last micro-batch, so that a batch that is run again
has the same one. Two things follow from it.

- *Quiet time*: a source partition that had no row between two complete readings was quiet for the time between their
  moments, and ``with_idleness`` counts that. If the clock went back in between, counting begins with the next reading.
- *The promise of a table*: where event time is the time of a table's commits, every commit after its newest version has
  a later time than the moment, except for what other writers' clocks are slow (``clock_skew``). So the input's
  watermark is the moment less this allowance, and never below that version's own time. It is the only watermark that
  does not rest on rows that were read; the progress reports it, and counts the commits that break it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.engine.time.watermarks import Status

CLOCK_SKEW_MS = 60_000
"""The default of ``clock_skew``: by how much a table's writers' clocks may be behind this one, in milliseconds."""


@dataclass(frozen=True)
class CompleteReading:
    """The reading of an input to its end.

    Attributes:
        asked_at: The moment before its source was asked for what it has, in epoch milliseconds.
        version: The newest version of the table that was read to its end; None for inputs that are not change feeds.
        up_to: The table's promise: no commit with a timestamp at or below it will come, in epoch milliseconds. None
            where there is none.
    """

    asked_at: int
    version: int | None = None
    up_to: int | None = None

    @classmethod
    def of_table(
        cls, asked_at: int, version: int, committed_at: int, clock_skew_ms: int, max_ahead_ms: int | None
    ) -> CompleteReading:
        """Return the complete reading of a table whose event time is that of its commits.

        All times are epoch milliseconds. ``committed_at`` is the newest version's own time, which is not believed if it
        is more than ``max_ahead_ms`` ahead of the clock; None believes any.

        >>> CompleteReading.of_table(100_000, 7, 20_000, 60_000, None).up_to
        40000
        >>> CompleteReading.of_table(100_000, 7, 90_000, 60_000, None).up_to
        90000
        """
        is_believed = max_ahead_ms is None or committed_at <= asked_at + max_ahead_ms
        known = asked_at - clock_skew_ms
        return cls(asked_at, version, max(known, committed_at) if is_believed else known)

    def as_dict(self) -> dict[str, int]:
        """Return it as JSON values, without those that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def read(cls, written: Mapping[str, Any] | None) -> CompleteReading | None:
        """Return what ``as_dict`` returned; None for None."""
        return None if written is None else cls(**written)


ONE_PARTITION = "[]"
"""The name of the only source partition of an input whose partitions have no names."""

REPEATED = "repeated: a tombstone that repeats a delete"
"""What a source returns instead of a row for a tombstone whose delete came as a row before; it is counted as done."""

UNAVAILABLE = "unavailable: a row before it has nulls instead of values that its source could not read"
"""The fault that a source returns after a row in which it set unreadable values to null; it is counted separately."""


@dataclass(frozen=True)
class Control:
    """One map task's observations of one input, or outside knowledge of it, sent in band with the rows.

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
        tombstones: How many tombstones it read that repeat a delete (``REPEATED``), which are not rows.
        unavailable: How many of the rows have nulls instead of values that the source could not read
            (``UNAVAILABLE``).
        source_watermarks: Watermarks of source partitions, in epoch milliseconds, derived from the times by which the
            source is read, such as Kafka's record timestamps. They count only while the newest rows' event times are
            near these times.
        agrees: Whether the newest rows' event times are near these times; None where no row came.
        unread: Those of these partitions that are known to hold more rows. Where the source's times do not count, these
            partitions hold the watermark back until they send something.
        reading: The input's complete reading; None in every batch but the last of a run over the available rows.
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
