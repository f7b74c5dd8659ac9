"""Protobuf by Google's own runtime: messages of one type parsed one after another, then made columns at once.

With a reader's schema a record is parsed by the reader's type, as Protobuf's rules for other versions say: fields by
number, and what the reader does not know is left out. Whether the fields of a number have one type in both versions is
looked at once for each writer's schema. With the user's own columns, a record is parsed by the type that it was written
with, and fields are matched by name. It costs about a microsecond a record of four fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.errors import SchemaError
from cojoin.kafka.formats.decoding import in_order
from cojoin.kafka.formats.fitting import fitted, misfits
from cojoin.kafka.formats.proto_columns import is_repeated, message_column
from cojoin.kafka.formats.proto_files import message_type, place_of, type_at
from cojoin.kafka.formats.wire_format import message_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.kafka.formats.decoding import Reading
    from cojoin.kafka.formats.schema_lookup import FoundSchema

__all__ = ["ProtoReadings", "proto_columns"]

# Kinds of fields whose bytes are the same, so that one may become the other without another value.
_SAME = ({1}, {2}, {3, 5}, {4, 13}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {14}, {15}, {16}, {17, 18})
_CUT_OFF = "its bytes do not fit the message type"


def proto_columns(found: FoundSchema, message: str | None, what: str) -> pa.StructType:
    """Return the columns of a message type, the first one of the file for None.

    Raises:
        SchemaError: There is no such type, or a field has no column.
    """
    try:
        return message_column(message_type(found, message)).dtype
    except Exception as error:
        msg = f"{what}: the Protobuf schema has no columns: {error}"
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

        own = message_type(written, self._name(written))
        parsed = own if self.reader is None else message_type(self.reader, self.message)
        found = _changes(own, parsed) if parsed is not own else []
        shape = message_column(parsed)
        found += misfits(shape.dtype, self.columns)
        if found:
            raise ValueError("; ".join(found))
        # The pool of the types lives as long as the class.
        parse, columns, expected = GetMessageClass(parsed).FromString, self.columns, place_of(own)
        plain_head = b"\0" if expected == (0,) else None

        def reading(values: list[bytes]) -> tuple[pa.StructArray | None, list[str | None]]:
            faults: list[str | None] = [None] * len(values)
            messages: list[Any] = []
            places: list[int] = []
            for at, value in enumerate(values):
                try:
                    if value[5:6] == plain_head:
                        begin = 6
                    else:
                        place, begin = message_place(value)
                        if place != expected:
                            faults[at] = f"it is a {type_at(written, place).full_name}, expected {own.full_name}"
                            continue
                    messages.append(parse(value[begin:]))
                    places.append(at)
                except Exception as error:  # noqa: BLE001 - the runtime's errors differ between its versions
                    faults[at] = f"{_CUT_OFF}: {error}"
            return _gathered(shape.gather, messages, places, faults, columns), faults

        return reading

    def _name(self, written: FoundSchema) -> str | None:
        """Return the name of the message type, as the reader has it."""
        if self.message is not None or self.reader is None:
            return self.message
        first = message_type(self.reader, None).full_name
        try:
            message_type(written, first)
        except ValueError:
            return None
        return str(first)


def _gathered(
    gather: Any, messages: list[Any], places: list[int], faults: list[str | None], columns: pa.StructType
) -> pa.Array | None:
    """Return messages as rows; where one can't become one, as with a time that no timestamp has, it is a fault."""
    failures = (pa.ArrowException, ValueError, TypeError, OverflowError)
    if not messages:
        return pa.nulls(len(faults), columns)
    try:
        rows = fitted(gather(messages), columns)
    except failures:
        kept: list[tuple[int, Any]] = []
        for at, message in zip(places, messages, strict=True):
            try:
                gather([message])
            except failures as error:  # noqa: PERF203 - one by one
                faults[at] = f"{type(error).__name__}: {error}"
            else:
                kept.append((at, message))
        if not kept:
            return pa.nulls(len(faults), columns)
        places = [at for at, _ in kept]
        rows = fitted(gather([message for _, message in kept]), columns)
    return in_order([(places, rows)], len(faults), columns)


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


def _spelled(field: Any) -> str:
    names = {number: name for name, number in type(field).__dict__.items() if name.startswith("TYPE_")}
    return f"{'repeated ' if is_repeated(field) else ''}{names.get(field.type, field.type)!s} {field.name}".replace(
        "TYPE_", ""
    ).lower()
