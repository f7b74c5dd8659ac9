"""A user's Python values back into Arrow, checked against their declared types.

Two ways for two needs. Outputs are many: they go column by column through pyarrow, and only when that refuses is the guilty row
looked for. State values are few and are read again: ``coercer`` checks and copies each at once, so that a value reads the same
before and after a restart (5 stored as ``double`` reads 5.0, a list changed after ``update`` changes nothing).
"""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from cojoin.errors import FunctionError
from cojoin.rows import describe_row, row_class
from cojoin.types import type_to_ddl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Coercer", "coercer", "encode_column", "encode_rows", "has_mutable_parts"]

Coercer: TypeAlias = "Callable[[Any], Any]"
"""Takes a user's value, gives the value that is stored; raises ``FunctionError`` where it does not fit."""

_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


def coercer(dtype: pa.DataType, what: str) -> Coercer:
    """Compile the check of one type.

    Args:
        dtype: The declared type.
        what: What has it, for the message, such as ``"EnrichTrades: state 'customer'"``.

    Returns:
        A function from a value to the stored value; None passes (states and fields may be null).
    """
    convert = _converter(dtype, what)
    return lambda value: None if value is None else convert(value)


def has_mutable_parts(dtype: pa.DataType) -> bool:
    """Tell whether values of this type hold a list or a dict, which a reader might change."""
    if pa.types.is_struct(dtype):
        return any(has_mutable_parts(field.type) for field in dtype)
    return pa.types.is_list(dtype) or pa.types.is_map(dtype)


def encode_rows(rows: list[Any], schema: pa.Schema, what: str) -> pa.Table:
    """Turn what a function yielded into a table.

    Args:
        rows: Tuples, lists or rows (by position), or dicts (by name, all fields).
        schema: The declared output.
        what: Who yielded them, for the message.

    Raises:
        FunctionError: A row of another width, with other names, or with a value that does not fit its field.
    """
    width = len(schema)
    tuples = [row if isinstance(row, tuple) and len(row) == width else _as_tuple(row, schema, what) for row in rows]
    columns = list(zip(*tuples, strict=True)) if tuples else [()] * width
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            array = encode_column(values, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            array = None
        if array is None or (not field.nullable and array.null_count):
            raise _misfit(field, values, rows, what)
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema)


def encode_column(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Turn Python values into an Arrow column; raises pyarrow's or Python's own error where one does not fit."""
    if pa.types.is_timestamp(dtype):
        _check_zones(values, aware=dtype.tz is not None)
    plain = _to_arrow(dtype)
    return pa.array(values if plain is None else [None if value is None else plain(value) for value in values], type=dtype)


def _check_zones(values: Sequence[Any], *, aware: bool) -> None:
    for value in values:
        if isinstance(value, datetime) and (value.tzinfo is not None) is not aware:
            raise ValueError(value)


def _to_arrow(dtype: pa.DataType) -> Coercer | None:
    """What pyarrow needs done to nested values first; None where it takes them as they are."""
    if pa.types.is_struct(dtype) or pa.types.is_map(dtype) or pa.types.is_list(dtype):
        convert = _converter(dtype, "")
        lower = _lowering(dtype)
        return lambda value: lower(convert(value))
    return None


def _lowering(dtype: pa.DataType) -> Coercer:
    if pa.types.is_struct(dtype):
        parts = [(field.name, _lowering(field.type)) for field in dtype]
        return lambda row: (
            None if row is None else {name: lower(value) for (name, lower), value in zip(parts, row, strict=True)}
        )
    if pa.types.is_map(dtype):
        key, item = _lowering(dtype.key_type), _lowering(dtype.item_type)
        return lambda value: None if value is None else [(key(k), item(v)) for k, v in value.items()]
    if pa.types.is_list(dtype):
        element = _lowering(dtype.value_type)
        return lambda value: None if value is None else [element(item) for item in value]
    return lambda value: value


def _converter(dtype: pa.DataType, what: str) -> Coercer:
    types = pa.types
    if types.is_struct(dtype):
        return _struct_converter(dtype, what)
    if types.is_list(dtype):
        element = coercer(dtype.value_type, f"{what}[]" if what else "an element")
        return lambda value: [element(item) for item in _expect(value, (list, tuple), dtype, what)]
    if types.is_map(dtype):
        key, item = coercer(dtype.key_type, f"{what} key"), coercer(dtype.item_type, f"{what} value")
        return lambda value: {key(k): item(v) for k, v in _expect(value, dict, dtype, what).items()}
    if dtype in _INTEGERS:
        return _integer_converter(dtype, what)
    if types.is_floating(dtype):
        return lambda value: float(_expect(value, (int, float), dtype, what, refused=bool))
    if types.is_timestamp(dtype):
        return _timestamp_converter(dtype, what)
    if types.is_decimal(dtype):
        return _decimal_converter(dtype, what)
    expected: dict[bool, Any] = {
        types.is_string(dtype): str,
        types.is_binary(dtype): bytes,
        types.is_boolean(dtype): bool,
        types.is_date(dtype): date,
        types.is_duration(dtype): timedelta,
    }
    return lambda value: _expect(value, expected.get(True, object), dtype, what)


def _integer_converter(dtype: pa.DataType, what: str) -> Coercer:
    limit = 1 << (_INTEGERS[dtype] - 1)

    def convert(value: Any) -> int:
        if type(value) is not int:
            index = getattr(value, "__index__", None)
            if index is None or isinstance(value, bool):
                raise _unfit(value, dtype, what)
            value = index()
        if not -limit <= value < limit:
            raise _unfit(value, dtype, what)
        return value  # type: ignore[no-any-return]

    return convert


def _timestamp_converter(dtype: pa.DataType, what: str) -> Coercer:
    aware = dtype.tz is not None

    def convert(value: Any) -> datetime:
        if not isinstance(value, datetime) or (value.tzinfo is not None) is not aware:
            raise _unfit(value, dtype, what)
        return value.astimezone(timezone.utc) if aware else value

    return convert


def _decimal_converter(dtype: pa.DataType, what: str) -> Coercer:
    def convert(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
            raise _unfit(value, dtype, what)
        try:
            return pa.scalar(Decimal(value), dtype).as_py()  # type: ignore[no-any-return]
        except pa.ArrowException:
            raise _unfit(value, dtype, what) from None

    return convert


def _struct_converter(dtype: pa.StructType, what: str) -> Coercer:
    names = tuple(field.name for field in dtype)
    make = row_class(names)
    parts = [coercer(field.type, f"{what}, field {field.name!r}" if what else f"field {field.name!r}") for field in dtype]
    known = frozenset(names)

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() != known:
                raise _unfit(value, dtype, what)
            value = [value[name] for name in names]
        elif not isinstance(value, (tuple, list)) or len(value) != len(names):
            raise _unfit(value, dtype, what)
        return make([part(item) for part, item in zip(parts, value, strict=True)])

    return convert


def _expect(value: Any, expected: Any, dtype: pa.DataType, what: str, refused: Any = ()) -> Any:
    if not isinstance(value, expected) or isinstance(value, refused):
        raise _unfit(value, dtype, what)
    return value


def _unfit(value: Any, dtype: pa.DataType, what: str) -> FunctionError:
    hint = ""
    if pa.types.is_timestamp(dtype) and isinstance(value, datetime):
        hint = "; give the datetime a time zone" if dtype.tz else "; a timestamp_ntz has no time zone"
    return FunctionError(
        f"{what}: expected {type_to_ddl(dtype)}, got {describe_row(value)} ({type(value).__name__}){hint}"
    )


def _as_tuple(row: Any, schema: pa.Schema, what: str) -> tuple[Any, ...]:
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
    elif len(names) == 1 and not hasattr(row, "__iter__"):
        return (row,)
    else:
        detail = type(row).__name__
    msg = (
        f"{what}: expected a row of {len(names)} fields ({', '.join(names)}) as a tuple or a dict, "
        f"got {detail}: {describe_row(row)}"
    )
    raise FunctionError(msg)


def _misfit(field: pa.Field, values: Sequence[Any], rows: list[Any], what: str) -> FunctionError:
    """Find the first row whose value does not fit its field, and say so."""
    for value, row in zip(values, rows, strict=True):
        if value is None:
            fits = field.nullable
        else:
            try:
                encode_column([value], field.type)
                fits = True
            except (FunctionError, pa.ArrowException, TypeError, ValueError, OverflowError):
                fits = False
        if not fits:
            error = _unfit(value, field.type, f"{what}: output field {field.name!r}")
            return FunctionError(f"{error}; in the row {describe_row(row)}")
    return FunctionError(f"{what}: output field {field.name!r} does not fit {type_to_ddl(field.type)}")
