"""Readers of records of one schema as values of another, as Avro resolves the two, made once for a pair of schemas.

Fields are found by name or alias, those that the writer lacks have their defaults, numbers become wider, and a member
of a union becomes the reader's first one that it matches, of the same type before wider ones. A number that stands for
something else, such as days for milliseconds, is refused, because Avro does not convert it either. A type that can
never be read is refused when the readers are made, and a member of a union that can't be read only where a record has
it. Fields that nobody wants are passed over, whatever their types are.
"""

from __future__ import annotations

from struct import error as StructError  # noqa: N812 - as classes are named
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.kafka.formats.avro_bytes import (
    PLAIN_READERS,
    DamageError,
    EmptyValues,
    Reader,
    array_reader,
    constant_array_reader,
    damage,
    enum_reader,
    fixed_reader,
    map_reader,
    union_reader,
)
from cojoin.kafka.formats.avro_columns import (
    NAMED,
    RECORDS,
    avro_type,
    conversion,
    exact_decimal,
    meaning,
    member_types,
    type_of,
    union_form,
    wanted_part,
)
from cojoin.kafka.formats.fitting import misfits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Resolution"]

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


class Resolution:
    """Makes readers.

    Args:
        of_writer: The writer's named types, by their full names.
        of_reader: The reader's.
    """

    def __init__(self, of_writer: Mapping[str, Any], of_reader: Mapping[str, Any]) -> None:
        self._of_writer, self._of_reader = of_writer, of_reader
        self._passing: dict[str, Reader] = {}
        self._with_bytes: dict[str, bool] = {}
        self._empty = EmptyValues()

    def reader(  # noqa: PLR0911 - one for each kind
        self, written: Any, reader: Any, place: str, wanted: pa.DataType | None
    ) -> Reader:
        """Return the reader of the values of a column (``avro_columns``).

        Args:
            written: The writer's type.
            reader: The reader's type.
            place: What has these types, for messages.
            wanted: The type that the user names; None wants all.

        Raises:
            ValueError: The writer's type can't become the reader's.
        """
        theirs, kind = type_of(written, self._of_writer)
        ours, own = type_of(reader, self._of_reader)
        if own == "union":
            return self._into_union(written, ours, place, wanted)
        if kind == "union":
            return self._of_each(theirs, lambda member: self.reader(member, ours, place, wanted))
        if self._rank(theirs, ours) is None:
            there, here = self._spelled(theirs, self._of_writer), self._spelled(ours, self._of_reader)
            msg = f"{place} is {there} there and {here} here"
            raise ValueError(msg)
        if own in RECORDS:
            if wanted is not None and pa.types.is_decimal(wanted):
                return _variable_scale(self._record(theirs, ours, None))
            return self._record(theirs, ours, wanted)
        if own == "array":
            item = self.reader(theirs["items"], ours["items"], f"an element of {place}", wanted_part(wanted))
            return self._array(item, theirs)
        if own == "map":
            return map_reader(self.reader(theirs["values"], ours["values"], f"a value of {place}", wanted_part(wanted)))
        self._check_meaning(theirs, kind, ours, own, place)
        found = self._leaf(theirs, kind, ours, own)
        convert = conversion(ours, own)
        return found if convert is None else _converting(found, convert)

    def _check_meaning(self, theirs: Any, kind: str, ours: Any, own: str, place: str) -> None:
        """Check that a number stands for the same in both schemas, as far as they say.

        Avro's own resolution looks at the types alone, and would read days as milliseconds, or a text as digits.
        """
        there, here = meaning(theirs, kind), meaning(ours, own)
        is_number = here is None and not (kind != own and str(there).startswith("decimal"))
        if there == here or is_number or (there is None and kind == own):
            return
        columns = avro_type(theirs, self._of_writer, place), avro_type(ours, self._of_reader, place)
        cure = "" if misfits(*columns) else "; give the columns as DDL"
        msg = f"{place} is {there or kind} there and {here or own} here{cure}"
        raise ValueError(msg)

    def _leaf(self, theirs: Any, kind: str, ours: Any, own: str) -> Reader:
        """Return the reader of a type without parts, before its logical type is looked at."""
        if own == "enum":
            known = set(ours["symbols"])
            values = [each if each in known else ours.get("default") for each in theirs["symbols"]]
            return enum_reader(theirs["symbols"], values)
        if own == "fixed":
            return fixed_reader(theirs["size"])
        if {kind, own} == {"string", "bytes"}:
            return PLAIN_READERS[own]
        found = PLAIN_READERS[kind]
        return _converting(found, float) if own in ("float", "double") and kind in ("int", "long") else found

    def _into_union(self, written: Any, ours: list[Any], place: str, wanted: pa.DataType | None) -> Reader:
        theirs, kind = type_of(written, self._of_writer)
        if kind == "union":
            return self._of_each(theirs, lambda member: self._into_union(member, ours, place, wanted))
        ranks = [rank for each in ours if (rank := self._rank(theirs, each)) is not None]
        if not ranks:
            here = " or ".join(self._spelled(each, self._of_reader) for each in ours)
            msg = f"{place} is {self._spelled(theirs, self._of_writer)} there and {here} here"
            raise ValueError(msg)
        chosen = next(each for each in ours if self._rank(theirs, each) == min(ranks))
        members = member_types(ours, self._of_reader)
        if chosen not in members or union_form(members) != "several":
            return self.reader(theirs, chosen, place, wanted)
        name = f"member{members.index(chosen)}"
        if wanted is not None and wanted.get_field_index(name) < 0:
            return _converting(self.passing(theirs), lambda _: {})
        return _converting(self.reader(theirs, chosen, place, wanted_part(wanted, name)), lambda value: {name: value})

    def _of_each(self, members: Sequence[Any], make: Callable[[Any], Reader]) -> Reader:
        """Return the reader of a writer's union; a member that can't be read is a fault of the records that have it."""
        choices: list[Reader] = []
        refused: list[ValueError] = []
        for each in members:
            try:
                choices.append(make(each))
            except ValueError as error:  # noqa: PERF203 - each member is tried
                refused.append(error)
                choices.append(_refusing(str(error)))
        if len(refused) == len(members) and refused:
            raise refused[-1]
        return union_reader(choices)

    def _record(self, theirs: Any, ours: Any, wanted: pa.DataType | None) -> Reader:
        named = {each["name"]: each for each in ours["fields"]}
        if wanted is not None:
            named = {name: each for name, each in named.items() if wanted.get_field_index(name) >= 0}
        found: dict[str, str] = {}
        there = {each["name"] for each in theirs["fields"]}
        for name, each in named.items():
            own = next((one for one in (name, *each.get("aliases", ())) if one in there), None)
            if own is not None:
                found.setdefault(own, name)
        steps: list[tuple[str, str | None, Reader]] = []
        for each in theirs["fields"]:
            name = found.get(each["name"])
            if name is None:
                steps.append((each["name"], None, self.passing(each["type"])))
                continue
            place = f"field {name!r}"
            steps.append((name, name, self.reader(each["type"], named[name]["type"], place, wanted_part(wanted, name))))
        missing = [each for name, each in named.items() if name not in found.values()]
        for each in missing:
            if "default" not in each:
                msg = f"field {each['name']!r} is not there, and has no default here"
                raise ValueError(msg)
        given = {each["name"]: self._default(each["default"], each["type"]) for each in missing}
        return _record_reader(steps, given)

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
            given = {each["name"]: each["default"] for each in ours["fields"] if "default" in each} | dict(default)
            return {each["name"]: self._default(given[each["name"]], each["type"]) for each in ours["fields"]}
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

    def passing(self, written: Any) -> Reader:  # noqa: PLR0911 - one for each kind
        """Return a reader that returns None, for values that nobody wants."""
        theirs, kind = type_of(written, self._of_writer)
        if not self._takes_bytes(theirs):
            # However many records of records it is.
            return PLAIN_READERS["null"]
        if kind in PLAIN_READERS:
            return PLAIN_READERS[kind]
        if kind == "union":
            return self._of_each(theirs, self.passing)
        if kind == "array":
            return self._array(self.passing(theirs["items"]), theirs)
        if kind == "map":
            return map_reader(self.passing(theirs["values"]))
        if kind == "enum":
            return enum_reader(theirs["symbols"], theirs["symbols"])
        if kind == "fixed":
            return fixed_reader(theirs["size"])
        name = theirs["name"]
        if name not in self._passing:
            # A record that contains itself finds its own reader.
            self._passing[name] = lambda data, at: self._passing[name](data, at)  # noqa: PLW0108 - set below
            parts = [self.passing(each["type"]) for each in theirs["fields"]]
            self._passing[name] = _passing(parts)
        return self._passing[name]

    def _array(self, item: Reader, theirs: Any) -> Reader:
        return array_reader(item) if self._takes_bytes(theirs["items"]) else constant_array_reader(item, self._empty)

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
        found, kind = type_of(schema, named)
        if kind == "union":
            return "a union"
        return f"the {kind} {found['name']}" if kind in NAMED else kind


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _record_reader(steps: Sequence[tuple[str, str | None, Reader]], given: Mapping[str, Any]) -> Reader:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        row, field = {**given}, ""
        try:
            for field, name, part in steps:  # noqa: B007 - told where it fails
                value, at = part(data, at)
                if name is not None:
                    row[name] = value
        except _WRONG_BYTES as error:
            msg = f"field {field!r}: {damage(error)}"
            raise DamageError(msg) from None
        return row, at

    return read


def _passing(parts: Sequence[Reader]) -> Reader:
    def read(data: bytes, at: int) -> tuple[None, int]:
        for part in parts:
            _, at = part(data, at)
        return None, at

    return read


def _converting(found: Reader, convert: Callable[[Any], Any]) -> Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        value, at = found(data, at)
        return convert(value), at

    return read


def _refusing(why: str) -> Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        del data, at
        raise DamageError(why)

    return read


def _variable_scale(found: Reader) -> Reader:
    return _converting(found, lambda row: exact_decimal(row["value"], row["scale"]))
