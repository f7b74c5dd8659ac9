"""Decoders of values and keys whose schema is in a registry: a task decodes all records of one schema at once.

The schema of each id is looked up once a process, and what decodes it, its *reading*, is made once and kept. A record
without a schema id, of an id that the registry does not have, of a schema that can't become the columns of the query,
or whose bytes do not fit its schema has a fault with the reason. The columns are fixed when the source is opened.

Columns that the user names are matched by name, wider where that loses nothing, null where missing. The rules are those
by which a stored schema may evolve (``schema_evolution``), but a column or field that is not named is left out.

A process keeps up to 1,000 readings.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa

from cojoin.engine.values.schema_evolution import differences
from cojoin.kafka.formats.registry import MissingReferenceError, SchemaLookup
from cojoin.kafka.formats.wire_format import HEADER, by_schema, undecodable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cojoin.kafka.formats.registry import RegisteredSchema, Registry
    from cojoin.kafka.formats.wire_format import SchemaHead, SchemaName

    Heads: TypeAlias = "Sequence[SchemaHead | None] | None"


Faults: TypeAlias = "list[str | None]"
"""The fault of each value; None where it has none."""

Reading: TypeAlias = "Callable[[list[bytes]], tuple[pa.StructArray | None, Faults]]"
"""Decodes whole values of one schema: a row for each value, null where it has a fault; None where all have one."""

_MOST_KEPT = 1_000
_READINGS: dict[tuple[str, SchemaName], Any] = {}


class Decoder(Protocol):
    """Decodes values or keys; it is sent to the workers."""

    @property
    def dtype(self) -> pa.DataType:
        """The type of the decoded values: a struct of columns, or ``binary`` for JSON that Spark parses."""
        ...

    def decode(self, values: Sequence[bytes | None], faults: list[str | None], heads: Heads = None) -> pa.Array:
        """Return the decoded values; one that can't be decoded is null, and a fault in ``faults``."""
        ...


@dataclass(frozen=True)
class RegistryDecoder:
    """Decodes values of a kind of schema, ``"AVRO"`` or ``"PROTOBUF"``, to the columns of the query.

    ``make`` makes the reading of a writer's schema, and raises any error where it can't become the columns.
    ``number`` is the key of a process' readings.
    """

    registry: Registry
    kind: str
    columns: pa.StructType
    make: Callable[[RegisteredSchema], Reading]
    part: str
    label: str
    number: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def dtype(self) -> pa.DataType:
        """The type of the decoded values."""
        return self.columns

    def decode(self, values: Sequence[bytes | None], faults: list[str | None], heads: Heads = None) -> pa.Array:
        """Return the decoded values."""
        parts: list[tuple[list[int], pa.Array]] = []
        values = [*values]
        for number, places in by_schema(values, faults, self.part, heads).items():
            reading = self._reading(number)
            if isinstance(reading, str):
                for at in places:
                    faults[at] = undecodable(reading)
                continue
            rows, misfitting = reading([values[at] for at in places])  # type: ignore[misc]  # none of them is None
            for at, fault in zip(places, misfitting, strict=True):
                if fault is not None:
                    faults[at] = undecodable(f"the {self.part} does not fit schema {number}: {fault}")
            if rows is not None:
                parts.append((places, rows))
        return in_order(parts, len(values), self.columns)

    def _reading(self, number: SchemaName) -> Reading | str:
        """Return the reading of a schema, or the reason why it has none."""
        kept = _READINGS.get((self.number, number))
        if kept is not None:
            return kept  # type: ignore[no-any-return]
        try:
            schema = SchemaLookup(self.registry, self.label).by_id(number)
        except MissingReferenceError as error:
            return f"the {self.part}'s schema {number} can't be read: {error}"
        if schema is None:
            # Not kept, since it may be registered a moment later.
            return f"the {self.part}'s schema {number} is not in the registry {self.registry.title}"
        if schema.kind != self.kind:
            made: Any = f"the {self.part}'s schema {number} is {schema.kind}, expected {self.kind}"
        else:
            try:
                made = self.make(schema)
            except Exception as error:  # noqa: BLE001 - the errors of formats' libraries have no common root
                why = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                made = f"the {self.part}'s schema {number} can't be read as the columns of the query: {why}"
        if len(_READINGS) >= _MOST_KEPT:
            _READINGS.clear()
        _READINGS[self.number, number] = made
        return made  # type: ignore[no-any-return]


@dataclass(frozen=True)
class FramedJson:
    """Takes JSON out of the wire format, for Spark to parse."""

    registry: Registry
    part: str
    label: str

    @property
    def dtype(self) -> pa.DataType:
        """The type of JSON."""
        return pa.binary()

    def decode(self, values: Sequence[bytes | None], faults: list[str | None], heads: Heads = None) -> pa.Array:
        """Return the JSON of values."""
        texts: list[bytes | None] = [None] * len(values)
        lookup, values = SchemaLookup(self.registry, self.label), [*values]
        for number, places in by_schema(values, faults, self.part, heads).items():
            why: str | None = f"not in the registry {self.registry.title}"
            try:
                schema = lookup.by_id(number)
            except MissingReferenceError:
                why = None  # the columns are known, and JSON needs no schema to be parsed
            else:
                if schema is not None:
                    why = None if schema.kind == "JSON" else f"{schema.kind}, expected JSON"
            if why is not None:
                for at in places:
                    faults[at] = undecodable(f"the {self.part}'s schema {number} is {why}")
                continue
            for at in places:
                value = (values[at] or b"")[HEADER:]
                problem = json_problem(value)
                if problem is None:
                    texts[at] = value
                else:
                    faults[at] = undecodable(f"the {self.part} is not JSON: {problem}: got {value[:_SHOWN]!r}")
        return pa.array(texts, pa.binary())


_SHOWN = 100
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_JSON = json.JSONDecoder(parse_int=len, parse_float=len)
"""Numbers are not made, which may have millions of digits."""


def json_problem(value: bytes) -> str | None:
    r"""Return why bytes are not JSON; None if they are. It costs about a microsecond for 100 bytes.

    Spark reads an object and leaves out what follows it, so that the rest of a damaged value would be lost in silence;
    it takes quotes that JSON does not have; and half of a surrogate pair becomes another character.

    >>> json_problem(b'{"id": 1}'), json_problem(b'{"id": 1}}')
    (None, 'Extra data: line 1 column 10 (char 9)')
    >>> json_problem(b'{"tier": "\\ud83d"}')
    'it has half of a surrogate pair'
    """
    try:
        parsed = _JSON.decode(value.decode())
        if _SURROGATE.search(value):
            json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "it has half of a surrogate pair"
    except RecursionError:
        return "it is too deep"
    except ValueError as error:  # also bytes that are not UTF-8
        return str(error)
    return None


def in_order(parts: Sequence[tuple[list[int], pa.Array]], count: int, dtype: pa.DataType) -> pa.Array:
    """Return rows of several schemas, with their records' places, in the order of all records; others are null."""
    if len(parts) == 1 and len(parts[0][0]) == count:
        return parts[0][1]
    source: list[int | None] = [None] * count
    begin = 0
    for places, rows in parts:
        for number, at in enumerate(places, begin):
            source[at] = number
        begin += len(rows)
    together = pa.concat_arrays([rows for _, rows in parts]) if parts else pa.nulls(0, dtype)
    return together.take(pa.array(source, pa.int64()))


def rows_by_themselves(values: Sequence[Any], faults: list[str | None], dtype: pa.DataType) -> pa.Array:
    """Return values as rows where some can't be: those become null and faults, one by one."""
    try:
        return pa.array(values, dtype)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        pass
    kept: list[Any] = []
    for at, value in enumerate(values):
        why = _misfit(value, dtype)
        faults[at] = why or faults[at]
        kept.append(None if why else value)
    return pa.array(kept, dtype)


def _misfit(value: Any, dtype: pa.DataType) -> str | None:
    """Return why Arrow does not take a value, with the field that it is in; None where it does."""
    try:
        pa.array([value], dtype)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        parts = [(each.name, each.type) for each in dtype] if pa.types.is_struct(dtype) else []
        inner = ((name, _misfit(value.get(name), kind)) for name, kind in parts if isinstance(value, dict))
        where = next((f"field {name!r}: {why}" for name, why in inner if why is not None), None)
        return where or f"{type(error).__name__}: {error}"
    return None


def misfits(actual: pa.DataType, wanted: pa.DataType) -> list[str]:
    """Return the reasons why values of a type can't become those of another.

    >>> misfits(pa.struct([("tier", pa.string()), ("note", pa.string())]), pa.struct([("tier", pa.int64())]))
    ["field 'tier' changes from string to bigint"]
    """
    return differences(_narrowed(actual, wanted), wanted)


def _narrowed(actual: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Return a type without the fields that are not wanted, at any depth."""
    types = pa.types
    if types.is_null(actual):
        return wanted
    if types.is_struct(actual) and types.is_struct(wanted):
        known = {field.name: field for field in wanted}
        return pa.struct(
            [field.with_type(_narrowed(field.type, known[field.name].type)) for field in actual if field.name in known]
        )
    if types.is_list(actual) and types.is_list(wanted):
        return pa.list_(_narrowed(actual.value_type, wanted.value_type))
    if types.is_map(actual) and types.is_map(wanted):
        return pa.map_(actual.key_type, _narrowed(actual.item_type, wanted.item_type))
    return actual
