"""Converts a user's Python values to Arrow, and checks them against the declared type.

A state stores the converted value. It has the type's exact class, is a copy, and equals the value that is decoded after
a restart: 5 stored as ``double`` reads as 5.0, 0.1 stored as ``float`` reads as the nearest float, and changing a list
after ``update`` does not change the state. A ``coercer`` is compiled once for each type.

Output rows are many, so pyarrow converts them column by column. A column with values that pyarrow would change (1.5 to
the integer 1, 5 to a timestamp) first goes through a ``coercer``. Only if a column is refused, its rows are searched
for the one at fault. Nested values are encoded column by column at every level: pyarrow converts only their leaves.
"""

from __future__ import annotations

import struct
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import chain
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from cojoin.engine.values.rows import describe_row, encode_texts, hashable, needs_freezing, row_class
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import FunctionError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def encode_entries(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Return a ``coercer``'s results (tuples for structs, lists for arrays, dicts for maps) as an Arrow column.

    Raises:
        pa.ArrowException: Arrow can't hold a value.
        UnicodeEncodeError: A string has half of a surrogate pair that does not stand for a byte.

    >>> encode_entries([("gold", 5), None], pa.struct([("tier", pa.string()), ("visits", pa.int64())])).to_pylist()
    [{'tier': 'gold', 'visits': 5}, None]
    """
    types = pa.types
    if not values or not types.is_nested(dtype):
        return encode_texts(values) if types.is_string(dtype) else pa.array(values, dtype)
    if types.is_struct(dtype):
        return _encode_structs(values, dtype)
    parts = [() if value is None else value for value in values]
    offsets = pa.array(
        np.concatenate([[0], np.cumsum([len(part) for part in parts])]),
        pa.int32(),
        mask=np.array([*(value is None for value in values), False]),
    )
    if types.is_map(dtype):
        keys = encode_entries(list(chain.from_iterable(parts)), dtype.key_type)
        items = encode_entries([item for part in parts if part for item in part.values()], dtype.item_type)
        array = pa.MapArray.from_arrays(offsets, keys, items)
    else:
        array = pa.ListArray.from_arrays(offsets, encode_entries(list(chain.from_iterable(parts)), dtype.value_type))
    return array if array.type == dtype else array.cast(dtype)


def _encode_structs(values: Sequence[Any], dtype: pa.StructType) -> pa.Array:
    mask = None
    if not dtype.num_fields:
        return pa.array([None if value is None else {} for value in values], dtype)
    if None in values:
        mask = pa.array([value is None for value in values])
        nothing = (None,) * dtype.num_fields
        values = [nothing if value is None else value for value in values]
    columns = zip(*values, strict=True)
    fields = list(dtype)
    arrays = [encode_entries(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


Coercer: TypeAlias = "Callable[[Any], Any]"
"""A function that returns the stored form of a user's value; raises ``FunctionError`` where it does not fit."""

_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


def coercer(dtype: pa.DataType, label: str) -> Coercer:
    """Return a function that checks and converts values of one type; None stays None, since states may be null.

    The label names in messages the state or field of this type, such as ``"EnrichTrades: state 'customer'"``.

    >>> coercer(pa.float64(), "state 'total'")(5)
    5.0
    """
    convert = converter(dtype, label)
    return lambda value: None if value is None else convert(value)


def has_mutable_parts(dtype: pa.DataType) -> bool:
    """Return whether values of this type contain a list or a dict, which a user could change."""
    if pa.types.is_struct(dtype):
        return any(has_mutable_parts(field.type) for field in dtype)
    return bool(pa.types.is_list(dtype) or pa.types.is_map(dtype))


def converter(dtype: pa.DataType, label: str) -> Coercer:  # noqa: PLR0911 - one a type
    """Return a function like that of ``coercer``, which refuses None."""
    types = pa.types
    if types.is_struct(dtype):
        return _struct_converter(dtype, label)
    if types.is_list(dtype):
        element = coercer(dtype.value_type, f"{label}[]" if label else "an element")
        return lambda value: [element(item) for item in _expect(value, (list, tuple), dtype, label)]
    if types.is_map(dtype):
        return _map_converter(dtype, label)
    if dtype in _INTEGERS:
        return _integer_converter(dtype, label)
    if types.is_floating(dtype):
        return _float_converter(dtype, label)
    if types.is_timestamp(dtype):
        return _timestamp_converter(dtype, label)
    if types.is_decimal(dtype):
        return _decimal_converter(dtype, label)
    return _plain_converter(dtype, label)


def _plain_converter(dtype: pa.DataType, label: str) -> Coercer:
    """Return the converter of a type that only needs values of a class; it converts subclasses that Arrow refuses."""
    types = pa.types
    if types.is_string(dtype):
        return lambda value: value if type(value) is str else str.__str__(_expect(value, str, dtype, label))
    if types.is_binary(dtype):
        return lambda value: bytes(_expect(value, (bytes, bytearray, memoryview), dtype, label))
    if types.is_boolean(dtype):
        return lambda value: bool(_expect(value, (bool, np.bool_), dtype, label))
    if types.is_date(dtype):
        return lambda value: date.fromordinal(_expect(value, date, dtype, label, refused=datetime).toordinal())
    if types.is_duration(dtype):
        return _duration_converter(dtype, label)
    # A time is stored unchanged; the remaining types, such as void, have no values.
    return lambda value: _expect(value, time if types.is_time(dtype) else (), dtype, label)


def _map_converter(dtype: pa.MapType, label: str) -> Coercer:
    key, item = converter(dtype.key_type, f"{label} key"), coercer(dtype.item_type, f"{label} value")
    freeze: Coercer = hashable if needs_freezing(dtype.key_type) else lambda value: value

    def convert(value: Any) -> dict[Any, Any]:
        pairs = _expect(value, dict, dtype, label).items()
        if None in value:
            raise misfit(value, dtype, label)
        converted = {freeze(key(k)): item(v) for k, v in pairs}
        if len(converted) < len(value):
            # Such as two NaN, or two numbers with the same nearest float.
            msg = f"{misfit(value, dtype, label)}; several keys become the same {type_to_ddl(dtype.key_type)}: keep one"
            raise FunctionError(msg)
        return converted

    return convert


def _float_converter(dtype: pa.DataType, label: str) -> Coercer:
    single = struct.Struct("<f") if pa.types.is_float32(dtype) else None

    def convert(value: Any) -> float:
        try:
            number = value if type(value) is float else float(_expect(value, Real, dtype, label, refused=bool))
            return number if single is None else single.unpack(single.pack(number))[0]
        except OverflowError:
            raise misfit(value, dtype, label) from None

    return convert


def _duration_converter(dtype: pa.DataType, label: str) -> Coercer:
    def convert(value: Any) -> timedelta:
        exact = timedelta() + _expect(value, timedelta, dtype, label)
        micros = exact // timedelta(microseconds=1)
        if not -(1 << 63) <= micros < 1 << 63:
            raise misfit(value, dtype, label)
        return timedelta(microseconds=micros)

    return convert


def _integer_converter(dtype: pa.DataType, label: str) -> Coercer:
    limit = 1 << (_INTEGERS[dtype] - 1)

    def convert(value: Any) -> int:
        if type(value) is not int:
            index = getattr(value, "__index__", None)
            if index is None or isinstance(value, bool):
                raise misfit(value, dtype, label)
            value = index()
        if not -limit <= value < limit:
            raise misfit(value, dtype, label)
        return value  # type: ignore[no-any-return]

    return convert


def _timestamp_converter(dtype: pa.DataType, label: str) -> Coercer:
    aware = dtype.tz is not None

    def convert(value: Any) -> datetime:
        if not isinstance(value, datetime) or (value.tzinfo is not None) is not aware:
            raise misfit(value, dtype, label)
        try:
            moment = value.astimezone(timezone.utc) if aware else value
            exact = type(moment) is datetime
            return moment if exact else datetime.combine(moment.date(), moment.time(), moment.tzinfo)
        except (OverflowError, ValueError):
            raise misfit(value, dtype, label) from None

    return convert


def _decimal_converter(dtype: pa.DataType, label: str) -> Coercer:
    def convert(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
            raise misfit(value, dtype, label)
        try:
            return pa.scalar(Decimal(value), dtype).as_py()  # type: ignore[no-any-return]
        except pa.ArrowException:
            raise misfit(value, dtype, label) from None

    return convert


def _struct_converter(dtype: pa.StructType, label: str) -> Coercer:
    names = tuple(field.name for field in dtype)
    make = row_class(names)
    parts = [
        (coercer if field.nullable else converter)(
            field.type, f"{label}, field {field.name!r}" if label else field.name
        )
        for field in dtype
    ]
    known = frozenset(names)
    fits_as_it_is = _exact_struct_check(dtype)

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() != known:
                raise misfit(value, dtype, label)
            value = [value[name] for name in names]
        elif not isinstance(value, (tuple, list)) or len(value) != len(names):
            raise misfit(value, dtype, label)
        if fits_as_it_is(value):
            return make(value)
        return make([part(item) for part, item in zip(parts, value, strict=True)])

    return convert


def _exact_struct_check(dtype: pa.StructType) -> Callable[[Any], bool]:
    """Return a quick check whether a struct's values need no conversion; if it returns False, they are converted.

    The values of most structs have exactly the expected classes; one lookup of the tuple of these classes is enough.
    """
    exact = [_exact_class(field.type) for field in dtype]
    limits = [
        (position, 1 << (_INTEGERS[field.type] - 1)) for position, field in enumerate(dtype) if field.type in _INTEGERS
    ]
    zoned = [position for position, field in enumerate(dtype) if pa.types.is_timestamp(field.type) and field.type.tz]
    allowed = [
        frozenset(() if class_ is None else {class_, type(None)} if field.nullable else {class_})
        for class_, field in zip(exact, dtype, strict=True)
    ]
    seen: set[tuple[type, ...]] = set()

    def check(value: Any) -> bool:
        classes = tuple(map(type, value))
        if classes not in seen:
            if not all(class_ in classes_of_field for class_, classes_of_field in zip(classes, allowed, strict=True)):
                return False
            seen.add(classes)
        for position, limit in limits:
            number = value[position]
            if number is not None and not -limit <= number < limit:
                return False
        for position in zoned:
            moment = value[position]
            if moment is not None and moment.tzinfo is not timezone.utc:
                return False
        return True

    return check


def _exact_class(dtype: pa.DataType) -> type | None:
    """Return the class whose values are stored unchanged; None where every value is converted."""
    types = pa.types
    if dtype in _INTEGERS:
        return int
    if types.is_timestamp(dtype):
        return datetime if dtype.tz else None
    for matches, cls in (
        (types.is_float64, float),
        (types.is_string, str),
        (types.is_binary, bytes),
        (types.is_boolean, bool),
    ):
        if matches(dtype):
            return cls
    return None


def _expect(value: Any, expected: Any, dtype: pa.DataType, label: str, refused: Any = ()) -> Any:
    if not isinstance(value, expected) or isinstance(value, refused):
        raise misfit(value, dtype, label)
    return value


def misfit(value: Any, dtype: pa.DataType, label: str) -> FunctionError:
    """Return the error that a value does not have the expected type."""
    hint = ""
    if pa.types.is_timestamp(dtype) and isinstance(value, datetime):
        hint = "; give the datetime a time zone" if dtype.tz else "; a timestamp_ntz has no time zone"
    return FunctionError(
        f"{label}: expected {type_to_ddl(dtype)}, got {describe_row(value)} ({type(value).__name__}){hint}"
    )


_REFUSALS = (FunctionError, pa.ArrowException, TypeError, ValueError, OverflowError)
"""The errors of ``encode_column`` about a value that does not fit."""

_FAITHFUL: tuple[tuple[Callable[[pa.DataType], bool], frozenset[type]], ...] = (
    (pa.types.is_integer, frozenset({int})),
    (pa.types.is_floating, frozenset({float, int})),
    (pa.types.is_string, frozenset({str})),
    (pa.types.is_timestamp, frozenset({datetime})),
    (pa.types.is_boolean, frozenset({bool})),
    (pa.types.is_decimal, frozenset({Decimal, int})),
    (pa.types.is_binary, frozenset({bytes})),
    (pa.types.is_date, frozenset({date})),
    (pa.types.is_duration, frozenset({timedelta})),
    (pa.types.is_time, frozenset({time})),
)
"""The classes whose values pyarrow stores unchanged or refuses, by type; other values are converted first."""


def encode_rows(rows: list[Any], schema: pa.Schema, label: str) -> pa.Table:
    """Return a function's rows as a table: tuples, lists or rows by position, dicts by name with all fields.

    >>> schema = pa.schema([("trade_id", pa.int64()), ("tier", pa.string())])
    >>> encode_rows([(7, "gold"), {"trade_id": 8, "tier": None}], schema, "EnrichTrades").to_pylist()
    [{'trade_id': 7, 'tier': 'gold'}, {'trade_id': 8, 'tier': None}]
    """
    width = len(schema)
    tuples = [row if isinstance(row, tuple) and len(row) == width else _as_tuple(row, schema, label) for row in rows]
    columns = list(zip(*tuples, strict=True)) if tuples else [()] * width
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            array = encode_column(values, field.type)
        except _REFUSALS:
            array = None
        if array is None or (not field.nullable and array.null_count):
            raise _misfit(field, values, rows, label)
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema)


def encode_input(rows: list[Any], schema: pa.Schema, label: str) -> pa.Table:
    """Return rows of an input as ``encode_rows`` does, but raise ``SchemaError`` where one does not fit."""
    try:
        return encode_rows(rows, schema, label)
    except FunctionError as error:
        raise SchemaError(str(error).replace(": output field ", ": column ")) from None


def encode_column(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Return Python values as an Arrow column.

    Raises:
        FunctionError: A value does not fit; for some values it is another error of ``_REFUSALS``.
    """
    if pa.types.is_nested(dtype):
        return encode_entries(list(map(coercer(dtype, ""), values)), dtype)
    is_faithful = set(map(type, values)) <= _faithful_classes(dtype)
    if pa.types.is_timestamp(dtype):
        zone = timezone.utc if dtype.tz else None
        if is_faithful and dtype.unit == "us" and all(value is None or value.tzinfo is zone for value in values):
            return _encode_moments(values, dtype)
        _check_zones(values, aware=dtype.tz is not None)
    if not is_faithful:
        values = list(map(coercer(dtype, ""), values))
    return encode_entries(values, dtype)


def _faithful_classes(dtype: pa.DataType) -> frozenset[type]:
    for matches, classes in _FAITHFUL:
        if matches(dtype):
            return classes | {type(None)}
    return frozenset({type(None)})


def _encode_moments(values: Sequence[datetime | None], dtype: pa.TimestampType) -> pa.Array:
    """Encode datetimes that are in UTC or have no zone, in a fifth of the time that pyarrow takes."""
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc if dtype.tz else None)
    since = [None if value is None else value - epoch for value in values]
    return pa.array(since, pa.duration("us")).view(pa.int64()).view(dtype)


def _check_zones(values: Sequence[Any], *, aware: bool) -> None:
    for value in values:
        if isinstance(value, datetime) and (value.tzinfo is not None) is not aware:
            raise ValueError(value)


def _as_tuple(row: Any, schema: pa.Schema, label: str) -> tuple[Any, ...]:
    names = schema.names
    if isinstance(row, dict):
        if row.keys() == set(names):
            return tuple(row[name] for name in names)
        missing, extra = [n for n in names if n not in row], [n for n in row if n not in names]
        detail = f"missing {missing}, unknown {extra}"
    elif isinstance(row, (tuple, list)):
        if len(row) == len(names):
            return tuple(row)
        detail = f"{len(row)} values"
    elif row is None:
        detail = "None, which is not a row (to emit no row, yield nothing)"
    elif len(names) == 1 and not hasattr(row, "__iter__"):
        return (row,)
    else:
        detail = f"{type(row).__name__} (a callback yields its rows, or returns a list of them)"
    msg = (
        f"{label}: expected a row of {len(names)} fields ({', '.join(names)}) as a tuple or a dict, "
        f"got {detail}: {describe_row(row)}"
    )
    raise FunctionError(msg)


def _misfit(field: pa.Field, values: Sequence[Any], rows: list[Any], label: str) -> FunctionError:
    """Return the error for the first row whose value does not fit its field."""
    for value, row in zip(values, rows, strict=True):
        if value is None:
            fits = field.nullable
        else:
            try:
                encode_column([value], field.type)
                fits = True
            except _REFUSALS:
                fits = False
        if not fits:
            error = misfit(value, field.type, f"{label}: output field {field.name!r}")
            return FunctionError(f"{error}; in the row {describe_row(row)}")
    return FunctionError(f"{label}: output field {field.name!r} does not fit {type_to_ddl(field.type)}")
