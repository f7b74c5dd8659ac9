"""Avro's types as columns, and the values that fastavro returns as values that Arrow takes.

fastavro decodes the plain types: logical types are left out of what it is given, because a time as a number becomes a
column as it is, without a Python object for each. What remains to be done with a value is its ``prepare``; most have
none.

================================================  =====================================================================
Avro                                              Spark
================================================  =====================================================================
null, boolean, int, long, float, double           void, boolean, int, bigint, float, double
string, enum, uuid                                string
bytes, fixed, duration                            binary
decimal                                           decimal, of at most 38 digits
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
columns, and neither has a union of types that decoded values do not distinguish.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["AvroColumn", "avro_column", "plain"]

_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
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
_NAMED = ("record", "error", "enum", "fixed")
_WIDEST = (({"int", "long"}, "long"), ({"float", "double"}, "double"))
_CLASSES = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "bytes": bytes,
    "array": list,
    "map": dict,
    "record": dict,
    "error": dict,
    "enum": str,
    "fixed": bytes,
}
_DIGITS = Context(prec=76)


@dataclass(frozen=True)
class AvroColumn:
    """How values of an Avro type become a column.

    Attributes:
        dtype: The column's type.
        prepare: Converts a decoded value, which is not None, into one that Arrow takes; None where all are.
    """

    dtype: pa.DataType
    prepare: Callable[[Any], Any] | None = None


def plain(schema: Any) -> Any:
    """Return a schema without logical types, in which fastavro decodes numbers and bytes as they are."""
    if isinstance(schema, list):
        return [plain(each) for each in schema]
    if isinstance(schema, dict):
        own = {"logicalType", "precision", "scale", "connect.name", "connect.version", "connect.parameters"}
        return {name: plain(value) if name in _NESTED else value for name, value in schema.items() if name not in own}
    return schema


_NESTED = {"type", "fields", "items", "values"}


def avro_column(  # noqa: PLR0911 - one for each kind
    schema: Any, named: Mapping[str, Any], what: str, within: tuple[str, ...] = ()
) -> AvroColumn:
    """Return how values of a type become a column.

    Args:
        schema: The type, as fastavro parsed it, so that names are full ones.
        named: The named types, by their full names.
        what: What has the type, for messages.
        within: The names of the records that it is in.

    Raises:
        SchemaError: The type has no column.
    """
    if isinstance(schema, list):
        return _union(schema, named, what, within)
    if isinstance(schema, str):
        if schema in _PLAIN:
            return AvroColumn(_PLAIN[schema])
        return avro_column(named[schema], named, what, within)
    kind = schema["type"]
    if kind in ("record", "error"):
        return _record(schema, named, what, within)
    if kind == "enum":
        return AvroColumn(pa.string())
    if kind == "array":
        return _array(avro_column(schema["items"], named, f"an element of {what}", within))
    if kind == "map":
        return _map(avro_column(schema["values"], named, f"a value of {what}", within))
    return _logical(schema, kind, named, what, within)


def _logical(schema: Any, kind: Any, named: Mapping[str, Any], what: str, within: tuple[str, ...]) -> AvroColumn:
    logical = schema.get("logicalType") or _DEBEZIUM.get(schema.get("connect.name", ""))
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(schema, what)
    if logical == "uuid" and kind == "fixed" and schema["size"] == 16:
        return AvroColumn(pa.string(), lambda value: str(UUID(bytes=value)))
    if kind == "fixed":
        return AvroColumn(pa.binary())
    if isinstance(kind, str) and (found := _LOGICAL.get((kind, logical or ""))) is not None:
        dtype, factor = found
        return AvroColumn(dtype, None if factor == 1 else lambda value: value * factor)
    return avro_column(kind, named, what, within)


def _decimal(schema: Any, what: str) -> AvroColumn:
    precision, scale = schema["precision"], schema.get("scale", 0)
    if precision > 38:
        msg = f"{what}: a decimal of {precision} digits has no column of Spark's, which have 38 at most"
        raise SchemaError(msg)
    return AvroColumn(
        pa.decimal128(precision, scale),
        lambda value: Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, _DIGITS),
    )


def _array(item: AvroColumn) -> AvroColumn:
    prepare = item.prepare
    if prepare is None:
        return AvroColumn(pa.list_(item.dtype))
    return AvroColumn(pa.list_(item.dtype), lambda value: [None if one is None else prepare(one) for one in value])


def _map(item: AvroColumn) -> AvroColumn:
    prepare, dtype = item.prepare, pa.map_(pa.string(), item.dtype)
    if prepare is None:
        return AvroColumn(dtype, lambda value: list(value.items()))
    return AvroColumn(dtype, lambda value: [(k, None if one is None else prepare(one)) for k, one in value.items()])


def _record(schema: Any, named: Mapping[str, Any], what: str, within: tuple[str, ...]) -> AvroColumn:
    name = schema["name"]
    if name in within:
        msg = f"{what}: the record {name} contains itself, and no column of Spark's does; give the columns as DDL"
        raise SchemaError(msg)
    if not schema["fields"]:
        msg = f"{what}: the record {name} has no field, and a struct of Spark's has at least one"
        raise SchemaError(msg)
    inner = (*within, name)
    fields = {
        each["name"]: avro_column(each["type"], named, f"field {each['name']!r} of {name}", inner)
        for each in schema["fields"]
    }
    prepared = [(each, column.prepare) for each, column in fields.items() if column.prepare is not None]
    dtype = pa.struct([(each, column.dtype) for each, column in fields.items()])
    if not prepared:
        return AvroColumn(dtype)

    def prepare(value: dict[str, Any]) -> dict[str, Any]:
        # fastavro returns the same object for each record that lacks a field with a default.
        value = dict(value)
        for each, convert in prepared:
            found = value[each]
            if found is not None:
                value[each] = convert(found)
        return value

    return AvroColumn(dtype, prepare)


def _union(schema: list[Any], named: Mapping[str, Any], what: str, within: tuple[str, ...]) -> AvroColumn:
    members = [each for each in schema if each != "null"]
    if not members:
        return AvroColumn(pa.null())
    kinds = [_kind(each, named) for each in members]
    if len(members) == 1:
        return _nullable(avro_column(members[0], named, what, within), kinds[0])
    for together, widest in _WIDEST:
        if set(kinds) == together and members == kinds:
            return AvroColumn(_PLAIN[widest])
    columns = [avro_column(each, named, f"member {at} of {what}", within) for at, each in enumerate(members)]
    # fastavro returns a value of a named type with its name, so only those of the others must differ by their class.
    places: dict[Any, int] = {}
    for at, (member, kind) in enumerate(zip(members, kinds, strict=True)):
        told = _full_name(member) if kind in _NAMED else _CLASSES[kind]
        if told in places:
            msg = f"{what}: a union of {' and '.join(kinds)} has no columns; give those that you read as DDL"
            raise SchemaError(msg)
        places[told] = at
    # Without the name, where the writer's type was no union, or has this named type alone.
    classes = [_CLASSES[kind] for kind in kinds]
    dtype = pa.struct([(f"member{at}", column.dtype) for at, column in enumerate(columns)])

    def prepare(value: Any) -> dict[str, Any]:
        if isinstance(value, tuple):
            at, value = places[value[0]], value[1]
        else:
            at = classes.index(type(value))
            if classes.count(type(value)) > 1:
                msg = f"a value of {kinds[at]} that was written without its type, in a union of {' and '.join(kinds)}"
                raise ValueError(msg)
        convert = columns[at].prepare
        return {f"member{at}": value if convert is None else convert(value)}

    return AvroColumn(dtype, prepare)


def _nullable(column: AvroColumn, kind: str) -> AvroColumn:
    """Return the column of a union with null alone, in which a value of a named type may come with its name."""
    if kind not in _NAMED:
        return column
    prepare = column.prepare

    def prepared(value: Any) -> Any:
        own = value[1] if isinstance(value, tuple) else value
        return own if prepare is None else prepare(own)

    return AvroColumn(column.dtype, prepared)


def _kind(schema: Any, named: Mapping[str, Any]) -> str:
    if isinstance(schema, str):
        return schema if schema in _PLAIN else _kind(named[schema], named)
    kind = schema["type"]
    return kind if isinstance(kind, str) else _kind(kind, named)


def _full_name(schema: Any) -> str:
    return str(schema if isinstance(schema, str) else schema["name"])
