"""A Delta table as a static side of a stream: one version of it, and with a refresh later ones in its place.

The source reads one version of the table, the newest of the moment or the one that ``versionAsOf`` names, and never the
table's commits one by one. A query that starts copies the version into its checkpoint (``spark.query.table_loads``),
and from then on depends on the copy and on its state, not on the table. Where the session has no Delta, the workers
read the version's files, as they read those of a stream (``delta_stream``).

A table is recognised by its id, so one that was dropped and created again, or replaced, is another table.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.delta.table_log import UnreadableLogError
from cojoin.delta.table_stream import Columns
from cojoin.engine.values.arguments import Duration, milliseconds
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session.arrow_types import arrow_schema, arrow_type, spark_schema
from cojoin.session.delta_tables import columns_of, quoted_table, read_table
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import adapter_of
from cojoin.session.spark_errors import JAVA_ERRORS, first_line
from cojoin.spark.batch.direct_reader import TABLE_SETTING, DirectReader, why_by_columns, why_by_settings
from cojoin.spark.batch.packing import Grouping
from cojoin.spark.batch.parquet_rows import RANGES
from cojoin.spark.sources.delta_reader import TableReading, ranges_of
from cojoin.spark.sources.delta_stream import (
    UnsuitableError,
    check_deltas_source,
    has_delta,
    open_table,
    places_of_store,
    reasons_of_table,
    stored_schema,
    why_never,
)
from cojoin.spark.sources.options import as_options
from cojoin.spark.sources.source import Source
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.engine.input_spec import InputSpec
    from cojoin.spark.sources.delta_stream import OpenTable

_VERSION = "versionasof"
_OF_STREAMS = frozenset(
    name.lower()
    for name in (
        "failOnDataLoss",
        "ignoreChanges",
        "ignoreDeletes",
        "maxBytesPerTrigger",
        "maxFilesPerTrigger",
        "readChangeData",
        "readChangeFeed",
        "schemaTrackingLocation",
        "skipChangeCommits",
        "startingTimestamp",
        "startingVersion",
        "withEventTimeOrder",
    )
)


class TableAt(NamedTuple):
    """A version of a table, by the table's id."""

    table_id: str
    version: int


@dataclass(frozen=True, repr=False)
class StaticTable(Source):
    """A Delta table that is read at one version, made by ``cojoin.sources.delta(..., static=True)``.

    The newest version is loaded ``refresh_ms`` milliseconds after the last load; with None, never.
    """

    refresh_ms: int | None = field(default=None)

    @property
    def title(self) -> str:
        """The source in words, without secrets."""
        return f"static {super().title}"

    @property
    def pinned(self) -> int | None:
        """The version that the options name; None where it is the newest."""
        versions = [value for name, value in self.options.items() if name.lower() == _VERSION]
        return int(versions[0]) if versions else None

    @property
    def _shown(self) -> str:
        return f"Delta table {without_login(str(self.location))}"

    def why_endless(self) -> str | None:
        """Return None: each read of the source has an end."""
        return None

    def check(self, *, is_new: bool) -> list[str]:
        """Raise a ConfigurationError if the table or the version can't be read; it has no warnings."""
        del is_new
        session = self.session()
        self.at(session, self.newest(session))
        return []

    def recognised(self, spark: SparkSession, label: str, known: Mapping[str, Any] | None) -> dict[str, Any]:
        """Check that this is the table that the checkpoint has read; see ``Source.recognised``."""
        newest = self.newest(spark)
        before = None if known is None else known.get("table_id")
        if before is not None and before != newest.table_id:
            msg = (
                f"{label}: {self._shown} is another table than the one that the query has read: its id was {before} "
                f"and is {newest.table_id}, so it was replaced, or dropped and created again. The state still has the "
                f"rows of the former table; put that one back, or start a new query with another checkpoint="
            )
            raise CheckpointError(msg)
        return {**self.identity(spark), "table_id": newest.table_id}

    def lost_since(self, spark: SparkSession, label: str, offset: str | None) -> list[str]:
        """Return nothing, as a query continues with the rows in its state."""
        del spark, label, offset
        return []

    def newest(self, session: SparkSession) -> TableAt:
        """Return the version to load: the newest, or the one that the options name."""
        table = read_table(session, str(self.location))
        if table is None:
            msg = (
                f"{self._shown}: expected a Delta table, and there is none (any more); a view, and a table of another "
                f"format, has no versions to pin: write its rows to a Delta table, and name that"
            )
            raise ConfigurationError(msg)
        return TableAt(table.table_id, table.version if self.pinned is None else self.pinned)

    def at(self, session: SparkSession, table: TableAt) -> DataFrame:
        """Return a version's rows as a static DataFrame; a ConfigurationError if it is not in the log (any more)."""
        others = {name: value for name, value in self.options.items() if name.lower() != _VERSION}
        if not has_delta(session):
            return self._read_by_workers(session, table.version, others)
        try:
            if self.is_named:
                name = quoted_table(str(self.location))
                frame = session.sql(f"SELECT * FROM {name} VERSION AS OF {table.version}")  # noqa: S608 - a table's name
            else:
                reader: Any = session.read.format("delta").options(**others).option("versionAsOf", table.version)
                frame = reader.load(self.location)
            _ = frame.columns
        except JAVA_ERRORS as error:
            raise self._unreadable(table.version, error) from error
        return frame

    def _read_by_workers(self, session: SparkSession, version: int, options: Mapping[str, str]) -> DataFrame:
        """Return a version's rows as the workers read them; ``EnvironmentSetupError`` where only Delta can."""
        try:
            opened = open_table(session, self)
            at = opened._replace(version=opened.log.at(version))
            struct = columns_of(at.version)
            schema = None if struct is None else arrow_schema(struct)
            why = "its columns" if schema is None else next(_reasons(session, at, schema, options), None)
        except (CheckpointError, UnreadableLogError, UnsuitableError) as error:
            raise self._unreadable(version, error) from error
        check_deltas_source(session, self._shown, why)
        assert schema is not None
        return rows_of(session, at, schema, self._shown)

    def _unreadable(self, version: int, error: BaseException) -> ConfigurationError:
        return ConfigurationError(
            f"{self._shown}: version {version} can't be read: {first_line(error)}; a version is gone once its log is "
            f"cleaned or its files are vacuumed"
        )

    def open(self, *, streaming: bool = True) -> DataFrame:
        """Open the version with the active Spark session, always as a static DataFrame."""
        del streaming
        session = self.session()
        self._refuse_stream(session)
        return self.at(session, self.newest(session))

    def _refuse_stream(self, session: SparkSession) -> None:
        if not self.is_named:
            return
        try:
            is_stream = session.read.table(str(self.location)).isStreaming
        except JAVA_ERRORS:
            # The reading of the table raises a clearer error.
            return
        if is_stream:
            msg = (
                f"sources.delta {self.location!r}: static=True names a table, and this is a view of a stream, which "
                f"has no version that could be pinned; name the table, or leave static=True out and give cojoin.Input "
                f"the streaming DataFrame"
            )
            raise ConfigurationError(msg)

    def check_columns(self, frame: DataFrame, spec: InputSpec, version: int) -> None:
        """Raise a ConfigurationError if a version lacks a column of the input, or has it with another type."""
        types = {column.name: column.dataType for column in frame.schema.fields}
        for field_before in spec.source_schema:
            name, before = field_before.name, field_before.type
            now = arrow_type(types[name]) if name in types else None
            if now != before:
                change = "is gone" if now is None else f"is {now} and was {before}"
                msg = (
                    f"input {spec.name!r}: {self._shown}: column {name!r} {change} in version {version}; give the "
                    f"table its column back, or start a new query, with restore_from= where the columns have evolved"
                )
                raise ConfigurationError(msg)


def _reasons(session: SparkSession, opened: OpenTable, schema: pa.Schema, options: Mapping[str, str]) -> Iterator[str]:
    for name in options:
        yield f"it has the option {name}"
    why = why_never(session) or why_by_settings(session) or why_by_columns(schema, ())
    if why is not None:
        yield why
    yield from reasons_of_table(opened, schema)


def rows_of(session: SparkSession, opened: OpenTable, schema: pa.Schema, label: str) -> DataFrame:
    """Return the rows of a table's version, read by the workers.

    ``schema`` has its columns, ``label`` names it in messages.
    """
    table, columns = opened.version, Columns.of(opened.version.metadata)
    tasks = adapter_of(session).parallel_tasks()
    reading = TableReading(opened.store.root, opened.store.for_tasks(), table.table_id, columns, tasks=tasks)
    tasks_of_files = ranges_of(reading, reading.stream().snapshot(table.version))
    texts = [json.dumps(task.value, default=_as_text) for task in tasks_of_files]
    places, stored = places_of_store(opened.store), stored_schema(columns, schema)
    reader = DirectReader(label, None, Grouping(schema, (), 1), places, TABLE_SETTING, stored)
    names = [f"c{at}" for at in range(len(schema))]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for text in (each.as_py() for batch in batches for each in batch.column(0)):
            parts = [_of_text(part) for part in json.loads(text or "[]")]
            for rows in reader([pa.RecordBatch.from_pylist(parts, RANGES)]):
                yield pa.RecordBatch.from_arrays(rows.columns[: len(names)], names=names)

    # Not by createDataFrame, which would make a batch's session, a copy of the user's, the active one.
    lines = session.range(1).select(F.explode(F.split(F.lit("\n".join(texts)), "\n")).alias("task"))
    positional = spark_schema(pa.schema([each.with_name(name) for each, name in zip(schema, names, strict=True)]))
    frame = lines.repartition(max(1, len(texts))).mapInArrow(for_workers(read), positional)
    return frame.toDF(*schema.names)


def _as_text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _of_text(part: Mapping[str, Any]) -> dict[str, Any]:
    deleted = part["deleted"]
    return {**part, "deleted": None if deleted is None else base64.b64decode(deleted)}


def static_table(location: str, options: Any, refresh: Duration | None) -> StaticTable:
    """Return a static table as ``sources.delta`` makes it."""
    label = f"sources.delta {location!r}"
    reader_options = as_options(options, label)
    for name in reader_options:
        if name.lower() in _OF_STREAMS:
            msg = f"{label}: option {name!r} is for streams, and static=True reads one version as a whole; leave it out"
            raise ConfigurationError(msg)
        if name.lower() == "timestampasof":
            msg = (
                f"{label}: option {name!r}: name the version: DESCRIBE HISTORY shows which one it was, for versionAsOf"
            )
            raise ConfigurationError(msg)
    refresh_ms = None if refresh is None else milliseconds(refresh, "refresh")
    if refresh_ms == 0:
        msg = f"{label}: refresh: expected a time above zero, such as '1 hour', got {refresh!r}"
        raise ConfigurationError(msg)
    source = StaticTable("delta", location, None, reader_options, refresh_ms=refresh_ms)
    try:
        is_pinned = source.pinned is not None
    except ValueError:
        msg = f"{label}: option versionAsOf: expected the number of a version"
        raise ConfigurationError(msg) from None
    if is_pinned and refresh is not None:
        msg = f"{label}: versionAsOf pins one version, and refresh= takes the newest; leave one of them out"
        raise ConfigurationError(msg)
    return source
