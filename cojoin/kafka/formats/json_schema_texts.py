"""Columns as a JSON schema, and which columns the properties of a given one can be written from.

A schema that is made of columns is an object whose properties may be left out, as a column that is null is. Whole
numbers are ``integer``, float and double ``number``, timestamps ``string`` with the format ``date-time``, dates with
``date``; texts, ``timestamp_ntz`` and binary are ``string``. ``cojoin.kafka.source`` reads back what it has types for,
the others as texts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["fits_json_type", "json_schema_text"]

_DIALECT = "http://json-schema.org/draft-07/schema#"
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_REALS = (pa.float32(), pa.float64())
_TEXTS, _BYTES = (pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())
_LISTS = (pa.types.is_list, pa.types.is_large_list)
_TIMESTAMP, _TIMESTAMP_NTZ = pa.timestamp("us", "UTC"), pa.timestamp("us")
_EXACT_DIGITS = 15
"""So many digits of a decimal does each double keep, as which numbers are read and written."""

_FORMS: dict[pa.DataType, tuple[str, str | None]] = {
    pa.bool_(): ("boolean", None),
    **dict.fromkeys(_INTEGERS, ("integer", None)),
    **dict.fromkeys(_REALS, ("number", None)),
    **dict.fromkeys((*_TEXTS, *_BYTES, _TIMESTAMP_NTZ), ("string", None)),
    _TIMESTAMP: ("string", "date-time"),
    pa.date32(): ("string", "date"),
}
"""The type and the format of a column."""

_WRITTEN_AS = {
    pa.float64(): (*_REALS, *_INTEGERS),
    pa.int64(): _INTEGERS,
    pa.string(): (*_TEXTS, *_BYTES, _TIMESTAMP, _TIMESTAMP_NTZ, pa.date32()),
}
"""Which columns can be written as a property that is read as this type."""


def json_schema_text(columns: Iterable[pa.Field], name: str, what: str) -> str:
    """Return the schema of an object with a property for each column.

    Args:
        columns: The columns.
        name: The title.
        what: The output, for messages.

    Raises:
        SchemaError: A column's type has no form in JSON that is read back as it was.
    """
    return json.dumps({"$schema": _DIALECT, "title": name, **_object(columns, what)})


def _object(columns: Iterable[pa.Field], what: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {column.name: _type(column.type, f"{what}: column {column.name!r}") for column in columns},
    }


def _type(dtype: pa.DataType, what: str) -> Any:
    if dtype in _FORMS:
        kind, form = _FORMS[dtype]
        return {"type": kind} if form is None else {"type": kind, "format": form}
    if _is_short_decimal(dtype):
        return {"type": "number"}
    if pa.types.is_struct(dtype):
        return _object(dtype, what)
    if any(is_list(dtype) for is_list in _LISTS):
        return {"type": "array", "items": _or_null(_type(dtype.value_type, f"{what}, an element"))}
    if pa.types.is_map(dtype):
        return {"type": "object", "additionalProperties": _or_null(_type(dtype.item_type, f"{what}, a value"))}
    wide = pa.types.is_decimal(dtype)
    why = f"a JSON number keeps {_EXACT_DIGITS} digits of" if wide else "JSON schemas do not have"
    msg = f"{what} has the type {type_to_ddl(dtype)}, which {why}; cast it to string, or write plain JSON"
    raise SchemaError(msg)


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, schema]}


def _is_short_decimal(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(dtype)) and dtype.precision <= _EXACT_DIGITS


def fits_json_type(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether each value of a column, so far as types say, is one of a property; null is not looked at.

    Args:
        have: The column's type.
        want: The type that the property has as a column.

    >>> fits_json_type(pa.int32(), pa.float64()), fits_json_type(pa.string(), pa.int64())
    (True, False)
    """
    if pa.types.is_struct(want):
        if not pa.types.is_struct(have):
            return False
        mine = {field.name: field.type for field in want}
        return all(each.name not in mine or fits_json_type(each.type, mine[each.name]) for each in have)
    if pa.types.is_list(want):
        return any(is_list(have) for is_list in _LISTS) and fits_json_type(have.value_type, want.value_type)
    if pa.types.is_map(want):
        return pa.types.is_map(have) and fits_json_type(have.item_type, want.item_type)
    return have in _WRITTEN_AS.get(want, (want,)) or (want == pa.float64() and _is_short_decimal(have))
