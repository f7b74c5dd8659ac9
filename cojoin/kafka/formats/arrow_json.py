"""JSON as columns, many values at once, where that gives what Spark's ``from_json`` gives.

Arrow parses a piece of values in one go. Its parser and Spark's differ at the edges: numbers in texts, doubled fields,
infinities, rare forms of times. So only a value that both surely read alike is *settled*; all others are left to Spark.
Where a piece has such a value, it is parsed in halves, so that few of its neighbours are left to Spark, too.

It costs about 0.7 microseconds for a value of 100 bytes.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_LONGEST = 50_000
"""Longer values are left to Spark, whose parser has limits for depth, numbers and names."""

_DEEP = 1_000
"""The length from which a value may be too deep, or have too long a number, for Spark's parser."""

_LONG_NUMBER = re.compile(rb"[0-9]{500}")

_ODD = ((b"N", b"NaN"), (b"I", b"Inf"), (b"I", b"INF"), (b"\r", b"\r"))
"""Words that are a number to one parser and not to the other, or end a line; each with a byte that is found at once."""

_MOST_DIGITS = 30
"""The precision up to which a decimal can be compared with the limit of its type."""

_TRIES = 64
"""The number of failed conversions of a piece before the rest of it is left to Spark."""

_OFFSET = r":[0-5][0-9]:[0-5][0-9](\.[0-9]+)?[+-](0[0-9]|1[0-7]):[0-5][0-9]$"
"""The end of a time with an offset that is one to Spark as well, which takes none beyond 18 hours."""

_SHORTEST_TIME = len("2026-01-15T10:00:00")
_DATE = len("2026-01-15")


def is_settled_type(dtype: pa.DataType) -> bool:
    """Return whether a column of a type can be settled; a value with any other column is left to Spark.

    >>> is_settled_type(pa.int64()), is_settled_type(pa.float32())
    (True, False)
    """
    types = pa.types
    return bool(
        types.is_boolean(dtype)
        or types.is_signed_integer(dtype)
        or types.is_float64(dtype)
        or types.is_string(dtype)
        or types.is_date32(dtype)
        or dtype == pa.timestamp("us", "UTC")
        or (types.is_decimal128(dtype) and dtype.precision <= _MOST_DIGITS)
    )


def parsed_json(values: pa.BinaryArray, schema: pa.Schema) -> tuple[pa.Table, NDArray[np.bool_]]:
    """Return JSON objects as rows, and which of them are settled; other rows are null.

    >>> values = pa.array([b'{"id": 1}', b'{"id": "1"}'])
    >>> rows, settled = parsed_json(values, pa.schema([("id", pa.int64())]))
    >>> rows.to_pylist(), settled.tolist()
    ([{'id': 1}, {'id': None}], [True, False])
    """
    plain = pa.schema([pa.field(field.name, _parsed_type(field.type)) for field in schema])
    settled = _likely(values)
    places = np.flatnonzero(settled)
    chosen = values if len(places) == len(values) else values.take(pa.array(places))
    parts, done = _in_halves(chosen, lambda part: _parsed(part, plain), lambda count: _nulls(plain, count))
    rows = pa.concat_tables([plain.empty_table(), *parts])
    columns = []
    for field, column in zip(schema, rows.columns, strict=True):
        converted, fits = _converted(column.combine_chunks(), field.type)
        done &= fits
        columns.append(converted)
    settled[places] = done
    table = pa.Table.from_arrays(columns, schema=schema)
    if not settled.all():
        kept = np.full(len(values), -1)
        kept[places] = np.arange(len(places))
        table = table.take(pa.array(kept, mask=~settled))
    return table, settled


def narrowed(numbers: pa.Array, dtype: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return whole numbers in a type that may be shorter, and which of them it holds; a null is held, others are null.

    >>> [each.tolist() for each in narrowed(pa.array([127, 128, None]), pa.int8())]
    [[127, None, None], [True, False, True]]
    """
    limits = np.iinfo(dtype.to_pandas_dtype())
    fits = _all_but(pc.or_(pc.less(numbers, limits.min), pc.greater(numbers, limits.max)))
    return pc.if_else(pa.array(fits), numbers, None).cast(dtype), fits


def _nulls(schema: pa.Schema, count: int) -> pa.Table:
    return pa.Table.from_arrays([pa.nulls(count, dtype) for dtype in schema.types], schema=schema)


def _parsed_type(dtype: pa.DataType) -> pa.DataType:
    """Return the type as which a column is parsed, before it is converted."""
    types = pa.types
    if types.is_integer(dtype):
        return pa.int64()
    return pa.string() if types.is_timestamp(dtype) or types.is_date(dtype) else dtype


def _likely(values: pa.BinaryArray) -> NDArray[np.bool_]:
    """Return which values look like one object, of a size that no limit of Spark's parser excludes."""
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy()
    likely: NDArray[np.bool_] = _is_true(pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))) & (
        lengths < _LONGEST
    )
    for at in np.flatnonzero(likely & (lengths >= _DEEP)).tolist():
        value = values[at].as_py()
        likely[at] = value.count(b"{") + value.count(b"[") < _DEEP // 2 and not _LONG_NUMBER.search(value)
    return likely


def _parsed(values: pa.BinaryArray, schema: pa.Schema) -> pa.Table | None:
    """Return values as rows; None if Arrow does not take all of them, or they have what only Spark may judge.

    An object can't continue over the end of its line: it would need a comma there, or be in a text. So as each value
    begins one, and there are as many rows as values, each value is one row.
    """
    together = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    joined = pc.binary_join(together, b"\n")[0].as_py()
    if joined.count(b"\n") >= len(values) or any(sign in joined and word in joined for sign, word in _ODD):
        return None
    try:
        joined.decode()
        rows = pj.read_json(
            pa.BufferReader(joined),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    return rows if rows.num_rows == len(values) else None


def _in_halves(
    values: Any, convert: Callable[[Any], Any | None], nothing: Callable[[int], Any]
) -> tuple[list[Any], NDArray[np.bool_]]:
    """Convert values together where that can be done, otherwise in halves.

    Return the parts, and a mask of the converted values. ``convert`` returns None where some of the values can't be
    converted; ``nothing`` returns as many nulls.
    """
    parts, done = [], np.zeros(len(values), np.bool_)
    waiting, tries = [(0, len(values))] if len(values) else [], _TRIES
    while waiting:
        begin, end = waiting.pop()
        converted = convert(values[begin:end]) if tries else None
        if converted is not None:
            done[begin:end] = True
            parts.append(converted)
            continue
        tries = max(0, tries - 1)
        if not tries or end - begin == 1:
            parts.append(nothing(end - begin))
            continue
        middle = (begin + end) // 2
        waiting += [(middle, end), (begin, middle)]
    return parts, done


def _converted(column: pa.Array, dtype: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return a parsed column in its type, and which of its values Spark converts alike."""
    if column.type == dtype:
        if pa.types.is_floating(dtype):
            # Spark reads -0 as a whole number, which has no sign, and -0.0 not.
            values = column.fill_null(1).to_numpy()
            return column, np.isfinite(values) & ((values != 0) | ~np.signbit(values))
        if pa.types.is_decimal(dtype):
            # Arrow's parser takes more digits than the type has.
            most = pa.scalar(Decimal(10) ** (dtype.precision - dtype.scale))
            return column, _all_but(pc.greater_equal(pc.abs(column), most))
        return column, np.ones(len(column), np.bool_)
    if pa.types.is_integer(dtype):
        return narrowed(column, dtype)
    if pa.types.is_date(dtype):
        fits = _all_but(pc.not_equal(pc.binary_length(column), _DATE))
        return _cast(column, fits, dtype)
    return _times(column, dtype)


def _times(column: pa.Array, dtype: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return texts as times. One without a zone is in UTC, as ``record_columns`` has Spark read it."""
    is_long = _all_but(pc.less(pc.binary_length(column), _SHORTEST_TIME))
    is_utc = _is_true(pc.ends_with(column, "Z"))
    times, fits = _cast(column, is_long & is_utc, dtype)
    fits |= _is_true(pc.is_null(column))
    others = is_long & ~fits & ~is_utc
    if not others.any():
        return times, fits
    has_offset = _is_true(pc.match_substring_regex(column, _OFFSET))
    offset, fits_offset = _cast(column, others & has_offset, dtype)
    local, fits_local = _cast(column, others & ~has_offset, pa.timestamp("us"))
    times = pc.coalesce(times, offset, pc.assume_timezone(local, "UTC"))
    return times, fits | fits_offset | fits_local


def _cast(texts: pa.Array, wanted: NDArray[np.bool_], dtype: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return the wanted texts cast to a type, and which of them could be; the others are null."""
    chosen = texts if wanted.all() else pc.if_else(pa.array(wanted), texts, None)
    parts, done = _in_halves(chosen, lambda part: _cast_all(part, dtype), lambda count: pa.nulls(count, dtype))
    return pa.concat_arrays(parts) if parts else pa.nulls(0, dtype), done & wanted


def _cast_all(texts: pa.Array, dtype: pa.DataType) -> pa.Array | None:
    try:
        return texts.cast(dtype)
    except pa.ArrowException:
        return None


def _is_true(booleans: pa.Array) -> NDArray[np.bool_]:
    """Return where a column of booleans is true; a null is not."""
    values: NDArray[np.bool_] = booleans.fill_null(False).to_numpy(zero_copy_only=False)
    return values


def _all_but(booleans: pa.Array) -> NDArray[np.bool_]:
    """Return where a column of booleans is not true."""
    return ~_is_true(booleans)
