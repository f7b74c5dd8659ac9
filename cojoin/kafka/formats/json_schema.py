"""JSON schemas as columns, as far as Spark has types for what they describe, and columns as a JSON schema.

======================================================  ========================================
JSON schema                                             Spark
======================================================  ========================================
boolean, integer, number                                boolean, bigint, double
integer or number                                       double
string                                                  string
string with the format date-time, date                  timestamp, date
enum, const: of texts, of whole numbers, of numbers     string, bigint, double
enum of texts, numbers and booleans                     string: a number as JSON has it
object with properties                                  struct
object without, with additionalProperties: T            map<string, T>; so with one pattern of properties
array                                                   array
a type and null, by a list of types, oneOf or anyOf     that type
oneOf or anyOf of types that have one column            that type
allOf                                                   what all of them ask for; an object has all properties
======================================================  ========================================

``$ref`` follows references: within the schema, by pointer, ``$anchor`` or ``$id``, and to the schemas that the registry
has references to, by their names or their ``$id``. Nothing is fetched from elsewhere. Next to a ``$ref`` other keywords
count from the draft 2019-09 on. What has no type of Spark's, such as a choice of several types, is refused with its
place; the user then declares the columns as DDL. Only the types are read, not ranges, patterns or required properties.
Values are parsed by Spark, as any other JSON.

Kafka Connect's hints, such as ``connect.type`` and ``connect.index``, are left alone: a Decimal, Date or Timestamp is
the text or number that JSON has, and columns are in the order of the schema. With DDL a Decimal that is a number can be
read as ``decimal``, and bytes as ``binary``.

A schema that is made of columns is an object whose properties may be left out, as a column that is null is. Whole
numbers are ``integer``, float and double ``number``, timestamps ``string`` with the format ``date-time``, dates with
``date``; texts, ``timestamp_ntz`` and binary are ``string``, and are read back as texts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import SchemaError
from cojoin.kafka.formats.registry import check_registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cojoin.kafka.formats.registry import RegisteredSchema


_PLAIN = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_FORMATS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}
_TEXTS = (pa.string(), *_FORMATS.values())
_NUMBERS = (pa.int64(), pa.float64())
_ANY_OBJECT = pa.struct([])
"""The type of an object whose fields are not declared."""

_BIGINT = 1 << 63
_ELEMENTS = {"items", "prefixItems"}
_NEW_DRAFTS = ("2019-09", "2020-12")
_CURE = "give the columns as DDL, where a string takes any JSON as its text"
_DECODE = "such values are read by a function of yours: schema= and decode="


def json_columns(
    registered: RegisteredSchema, label: str, advice: str = _CURE, otherwise: str = _DECODE
) -> pa.StructType:
    """Return the columns of a JSON schema; errors end with ``advice``, or ``otherwise`` without an object."""
    texts = {"": registered.text, **dict(registered.references)}
    parsed: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            parsed[name] = json.loads(text)
        except (ValueError, RecursionError) as error:  # noqa: PERF203 - each has its name
            which = f"the JSON schema {name!r} that it refers to" if name else "the JSON schema"
            msg = f"{label}: {which} does not parse: {error}"
            raise SchemaError(msg) from error
    try:
        dtype = _Part(parsed.pop(""), label, "#", _Documents(parsed, label)).dtype()
    except _NoTypeError as error:
        msg = f"{error}; {advice}"
        raise SchemaError(msg) from None
    except RecursionError:
        msg = f"{label}: the JSON schema is too deep; {advice}"
        raise SchemaError(msg) from None
    if not pa.types.is_struct(dtype):
        cure = advice if pa.types.is_map(dtype) else otherwise
        msg = f"{label}: expected a JSON schema of an object with properties, got one of {dtype}; {cure}"
        raise SchemaError(msg)
    return dtype


def is_null(schema: Any) -> bool:
    """Return whether a schema allows null alone; its title does not count.

    >>> is_null({"type": "null", "title": "Not included"}), is_null({"type": ["null", "string"]})
    (True, False)
    """
    if not isinstance(schema, dict):
        return False
    return (
        schema.get("type") in ("null", ["null"])
        or schema.get("enum") == [None]
        or ("const" in schema and schema["const"] is None)
    )


class _NoTypeError(ValueError):
    """A part of a schema has no type of Spark's."""


class _Documents:
    """The schemas that the registry refers to, by the names by which it does, and the resolver of references."""

    def __init__(self, parsed: dict[str, Any], label: str) -> None:
        self._parsed, self._label = parsed, label
        self._resolver: Any = None
        self._own: Any = None

    def of(self, root: Any) -> Any:
        """Return the resolver of the schema itself."""
        if self._own is not None:
            return self._own
        check_registry(self._label, "jsonschema")
        from referencing import Registry  # noqa: PLC0415 - optional; jsonschema needs it

        named = [(name, _resource(contents)) for name, contents in self._parsed.items()]
        # By their own ids as well, which may differ from the registry's names.
        own = [(resource.id(), resource) for _, resource in named if resource.id() is not None]
        registry = Registry().with_resources([*own, *named])
        self._resolver = registry.resolver()
        self._own = registry.resolver_with_root(_resource(root))
        return self._own

    def followed(self, reference: str, resolver: Any) -> tuple[Any, Any, str] | None:
        """Return the part of a schema that a reference names, its resolver and its place; None if there is none."""
        from referencing.exceptions import Unresolvable  # noqa: PLC0415 - optional

        # A name of the registry's is one as it stands, also in a schema with an id.
        for candidate in (resolver, self._resolver):
            try:
                target = candidate.lookup(reference)
            except (Unresolvable, ValueError, TypeError, AttributeError):  # the latter of odd pointers
                continue
            return target.contents, target.resolver, reference
        return None


def _resource(contents: Any) -> Any:
    from referencing import Resource  # noqa: PLC0415 - optional
    from referencing.jsonschema import DRAFT7  # noqa: PLC0415 - optional

    # A schema of an unknown draft is read as draft 7, as confluent-kafka's own serializer does.
    return Resource.from_contents(contents, default_specification=DRAFT7)


class _Part:
    """A part of a schema, whose place is a pointer.

    ``resolver`` resolves its references; None until the first is followed. ``within`` has the parts that references led
    to on the way, by their identity. ``root`` is the whole schema.
    """

    def __init__(
        self,
        schema: Any,
        label: str,
        place: str,
        documents: _Documents,
        resolver: Any = None,
        within: Sequence[int] = (),
        root: Any = None,
    ) -> None:
        self._schema = schema if isinstance(schema, dict) else {}
        self._label, self._place, self._documents = label, place, documents
        self._resolver, self._root = resolver, schema if root is None else root
        self._within = within or (id(schema),)

    def _inner(self, schema: Any, *path: str | int, of: str = "") -> _Part:
        """Return a part of this part, with its path and, for messages, its role in this one."""
        label = f"{self._label}: {of}" if of else self._label
        place = "/".join([self._place, *(str(each).replace("~", "~0").replace("/", "~1") for each in path)])
        resolver = self._resolver
        if isinstance(schema, dict) and "$id" in schema:  # what it refers to is relative to this
            resolver = (resolver or self._documents.of(self._root)).in_subresource(_resource(schema))
        return _Part(schema, label, place, self._documents, resolver, self._within, self._root)

    def _refuse(self, got: str) -> NoReturn:
        msg = f"{self._label}: expected a JSON schema with a type of Spark's, got {got}, at {self._place}"
        raise _NoTypeError(msg)

    def dtype(self) -> pa.DataType:
        """Return the type of a column; raises _NoTypeError where there is none."""
        declared = self.declared()
        if declared is None or declared == _ANY_OBJECT:
            kinds = self._kinds()
            self._refuse(
                "any object" if declared is not None else "null alone" if is_null(self._schema) else _joined(kinds)
            )
        return declared

    def _kinds(self) -> list[str]:
        kinds = self._schema.get("type")
        return [str(each) for each in ([kinds] if isinstance(kinds, str) else kinds or []) if each != "null"]

    def declared(self) -> pa.DataType | None:
        """Return the type that the part asks for; None where it takes any."""
        schema = self._schema
        types: list[pa.DataType | None] = []
        if "$ref" in schema:
            referred, dialect = self._referred(), self._root.get("$schema") if isinstance(self._root, dict) else None
            if referred is not None and not any(draft in str(dialect) for draft in _NEW_DRAFTS):
                return referred
            types.append(referred)
        members = schema.get("allOf")
        members = members if isinstance(members, list) else []
        types += [self._inner(dtype, "allOf", at).declared() for at, dtype in enumerate(members)]
        choices = [dtype for dtype in ("oneOf", "anyOf") if isinstance(schema.get(dtype), list)]
        types += [self._choice(dtype) for dtype in choices]
        types.append(self._own())
        together: pa.DataType | None = None
        for dtype in types:
            together = self._both(together, dtype)
        return together

    def _referred(self) -> pa.DataType | None:
        reference = str(self._schema["$ref"])
        resolver = self._documents.of(self._root) if self._resolver is None else self._resolver
        target = self._documents.followed(reference, resolver)
        if target is None:
            self._refuse(f"the reference {reference!r}, to which neither it nor the registry has a schema")
        contents, resolver, place = target
        if id(contents) in self._within:
            msg = f"{self._label}: {reference} contains itself, which no column of Spark's can, at {self._place}"
            raise _NoTypeError(msg)
        place = f"{self._place.partition('#')[0]}{place}" if place.startswith("#") else place
        place = place if "#" in place else f"{place}#"
        within = (*self._within, id(contents))
        return _Part(contents, self._label, place, self._documents, resolver, within, self._root).declared()

    def _choice(self, name: str) -> pa.DataType | None:
        """Return the type of a choice; one of its members may be null."""
        members = [(at, each) for at, each in enumerate(self._schema[name]) if not is_null(each)]
        types = [self._inner(each, name, at).declared() for at, each in members]
        known = [each for each in types if each is not None]
        if not known:  # they require some of the properties, for instance
            return None
        if len(known) == len(types):
            first = known[0]
            if all(each.equals(first) for each in known):
                return first
            if all(each in _NUMBERS for each in known):
                return pa.float64()
            if all(each in _TEXTS for each in known):
                return pa.string()
        return self._refuse(f"{name} of {len(types)} types")

    def _own(self) -> pa.DataType | None:  # noqa: PLR0911 - one for each kind
        """Return the type that keywords besides choices ask for."""
        schema, kinds = self._schema, self._kinds()
        values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
        if len(kinds) != 1 and isinstance(values, list):
            return self._of_values([each for each in values if each is not None])
        if set(kinds) == {"integer", "number"}:
            return pa.float64()
        kind = kinds[0] if len(kinds) == 1 else "object" if not kinds and "properties" in schema else None
        if kind == "string":
            form = schema.get("format")
            return _FORMATS.get(form, pa.string()) if isinstance(form, str) else pa.string()
        if kind in _PLAIN:
            return _PLAIN[kind]
        if kind == "array":
            return self._array()
        if kind == "object":
            return self._object()
        if kinds:
            self._refuse(_joined(kinds))
        return None

    def _array(self) -> pa.DataType:
        items = self._schema.get("items")
        if not isinstance(items, dict):
            self._refuse(f"an array of {'several types' if self._schema.keys() & _ELEMENTS else 'any elements'}")
        return pa.list_(self._inner(items, "items", of="an element").dtype())

    def _object(self) -> pa.DataType:
        schema = self._schema
        properties, patterns = schema.get("properties"), schema.get("patternProperties")
        if isinstance(properties, dict) and properties:
            fields = [
                (name, self._inner(inner, "properties", name, of=f"property {name!r}").dtype())
                for name, inner in properties.items()
            ]
            return pa.struct(fields)
        further = schema.get("additionalProperties")
        if isinstance(further, dict) and not patterns:
            return pa.map_(pa.string(), self._inner(further, "additionalProperties", of="a value").dtype())
        if isinstance(patterns, dict) and len(patterns) == 1 and not isinstance(further, dict):
            ((pattern, inner),) = patterns.items()
            return pa.map_(pa.string(), self._inner(inner, "patternProperties", pattern, of="a value").dtype())
        return _ANY_OBJECT

    def _of_values(self, values: list[Any]) -> pa.DataType:
        """Return the type that holds some values."""
        classes = {type(each) for each in values}
        if classes <= {int} and values and all(-_BIGINT <= each < _BIGINT for each in values):
            return pa.int64()
        for dtype, some in ((pa.string(), {str}), (pa.bool_(), {bool}), (pa.float64(), {int, float})):
            if classes <= some:  # a text where null is the only value
                return dtype
        texts = {each if isinstance(each, str) else json.dumps(each) for each in values}
        if classes <= {str, bool, int, float} and len(texts) == len(values):
            return pa.string()
        return self._refuse(f"the values {json.dumps(values)[:100]}")

    def _both(self, one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
        """Return the type that holds the values of both types."""
        if one is None or other is None or one.equals(other):
            return other if one is None else one
        pair = {one, other}
        if pair == set(_NUMBERS):
            return pa.int64()
        if pa.string() in pair and pair <= set(_TEXTS):
            return one if other == pa.string() else other
        if pa.types.is_struct(one) and pa.types.is_struct(other):
            fields = {field.name: field.type for field in one}
            for field in other:
                fields[field.name] = self._both(fields.get(field.name), field.type)
            return pa.struct(list(fields.items()))
        for mine, its in ((one, other), (other, one)):
            if pa.types.is_map(mine) and pa.types.is_struct(its):
                return its if len(its) else mine
        return self._refuse("several types at once")


def _joined(kinds: list[str]) -> str:
    return " or ".join(kinds) or "any type"


def referred(reference: str, root: Any, label: str) -> Any:
    """Return the part of a schema that a pointer within it names; raises ValueError where it leads to nothing within.

    >>> referred("#/a/b~1c", {"a": {"b/c": {"type": "string"}}}, "")
    {'type': 'string'}
    """
    part = root
    for name in reference.removeprefix("#").split("/")[1:]:
        part = part.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(part, dict) else None
    if (reference != "#" and not reference.startswith("#/")) or part is None:
        msg = f"{label}: the reference {reference!r} leads to nothing within the schema"
        raise ValueError(msg)
    return part


_DIALECT = "http://json-schema.org/draft-07/schema#"
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_REALS = (pa.float32(), pa.float64())
_STRING_TYPES, _BINARY_TYPES = (pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())
_LISTS = (pa.types.is_list, pa.types.is_large_list)
_TIMESTAMP, _TIMESTAMP_NTZ = pa.timestamp("us", "UTC"), pa.timestamp("us")
_EXACT_DIGITS = 15
"""The digits of a decimal that a double always keeps; numbers are read and written as doubles."""

_FORMS: dict[pa.DataType, tuple[str, str | None]] = {
    pa.bool_(): ("boolean", None),
    **dict.fromkeys(_INTEGERS, ("integer", None)),
    **dict.fromkeys(_REALS, ("number", None)),
    **dict.fromkeys((*_STRING_TYPES, *_BINARY_TYPES, _TIMESTAMP_NTZ), ("string", None)),
    _TIMESTAMP: ("string", "date-time"),
    pa.date32(): ("string", "date"),
}
"""The type and the format of a column."""

_WRITTEN_AS = {
    pa.float64(): (*_REALS, *_INTEGERS),
    pa.int64(): _INTEGERS,
    pa.string(): (*_STRING_TYPES, *_BINARY_TYPES, _TIMESTAMP, _TIMESTAMP_NTZ, pa.date32()),
}
"""The columns that can be written as a property that is read as this type."""


def json_schema_text(columns: Iterable[pa.Field], name: str, label: str) -> str:
    """Return the schema of an object with a property for each column; ``name`` is its title."""
    return json.dumps({"$schema": _DIALECT, "title": name, **_object_schema(columns, label)})


def _object_schema(columns: Iterable[pa.Field], label: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            column.name: _type_schema(column.type, f"{label}: column {column.name!r}") for column in columns
        },
    }


def _type_schema(dtype: pa.DataType, label: str) -> Any:
    if dtype in _FORMS:
        kind, form = _FORMS[dtype]
        return {"type": kind} if form is None else {"type": kind, "format": form}
    if _is_short_decimal(dtype):
        return {"type": "number"}
    if pa.types.is_struct(dtype):
        return _object_schema(dtype, label)
    if any(is_list(dtype) for is_list in _LISTS):
        return {"type": "array", "items": _or_null(_type_schema(dtype.value_type, f"{label}, an element"))}
    if pa.types.is_map(dtype):
        return {"type": "object", "additionalProperties": _or_null(_type_schema(dtype.item_type, f"{label}, a value"))}
    wide = pa.types.is_decimal(dtype)
    why = f"a JSON number keeps {_EXACT_DIGITS} digits of" if wide else "JSON schemas do not have"
    msg = f"{label} has the type {type_to_ddl(dtype)}, which {why}; cast it to string, or write plain JSON"
    raise SchemaError(msg)


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, schema]}


def _is_short_decimal(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(dtype)) and dtype.precision <= _EXACT_DIGITS


def fits_json_type(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether each value of a column's type, as far as types go, is one of a property's; null is not looked at.

    >>> fits_json_type(pa.int32(), pa.float64()), fits_json_type(pa.string(), pa.int64())
    (True, False)
    """
    if pa.types.is_struct(want):
        if not pa.types.is_struct(have):
            return False
        mine = {field.name: field.type for field in want}
        return all(each.name not in mine or fits_json_type(each.type, mine[each.name]) for each in have)
    if pa.types.is_list(want):
        return any(is_list(have) for is_list in _LISTS) and fits_json_type(have.value_type, want.value_type)
    if pa.types.is_map(want):
        return pa.types.is_map(have) and fits_json_type(have.item_type, want.item_type)
    return have in _WRITTEN_AS.get(want, (want,)) or (want == pa.float64() and _is_short_decimal(have))
