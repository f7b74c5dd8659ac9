"""Avro's records as columns: each is read by the schema that it was written with, and resolved to the reader's.

A reader takes a record's bytes and a place in them, and returns the value and the place after it. Each number from the
bytes is checked before it is used: a length, a count or an index that is negative or too large is damage, and so are
integers of more bits than their type has, and booleans other than 0 and 1. Memory stays bounded by the record's bytes:
of values that take none, such as nulls and records of them, its arrays have 1,000 and one for each byte at most. A
record that does not end where its bytes end has a fault.

Readers are made once for a pair of schemas, as Avro resolves the two. Fields are found by name or alias, those that the
writer lacks have their defaults, numbers become wider, and a member of a union becomes the reader's first one that it
matches, of the same type before wider ones. A number that stands for something else, such as days for milliseconds, is
refused, because Avro does not convert it either. A type that can never be read is refused when the readers are made,
and a member of a union that can't be read only where a record has it. Fields that are not read are passed over,
whatever their types are. With the user's own columns instead of a reader's schema, fields are matched by name, and only
those that are wanted must have a column.

It costs about 2 microseconds a record of four fields, by whichever version of the schema.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 - as classes are named
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from cojoin.engine.values.schema_evolution import fitted
from cojoin.errors import SchemaError
from cojoin.kafka.formats.avro_columns import (
    NAMED,
    RECORDS,
    DamageError,
    avro_type,
    conversion,
    exact_decimal,
    is_row,
    meaning,
    member_types,
    type_of,
    union_form,
    wanted_part,
    without_invalid,
)
from cojoin.kafka.formats.decoding import misfits, rows_by_themselves
from cojoin.kafka.formats.wire_format import HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cojoin.kafka.formats.decoding import Reading
    from cojoin.kafka.formats.registry import RegisteredSchema


_Reader: TypeAlias = "Callable[[bytes, int], tuple[Any, int]]"
"""Reads the value at a place of a record's bytes, and returns it with the place after it."""

_INT = 1 << 31
_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_MOST_EMPTY = 1_000
"""The most values without bytes that the arrays of a record may have, besides one for each of its bytes."""


def _damage(error: BaseException) -> str:
    if isinstance(error, (IndexError, StructError)):
        return "the record's bytes end within it"
    if isinstance(error, UnicodeDecodeError):
        return "a text is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return str(error) if isinstance(error, DamageError) else f"{type(error).__name__}: {error}"


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return a long, or another type's length, count or index."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    # Most have few bytes, and these take half of the time that they take in the loop.
    number, byte = byte & 0x7F, data[at + 1]
    if byte < 0x80:
        number |= byte << 7
        return (number >> 1) ^ -(number & 1), at + 2
    number |= (byte & 0x7F) << 7
    shift, at = 14, at + 2
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            msg = "a whole number has more than 64 bits"
            raise DamageError(msg)
    if shift == 63 and byte > 1:
        msg = "a whole number has more than 64 bits"
        raise DamageError(msg)
    return (number >> 1) ^ -(number & 1), at


def _read_int(data: bytes, at: int) -> tuple[int, int]:
    number, at = _read_long(data, at)
    if not -_INT <= number < _INT:
        msg = f"an int has more than 32 bits: {number}"
        raise DamageError(msg)
    return number, at


def _read_null(data: bytes, at: int) -> tuple[None, int]:
    del data
    return None, at


def _read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    byte = data[at]
    if byte > 1:
        msg = f"a boolean is {byte}, expected 0 or 1"
        raise DamageError(msg)
    return bool(byte), at + 1


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _read_long(data, at)
    end = at + size
    if not at <= end <= len(data):
        msg = f"a length is {size}, of {len(data) - at} bytes that are left"
        raise DamageError(msg)
    return data[at:end], end


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    content, at = _read_bytes(data, at)
    return content.decode(), at


_PLAIN_READERS: dict[str, _Reader] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": _read_int,
    "long": _read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}
"""The readers of the types without parts."""


def _fixed_reader(size: int) -> _Reader:

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(data):
            raise IndexError
        return data[at:end], end

    return read


def _enum_reader(symbols: Sequence[str], values: Sequence[str | None]) -> _Reader:
    """Return the reader of an enum: ``values`` has the reader's symbol for each of the writer's, or None."""

    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = _read_long(data, at)
        if not 0 <= index < len(values):
            msg = f"the index of an enum's symbol is {index}, of {len(values)} symbols"
            raise DamageError(msg)
        value = values[index]
        if value is None:
            msg = f"the symbol {symbols[index]!r} is not one of the reader's schema, which has no default for it"
            raise DamageError(msg)
        return value, at

    return read


def _union_reader(choices: Sequence[_Reader]) -> _Reader:
    """Return the reader of a union, by the readers of its members."""
    count = len(choices)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = _read_long(data, at)
        if not 0 <= index < count:
            msg = f"the index of a union's member is {index}, of {count} members"
            raise DamageError(msg)
        return choices[index](data, at)

    return read


def _array_reader(item: _Reader) -> _Reader:
    """Return the reader of an array, each of whose items takes a byte or more, by the reader of its items."""

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        while True:
            count, at = _block(data, at)
            if not count:
                return values, at
            for _ in range(count):
                value, at = item(data, at)
                values.append(value)

    return read


def _constant_array_reader(item: _Reader, empty: _EmptyValues) -> _Reader:
    """Return the reader of an array whose items take no bytes, so that all are one value; ``empty`` counts them."""
    value, _ = item(b"", 0)
    size = _leaves(value)

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        total = 0
        while True:
            count, at = _block(data, at)
            if not count:
                return [value] * total, at
            total += count
            empty.add(count * size, data, at)

    return read


def _leaves(value: Any) -> int:
    """Return the number of values without parts in a value; one for an empty one."""
    if isinstance(value, dict):
        value = value.values()
    return max(1, sum(map(_leaves, value))) if not isinstance(value, (str, bytes)) and hasattr(value, "__iter__") else 1


class _EmptyValues:
    """Counts a record's values without bytes: in arrays of arrays few bytes may stand for any number of them."""

    def __init__(self) -> None:
        self._data, self._at, self._count = b"", 0, 0

    def add(self, count: int, data: bytes, at: int) -> None:
        """Count the values of a block that begins at a place; too many for the record's bytes are a DamageError."""
        # Places within a record only grow.
        if data is not self._data or at <= self._at:
            self._data, self._count = data, 0
        self._at, self._count = at, self._count + count
        if self._count > _MOST_EMPTY + len(data):
            msg = f"its arrays have {self._count} values that take no bytes, in a record of {len(data)} bytes"
            raise DamageError(msg)


def _map_reader(item: _Reader) -> _Reader:
    """Return the reader of a map, whose value is a list of its keys and values; of a key's values the last counts."""

    def read(data: bytes, at: int) -> tuple[list[tuple[str, Any]], int]:
        entries: dict[str, Any] = {}
        while True:
            count, at = _block(data, at)
            if not count:
                return list(entries.items()), at
            for _ in range(count):
                key, at = _read_string(data, at)
                entries[key], at = item(data, at)

    return read


def _block(data: bytes, at: int) -> tuple[int, int]:
    """Return how many items the next block of an array or a map has."""
    count, at = _read_long(data, at)
    if count >= 0:
        return count, at
    # The size in bytes follows, for those who pass over the block.
    size, at = _read_long(data, at)
    if not 0 <= size <= len(data) - at:
        msg = f"the size of a block is {size}, of {len(data) - at} bytes that are left"
        raise DamageError(msg)
    return -count, at


_WIDER = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}
_WRONG_BYTES = (DamageError, IndexError, StructError, UnicodeDecodeError)


class _Resolution:
    """Makes readers, by the named types of the writer and of the reader, under their full names."""

    def __init__(self, of_writer: Mapping[str, Any], of_reader: Mapping[str, Any]) -> None:
        self._of_writer, self._of_reader = of_writer, of_reader
        self._passing: dict[str, _Reader] = {}
        self._with_bytes: dict[str, bool] = {}
        self._empty = _EmptyValues()

    def reader(  # noqa: PLR0911 - one for each kind
        self, written: Any, reader: Any, place: str, wanted: pa.DataType | None
    ) -> _Reader:
        """Return the reader of the values of a column (``avro_columns``).

        The user wants the type ``wanted``, or all for None. A writer's type that can't become the reader's is a
        ValueError.
        """
        theirs, kind = type_of(written, self._of_writer)
        ours, own = type_of(reader, self._of_reader)
        if own == "union":
            return self._into_union(written, ours, place, wanted)
        if kind == "union":
            return self._of_each(theirs, lambda member: self.reader(member, ours, place, wanted))
        if self._rank(theirs, ours) is None:
            actual, expected = self._spelled(theirs, self._of_writer), self._spelled(ours, self._of_reader)
            msg = f"{place} is {actual} in the record's schema, expected {expected}"
            raise ValueError(msg)
        if own in RECORDS:
            if wanted is not None and pa.types.is_decimal(wanted):
                parts = self._record(theirs, ours, None)
                return _converting(parts, lambda row: exact_decimal(row["value"], row["scale"]))
            return self._record(theirs, ours, wanted)
        if own == "array":
            item = self.reader(theirs["items"], ours["items"], f"an element of {place}", wanted_part(wanted))
            return self._array(item, theirs)
        if own == "map":
            return _map_reader(
                self.reader(theirs["values"], ours["values"], f"a value of {place}", wanted_part(wanted))
            )
        self._check_meaning(theirs, kind, ours, own, place)
        leaf = self._leaf(theirs, kind, ours, own)
        convert = conversion(ours, own)
        return leaf if convert is None else _converting(leaf, convert)

    def _check_meaning(self, theirs: Any, kind: str, ours: Any, own: str, place: str) -> None:
        """Check that a number has the same meaning in both schemas, where they have one.

        Avro's own resolution looks at the types alone, and would read days as milliseconds, or a text as digits.
        """
        actual, expected = meaning(theirs, kind), meaning(ours, own)
        is_number = expected is None and not (kind != own and str(actual).startswith("decimal"))
        if actual == expected or is_number or (actual is None and kind == own):
            return
        columns = avro_type(theirs, self._of_writer, place), avro_type(ours, self._of_reader, place)
        cure = "" if misfits(*columns) else "; give the columns as DDL"
        msg = f"{place} is {actual or kind} in the record's schema, expected {expected or own}{cure}"
        raise ValueError(msg)

    def _leaf(self, theirs: Any, kind: str, ours: Any, own: str) -> _Reader:
        """Return the reader of a type without parts, before its logical type is looked at."""
        if own == "enum":
            known = set(ours["symbols"])
            values = [each if each in known else ours.get("default") for each in theirs["symbols"]]
            return _enum_reader(theirs["symbols"], values)
        if own == "fixed":
            return _fixed_reader(theirs["size"])
        if {kind, own} == {"string", "bytes"}:
            return _PLAIN_READERS[own]
        reader = _PLAIN_READERS[kind]
        return _converting(reader, float) if own in ("float", "double") and kind in ("int", "long") else reader

    def _into_union(self, written: Any, ours: list[Any], place: str, wanted: pa.DataType | None) -> _Reader:
        theirs, kind = type_of(written, self._of_writer)
        if kind == "union":
            return self._of_each(theirs, lambda member: self._into_union(member, ours, place, wanted))
        ranks = [rank for each in ours if (rank := self._rank(theirs, each)) is not None]
        if not ranks:
            expected = " or ".join(self._spelled(each, self._of_reader) for each in ours)
            msg = f"{place} is {self._spelled(theirs, self._of_writer)} in the record's schema, expected {expected}"
            raise ValueError(msg)
        chosen = next(each for each in ours if self._rank(theirs, each) == min(ranks))
        members = member_types(ours, self._of_reader)
        if chosen not in members or union_form(members) != "several":
            return self.reader(theirs, chosen, place, wanted)
        name = f"member{members.index(chosen)}"
        if wanted is not None and wanted.get_field_index(name) < 0:
            return _converting(self.passing(theirs), lambda _: {})
        return _converting(self.reader(theirs, chosen, place, wanted_part(wanted, name)), lambda value: {name: value})

    def _of_each(self, members: Sequence[Any], make: Callable[[Any], _Reader]) -> _Reader:
        """Return the reader of a writer's union; a member that can't be read is a fault of the records that have it."""
        choices: list[_Reader] = []
        refused: list[ValueError] = []
        for member in members:
            try:
                choices.append(make(member))
            except ValueError as error:  # noqa: PERF203 - each member is tried
                refused.append(error)
                choices.append(_refusing(str(error)))
        if len(refused) == len(members) and refused:
            raise refused[-1]
        return _union_reader(choices)

    def _record(self, theirs: Any, ours: Any, wanted: pa.DataType | None) -> _Reader:
        named = {field["name"]: field for field in ours["fields"]}
        if wanted is not None:
            named = {name: field for name, field in named.items() if wanted.get_field_index(name) >= 0}
        matched: dict[str, str] = {}
        written_names = {field["name"] for field in theirs["fields"]}
        for name, field in named.items():
            own = next((one for one in (name, *field.get("aliases", ())) if one in written_names), None)
            if own is not None:
                matched.setdefault(own, name)
        steps: list[tuple[str, str | None, _Reader]] = []
        for field in theirs["fields"]:
            name = matched.get(field["name"])
            if name is None:
                steps.append((field["name"], None, self.passing(field["type"])))
                continue
            place = f"field {name!r}"
            steps.append(
                (name, name, self.reader(field["type"], named[name]["type"], place, wanted_part(wanted, name)))
            )
        missing = [field for name, field in named.items() if name not in matched.values()]
        for field in missing:
            if "default" not in field:
                msg = f"field {field['name']!r} is missing in the record's schema, and has no default in the reader's"
                raise ValueError(msg)
        defaults = {field["name"]: self._default(field["default"], field["type"]) for field in missing}
        return _record_reader(steps, defaults)

    def _default(self, default: Any, schema: Any) -> Any:
        """Return a default, as JSON has it, as a value of its column."""
        ours, own = type_of(schema, self._of_reader)
        if own == "union":
            # A default is of the union's first type, or, since Avro 1.12, of any.
            members = member_types(ours, self._of_reader)
            chosen = next((each for each in ours if self._is_default(default, each)), ours[0])
            value = self._default(default, chosen)
            several = chosen in members and union_form(members) == "several"
            return {f"member{members.index(chosen)}": value} if several else value
        if own == "array":
            return [self._default(each, ours["items"]) for each in default]
        if own == "map":
            return [(name, self._default(each, ours["values"])) for name, each in default.items()]
        if own in RECORDS:
            values = {each["name"]: each["default"] for each in ours["fields"] if "default" in each} | dict(default)
            return {each["name"]: self._default(values[each["name"]], each["type"]) for each in ours["fields"]}
        if own in ("bytes", "fixed") and isinstance(default, str):
            default = default.encode("latin-1")
        convert = conversion(ours, own)
        return default if convert is None or default is None else convert(default)

    def _is_default(self, default: Any, schema: Any) -> bool:
        kind = type_of(schema, self._of_reader)[1]
        classes: dict[str, Any] = {"null": type(None), "boolean": bool, "array": list, "float": float, "double": float}
        classes |= dict.fromkeys(("int", "long"), int) | dict.fromkeys(("map", *RECORDS), dict)
        expected = classes.get(kind, str)
        return isinstance(default, expected) and isinstance(default, bool) == (kind == "boolean")

    def passing(self, written: Any) -> _Reader:  # noqa: PLR0911 - one for each kind
        """Return a reader that returns None, for values that are not read."""
        theirs, kind = type_of(written, self._of_writer)
        if not self._takes_bytes(theirs):
            # However many records of records it is.
            return _PLAIN_READERS["null"]
        if kind in _PLAIN_READERS:
            return _PLAIN_READERS[kind]
        if kind == "union":
            return self._of_each(theirs, self.passing)
        if kind == "array":
            return self._array(self.passing(theirs["items"]), theirs)
        if kind == "map":
            return _map_reader(self.passing(theirs["values"]))
        if kind == "enum":
            return _enum_reader(theirs["symbols"], theirs["symbols"])
        if kind == "fixed":
            return _fixed_reader(theirs["size"])
        name = theirs["name"]
        if name not in self._passing:
            # A record that contains itself finds its own reader.
            self._passing[name] = lambda data, at: self._passing[name](data, at)  # noqa: PLW0108 - set below
            parts = [self.passing(each["type"]) for each in theirs["fields"]]
            self._passing[name] = _passing(parts)
        return self._passing[name]

    def _array(self, item: _Reader, theirs: Any) -> _Reader:
        return _array_reader(item) if self._takes_bytes(theirs["items"]) else _constant_array_reader(item, self._empty)

    def _takes_bytes(self, written: Any) -> bool:
        """Return whether each value of a type takes a byte or more."""
        theirs, kind = type_of(written, self._of_writer)
        if kind == "fixed":
            return bool(theirs["size"])
        if kind not in RECORDS:
            return kind != "null"
        name = theirs["name"]
        if name not in self._with_bytes:
            # A record that contains itself without a choice between is infinite, and has no values at all.
            self._with_bytes[name] = True
            self._with_bytes[name] = any(self._takes_bytes(each["type"]) for each in theirs["fields"])
        return self._with_bytes[name]

    def _rank(self, written: Any, reader: Any) -> int | None:
        """Return 0 where two types match, 1 where only their short names do, 2 where the reader's is wider; or None."""
        theirs, kind = type_of(written, self._of_writer)
        ours, own = type_of(reader, self._of_reader)
        if kind != own:
            return 2 if (kind, own) in _WIDER else None
        if own in NAMED:
            names = {ours["name"], *ours.get("aliases", ())}
            if _last(theirs["name"]) not in map(_last, names) or (own == "fixed" and theirs["size"] != ours["size"]):
                return None
            # A union may have types of one short name, such as the events of two namespaces.
            return 0 if theirs["name"] in names else 1
        return 0

    def _spelled(self, schema: Any, named: Mapping[str, Any]) -> str:
        resolved, kind = type_of(schema, named)
        if kind == "union":
            return "a union"
        return f"the {kind} {resolved['name']}" if kind in NAMED else kind


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _record_reader(steps: Sequence[tuple[str, str | None, _Reader]], defaults: Mapping[str, Any]) -> _Reader:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        row, field = {**defaults}, ""
        try:
            for field, name, part in steps:  # noqa: B007 - the error names it
                value, at = part(data, at)
                if name is not None:
                    row[name] = value
        except _WRONG_BYTES as error:
            msg = f"field {field!r}: {_damage(error)}"
            raise DamageError(msg) from None
        return row, at

    return read


def _passing(parts: Sequence[_Reader]) -> _Reader:
    def read(data: bytes, at: int) -> tuple[None, int]:
        for part in parts:
            _, at = part(data, at)
        return None, at

    return read


def _converting(reader: _Reader, convert: Callable[[Any], Any]) -> _Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        value, at = reader(data, at)
        return convert(value), at

    return read


def _refusing(why: str) -> _Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        del data, at
        raise DamageError(why)

    return read


def avro_columns(registered: RegisteredSchema, part: str, label: str) -> pa.StructType:
    """Return the columns of a reader's schema: a record's fields, or one column named by the part."""
    try:
        schema, named = _parsed(registered)
        dtype = avro_type(schema, named, label)
        return dtype if is_row(schema, named) else pa.struct([(part, dtype)])
    except SchemaError:
        raise
    except Exception as error:
        msg = f"{label}: the {part}'s schema does not parse: {type(error).__name__}: {error}"
        raise SchemaError(msg) from error


@dataclass(frozen=True)
class AvroReadings:
    """Makes the readings of writers' schemas, for the columns of the query.

    ``reader`` is the schema that the columns come from; None where the user declared them. The part is ``"value"`` or
    ``"key"``.
    """

    columns: pa.StructType
    reader: RegisteredSchema | None
    part: str

    def __call__(self, written: RegisteredSchema) -> Reading:
        """Return the reading of a writer's schema; raises an error where it does not parse or fit the columns."""
        written_type, of_writer = _parsed(written)
        own_type, of_reader = (written_type, of_writer) if self.reader in (None, written) else _parsed(self.reader)
        wanted, part, label = self.columns if self.reader is None else None, self.part, f"the {self.part}"
        has_columns = is_row(own_type, of_reader)
        if wanted is not None and not has_columns:
            wanted = wanted.field(part).type if wanted.get_field_index(part) >= 0 else pa.null()
        own = pa.null() if wanted == pa.null() else avro_type(own_type, of_reader, label, wanted)
        dtype, columns = own if has_columns else pa.struct([(part, own)]), self.columns
        problems = misfits(dtype, columns)
        if problems:
            raise ValueError("; ".join(problems))
        made = _Resolution(of_writer, of_reader)
        read = made.passing(written_type) if wanted == pa.null() else made.reader(written_type, own_type, label, wanted)

        def reading(values: list[bytes]) -> tuple[pa.StructArray | None, list[str | None]]:
            faults: list[str | None] = [None] * len(values)
            rows: list[Any] = []
            for at, value in enumerate(values):
                try:
                    row, end = read(value, HEADER)
                    if end != len(value):
                        msg = f"its bytes end at {len(value)}, and its fields at {end}"
                        raise DamageError(msg)  # noqa: TRY301 - treated as the reader's own
                    rows.append(row if has_columns else {part: row})
                except Exception as error:  # noqa: BLE001, PERF203 - whatever is in the bytes, it is this record's fault
                    faults[at] = _damage(error)
                    rows.append(None)
            return fitted(rows_by_themselves(rows, faults, dtype), columns), faults

        return reading


def _parsed(registered: RegisteredSchema) -> tuple[Any, dict[str, Any]]:
    """Return a schema as fastavro has it, and its named types with those that it refers to, by their full names."""
    import fastavro  # noqa: PLC0415 - optional

    named: dict[str, Any] = {}
    for _, text in registered.references:
        fastavro.parse_schema(without_invalid(json.loads(text)), named, _write_hint=False)
    return fastavro.parse_schema(without_invalid(json.loads(registered.text)), named), named
