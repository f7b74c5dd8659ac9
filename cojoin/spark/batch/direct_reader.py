"""Parquet files read by the Python workers, so that their rows never become rows of Spark.

Of a folder Spark lists the files, logs which ones are read, and splits them into tasks as for its own reader. Of each
file it reads only the numbers of every 8,192nd row, without any column (``file_ranges``). From these a task has its
ranges of rows; it reads them with pyarrow, and hashes the keys as Spark does. The same rows then come to the packer in
the same order. Of a Delta table, cojoin's own source chooses the files (``sources.delta_stream``). It does not know
where row groups begin, so of its ranges a task reads the row groups that begin in them.

Columns are looked up by name as in Spark: whatever their case, and null where the file has none. A column must have the
input's own type, a narrower integer or a float for a double; times may be the older INT96 of Spark itself. A file that
only Spark's reader reads rightly (dates of the Julian calendar, INT96 of other writers, wider decimals) is refused with
its name and column (``misfit``).

A task has one file open, and holds the rows of one chunk (``packing``) and the columns of one row group. The map stage
takes about 0.6 of the CPU that it takes where Spark reads the rows and turns them into Arrow
(``benchmarks.join.waterfall``).
"""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.key_groups import is_hashed
from cojoin.engine.row_changes import CHANGE_TYPE, COMMIT, DELETED, DELETES
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import QueryFailedError
from cojoin.spark.batch.packing import GROUP_COLUMN, NOW_COLUMN
from cojoin.storage.file_systems import open_file
from cojoin.storage.parquet_files import check_not_encrypted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.spark.batch.packing import Grouping
    from cojoin.storage.object_store_settings import Settings

_ROWS_AT_ONCE, _BYTES_AT_ONCE = 32_768, 32 << 20
_WRITER = b"org.apache.spark.version"
_FIRST_NEW, _FIRST_NEW_INT96 = (3, 0), (3, 1)
"""The versions of Spark since which dates and times, and those of INT96, are of the Gregorian calendar throughout."""

_OLD_DATES = b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"
_MILLIS, _MICROS = "milliseconds", "microseconds"
_TEXTS = (None, "String")


_AS_EXPECTED = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.int96AsTimestamp": "true",
}
"""Settings of Spark that change the rows read from a file, with the values for which the workers read the same."""


def is_plain(dtype: pa.DataType) -> bool:
    """Return whether columns of a type can be read by pyarrow as Spark does.

    >>> is_plain(pa.timestamp("us", "UTC")), is_plain(pa.list_(pa.string()))
    (True, False)
    """
    types = pa.types
    is_time = types.is_timestamp(dtype) and dtype.unit == "us" and dtype.tz in (None, "UTC")
    is_number = types.is_signed_integer(dtype) or types.is_float32(dtype) or types.is_float64(dtype)
    is_text = types.is_string(dtype) or types.is_binary(dtype)
    others = types.is_boolean(dtype) or types.is_date32(dtype) or types.is_decimal128(dtype)
    return bool(is_time or is_number or is_text or others)


def why_by_settings(session: SparkSession) -> str | None:
    """Return the setting of a session that changes how a file is read, as a reason; None without one."""
    for name, expected in _AS_EXPECTED.items():
        value = str(session.conf.get(name, expected))
        if value.lower() != expected.lower():
            return f"{name} is {value}"
    return None


def why_by_columns(schema: pa.Schema, key: Sequence[str]) -> str | None:
    """Return why the columns of an input are not read by pyarrow, or hashed, as Spark does; None where they are."""
    for column in schema:
        if not is_plain(column.type):
            return f"its column {column.name!r} is of the type {type_to_ddl(column.type)}"
        if "." in column.name or column.name.lower() == "_metadata":
            return f"its column is named {column.name!r}"
        if column.name in key and not is_hashed(column.type):
            return f"its key {column.name!r} is of the type {type_to_ddl(column.type)}"
    return None


class StoredFile(pq.ParquetFile):  # type: ignore[misc]
    """A parquet file that is open for ``rows_between``; ``place`` is its path, or an open file.

    Pages are compared with their checksums, if they have them, as Spark's do. Row groups are read as they are needed:
    pyarrow would otherwise hold the columns of all of them. An OSError means a file that can't be read or is encrypted.
    """

    def __init__(self, place: Any, **settings: Any) -> None:
        super().__init__(
            place,
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
            pre_buffer=False,
            **settings,
        )
        self.place = place
        try:
            with pa.OSFile(place) if isinstance(place, str) else contextlib.nullcontext(place) as stored:
                check_not_encrypted(stored, self.metadata)
        except OSError:
            self.close()
            raise


@contextlib.contextmanager
def open_stored(uri: str, places: Mapping[str, Settings]) -> Iterator[StoredFile]:
    """Open a parquet file by its URI; ``places`` are those of ``sessions.places_of``, without any for local files."""
    if not places:
        with StoredFile(unquote(urlsplit(uri).path)) as file:
            yield file
        return
    with open_file(uri, "file", places) as stored, StoredFile(stored) as file:
        yield file


def misfit(metadata: pq.FileMetaData, schema: pa.Schema) -> str | None:
    """Return the reason why Spark must read a file; None where pyarrow reads the same rows.

    ``schema`` has the columns to read, of types that ``is_plain`` accepts.
    """
    columns = _columns(metadata)
    for field in schema:
        same = columns.get(field.name.lower(), [])
        if len(same) > 1:
            return f"it has columns {' and '.join(repr(each.name) for each in same)}, which are one to Spark"
        if same and not _fits(same[0], field.type):
            return f"its column {same[0].name!r} is {_shown(same[0])}, and {type_to_ddl(field.type)} is expected"
    dated = [each for each in schema if pa.types.is_date32(each.type) or pa.types.is_timestamp(each.type)]
    version = _spark_version(metadata)
    stored = [columns[name][0] for name in (each.name.lower() for each in dated) if columns.get(name)]
    older = next((column for column in stored if column.physical == "INT96"), None)
    if older is not None and version is None:
        # Writers differ in times before 1970, and the setting of Spark's reader applies to them.
        return f"its column {older.name!r} is INT96, and the file was not written by Spark"
    first_new = _FIRST_NEW if older is None else _FIRST_NEW_INT96
    if dated and version is not None and (version < first_new or any(each in metadata.metadata for each in _OLD_DATES)):
        return "it was written by Spark with dates of the Julian calendar"
    return None


def rows_between(file: StoredFile, schema: pa.Schema, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows with the numbers from ``begin`` up to ``end`` of a file that fits a schema, in its types.

    The range may begin inside a row group, and end after the last row.
    """
    metadata = file.metadata
    columns_by_name = _columns(metadata)
    names = {name: columns_by_name[name.lower()][0] for name in schema.names if name.lower() in columns_by_name}
    groups, first = [], None
    start = size = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if start < end and start + group.num_rows > begin:
            first = start if first is None else first
            groups.append(number)
            bytes_each = sum(group.column(each.at).total_uncompressed_size for each in names.values())
            size = max(size, bytes_each // max(1, group.num_rows))
        start += group.num_rows
    at = first or 0
    size = max(size, _longest_texts(file, groups, names))
    most = min(_ROWS_AT_ONCE, max(1, _BYTES_AT_ONCE // max(1, size)))
    columns = [each.name for each in names.values()]
    for batch in file.iter_batches(most, groups, columns, use_threads=False):
        low, high = max(begin - at, 0), min(end - at, batch.num_rows)
        at += batch.num_rows
        if low < high:
            yield _in_types(batch.slice(low, high - low), schema, names)
        if at >= end:
            return


def _longest_texts(file: StoredFile, groups: list[int], names: dict[str, _Column]) -> int:
    """Return the sum of the lengths of each column's longest text in a dictionary; 0 without dictionaries.

    A text of a dictionary is once in the file, and in a batch of rows as often as it occurs.
    """
    coded: dict[int, list[str]] = {}
    for number in groups:
        group = file.metadata.row_group(number)
        coded[number] = [
            column.name
            for column in names.values()
            if column.physical == "BYTE_ARRAY"
            and column.logical.get("Type") in _TEXTS
            and group.column(column.at).has_dictionary_page
        ]
    every = sorted({name for columns in coded.values() for name in columns})
    if not every:
        return 0
    size = 0
    with StoredFile(file.place, metadata=file.metadata, read_dictionary=every) as dictionaries:
        for number, columns in coded.items():
            for first in itertools.islice(dictionaries.iter_batches(1, [number], columns, use_threads=False), 1):
                longest = (pc.max(pc.binary_length(each.dictionary)).as_py() for each in first.columns)
                size = max(size, sum(each or 0 for each in longest))
    return size


def _in_types(batch: pa.RecordBatch, schema: pa.Schema, names: dict[str, _Column]) -> pa.RecordBatch:
    columns = []
    for field in schema:
        if field.name not in names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(batch.schema.get_field_index(names[field.name].name))
        columns.append(column if column.type == field.type else _cast(column, field.type))
    return pa.RecordBatch.from_arrays(columns, names=[f"c{at}" for at in range(len(schema))])


def _cast(column: pa.Array, dtype: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(dtype):
        # Spark takes a time as it is stored, whether or not it is marked as UTC.
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).cast(dtype)
    return column.cast(dtype)


class _Column:
    """A column at the top of a file's schema."""

    def __init__(self, column: Any, at: int) -> None:
        self.is_nested = column.path != column.name or column.max_repetition_level > 0
        # The name of a column that is not nested may itself have a dot.
        self.name = column.path.partition(".")[0] if self.is_nested else column.name
        self.at, self._stored = at, column
        self.physical = str(column.physical_type)

    @cached_property
    def logical(self) -> dict[str, Any]:
        """The meaning of its values; empty where the file has none."""
        logical = json.loads(self._stored.logical_type.to_json())
        return {} if logical["Type"] == "None" else logical


def _columns(metadata: pq.FileMetaData) -> dict[str, list[_Column]]:
    """Return the columns of a file by their names in lower case."""
    columns: dict[str, list[_Column]] = {}
    for at in range(metadata.num_columns):
        column = _Column(metadata.schema.column(at), at)
        same = columns.setdefault(column.name.lower(), [])
        if not column.is_nested or all(each.name != column.name for each in same):
            same.append(column)
    return columns


def _fits(column: _Column, dtype: pa.DataType) -> bool:
    types, logical, physical = pa.types, column.logical, column.physical
    kind = logical.get("Type")
    if column.is_nested:
        return False
    if types.is_integer(dtype):
        is_signed = physical in ("INT32", "INT64") and kind in (None, "Int") and logical.get("isSigned", True)
        return bool(is_signed) and int(logical.get("bitWidth", physical[3:])) <= dtype.bit_width
    if types.is_timestamp(dtype):
        return _fits_time(column, is_utc=dtype.tz is not None)
    if types.is_decimal(dtype):
        return kind == "Decimal" and (logical["precision"], logical["scale"]) == (dtype.precision, dtype.scale)
    expected = {
        types.is_boolean: (("BOOLEAN", None),),
        types.is_float32: (("FLOAT", None),),
        types.is_float64: (("DOUBLE", None), ("FLOAT", None)),
        types.is_string: (("BYTE_ARRAY", "String"),),
        types.is_binary: (("BYTE_ARRAY", None),),
        types.is_date32: (("INT32", "Date"),),
    }
    return any(is_kind(dtype) and (physical, kind) in pairs for is_kind, pairs in expected.items())


def _fits_time(column: _Column, *, is_utc: bool) -> bool:
    if column.physical == "INT96":
        return is_utc
    logical = column.logical
    if column.physical != "INT64" or logical.get("Type") != "Timestamp":
        return False
    return logical["timeUnit"] in (_MILLIS, _MICROS) and (is_utc or not logical["isAdjustedToUTC"])


def _shown(column: _Column) -> str:
    if column.is_nested:
        return "nested"
    details = ", ".join(
        f"{name} {value}".lower()
        for name, value in column.logical.items()
        if name != "Type" and not isinstance(value, bool)
    )
    kind = column.logical.get("Type")
    return column.physical + (f" ({kind}{': ' + details if details else ''})" if kind else "")


def _spark_version(metadata: pq.FileMetaData) -> tuple[int, ...] | None:
    """Return the version of Spark that wrote a file, as two numbers; None where another program did."""
    stored = metadata.metadata or {}
    if _WRITER not in stored:
        return None
    version = stored[_WRITER].decode(errors="replace").split(".")
    return tuple(int(each) if each.isdigit() else 0 for each in version[:2])


_RANGE_ROWS = 8192
RANGES_DDL = "path string, size bigint, begin bigint, end bigint, constants string"
"""The columns of a stream of ranges.

A path is encoded as a URL's; the size is the file's in bytes; the range has the rows from the number ``begin`` to
before ``end``. ``constants`` is null where just these are read; otherwise the row groups that begin with one of them
are, and it has, as a JSON object, the values of columns that the file lacks, since all of its rows have the same. A
file of a change feed has the kinds of its rows in place of ``_deleted``.
"""

RANGES = pa.schema(
    [
        *(("path", pa.string()), ("size", pa.int64()), ("begin", pa.int64()), ("end", pa.int64())),
        ("constants", pa.string()),
    ]
)


def file_ranges(frame: DataFrame) -> DataFrame:
    """Return the ranges of rows of parquet files as ``RANGES_DDL``, one for each 8,192 rows."""
    row = F.col("_metadata.row_index")
    return frame.select(
        F.col("_metadata.file_path").alias("path"),
        F.col("_metadata.file_size").alias("size"),
        row.alias("begin"),
        (row + _RANGE_ROWS).alias("end"),
        F.lit(None).cast("string").alias("constants"),
    ).where(F.col("begin") % _RANGE_ROWS == 0)


def folders_with_values(place: str, root: str) -> list[str]:
    """Return the folders between a root and a file that are named by values, as Spark's partitions are.

    >>> folders_with_values("/lake/trades/day=2026-01-15/0.parquet", "/lake/trades")
    ['day=2026-01-15']
    """
    inner = place.removeprefix(root.rstrip("/")).split("/")[:-1]
    return [folder for folder in inner if "=" in folder]


class _Range(NamedTuple):
    """A row of ``RANGES_DDL``, and the micro-batch's processing time."""

    path: str
    size: int
    begin: int
    end: int
    constants: str | None
    now: int | None


@dataclass(frozen=True)
class DirectReader:
    """Reads the rows of ranges in a task, as the columns that ``Packer`` takes.

    ``label`` names the input in messages. ``root`` is the folder of the files; None where their folders' names mean
    nothing. ``places`` are those of ``open_stored``. ``setting`` is the one that leaves the files to Spark.
    """

    label: str
    root: str | None
    grouping: Grouping
    places: Mapping[str, Settings]
    setting: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's ranges, with their key groups; a file that does not fit is an error."""
        for part in _joined(batches):
            place = unquote(urlsplit(part.path).path)
            constants = _constants(part.constants, self.grouping.schema)
            stored = pa.schema([each for each in self.grouping.schema if each.name not in constants])
            if COMMIT in constants and DELETED in stored.names:
                stored = stored.set(stored.get_field_index(DELETED), pa.field(CHANGE_TYPE, pa.string()))
            with contextlib.ExitStack() as held:
                try:
                    file = held.enter_context(open_stored(part.path, self.places))
                    _check_size(file, part.size)
                    self._check(file, place, stored)
                    begin, end = part.begin, part.end
                    if part.constants is not None:
                        begin, end = _whole_groups(file.metadata, begin, end)
                    for rows in rows_between(file, stored, begin, end):
                        every = self._with_constants(rows, stored, constants) if constants else rows
                        yield self._with_groups(every, part.now)
                except (OSError, pa.ArrowException) as error:
                    reason = str(error).strip().partition("\n")[0]
                    msg = (
                        f"{self.label}: {place} can't be read: {reason}; if it is gone, changed or damaged, put it "
                        f"back as it was, and start the query again; otherwise {self._cure}"
                    )
                    raise QueryFailedError(msg) from error

    @property
    def _cure(self) -> str:
        return (
            f"set {self.setting}=spark in the session and connect the inputs again: Spark then reads the files, and "
            f"the query continues from the same checkpoint"
        )

    def _check(self, file: pq.ParquetFile, place: str, stored: pa.Schema) -> None:
        named = [] if self.root is None else folders_with_values(place, self.root)
        why = f"its folder {named[0]!r} is a Spark partition" if named else misfit(file.metadata, stored)
        if why is not None:
            msg = (
                f"{self.label}: {place}: {why}, which the workers do not read as Spark does; the files that were "
                f"looked at before the start were not so; {self._cure}, if it can read this one"
            )
            raise QueryFailedError(msg)

    def _with_constants(
        self, rows: pa.RecordBatch, stored: pa.Schema, constants: Mapping[str, pa.Scalar]
    ) -> pa.RecordBatch:
        """Return rows of a file with the columns that it lacks."""
        columns = dict(zip(stored.names, rows.columns, strict=True))
        if CHANGE_TYPE in columns:
            columns[DELETED] = pc.is_in(columns[CHANGE_TYPE], pa.array(DELETES))
        columns |= {name: pa.repeat(value, rows.num_rows) for name, value in constants.items()}
        every = [columns[name] for name in self.grouping.schema.names]
        return pa.RecordBatch.from_arrays(every, names=[f"c{at}" for at in range(len(every))])

    def _with_groups(self, rows: pa.RecordBatch, now: int | None) -> pa.RecordBatch:
        groups = pa.array(self.grouping.groups(rows))
        columns, names = [*rows.columns], [*rows.schema.names]
        if now is not None:
            columns.append(pa.repeat(pa.scalar(now, pa.int64()), rows.num_rows))
            names.append(NOW_COLUMN)
        return pa.RecordBatch.from_arrays([*columns, groups], names=[*names, GROUP_COLUMN])


def constant_of(value: str | int | None, dtype: pa.DataType) -> pa.Scalar:
    """Return a constant in its column's type; ``pa.ArrowInvalid`` where its text is none.

    >>> constant_of("2026-01-15", pa.date32())
    <pyarrow.Date32Scalar: datetime.date(2026, 1, 15)>
    """
    return (pa.scalar(value, pa.string()) if value is None else pa.scalar(value)).cast(dtype)


def _constants(text: str | None, schema: pa.Schema) -> dict[str, pa.Scalar]:
    values = {} if text is None else json.loads(text)
    return {name: constant_of(value, schema.field(name).type) for name, value in values.items() if name in schema.names}


def _whole_groups(metadata: pq.FileMetaData, begin: int, end: int) -> tuple[int, int]:
    """Return the range of the row groups whose first rows are in a range."""
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    starts = list(itertools.accumulate(rows, initial=0))
    chosen = [number for number, start in enumerate(starts[:-1]) if begin <= start < end]
    return (starts[chosen[0]], starts[chosen[-1] + 1]) if chosen else (0, 0)


def _check_size(file: StoredFile, expected: int) -> None:
    """Raise an OSError if a file was replaced since it was listed: too few rows might be read."""
    size = Path(file.place).stat().st_size if isinstance(file.place, str) else file.place.size()
    if size != expected:
        msg = f"it has {size:,} bytes now, and had {expected:,} when its rows were counted"
        raise OSError(msg)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[_Range]:
    """Yield the ranges of a task, with adjacent ones of a file as one."""
    open_range: _Range | None = None
    for batch in batches:
        clock = batch.schema.get_field_index(NOW_COLUMN)
        times = batch.column(clock).to_pylist() if clock >= 0 else [None] * batch.num_rows
        columns = (batch.column(at).to_pylist() for at in range(len(RANGES)))
        for part in map(_Range, *columns, times):
            if open_range is not None and (open_range.path, open_range.end) == (part.path, part.begin):
                open_range = open_range._replace(end=part.end)
                continue
            if open_range is not None:
                yield open_range
            open_range = part
    if open_range is not None:
        yield open_range
