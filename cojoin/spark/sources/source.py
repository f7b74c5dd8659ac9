"""``Source``: the description of where an input's rows come from, which the sources of every format extend.

A position in a source is a line of Spark's offset log. Rows that the source no longer has after a position are a loss,
reported with its size, which the user may accept; ``with_losses_accepted`` then moves the position to the earliest
available one. A source with which the query can't continue at all, such as a table that was created again, is an error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

from cojoin.delta.table_log import UnreadableLogError
from cojoin.errors import CheckpointError, ConfigurationError, EnvironmentSetupError
from cojoin.session.delta_tables import table_log
from cojoin.session.sessions import active_session, adapter_of, open_store
from cojoin.session.spark_checkpoint import has_read
from cojoin.spark.sources import delta_stream
from cojoin.storage.locations import is_path, without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.delta.table_log import TableLog
    from cojoin.engine.input import Input
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.row_changes import ChangeFeed
    from cojoin.spark.batch.packing import Grouping


def _delta_versions(spark: SparkSession, label: str, location: str, offset: str) -> tuple[int, int]:
    """Return the version to read next, and the earliest one, at or after it, from which all versions are available."""
    position, log = _parsed(label, offset), table_log(spark, location)
    table = None if log is None else log.newest()
    where = f"{label}: Delta table {location}"
    if log is None or table is None:
        msg = f"{where}: the table does not exist, and the checkpoint has read it; start a new query"
        raise CheckpointError(msg)
    newest, table_id = table.version, table.table_id
    first = int(position["reservoirVersion"])
    if table_id != position["reservoirId"] or first > newest + 1:
        got = f"id {table_id}, version {newest}"
        msg = (
            f"{where}: the checkpoint has read a table of the id {position['reservoirId']} up to version {first}; "
            f"got {got}: it was replaced by another; start a new query"
        )
        raise CheckpointError(msg)
    in_snapshot = bool(position["isStartingVersion"])
    if in_snapshot:
        _check_snapshot(spark, where, log, first, newest)
        first += 1
    available = set(log.versions())
    earliest = newest + 1
    while earliest > first and earliest - 1 in available:
        earliest -= 1
    if in_snapshot and earliest > first:
        # No position is both inside the table's snapshot and after the missing versions.
        msg = (
            f"{where}: the checkpoint has read a part of its version {first - 1}, and the versions {first} to "
            f"{earliest - 1} are gone from the log; start a new query"
        )
        raise CheckpointError(msg)
    return first, earliest


def _check_snapshot(spark: SparkSession, where: str, log: TableLog, version: int, newest: int) -> None:
    """Check that the rest of a table's initial snapshot can be read: its version, and the files removed since then."""
    try:
        then, now = log.files(version), {file.path for file in log.files(newest)}
        store = open_store(spark, log.path, "Delta table")
        gone = [file.path for file in then if file.path not in now and not file.is_outside]
        missing = [path for path in gone if not store.exists(path)]
        why = f"{len(missing):,} of its {len(then):,} files" if missing else None
    except UnreadableLogError:
        why = "its commits"
    if why is not None:
        msg = (
            f"{where}: the checkpoint has read a part of its version {version}, and {why} are gone, so the rest can't "
            f"be read; start a new query"
        )
        raise CheckpointError(msg)


def _parsed(label: str, offset: str) -> dict[str, Any]:
    try:
        position = json.loads(offset)
    except ValueError:
        position = None
    if not isinstance(position, dict):
        msg = f"{label}: the checkpoint's position is not in the form of Spark's offset log; got {offset[:60]!r}"
        raise CheckpointError(msg)
    return position


class SourceMonitor(Protocol):
    """A view of a source that never steers what the query reads; one thread uses it."""

    @property
    def commits(self) -> bool:
        """Whether positions are to be committed."""

    def commit(self, position: str) -> None:
        """Commit a position, the line of Spark's offset log after the last batch that counts, for others to see.

        Raises:
            CojoinError: It was refused, or there was no answer.
        """

    def unread(self, position: str) -> int:
        """Return how many offsets there are between a position and the present end of the source.

        Raises:
            CojoinError: There was no answer.
        """

    def close(self) -> None:
        """Close the connections; a second call does nothing."""


class NewestCommit(NamedTuple):
    """The newest version of a table whose commits are the event time of its changes."""

    version: int
    committed_at: int
    """Its own time, in epoch milliseconds."""

    clock_skew_ms: int
    """By how much the clocks of other writers may be behind, in milliseconds."""


PlacedAt: TypeAlias = "Callable[[pa.Table], list[int]]"
"""A function that returns, for each row of a source, the number of the first position after it."""


@dataclass(frozen=True, repr=False)
class Source:
    """A description of where rows come from, made by a function of ``cojoin.sources``.

    Attributes:
        format: Spark's name of the format.
        location: A path or a table's name; None for formats that have none.
        schema: The columns as DDL, if the format does not know them itself.
        options: Spark's options for the format. They may contain secrets, so they are never shown.
        partition: The source's columns that identify a row's source partition.
        sequence: The source's columns that order the rows of one partition.
        snapshot_version: The version of a table with which its changes begin; None is the newest at the first batch.
        max_drift_ms: The milliseconds by which records' timestamps may be after their event times; None without any.
    """

    format: str
    location: str | None
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    partition: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    snapshot_version: int | None = None
    max_drift_ms: int | None = None

    is_in_python: ClassVar[bool] = False
    """Whether its reader is Python's, for which Spark starts a process whenever a query starts."""

    @property
    def feed(self) -> ChangeFeed | None:
        """The change feed whose rows it has (``engine.row_changes``); None for most sources."""
        return None

    @property
    def begins_with_snapshot(self) -> bool:
        """Whether its rows are the changes of a table, after a snapshot of it that must be read first."""
        return self.feed is not None and self.feed.commit is not None

    @property
    def title(self) -> str:
        """The source in words, without secrets."""
        return f"{self.format} {without_login(self.location or '')}".rstrip()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.title})"

    def identity(self, spark: SparkSession) -> dict[str, str | None]:
        """Return the source's identity, independent of spelling and without options, which may contain secrets."""
        location = self.location
        if location is not None and is_path(location):
            location = open_store(spark, location, "source").root
        return {"format": self.format, "location": location}

    def is_known_as(self, spark: SparkSession, known: Mapping[str, Any]) -> bool:
        """Return whether a checkpoint's description of a source is this one's.

        Up to 0.5.0, a description has a format of files as it was spelled.
        """
        own = self.identity(spark)
        stored = {name: known.get(name) for name in own}
        return stored | {"format": str(known.get("format")).lower()} == own

    def recognised(self, spark: SparkSession, label: str, known: Mapping[str, Any] | None) -> dict[str, Any]:
        """Check that this is the source that the checkpoint has read, and return what the checkpoint stores of it.

        Raises:
            CheckpointError: It is another source with the same name.
        """
        del label, known
        return dict(self.identity(spark))

    def begun_with(
        self, spark: SparkSession, known: Mapping[str, Any] | None, *, is_direct: bool
    ) -> tuple[Source, str | None]:
        """Return this source as a query without a batch reads it, and a warning; most sources do not change.

        ``known`` is what an earlier start of the query has stored of its source, None at the first one. With
        ``is_direct`` cojoin reads the source, and not Spark's own one.
        """
        del spark, known, is_direct
        return self, None

    def together_with(self, other: Source) -> Source:
        """Return this source as it is read together with the other input's; most sources do not change."""
        del other
        return self

    def of_input(self, name: str, declared: Input | None = None) -> Source:
        """Return this source with its input's name, for messages, and settings; most sources do not change."""
        del name, declared
        return self

    def why_endless(self) -> str | None:
        """Return why a static read differs from a stream of the source, with advice; None if it does not."""
        of_streams = [name for name in self.options if name.lower() in ("startingversion", "startingtimestamp")]
        if not of_streams:
            return None
        return f"{of_streams[0]} is an option of streams; leave it out, or read the range with spark.read"

    def check(self, *, is_new: bool) -> list[str]:
        """Check the source before the query starts, and return warnings about rows that it may lack.

        Raises:
            ConfigurationError: The query can't start with this source.
        """
        del is_new
        return []

    def lost_since(self, spark: SparkSession, label: str, offset: str | None) -> list[str]:
        """Return descriptions of the losses after a position (a line of Spark's offset log, None at the start).

        Raises:
            CheckpointError: The query can't continue with this source.
        """
        # A source of files needs only those that are still to come.
        if self.format != "delta" or offset is None or not has_read(offset):
            return []
        first, earliest = _delta_versions(spark, label, str(self.location), offset)
        if earliest == first:
            return []
        which = f"version {first} is" if earliest == first + 1 else f"versions {first} to {earliest - 1} are"
        return [f"{label}: Delta table {self.location}: {which} gone from the log"]

    def with_losses_accepted(self, spark: SparkSession, label: str, offset: str | None) -> str | None:
        """Return the position moved past the losses that ``lost_since`` returns for the same arguments."""
        if offset is None or not self.lost_since(spark, label, offset):
            return offset
        _, earliest = _delta_versions(spark, label, str(self.location), offset)
        position = {"sourceVersion": 1, "reservoirVersion": earliest, "index": -1, "isStartingVersion": False}
        return json.dumps(json.loads(offset) | position, separators=(",", ":"))

    def between(self, label: str, begin: str | None, ends: Sequence[str]) -> tuple[DataFrame, PlacedAt] | None:
        """Return the rows between positions as a static DataFrame, if the source has a position for each row.

        Args:
            label: The input, for messages.
            begin: The first position, a line of Spark's offset log; None if nothing was read before.
            ends: The positions after it, one or more, ascending.

        Returns:
            The rows from the first position to the last, and a function that returns, for each collected row, the
            number of the first of ``ends`` that is after it (their count if none is). None for a source that only
            Spark's own stream reads by position, as Delta tables and folders of files.
        """
        del label, begin, ends
        return None

    def snapshot(self) -> DataFrame | None:
        """Return the present rows with the columns of a stream, to look at before a start; None where that is costly.

        Raises:
            ConfigurationError: No session is active.
        """
        is_readable = type(self) is Source and (self.format != "delta" or delta_stream.has_delta(active_session()))
        return self.open(streaming=False) if is_readable else None

    def monitor(self, label: str) -> SourceMonitor | None:
        """Return a monitor of how far a query has read the source; None for most sources."""
        del label
        return None

    def look_ahead(self) -> tuple[tuple[int, int] | None, list[str]]:
        """Return what a bounded run will read, and descriptions of the rows that it must leave for the next one.

        The former is the first and the last time of the present rows, in epoch milliseconds; None if it is unknown.
        """
        return None, []

    @property
    def ends_with_present_rows(self) -> bool:
        """Whether a run over the present rows reads all of them; False where an end was set before that."""
        return True

    def check_event_time(self, label: str, event_time: str | None) -> None:
        """Check that the source's own settings fit its input's event time.

        Raises:
            ConfigurationError: They do not.
        """

    def newest_commit(self, spark: SparkSession, event_time: str | None) -> NewestCommit | None:
        """Return the newest version of a table whose commits are the event time; None where they are not."""
        del spark, event_time
        return None

    def without_end(self) -> Source:
        """Return this source as it is read by a run without an end; most sources do not change."""
        return self

    def how_packed(self, spec: InputSpec) -> str | None:
        """Return how the source's rows are packed, if its own tasks can make rows of its records.

        Returns:
            ``DIRECT`` where the source's own tasks pack them (``open_packed``); otherwise why they do not, in words.
            None where only Spark can.
        """
        del spec
        return None

    def open_packed(self, grouping: Grouping) -> DataFrame:
        """Return the source as a stream whose tasks have packed rows, with ``READY_COLUMNS`` as last columns."""
        del grouping
        msg = f"{self.title}: its tasks pack no rows"
        raise NotImplementedError(msg)

    @property
    def is_named(self) -> bool:
        """Whether the location is a table's name, not a path."""
        return self.format == "delta" and not is_path(str(self.location))

    @property
    def has_log(self) -> bool:
        """Whether Spark keeps a separate log of its reading of this source, as it does for files."""
        return self.format != "delta" and not self.is_in_python

    def session(self) -> SparkSession:
        """Return the active Spark session; a ConfigurationError where there is none."""
        spark = active_session()
        if spark is None:
            msg = f"source {self.title}: no Spark session is active; make one with cojoin.spark_session()"
            raise ConfigurationError(msg)
        return spark

    def open(self, *, streaming: bool = True) -> DataFrame:
        """Open the source with the active Spark session.

        Returns:
            The rows.

        Raises:
            ConfigurationError: No session is active.
            EnvironmentSetupError: The session has no Delta, whose own source is to read the table.
        """
        spark = self.session()
        if self.format == "delta":
            try:
                adapter_of(spark).check_delta()
            except EnvironmentSetupError as error:
                msg = f"source {self.title}: Delta's own source is to read it, and {error}"
                raise EnvironmentSetupError(msg) from error
        reader: Any = (spark.readStream if streaming else spark.read).format(self.format).options(**self.options)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        frame: DataFrame = reader.table(self.location) if self.is_named else reader.load(self.location)
        return frame
