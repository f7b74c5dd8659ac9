"""Columns as an Avro schema, and which columns a given schema can be written from.

A schema that is made of columns is a record whose fields may all be null; an int is ``int`` or ``long``, a timestamp
``timestamp-micros``, a ``timestamp_ntz`` ``local-timestamp-micros``, a decimal ``bytes``. ``cojoin.kafka.source`` reads
all of it back as the same types, ``tinyint`` and ``smallint`` as ``int``.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["avro_schema", "can_be_written_as"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_PLAIN: dict[pa.DataType, Any] = {
    pa.null(): "null",
    pa.bool_(): "boolean",
    **dict.fromkeys(_INTEGERS[:3], "int"),
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}


def avro_schema(columns: Iterable[pa.Field], name: str, what: str) -> str:
    """Return the schema of a record with a field for each column.

    Args:
        columns: The columns.
        name: What the record is named after; other characters than letters and digits become ``_``.
        what: The output, for messages.

    Raises:
        SchemaError: A column's name or type has no form in Avro.
    """
    spelled = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return json.dumps(_record(columns, spelled if _NAME.fullmatch(spelled) else f"_{spelled}", what))


def _record(columns: Iterable[pa.Field], name: str, what: str) -> dict[str, Any]:
    fields = []
    for column in columns:
        if not _NAME.fullmatch(column.name):
            msg = (
                f"{what}: column {column.name!r} can't be a field of Avro, whose names are of letters, digits and '_'; "
                f"rename it, or write JSON"
            )
            raise SchemaError(msg)
        kind = _type(column.type, f"{name}_{column.name}", f"{what}: column {column.name!r}")
        fields.append({"name": column.name, "type": ["null", kind] if kind != "null" else kind, "default": None})
    return {"type": "record", "name": name, "fields": fields}


def _type(dtype: pa.DataType, name: str, what: str) -> Any:
    if dtype in _PLAIN:
        return _PLAIN[dtype]
    if pa.types.is_decimal(dtype):
        return {"type": "bytes", "logicalType": "decimal", "precision": dtype.precision, "scale": dtype.scale}
    if pa.types.is_struct(dtype):
        return _record(dtype, name, what)
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        return {"type": "array", "items": ["null", _type(dtype.value_type, name, what)]}
    if pa.types.is_map(dtype) and dtype.key_type in (pa.string(), pa.large_string()):
        return {"type": "map", "values": ["null", _type(dtype.item_type, name, what)]}
    hint = "a map needs texts as keys" if pa.types.is_map(dtype) else "cast it to string"
    msg = f"{what} has the type {type_to_ddl(dtype)}, which Avro does not have; {hint}, or write JSON"
    raise SchemaError(msg)


def can_be_written_as(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether each value of a column is one of a field; null is not looked at.

    Args:
        have: The column's type.
        want: The type that the field has as a column.

    >>> can_be_written_as(pa.int32(), pa.int64()), can_be_written_as(pa.int64(), pa.int32())
    (True, False)
    """
    if pa.types.is_struct(want):
        if not pa.types.is_struct(have):
            return False
        mine = {field.name: field.type for field in have}
        return all(each.name in mine and can_be_written_as(mine[each.name], each.type) for each in want)
    if pa.types.is_list(want):
        return (pa.types.is_list(have) or pa.types.is_large_list(have)) and can_be_written_as(
            have.value_type, want.value_type
        )
    if pa.types.is_map(want):
        return (
            pa.types.is_map(have)
            and have.key_type in (pa.string(), pa.large_string())
            and can_be_written_as(have.item_type, want.item_type)
        )
    if want in _INTEGERS and have in _INTEGERS:
        return _INTEGERS.index(have) <= _INTEGERS.index(want)
    as_is = {pa.float32(): pa.float64(), pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return bool(have.equals(want) or as_is.get(have) == want or pa.types.is_null(have))
