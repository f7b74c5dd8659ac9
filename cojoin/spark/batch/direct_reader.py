"""Parquet files read by the Python workers, so that their rows never become rows of Spark.

Of a folder Spark lists the files, logs which ones are read, and splits them into tasks as for its own reader. Of each
file it reads only the numbers of every 8,192nd row, without any column (``file_ranges``). From these a task has its
ranges of rows; it reads them with pyarrow, and hashes the keys as Spark does. The same rows then come to the packer in
the same order. Of a Delta table, cojoin's own source chooses the files (``sources.delta_stream``). It does not know
where row groups begin, so of its ranges a task reads the row groups that begin in them.

A task has one file open, and holds the rows of one chunk (``packing``) and the columns of one row group. The map stage
takes about 0.6 of the CPU that it takes where Spark reads the rows and turns them into Arrow
(``benchmarks.join.waterfall``).
"""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.key_groups import is_hashed
from cojoin.engine.row_changes import CHANGE_TYPE, DELETED, DELETES
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import QueryFailedError
from cojoin.spark.batch.packing import GROUP_COLUMN, NOW_COLUMN
from cojoin.spark.batch.parquet_rows import RANGES, StoredFile, is_plain, misfit, rows_between
from cojoin.storage.file_systems import open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.spark.batch.packing import Grouping
    from cojoin.storage.object_store_settings import Settings

TABLE_SETTING = "spark.cojoin.delta"
"""The setting of a session that leaves Delta tables to Delta's own source (``spark``)."""

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


@contextlib.contextmanager
def open_stored(uri: str, places: Mapping[str, Settings]) -> Iterator[StoredFile]:
    """Open a parquet file by its URI; ``places`` are those of ``sessions.places_of``, without any for local files."""
    if not places:
        with StoredFile(unquote(urlsplit(uri).path)) as file:
            yield file
        return
    with open_file(uri, "file", places) as stored, StoredFile(stored) as file:
        yield file


_RANGE_ROWS = 8192


def file_ranges(frame: DataFrame) -> DataFrame:
    """Return the ranges of rows of parquet files as ``RANGES_DDL``, one for each 8,192 rows."""
    row = F.col("_metadata.row_index")
    return frame.select(
        F.col("_metadata.file_path").alias("path"),
        F.col("_metadata.file_size").alias("size"),
        row.alias("begin"),
        (row + _RANGE_ROWS).alias("end"),
        F.lit(None).cast("string").alias("constants"),
        F.lit(None).cast("binary").alias("deleted"),
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
    deleted: bytes | None
    now: int | None


@dataclass(frozen=True)
class DirectReader:
    """Reads the rows of ranges in a task, as the columns that ``Packer`` takes.

    ``label`` names the input in messages. ``root`` is the folder of the files; None where their folders' names mean
    nothing. ``places`` are those of ``open_stored``. ``setting`` is the one that leaves the files to Spark. ``stored``
    is the schema of the rows with the names that the files have; None where they are the same. ``is_static`` is whether
    they are rows of a static DataFrame, whose join has no checkpoint. ``is_feed`` is whether they are the changes of a
    table: columns of any table may have the names of a change feed's.
    """

    label: str
    root: str | None
    grouping: Grouping
    places: Mapping[str, Settings]
    setting: str
    stored: pa.Schema | None = None
    is_static: bool = False
    is_feed: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's ranges, with their key groups; a file that does not fit is an error."""
        for part in _joined(batches):
            place = unquote(urlsplit(part.path).path)
            constants = _constants(part.constants, self.grouping.schema)
            schema, stored = self._without(constants)
            with contextlib.ExitStack() as held:
                try:
                    file = held.enter_context(open_stored(part.path, self.places))
                    _check_size(file, part.size)
                    self._check(file, place, stored)
                    begin, end = part.begin, part.end
                    if part.constants is not None:
                        begin, end = _whole_groups(file.metadata, begin, end)
                    for rows in rows_between(file, schema, begin, end, stored):
                        every = self._with_constants(rows, schema, constants) if constants else rows
                        if part.deleted is not None:
                            every = every.filter(_kept(part.deleted, begin, rows.num_rows))
                        begin += rows.num_rows
                        yield self._with_groups(every, part.now)
                except (OSError, pa.ArrowException) as error:
                    raise QueryFailedError(self._unreadable(place, error)) from error

    def _unreadable(self, place: str, error: Exception) -> str:
        back = f"put it back as it was, and {'run the join' if self.is_static else 'start the query'} again"
        if not isinstance(error, FileNotFoundError):
            reason = str(error).strip().partition("\n")[0]
            why = f"{place} can't be read: {reason}; if it was changed or is damaged, {back}; otherwise {self._cure}"
        elif self.setting != TABLE_SETTING:
            why = f"{place} is gone since it was listed; {back}"
        else:
            new = "connect the inputs again" if self.is_static else "start a new query with its own checkpoint"
            why = (
                f"{place} is gone, or out of this host's reach, and the version of the table that is read has it: "
                f"VACUUM removes files of older versions, by the table's property "
                f"delta.deletedFileRetentionDuration; {back}, or {new}"
            )
        return f"{self.label}: {why}"

    @property
    def _cure(self) -> str:
        cure = f"set {self.setting}=spark in the session and connect the inputs again: Spark then reads the files"
        return cure if self.is_static else f"{cure}, and the query continues from the same checkpoint"

    def _without(self, constants: Mapping[str, pa.Scalar]) -> tuple[pa.Schema, pa.Schema]:
        """Return the schema of a file's own columns, as the rows have them and with the file's names."""
        every, stored = self.grouping.schema, self.stored or self.grouping.schema
        pairs = [pair for pair in zip(every, stored, strict=True) if pair[0].name not in constants]
        if self.is_feed:
            kind = pa.field(CHANGE_TYPE, pa.string())
            pairs = [(kind, kind) if field.name == DELETED else (field, named) for field, named in pairs]
        return pa.schema([field for field, _ in pairs]), pa.schema([named for _, named in pairs])

    def _check(self, file: pq.ParquetFile, place: str, stored: pa.Schema) -> None:
        named = [] if self.root is None else folders_with_values(place, self.root)
        why = f"its folder {named[0]!r} is a Spark partition" if named else misfit(file.metadata, stored)
        if why is not None:
            msg = (
                f"{self.label}: {place}: {why}, which the workers do not read as Spark does; the files that were "
                f"looked at before were not so; {self._cure}, if it can read this one"
            )
            raise QueryFailedError(msg)

    def _with_constants(
        self, rows: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, pa.Scalar]
    ) -> pa.RecordBatch:
        """Return rows of a file with the columns that it lacks."""
        columns = dict(zip(schema.names, rows.columns, strict=True))
        if self.is_feed and CHANGE_TYPE in columns:
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


def _kept(deleted: bytes, begin: int, count: int) -> pa.BooleanArray:
    """Return which of some rows of a file, from a number on, are not deleted."""
    bits = np.frombuffer(deleted, dtype=np.uint8)[begin // 8 : (begin + count + 7) // 8]
    is_deleted = np.unpackbits(bits, bitorder="little")[begin % 8 :][:count].astype(bool)
    return pa.array(~np.append(is_deleted, np.zeros(count - len(is_deleted), dtype=bool)))


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
