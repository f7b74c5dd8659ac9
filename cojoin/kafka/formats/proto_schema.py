"""Columns as a Protobuf message type, and which columns the fields of a given type can be written from.

======================================  ================================================
Spark                                   a message type that is made here
======================================  ================================================
boolean, string, binary, float, double  bool, string, bytes, float, double
tinyint, smallint, int                  int32
bigint                                  int64
timestamp                               google.protobuf.Timestamp
interval day to second                  google.protobuf.Duration
struct, array, map                      a message, repeated, map
======================================  ================================================

Each field that is neither repeated nor a map is optional, so that null is read back as null. A null array or map is
read back as an empty one. Protobuf has neither dates nor decimals nor times without a zone, and no lists of lists.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import SchemaError
from cojoin.kafka.formats.proto_files import well_known

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["fits_field_type", "proto_schema"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_TEXTS, _BYTES = (pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())
_LISTS = (pa.types.is_list, pa.types.is_large_list)
_KEYS = (*_TEXTS, *_INTEGERS, pa.bool_())
_OPTIONAL, _REPEATED = 1, 3
# The numbers of FieldDescriptorProto.TYPE_*.
_MESSAGE = 11
_PLAIN = {
    pa.float64(): 1,
    pa.float32(): 2,
    pa.int64(): 3,
    **dict.fromkeys(_INTEGERS[:3], 5),
    pa.bool_(): 8,
    **dict.fromkeys(_TEXTS, 9),
    **dict.fromkeys(_BYTES, 12),
}
_KNOWN = {pa.timestamp("us", "UTC"): "Timestamp", pa.duration("us"): "Duration"}


def proto_schema(columns: Iterable[pa.Field], name: str, what: str) -> str:
    """Return a compiled file with one message type, which has a field for each column, in base64.

    Args:
        columns: The columns.
        name: What the type is named after; other characters than letters and digits become ``_``.
        what: The output, for messages.

    Raises:
        SchemaError: A column's name or type has no form in Protobuf.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool  # noqa: PLC0415 - optional

    spelled = re.sub(r"[^A-Za-z0-9_]", "_", name)
    spelled = spelled if _NAME.fullmatch(spelled) else f"_{spelled}"
    file = descriptor_pb2.FileDescriptorProto(name=f"{spelled}.proto", syntax="proto3")
    _MessageType(file.message_type.add(name=spelled), f".{spelled}", file, what).fill(columns)
    try:
        pool = descriptor_pool.DescriptorPool()
        for needed in file.dependency:
            pool.Add(well_known(needed))
        pool.Add(file)
    except TypeError as error:
        msg = f"{what}: the columns' names make no message type of Protobuf: {error}; rename columns, or write JSON"
        raise SchemaError(msg) from None
    return base64.b64encode(file.SerializeToString(deterministic=True)).decode()


class _MessageType:
    """A message type that gets its fields.

    Args:
        described: Its description.
        place: Its name, such as ``.Trade.address_type``.
        file: The description of its file.
        what: The output or column, for messages.
    """

    def __init__(self, described: Any, place: str, file: Any, what: str) -> None:
        self._described, self._place, self._file, self._what = described, place, file, what
        self._names: set[str] = set()

    def fill(self, columns: Iterable[pa.Field]) -> None:
        """Add a field for each column."""
        columns = list(columns)
        self._names.update(column.name for column in columns)
        for number, column in enumerate(columns, 1):
            what = f"{self._what}: column {column.name!r}"
            if not _NAME.fullmatch(column.name):
                msg = (
                    f"{what} can't be a field of Protobuf, whose names are of letters, digits and '_'; rename it, or "
                    f"write JSON"
                )
                raise SchemaError(msg)
            field = self._described.field.add(name=column.name, number=number, label=_OPTIONAL)
            if any(is_list(column.type) for is_list in _LISTS):
                field.label = _REPEATED
                self._set_type(field, column.type.value_type, f"{what}, an element")
            elif pa.types.is_map(column.type):
                self._set_map(field, column.type, what)
            else:
                self._set_type(field, column.type, what)
                if field.type != _MESSAGE:  # a message can be told from an absent one anyway
                    field.proto3_optional, field.oneof_index = True, len(self._described.oneof_decl)
                    self._described.oneof_decl.add(name=self._free(f"_{column.name}"))

    def _set_type(self, field: Any, dtype: pa.DataType, what: str) -> None:
        """Set the type of a field's value; a struct becomes a type within this one."""
        if dtype in _PLAIN:
            field.type = _PLAIN[dtype]
        elif dtype in _KNOWN:
            field.type, field.type_name = _MESSAGE, f".google.protobuf.{_KNOWN[dtype]}"
            file = f"google/protobuf/{_KNOWN[dtype].lower()}.proto"
            if file not in self._file.dependency:
                self._file.dependency.append(file)
        elif pa.types.is_struct(dtype):
            self._set_struct(field, dtype, self._free(f"{field.name}_type"), what)
        else:
            msg = (
                f"{what} has the type {type_to_ddl(dtype)}, which Protobuf does not have there; cast it to string, or "
                f"write JSON"
            )
            raise SchemaError(msg)

    def _set_struct(self, field: Any, dtype: pa.StructType, name: str, what: str) -> None:
        place = f"{self._place}.{name}"
        field.type, field.type_name = _MESSAGE, place
        _MessageType(self._described.nested_type.add(name=name), place, self._file, what).fill(dtype)

    def _set_map(self, field: Any, dtype: pa.MapType, what: str) -> None:
        """Make a field a map, which is a repeated message of a type of its own."""
        if dtype.key_type not in _KEYS:
            msg = f"{what}: a map of Protobuf has texts, whole numbers or booleans as keys, got {type_to_ddl(dtype)}"
            raise SchemaError(msg)
        # Protobuf asks for this very name.
        name = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        field.label, field.type, field.type_name = _REPEATED, _MESSAGE, f"{self._place}.{name}"
        entry = self._described.nested_type.add(name=name)
        entry.options.map_entry = True
        self._set_type(entry.field.add(name="key", number=1, label=_OPTIONAL), dtype.key_type, what)
        value, what = entry.field.add(name="value", number=2, label=_OPTIONAL), f"{what}, a value"
        if pa.types.is_struct(dtype.item_type):  # an entry has no types of its own
            self._set_struct(value, dtype.item_type, self._free(f"{field.name}_type"), what)
        else:
            self._set_type(value, dtype.item_type, what)

    def _free(self, name: str) -> str:
        """Return a name that nothing in the type has."""
        while name in self._names:
            name = f"X{name}"
        self._names.add(name)
        return name


def fits_field_type(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether each value of a column, so far as types say, is one of a field; null is not looked at.

    Args:
        have: The column's type.
        want: The type that the field has as a column.

    >>> fits_field_type(pa.int32(), pa.int64()), fits_field_type(pa.date32(), pa.string())
    (True, False)
    """
    if pa.types.is_struct(want):
        if not pa.types.is_struct(have):
            return False
        mine = {field.name: field.type for field in want}
        return all(each.name not in mine or fits_field_type(each.type, mine[each.name]) for each in have) and any(
            each.name in mine for each in have
        )
    if pa.types.is_list(want):
        return any(is_list(have) for is_list in _LISTS) and fits_field_type(have.value_type, want.value_type)
    if pa.types.is_map(want):
        return (
            pa.types.is_map(have)
            and fits_field_type(have.key_type, want.key_type)
            and fits_field_type(have.item_type, want.item_type)
        )
    if have in _INTEGERS:
        # uint64 is read as a decimal; a number that is not in the field's range is refused with its row.
        return (want in _INTEGERS and _INTEGERS.index(have) <= _INTEGERS.index(want)) or want == pa.decimal128(20, 0)
    as_is = {pa.float32(): pa.float64(), pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return bool(have.equals(want) or as_is.get(have) == want or pa.types.is_null(have))
