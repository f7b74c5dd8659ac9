"""The encoding of what a user's function yields as Arrow, checked against the declared output.

Output rows are many, so pyarrow converts them column by column. A column with values that pyarrow would change (1.5 to
the integer 1, 5 to a timestamp) first goes through a ``coercer``. The row at fault is searched for only when a column
is refused.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.values.coercion import coercer, misfit
from cojoin.engine.values.entries import encode_entries
from cojoin.engine.values.rows import describe_row
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["encode_column", "encode_rows"]

_REFUSALS = (FunctionError, pa.ArrowException, TypeError, ValueError, OverflowError)

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
"""The classes whose values pyarrow stores unchanged or refuses, by type; any other class is converted first."""


def encode_rows(rows: list[Any], schema: pa.Schema, what: str) -> pa.Table:
    """Return what a function yielded as a table.

    Args:
        rows: Tuples, lists or rows (by position), or dicts (by name, all fields).
        schema: The declared output.
        what: Who yielded them, for the message.

    Raises:
        FunctionError: A row has another width, other names, or a value that does not fit its field.

    >>> schema = pa.schema([("trade_id", pa.int64()), ("tier", pa.string())])
    >>> encode_rows([(7, "gold"), {"trade_id": 8, "tier": None}], schema, "EnrichTrades").to_pylist()
    [{'trade_id': 7, 'tier': 'gold'}, {'trade_id': 8, 'tier': None}]
    """
    width = len(schema)
    tuples = [row if isinstance(row, tuple) and len(row) == width else _as_tuple(row, schema, what) for row in rows]
    columns = list(zip(*tuples, strict=True)) if tuples else [()] * width
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            array = encode_column(values, field.type)
        except _REFUSALS:
            array = None
        if array is None or (not field.nullable and array.null_count):
            raise _misfit(field, values, rows, what)
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema)


def encode_column(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Return Python values as an Arrow column.

    Raises:
        FunctionError: A value does not fit; for some values it is pyarrow's own error or a ``ValueError`` instead.
    """
    if pa.types.is_nested(dtype):
        return encode_entries(list(map(coercer(dtype, ""), values)), dtype)
    if pa.types.is_timestamp(dtype):
        _check_zones(values, aware=dtype.tz is not None)
    if not set(map(type, values)) <= _faithful_classes(dtype):
        values = list(map(coercer(dtype, ""), values))
    return encode_entries(values, dtype)


def _faithful_classes(dtype: pa.DataType) -> frozenset[type]:
    for matches, classes in _FAITHFUL:
        if matches(dtype):
            return classes | {type(None)}
    return frozenset({type(None)})


def _check_zones(values: Sequence[Any], *, aware: bool) -> None:
    for value in values:
        if isinstance(value, datetime) and (value.tzinfo is not None) is not aware:
            raise ValueError(value)


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
    elif row is None:
        detail = "None, which is no row (yield nothing where there is none)"
    elif len(names) == 1 and not hasattr(row, "__iter__"):
        return (row,)
    else:
        detail = f"{type(row).__name__} (a callback yields its rows, or returns a list of them)"
    msg = (
        f"{what}: expected a row of {len(names)} fields ({', '.join(names)}) as a tuple or a dict, "
        f"got {detail}: {describe_row(row)}"
    )
    raise FunctionError(msg)


def _misfit(field: pa.Field, values: Sequence[Any], rows: list[Any], what: str) -> FunctionError:
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
            error = misfit(value, field.type, f"{what}: output field {field.name!r}")
            return FunctionError(f"{error}; in the row {describe_row(row)}")
    return FunctionError(f"{what}: output field {field.name!r} does not fit {type_to_ddl(field.type)}")
