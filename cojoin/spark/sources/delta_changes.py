"""The source of a Delta table's changes: its rows as they are at the start, then Delta's change data feed.

It is Delta's own stream with ``readChangeFeed`` and without a starting version: first the rows of the newest version,
the *snapshot*, then every change after it, in order, exactly once. Its positions are those of any Delta stream. The
stream's column ``_change_type`` becomes ``_deleted``. The former state of an updated row counts as deleted, too: it is
superseded by the row's new state, unless the update changed the key (``engine.row_changes``).

A position inside a commit is the number of the last file that was read, from 0 on. A stream of rows numbers the files
that the commit adds. A stream of changes numbers its change files, or if it has none, the files that it adds and
removes. Files that OPTIMIZE and the like rewrite are not numbered. After the whole commit, the position is the next
version; only after a commit with change files, Delta's position stays at the last file. So the log alone shows whether
a commit is read to its end. (Delta's ``DeltaSource`` and ``DeltaSourceCDCSupport``.)

To read a change, its commit and the files that the commit wrote or removed must exist. Delta deletes commits after
``delta.logRetentionDuration`` (30 days unless the table has another), and VACUUM deletes the files after a week, oldest
first. So a binary search finds which files are gone. A file that was deleted in another way fails the query when it is
read. (Delta's documentation, "Change data feed", and protocol, "Change Data Files".)
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from cojoin.delta.table_stream import FEED, Columns, records_changes, why_unreadable
from cojoin.engine.row_changes import CHANGE_TYPE, COMMIT, COMMITTED_AT, DELETED, DELETES, DELTA_FEED
from cojoin.engine.time.control_rows import CLOCK_SKEW_MS
from cojoin.engine.values.arguments import milliseconds
from cojoin.engine.values.rows import back_quoted
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session.delta_tables import read_table, table_in_sql, table_log
from cojoin.session.sessions import active_session, adapter_of, open_store
from cojoin.session.spark_checkpoint import has_read
from cojoin.spark.sources.delta_stream import has_delta
from cojoin.spark.sources.source import NewestCommit, Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.delta.actions import Commit
    from cojoin.delta.table_log import TableLog, TableVersion
    from cojoin.engine.row_changes import ChangeFeed
    from cojoin.engine.values.arguments import Duration


class _Mortal(NamedTuple):
    """A file that VACUUM may delete from the version ``since`` on, and the versions whose changes are in it."""

    since: int
    path: str
    needed_by: tuple[int, ...]


def files_in_commit(spark: SparkSession, location: str, version: int, *, is_feed: bool) -> int | None:
    """Return how many files a stream of a table, or of its changes, numbers in a commit; their number never changes.

    ``location`` is the table's path, with a ``/``, or its name. None means that the commit is gone from the log, or
    that a session of Spark Connect does not reach the log.
    """
    try:
        log = table_log(spark, location)
    except CheckpointError:
        if adapter_of(spark).shares_paths:
            raise
        return None
    if log is None or version not in log.versions():
        return None
    return _count_files(log.commit(version), is_feed=is_feed)


def _count_files(commit: Commit, *, is_feed: bool) -> int:
    if is_feed and commit.changes:
        return len(commit.changes)
    return sum(file.changes_data for file in (*commit.added, *(commit.removed if is_feed else ())))


def _why_unreadable_since(log: TableLog, first: int, table: TableVersion, *, is_direct: bool = False) -> str | None:
    """Return why the changes of a table from a version on can't be read with its present columns; None if they can.

    With ``is_direct`` cojoin reads them, and not Delta's own source.
    """
    columns, then = Columns.of(table.metadata), log.at(first)
    for version in range(first, table.version + 1):
        if version > first:
            commit = log.commit(version, has_files=False)
            if commit.metadata is None and commit.protocol is None:
                continue
            then = then.after(commit)
        if not records_changes(then.metadata):
            return f"those of version {version} were not recorded, as {FEED} was not true"
        why = columns.misfit(Columns.of(then.metadata))
        if why is not None:
            return f"since version {version} {why}"
        why = why_unreadable(then.protocol, then.metadata, of_changes=True) if is_direct else None
        if why is not None:
            return f"in version {version} {why} needs Delta's own source"
    return None


def _vacuumed_versions(spark: SparkSession, location: str, first: int) -> list[int]:
    """Return the versions of a table whose changes are gone with their files, oldest first.

    The changes of all versions from ``first`` on are needed, and their commits must be in the log.
    """
    log = table_log(spark, location)
    if log is None:
        return []
    files, store = sorted(_mortal_files(log, first)), open_store(spark, log.path, "Delta table")
    if files and store.exists(files[0].path):
        return []
    gone = bisect_left(files, x=True, key=lambda file: store.exists(file.path))
    return sorted({version for file in files[:gone] for version in file.needed_by})


def _mortal_files(log: TableLog, first: int) -> list[_Mortal]:
    """Return the files that hold changes from a version on, and are not in the newest version."""
    commits = [log.commit(version) for version in log.versions() if version >= first]
    removed: dict[str, int] = {}
    for commit in commits:
        removed |= {file.path: commit.version for file in commit.removed}
        # A file that gets a deletion vector is removed and added by one commit, and stays.
        for file in commit.added:
            removed.pop(file.path, None)
    needed: dict[tuple[int, str], list[int]] = {}
    for commit in commits:
        files = commit.changes or [file for file in (*commit.added, *commit.removed) if file.changes_data]
        since = dict.fromkeys((file.path for file in files), commit.version) if commit.changes else removed
        for file in files:
            if file.path in since and not file.is_outside:
                needed.setdefault((since[file.path], file.path), []).append(commit.version)
    return [_Mortal(*named, tuple(versions)) for named, versions in needed.items()]


_OWN_OPTIONS = ("readchangefeed", "readchangedata", "startingversion", "startingtimestamp")


@dataclass(frozen=True, repr=False)
class DeltaChanges(Source):
    """A Delta table whose changes are read, made by ``cojoin.sources.delta(..., changes=True)``.

    ``clock_skew_ms`` is how far the clocks of the table's writers may be behind; None is the default.
    """

    clock_skew_ms: int | None = None

    @property
    def feed(self) -> ChangeFeed:
        """Delta's change feed."""
        return DELTA_FEED

    @property
    def title(self) -> str:
        """The source in words, without secrets."""
        return f"changes of {super().title}"

    def check_event_time(self, label: str, event_time: str | None) -> None:
        """Raise a ConfigurationError if ``clock_skew`` is given, and the event time is not that of the commits."""
        if self.clock_skew_ms is not None and event_time != COMMITTED_AT:
            msg = (
                f"{label}: clock_skew= of sources.delta is about the times of commits, and its event time is "
                f"{event_time!r}: leave clock_skew= out, or use event_time={COMMITTED_AT!r}"
            )
            raise ConfigurationError(msg)

    def begun_with(
        self, spark: SparkSession, known: Mapping[str, Any] | None, *, is_direct: bool
    ) -> tuple[DeltaChanges, str | None]:
        """Return this source with the version of its snapshot: the newest one at the query's first start.

        If that start fails before its first batch, the next one begins with the same version, so it does not lose rows
        that the table replaces in between. Where that version can't be read any more, or only Delta's own source reads
        the table, it is the newest version now. The second value is a warning if rows changed in between.
        """
        log = table_log(spark, str(self.location))
        table = None if log is None else log.newest()
        if log is None or table is None:
            return self, None
        version, warning = table.version, None
        if known is not None and "snapshot" in known and self.is_known_as(spark, known):
            table_id, earlier = known["snapshot"]
            if table_id == table.table_id and earlier < version:
                why = self._why_not_from(spark, log, table, earlier, is_direct=is_direct)
                if why is None:
                    version = earlier
                elif any(_changes_rows(log, each) for each in range(earlier + 1, version + 1)):
                    warning = (
                        f"the first start of this query, which read nothing, found version {earlier} of {self.title}. "
                        f"This one begins with version {version}, without the rows that were replaced or deleted "
                        f"between the two: {why}"
                    )
        return replace(self, snapshot_version=version), warning

    def _why_not_from(
        self, spark: SparkSession, log: TableLog, table: TableVersion, version: int, *, is_direct: bool
    ) -> str | None:
        """Return why the snapshot of a version, and the changes after it, can't be read; None if they can."""
        if not is_direct:
            return "Delta's own source, which reads this table, always begins with the newest version"
        position = {"reservoirId": table.table_id, "reservoirVersion": version, "index": -1, "isStartingVersion": True}
        try:
            why = _why_unreadable_since(log, version, table, is_direct=True)
            if why is None:
                self.lost_since(spark, "", json.dumps(position))
        except CheckpointError:
            return f"files or commits of version {version}, or of a later one, are gone"
        return why

    def recognised(self, spark: SparkSession, label: str, known: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what the checkpoint stores of the source; before the first batch also the version of the snapshot."""
        described = super().recognised(spark, label, known)
        if self.snapshot_version is None:
            return described
        table = read_table(spark, str(self.location))
        return described | {"snapshot": ["" if table is None else table.table_id, self.snapshot_version]}

    def newest_commit(self, spark: SparkSession, event_time: str | None) -> NewestCommit | None:
        """Return the newest version and its time, if that is the event time; None otherwise, and without a table."""
        if event_time != COMMITTED_AT:
            return None
        log = table_log(spark, str(self.location))
        table = None if log is None else log.newest()
        if log is None or table is None:
            # The stream's own error is clearer about a table that can't be read.
            return None
        skew = CLOCK_SKEW_MS if self.clock_skew_ms is None else self.clock_skew_ms
        return NewestCommit(table.version, log.committed_at(log.commit(table.version)), skew)

    def why_endless(self) -> str | None:
        """Return why a static read differs from a stream of the source, with advice."""
        return (
            "the changes of a table are read as a stream; connect cojoin.sources.delta(...) without changes=True to "
            "read the rows that it has now, each as a version"
        )

    def open(self, *, streaming: bool = True) -> DataFrame:
        """Open the stream of the table's changes with the active Spark session.

        It has the table's columns, ``_deleted``, ``_commit_version`` and ``_commit_timestamp``; ``streaming`` must be
        True. A table without a change data feed, or with a column of one of these names, raises a ConfigurationError.
        """
        if not streaming:
            msg = f"source {self.title}: {self.why_endless()}"
            raise ConfigurationError(msg)
        self.check_feed(self.session())
        frame = super().open()
        columns = [name for name in frame.columns if name != CHANGE_TYPE]
        taken = [name for name in columns if name.lower() == DELETED]
        if taken:
            msg = (
                f"source {self.title}: the table has a column {taken[0]!r}, and its changes get one of this name "
                f"for whether the row is deleted; rename it"
            )
            raise ConfigurationError(msg)
        table = [frame[back_quoted(name)] for name in columns if name not in (COMMIT, COMMITTED_AT)]
        deleted = F.coalesce(frame[CHANGE_TYPE].isin(*DELETES), F.expr("false")).alias(DELETED)
        return frame.select(*table, deleted, frame[COMMIT], frame[COMMITTED_AT])

    def snapshot(self) -> DataFrame | None:
        """Return the table's present rows, with the columns that a stream of its changes has; None without Delta."""
        if not has_delta(active_session()):
            return None
        frame = Source("delta", self.location).open(streaming=False)
        version, time = F.lit(0).cast("long").alias(COMMIT), F.lit(None).cast("timestamp").alias(COMMITTED_AT)
        return frame.select("*", F.expr("false").alias(DELETED), version, time)

    def lost_since(self, spark: SparkSession, label: str, offset: str | None) -> list[str]:
        """Return an empty list; raise a CheckpointError if changes are lost, since deleted rows would stay valid."""
        lost = super().lost_since(spark, label, offset)
        if lost:
            msg = f"{'; '.join(lost)}: without its changes, rows that were changed or deleted would stay valid; {_CURE}"
            raise CheckpointError(msg)
        if offset is not None and has_read(offset):
            self._check_changes(spark, label, json.loads(offset))
        return []

    def check_feed(self, spark: SparkSession, known: TableVersion | None = None) -> None:
        """Check that the table records its changes; ``known`` is its newest version where that was read already."""
        table = known or read_table(spark, str(self.location))
        # The stream's own error is clearer about a table that does not exist.
        if table is not None and not records_changes(table.metadata):
            named = table_in_sql(spark, str(self.location))
            msg = (
                f"source {self.title}: the table does not record its changes; switch that on with ALTER TABLE {named} "
                f"SET TBLPROPERTIES ('{FEED}' = 'true'), and start again"
            )
            raise ConfigurationError(msg)

    def _check_changes(self, spark: SparkSession, label: str, position: Mapping[str, Any]) -> None:
        """Check that the changes after a position were recorded and can be read."""
        version, index = int(position["reservoirVersion"]), int(position["index"])
        first = version + bool(position["isStartingVersion"])
        if index >= 0 and first == version:
            files = files_in_commit(spark, str(self.location), version, is_feed=True)
            # After a commit with change files, Delta's position stays at the last one, which VACUUM may delete.
            first += files is not None and index >= files - 1
        log = table_log(spark, str(self.location))
        table = None if log is None else log.newest()
        if log is None or table is None or first > table.version:
            return
        why = _why_unreadable_since(log, first, table)
        if why is not None:
            msg = (
                f"{label}: Delta table {self.location}: its changes from version {first} on can't be read: {why}; "
                f"{_CURE}"
            )
            raise CheckpointError(msg)
        vacuumed = _vacuumed_versions(spark, str(self.location), first)
        if vacuumed:
            listed = ", ".join(map(str, vacuumed[:_SHOWN])) + (", ..." if len(vacuumed) > _SHOWN else "")
            which = f"version {listed}" if len(vacuumed) == 1 else f"{len(vacuumed):,} versions ({listed})"
            msg = (
                f"{label}: Delta table {self.location}: its changes of {which} can't be read: VACUUM has deleted their "
                f"files; {_CURE}"
            )
            raise CheckpointError(msg)


def _changes_rows(log: TableLog, version: int) -> bool:
    """Return whether a commit changes rows; True where it is gone."""
    return version not in log.versions() or _count_files(log.commit(version), is_feed=True) > 0


_SHOWN = 10
_CURE = "start a new query with its own checkpoint, which begins with the table's present rows"


def delta_changes(location: str, options: Mapping[str, str], clock_skew: Duration | None = None) -> DeltaChanges:
    """Return the source of a table's changes; see ``cojoin.sources.delta``."""
    for name in options:
        if name.lower() in _OWN_OPTIONS:
            msg = (
                f"sources.delta {location!r}: changes=True begins with the table's present rows and continues with "
                f"its changes; leave the option {name} out"
            )
            raise ConfigurationError(msg)
    skew = None if clock_skew is None else milliseconds(clock_skew, f"sources.delta {location!r}: clock_skew")
    feed_options = {**options, "readChangeFeed": "true"}
    return DeltaChanges("delta", location, None, feed_options, sequence=(COMMIT,), clock_skew_ms=skew)
