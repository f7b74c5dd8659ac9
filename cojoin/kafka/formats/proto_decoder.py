"""Protobuf by Google's own runtime: messages of one type parsed one after another, then made columns at once.

With a reader's schema a record is parsed by the reader's type, as Protobuf's rules for other versions say: fields by
number, and what the reader does not know is left out. Whether the fields of a number have one type in both versions is
looked at once for each writer's schema; a number of 64 bits that the reader's 32 do not hold is a fault. With the
user's own columns, a record is parsed by the type that it was written with, and fields are matched by name. It costs
about a microsecond a record of four fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.errors import SchemaError
from cojoin.kafka.formats.decoding import in_order
from cojoin.kafka.formats.fitting import fitted, misfits
from cojoin.kafka.formats.proto_columns import is_repeated, message_column
from cojoin.kafka.formats.proto_files import message_type, place_of, type_at
from cojoin.kafka.formats.wire_format import HEADER, message_name, message_place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from cojoin.kafka.formats.decoding import Reading
    from cojoin.kafka.formats.schema_lookup import FoundSchema

__all__ = ["ProtoReadings", "proto_columns"]

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


def proto_columns(found: FoundSchema, message: str | None, what: str, advice: str = _CURE) -> pa.StructType:
    """Return the columns of a message type, the first one of the file for None.

    Args:
        found: The schema.
        message: The type's name.
        what: The input or output, for messages.
        advice: What to do where it has no columns.

    Raises:
        SchemaError: There is no such type, or a field has no column.
    """
    try:
        described = message_type(found, message)
    except Exception as error:
        msg = f"{what}: the Protobuf schema can't be read: {error}"
        raise SchemaError(msg) from error
    try:
        return message_column(described).dtype
    except Exception as error:
        msg = f"{what}: the Protobuf schema has no columns: {error}; {advice}"
        raise SchemaError(msg) from error


@dataclass(frozen=True)
class ProtoReadings:
    """Makes the readings of writers' schemas.

    Attributes:
        columns: The columns of the query.
        reader: The schema that they come from; None where the user gave the columns.
        message: The name of the message type; None is the first of the file.
    """

    columns: pa.StructType
    reader: FoundSchema | None
    message: str | None

    def __call__(self, written: FoundSchema) -> Reading:
        """Return the reading of a writer's schema.

        Raises:
            ValueError: It can't be read, or can't become the columns.
        """
        try:
            return self._made(written)
        except ValueError:
            raise
        except Exception as error:
            msg = f"{type(error).__name__}: {error}"
            raise ValueError(msg) from error

    def _made(self, written: FoundSchema) -> Reading:
        from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - optional

        own = self._own(written)
        parsed = own if self.reader is None else message_type(self.reader, self.message)
        found = _changes(own, parsed) if parsed is not own else []
        shape = message_column(parsed, self.columns)
        found += misfits(shape.dtype, self.columns)
        if found:
            raise ValueError("; ".join(found))
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
                    faults[at] = str(error) if isinstance(error, _MisfitError) else f"{_CUT_OFF}: {error}"
            return _gathered(shape.gather, messages, places, faults, columns), faults

        return reading

    def _own(self, written: FoundSchema) -> Any:
        """Return the message type that records of a writer's schema have."""
        if self.message is not None or self.reader is None:
            return message_type(written, self.message)
        first = message_type(self.reader, None)
        try:
            return message_type(written, first.full_name)
        except ValueError:  # its package may be another one
            return message_type(written, first.name)


class _MisfitError(ValueError):
    """A record is of another message type, or has a number that the reader's type does not hold."""


def _begin_of(own: Any) -> Callable[[bytes], int]:
    """Return what finds where a record begins; it raises ``ValueError`` where it is not of this message type."""
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
        found = type_at(own.file, place).full_name if named is None else named[0]
        msg = f"it is a {found}, expected {own.full_name}"
        raise _MisfitError(msg)

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
    found = []
    for field in reader.fields:
        other = written.fields_by_number.get(field.number)
        if other is None:
            continue
        if not any({field.type, other.type} <= kinds for kinds in _SAME) or is_repeated(field) != is_repeated(other):
            found.append(f"field {field.number} is {_spelled(other)} there and {_spelled(field)} here")
        elif field.message_type is not None:
            found += _changes(other.message_type, field.message_type, [*seen, pair])
    return found


class _Ranges:
    """The check of numbers in the writer's messages that the reader's type would cut to their lower bits.

    Args:
        written: The writer's message type.
        reader: The reader's.
    """

    def __init__(self, written: Any, reader: Any) -> None:
        self._fields: dict[tuple[str, str], list[tuple[Any, range | None, tuple[str, str] | None]]] = {}
        self._first = self._add(written, reader)
        self.some = any(held is not None for fields in self._fields.values() for _, held, _ in fields)

    def _add(self, written: Any, reader: Any) -> tuple[str, str]:
        pair = (written.full_name, reader.full_name)
        if pair in self._fields:
            return pair
        found = self._fields.setdefault(pair, [])
        for field in reader.fields:
            other = written.fields_by_number.get(field.number)
            if other is None:
                continue
            held = _NARROWER.get((other.type, field.type))
            inner = None if other.message_type is None else self._add(other.message_type, field.message_type)
            if held is not None or inner is not None:
                found.append((other, held, inner))
        return pair

    def check(self, message: Any, pair: tuple[str, str] | None = None) -> None:
        """Raise ``ValueError`` for a message of the writer's type with such a number."""
        for field, held, inner in self._fields[pair or self._first]:
            if is_repeated(field):
                values = getattr(message, field.name)
                if field.message_type is not None and field.message_type.GetOptions().map_entry:
                    values = [_Entry(*each) for each in values.items()]
            elif isinstance(message, _Entry) or not field.has_presence or message.HasField(field.name):
                values = [getattr(message, field.name)]
            else:
                continue
            for value in values:
                if held is not None and value not in held:
                    msg = f"field {field.name!r} is {value}, and the reader's type holds {held[0]} to {held[-1]}"
                    raise _MisfitError(msg)
                if inner is not None:
                    self.check(value, inner)


@dataclass(frozen=True)
class _Entry:
    """An entry of a map."""

    key: Any
    value: Any


def _spelled(field: Any) -> str:
    names = {number: name for name, number in type(field).__dict__.items() if name.startswith("TYPE_")}
    return f"{'repeated ' if is_repeated(field) else ''}{names.get(field.type, field.type)!s} {field.name}".replace(
        "TYPE_", ""
    ).lower()
