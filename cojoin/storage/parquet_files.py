"""Parquet files of tables: their footers, their column statistics, and the descriptions by which they are committed.

The statistics of a file in the Delta log let readers skip files that can't match a filter. They are made from Parquet's
own statistics, except those of floats, which are counted from the rows (``FloatBounds``): pyarrow leaves NaN out of a
column's minimum and maximum, and Spark sorts NaN last, so its readers would pass over rows that match ``price > 2``. A
file with floats is therefore written without Parquet's statistics of them (``columns_with_statistics``).

Each of a file's first 32 columns that is not nested gets its number of nulls, and its minimum and maximum where Delta
uses them for the type. A bound that can't be exact is left out, which costs a reader time but never a row: those of a
column with NaN, infinities, years outside 1000 to 9999, a maximum text that is not valid UTF-8. Texts are truncated to
32 characters, as by Delta. (Delta's protocol, "Per-file Statistics".)

A file with encrypted columns may have a plain footer. pyarrow opens it, and ends the whole process once an encrypted
column is read. Such a footer is followed by a signature of 28 bytes, so it is refused in time. (Parquet Modular
Encryption, "Plaintext footer mode".)
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_SIGNATURE_BYTES = 28
_END_BYTES = 8
"""The footer's size in four bytes, and parquet's magic number in four."""

_COLUMNS = 32
_CHARACTERS = 32
_HIGHEST = "\U0010ffff"
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - only to count from


@dataclass(frozen=True)
class WrittenFile:
    """A Parquet file of a table: its size in bytes, its time in epoch milliseconds, its ``file_statistics``."""

    name: str
    rows: int
    size: int
    modified: int
    statistics: str

    def to_json(self) -> bytes:
        """Return the file as one line of JSON, which ``read`` reads."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, line: bytes) -> WrittenFile:
        """Read a line that ``to_json`` returned."""
        return cls(**json.loads(line))


def read_footer(stored: pa.NativeFile) -> pq.FileMetaData:
    """Return a file's footer; raise ``OSError`` where it can't be read, or columns are encrypted."""
    metadata = pq.read_metadata(stored)
    check_not_encrypted(stored, metadata)
    return metadata


def check_not_encrypted(stored: pa.NativeFile, metadata: pq.FileMetaData) -> None:
    """Raise ``OSError`` if a file whose footer was read has encrypted columns."""
    stored.seek(-_END_BYTES, 2)
    size = int.from_bytes(stored.read(4), "little")
    if size - metadata.serialized_size >= _SIGNATURE_BYTES:
        msg = "some of its columns are encrypted"
        raise OSError(msg)


def leaves(field: pa.Field) -> dict[str, pa.DataType]:
    """Return the Parquet columns of a column, by their paths in the file, with their types.

    >>> list(leaves(pa.field("tags", pa.list_(pa.string()))))
    ['tags.list.element']
    """
    dtype, parts = field.type, {}
    if pa.types.is_struct(dtype):
        parts = {part.name: part.type for part in dtype}
    elif pa.types.is_list(dtype):
        parts = {"list.element": dtype.value_type}
    elif pa.types.is_map(dtype):
        parts = {"key_value.key": dtype.key_type, "key_value.value": dtype.item_type}
    if not parts:
        return {field.name: dtype}
    nested = [leaves(pa.field(f"{field.name}.{name}", part)) for name, part in parts.items()]
    return {path: leaf for each in nested for path, leaf in each.items()}


def columns_with_statistics(schema: pa.Schema) -> list[str]:
    """Return the paths of the columns of which a file may have Parquet's statistics: all that are not floats."""
    return [path for field in schema for path, leaf in leaves(field).items() if not pa.types.is_floating(leaf)]


class FloatBounds:
    """The nulls and the bounds of a file's columns of floats, counted as its rows are written."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names = [field.name for field in schema if pa.types.is_floating(field.type)]
        self._nulls = dict.fromkeys(self._names, 0)
        self._bounds: dict[str, tuple[float, float]] = {}
        self._with_nan: set[str] = set()

    def add(self, table: pa.Table) -> None:
        """Count some of the file's rows."""
        for name in self._names:
            column = table.column(name)
            self._nulls[name] += column.null_count
            if column.null_count == len(column) or name in self._with_nan:
                continue
            if pc.any(pc.is_nan(column)).as_py():
                self._with_nan.add(name)
                continue
            bounds = pc.min_max(column).as_py()
            low, high = self._bounds.get(name, (bounds["min"], bounds["max"]))
            self._bounds[name] = min(low, bounds["min"]), max(high, bounds["max"])

    def nulls(self, name: str) -> int | None:
        """Return how many nulls a column has; None if it is not one of floats."""
        return self._nulls.get(name)

    def bounds(self, name: str) -> tuple[float, float] | None:
        """Return the least and the greatest value of a column; None where it has a NaN, or no value at all.

        Zero as a bound is -0.0 or 0.0, whichever includes the other, since some readers distinguish them.
        """
        if name in self._with_nan or name not in self._bounds:
            return None
        low, high = self._bounds[name]
        return low or -0.0, high or 0.0


def file_statistics(metadata: pq.FileMetaData, schema: pa.Schema, floats: FloatBounds | None = None) -> str:
    """Return a file's statistics as JSON of the Delta log; without ``floats``, none of columns of floats."""
    floats = FloatBounds(pa.schema([])) if floats is None else floats
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    lows, highs, nulls = {}, {}, {}
    leaf = 0
    for field in list(schema)[:_COLUMNS]:
        statistics = [group.column(leaf).statistics for group in groups]
        leaf += len(leaves(field))
        if pa.types.is_floating(field.type):
            counted, bounds = floats.nulls(field.name), floats.bounds(field.name)
        elif pa.types.is_nested(field.type) or any(each is None or not each.has_null_count for each in statistics):
            continue
        else:
            counted, bounds = sum(each.null_count for each in statistics), _bounds(statistics)
        if counted is not None:
            nulls[field.name] = str(counted)
        if bounds is None:
            continue
        low = _spelled(bounds[0], field.type, largest=False)
        high = _spelled(bounds[1], field.type, largest=True)
        if low is not None:
            lows[field.name] = low
        if high is not None:
            highs[field.name] = high
    parts = {"minValues": lows, "maxValues": highs, "nullCount": nulls}
    spelled = ",".join(f'"{name}":{_object(values)}' for name, values in parts.items())
    return f'{{"numRecords":{metadata.num_rows},{spelled}}}'


def _bounds(statistics: list[Any]) -> tuple[Any, Any] | None:
    """Return the bounds of a column by those of its row groups; None where it has no values, or one lacks bounds."""
    known = [each for each in statistics if each.num_values]
    if not known or not all(each.has_min_max for each in known):
        return None
    return min(_value(each, "min") for each in known), max(_value(each, "max") for each in known)


def _value(statistics: Any, which: str) -> Any:
    # Texts as bytes: not all are valid UTF-8, and Parquet compares them as bytes.
    is_raw = statistics.logical_type.type in {"TIMESTAMP", "DATE", "STRING"}
    return getattr(statistics, f"{which}_raw" if is_raw else which)


def _spelled(value: Any, dtype: pa.DataType, *, largest: bool) -> str | None:  # noqa: PLR0911 - one a type
    """Return a bound as JSON; None where Delta does not use bounds of this type, or the bound can't be exact."""
    types = pa.types
    if types.is_integer(dtype):
        return str(value)
    if types.is_floating(dtype):
        return repr(float(value)) if isfinite(value) else None
    if types.is_decimal(dtype):
        return format(value, "f") if isinstance(value, Decimal) else None
    if types.is_date32(dtype):
        moment = _moment(days=value)
        return None if moment is None else f'"{moment:%Y-%m-%d}"'
    if types.is_timestamp(dtype):
        # Truncated to milliseconds: Delta's readers allow for that at the upper bound.
        moment = _moment(milliseconds=value // 1_000)
        if moment is None:
            return None
        return f'"{moment.isoformat(timespec="milliseconds")}{"" if dtype.tz is None else "Z"}"'
    if types.is_string(dtype):
        return _cut(value, largest=largest)
    return None


def _moment(**since_epoch: int) -> datetime | None:
    try:
        moment = _EPOCH + timedelta(**since_epoch)
    except OverflowError:
        return None
    return moment if moment.year >= 1000 else None


def _cut(value: bytes, *, largest: bool) -> str | None:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        # The valid part before the bad byte is a lower bound; no text that JSON can hold is surely an upper bound.
        if largest:
            return None
        text = value[: error.start].decode()
    if len(text) > _CHARACTERS and largest:
        if text[_CHARACTERS] == _HIGHEST:
            return None
        text = text[:_CHARACTERS] + _HIGHEST
    return json.dumps(text[: _CHARACTERS + 1] if largest else text[:_CHARACTERS], ensure_ascii=False)


def _object(values: dict[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{value}" for name, value in values.items()) + "}"
