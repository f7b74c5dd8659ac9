"""Values of Spark's types as JSON and back, without loss, for rows in a file that people read and compare.

Integers, booleans and texts are JSON's own, and so are floats, except ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
A decimal is a text with all its digits, a binary value its hexadecimal digits, and a time a text to the microsecond
(``2026-01-15T09:00:00.000001Z``; without the ``Z`` if it has no zone). An interval is a whole number of microseconds. A
struct is an object, an array a list, and a map a list of pairs, since its keys may have any type.
"""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from cojoin.engine.values.rows import dump_json, hashable
from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Convert: TypeAlias = "Callable[[Any], Any]"

_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAMES = {str(value): name for name, value in _FLOATS.items()}
_MICROSECOND = timedelta(microseconds=1)


def row_to_json(row: Sequence[Any], schema: pa.Schema, *, sort_maps: bool = False) -> dict[str, Any]:
    """Return a decoded row as a JSON object by column name; with sorted maps, equal ones become equal JSON.

    >>> from cojoin.engine.values.types import parse_schema
    >>> row_to_json((7, Decimal("2.50"), bytes([1])), parse_schema("id long, amount decimal(5,2), raw binary"))
    {'id': 7, 'amount': '2.50', 'raw': '01'}
    """
    writers = _writers(tuple(schema.types), sort_maps)
    return {name: write(value) for name, value, write in zip(schema.names, row, writers, strict=True)}


def row_from_json(values: Mapping[str, Any], schema: pa.Schema, label: str) -> dict[str, Any]:
    """Return a JSON object as a row's values by column name; a column that the object lacks is null."""
    names = schema.names
    if not isinstance(values, dict):
        msg = f"{label}: expected a row as a JSON object, got {values!r}"
        raise SchemaError(msg)
    if unknown := [name for name in values if name not in names]:
        msg = f"{label}: the row has a column {unknown[0]!r}, but the columns are {', '.join(names)}"
        raise SchemaError(msg)
    row = {}
    for name, read in zip(names, _readers(tuple(schema.types)), strict=True):
        try:
            row[name] = read(values.get(name))
        except (TypeError, ValueError, ArithmeticError, AttributeError, KeyError) as error:  # noqa: PERF203
            msg = f"{label}: column {name!r}: {values[name]!r} is not of the type {schema.field(name).type}"
            raise SchemaError(msg) from error
    return row


def value_to_json(value: Any, dtype: pa.DataType) -> Any:
    """Return one decoded value as JSON."""
    return _writers((dtype,), False)[0](value)


@lru_cache(maxsize=256)
def _writers(dtypes: tuple[pa.DataType, ...], sort_maps: bool) -> tuple[Convert, ...]:
    return tuple(_writer(dtype, sort_maps) for dtype in dtypes)


@lru_cache(maxsize=256)
def _readers(dtypes: tuple[pa.DataType, ...]) -> tuple[Convert, ...]:
    return tuple(map(_reader, dtypes))


def _writer(dtype: pa.DataType, sort_maps: bool) -> Convert:
    write = _plain_writer(dtype, sort_maps)
    return lambda value: None if value is None else write(value)


def _reader(dtype: pa.DataType) -> Convert:
    read = _plain_reader(dtype)
    return lambda value: None if value is None else read(value)


def _plain_writer(dtype: pa.DataType, sort_maps: bool) -> Convert:  # noqa: PLR0911 - one a type
    types = pa.types
    if types.is_struct(dtype):
        parts = [(field.name, _writer(field.type, sort_maps)) for field in dtype]
        return lambda row: {name: write(item) for item, (name, write) in zip(row, parts, strict=True)}
    if types.is_map(dtype):
        key, item = _writer(dtype.key_type, sort_maps), _writer(dtype.item_type, sort_maps)
        arrange: Convert = (lambda pairs: sorted(pairs, key=dump_json)) if sort_maps else list
        return lambda pairs: arrange([[key(first), item(second)] for first, second in pairs.items()])
    if types.is_list(dtype) or types.is_large_list(dtype):
        element = _writer(dtype.value_type, sort_maps)
        return lambda items: [element(each) for each in items]
    if types.is_floating(dtype):
        return lambda number: number if math.isfinite(number) else _NAMES[str(number)]
    if types.is_decimal(dtype):
        return str
    if types.is_binary(dtype):
        return bytes.hex
    if types.is_duration(dtype):
        return lambda span: span // _MICROSECOND
    if types.is_timestamp(dtype):
        zone = "Z" if dtype.tz is not None else ""
        return lambda moment: f"{moment.replace(tzinfo=None).isoformat()}{zone}"
    return (lambda day: day.isoformat()) if types.is_date(dtype) or types.is_time(dtype) else lambda value: value


def _plain_reader(dtype: pa.DataType) -> Convert:  # noqa: C901, PLR0911 - one a type
    types = pa.types
    if types.is_struct(dtype):
        return _struct_reader(dtype)
    if types.is_map(dtype):
        key, item = _reader(dtype.key_type), _reader(dtype.item_type)
        # A struct as a key of a map is a tuple, since a dict can't be one.
        return lambda pairs: {_as_key(key(first)): item(second) for first, second in pairs}
    if types.is_list(dtype) or types.is_large_list(dtype):
        element = _reader(dtype.value_type)
        return lambda items: [element(each) for each in _expect(items, list)]
    if types.is_floating(dtype):
        return lambda number: _FLOATS[number] if isinstance(number, str) else float(_expect(number, int, float))
    if types.is_decimal(dtype):
        return lambda text: Decimal(_expect(text, str))
    if types.is_binary(dtype):
        return bytes.fromhex
    if types.is_duration(dtype):
        return lambda micros: timedelta(microseconds=_expect(micros, int))
    if types.is_timestamp(dtype):
        return partial(_moment, zoned=dtype.tz is not None)
    if types.is_date(dtype):
        return date.fromisoformat
    if types.is_time(dtype):
        return time.fromisoformat
    kind = bool if types.is_boolean(dtype) else int if types.is_integer(dtype) else str
    return lambda value: _expect(value, kind)


def _struct_reader(dtype: pa.StructType) -> Convert:
    parts = {field.name: _reader(field.type) for field in dtype}

    def read(values: Any) -> dict[str, Any]:
        if extra := values.keys() - parts:
            raise KeyError(*extra)
        return {name: part(values.get(name)) for name, part in parts.items()}

    return read


def _moment(text: str, *, zoned: bool) -> datetime:
    if text.endswith("Z") is not zoned:
        raise ValueError(text)
    moment = datetime.fromisoformat(text.removesuffix("Z"))
    return moment.replace(tzinfo=timezone.utc) if zoned else moment


def _as_key(value: Any) -> Any:
    return tuple(map(_as_key, value.values())) if isinstance(value, dict) else hashable(value)


def _expect(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(value)
    return value
