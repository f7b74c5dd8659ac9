"""How far an input's time may come while a Delta table's history is read: what is still unread holds it.

Delta reads a table's first snapshot in the order of its files, so many a batch (``maxFilesPerTrigger``, 1,000 by
default), whatever times they hold, and a commit that is too large for a batch in the same way. Rows of the first files
would let time pass those of the others, which came late. So each batch looks where Spark's offset log says that it
ends. Inside a snapshot the input's time comes no further than the least event time of the files that are still unread,
as the table's log has it: where files follow each other in time nothing waits for long. Where the log can't tell (a
column without statistics, an event time that is computed, a DataFrame of the user's own), and inside a commit, time
stands still until all of it is read. The log only ever holds time back; what moves it are rows that were read.

A batch that is run again finds the same offsets and the same log, so it decides the same; what was decided is part of
the state, and goes where the state goes. The driver tells the calls by a local property of the batch's jobs.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.control import NOTHING_READ, source_offsets
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.spark.batch.call import HOLDS_PROPERTY
from cojoin.storage.delta_files import table_log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from cojoin.spark.input import BoundInput
    from cojoin.storage.small_files import CheckpointFiles

__all__ = ["HistoryHolds"]

_NOTHING_READ = (NOTHING_READ, "null")
_DELTA_FIELDS = {"reservoirId", "reservoirVersion", "index", "isStartingVersion"}


class HistoryHolds:
    """Tells each micro-batch how far its inputs' times may come.

    Args:
        inputs: The two inputs.
        files: The query's checkpoint.
        begins_at: Of a query that was restored, where its sources go on after its first batch, a line each.
    """

    def __init__(
        self, inputs: Sequence[BoundInput], files: CheckpointFiles, begins_at: Sequence[str] | None = None
    ) -> None:
        self._files, self._begins_at = files, begins_at
        self._tables = [_Table(each) for each in inputs]
        self._lines = [_streams_read(each.frame) for each in inputs]
        self._reads_no_table = False

    def around(self, write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """Return what takes a micro-batch as ``write`` does, and has its calls know how far time may come."""

        def write_held(emitted: DataFrame, batch_id: int) -> None:
            session = emitted.sparkSession
            holds = self.after(session, batch_id)
            session.sparkContext.setLocalProperty(HOLDS_PROPERTY, json.dumps(holds))
            write(emitted, batch_id)

        return write_held

    def after(self, session: SparkSession, batch_id: int) -> dict[int, int]:
        """Return how far each input's time may come in a batch that Spark has planned.

        Args:
            session: The session.
            batch_id: The batch.

        Returns:
            By the input's number epoch milliseconds, ``NONE`` where it stands still; an input that is free is left out.
        """
        if self._reads_no_table:
            return {}
        if batch_id == 0 and self._begins_at is not None:
            # The batch reads the restored state alone, which stands where the old query's sources stood.
            lines = [*self._begins_at]
        else:
            lines = source_offsets(self._files, batch_id)[:-1]
        ends = [_End.read(line) for line in lines]
        # What has read something else will read no table.
        self._reads_no_table = all(
            end is None and line not in _NOTHING_READ for end, line in zip(ends, lines, strict=True)
        )
        if len(lines) != sum(self._lines):
            # Nobody knows whose a position is: each may be of both.
            return dict.fromkeys((1, 2), NONE) if any(end is not None and end.is_within for end in ends) else {}
        holds: dict[int, int] = {}
        for number, (table, count) in enumerate(zip(self._tables, self._lines, strict=True), start=1):
            own, ends = ends[:count], ends[count:]
            until = min((table.until(session, end) for end in own if end is not None), default=END_OF_TIME)
            if until < END_OF_TIME:
                holds[number] = until
        return holds


class _End:
    """Where a batch ends in a Delta table, as Spark's offset log has it."""

    def __init__(self, position: dict[str, Any]) -> None:
        self.version, self.index = int(position["reservoirVersion"]), int(position["index"])
        self.in_snapshot = bool(position["isStartingVersion"])

    @classmethod
    def read(cls, line: str) -> _End | None:
        """Return that of a line of the offset log; None where the source is no Delta table, or was not read."""
        try:
            position = json.loads(line)
        except ValueError:
            return None
        # A topic of Kafka's may have any name, but is an object.
        is_delta = isinstance(position, dict) and position.keys() >= _DELTA_FIELDS
        return cls(position) if is_delta and isinstance(position["reservoirVersion"], int) else None

    @property
    def is_within(self) -> bool:
        """Whether files of a snapshot or of a commit have been read, and others of it not yet."""
        return self.in_snapshot or self.index >= 0


class _Table:
    """What an input's Delta table knows of the times in its files."""

    def __init__(self, bound: BoundInput) -> None:
        source = bound.source
        # What was read of the change data feed are other files than the table's.
        is_plain = source is not None and source.format == "delta" and not _reads_changes(source.options)
        self._location = source.location if source is not None and is_plain else None
        self._event_time = bound.spec.event_time
        self._known: tuple[int, NDArray[np.int64]] | None = None

    def until(self, session: SparkSession, end: _End) -> int:
        """Return how far time may come where a batch ends: before the least event time that is still unread."""
        if not end.is_within:
            return END_OF_TIME
        if self._location is None or self._event_time is None or not end.in_snapshot:
            return NONE
        if self._known is None or self._known[0] != end.version:
            least = _least_times(session, self._location, end.version, self._event_time)
            self._known = end.version, np.minimum.accumulate(least[::-1])[::-1]
        unread = self._known[1][end.index + 1 :]
        return int(unread[0]) if len(unread) else END_OF_TIME


def _reads_changes(options: Any) -> bool:
    found = {name.lower(): value.lower() for name, value in options.items()}
    return "true" in (found.get("readchangefeed"), found.get("readchangedata"))


def _streams_read(frame: DataFrame) -> int:
    """Return how many lines of the offset log are a DataFrame's own: one for each stream that its plan reads."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001 - nothing else tells
    return sum(1 for at in range(leaves.size()) if leaves.apply(at).isStreaming())


def _least_times(session: SparkSession, location: str, version: int, column: str) -> NDArray[np.int64]:
    """Return of each file of a table's version, in the order in which Delta streams them, how far time may come before.

    That is a millisecond before its least event time; ``NONE`` where its statistics do not have it, ``END_OF_TIME`` of
    a file without rows.
    """
    log = table_log(session, location)
    defaults = [getattr(log, f"getSnapshotAt$default${number}")() for number in (2, 3, 4)]
    snapshot = log.getSnapshotAt(version, *defaults)
    names_are_files = str(snapshot.metadata().columnMappingMode().name()) == "none"
    files = DataFrame(snapshot.allFiles().toDF(), session).select("modificationTime", "path", "stats")
    statistics = F.from_json("stats", "numRecords long, minValues map<string, string>")
    rows = (
        # As Delta's own ``DeltaSourceSnapshot`` numbers them.
        files.orderBy("modificationTime", "path")
        .select(statistics.alias("known"))
        .select(
            F.col("known.numRecords").alias("rows"),
            F.unix_millis(F.try_to_timestamp(F.try_element_at("known.minValues", F.lit(column)))).alias("least"),
        )
        .collect()
    )

    def until(row: Any) -> int:
        if row.rows == 0:
            return END_OF_TIME
        # Under column mapping the statistics go by other names, one of which may have been this one's.
        return row.least - 1 if names_are_files and row.least is not None else NONE

    return np.array([until(row) for row in rows], dtype=np.int64)
