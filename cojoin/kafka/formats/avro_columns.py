"""Avro's types as columns, and columns as an Avro schema.

================================================  =====================================================================
Avro                                              Spark
================================================  =====================================================================
null, boolean, int, long, float, double           void, boolean, int, bigint, float, double
string, enum, uuid                                string
bytes, fixed, duration                            binary
decimal                                           decimal, of 38 digits where it may have more
date                                              date
timestamp-millis, timestamp-micros                timestamp
local-timestamp-millis, local-timestamp-micros    timestamp_ntz
time-millis, time-micros, timestamp-nanos         int, bigint, bigint: the number as it is
record, array, map                                struct, array, map<string, ...>
union of null and one type                        that type
union of int and long, of float and double        bigint, double
other unions                                      a struct with ``member0``, ``member1``, ...: all null but one
================================================  =====================================================================

Debezium's own types Date, Timestamp and MicroTimestamp are date and timestamp_ntz. A type that contains itself has no
columns. A logical type that its type can't have, such as a decimal without a precision, is left out, by Avro's rules.
Of columns that the user names only the types of those matter.

A schema that is made of columns is a record whose fields may all be null; an int is ``int`` or ``long``, a timestamp
``timestamp-micros``, a ``timestamp_ntz`` ``local-timestamp-micros``, a decimal ``bytes``. ``cojoin.kafka.source`` reads
all of it back as the same types, ``tinyint`` and ``smallint`` as ``int``.
"""

from __future__ import annotations

import json
import re
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_UTC = pa.timestamp("us", "UTC")
_LOGICAL: dict[tuple[str, str], tuple[pa.DataType, int]] = {
    ("int", "date"): (pa.date32(), 1),
    ("long", "timestamp-millis"): (_UTC, 1000),
    ("long", "timestamp-micros"): (_UTC, 1),
    ("long", "local-timestamp-millis"): (pa.timestamp("us"), 1000),
    ("long", "local-timestamp-micros"): (pa.timestamp("us"), 1),
}
_DEBEZIUM = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
}
_CONNECT = {
    **_DEBEZIUM,
    "io.debezium.time.NanoTimestamp": "local-timestamp-nanos",
    "io.debezium.time.Time": "time-millis",
    "io.debezium.time.MicroTime": "time-micros",
    "io.debezium.time.NanoTime": "time-nanos",
    "io.debezium.time.MicroDuration": "duration-micros",
    "io.debezium.time.NanoDuration": "duration-nanos",
    "io.debezium.time.Year": "year",
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}
"""Logical types that are only in the Connect name; those that are not Debezium's three are numbers as they are."""

_OF_INTS = ("date", "time-millis", "year")
_VARIABLE_SCALE = "io.debezium.data.VariableScaleDecimal"
"""The name of Debezium's record of a scale and digits as bytes, for numbers whose type has no scale."""

RECORDS = ("record", "error")
NAMED = (*RECORDS, "enum", "fixed")
_KINDS = {*_PLAIN, *RECORDS, "array", "map"}
_WIDEST = (({"int", "long"}, "long"), ({"float", "double"}, "double"))
_MOST_DIGITS = 38
_DIGITS = Context(prec=800)
_LONGEST_TIME = (1 << 63) - 1


class DamageError(ValueError):
    """Bytes that do not fit their schema."""


def type_of(schema: Any, named: Mapping[str, Any]) -> tuple[Any, str]:
    """Return a type, with a name replaced by its type, and its kind, such as ``"record"`` or ``"union"``."""
    if isinstance(schema, list):
        return schema, "union"
    if isinstance(schema, str):
        return type_of(named[schema], named) if schema in named else (schema, schema)
    kind = schema["type"]
    return (schema, kind) if isinstance(kind, str) and kind not in named else type_of(kind, named)


def without_invalid(schema: Any) -> Any:
    """Return a schema, as JSON has it, without logical types that are not valid, and without objects around types."""
    if isinstance(schema, list):
        return [without_invalid(each) for each in schema]
    if not isinstance(schema, dict) or "type" not in schema:
        return schema
    kind = schema["type"]
    if not isinstance(kind, str) or kind not in _KINDS:
        # A name, a union or another type.
        return without_invalid(kind)
    parts = {name: without_invalid(schema[name]) for name in ("items", "values") if name in schema}
    if kind in RECORDS and "fields" in schema:
        parts["fields"] = [{**each, "type": without_invalid(each["type"])} for each in schema["fields"]]
    cleaned = {**schema, **parts}
    if cleaned.get("logicalType") == "decimal" and not _is_decimal(cleaned):
        del cleaned["logicalType"]
    return cleaned


def _is_decimal(schema: Mapping[str, Any]) -> bool:
    precision, scale, kind = schema.get("precision"), schema.get("scale", 0), schema.get("type")
    if any(isinstance(each, bool) or not isinstance(each, int) for each in (precision, scale)):
        return False
    assert isinstance(precision, int)
    size = schema.get("size", 0)
    most = len(str((1 << max(0, 8 * size - 1)) - 1)) - 1 if kind == "fixed" and isinstance(size, int) else precision
    return kind in ("bytes", "fixed") and 0 <= scale <= precision and 0 < precision <= most


def avro_type(
    schema: Any,
    named: Mapping[str, Any],
    label: str,
    wanted: pa.DataType | None = None,
    within: tuple[str, ...] = (),
) -> pa.DataType:
    """Return the type of the column that a type becomes.

    The type is as fastavro parsed it, so that names are full ones; ``within`` has those of the records that it is in.
    Of ``wanted``, which the user names, only the fields matter; None wants all. A type without such a column is a
    SchemaError.
    """
    schema, kind = type_of(schema, named)
    if kind == "union":
        return _union(schema, named, label, wanted, within)
    if kind in RECORDS:
        return _record(schema, named, label, wanted, within)
    if kind in ("array", "map"):
        return _many(schema, kind, named, label, wanted, within)
    if kind not in _PLAIN:
        msg = f"{label}: Avro has no type {kind!r}"
        raise SchemaError(msg)
    logical = _logical(schema)
    if logical == "decimal":
        return _decimal(schema, label, wanted)
    if logical == "uuid" and kind == "fixed" and schema["size"] == 16:
        return pa.string()
    logical_type = _LOGICAL.get((kind, logical))
    return _PLAIN[kind] if logical_type is None else logical_type[0]


def _logical(schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    return str(schema.get("logicalType") or _DEBEZIUM.get(schema.get("connect.name", ""), ""))


def meaning(schema: Any, kind: str) -> str | None:
    """Return the meaning of a number, as a logical type with its unit or scale; None where its schema has none.

    >>> meaning({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "bytes")
    'decimal of scale 2'
    >>> meaning({"type": "long", "connect.name": "io.debezium.time.NanoTime"}, "long")
    'time-nanos'
    """
    if not isinstance(schema, dict):
        return None
    logical = str(schema.get("logicalType") or _CONNECT.get(schema.get("connect.name", ""), ""))
    if logical == "decimal":
        return f"decimal of scale {schema.get('scale', 0)}"
    is_time = logical in _OF_INTS or logical.endswith(("-millis", "-micros", "-nanos"))
    return logical if is_time and kind == ("int" if logical in _OF_INTS else "long") else None


def conversion(schema: Any, kind: str) -> Callable[[Any], Any] | None:
    """Return a function that converts a value of Avro, of a type without parts, for Arrow; None if it needs none."""
    logical = _logical(schema)
    if logical == "decimal":
        scale = int(schema.get("scale", 0))
        return lambda value: exact_decimal(value, scale)
    if logical == "uuid" and kind == "fixed" and schema["size"] == 16:
        return lambda value: str(UUID(bytes=value))
    if _LOGICAL.get((kind, logical), (None, 1))[1] == 1:
        return None
    return _micros


def _micros(millis: int) -> int:
    if abs(millis) > _LONGEST_TIME // 1000:
        msg = f"a timestamp can't hold {millis} milliseconds"
        raise DamageError(msg)
    return millis * 1000


def exact_decimal(digits: bytes, scale: int) -> Decimal:
    r"""Return a decimal by its unscaled value, as big-endian bytes in two's complement, and its scale.

    >>> exact_decimal(b"\xfb\x2e", 2)
    Decimal('-12.34')
    """
    if len(digits) > 256:
        msg = f"a decimal has {len(digits)} bytes"
        raise DamageError(msg)
    return Decimal(int.from_bytes(digits, "big", signed=True)).scaleb(-scale, _DIGITS)


def _decimal(schema: Any, label: str, wanted: pa.DataType | None) -> pa.DataType:
    precision, scale = schema["precision"], schema.get("scale", 0)
    if precision <= _MOST_DIGITS:
        return pa.decimal128(precision, scale)
    if wanted is not None and pa.types.is_decimal(wanted) and wanted.scale >= scale:
        # Most have far fewer digits: Kafka Connect writes a precision of 64 where it has none.
        return wanted
    if scale > _MOST_DIGITS:
        msg = f"{label}: a decimal of {scale} digits after its point has no column of Spark's, which have 38 at most"
        raise SchemaError(msg)
    return pa.decimal128(_MOST_DIGITS, scale)


def _many(
    schema: Any, kind: str, named: Mapping[str, Any], label: str, wanted: pa.DataType | None, within: tuple[str, ...]
) -> pa.DataType:
    is_right = pa.types.is_list if kind == "array" else pa.types.is_map
    if wanted is not None and not is_right(wanted):
        raise _other(label, f"an {kind}" if kind == "array" else f"a {kind}", wanted)
    inner = wanted_part(wanted)
    if kind == "array":
        return pa.list_(avro_type(schema["items"], named, f"an element of {label}", inner, within))
    return pa.map_(pa.string(), avro_type(schema["values"], named, f"a value of {label}", inner, within))


def wanted_part(wanted: pa.DataType | None, field: str | None = None) -> pa.DataType | None:
    """Return the type that is wanted of a struct's field, or of an array's or map's values; None wants all."""
    if wanted is None:
        return None
    if pa.types.is_struct(wanted) and field is not None:
        return wanted.field(field).type
    return wanted.item_type if pa.types.is_map(wanted) else wanted.value_type


def _other(label: str, actual: str, wanted: pa.DataType) -> SchemaError:
    return SchemaError(f"{label} is {actual} in the schema, expected {type_to_ddl(wanted)}")


def _record(
    schema: Any, named: Mapping[str, Any], label: str, wanted: pa.DataType | None, within: tuple[str, ...]
) -> pa.DataType:
    name = schema["name"]
    if name == _VARIABLE_SCALE and wanted is not None and pa.types.is_decimal(wanted):
        return wanted
    if wanted is not None and not pa.types.is_struct(wanted):
        raise _other(label, f"the record {name}", wanted)
    if wanted is None and name in within:
        msg = f"{label}: the record {name} contains itself, which no column of Spark's can; give the columns as DDL"
        raise SchemaError(msg)
    if wanted is None and not schema["fields"]:
        msg = f"{label}: the record {name} has no field, and a struct of Spark's has at least one"
        raise SchemaError(msg)
    return pa.struct(
        [
            (
                own,
                avro_type(field["type"], named, f"field {own!r} of {name}", wanted_part(wanted, own), (*within, name)),
            )
            for field in schema["fields"]
            if (own := field["name"]) in _names(wanted, schema)
        ]
    )


def _names(wanted: pa.DataType | None, schema: Any) -> set[str]:
    return {each["name"] for each in schema["fields"]} if wanted is None else {each.name for each in wanted}


def member_types(schema: list[Any], named: Mapping[str, Any]) -> list[Any]:
    """Return the types of a union other than null."""
    return [each for each in schema if type_of(each, named)[1] != "null"]


def union_form(members: list[Any]) -> str:
    """Return the form of a union's column, by its types other than null.

    It is ``"null"``, ``"one"``, the wider of two numbers, or ``"several"``.
    """
    if len(members) < 2:
        return "one" if members else "null"
    if all(isinstance(each, str) for each in members):
        return next((widest for together, widest in _WIDEST if set(members) == together), "several")
    return "several"


def _union(
    schema: list[Any], named: Mapping[str, Any], label: str, wanted: pa.DataType | None, within: tuple[str, ...]
) -> pa.DataType:
    members = member_types(schema, named)
    form = union_form(members)
    if form == "one":
        return avro_type(members[0], named, label, wanted, within)
    if form != "several":
        return _PLAIN[form]
    if wanted is not None and not pa.types.is_struct(wanted):
        raise _other(label, f"a union of {' and '.join(type_of(member, named)[1] for member in members)}", wanted)
    names = [f"member{at}" for at in range(len(members))]
    return pa.struct(
        [
            (name, avro_type(member, named, f"{name} of {label}", wanted_part(wanted, name), within))
            for name, member in zip(names, members, strict=True)
            if wanted is None or wanted.get_field_index(name) >= 0
        ]
    )


def is_row(schema: Any, named: Mapping[str, Any]) -> bool:
    """Return whether a type has columns; any other is one column."""
    schema, kind = type_of(schema, named)
    if kind != "union":
        return kind in RECORDS
    members = member_types(schema, named)
    form = union_form(members)
    return form == "several" or (form == "one" and is_row(members[0], named))


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_AVRO_TYPES: dict[pa.DataType, Any] = {
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


def avro_schema(columns: Iterable[pa.Field], name: str, label: str) -> str:
    """Return the schema of a record with a field for each column; odd characters of its name become ``_``."""
    spelled = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return json.dumps(_record_schema(columns, spelled if _NAME.fullmatch(spelled) else f"_{spelled}", label))


def _record_schema(columns: Iterable[pa.Field], name: str, label: str) -> dict[str, Any]:
    fields = []
    for column in columns:
        if not _NAME.fullmatch(column.name):
            msg = (
                f"{label}: column {column.name!r} can't be a field of Avro, whose names are of letters, digits and "
                f"'_'; rename it, or write JSON"
            )
            raise SchemaError(msg)
        kind = _type_schema(column.type, f"{name}_{column.name}", f"{label}: column {column.name!r}")
        fields.append({"name": column.name, "type": ["null", kind] if kind != "null" else kind, "default": None})
    return {"type": "record", "name": name, "fields": fields}


def _type_schema(dtype: pa.DataType, name: str, label: str) -> Any:
    if dtype in _AVRO_TYPES:
        return _AVRO_TYPES[dtype]
    if pa.types.is_decimal(dtype):
        return {"type": "bytes", "logicalType": "decimal", "precision": dtype.precision, "scale": dtype.scale}
    if pa.types.is_struct(dtype):
        return _record_schema(dtype, name, label)
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        return {"type": "array", "items": ["null", _type_schema(dtype.value_type, name, label)]}
    if pa.types.is_map(dtype) and dtype.key_type in (pa.string(), pa.large_string()):
        return {"type": "map", "values": ["null", _type_schema(dtype.item_type, name, label)]}
    hint = "a map needs texts as keys" if pa.types.is_map(dtype) else "cast it to string"
    msg = f"{label} has the type {type_to_ddl(dtype)}, which Avro does not have; {hint}, or write JSON"
    raise SchemaError(msg)


def can_be_written_as(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether each value of a column's type is one of a field's; null is not looked at.

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
