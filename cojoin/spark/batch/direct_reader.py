"""Parquet files read by the Python workers, so that their rows never become rows of Spark.

Spark lists the files, keeps the log of what is read, and splits them into tasks as for its own reader. Of each file it
reads only the numbers of every 8,192nd row, without any column: so a task learns which rows of which files are its own,
reads them with pyarrow, and hashes the keys as Spark does. The same rows then come to the packer in the same order.

A task has one file open, and holds the rows of one chunk (``packing``) and the columns of one row group. The map stage
takes about 0.6 of the CPU that it takes where Spark reads the rows and turns them into Arrow
(``benchmarks.join.waterfall``).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

from cojoin.errors import QueryFailedError
from cojoin.spark.batch.packing import GROUP_COLUMN, NOW_COLUMN
from cojoin.spark.batch.parquet_columns import StoredFile, misfit, rows_between

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column, DataFrame

    from cojoin.spark.batch.grouping import Grouping

__all__ = ["CURE", "DirectReader", "file_ranges", "folders_with_values"]

CURE = (
    "set spark.cojoin.parquet=spark in the session and connect the inputs again: Spark then reads the files, and the "
    "query goes on from the same checkpoint"
)
"""What to do where the workers can't read a file and Spark may."""

_RANGE_ROWS = 8192
_PATH, _SIZE, _ROW = "__cojoin_path", "__cojoin_size", "__cojoin_row"


def file_ranges(frame: DataFrame, *others: Column) -> DataFrame:
    """Return where the rows of parquet files are, for ``DirectReader``.

    A row for each 8,192nd row: its file's path, the file's size in bytes as Spark has found it, and its number.

    Args:
        frame: The files as a DataFrame.
        others: Columns to add.
    """
    places = {"file_path": _PATH, "file_size": _SIZE, "row_index": _ROW}
    columns = [F.col(f"_metadata.{name}").alias(alias) for name, alias in places.items()]
    return frame.select(*columns, *others).where(F.col(_ROW) % _RANGE_ROWS == 0)


def folders_with_values(place: str, root: str) -> list[str]:
    """Return the folders between a root and a file that are named by values, as Spark's partitions are.

    >>> folders_with_values("/lake/trades/day=2026-01-15/0.parquet", "/lake/trades")
    ['day=2026-01-15']
    """
    inner = place.removeprefix(root.rstrip("/")).split("/")[:-1]
    return [folder for folder in inner if "=" in folder]


class _Range(NamedTuple):
    """Rows of a file, by their numbers, and the micro-batch's processing time."""

    path: str
    size: int
    begin: int
    end: int
    now: int | None


@dataclass(frozen=True)
class DirectReader:
    """Reads the rows of ``file_ranges`` in a task, as the columns that ``Packer`` takes.

    Attributes:
        what: The input, for messages.
        root: The folder of the files.
        grouping: The input's columns, and how its rows are distributed to key groups.
    """

    what: str
    root: str
    grouping: Grouping

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's ranges, with their key groups.

        Raises:
            QueryFailedError: A file can't be read, or not as Spark reads it.
        """
        for each in _joined(batches):
            place = unquote(urlsplit(each.path).path)
            with contextlib.ExitStack() as held:
                try:
                    file = held.enter_context(StoredFile(place))
                    _check_size(place, each.size)
                    self._check(file, place)
                    for rows in rows_between(file, self.grouping.schema, each.begin, each.end):
                        yield self._with_groups(rows, each.now)
                except (OSError, pa.ArrowException) as error:
                    reason = str(error).strip().partition("\n")[0]
                    msg = (
                        f"{self.what}: {place} can't be read: {reason}; if it is gone, changed or damaged, put it back "
                        f"as it was, and start the query again; otherwise {CURE}"
                    )
                    raise QueryFailedError(msg) from error

    def _check(self, file: pq.ParquetFile, place: str) -> None:
        named = folders_with_values(place, self.root)
        why = f"its folder {named[0]!r} has a column's value" if named else misfit(file.metadata, self.grouping.schema)
        if why is not None:
            msg = (
                f"{self.what}: {place}: {why}, which the workers do not read as Spark does, and which was not so in "
                f"the files looked at before the start; {CURE}, if it can read this one"
            )
            raise QueryFailedError(msg)

    def _with_groups(self, rows: pa.RecordBatch, now: int | None) -> pa.RecordBatch:
        groups = pa.array(self.grouping.groups(rows))
        columns, names = [*rows.columns], [*rows.schema.names]
        if now is not None:
            columns.append(pa.repeat(pa.scalar(now, pa.int64()), rows.num_rows))
            names.append(NOW_COLUMN)
        return pa.RecordBatch.from_arrays([*columns, groups], names=[*names, GROUP_COLUMN])


def _check_size(place: str, expected: int) -> None:
    """Check that a file was not replaced since Spark has counted its rows, as fewer than it has now might be read."""
    found = Path(place).stat().st_size
    if found != expected:
        msg = f"it has {found:,} bytes now, and had {expected:,} when its rows were counted"
        raise OSError(msg)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[_Range]:
    """Yield the ranges of a task; those that follow each other in a file are one."""
    open_range: _Range | None = None
    for batch in batches:
        clock = batch.schema.get_field_index(NOW_COLUMN)
        times = batch.column(clock).to_pylist() if clock >= 0 else [None] * batch.num_rows
        places = (batch.column(at).to_pylist() for at in range(3))
        for path, size, row, now in zip(*places, times, strict=True):
            if open_range is not None and (open_range.path, open_range.end) == (path, row):
                open_range = open_range._replace(end=row + _RANGE_ROWS)
                continue
            if open_range is not None:
                yield open_range
            open_range = _Range(path, size, row, row + _RANGE_ROWS, now)
    if open_range is not None:
        yield open_range
