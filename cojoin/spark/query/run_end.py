"""The end of a run over what is there: the complete reading of each input, which its last batch applies.

The moment is read from the clock once, when the run is about to fix its end: before Spark asks the sources for what
they have, and before a table is asked for its newest version. So whatever the run reads was there at this moment or
later, and what it does not read came after it. The moment counts only once all was read, and is then stored with the
plan of the last batch (``checkpoints.control``): a run that fails, or is stopped, leaves nothing of it.

An input has a complete reading where something depends on it: its strategy has an idleness, or its event time is that
of its table's commits. Of a table, Spark's offset log must also say that the version was read to its end.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cojoin.engine.display import format_span
from cojoin.engine.time.control_rows import CompleteReading
from cojoin.session.offset_log import OFFSETS, newest_id, source_offsets
from cojoin.spark.query.history import is_read_through

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from cojoin.spark.bound_input import BoundInput
    from cojoin.spark.query.history import InputStreams
    from cojoin.spark.sources.source import NewestCommit
    from cojoin.storage.store import Store

__all__ = ["RunEnd"]


@dataclass(frozen=True)
class RunEnd:
    """The end of a run over what is there, as it was fixed.

    Attributes:
        asked_at: The moment, in epoch milliseconds.
        inputs: Both inputs.
        lines: How many lines of Spark's offset log belong to each input.
        commits: The newest version of each input's table; None where its event time is not that of commits.
        is_complete: Of each input, whether the run reads it to its end.
    """

    asked_at: int
    inputs: Sequence[BoundInput]
    lines: Sequence[int]
    commits: Sequence[NewestCommit | None]
    is_complete: Sequence[bool]

    @classmethod
    def fix(
        cls, spark: SparkSession, inputs: Sequence[BoundInput], streams: InputStreams, held_back: Sequence[bool]
    ) -> RunEnd | None:
        """Take the moment, then ask the tables for their newest versions; the caller starts the stream afterwards.

        Args:
            spark: The session.
            inputs: Both inputs.
            streams: What they read.
            held_back: Of each input, whether its source must leave something for the next run.

        Returns:
            The end; None where nothing depends on it.

        Warns:
            UserWarning: A table's newest version is further ahead of the clock than ``clock_skew``.
        """
        asked_at = int(1000 * time.time())
        commits = [
            each.source.newest_commit(spark, each.spec.event_time)
            if each.source is not None and each.is_streaming and each.spec.watermark.generator.takes_promises
            else None
            for each in inputs
        ]
        for each, commit in zip(inputs, commits, strict=True):
            if commit is not None and commit.committed_at - asked_at > commit.clock_skew_ms:
                warnings.warn(_ahead(each.spec.name, commit, asked_at), stacklevel=6)
        is_complete = [
            each.is_streaming and not held and (each.source is None or each.source.ends_with_what_is_there)
            for each, held in zip(inputs, held_back, strict=True)
        ]
        depends = any(commits) or any(each.spec.watermark.idleness is not None for each in inputs)
        return cls(asked_at, inputs, streams.lines, commits, is_complete) if depends else None

    def readings(self, spark: SparkSession, files: Store) -> dict[int, CompleteReading]:
        """Return the complete readings on which something depends, by the input's number, once the run has read all.

        Args:
            spark: The session.
            files: The checkpoint.
        """
        newest = newest_id(files, OFFSETS)
        rest = [] if newest is None else source_offsets(files, newest)[:-1]
        is_known = len(rest) == sum(self.lines)
        found: dict[int, CompleteReading] = {}
        for number, (bound, count, commit) in enumerate(zip(self.inputs, self.lines, self.commits, strict=True), 1):
            own, rest = rest[:count], rest[count:]
            if not self.is_complete[number - 1]:
                continue
            if commit is not None and is_known and count == 1 and self._is_read(spark, bound, own[0], commit):
                limit = bound.spec.max_ahead_ms
                times = commit.version, commit.committed_at, commit.clock_skew_ms
                found[number] = CompleteReading.of_table(self.asked_at, *times, limit)
                continue
            if bound.spec.watermark.idleness is not None:
                found[number] = CompleteReading(self.asked_at)
        return found

    @staticmethod
    def _is_read(spark: SparkSession, bound: BoundInput, line: str, commit: NewestCommit) -> bool:
        assert bound.source is not None
        return is_read_through(spark, str(bound.source.location), line, commit.version)


def _ahead(name: str, commit: NewestCommit, asked_at: int) -> str:
    distance = commit.committed_at - asked_at
    return (
        f"input {name!r}: the newest version of its table, {commit.version}, is {format_span(distance)} ahead of this "
        f"driver's clock, so the clocks of its writers differ by more than clock_skew, which is "
        f"{format_span(commit.clock_skew_ms)}: commits by other writers may be late; set the clocks, or give "
        f"clock_skew= of sources.delta a longer time than they differ by"
    )
