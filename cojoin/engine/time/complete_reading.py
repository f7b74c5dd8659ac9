"""A complete reading: at the end of a run over what is there, one input was read to its end.

A run over what is there fixes its end when it begins: it reads all that its sources have then, and nothing newer. The
*moment* of the reading is read from the clock just before the sources are asked for what they have. It is stored with
the plan of the run's last micro-batch, so a batch that is run again finds the same one. Two things follow from it.

- *Quiet time*: a source partition that had no row between two complete readings was quiet for the time between their
  moments, and ``with_idleness`` counts that (``idleness``). If the clock went back in between, counting begins with
  the next reading.
- *The promise of a table*: where event time is the time of a table's commits, every commit after its newest version has
  a later time than the moment, except for what other writers' clocks are slow (``clock_skew``). So the input's
  watermark is the moment less this allowance, and never below that version's own time. It is the only watermark that
  does not rest on rows that were read; the progress reports it, and counts the commits that break it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CLOCK_SKEW_MS", "CompleteReading"]

CLOCK_SKEW_MS = 60_000
"""The default of ``clock_skew``: by how much a table's writers' clocks may be behind this one, in milliseconds."""


@dataclass(frozen=True)
class CompleteReading:
    """That an input was read to its end.

    Attributes:
        asked_at: The moment before its source was asked for what it has, in epoch milliseconds.
        version: The newest version of the table that was read to its end; None for inputs that are no change feeds.
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

        Args:
            asked_at: The moment before the newest version was asked for, in epoch milliseconds.
            version: The newest version.
            committed_at: Its own time, in epoch milliseconds.
            clock_skew_ms: How far other writers' clocks may be behind, in milliseconds.
            max_ahead_ms: How far a row may be ahead of the clock; a version whose own time is further ahead is not
                believed. None believes any.

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
