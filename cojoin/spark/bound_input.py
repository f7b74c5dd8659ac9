"""An input whose rows come through Spark: its source opened, its columns checked, its rows packed for the call.

The workers read parquet files themselves (``batch.direct_reader``) where that gives the same rows as Spark's reader,
which is decided before the start: for ``cojoin.sources.files(..., "parquet")`` of a local or mounted folder, with
columns of the usual types, and with options and settings that do not change how a file is read. A few of the present
files are checked, too. Both ways have the same offsets, so a checkpoint continues with either. They also read the files
of a static DataFrame that is nothing but ``spark.read.parquet(...)`` and some of its columns, if each file fits.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import re
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from cojoin.engine.input import Advice, InputColumns, check_names
from cojoin.engine.input_spec import DIRECT
from cojoin.engine.key_groups import group_labels
from cojoin.engine.values.arguments import Duration, milliseconds
from cojoin.engine.values.rows import back_quoted
from cojoin.engine.values.types import parse_schema
from cojoin.errors import ConfigurationError, EnvironmentSetupError, SchemaError
from cojoin.session.arrow_types import arrow_type
from cojoin.session.delta_tables import table_path
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import active_session, adapter_of, check_full, check_session, is_left_to_spark
from cojoin.session.spark_errors import JAVA_ERRORS, explain, names_table_without_columns
from cojoin.spark.batch.direct_reader import (
    TABLE_SETTING,
    DirectReader,
    file_ranges,
    folders_with_values,
    why_by_columns,
    why_by_settings,
)
from cojoin.spark.batch.packing import (
    GROUP_COLUMN,
    MARK_COLUMN,
    MARKER_COLUMNS,
    NEWEST_COLUMN,
    NOW_COLUMN,
    PACKED_DDL,
    READY_COLUMNS,
    Grouping,
    Packer,
    key_group,
)
from cojoin.spark.batch.parquet_rows import misfit
from cojoin.spark.sources import delta_stream
from cojoin.spark.sources.delta_changes import DeltaChanges
from cojoin.spark.sources.delta_static import StaticTable
from cojoin.spark.sources.source import Source
from cojoin.storage.parquet_files import read_footer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.engine.input import Input, Kind
    from cojoin.engine.input_spec import InputSpec
    from cojoin.spark.sources.delta_stream import OpenTable

_OF_STREAMS = {
    "maxfilespertrigger",
    "maxbytespertrigger",
    "maxfileage",
    "maxcachedfiles",
    "discardcachedinputratio",
    "latestfirst",
    "filenameonly",
    "cleansource",
    "sourcearchivedir",
    "pathglobfilter",
    "modifiedbefore",
    "modifiedafter",
}
"""Options, in lower case, that decide which files are read when, and not how."""

_PATTERN = re.compile(r"[\[\]{}*?\\]")
_SAMPLES, _LISTED = 3, 10_000
_MOST_FOOTERS = 1_000
"""The most files of a static DataFrame that workers read: each is looked at before the join, in half a millisecond."""


def _is_parquet(source: Any) -> bool:
    """Return whether a source is a folder of parquet files, made by ``cojoin.sources.files``."""
    return type(source) is Source and source.format == "parquet"


def _is_table(source: Any) -> bool:
    """Return whether a source is a Delta table that is read as a stream, of its appended rows or of its changes."""
    return type(source) in (Source, DeltaChanges) and source.format == "delta"


def _root_of(session: SparkSession, source: Source) -> str | None:
    """Return the folder of a source as a path that the workers reach; None for patterns and other file systems."""
    if _PATTERN.search(str(source.location)):
        return None
    return adapter_of(session).local_path(str(source.location))


def why_through_spark(source: Source, frame: DataFrame, spec: InputSpec, *, is_computed: bool) -> str | None:
    """Return the reason why Spark reads the files of a source (``_is_parquet``); None where the workers read them.

    ``is_computed`` means that the event time is an expression.
    """
    session, schema = frame.sparkSession, spec.source_schema
    if is_left_to_spark(session, "spark.cojoin.parquet"):
        return "spark.cojoin.parquet is spark"
    if not adapter_of(session).shares_paths:
        return "the session is one of Spark Connect"
    if is_computed:
        return "its event time is an expression"
    return (
        _why_by_options(source)
        or why_by_settings(session)
        or _why_by_schema(source, schema, spec)
        or _why_by_files(_root_of(session, source), schema)
    )


def _is_read_by_workers(frame: DataFrame, spec: InputSpec) -> bool:
    """Return whether the workers read the same rows as Spark from the files of a static DataFrame."""
    session, schema = frame.sparkSession, spec.source_schema
    if is_left_to_spark(session, "spark.cojoin.parquet") or why_by_settings(session) is not None:
        return False
    # Spark's reader takes defaults of columns that a file lacks, and their ids in files, from there.
    if why_by_columns(schema, spec.key) is not None or '"metadata": {"' in json.dumps(frame.schema.jsonValue()):
        return False
    files = adapter_of(session).parquet_files(frame, _MOST_FOOTERS)
    if not files or not all(file.startswith("file:/") for file in files):
        return False
    places = sorted(unquote(urlsplit(file).path) for file in files)
    return _why_by_footers([(Path(place).name, place) for place in places], schema) is None


def _why_by_options(source: Source) -> str | None:
    others = [name for name in source.options if name.lower() not in _OF_STREAMS]
    return f"it has the option {others[0]}" if others else None


def _why_by_schema(source: Source, schema: pa.Schema, spec: InputSpec) -> str | None:
    declared = parse_schema(str(source.schema), label="schema").names
    if declared != schema.names:
        added = [name for name in schema.names if name not in declared]
        return f"its columns are not those of its schema: {', '.join(added or schema.names)}"
    return why_by_columns(schema, spec.key)


def _why_by_files(root: str | None, schema: pa.Schema) -> str | None:
    """Check a few of the present files."""
    if root is None:
        return "its files are on no disk that the workers reach by a path"
    try:
        with os.scandir(root) as listed:
            entries = sorted(itertools.islice(listed, _LISTED), key=lambda entry: entry.name)
    except OSError as error:
        return f"its folder can't be listed: {error.strerror}"
    folders = [entry.name for entry in entries if entry.is_dir()]
    named = [name for folder in folders for name in folders_with_values(f"{root}/{folder}/", root)]
    if named:
        return f"its folder {named[0]!r} is a Spark partition"
    files = [entry for entry in entries if entry.is_file() and not entry.name.startswith(("_", "."))]
    samples = files[:: max(1, -(-len(files) // _SAMPLES))] + files[-1:]
    return _why_by_footers([(file.name, file.path) for file in samples], schema)


def _why_by_footers(files: Sequence[tuple[str, str]], schema: pa.Schema) -> str | None:
    """Check files, of which each has a name and a path."""
    for name, place in files:
        try:
            with pa.OSFile(place) as stored:
                why = misfit(read_footer(stored), schema)
        except (OSError, pa.ArrowException) as error:
            why = f"it can't be opened: {str(error).partition(chr(10))[0]}"
        if why is not None:
            return f"of its file {name}: {why}"
    return None


_TIMES: Mapping[Kind, str] = {
    # Those that a value of a record can't fit are null, and so rejected: under ANSI others would end the query.
    "timestamp_ntz": "F.try_to_timestamp(F.concat(F.col({n}).cast('string'), F.lit(' Europe/Berlin')))",
    "bigint": "F.timestamp_micros(F.try_multiply({n}, F.lit(1000)))",
    "int": "F.timestamp_seconds({n})",
    "floating": "F.col({n}).try_cast('timestamp')",
    "decimal": "F.col({n}).try_cast('timestamp')",
    "string": "F.try_to_timestamp({n})",
    "date": "F.try_to_timestamp(F.concat(F.col({n}).cast('string'), F.lit(' 00:00:00 UTC')))",
    "interval": "(F.timestamp_seconds(F.lit(0)) + F.col({n}))",
}
"""The code that makes a timestamp of a column, by its kind."""

_NOTHING_PACKED = tuple(f"cast(null as {dtype}) as {name}" for name, dtype in map(str.split, PACKED_DDL.split(", ")))


def _named(column: str) -> str:
    """Return a column's name as ``F.col`` reads it, with quotes only where it needs them."""
    return back_quoted(column) if "." in column or "`" in column else column


class SparkAdvice(Advice):
    """Advice for the columns of Spark's DataFrames."""

    def time(self, column: str, kind: Kind, role: str) -> str | None:
        """Return code that makes a column of a kind a ``timestamp``; None if there is none."""
        code = _TIMES.get(kind)
        if code is None:
            return None
        made = code.format(n=repr(_named(column)))
        if role != "event time":
            return f"df.withColumn({column!r}, {made})"
        # Without an alias some expressions are named as the column itself, and others event_time.
        return f"event_time={made}.alias({column + '_utc'!r})"

    def cast(self, column: str, ddl: str) -> str:
        """Return code that casts a column to one of Spark's types."""
        return f"df.withColumn({column!r}, F.col({_named(column)!r}).cast({ddl!r}))"


class BoundInput:
    """An input with its source opened and its columns resolved and checked; the tag is 1 (left) or 2 (right)."""

    def __init__(self, declared: Input, default_name: str, tag: Literal[1, 2], *, takes_axis: bool = True) -> None:
        self.tag = tag
        name = declared.name or default_name
        self._label = f"input {name!r}"
        defaults: Any = declared.source if isinstance(declared.source, Source) else None
        self.source: Source | None = defaults
        self._event_time = declared.event_time
        table = self._open_table(declared)
        stand_in = None if table is None else delta_stream.open_columns(defaults, table)
        opened = _open(declared.source, self._label) if stand_in is None else stand_in
        self.frame, event_time = self._with_event_time(opened, declared.event_time)
        self._marker_columns = [each for each in MARKER_COLUMNS if self.source and each in self.frame.columns]
        fields = self._columns()
        columns = InputColumns(
            self._label,
            fields,
            {name: self.frame.schema[name].dataType.simpleString() for name in fields},
            SparkAdvice(),
            default_partition=defaults.partition if defaults else (),
            default_sequence=defaults.sequence if defaults else (),
            feed=None if self.source is None else self.source.feed,
            takes_axis=takes_axis,
        )
        self.spec = columns.spec(declared, name, event_time, self._max_ahead(declared.max_ahead))
        for role in ("key", "partition", "sequence"):
            self._refuse_collated(getattr(self.spec, role), role)
        self.spec.watermark.generator.check(self.spec.schema, self._label)
        if self.source is not None:
            self.source.check_event_time(self._label, self.spec.clock)
        if isinstance(defaults, StaticTable):
            self._check_static(declared.event_time)
            self.spec = replace(self.spec, static=True, refreshes=defaults.refresh_ms is not None)
        if _is_parquet(self.source) or (_is_table(self.source) and self.is_streaming):
            is_computed = isinstance(declared.event_time, Column)
            if _is_parquet(self.source):
                why = why_through_spark(defaults, self.frame, self.spec, is_computed=is_computed)
            else:
                why = delta_stream.why_through_spark(
                    defaults, self.frame, self.spec, is_computed=is_computed, opened=table
                )
            if why is not None and stand_in is not None:
                delta_stream.check_deltas_source(self.frame.sparkSession, self._label, why)
                self.frame = _open(declared.source, self._label)
            self.spec = replace(self.spec, reading=why or DIRECT)
        elif self.source is not None and self.is_streaming:
            self.spec = replace(self.spec, reading=self.source.how_packed(self.spec))

    @cached_property
    def reads_files(self) -> bool:
        """Whether the workers read the files of a static DataFrame."""
        is_plain = self.source is None and not self.is_streaming and not isinstance(self._event_time, Column)
        return is_plain and _is_read_by_workers(self.frame, self.spec)

    def _open_table(self, declared: Input) -> OpenTable | None:
        """Return a table that the workers may read as a stream; None where Spark reads the source."""
        session, source = active_session(), declared.source
        if session is None or not _is_table(source) or isinstance(declared.event_time, Column):
            return None
        check_session(session, self._label)
        try:
            # Whatever reads it, a name that the catalog can't look up is named alike.
            table_path(session, str(source.location))
            opened = delta_stream.streamed_table(session, source)
        except EnvironmentSetupError:
            raise
        except ConfigurationError as error:
            msg = f"{self._label}: {error}"
            raise ConfigurationError(msg) from error
        if isinstance(source, DeltaChanges):
            source.check_feed(session, None if opened is None else opened.version)
        return opened

    def present_columns(self) -> StructType:
        """Return the columns that the source of a streamed table has now, without those of an event-time expression."""
        assert self.source is not None
        columns = None
        if self.spec.reading == DIRECT:
            opened = delta_stream.streamed_table(self.frame.sparkSession, self.source)
            columns = None if opened is None else delta_stream.present_columns(self.source, opened)
        return self.source.open().schema if columns is None else columns

    def _check_static(self, event_time: Any) -> None:
        if isinstance(event_time, Column):
            msg = (
                f"{self._label}: event time: a static side is read again for each load, in which only columns are "
                f"known by name; add the column to the table, and name it"
            )
            raise ConfigurationError(msg)

    def _with_event_time(self, frame: DataFrame, declared: Any) -> tuple[DataFrame, Any]:
        """Return the DataFrame with the column of an event-time expression added, and that column's name."""
        if not isinstance(declared, Column):
            return frame, declared
        try:
            made = frame.select(declared).columns
        except PySparkException as error:
            msg = f"{self._label}: event time: the expression does not fit its columns: {explain(error)}"
            raise SchemaError(msg) from error
        name = made[0] if made[0].isidentifier() else "event_time"
        if name.lower() in {column.lower() for column in frame.columns}:
            msg = (
                f"{self._label}: event time: the input has the expression's column {name!r} already; give the "
                f"expression another .alias, or name the column itself as a text"
            )
            raise SchemaError(msg)
        return frame.withColumn(name, declared), name

    def rows_of(self, opened: DataFrame) -> DataFrame:
        """Return the rows of this input's source, which was opened once more, with exactly the source's columns."""
        frame, _ = self._with_event_time(opened, self._event_time)
        return frame.select(*(frame[back_quoted(name)] for name in self.spec.source_schema.names))

    def read_from(self, source: Source | None) -> BoundInput:
        """Return this input with another source of the same rows; None returns it as it is."""
        if source is None:
            return self
        other = copy.copy(self)
        other.source = source
        other.frame, _ = self._with_event_time(_open(source, self._label), self._event_time)
        return other

    def begun_with(self, known: Mapping[str, Any] | None) -> tuple[BoundInput, list[str]]:
        """Return this input as a query without a batch reads it, and warnings; see ``Source.begun_with``."""
        if self.source is None or not self.source.begins_with_snapshot:
            return self, []
        other, is_direct = copy.copy(self), self.spec.reading == DIRECT
        other.source, warning = self.source.begun_with(self.frame.sparkSession, known, is_direct=is_direct)
        return other, [] if warning is None else [f"{self._label}: {warning}"]

    def present_rows(self) -> DataFrame | None:
        """Return the present rows as a static DataFrame; None for a stream of which they are not known."""
        if not self.is_streaming:
            return self.frame
        present = None if self.source is None else self.source.snapshot()
        return None if present is None else self.rows_of(present)

    @property
    def title(self) -> str:
        """The place of the rows, in words and without secrets."""
        return self.source.title if self.source else f"{'streaming' if self.is_streaming else 'static'} DataFrame"

    @property
    def is_streaming(self) -> bool:
        """Whether the DataFrame is streaming."""
        return bool(self.frame.isStreaming)

    def _max_ahead(self, declared: Duration | None) -> int | None:
        if declared is None or not self.is_streaming:
            return None
        return milliseconds(declared, f"{self._label}: max_ahead")

    def _columns(self) -> dict[str, pa.Field]:
        fields: dict[str, pa.Field] = {}
        columns = [each for each in self.frame.schema.fields if each.name not in self._marker_columns]
        check_names([each.name for each in columns], self._label)
        for column in columns:
            try:
                dtype = arrow_type(column.dataType)
            except (PySparkException, TypeError, ValueError) as error:
                cure = "cast it to string"
                if column.dataType.typeName() in ("char", "varchar"):
                    cure = (
                        f"make it a string without its blanks: df.withColumn({column.name!r}, F.rtrim({column.name!r}))"
                    )
                msg = (
                    f"{self._label}: column {column.name!r} has the type {column.dataType.simpleString()}, "
                    f"which has no Arrow form; {cure}, or drop it"
                )
                raise SchemaError(msg) from error
            fields[column.name] = pa.field(column.name, dtype)
        return fields

    def length_type(self, column: str) -> str:
        """Return the type of a text column with its length, such as ``char(5)``; ``string`` where it has none.

        Spark makes texts of such columns, pads them as it reads them, and keeps the type in their metadata.
        """
        kept = self.frame.schema[column].metadata.get("__CHAR_VARCHAR_TYPE_STRING")
        return str(kept or self.frame.schema[column].dataType.simpleString())

    @property
    def collated(self) -> dict[str, str]:
        """The columns with strings, nested or not, of a collation other than UTF8_BINARY, and the collation's name."""
        collations = {column.name: _collation(column.dataType) for column in self.frame.schema.fields}
        return {name: collation for name, collation in collations.items() if collation is not None}

    def _refuse_collated(self, columns: Sequence[str], role: str) -> None:
        """Raise a SchemaError for a collated key, partition or sequence column, since their bytes are compared."""
        for name, collation in self.collated.items():
            if name in columns:
                plain = f"F.collate({name!r}, 'UTF8_BINARY')"
                msg = (
                    f"{self._label}: {role} column {name!r} has the collation {collation}, and cojoin compares texts "
                    f"by their bytes; choose which are equal: F.lower({plain}), or {plain} to keep all different"
                )
                raise SchemaError(msg)

    def static_frame(self, *, stream: str, need: str) -> DataFrame:
        """Return the input's rows as a static DataFrame; those of a source are read as they are now.

        The messages take ``stream`` (why a streaming DataFrame does not do, with advice) and ``need`` (why rows must
        end).
        """
        if not self.is_streaming:
            return self.frame
        if self.source is None:
            msg = f"{self._label} is {stream}"
            raise ConfigurationError(msg)
        endless = self.source.why_endless()
        if endless is not None:
            msg = f"{self._label} has no end, and {need}: {endless}"
            raise ConfigurationError(msg)
        return self.rows_of(self.source.open(streaming=False))

    def planned_as(self, spec: InputSpec, added: Collection[str]) -> BoundInput:
        """Return this input as it was when a batch was planned: with other settings, and null in added columns."""
        former = copy.copy(self)
        former.spec = spec
        if added:
            types, rows = self.frame.schema, self.frame
            if _is_table(self.source) and self.spec.reading == DIRECT:
                rows = _open(self.source, self._label)
            nulls = {name: F.lit(None).cast(types[name].dataType) for name in added}
            former.frame = rows.withColumns(nulls)
            former.spec = replace(spec, reading="the batch was planned before columns were added")
        return former

    def packed(self, key_groups: int, *, has_clock: bool = True) -> DataFrame:
        """Return the input's rows and watermarks as ``(key_group, tag, payload)``.

        With ``has_clock`` the rows carry the time, where the workers need it. Spark replaces it in a stream by the
        batch's logged time: a repeated batch has the same. Its generated code contains the number, so each batch
        compiles the code of its sources again, which takes some 40 milliseconds. Without it, the workers take the time
        from the job's properties (``batch_time``).
        """
        spreading = self.spec.spreading if self.spec.null_key == "unmatched" else ()
        grouping = Grouping(self.spec.source_schema, self.spec.key, key_groups, spreading)
        frame, others = self.frame, self._marker_columns
        if self.reads_files:
            reader = DirectReader(self._label, None, grouping, {}, "spark.cojoin.parquet", is_static=True)
            return self._packed_ranges(file_ranges(frame), reader, has_clock=has_clock)
        if self.source is not None and self.spec.reading == DIRECT:
            if _is_parquet(self.source) or _is_table(self.source):
                return self._packed_directly(self.source, grouping, has_clock=has_clock)
            frame, others = self.source.open_packed(grouping), [*others, *READY_COLUMNS]
        keys = [frame[back_quoted(name)] for name in self.spec.key]
        spread = [frame[back_quoted(name)] for name in spreading]
        group = key_group(keys, key_groups, spread).alias(GROUP_COLUMN)
        # Columns are renamed by position: mapInArrow fails on names with a dot or a backtick.
        names = self.spec.source_schema.names
        columns = [frame[back_quoted(name)].alias(f"c{at}") for at, name in enumerate(names)]
        columns += [frame[name] for name in others]
        if self._marker_columns and self.source is not None and self.spec.partition != self.source.partition:
            # The source's marks are per source partition; if the user names other partitions, only the rows count.
            frame = frame.where(frame[MARK_COLUMN].isNull() & frame[NEWEST_COLUMN].isNull())
        columns += self._clock(has_clock=has_clock)
        apart = None if self.source is None else self.source.max_drift_ms
        packer = Packer(self.spec, self.tag, group_labels(key_groups), apart)
        return frame.select(*columns, group).mapInArrow(for_workers(packer), PACKED_DDL)

    @property
    def reads_by_python(self) -> bool:
        """Whether the reader of its stream is Python's, for which Spark starts a process whenever a query starts."""
        is_direct = _is_table(self.source) and self.spec.reading == DIRECT
        return is_direct or (self.source is not None and self.source.is_in_python)

    def packed_empty(self, key_groups: int, *, has_clock: bool = True) -> DataFrame:
        """Return a stream like ``packed`` for a planned batch that reads no rows of this input.

        Spark does not read the source of such an input. One of Spark's own takes the place of a source in Python, for
        which Spark would start a process; it could not read that source's offsets, and would end the query with an
        error if it had to.
        """
        if not self.reads_by_python:
            return self.packed(key_groups, has_clock=has_clock)
        empty = self.frame.sparkSession.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        return empty.selectExpr(*_NOTHING_PACKED)

    def _packed_directly(self, source: Source, grouping: Grouping, *, has_clock: bool) -> DataFrame:
        """Return the same for parquet files that the workers read, of a folder or of a Delta table."""
        session = self.frame.sparkSession
        if _is_parquet(source):
            root, setting = _root_of(session, source), "spark.cojoin.parquet"
            ranges, reader = file_ranges(self.frame), DirectReader(self._label, root, grouping, {}, setting)
        else:
            ranges, places, stored = delta_stream.open_ranges(session, source, grouping.schema)
            is_feed = source.feed is not None
            reader = DirectReader(self._label, None, grouping, places, TABLE_SETTING, stored, is_feed=is_feed)
        return self._packed_ranges(ranges, reader, has_clock=has_clock)

    def _packed_ranges(self, ranges: DataFrame, reader: DirectReader, *, has_clock: bool) -> DataFrame:
        packer = Packer(self.spec, self.tag, group_labels(reader.grouping.key_groups))

        def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return packer(reader(batches))

        return ranges.select("*", *self._clock(has_clock=has_clock)).mapInArrow(for_workers(pack), PACKED_DDL)

    def _clock(self, *, has_clock: bool) -> list[Column]:
        is_needed = has_clock and self.spec.max_ahead_ms is not None
        return [F.unix_millis(F.current_timestamp()).alias(NOW_COLUMN)] if is_needed else []


def _open(source: Any, label: str) -> DataFrame:
    if isinstance(source, Source):
        session = active_session()
        if session is not None:
            check_session(session, label)
            if type(source) in (Source, StaticTable) and not source.is_named:
                check_full(session, label, source.location)
        try:
            frame = source.open()
            # Spark Connect opens the source only when it needs its columns.
            _ = frame.columns
        except JAVA_ERRORS as error:
            is_empty = names_table_without_columns(error)
            reason = "the Delta table does not exist, or is empty and without columns" if is_empty else explain(error)
            msg = f"{label}: {source.format} {source.location or ''} can't be read: {reason}"
            raise ConfigurationError(msg) from error
        return frame
    check_session(source.sparkSession, label)
    return source


def _collation(dtype: DataType) -> str | None:
    """Return the first collation in a type other than UTF8_BINARY; None if there is none."""
    if isinstance(dtype, StringType):
        return None if dtype.isUTF8BinaryCollation() else dtype.collation
    parts: list[DataType] = []
    if isinstance(dtype, StructType):
        parts = [column.dataType for column in dtype.fields]
    elif isinstance(dtype, ArrayType):
        parts = [dtype.elementType]
    elif isinstance(dtype, MapType):
        parts = [dtype.keyType, dtype.valueType]
    return next((collation for collation in map(_collation, parts) if collation is not None), None)
