"""Serializers of values with a schema of a registry: which schema it is, and rows as Avro, Protobuf or JSON.

The schema is chosen before the query starts: the version that the user names, or the newest of the subject, or, where
the registry has no such subject, one that is made of the output's columns and registered. The columns that are written
are the schema's fields; columns that it does not have are left out. A run keeps the schema that it began with.

Rows are written on the workers, one after another. A registry that does not answer ends the query, before anything of
the batch is written if that is a transaction; so does a row that does not fit the schema.

- Avro is written by confluent-kafka's own serializer, in some 20 microseconds a row.
- Protobuf is written by Google's own runtime, in some 3 microseconds a row of five columns. A null leaves its field
  unset; where the schema distinguishes it from an absent one, as an optional field, it is read back as null, and any
  other field as its default, such as 0. Lists and maps can't hold null.
- JSON is written by Spark's ``to_json``, and confluent-kafka's own serializer holds it to the schema, in some 50
  microseconds a row. Spark leaves out fields that are null; one that the schema asks for, and that may be null, is put
  back. Numbers are read and written as doubles, so a decimal of more digits is refused before the query starts.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from struct import error as StructError  # noqa: N812 - a class of the standard library's
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import QueryFailedError, SchemaError, did_you_mean
from cojoin.kafka.formats.avro_columns import avro_schema, can_be_written_as
from cojoin.kafka.formats.avro_decoder import avro_columns
from cojoin.kafka.formats.json_schema import fits_json_type, is_null, json_columns, json_schema_text, referred
from cojoin.kafka.formats.proto_decoder import is_repeated, proto_columns
from cojoin.kafka.formats.proto_files import fits_field_type, message_type, place_of, proto_schema
from cojoin.kafka.formats.record_formats import KINDS, AvroFormat, JsonSchemaFormat, ProtobufFormat, RegistryFormat
from cojoin.kafka.formats.registry import RegisteredSchema, SchemaLookup, check_registry
from cojoin.kafka.formats.wire_format import head_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cojoin.kafka.formats.registry import Registry


@dataclass(frozen=True)
class ValueSchema:
    """The schema of an output's values, and the output's columns that are written.

    ``number`` is its id; None before it is registered. ``message`` is the name of the message type of Protobuf; None is
    the first one.
    """

    registered: RegisteredSchema
    columns: pa.Schema
    subject: str
    number: int | None
    message: str | None = None


@dataclass(frozen=True)
class _Writing:
    """The differences between the formats, of which ``shape`` is the kind of a schema of rows, for messages.

    ``made`` makes a schema of columns, and ``fits`` returns whether a column can be written as a field, by their types.
    """

    shape: str
    packages: tuple[str, ...]
    made: Callable[[pa.Schema, str, str], str]
    fits: Callable[[pa.DataType, pa.DataType], bool]


_OTHER_SCHEMA = "name another schema with subject="
_WRITING: dict[type, _Writing] = {
    AvroFormat: _Writing("an Avro record", ("fastavro",), avro_schema, can_be_written_as),
    ProtobufFormat: _Writing("a Protobuf message", ("google.protobuf",), proto_schema, fits_field_type),
    JsonSchemaFormat: _Writing("a JSON schema", ("jsonschema",), json_schema_text, fits_json_type),
}


def find_schema(chosen: RegistryFormat, schema: pa.Schema, topic: str, label: str) -> ValueSchema:
    """Return the schema with which an output is written, without a number if it has to be registered.

    A schema that is made here is named after the topic.
    """
    form, kind, subject = _WRITING[type(chosen)], KINDS[type(chosen)].name, str(chosen.subject)
    message = chosen.message if isinstance(chosen, ProtobufFormat) else None
    check_registry(label, *form.packages)
    version = chosen.schema if isinstance(chosen.schema, int) else None
    answer = SchemaLookup(chosen.registry, label, at_start=True).newest_of(subject, version)
    if answer is None:
        if message is not None:
            msg = (
                f"{label}: value: protobuf: message: expected none, got {message!r}: the schema registry "
                f"{chosen.registry.title} has no subject {subject!r}, and a type that is made of columns is named "
                f"after the topic; register the type, or leave message= out"
            )
            raise SchemaError(msg)
        return ValueSchema(RegisteredSchema(kind, form.made(schema, topic, label)), schema, subject, None)
    number, registered = answer
    place = f"{label}: value: subject {subject!r} of the schema registry {chosen.registry.title}"
    if registered.kind != kind or (registered.kind == "AVRO" and not _is_record(registered.text)):
        msg = (
            f"{place}: expected {form.shape}, got {registered.kind} {registered.text[:60]}; name another with subject="
        )
        raise SchemaError(msg)
    fields = _fields(registered, message, place)
    columns = pa.schema([field for field in schema if field.name in fields.names])
    _check(fields, schema, _needed(registered, message), form.fits, place)
    return ValueSchema(registered, columns, subject, number, message)


def _check(
    fields: pa.Schema,
    schema: pa.Schema,
    needed: set[str],
    fits: Callable[[pa.DataType, pa.DataType], bool],
    place: str,
) -> None:
    own = {field.name: field.type for field in schema}
    for field in fields:
        if field.name not in own:
            if field.name not in needed:
                continue
            near = did_you_mean(field.name, own)
            msg = f"{place} has a field {field.name!r} without a default, and the output no such column{near}"
            raise SchemaError(msg)
        if not fits(own[field.name], field.type):
            msg = (
                f"{place}: field {field.name!r} takes {type_to_ddl(field.type)}, and the output's column is "
                f"{type_to_ddl(own[field.name])}; cast the column, or register a version that takes it"
            )
            raise SchemaError(msg)
    if not any(field.name in own for field in fields):
        msg = f"{place} has the fields {', '.join(fields.names)}, and the output none of these columns"
        raise SchemaError(msg)


def _is_record(text: str) -> bool:
    parsed = json.loads(text)
    return isinstance(parsed, dict) and parsed.get("type") == "record"


def _fields(registered: RegisteredSchema, message: str | None, place: str) -> pa.Schema:
    if registered.kind == "AVRO":
        return pa.schema(list(avro_columns(registered, "value", place)))
    if registered.kind == "PROTOBUF":
        return pa.schema(list(proto_columns(registered, message, place, _OTHER_SCHEMA)))
    if registered.references:
        named = ", ".join(name for name, _ in registered.references)
        msg = f"{place} refers to other schemas, {named}, and rows are held to schemas of one file; {_OTHER_SCHEMA}"
        raise SchemaError(msg)
    return pa.schema(list(json_columns(registered, place, _OTHER_SCHEMA, _OTHER_SCHEMA)))


def _needed(registered: RegisteredSchema, message: str | None) -> set[str]:
    """Return the fields that each value must have."""
    if registered.kind == "PROTOBUF":
        return {each.name for each in message_type(registered, message).fields if _is_required(each)}
    parsed: dict[str, Any] = json.loads(registered.text)
    if registered.kind == "AVRO":
        return {each["name"] for each in parsed["fields"] if "default" not in each}
    return set(parsed.get("required", ()))


def _is_required(field: Any) -> bool:
    # Protobuf 7 has no `label`, and earlier ones no `is_required`.
    return bool(field.is_required) if hasattr(field, "is_required") else bool(field.label == field.LABEL_REQUIRED)


_OF_A_ROW = (ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError, StructError)


@dataclass(frozen=True)
class RegistryValues:
    """Writes rows with a schema of a registry; it is sent to the workers."""

    registry: Registry
    schema: ValueSchema
    topic: str
    label: str

    @classmethod
    def of(cls, chosen: RegistryFormat, schema: pa.Schema, topic: str, label: str) -> RegistryValues:
        """Return the serializer of an output; its schema (``find_schema``) is registered if the registry has none."""
        value_schema = find_schema(chosen, schema, topic, label)
        if value_schema.number is None:
            lookup = SchemaLookup(chosen.registry, label, at_start=True)
            value_schema = replace(value_schema, number=lookup.register(value_schema.subject, value_schema.registered))
        return cls(chosen.registry, value_schema, topic, label)

    @property
    def from_json(self) -> bool:
        """Whether ``encode`` takes one column with each row's JSON, and not the columns themselves."""
        return self.schema.registered.kind == "JSON"

    def encode(self, rows: pa.Table) -> list[bytes]:
        """Return rows with the columns of ``schema`` as values; one that does not fit is a QueryFailedError."""
        kind = self.schema.registered.kind
        if kind == "PROTOBUF":
            prepared, written = _messages_of(self.schema)
            return self._values(prepared(rows), written)
        from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415 - as below

        context = SerializationContext(self.topic, MessageField.VALUE)
        settings = {
            "auto.register.schemas": False,
            "use.schema.id": self.schema.number,
            "subject.name.strategy": lambda *_: self.schema.subject,
        }
        objects = _avro_rows(self.schema, rows) if kind == "AVRO" else _json_rows(self.schema, rows)

        def encoded(client: Any) -> list[bytes]:
            write: Callable[[Any, Any], bytes]
            if kind == "AVRO":
                from confluent_kafka.schema_registry.avro import AvroSerializer  # noqa: PLC0415 - takes half a second

                write = AvroSerializer(client, None, conf=settings)
            else:
                from confluent_kafka.schema_registry.json_schema import JSONSerializer  # noqa: PLC0415 - as above

                write = JSONSerializer(self.schema.registered.text, client, conf=settings)
            return self._values(objects, lambda row: write(row, context))

        values: list[bytes] = SchemaLookup(self.registry, self.label).ask(encoded)
        return values

    def _values(self, rows: list[Any], write: Callable[[Any], bytes]) -> list[bytes]:
        from confluent_kafka.serialization import SerializationError  # noqa: PLC0415 - as above

        values: list[bytes] = []
        for row in rows:
            try:
                values.append(write(row))
            except (*_OF_A_ROW, SerializationError) as error:  # noqa: PERF203 - the error names the row
                msg = (
                    f"{self.label}: a row can't be written with schema {self.schema.number} of subject "
                    f"{self.schema.subject!r}: {type(error).__name__}: {error}; nothing of the batch was committed. "
                    f"Register a version that takes it, and start the query again"
                )
                raise QueryFailedError(msg) from None
        return values


_OTHER_UNITS = ("-millis", "-nanos")


def _avro_rows(schema: ValueSchema, rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows with the columns of a schema as dictionaries of values that the serializer takes."""
    types = {each["name"]: each["type"] for each in json.loads(schema.registered.text)["fields"]}
    texts = [schema.registered.text, *(text for _, text in schema.registered.references)]
    has_objects = any(map(_has_other_units, texts))

    def of_serializer(name: str, column: pa.ChunkedArray) -> list[Any]:
        # An object for each time would cost as much as writing it, but of a number the serializer makes no other unit.
        is_plain = not pa.types.is_nested(column.type) and not _has_other_units(json.dumps(types[name]))
        return _prepared(_in_numbers(column) if is_plain or not has_objects else column)

    prepared = [of_serializer(name, rows.column(at)) for at, name in enumerate(schema.columns.names)]
    names = schema.columns.names
    return [dict(zip(names, values, strict=True)) for values in zip(*prepared, strict=True)]


def _has_other_units(text: str) -> bool:
    return any(each in text for each in _OTHER_UNITS)


def _prepared(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Return a column's values as fastavro takes them."""
    convert = _converter(column.type)
    values: list[Any] = column.to_pylist()
    return values if convert is None else [None if each is None else convert(each) for each in values]


def _converter(dtype: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function that makes a value one of fastavro's; None where all are, as a map's list of pairs is not."""
    if pa.types.is_map(dtype):
        inner = _converter(dtype.item_type)
        return lambda pairs: {key: _applied(inner, value) for key, value in pairs}
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        inner = _converter(dtype.value_type)
        return None if inner is None else lambda values: [_applied(inner, value) for value in values]
    if pa.types.is_struct(dtype):
        fields = {field.name: convert for field in dtype if (convert := _converter(field.type)) is not None}
        if not fields:
            return None
        return lambda value: {**value, **{name: _applied(convert, value[name]) for name, convert in fields.items()}}
    return None


def _applied(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


_MICROS, _NANOS = 1_000_000, 1_000
_ENUM = 14
_AS_JSON = ("Struct", "Value", "ListValue")


@lru_cache(maxsize=16)  # the types are made once a process, not once a batch of Arrow's
def _messages_of(
    schema: ValueSchema,
) -> tuple[Callable[[pa.Table], list[dict[str, Any]]], Callable[[dict[str, Any]], bytes]]:
    """Return a function that makes rows dictionaries of a message's fields, and one that serializes those."""
    from google.protobuf.message import EncodeError  # noqa: PLC0415 - optional

    assert schema.number is not None, "it is registered before rows are written"
    descriptor = message_type(schema.registered, schema.message)
    made, head = _message_of(descriptor, schema.columns), head_of(schema.number, place_of(descriptor))
    names = schema.columns.names

    def prepared(rows: pa.Table) -> list[dict[str, Any]]:
        # Times as numbers: they keep their microseconds, and cost less than objects.
        whole = [_in_numbers(rows.column(at)).to_pylist() for at in range(len(names))]
        return [dict(zip(names, values, strict=True)) for values in zip(*whole, strict=True)]

    def written(row: dict[str, Any]) -> bytes:
        try:
            return head + bytes(made(row).SerializeToString(deterministic=True))
        except EncodeError as error:  # a required field of proto2 is null
            raise ValueError(str(error)) from None

    return prepared, written


def _message_of(descriptor: Any, columns: Iterable[pa.Field]) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that makes a row a message; columns that are not fields of its type are left out."""
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - optional

    made, fields = GetMessageClass(descriptor), descriptor.fields_by_name
    converters = [(each.name, _of_field(fields[each.name], each.type)) for each in columns if each.name in fields]
    names = {name for name, _ in converters}
    members = [[field.name for field in choice.fields if field.name in names] for choice in descriptor.oneofs]
    choices = [each for each in members if len(each) > 1]

    def message(row: Mapping[str, Any]) -> Any:
        values = {name: convert(value) for name, convert in converters if (value := row[name]) is not None}
        for choice in choices:
            if len(several := [name for name in choice if name in values]) > 1:
                msg = f"{' and '.join(several)} are both set, and {descriptor.full_name} takes one of them"
                raise ValueError(msg)
        return made(**values)

    return message


def _of_field(field: Any, dtype: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that makes a column's value one that a field takes."""
    if not is_repeated(field):
        return _of_value(field, dtype)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        item = _of_value(entry.fields_by_name["value"], dtype.item_type)
        return lambda pairs: {key: _not_null(item, value) for key, value in pairs}
    one = _of_value(field, dtype.value_type)
    return lambda values: [_not_null(one, value) for value in values]


def _not_null(convert: Callable[[Any], Any], value: Any) -> Any:
    if value is None:
        msg = "a list or map holds null, which Protobuf's do not"
        raise ValueError(msg)
    return convert(value)


def _of_value(field: Any, dtype: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that makes a value one that a field takes, or an element or value of it."""
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - optional

    if field.message_type is None:
        if field.type == _ENUM:
            return _enum_of(field.enum_type)
        return int if pa.types.is_decimal(dtype) else lambda value: value
    made, name = GetMessageClass(field.message_type), field.message_type.full_name
    known = name.removeprefix("google.protobuf.") if name.startswith("google.protobuf.") else ""
    if known in ("Timestamp", "Duration"):
        return lambda micros: _time(made, micros, floored=known == "Timestamp")
    if known.endswith("Value") and not pa.types.is_struct(dtype) and known not in _AS_JSON:
        inner = _of_value(field.message_type.fields_by_name["value"], dtype)
        return lambda value: made(value=inner(value))
    if known in _AS_JSON:
        return lambda text: _parsed(made, text)
    return _message_of(field.message_type, dtype)


def _enum_of(enum: Any) -> Callable[[str], int]:
    numbers = {value.name: value.number for value in enum.values}

    def number(name: str) -> int:
        if name in numbers:
            return int(numbers[name])
        if name.removeprefix("-").isdecimal():  # as an unknown one is read
            return int(name)
        msg = f"{enum.full_name} has no value {name!r}"
        raise ValueError(msg)

    return number


def _time(made: Any, micros: int, *, floored: bool) -> Any:
    """Return a Timestamp, or a Duration, both parts of which have one sign."""
    seconds, left = divmod(micros, _MICROS)
    if not floored and seconds < 0 and left:
        seconds, left = seconds + 1, left - _MICROS
    return made(seconds=seconds, nanos=left * _NANOS)


def _parsed(made: Any, text: str) -> Any:
    from google.protobuf.json_format import Parse, ParseError  # noqa: PLC0415 - optional

    try:
        return Parse(text, made())
    except ParseError as error:
        raise ValueError(str(error)) from None


_CHOICES = ("oneOf", "anyOf")


def _json_rows(schema: ValueSchema, rows: pa.Table) -> list[Any]:
    """Return the rows, whose JSON is the only column, as objects."""
    root = json.loads(schema.registered.text)
    objects = [json.loads(text) for text in rows.column(0).to_pylist()]
    for row in objects:
        _put_nulls_back(row, root, root)
    return objects


def _put_nulls_back(value: Any, described: Any, root: Any) -> None:
    """Add the fields that an object must have, and that may be null, as nulls, to it and to all within it."""
    schema = _resolved(described, root)
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value and _may_be_null(properties.get(name, {}), root):
                value[name] = None
        for name, inner in value.items():
            _put_nulls_back(inner, properties.get(name, schema.get("additionalProperties")), root)
    elif isinstance(value, list):
        for inner in value:
            _put_nulls_back(inner, schema.get("items"), root)


def _resolved(described: Any, root: Any) -> dict[str, Any]:
    """Return a schema without its reference; of a choice between null and another schema, the other one."""
    while isinstance(described, dict):
        others = [one for name in _CHOICES for one in described.get(name, ()) if not is_null(one)]
        if "$ref" in described:
            try:
                described = referred(str(described["$ref"]), root, "")
            except ValueError:  # in another schema
                return {}
        elif len(others) == 1:
            described = others[0]
        else:
            return described
    return {}


def _may_be_null(described: Any, root: Any) -> bool:
    schema = described if isinstance(described, dict) else {}
    with suppress(ValueError):
        if "$ref" in schema:
            schema = referred(str(schema["$ref"]), root, "")
    kinds = schema.get("type", ())
    choices = [one for name in _CHOICES for one in schema.get(name, ())]
    return "null" in ([kinds] if isinstance(kinds, str) else kinds) or any(map(is_null, choices))


def _in_numbers(column: pa.ChunkedArray) -> pa.Array:
    """Return a column whose times and durations are numbers of microseconds, and its dates of days, at any depth.

    >>> _in_numbers(pa.chunked_array([pa.array([[1 << 60]]).cast(pa.list_(pa.timestamp("us", "UTC")))])).to_pylist()
    [[1152921504606846976]]
    """
    array, wanted = column.combine_chunks(), _type_in_numbers(column.type)
    return array if wanted == array.type else array.cast(wanted)


def _type_in_numbers(dtype: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(dtype) or pa.types.is_duration(dtype):
        return pa.int64()
    if pa.types.is_date32(dtype):
        return pa.int32()
    if pa.types.is_struct(dtype):
        return pa.struct([field.with_type(_type_in_numbers(field.type)) for field in dtype])
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        make = pa.list_ if pa.types.is_list(dtype) else pa.large_list
        return make(dtype.value_field.with_type(_type_in_numbers(dtype.value_type)))
    if pa.types.is_map(dtype):
        item = dtype.item_field.with_type(_type_in_numbers(dtype.item_type))
        return pa.map_(dtype.key_field, item)
    return dtype
