"""Protobuf's messages as columns: parsed by Google's own runtime one after another, then gathered column by column.

=======================================  ================================================
Protobuf                                 Spark
=======================================  ================================================
bool, string, bytes, float, double       boolean, string, binary, float, double
int32, sint32, sfixed32                  int
int64, sint64, sfixed64, uint32, fixed32  bigint
uint64, fixed64                          decimal(20,0)
enum                                     string: the value's name, or its number if it has none
message, group                           struct
repeated, map                            array, map
google.protobuf.Timestamp                timestamp, floored to microseconds
google.protobuf.Duration                 interval day to second, floored to microseconds
google.protobuf.Int64Value and the like  the value, or null
google.protobuf.Struct, Value, ListValue  string: the JSON
=======================================  ================================================

A field that is ``optional``, in a ``oneof``, or a message is null where it is absent, also where proto2 declares a
default for it. Any other has its default then, such as 0, which Protobuf does not distinguish from a written 0. A type
that contains itself, or that has no field, as ``google.protobuf.Empty``, has no column, unless the user declares one.

Of columns that the user declares, only the fields that they name are looked at, at any depth: a type that contains
itself is then as deep as the user's struct. Further forms are then possible: any message is a ``string``, its JSON;
``confluent.type.Decimal`` a decimal; ``google.type.Date`` a date.

Values are those of Google's ``MessageToJson``, in the columns' types, with these exceptions. Columns have the names of
the .proto, not those of JSON. NaN and infinities are values of the type, 64 bit integers are numbers, and bytes are
bytes. A ``google.protobuf.FieldMask`` is a struct with the array ``paths``, an ``Any`` a struct of its ``type_url`` and
its bytes, and a ``NullValue`` the name ``NULL_VALUE``, so that an enum is null only where its field is absent.
Extensions and unknown fields are left out; a ``required`` field is as an ``optional`` one. What ``MessageToJson`` has
no value for is a fault of its record: a Timestamp beyond the years 1 to 9999, a Duration beyond 10,000 years or of two
signs, a number in a ``Value`` that is not finite, a text that is not UTF-8.

With a reader's schema a record is parsed by the reader's type: fields by number, and what the reader does not have is
left out. Whether the fields of a number have one type in both versions is checked once for each writer's schema; a
number of 64 bits that the reader's 32 do not hold is a fault. With the user's own columns, a record is parsed by the
type that it was written with, and fields are matched by name. It costs about a microsecond a record of four fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Context, Decimal
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cojoin.engine.values.schema_evolution import fitted
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import SchemaError
from cojoin.kafka.formats.decoding import in_order, misfits
from cojoin.kafka.formats.proto_files import message_type, place_of, type_at
from cojoin.kafka.formats.wire_format import HEADER, message_name, message_place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cojoin.kafka.formats.decoding import Reading
    from cojoin.kafka.formats.registry import RegisteredSchema


_MICROS = 1_000_000
_NANOS = 1_000_000_000
_YEAR_1, _YEAR_10000 = -62_135_596_800, 253_402_300_800
_LONGEST = 315_576_000_000
"""The most seconds that a Duration may have."""

_WRAPPERS = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_JSON = ("Struct", "Value", "ListValue")
_WIDEST_DECIMAL = 16
"""The bytes of the largest number of 38 digits."""

_DIGITS = Context(prec=80)
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
class _Column:
    """The column of a field, and the function that makes it of values; it raises any error where one does not fit."""

    dtype: pa.DataType
    gather: Callable[[Sequence[Any]], pa.Array]


def _message_column(descriptor: Any, wanted: pa.StructType | None = None, within: tuple[str, ...] = ()) -> _Column:
    """Return the column of structs that messages of a type become, or of the fields that ``wanted`` names.

    Without ``wanted``, a type that is within itself, or has no field, is a ValueError.
    """
    name = descriptor.full_name
    if wanted is None:
        if name in within:
            msg = f"the message type {name} contains itself, which no column of Spark's can"
            raise ValueError(msg)
        if not descriptor.fields:
            msg = f"the message type {name} has no field, and a struct of Spark's has at least one"
            raise ValueError(msg)
        chosen = [(field_name, None) for field_name in descriptor.fields]
    else:
        types = {field.name: field.type for field in wanted}
        chosen = [(field_name, types[field_name.name]) for field_name in descriptor.fields if field_name.name in types]
    fields = [(field_name.name, *_field(field_name, dtype, (*within, name))) for field_name, dtype in chosen]
    dtype = pa.struct([(field_name, column.dtype) for field_name, column, _ in fields])

    def gather(messages: Sequence[Any]) -> pa.Array:
        absent = [field_name is None for field_name in messages]
        if not fields:
            return pa.array([None if field_name is None else {} for field_name in messages], dtype)
        children = []
        for field_name, column, read in fields:
            try:
                children.append(column.gather(read(messages)))
            except Exception as error:  # noqa: PERF203 - one for each column
                msg = f"field {field_name!r}: {error}"
                raise ValueError(msg) from error
        return pa.StructArray.from_arrays(children, fields=list(dtype), mask=pa.array(absent) if any(absent) else None)

    return _Column(dtype, gather)


def _value_column(descriptor: Any, wanted: pa.DataType | None, within: tuple[str, ...]) -> _Column:
    """Return the column of a field's messages: structs, or the form of a well-known type, or the wanted form."""
    name = descriptor.full_name
    known = _well_known(descriptor) if name.startswith("google.protobuf.") else _in_other_form(name, wanted)
    if known is not None:
        return known
    if wanted is not None and pa.types.is_string(wanted):
        return _Column(pa.string(), _as_json)
    return _message_column(descriptor, wanted if wanted is not None and pa.types.is_struct(wanted) else None, within)


def _field(
    field: Any, wanted: pa.DataType | None, within: tuple[str, ...]
) -> tuple[_Column, Callable[[Sequence[Any]], list[Any]]]:
    """Return a field's column, and a function that reads its values from messages."""
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - optional

    name, get = field.name, attrgetter(field.name)
    if wanted is not None:
        _check_form(field, wanted)
    if is_repeated(field):
        entry = field.message_type
        if _is_map(field):
            item = wanted.item_type if wanted is not None and pa.types.is_map(wanted) else None
            parts = [entry.fields_by_name[message] for message in ("key", "value")]
            column = _map(_single(parts[0], None, within), _single(parts[1], item, within))
        else:
            item = wanted.value_type if wanted is not None and pa.types.is_list(wanted) else None
            column = _list(_single(field, item, within))
        return column, lambda messages: [None if message is None else get(message) for message in messages]
    column = _single(field, wanted, within)
    if field.has_presence:
        # The class's own, because a message may have a field of this name.
        has = GetMessageClass(field.containing_type).HasField
        return column, lambda messages: [
            None if message is None or not has(message, name) else get(message) for message in messages
        ]

    def read(messages: Sequence[Any]) -> list[Any]:
        try:
            return list(map(get, messages))
        except AttributeError:  # there is a None
            return [None if message is None else get(message) for message in messages]

    return column, read


def _check_form(field: Any, wanted: pa.DataType) -> None:
    """Check that a field of messages is wanted in a form that it has; the ValueError names the forms."""
    types, inner, held, around = pa.types, wanted, field.message_type, "{}"
    if _is_map(field):
        key, held = (held.fields_by_name[each] for each in ("key", "value"))
        held, around = held.message_type, f"map<{type_to_ddl(_PLAIN[key.type])},{{}}>"
        inner = wanted.item_type if types.is_map(wanted) else None
    elif is_repeated(field):
        around, inner = "array<{}>", wanted.value_type if types.is_list(wanted) else None
    if held is None or (inner is not None and (types.is_struct(inner) or types.is_string(inner))):
        return
    if held.full_name.startswith("google.protobuf.") and _well_known(held) is not None:
        return
    if inner is not None and _in_other_form(held.full_name, inner) is not None:
        return
    msg = (
        f"field {field.name!r} is {around.format(f'the message {held.full_name}')} in the schema, expected "
        f"{type_to_ddl(wanted)}; give it as {around.format('struct<...>')}, of the fields that you read, or as "
        f"{around.format('string')}, the JSON"
    )
    raise ValueError(msg)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def is_repeated(field: Any) -> bool:
    """Return whether a field is a list or a map."""
    # Protobuf 7 has no `label`, and earlier ones no `is_repeated`.
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else bool(field.label == field.LABEL_REPEATED)


def _single(field: Any, wanted: pa.DataType | None, within: tuple[str, ...]) -> _Column:
    if field.type in (_MESSAGE, _GROUP):
        return _value_column(field.message_type, wanted, within)
    if field.type == _ENUM:
        # The first name of a number that has several, as JSON has it.
        names = {value.number: value.name for value in reversed(list(field.enum_type.values))}
        return _Column(
            pa.string(),
            lambda values: pa.array(
                [None if each is None else names.get(each, str(each)) for each in values], pa.string()
            ),
        )
    dtype = _PLAIN[field.type]
    return _Column(dtype, lambda values: pa.array(values, dtype))


def _list(item: _Column) -> _Column:
    dtype = pa.list_(item.dtype)

    def gather(values: Sequence[Any]) -> pa.Array:
        offsets, mask = _offsets(values)
        flat = [one for each in values if each is not None for one in each]
        return pa.ListArray.from_arrays(offsets, item.gather(flat), type=dtype, mask=mask)

    return _Column(dtype, gather)


def _map(key: _Column, item: _Column) -> _Column:
    dtype = pa.map_(key.dtype, item.dtype)

    def gather(values: Sequence[Any]) -> pa.Array:
        offsets, mask = _offsets(values)
        # Protobuf does not keep a map's order, so it is sorted: the same record is always the same row.
        pairs = [pair for each in values if each is not None for pair in sorted(each.items(), key=lambda one: one[0])]
        keys, items = key.gather([one for one, _ in pairs]), item.gather([one for _, one in pairs])
        return pa.MapArray.from_arrays(offsets, keys, items, type=dtype, mask=mask)

    return _Column(dtype, gather)


def _offsets(values: Sequence[Any]) -> tuple[pa.Array, pa.Array | None]:
    sizes = [0 if each is None else len(each) for each in values]
    absent = [each is None for each in values]
    return pa.array(accumulate(sizes, initial=0), pa.int32()), pa.array(absent) if any(absent) else None


def _well_known(descriptor: Any) -> _Column | None:
    name = descriptor.full_name.removeprefix("google.protobuf.")
    if name == "Timestamp":
        return _Column(pa.timestamp("us", "UTC"), _instants)
    if name == "Duration":
        return _of_each(pa.duration("us"), _span)
    if name.removesuffix("Value") in _WRAPPERS and name.endswith("Value"):
        inner = _single(descriptor.fields_by_name["value"], None, ())
        return _Column(
            inner.dtype, lambda values: inner.gather([None if each is None else each.value for each in values])
        )
    if name in _JSON:
        return _Column(pa.string(), _as_json)
    return None


def _in_other_form(name: str, wanted: pa.DataType | None) -> _Column | None:
    """Return the column of a message type that has a form besides a struct, where that is wanted."""
    if wanted is None:
        return None
    if name == "confluent.type.Decimal" and pa.types.is_decimal(wanted):
        return _of_each(wanted, lambda value: _decimal(value, wanted.scale))
    if name == "google.type.Date" and pa.types.is_date(wanted):
        return _of_each(wanted, lambda value: date(value.year, value.month, value.day))
    return None


def _of_each(dtype: pa.DataType, convert: Callable[[Any], Any]) -> _Column:
    return _Column(dtype, lambda values: pa.array([None if each is None else convert(each) for each in values], dtype))


def _instants(values: Sequence[Any]) -> pa.Array:
    count, absent = len(values), [each is None for each in values]
    seconds = np.fromiter((0 if each is None else each.seconds for each in values), np.int64, count)
    nanos = np.fromiter((0 if each is None else each.nanos for each in values), np.int64, count)
    wrong = (seconds < _YEAR_1) | (seconds >= _YEAR_10000) | (nanos < 0) | (nanos >= _NANOS)
    if wrong.any():
        at = int(np.argmax(wrong))
        msg = f"a Timestamp of {seconds[at]} seconds and {nanos[at]} nanoseconds is not within the years 1 to 9999"
        raise ValueError(msg)
    micros = seconds * _MICROS + nanos // 1_000
    return pa.array(micros, pa.int64(), mask=np.array(absent, np.bool_)).cast(pa.timestamp("us", "UTC"))


def _span(value: Any) -> int:
    """Return a Duration in microseconds."""
    seconds, nanos = value.seconds, value.nanos
    if not (-_LONGEST <= seconds <= _LONGEST and -_NANOS < nanos < _NANOS) or seconds * nanos < 0:
        msg = f"a Duration of {seconds} seconds and {nanos} nanoseconds is not one of at most 10,000 years, of one sign"
        raise ValueError(msg)
    return int(seconds * _MICROS + nanos // 1_000)


def _decimal(value: Any, scale: int) -> Decimal:
    """Return a number of ``confluent.type.Decimal``, of which no digit is lost at a scale."""
    if len(value.value) > _WIDEST_DECIMAL or abs(value.scale) > _DIGITS.prec:
        msg = f"a Decimal of {len(value.value)} bytes and the scale {value.scale} has more digits than a column of 38"
        raise ValueError(msg)
    number = Decimal(int.from_bytes(value.value, "big", signed=True)).scaleb(-value.scale, _DIGITS)
    if number != (fitting := number.quantize(Decimal(1).scaleb(-scale), context=_DIGITS)):
        msg = f"the Decimal {number} has more than {scale} digits after the point"
        raise ValueError(msg)
    return fitting


def _as_json(values: Sequence[Any]) -> pa.Array:
    from google.protobuf.json_format import MessageToJson  # noqa: PLC0415 - optional

    texts = [
        # The pool of the types has those that an Any may name.
        None
        if message is None
        else MessageToJson(message, indent=None, sort_keys=True, descriptor_pool=type(message).DESCRIPTOR.file.pool)
        for message in values
    ]
    return pa.array(texts, pa.string())


# Kinds of fields whose bytes are the same, so that one may become the other without another value.
_SAME = ({1}, {2}, {3, 5}, {4, 13}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {14}, {15}, {16}, {17, 18})
_NARROWER = {
    **dict.fromkeys(((3, 5), (18, 17)), range(-(1 << 31), 1 << 31)),
    (4, 13): range(1 << 32),
}
"""The numbers that a field can hold where the writer's field has 64 bits."""

_CUT_OFF = "its bytes do not fit the message type"
_SHOWN = 500
_CURE = (
    "give the columns as DDL, which need not have all fields: a message as a struct of those that you read, or as a "
    "string, its JSON; several as array<struct<...>>, or as array<string>"
)


def proto_columns(registered: RegisteredSchema, message: str | None, label: str, advice: str = _CURE) -> pa.StructType:
    """Return the columns of a message type, the first one of the file for None; errors end with ``advice``."""
    try:
        described = message_type(registered, message)
    except Exception as error:
        msg = f"{label}: the Protobuf schema can't be read: {error}"
        raise SchemaError(msg) from error
    try:
        return _message_column(described).dtype
    except Exception as error:
        msg = f"{label}: the Protobuf schema has no columns: {error}; {advice}"
        raise SchemaError(msg) from error


@dataclass(frozen=True)
class ProtoReadings:
    """Makes the readings of writers' schemas, for the columns of the query.

    ``reader`` is the schema that the columns come from; None where the user declared them. ``message`` is the name of
    the message type; None is the first of the file.
    """

    columns: pa.StructType
    reader: RegisteredSchema | None
    message: str | None

    def __call__(self, written: RegisteredSchema) -> Reading:
        """Return the reading of a writer's schema; raises an error where it can't be read, or become the columns."""
        from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - optional

        own = self._own(written)
        parsed = own if self.reader is None else message_type(self.reader, self.message)
        problems = _changes(own, parsed) if parsed is not own else []
        shape = _message_column(parsed, self.columns)
        problems += misfits(shape.dtype, self.columns)
        if problems:
            raise ValueError("; ".join(problems))
        # The pool of the types lives as long as the class.
        parse, columns, begin_of = GetMessageClass(parsed).FromString, self.columns, _begin_of(own)
        whole, ranges = GetMessageClass(own).FromString, _Ranges(own, parsed)
        check = ranges.check if ranges.some else None
        plain_head = b"\0" if place_of(own) == (0,) else None  # the most frequent one

        def reading(values: list[bytes]) -> tuple[pa.StructArray | None, list[str | None]]:
            faults: list[str | None] = [None] * len(values)
            messages: list[Any] = []
            places: list[int] = []
            for at, value in enumerate(values):
                try:
                    record = value[HEADER + 1 if value[HEADER : HEADER + 1] == plain_head else begin_of(value) :]
                    message = parse(record)
                    if check is not None:
                        check(whole(record))
                    messages.append(message)
                    places.append(at)
                except Exception as error:  # noqa: BLE001, PERF203 - the runtime's errors differ between its versions
                    faults[at] = str(error) if isinstance(error, _RecordMisfitError) else f"{_CUT_OFF}: {error}"
            return _gathered(shape.gather, messages, places, faults, columns), faults

        return reading

    def _own(self, written: RegisteredSchema) -> Any:
        """Return the message type that records of a writer's schema have."""
        if self.message is not None or self.reader is None:
            return message_type(written, self.message)
        first = message_type(self.reader, None)
        try:
            return message_type(written, first.full_name)
        except ValueError:  # its package may be another one
            return message_type(written, first.name)


class _RecordMisfitError(ValueError):
    """A record is of another message type, or has a number that the reader's type does not hold."""


def _begin_of(own: Any) -> Callable[[bytes], int]:
    """Return a function that finds the begin of a record; it raises ``ValueError`` for one of another message type."""
    expected = place_of(own)

    def begin_of(value: bytes) -> int:
        named, begin = message_name(value), 0
        place: tuple[int, ...] = ()
        try:
            place, begin = message_place(value)
        except ValueError:
            if named is None:
                raise
        if place == expected:
            return begin
        if named is not None and named[0] == own.name:
            return named[1]
        actual = type_at(own.file, place).full_name if named is None else named[0]
        msg = f"it is a {actual}, expected {own.full_name}"
        raise _RecordMisfitError(msg)

    return begin_of


def _gathered(
    gather: Any, messages: list[Any], places: list[int], faults: list[str | None], columns: pa.StructType
) -> pa.Array:
    """Return messages as rows; where one can't become one, as with a time that no timestamp has, it is a fault."""
    parts: list[tuple[list[int], pa.Array]] = []
    waiting = [(0, len(messages))] if messages else []
    while waiting:  # in halves, so that a fault costs its neighbours little
        begin, end = waiting.pop()
        try:
            parts.append((places[begin:end], fitted(gather(messages[begin:end]), columns)))
        except Exception as error:  # noqa: BLE001 - of Arrow, of the runtime, of what the user's columns ask for
            if end - begin == 1:
                faults[places[begin]] = f"{type(error).__name__}: {error}"[:_SHOWN]
                continue
            middle = (begin + end) // 2
            waiting += [(middle, end), (begin, middle)]
    return in_order(parts, len(faults), columns)


def _changes(written: Any, reader: Any, seen: Sequence[tuple[str, str]] = ()) -> list[str]:
    """Return the fields of a number that have other types in two versions of a message type."""
    pair = (written.full_name, reader.full_name)
    if pair in seen:
        return []
    changes = []
    for field in reader.fields:
        other = written.fields_by_number.get(field.number)
        if other is None:
            continue
        if not any({field.type, other.type} <= kinds for kinds in _SAME) or is_repeated(field) != is_repeated(other):
            changes.append(
                f"field {field.number} is {_spelled(other)} in the record's schema, expected {_spelled(field)}"
            )
        elif field.message_type is not None:
            changes += _changes(other.message_type, field.message_type, [*seen, pair])
    return changes


class _Ranges:
    """The check of numbers in the writer's messages that the reader's type would cut to their lower bits."""

    def __init__(self, written: Any, reader: Any) -> None:
        self._fields: dict[tuple[str, str], list[tuple[Any, range | None, tuple[str, str] | None]]] = {}
        self._first = self._add(written, reader)
        self.some = any(held is not None for fields in self._fields.values() for _, held, _ in fields)

    def _add(self, written: Any, reader: Any) -> tuple[str, str]:
        pair = (written.full_name, reader.full_name)
        if pair in self._fields:
            return pair
        checks = self._fields.setdefault(pair, [])
        for field in reader.fields:
            other = written.fields_by_number.get(field.number)
            if other is None:
                continue
            held = _NARROWER.get((other.type, field.type))
            inner = None if other.message_type is None else self._add(other.message_type, field.message_type)
            if held is not None or inner is not None:
                checks.append((other, held, inner))
        return pair

    def check(self, message: Any, pair: tuple[str, str] | None = None) -> None:
        """Raise ``ValueError`` for a message of the writer's type with such a number."""
        for field, held, inner in self._fields[pair or self._first]:
            if is_repeated(field):
                values = getattr(message, field.name)
                if _is_map(field):
                    values = [_Entry(*each) for each in values.items()]
            elif isinstance(message, _Entry) or not field.has_presence or message.HasField(field.name):
                values = [getattr(message, field.name)]
            else:
                continue
            for value in values:
                if held is not None and value not in held:
                    msg = f"field {field.name!r} is {value}, and the reader's type holds {held[0]} to {held[-1]}"
                    raise _RecordMisfitError(msg)
                if inner is not None:
                    self.check(value, inner)


@dataclass(frozen=True)
class _Entry:
    key: Any
    value: Any


def _spelled(field: Any) -> str:
    names = {number: name for name, number in type(field).__dict__.items() if name.startswith("TYPE_")}
    return f"{'repeated ' if is_repeated(field) else ''}{names.get(field.type, field.type)!s} {field.name}".replace(
        "TYPE_", ""
    ).lower()
