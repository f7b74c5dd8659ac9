"""Protobuf's fields as columns, read from parsed messages column by column.

=======================================  ================================================
Protobuf                                 Spark
=======================================  ================================================
bool, string, bytes, float, double       boolean, string, binary, float, double
int32, sint32, sfixed32                  int
int64, sint64, sfixed64, uint32, fixed32  bigint
uint64, fixed64                          decimal(20,0)
enum                                     string: the value's name, or its number if it has none
message                                  struct
repeated, map                            array, map
google.protobuf.Timestamp                timestamp, floored to microseconds
google.protobuf.Duration                 interval day to second, floored to microseconds
google.protobuf.Int64Value and the like  the value, or null
google.protobuf.Struct, Value, ListValue  string: the JSON
=======================================  ================================================

A field that is ``optional``, in a ``oneof``, or a message is null where it is absent. Any other has its default then,
such as 0: Protobuf does not tell it from one that was written. A type that contains itself has no column.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ProtoColumn", "is_repeated", "message_column"]

_MICROS = 1_000_000
_WRAPPERS = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_JSON = ("Struct", "Value", "ListValue")
# The numbers of FieldDescriptor.TYPE_*, which are those of descriptor.proto.
_DOUBLE, _FLOAT, _INT64, _UINT64, _INT32, _FIXED64, _FIXED32, _BOOL, _STRING = range(1, 10)
_GROUP, _MESSAGE, _BYTES, _UINT32, _ENUM, _SFIXED32, _SFIXED64, _SINT32, _SINT64 = range(10, 19)
_PLAIN = {
    **dict.fromkeys((_INT32, _SINT32, _SFIXED32), pa.int32()),
    **dict.fromkeys((_INT64, _SINT64, _SFIXED64, _UINT32, _FIXED32), pa.int64()),
    **dict.fromkeys((_UINT64, _FIXED64), pa.decimal128(20, 0)),
    _DOUBLE: pa.float64(),
    _FLOAT: pa.float32(),
    _BOOL: pa.bool_(),
    _STRING: pa.string(),
    _BYTES: pa.binary(),
}


@dataclass(frozen=True)
class ProtoColumn:
    """How values of a field become a column.

    Attributes:
        dtype: The column's type.
        gather: Makes the column of values, of which None is null.
    """

    dtype: pa.DataType
    gather: Callable[[Sequence[Any]], pa.Array]


def message_column(descriptor: Any, within: tuple[str, ...] = ()) -> ProtoColumn:
    """Return how messages of a type become structs.

    Args:
        descriptor: The type.
        within: The names of the types that it is in.

    Raises:
        ValueError: The type contains itself, or has no field.
    """
    name = descriptor.full_name
    if name.startswith("google.protobuf.") and (known := _well_known(descriptor)) is not None:
        return known
    if name in within:
        msg = f"the message type {name} contains itself, and no column of Spark's does"
        raise ValueError(msg)
    if not descriptor.fields:
        msg = f"the message type {name} has no field, and a struct of Spark's has at least one"
        raise ValueError(msg)
    fields = [_field(each, (*within, name)) for each in descriptor.fields]
    dtype = pa.struct([(each.name, column.dtype) for each, (column, _) in zip(descriptor.fields, fields, strict=True)])

    def gather(messages: Sequence[Any]) -> pa.Array:
        absent = [each is None for each in messages]
        children = [column.gather(read(messages)) for column, read in fields]
        return pa.StructArray.from_arrays(children, fields=list(dtype), mask=pa.array(absent) if any(absent) else None)

    return ProtoColumn(dtype, gather)


def _field(field: Any, within: tuple[str, ...]) -> tuple[ProtoColumn, Callable[[Sequence[Any]], list[Any]]]:
    """Return a field's column, and what reads its values from messages."""
    name, get = field.name, attrgetter(field.name)
    if is_repeated(field):
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            column = _map(*(_single(entry.fields_by_name[each], within) for each in ("key", "value")))
        else:
            column = _list(_single(field, within))
        return column, lambda messages: [None if each is None else get(each) for each in messages]
    column = _single(field, within)
    if field.has_presence:
        return column, lambda messages: [
            None if each is None or not each.HasField(name) else get(each) for each in messages
        ]

    def read(messages: Sequence[Any]) -> list[Any]:
        try:
            return list(map(get, messages))
        except AttributeError:  # there is a None
            return [None if each is None else get(each) for each in messages]

    return column, read


def is_repeated(field: Any) -> bool:
    """Return whether a field is a list or a map."""
    # Protobuf 7 has no `label`, and earlier ones no `is_repeated`.
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else bool(field.label == field.LABEL_REPEATED)


def _single(field: Any, within: tuple[str, ...]) -> ProtoColumn:
    """Return the column of one value of a field."""
    if field.type in (_MESSAGE, _GROUP):
        return message_column(field.message_type, within)
    if field.type == _ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return ProtoColumn(
            pa.string(),
            lambda values: pa.array(
                [None if each is None else names.get(each, str(each)) for each in values], pa.string()
            ),
        )
    dtype = _PLAIN[field.type]
    return ProtoColumn(dtype, lambda values: pa.array(values, dtype))


def _list(item: ProtoColumn) -> ProtoColumn:
    dtype = pa.list_(item.dtype)

    def gather(values: Sequence[Any]) -> pa.Array:
        offsets, mask = _offsets(values)
        flat = [one for each in values if each is not None for one in each]
        return pa.ListArray.from_arrays(offsets, item.gather(flat), type=dtype, mask=mask)

    return ProtoColumn(dtype, gather)


def _map(key: ProtoColumn, item: ProtoColumn) -> ProtoColumn:
    dtype = pa.map_(key.dtype, item.dtype)

    def gather(values: Sequence[Any]) -> pa.Array:
        offsets, mask = _offsets(values)
        # Protobuf does not keep a map's order, so it is sorted: the same record is always the same row.
        pairs = [pair for each in values if each is not None for pair in sorted(each.items(), key=lambda one: one[0])]
        keys, items = key.gather([one for one, _ in pairs]), item.gather([one for _, one in pairs])
        return pa.MapArray.from_arrays(offsets, keys, items, type=dtype, mask=mask)

    return ProtoColumn(dtype, gather)


def _offsets(values: Sequence[Any]) -> tuple[pa.Array, pa.Array | None]:
    sizes = [0 if each is None else len(each) for each in values]
    absent = [each is None for each in values]
    return pa.array(accumulate(sizes, initial=0), pa.int32()), pa.array(absent) if any(absent) else None


def _well_known(descriptor: Any) -> ProtoColumn | None:
    name = descriptor.full_name.removeprefix("google.protobuf.")
    if name in ("Timestamp", "Duration"):
        dtype = pa.timestamp("us", "UTC") if name == "Timestamp" else pa.duration("us")

        def gather(values: Sequence[Any]) -> pa.Array:
            return pa.array(
                [None if each is None else each.seconds * _MICROS + each.nanos // 1_000 for each in values], dtype
            )

        return ProtoColumn(dtype, gather)
    if name.removesuffix("Value") in _WRAPPERS and name.endswith("Value"):
        inner = _single(descriptor.fields_by_name["value"], ())
        return ProtoColumn(
            inner.dtype, lambda values: inner.gather([None if each is None else each.value for each in values])
        )
    if name in _JSON:
        return ProtoColumn(pa.string(), _as_json)
    return None


def _as_json(values: Sequence[Any]) -> pa.Array:
    from google.protobuf.json_format import MessageToJson  # noqa: PLC0415 - optional

    found = [None if each is None else MessageToJson(each, indent=None, sort_keys=True) for each in values]
    return pa.array(found, pa.string())
