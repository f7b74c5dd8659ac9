"""What Delta's log says of a file's columns, so that readers pass over files that can't hold what they look for.

From the statistics that parquet keeps itself: for the first 32 columns that are not nested the number of nulls, and the
least and the largest value where Delta has a use for them. What can't be told exactly is left out, which costs a reader
time and never a row: bounds of a column with NaN (the largest value to Spark, none to parquet), infinities, years that
have no four digits, the largest of texts that is not UTF-8. Texts are cut after 32 characters, as Delta does it.
(Delta's protocol, "Per-file Statistics".)
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
    """Name the columns in which there is a NaN."""
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    return {name for name in floats if pc.any(pc.is_nan(table.column(name))).as_py()}


def file_statistics(metadata: pq.FileMetaData, schema: pa.Schema, with_nan: Collection[str] = ()) -> str:
    """Return a file's statistics as Delta's log has them.

    Args:
        metadata: What parquet keeps.
        schema: The file's columns.
        with_nan: The columns in which there is a NaN.

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
    """Count the columns that parquet makes of one."""
    if pa.types.is_struct(dtype):
        return sum(_leaves(field.type) for field in dtype)
    if pa.types.is_map(dtype):
        return _leaves(dtype.key_type) + _leaves(dtype.item_type)
    return _leaves(dtype.value_type) if pa.types.is_list(dtype) else 1


def _value(statistics: Any, which: str) -> Any:
    # Texts by their bytes: not all are UTF-8, and by these parquet has compared them.
    is_raw = statistics.logical_type.type in {"TIMESTAMP", "DATE", "STRING"}
    return getattr(statistics, f"{which}_raw" if is_raw else which)


def _spelled(value: Any, dtype: pa.DataType, *, largest: bool) -> str | None:  # noqa: PLR0911 - one a type
    """Return a bound as JSON; None where Delta has no use for it, or it can't be told exactly."""
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
        # Cut to milliseconds: readers take that into account at the upper bound.
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
        # What comes before the first bad byte is not above the text; nothing that JSON can hold is surely not below it.
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
