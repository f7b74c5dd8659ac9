"""The driver's view of how far inputs are read: limits of watermarks inside a table's history, and a bounded run's end.

Delta reads a table's first snapshot in the order of its files, a limited number per batch (``maxFilesPerTrigger``),
whatever their event times. It reads a commit that is too large for a batch in the same way. Rows of the first files
would advance the watermark past rows of the others, which would then be late. So files that are still unread hold the
input's watermark back (``HistoryHolds``), and only rows that were read advance it.

Spark's offset log has the table's position after each batch. Inside a snapshot, the input's watermark stays below the
smallest event time of the files that are still unread, by the statistics in the Delta log; so it advances where files
follow each other in time. Without such statistics (a column that has none, a computed event time, a user's own
DataFrame), and inside a commit, the watermark does not advance until all of it is read. A position with a commit's
version may be after the whole commit (``sources.delta_changes``); the log is read once for each such commit. If the log
is out of reach, the watermark waits for the next commit, and the driver logs a warning.

For a table whose changes are read (``delta(..., changes=True)``), the watermark does not advance until all of the
snapshot is read: the other input's rows wait until the table is in the state. The snapshot's version follows from the
offset log, too. If the first batch ends after the snapshot, it is the version before the batch's end, as in Delta.

A batch that is run again has the same offsets and the same Delta log, so it gets the same limits. They are passed to
the calls with the other facts of the batch (``batch_facts``), and are stored as part of the state. A session of Spark
Connect may not reach the log, so the watermark waits until all of a table's snapshot is read.

A bounded run fixes its end once, by the clock (``RunEnd``), before Spark reads the sources' ends, and before a table's
newest version is read. So all rows that the run does not read were written after this moment. The moment counts only
once all was read, and is then stored with the plan of the last batch (``checkpoints.control``): a run that fails, or is
stopped, stores nothing of it. An input has such a complete reading where something depends on it: its strategy has an
idleness, or its event time is that of its table's commits. For a table, Spark's offset log must also show that the
version was read to its end.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.delta.table_stream import Columns, Position
from cojoin.engine.display import format_span
from cojoin.engine.time.control_rows import CompleteReading
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.session.delta_tables import table_log, table_path
from cojoin.session.sessions import adapter_of
from cojoin.session.spark_checkpoint import OFFSETS, has_read, newest_id, source_offsets
from cojoin.spark.batch.batch_facts import HOLDS_PROPERTY, LOADS_PROPERTY, Loads
from cojoin.spark.sources.delta_changes import files_in_commit
from cojoin.storage.locations import is_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.time.time_axis import TimeAxis
    from cojoin.session.session_adapter import StreamSource
    from cojoin.spark.bound_input import BoundInput
    from cojoin.spark.sources.source import NewestCommit, Source
    from cojoin.storage.store import Store

_LOG = logging.getLogger(__name__)

_LOCAL, _LONGEST_GAP_MS = pa.timestamp("us"), 86_400_000


@dataclass(frozen=True)
class InputStreams:
    """The streams of a query's inputs, as far as their watermarks may have to wait for them.

    Attributes:
        tables: The folder of each input's Delta table, None for any other input; and its time columns, each with the
            axis of times that are not timestamps: the event time, None where it is computed, and the known time where
            there is one. The watermark passes a row by the later of the two.
        lines: How many lines of Spark's offset log belong to each input.
        feeds: Whether each input is the changes of a table.
        logs: The folder of the Delta table of each of these lines, and whether its changes are read; None where it is
            not known.

    The folders are those at the start, which the stream reads: a table's name may later be another table's.
    """

    tables: tuple[tuple[str | None, Sequence[_TimeColumn]], ...]
    lines: tuple[int, ...]
    feeds: tuple[bool, ...] = (False, False)
    logs: tuple[tuple[str, bool] | None, ...] = ()

    @classmethod
    def of(cls, inputs: Sequence[BoundInput]) -> InputStreams:
        """Return the streams of two inputs."""
        tables = tuple((_table(each), _time_columns(each.spec)) for each in inputs)
        feeds = tuple(each.source is not None and each.source.begins_with_snapshot for each in inputs)
        logs = [_logs(each) for each in inputs]
        return cls(tables, tuple(map(len, logs)), feeds, (*logs[0], *logs[1]))


class HistoryHolds:
    """Limits the watermarks of a query's inputs in each micro-batch.

    ``begins_at`` has the source offsets after the first batch of a restored query, one JSON line each.
    """

    def __init__(self, streams: InputStreams, files: Store, begins_at: Sequence[str] | None = None) -> None:
        self._files, self._begins_at = files, begins_at
        self._tables = [_Table(*table, is_feed=feed) for table, feed in zip(streams.tables, streams.feeds, strict=True)]
        self._lines, self._logs = streams.lines, streams.logs
        self._files_in: dict[tuple[str, bool], tuple[int, int | None]] = {}
        self._reads_no_table = False

    def around(self, write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """Return a function that processes a micro-batch as ``write`` does, and passes the limits to its calls."""

        def write_held(emitted: DataFrame, batch_id: int) -> None:
            session = emitted.sparkSession
            holds, loads = self.after(session, batch_id)
            session.sparkContext.setLocalProperty(HOLDS_PROPERTY, json.dumps(holds))
            session.sparkContext.setLocalProperty(LOADS_PROPERTY, json.dumps(loads.as_dict()))
            write(emitted, batch_id)

        return write_held

    def after(self, session: SparkSession, batch_id: int) -> tuple[dict[int, int], Loads]:
        """Return the limits of the inputs' watermarks in a batch that Spark has planned, and how far tables are loaded.

        The limits are in epoch milliseconds, by the input's number; ``NONE`` where the watermark must not advance. An
        input without a limit is left out.
        """
        if self._reads_no_table:
            return {}, Loads()
        if batch_id == 0 and self._begins_at is not None:
            # The batch reads only the restored state, which belongs to the offsets of the old query's sources.
            lines = [*self._begins_at]
        else:
            lines = source_offsets(self._files, batch_id)[:-1]
        ends = [Position.read(line) for line in lines]
        # A source with an offset of another kind is not a Delta table, and does not become one.
        self._reads_no_table = all(end is None and has_read(line) for end, line in zip(ends, lines, strict=True))
        if len(lines) != sum(self._lines):
            # It is not known to which input a line belongs, so each counts for both. They may all be of one table.
            log = self._logs[0] if len({*self._logs}) == 1 else None
            within = any(end is not None and end.is_within and not self._is_read(session, log, end) for end in ends)
            return (dict.fromkeys((1, 2), NONE) if within else {}), Loads()
        begins = self._before(batch_id, len(lines))
        is_read = [self._is_read(session, log, end) for log, end in zip(self._logs, ends, strict=True)]
        holds: dict[int, int] = {}
        snapshots: dict[int, int] = {}
        rows: dict[int, tuple[int, int]] = {}
        for number, (table, count) in enumerate(zip(self._tables, self._lines, strict=True), start=1):
            own, ends = ends[:count], ends[count:]
            unread = [end for end, read in zip(own, is_read, strict=False) if end is not None and not read]
            until = min((table.until(session, end) for end in unread), default=END_OF_TIME)
            if until < END_OF_TIME:
                holds[number] = until
            if count == 1 and own[0] is not None:
                snapshot = _snapshot_between(begins[0], own[0]) if table.is_feed else None
                if snapshot is not None:
                    snapshots[number] = snapshot
                read = table.rows_read(session, own[0])
                if read is not None:
                    rows[number] = read
            begins, is_read = begins[count:], is_read[count:]
        return holds, Loads(snapshots, rows)

    def _is_read(self, session: SparkSession, log: tuple[str, bool] | None, end: Position | None) -> bool:
        """Return whether a batch that ends at a file of a commit has read all of that commit, as far as is known."""
        if log is None or end is None or end.in_snapshot or not end.is_within:
            return False
        location, is_feed = log
        if self._files_in.get(log, (-1, None))[0] != end.version:
            count = files_in_commit(session, location, end.version, is_feed=is_feed)
            self._files_in[log] = end.version, count
            if count is None:
                _LOG.warning(
                    "Delta table %s: commit %d is gone from its log, or the session does not reach the log: it is not "
                    "known whether all of it was read, so the input's watermark waits for the next commit",
                    location,
                    end.version,
                )
        files = self._files_in[log][1]
        return files is not None and end.index >= files - 1

    def _before(self, batch_id: int, count: int) -> list[Position | None]:
        """Return the end of the batch before in each source; None where the source was not read before."""
        if batch_id == 0:
            lines = [] if self._begins_at is None else [*self._begins_at]
        else:
            lines = source_offsets(self._files, batch_id - 1)[:-1]
        return [Position.read(line) for line in lines] if len(lines) == count else [None] * count


def snapshot_of(begin: str, end: str) -> int | None:
    """Return the version that a batch of a change feed reads as the initial snapshot; None where it reads none.

    The batch lies between two lines of Spark's offset log.
    """
    last = Position.read(end)
    return None if last is None else _snapshot_between(Position.read(begin), last)


def _snapshot_between(begin: Position | None, end: Position) -> int | None:
    if begin is not None:
        return begin.version if begin.in_snapshot else None
    # As in Delta's own ``DeltaSource.extractStartingState``.
    return end.version if end.in_snapshot else end.version - 1


def _is_read_through(session: SparkSession, location: str, line: str, version: int) -> bool:
    """Return whether a stream of a table's changes has read a version and all before it to their ends.

    ``location`` is the table's path, with a ``/``, or its name; ``line`` is the stream's position in Spark's offset
    log.
    """
    end = Position.read(line)
    if end is None:
        # The stream of a table that never had a row has read nothing.
        first = None if has_read(line) else 0
    elif end.in_snapshot:
        return False
    elif end.index < 0:
        first = end.version
    else:
        files = files_in_commit(session, location, end.version, is_feed=True) if end.version <= version else None
        is_unread = end.version <= version and (files is None or end.index < files - 1)
        first = None if is_unread else end.version + 1
    # Commits without rows, such as OPTIMIZE's, need not be read.
    return first is not None and all(
        files_in_commit(session, location, commit, is_feed=True) == 0 for commit in range(first, version + 1)
    )


class _Table:
    """The Delta table of an input, with the event times in its files and their numbers of rows."""

    def __init__(self, location: str | None, times: Sequence[_TimeColumn], *, is_feed: bool) -> None:
        self._location, self._times, self.is_feed = location, times, is_feed
        self._known: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None

    def until(self, session: SparkSession, end: Position) -> int:
        """Return the limit at the end of a batch: a millisecond before the smallest event time that is still unread."""
        if not end.is_within:
            return END_OF_TIME
        if self._times[0].name is None or self.is_feed or not end.in_snapshot:
            return NONE
        known = self._statistics(session, end)
        if known is None:
            return NONE
        unread = known[0][end.index + 1 :]
        return int(unread[0]) if len(unread) else END_OF_TIME

    def rows_read(self, session: SparkSession, end: Position) -> tuple[int, int] | None:
        """Return how many rows of its snapshot are read, and how many it has; None after it, or if that is unknown."""
        known = self._statistics(session, end) if end.in_snapshot else None
        if known is None or (known[1] < 0).any():
            return None
        return int(known[1][: end.index + 1].sum()), int(known[1].sum())

    def _statistics(self, session: SparkSession, end: Position) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return the limit before each file of a snapshot is read, and its number of rows; None if they are unknown."""
        # A session of Spark Connect may not reach the table's log.
        if self._location is None or not adapter_of(session).shares_paths:
            return None
        if self._known is None or self._known[0] != end.version:
            statistics = _of_files(session, self._location, end, self._times)
            if statistics is None:
                return None
            least, rows = statistics
            self._known = end.version, np.minimum.accumulate(least[::-1])[::-1], rows
        return self._known[1:]


def _table(bound: BoundInput) -> str | None:
    """Return the folder of an input's Delta table; None otherwise, or if a user's option reads its change feed."""
    source = bound.source
    if source is None or source.format != "delta":
        return None
    if _reads_changes(source.options) and not source.begins_with_snapshot:
        return None
    return _folder(bound, source)


def _folder(bound: BoundInput, source: Source) -> str:
    return table_path(bound.frame.sparkSession, str(source.location)) or str(source.location)


class _TimeColumn(NamedTuple):
    """A column of times, None where they are computed, and their axis, None for timestamps."""

    name: str | None
    axis: TimeAxis | None


def _time_columns(spec: InputSpec) -> list[_TimeColumn]:
    """Return the table's columns of times; a row takes effect no earlier than the later one."""
    changes = spec.changes
    earliest = spec.event_time if changes is None or changes.valid_from is None else changes.valid_from
    known = [] if spec.known is None or spec.known.column is None else [_TimeColumn(spec.known.column, spec.known.axis)]
    return [_TimeColumn(earliest, spec.time_axis), *known]


def _reads_changes(options: Any) -> bool:
    lowered = {name.lower(): value.lower() for name, value in options.items()}
    return "true" in (lowered.get("readchangefeed"), lowered.get("readchangedata"))


def _logs(bound: BoundInput) -> tuple[tuple[str, bool] | None, ...]:
    """Return the Delta table of each line of the offset log that belongs to an input, and whether it reads changes.

    There is one line for each stream that the plan of its DataFrame reads.
    """
    logs = [_log_of(each) for each in adapter_of(bound.frame.sparkSession).stream_sources(bound.frame)]
    if len(logs) == 1 and bound.source is not None and bound.source.format == "delta":
        return ((_folder(bound, bound.source), _reads_changes(bound.source.options)),)
    return tuple(logs)


def _log_of(source: StreamSource | None) -> tuple[str, bool] | None:
    """Return the table of one such stream, and whether it reads changes; None where it is not Delta's, or not known."""
    if source is None or source.format != "delta":
        return None
    path = source.options.get("path")
    return None if path is None else (path if is_path(path) else f"./{path}", _reads_changes(source.options))


def _of_files(
    session: SparkSession, location: str, end: Position, times: Sequence[_TimeColumn]
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the limit before each file of a snapshot is read, and its rows, in the order of Delta's stream.

    None where the table was made again since, so that its files are not those that are read.

    The limit is a millisecond before the file's smallest time, in epoch milliseconds; with several columns of times, it
    is the latest limit. It is ``NONE`` where the statistics lack a time, and ``END_OF_TIME`` for a file without rows.
    The number of rows is -1 where the statistics lack it.
    """
    log = table_log(session, location)
    table = None if log is None else log.at(end.version)
    if log is None or table is None or table.table_id != end.table_id:
        return None
    # The statistics have the columns' names in the files.
    stored = Columns.of(table.metadata).stored
    # Delta's own ``DeltaSourceSnapshot`` numbers the files in this order.
    statistics = [(file.rows, file.deletion_vector or {}, file.counted()) for file in log.files(end.version)]
    counts = [-1 if rows is None else rows - int(gone.get("cardinality", 0)) for rows, gone, _ in statistics]
    limits_by_column = []
    for name, axis in times:
        column, _ = stored.get(str(name), (name, None))
        least = [(known.get("minValues") or {}).get(column) for _, _, known in statistics]
        limits_by_column.append(_limits_before(session, least) if axis is None else _limits_on(axis, least))
    latest = [max(each) for each in zip(*limits_by_column, strict=True)]
    limits = [END_OF_TIME if rows == 0 else time for rows, time in zip(counts, latest, strict=True)]
    return np.array(limits, dtype=np.int64), np.array(counts, dtype=np.int64)


def _limits_before(session: SparkSession, texts: Sequence[Any]) -> list[int]:
    """Return a millisecond before each time in statistics, as Spark parses it; ``NONE`` for any other text."""
    # Not by createDataFrame, which would make a batch's session, a copy of the user's, the active one.
    lines = F.split(F.lit("\n".join(text if isinstance(text, str) else "" for text in texts)), "\n")
    least = session.range(1).select(F.explode(lines).alias("least"))
    times = least.select(F.unix_millis(F.try_to_timestamp("least")).alias("millis"))
    return [NONE if millis is None else millis - 1 for millis in times.toArrow().column(0).to_pylist()]


def _limits_on(axis: TimeAxis, least: Sequence[Any]) -> list[int]:
    """Return the same for local times or whole numbers in statistics."""
    kind = int if axis.zone is None else str
    values = [value if type(value) is kind else None for value in least]
    try:
        column = pa.array(values, pa.int64()) if axis.zone is None else pa.array(values, pa.string()).cast(_LOCAL)
    except pa.ArrowInvalid:
        return [NONE] * len(values)
    # A local time inside the gap of a clock change moves forward by the gap, and may then be after later ones.
    slack = 0 if axis.zone is None else _LONGEST_GAP_MS
    times = axis.timestamps(pa.chunked_array([column])).cast(pa.int64()).to_pylist()
    return [NONE if micros is None else micros // 1_000 - 1 - slack for micros in times]


@dataclass(frozen=True)
class RunEnd:
    """The end of a run over what is available, as it was fixed at the moment ``asked_at``, in epoch milliseconds.

    ``streams`` are those of the inputs. ``commits`` has the newest version of each input's table, None where its event
    time is not that of commits. ``is_complete`` is true for inputs that the run reads to their ends.
    """

    asked_at: int
    inputs: Sequence[BoundInput]
    streams: InputStreams
    commits: Sequence[NewestCommit | None]
    is_complete: Sequence[bool]

    @classmethod
    def fix(
        cls, spark: SparkSession, inputs: Sequence[BoundInput], streams: InputStreams, held_back: Sequence[bool]
    ) -> RunEnd | None:
        """Return the end, None where nothing depends on it; the caller starts the stream afterwards.

        It reads the clock, then the newest versions of the tables, and warns of a version that is ahead of the clock by
        more than ``clock_skew``. ``held_back`` has, for each input, whether its source must leave rows for the next
        run.
        """
        asked_at = int(1000 * time.time())
        commits = [
            bound.source.newest_commit(spark, bound.spec.clock)
            if bound.source is not None and bound.is_streaming and bound.spec.watermark.generator.takes_promises
            else None
            for bound in inputs
        ]
        for bound, commit in zip(inputs, commits, strict=True):
            if commit is not None and commit.committed_at - asked_at > commit.clock_skew_ms:
                warnings.warn(_ahead(bound.spec.name, commit, asked_at), stacklevel=6)
        is_complete = [
            bound.is_streaming and not held and (bound.source is None or bound.source.ends_with_present_rows)
            for bound, held in zip(inputs, held_back, strict=True)
        ]
        depends = any(commits) or any(each.spec.watermark.idleness is not None for each in inputs)
        return cls(asked_at, inputs, streams, commits, is_complete) if depends else None

    def readings(self, spark: SparkSession, files: Store) -> dict[int, CompleteReading]:
        """Return the complete readings on which something depends, by the input's number, once the run has read all."""
        newest = newest_id(files, OFFSETS)
        rest = [] if newest is None else source_offsets(files, newest)[:-1]
        lines, is_known = self.streams.lines, len(rest) == sum(self.streams.lines)
        complete: dict[int, CompleteReading] = {}
        for number, (bound, count, commit) in enumerate(zip(self.inputs, lines, self.commits, strict=True), 1):
            own, rest = rest[:count], rest[count:]
            if not self.is_complete[number - 1]:
                continue
            location, _ = self.streams.tables[number - 1]
            is_one = is_known and count == 1 and location is not None
            if commit is not None and is_one and _is_read_through(spark, str(location), own[0], commit.version):
                times = commit.version, commit.committed_at, commit.clock_skew_ms
                complete[number] = CompleteReading.of_table(self.asked_at, *times, bound.spec.max_ahead_ms)
            elif bound.spec.watermark.idleness is not None:
                complete[number] = CompleteReading(self.asked_at)
        return complete


def _ahead(name: str, commit: NewestCommit, asked_at: int) -> str:
    distance = commit.committed_at - asked_at
    return (
        f"input {name!r}: the newest version of its table, {commit.version}, is {format_span(distance)} ahead of this "
        f"driver's clock, so the clocks of its writers differ by more than clock_skew, which is "
        f"{format_span(commit.clock_skew_ms)}: commits by other writers may be late; set the clocks, or give "
        f"clock_skew= of sources.delta a longer time than they differ by"
    )
