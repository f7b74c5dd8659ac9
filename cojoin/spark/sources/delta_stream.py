"""The stream of a Delta table's appended rows, or of its changes, without Delta's own reader.

It is a Python data source of Spark, whose reader runs in a process next to the driver (``delta_reader``). For each
micro-batch, the reader reads the new commits in the table's log, and chooses the files up to the limits
(``delta.table_stream``). The workers read these as they read a folder's (``batch.direct_reader``). So no row becomes
one of Spark's, and no class of Delta's is called for a batch.

The positions in Spark's offset log are those of Delta's own source, so a checkpoint continues with either source.
``connect`` chooses the source of each table. It is Delta's where files by themselves do not have the table's rows
(types that were widened, columns mapped by number, changes between deletion vectors), where a setting or an option
changes what is read, and where only Spark reads a column's type or a file (``why_through_spark``).

Deletion vectors are read by ``deltalake``, together with the list of a version's files. A batch's tasks have a bit for
each row of a file with one.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from cojoin.delta.deltalake_table import deleted_rows
from cojoin.delta.table_log import TableLog
from cojoin.delta.table_stream import Columns, Limits, columns_changed, why_unreadable
from cojoin.engine.row_changes import CHANGE_TYPE, COMMIT, COMMITTED_AT, DELETED
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import CheckpointError, ConfigurationError, EnvironmentSetupError, QueryFailedError
from cojoin.session.arrow_types import arrow_schema, spark_schema
from cojoin.session.delta_tables import columns_of, table_path
from cojoin.session.sessions import active_session, adapter_of, is_left_to_spark, open_store
from cojoin.spark.batch.direct_reader import (
    TABLE_SETTING,
    constant_of,
    open_stored,
    why_by_columns,
    why_by_settings,
)
from cojoin.spark.batch.parquet_rows import misfit
from cojoin.spark.sources.delta_reader import TableReading, data_source
from cojoin.storage.local_store import LocalStore
from cojoin.storage.locations import scheme_and_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.delta.actions import DataFile
    from cojoin.delta.table_log import TableVersion
    from cojoin.delta.table_stream import Removals
    from cojoin.engine.input_spec import InputSpec
    from cojoin.spark.sources.source import Source
    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

_FORMAT = "cojoin-delta"
_SAMPLES = 3
_REMOVALS: dict[str, Removals] = {
    "skipchangecommits": "skip_commit",
    "ignorechanges": "ignore_changes",
    "ignoredeletes": "ignore_deletes",
}
_PADDED = '"__CHAR_VARCHAR_TYPE_STRING":"char('
"""The text in a table's schema that marks a column which Spark pads with blanks as it reads it."""

_OF_FEED = {CHANGE_TYPE, DELETED, COMMIT, COMMITTED_AT}
_SIZE = re.compile("([1-9][0-9]*)([bkmgt]?)")
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class OpenTable(NamedTuple):
    """A table that is open for reading: its folder, its newest version, and its log."""

    store: Store
    version: TableVersion
    log: TableLog


def streamed_table(session: SparkSession, source: Source) -> OpenTable | None:
    """Open a table that cojoin may read as a stream; None where the session, the store or an option rules that out."""
    if why_never(session) is not None:
        return None
    try:
        # This raises for an option that may change the columns, such as a user's own readChangeFeed.
        _options(source)
        return open_table(session, source)
    except (CheckpointError, UnsuitableError):
        return None


def why_through_spark(
    source: Source, frame: DataFrame, spec: InputSpec, *, is_computed: bool, opened: OpenTable | None
) -> str | None:
    """Return why Delta's own source reads a table as a stream; None where cojoin's does.

    ``is_computed`` means that the event time is an expression. ``opened`` is the table where it is open already.
    """
    try:
        return next(_reasons(frame.sparkSession, source, spec, opened, is_computed=is_computed), None)
    except (CheckpointError, EnvironmentSetupError, QueryFailedError, UnsuitableError) as error:
        # Where the log can't be read, Delta's own source fails, too, with a more detailed error.
        return str(error)


def why_never(session: SparkSession) -> str | None:
    """Return why cojoin can't read any table as a stream in a session; None where it can."""
    if is_left_to_spark(session, TABLE_SETTING):
        return "spark.cojoin.delta is spark"
    if find_spec("pyspark.sql.streaming.datasource") is None:
        return "this version of Spark has no limits for sources written in Python"
    return None if adapter_of(session).shares_paths else "the session is one of Spark Connect"


def _reasons(
    session: SparkSession, source: Source, spec: InputSpec, opened: OpenTable | None, *, is_computed: bool
) -> Iterator[str]:
    why = why_never(session)
    if why is not None:
        yield why
    if is_computed:
        yield "its event time is an expression"
    _options(source)
    why = why_by_settings(session) or why_by_columns(spec.source_schema, spec.key)
    if why is not None:
        yield why
    table = opened or open_table(session, source)
    yield from reasons_of_table(table, spec.source_schema, of_feed=source.feed is not None)


class UnsuitableError(ConfigurationError):
    """A table that only Delta's own source may read, with the reason."""


def open_table(session: SparkSession, source: Source) -> OpenTable:
    """Open a source's table; ``UnsuitableError`` where only Delta's own source may read it."""
    path = table_path(session, str(source.location))
    if path is None:
        msg = "no table has its name"
        raise UnsuitableError(msg)
    store = open_store(session, path, "Delta table")
    if store.for_tasks() is None and not isinstance(store, LocalStore):
        msg = "only Hadoop's file systems reach it"
        raise UnsuitableError(msg)
    log = TableLog(store)
    table = log.newest()
    if table is None:
        msg = "its log has no version"
        raise UnsuitableError(msg)
    return OpenTable(store, table, log)


def _options(source: Source) -> tuple[Limits, Removals | None, int | None]:
    """Return the limits, the treatment of removals, and the first version; ``UnsuitableError`` for any other option."""
    limits, begin = Limits(), None
    removals: list[Removals] = []
    for name, text in source.options.items():
        lowered, value = name.lower(), text.strip().lower()
        size = _SIZE.fullmatch(value)
        if lowered == "maxfilespertrigger" and value.isdigit() and int(value):
            limits = limits._replace(files=int(value))
        elif lowered == "maxbytespertrigger" and size is not None:
            limits = limits._replace(size=int(size[1]) * _UNITS[size[2]])
        elif lowered in _REMOVALS and value in {"true", "false"} and source.feed is None:
            removals += [_REMOVALS[lowered]] if value == "true" else []
        elif lowered == "startingversion" and value.isdigit() and source.feed is None:
            begin = int(value)
        elif lowered != "readchangefeed" or source.feed is None:
            msg = f"it has the option {name}"
            raise UnsuitableError(msg)
    if limits.size is not None and "maxfilespertrigger" not in {name.lower() for name in source.options}:
        # As in Delta: with a limit of bytes alone, the number of files is not limited.
        limits = limits._replace(files=None)
    # As in Delta: where several are given, the first in the order of ``_REMOVALS`` applies.
    chosen: Removals = next((each for each in _REMOVALS.values() if each in removals), "fail")
    return limits, None if source.feed is not None else chosen, begin


def reasons_of_table(opened: OpenTable, schema: pa.Schema, *, of_feed: bool = False) -> Iterator[str]:
    """Yield why Delta's own source must read a table, or its changes; ``schema`` has the columns of the rows."""
    store, table, log = opened
    columns = Columns.of(table.metadata)
    why = why_unreadable(table.protocol, table.metadata, of_changes=of_feed)
    if why is not None:
        yield why
    added = [DELETED, COMMIT, COMMITTED_AT] if of_feed else []
    if [*columns.types, *added] != schema.names:
        yield "its columns are not those of its log"
    if _PADDED in table.schema_text:
        yield "its columns of the type char"
    others = {*table.partition_columns, *added}
    named = zip(schema, stored_schema(columns, schema), strict=True)
    stored = pa.schema([in_file for column, in_file in named if column.name not in others])
    if not len(stored):
        yield "all its columns are partition columns"
    for column in schema:
        if column.name in table.partition_columns and pa.types.is_timestamp(column.type):
            yield f"its partition column {column.name!r} is a {type_to_ddl(column.type)}"
    files = log.files(table.version)
    with_vectors = [each.path for each in files if each.deletion_vector]
    if with_vectors and set(with_vectors) - deleted_rows(store, table.version, with_vectors).keys():
        yield "its deletion vectors"
    for file in [*files[:: max(1, -(-len(files) // _SAMPLES))], *files[-1:]]:
        why = _why_by_file(store, file, stored, schema, columns)
        if why is not None:
            yield f"of its file {file.path}: {why}"


def _why_by_file(store: Store, file: DataFile, stored: pa.Schema, schema: pa.Schema, columns: Columns) -> str | None:
    if file.is_outside:
        return "it is outside of the table's folder"
    try:
        for name, value in columns.partition_values(file).items():
            constant_of(value, schema.field(name).type)
        with open_stored(store.url(file.path), places_of_store(store)) as opened:
            return misfit(opened.metadata, stored)
    except (OSError, KeyError, pa.ArrowException) as error:
        return f"it can't be read: {str(error).partition(chr(10))[0]}"


def has_delta(session: SparkSession | None) -> bool:
    """Return whether there is a session, and it has Delta's own sources."""
    if session is None:
        return False
    try:
        adapter_of(session).check_delta()
    except EnvironmentSetupError:
        return False
    return True


def check_deltas_source(session: SparkSession, label: str, why: str | None) -> None:
    """Raise ``EnvironmentSetupError`` unless Delta's own source can read a table; ``why`` is why only it does."""
    if why is None:
        return
    try:
        adapter_of(session).check_delta()
    except EnvironmentSetupError as error:
        msg = f"{label}: only Delta's own source reads this table ({why}): {error}"
        raise EnvironmentSetupError(msg) from error


def present_columns(source: Source, opened: OpenTable) -> StructType | None:
    """Return the columns of a stream of a table, by its log; None where cojoin can't read it."""
    columns = columns_of(opened.version)
    if columns is None or source.feed is None:
        return columns
    if _OF_FEED & {name.lower() for name in columns.names}:
        return None
    return columns.add(DELETED, "boolean").add(COMMIT, "long").add(COMMITTED_AT, "timestamp")


def open_columns(source: Source, opened: OpenTable) -> DataFrame | None:
    """Return a stream that has a table's columns, and fails if its rows are read; None where cojoin can't read it.

    It stands for the table, so that Delta's classes, which take a second or two, are loaded only where they are needed.
    """
    session, columns = active_session(), present_columns(source, opened)
    if session is None or columns is None:
        return None
    failure = F.raise_error(F.lit(f"{source.title}: this stream has only the table's columns, its rows can't be read"))
    stream = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    return stream.select(*(failure.cast(each.dataType).alias(each.name, metadata=each.metadata) for each in columns))


class OpenRanges(NamedTuple):
    """The stream of the ranges of a table's files (``RANGES_DDL``), and how tasks read them.

    ``places`` is how they reach the table's object store; ``stored`` is the schema with the files' names.
    """

    frame: DataFrame
    places: dict[str, Settings]
    stored: pa.Schema


def open_ranges(session: SparkSession, source: Source, schema: pa.Schema) -> OpenRanges:
    """Return the stream of the ranges of a table's files; ``schema`` has the columns of its rows.

    It raises a ConfigurationError where the table has changed since, so that its files may not fit ``schema`` any more.
    """
    opened = open_table(session, source)
    store, table, _ = opened
    present = present_columns(source, opened)
    if present is None or _types(arrow_schema(present)) != _types(schema):
        msg = f"source {source.title}: {columns_changed(f' by version {table.version}')}"
        raise ConfigurationError(msg)
    why = why_unreadable(table.protocol, table.metadata, of_changes=source.feed is not None)
    if why is not None:
        msg = (
            f"source {source.title}: by version {table.version} it has become a table that only Delta's own source "
            f"reads ({why}): connect the inputs again, which chooses that source"
        )
        raise ConfigurationError(msg)
    tasks = adapter_of(session).parallel_tasks()
    columns = Columns.of(table.metadata)
    reading = TableReading(
        store.root, store.for_tasks(), table.table_id, columns, *_options(source), tasks, source.snapshot_version
    )
    name = f"{_FORMAT}-{uuid4().hex[:8]}"
    session.dataSource.register(data_source(name, reading))
    frame = session.readStream.format(name).load()
    return OpenRanges(frame, places_of_store(store), stored_schema(columns, schema))


def _types(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the names and the types of columns, without their nullability."""
    return [(each.name, each.dataType.simpleString()) for each in spark_schema(schema)]


def stored_schema(columns: Columns, schema: pa.Schema) -> pa.Schema:
    """Return the schema of a table's rows with the names that its files have for columns and for fields of structs."""
    fields = []
    for column in schema:
        name, dtype = columns.stored.get(column.name, (column.name, None))
        stored = StructType.fromJson({"fields": [{"name": name, "type": json.loads(dtype)}]}) if dtype else None
        fields.append(column if stored is None else arrow_schema(stored).field(0))
    return pa.schema(fields)


def places_of_store(store: Store) -> dict[str, Settings]:
    """Return how tasks reach the files of a store, by its place (``sessions.places_of``); empty for local files."""
    settings = store.for_tasks()
    # Paths of files are below the place, not below the store's root.
    return {} if settings is None else {scheme_and_place(store.root): replace(settings, prefix="")}
