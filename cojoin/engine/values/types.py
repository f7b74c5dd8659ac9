"""Spark's DDL without Spark: the text of a type or schema, and the Arrow type that PySpark makes of it.

Spark 4.2 reads every text that is accepted here as the same type, and refuses every text that is refused here as
malformed. This module also refuses an empty schema, fields of one struct whose names differ at most in case,
``decimal(0)``, a void that is never null, and types without a plain Arrow type: variant, geometry, geography, calendar
and year-month intervals, and collations other than ``utf8_binary``.

DDL that is written here is read back as the same type, with two exceptions. DDL can't express an array or map whose
values are never null, so the wider type is written. Arrow's large, fixed-size and dictionary-encoded forms, time units
and zones are written as the one Spark type that PySpark reads them as.

Comments are dropped. Timestamps are UTC and to the microsecond. Names keep their case; type names have none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.values.ddl import PLAIN, SUPPORTED, UNSUPPORTED, read_fields, read_type
from cojoin.engine.values.texts import back_quoted
from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["SUPPORTED", "as_schema", "is_tagged", "parse_schema", "parse_type", "schema_to_ddl", "type_to_ddl"]

_UNQUOTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_WRITTEN = (
    (pa.types.is_large_string, "string"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_binary, "binary"),
    (pa.types.is_fixed_size_binary, "binary"),
    (pa.types.is_time64, "time(6)"),
    (pa.types.is_duration, "interval day to second"),
    *((dtype.equals, name) for name, dtype in PLAIN.items()),
)


def parse_schema(ddl: str, *, what: str = "schema") -> pa.Schema:
    """Return a list of fields, or a ``struct<...>``, as an Arrow schema.

    Args:
        ddl: Fields as in Spark: ``"id long NOT NULL, tags: array<string> COMMENT 'x', `odd name` int"``.
        what: What the text configures, for the message, such as ``"output_type"``.

    Raises:
        SchemaError: The text does not parse, has no field or the same one twice, or a type isn't supported.

    >>> parse_schema("trade_id long NOT NULL, amount decimal(10,2)")
    trade_id: int64 not null
    amount: decimal128(10, 2)
    """
    return pa.schema(read_fields(ddl, what))


def as_schema(declared: Any, what: str) -> pa.Schema:
    """Return the columns that a user declares: one or more, as DDL, an Arrow schema, or a PySpark ``StructType``.

    Raises:
        SchemaError: It is none of these, has no column, or does not parse; every message begins with ``what``.

    >>> as_schema("trade_id long, tier string", "output_type").names
    ['trade_id', 'tier']
    """
    names = getattr(declared, "names", None)
    if names == [] or (isinstance(declared, str) and not declared.strip()):
        msg = f"{what}: expected one or more columns, such as 'trade_id long, tier string', got none"
        raise SchemaError(msg)
    if isinstance(declared, pa.Schema):
        schema_to_ddl(declared, what=what)  # raises an error for a type that Spark lacks
        return declared
    if isinstance(declared, str):
        return parse_schema(declared, what=what)
    if hasattr(declared, "fields") and hasattr(declared, "simpleString"):
        # PySpark's types return their own DDL, so the engine accepts them without importing PySpark.
        fields = (
            f"{back_quoted(each.name)} {each.dataType.simpleString()}{'' if each.nullable else ' NOT NULL'}"
            for each in declared.fields
        )
        return parse_schema(", ".join(fields), what=what)
    msg = f"{what}: expected DDL such as 'trade_id long, tier string' or a StructType, got {declared!r}"
    raise SchemaError(msg)


def parse_type(ddl: str, *, what: str = "type") -> pa.DataType:
    """Return one type as an Arrow type; a list of fields is read as a struct.

    Args:
        ddl: A type such as ``"map<string, bigint>"``, or fields such as ``"tier string, since timestamp"``.
        what: What the text configures, for the message, such as ``"state 'customer'"``.

    Raises:
        SchemaError: The text does not parse, has the same field twice, or a type isn't supported.

    >>> parse_type("map<string, bigint>")
    MapType(map<string, int64>)
    >>> parse_type("tier string, since timestamp")
    StructType(struct<tier: string, since: timestamp[us, tz=UTC]>)
    """
    return read_type(ddl, what)


def schema_to_ddl(schema: pa.Schema, *, what: str = "schema") -> str:
    """Return an Arrow schema as the fields that `parse_schema` reads.

    Raises:
        SchemaError: There is no field or the same one twice, or Spark has no such type.

    >>> schema_to_ddl(pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("odd name", pa.string())]))
    'id bigint NOT NULL, `odd name` string'
    """
    if not len(schema):
        msg = f"{what}: expected at least one field, got none"
        raise SchemaError(msg)
    return ", ".join(_written(schema, " ", what))


def type_to_ddl(dtype: pa.DataType, *, what: str = "type") -> str:
    """Return Spark's name of an Arrow type, which `parse_type` reads.

    Raises:
        SchemaError: A struct has the same field twice, or Spark has no such type.

    >>> type_to_ddl(pa.struct({"tier": pa.string(), "visits": pa.list_(pa.date32())}))
    'struct<tier:string,visits:array<date>>'
    """
    ddl = _written_plain(dtype) or _written_nested(dtype, what)
    if ddl is None:
        msg = f"{what}: expected an Arrow type that Spark has too, got {dtype}; cast it to one of {SUPPORTED}"
        raise SchemaError(msg)
    return ddl


def _written_plain(dtype: pa.DataType) -> str | None:
    if pa.types.is_timestamp(dtype):
        return "timestamp_ntz" if dtype.tz is None else "timestamp"
    if pa.types.is_decimal(dtype) and 0 <= dtype.scale <= dtype.precision <= 38:
        return f"decimal({dtype.precision},{dtype.scale})"
    return next((name for is_kind, name in _WRITTEN if is_kind(dtype)), None)


def _written_nested(dtype: pa.DataType, what: str) -> str | None:
    types = pa.types
    if types.is_list(dtype) or types.is_large_list(dtype) or types.is_fixed_size_list(dtype):
        return f"array<{type_to_ddl(dtype.value_type, what=f'{what}.element')}>"
    if types.is_map(dtype):
        key = type_to_ddl(dtype.key_type, what=f"{what}.key")
        return f"map<{key},{type_to_ddl(dtype.item_type, what=f'{what}.value')}>"
    if types.is_struct(dtype) and not is_tagged(dtype):
        return f"struct<{','.join(_written(dtype, ':', what))}>"
    return type_to_ddl(dtype.value_type, what=what) if types.is_dictionary(dtype) else None


def is_tagged(struct: pa.StructType) -> bool:
    """Return whether this struct is Spark's representation of a variant, geometry or geography."""
    tags = {name.encode() for name in UNSUPPORTED}
    return any(not tags.isdisjoint(field.metadata or ()) for field in struct)


def _written(fields: Iterable[pa.Field], colon: str, what: str) -> Iterator[str]:
    seen: dict[str, str] = {}
    for field in fields:
        folded = field.name.lower()
        if folded in seen:
            msg = f"{what}: field {field.name!r} repeats {seen[folded]!r}; names must differ by more than case"
            raise SchemaError(msg)
        seen[folded] = field.name
        name = field.name if _UNQUOTED.fullmatch(field.name) else back_quoted(field.name)
        dtype = type_to_ddl(field.type, what=f"{what}.{field.name}")
        yield f"{name}{colon}{dtype}{'' if field.nullable else ' NOT NULL'}"
