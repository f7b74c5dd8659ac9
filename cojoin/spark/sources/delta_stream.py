"""The stream of a Delta table's appended rows, or of its changes, without Delta's own reader.

It is a data source of Spark's in Python, whose reader runs in a process on the driver. For each micro-batch it reads
the commits that are new in the table's log, and chooses the files up to the limits (``delta.table_stream``). The
workers read these as they read a folder's (``batch.direct_reader``). So no row becomes one of Spark's, and no class of
Delta's is called for a batch.

The positions in Spark's offset log are those of Delta's own source, so a checkpoint continues with either. Which of the
two reads a table is decided when the inputs are connected: Delta's does where files can't be read by themselves (types
that were widened, columns mapped by number, changes between deletion vectors), where a setting or an option changes
what is read, and where a column's type or a file is one that only Spark reads (``why_through_spark``).

The rows that deletion vectors delete are read by ``deltalake`` with the list of a version's files. A batch's tasks have
a bit for each row of such a file.

Tasks have about equal numbers of bytes. A file that is larger than a task's share is read by several, each of which
reads the row groups that begin in its part of the rows.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from cojoin.delta.deltalake_table import deleted_rows
from cojoin.delta.table_log import TableLog
from cojoin.delta.table_stream import Columns, Limits, Position, TableStream, why_unreadable
from cojoin.engine.row_changes import CHANGE_TYPE, COMMIT, COMMITTED_AT, DELETED
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import CheckpointError, ConfigurationError, EnvironmentSetupError, QueryFailedError
from cojoin.session.arrow_types import arrow_schema
from cojoin.session.delta_tables import columns_of, table_path
from cojoin.session.sealed import Sealed, sealed_call
from cojoin.session.sessions import active_session, adapter_of, is_left_to_spark, open_store
from cojoin.spark.batch.direct_reader import (
    RANGES,
    RANGES_DDL,
    constant_of,
    open_stored,
    why_by_columns,
    why_by_settings,
)
from cojoin.spark.batch.parquet_columns import misfit
from cojoin.storage.file_systems import direct_store
from cojoin.storage.local_store import LocalStore
from cojoin.storage.locations import scheme_and_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.delta.actions import DataFile
    from cojoin.delta.table_log import TableVersion
    from cojoin.delta.table_stream import Removals, StreamFile
    from cojoin.engine.input_spec import InputSpec
    from cojoin.spark.sources.source import Source
    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

_FORMAT = "cojoin-delta"
_LEAST_BYTES, _END = 4 << 20, 1 << 62
_SAMPLES = 3
_REMOVALS: dict[str, Removals] = {
    "skipchangecommits": "skip_commit",
    "ignorechanges": "ignore_changes",
    "ignoredeletes": "ignore_deletes",
}
_PADDED = '"__CHAR_VARCHAR_TYPE_STRING":"char('
"""The mark of a column that Spark pads with blanks as it reads it, in a table's schema."""

_OF_FEED = {CHANGE_TYPE, DELETED, COMMIT, COMMITTED_AT}
_SIZE = re.compile("([1-9][0-9]*)([bkmgt]?)")
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True)
class TableReading:
    """The description of a table that its reader needs; it is sent to a process on the driver, and has no connections.

    ``root`` is the table's folder, ``settings`` are those of its object store, or None. ``columns`` are those that its
    rows are read with. ``begin`` is the version whose commit is read first; None reads the whole table first. ``tasks``
    is the number of a batch's tasks.
    """

    root: str
    settings: Settings | None = field(repr=False)
    table_id: str
    columns: Columns
    limits: Limits = field(default_factory=Limits)
    removals: Removals | None = "fail"
    begin: int | None = None
    tasks: int = 1

    @property
    def store(self) -> Store:
        """The table's folder."""
        store = direct_store(self.root, lambda _: self.settings, "Delta table")
        assert store is not None
        return store

    def stream(self) -> TableStream:
        """Return the stream of the table."""
        store = self.store
        return TableStream(TableLog(store), self.table_id, self.columns, self.removals, partial(deleted_rows, store))


class Ranges(InputPartition):
    """The ranges of rows that a task reads, as rows of ``RANGES``."""


def ranges_of(reading: TableReading, files: Sequence[StreamFile]) -> list[Ranges]:
    """Return the tasks that read some files."""
    store, share = reading.store, max(_LEAST_BYTES, -(-sum(each.file.size for each in files) // max(1, reading.tasks)))
    tasks: list[list[dict[str, Any]]] = []
    room = 0.0
    for kind, file, version, committed_at, deleted in files:
        values: dict[str, Any] = reading.columns.partition_values(file)
        if reading.removals is None:
            values |= {COMMIT: version, COMMITTED_AT: 1000 * committed_at}
            # The rows of a file of changes have their kinds in a column.
            values |= {} if kind == "cdc" else {DELETED: kind == "remove"}
        constants = json.dumps(values)
        place, rows = store.url(file.path), file.rows or 0
        parts = max(1, min(rows, -(-file.size // share)))
        for part in range(parts):
            if room <= 0:
                tasks.append([])
                room = share
            end = _END if part == parts - 1 else rows * (part + 1) // parts
            row = place, file.size, rows * part // parts, end, constants, deleted
            tasks[-1].append(dict(zip(RANGES.names, row, strict=True)))
            room -= file.size / parts
    return [Ranges(task) for task in tasks]


class OpenTable(NamedTuple):
    """A table that is open for reading: its folder, its newest version, and its log."""

    store: Store
    version: TableVersion
    log: TableLog


def open_table(session: SparkSession, source: Source) -> OpenTable | None:
    """Open a table that cojoin may read as a stream; None where it does not, whatever the table's rows are."""
    if _why_never(session) is not None:
        return None
    try:
        # An option may change the columns, such as one of the user's own that reads the change feed.
        _options(source)
        return _table(session, source)
    except (CheckpointError, _UnsuitableError):
        return None


def why_through_spark(
    source: Source, frame: DataFrame, spec: InputSpec, *, is_computed: bool, opened: OpenTable | None
) -> str | None:
    """Return why Delta's own source reads a table as a stream; None where cojoin's does.

    ``is_computed`` means that the event time is an expression. ``opened`` is the table where it is open already.
    """
    try:
        return next(_reasons(frame.sparkSession, source, spec, opened, is_computed=is_computed), None)
    except (CheckpointError, EnvironmentSetupError, QueryFailedError, _UnsuitableError) as error:
        # A log that can't be read is an error of Delta's own source, too, which says more.
        return str(error)


def _why_never(session: SparkSession) -> str | None:
    """Return why cojoin reads no table as a stream in a session; None where it does."""
    if is_left_to_spark(session, "spark.cojoin.delta"):
        return "spark.cojoin.delta is spark"
    if find_spec("pyspark.sql.streaming.datasource") is None:
        return "this version of Spark has no limits for sources written in Python"
    return None if adapter_of(session).shares_paths else "the session is one of Spark Connect"


def _reasons(
    session: SparkSession, source: Source, spec: InputSpec, opened: OpenTable | None, *, is_computed: bool
) -> Iterator[str]:
    why = _why_never(session)
    if why is not None:
        yield why
    if is_computed:
        yield "its event time is an expression"
    _options(source)
    why = why_by_settings(session) or why_by_columns(spec.source_schema, spec.key)
    if why is not None:
        yield why
    yield from _reasons_of_table(opened or _table(session, source), source, spec)


class _UnsuitableError(ConfigurationError):
    """A table that only Delta's own source may read, with the reason."""


def _table(session: SparkSession, source: Source) -> OpenTable:
    path = table_path(session, str(source.location))
    if path is None:
        msg = "no table has its name"
        raise _UnsuitableError(msg)
    store = open_store(session, path, "Delta table")
    if store.for_tasks() is None and not isinstance(store, LocalStore):
        msg = "only Hadoop's file systems reach it"
        raise _UnsuitableError(msg)
    log = TableLog(store)
    table = log.newest()
    if table is None:
        msg = "its log has no version"
        raise _UnsuitableError(msg)
    return OpenTable(store, table, log)


def _options(source: Source) -> tuple[Limits, Removals | None, int | None]:
    """Return the limits, the treatment of removals, and the first version; an error where another option is set."""
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
            raise _UnsuitableError(msg)
    if limits.size is not None and "maxfilespertrigger" not in {name.lower() for name in source.options}:
        # As Delta has it: with a limit of bytes alone, the number of files has none.
        limits = limits._replace(files=None)
    # Where several are given, as Delta has it: a commit is passed over before its files are read.
    order: Sequence[Removals] = ("skip_commit", "ignore_changes", "ignore_deletes")
    chosen: Removals = next((each for each in order if each in removals), "fail")
    return limits, None if source.feed is not None else chosen, begin


def _reasons_of_table(opened: OpenTable, source: Source, spec: InputSpec) -> Iterator[str]:
    store, table, log = opened
    schema, columns = spec.source_schema, Columns.of(table.metadata)
    why = why_unreadable(table.protocol, table.metadata, of_changes=source.feed is not None)
    if why is not None:
        yield why
    of_feed = [] if source.feed is None else [DELETED, COMMIT, COMMITTED_AT]
    if [*columns.types, *of_feed] != schema.names:
        yield "its columns are not those of its log"
    if _PADDED in table.schema_text:
        yield "its columns of the type char"
    others = {*table.partition_columns, *of_feed}
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
    if urlsplit(file.path).scheme or file.path.startswith("/"):
        return "it is outside of the table's folder"
    try:
        for name, value in columns.partition_values(file).items():
            constant_of(value, schema.field(name).type)
        with open_stored(store.url(file.path), places_of_store(store)) as opened:
            return misfit(opened.metadata, stored)
    except (OSError, KeyError, pa.ArrowException) as error:
        return f"it can't be read: {str(error).partition(chr(10))[0]}"


def has_delta() -> bool:
    """Return whether the active session has Delta's own source."""
    session = active_session()
    try:
        adapter_of(session).check_delta()
    except EnvironmentSetupError:
        return False
    return session is not None


def check_deltas_source(session: SparkSession, label: str, why: str) -> None:
    """Raise ``EnvironmentSetupError`` unless Delta's own source can read a table; ``why`` is why only it does."""
    try:
        adapter_of(session).check_delta()
    except EnvironmentSetupError as error:
        msg = f"{label}: only Delta's own source reads this table ({why}): {error}"
        raise EnvironmentSetupError(msg) from error


def present_columns(source: Source, opened: OpenTable) -> StructType | None:
    """Return the columns of a stream of a table, by its log; None where cojoin does not read it."""
    columns = columns_of(opened.version)
    if columns is None or source.feed is None:
        return columns
    if _OF_FEED & {name.lower() for name in columns.names}:
        return None
    return columns.add(DELETED, "boolean").add(COMMIT, "long").add(COMMITTED_AT, "timestamp")


def open_columns(source: Source, opened: OpenTable) -> DataFrame | None:
    """Return a stream that has a table's columns, and fails if its rows are read; None where cojoin does not read it.

    It stands for the table, so that Delta's classes, which take a second or two, are loaded only where they are needed.
    """
    session, columns = active_session(), present_columns(source, opened)
    if session is None or columns is None:
        return None
    none = F.raise_error(F.lit(f"{source.title}: its rows were to be read through the stream of its columns"))
    stream = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    return stream.select(*(none.cast(each.dataType).alias(each.name, metadata=each.metadata) for each in columns))


class OpenRanges(NamedTuple):
    """The stream of the ranges of a table's files (``RANGES_DDL``), and how tasks read them.

    ``places`` is how they reach the table's object store; ``stored`` is the schema with the files' names.
    """

    frame: DataFrame
    places: dict[str, Settings]
    stored: pa.Schema


def open_ranges(session: SparkSession, source: Source, schema: pa.Schema) -> OpenRanges:
    """Return the stream of the ranges of a table's files; ``schema`` has the columns of its rows."""
    store, table, _ = _table(session, source)
    tasks = adapter_of(session).parallel_tasks()
    columns = Columns.of(table.metadata)
    reading = TableReading(store.root, store.for_tasks(), table.table_id, columns, *_options(source), tasks)
    name = f"{_FORMAT}-{uuid4().hex[:8]}"
    session.dataSource.register(_data_source(name, reading))
    frame = session.readStream.format(name).load()
    return OpenRanges(frame, places_of_store(store), stored_schema(columns, schema))


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
    # A file's path is below the place, not below the store's root.
    return {} if settings is None else {scheme_and_place(store.root): replace(settings, prefix="")}


def _data_source(name: str, reading: TableReading) -> type[DataSource]:
    """Return a data source class for a table, as ``cojoin.kafka.reader`` does for topics."""
    reader = Sealed(partial(_reader, reading))

    def stream_reader(self: DataSource, schema: Any) -> Any:
        del self, schema
        return reader()

    def schema(self: DataSource) -> str:
        del self
        return RANGES_DDL

    def named(cls: type[DataSource]) -> str:
        del cls
        return name

    members = {"name": classmethod(named), "schema": schema, "streamReader": stream_reader}
    return type("DeltaDataSource", (DataSource,), members)


def _reader(reading: TableReading) -> DataSourceStreamReader:
    from pyspark.sql.streaming.datasource import (  # noqa: PLC0415 - Spark 4.1 has no such module
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )

    class TableReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        """The reader that chooses the files of each batch."""

        def __init__(self) -> None:
            self._stream = reading.stream()
            self._until: int | None = None

        def __reduce__(self) -> tuple[Any, ...]:
            """Return the reader as it is sent to the workers."""
            return sealed_call(_reader, reading)

        def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            first = self._stream.first()
            return (first if reading.begin is None else Position(reading.table_id, reading.begin)).as_offset()

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
            self._until = self._stream.newest()

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
            return ReadMaxFiles(reading.limits.files or _END)

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
            newest = self._stream.newest()
            until = newest if self._until is None else self._until
            limits = Limits(None, None) if isinstance(limit, ReadAllAvailable) else reading.limits
            return self._stream.next(Position.of(start), until, limits).as_offset()

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
            return ranges_of(reading, self._stream.files(Position.of(start), Position.of(end)))

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pylist(partition.value, RANGES)

    return TableReader()
