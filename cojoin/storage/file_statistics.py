"""The column statistics of a data file in the Delta log, by which readers skip files that can't match a filter.

They are made from Parquet's own statistics. Among a file's first 32 columns, each that is not nested gets its number
of nulls, and its minimum and maximum where Delta uses them for the type. A bound that can't be exact is left out, which
costs a reader time but never a row: the bounds of a column with NaN (which Spark sorts last and Parquet ignores),
infinities, years outside 1000 to 9999, a maximum text that is not valid UTF-8. Texts are truncated to 32 characters, as
Delta does. (Delta's protocol, "Per-file Statistics".)
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow.parquet as pq

__all__ = ["file_statistics", "floats_with_nan"]

_COLUMNS = 32
_CHARACTERS = 32
_HIGHEST = "\U0010ffff"
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - only to count from


def floats_with_nan(table: pa.Table) -> set[str]:
    """Return the names of the columns that contain a NaN."""
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    return {name for name in floats if pc.any(pc.is_nan(table.column(name))).as_py()}


def file_statistics(metadata: pq.FileMetaData, schema: pa.Schema, with_nan: Collection[str] = ()) -> str:
    """Return a file's statistics in the format of the Delta log.

    Args:
        metadata: The file's Parquet metadata.
        schema: The file's columns.
        with_nan: The names of the columns that contain a NaN.

    Returns:
        JSON: ``{"numRecords": …, "minValues": {…}, "maxValues": {…}, "nullCount": {…}}``.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    lows, highs, nulls = {}, {}, {}
    leaf = 0
    for field in list(schema)[:_COLUMNS]:
        width = _leaves(field.type)
        statistics = [group.column(leaf).statistics for group in groups]
        leaf += width
        if pa.types.is_nested(field.type) or any(each is None or not each.has_null_count for each in statistics):
            continue
        nulls[field.name] = str(sum(each.null_count for each in statistics))
        known = [each for each in statistics if each.num_values]
        if not known or field.name in with_nan or not all(each.has_min_max for each in known):
            continue
        low = _spelled(min(_value(each, "min") for each in known), field.type, largest=False)
        high = _spelled(max(_value(each, "max") for each in known), field.type, largest=True)
        if low is not None:
            lows[field.name] = low
        if high is not None:
            highs[field.name] = high
    parts = {"minValues": lows, "maxValues": highs, "nullCount": nulls}
    spelled = ",".join(f'"{name}":{_object(values)}' for name, values in parts.items())
    return f'{{"numRecords":{metadata.num_rows},{spelled}}}'


def _leaves(dtype: pa.DataType) -> int:
    """Return the number of Parquet columns that a column of this type has."""
    if pa.types.is_struct(dtype):
        return sum(_leaves(field.type) for field in dtype)
    if pa.types.is_map(dtype):
        return _leaves(dtype.key_type) + _leaves(dtype.item_type)
    return _leaves(dtype.value_type) if pa.types.is_list(dtype) else 1


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
