"""Which schema of a registry an output's values are written with.

It is found before the query starts: the version that the user names, or the newest of the subject, or, where the
registry has no such subject, one that is made of the output's columns and registered. The schema's fields say which
columns are written; columns that it does not have are left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import SchemaError, did_you_mean
from cojoin.kafka.formats.avro_schema import avro_schema, can_be_written_as
from cojoin.kafka.formats.json_schema_texts import fits_json_type, json_schema_text
from cojoin.kafka.formats.proto_schema import fits_field_type, proto_schema
from cojoin.kafka.formats.record_formats import AvroFormat, JsonSchemaFormat, ProtobufFormat
from cojoin.kafka.formats.schema_lookup import FoundSchema, SchemaLookup, check_registry

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RegistryFormat", "ValueSchema", "find_schema"]

RegistryFormat: TypeAlias = AvroFormat | ProtobufFormat | JsonSchemaFormat


@dataclass(frozen=True)
class ValueSchema:
    """The schema of an output's values.

    Attributes:
        found: The schema.
        columns: The output's columns that are written.
        subject: Its subject.
        number: Its id; None before it is registered.
        message: With Protobuf, the name of the message type; None is the first one.
    """

    found: FoundSchema
    columns: pa.Schema
    subject: str
    number: int | None
    message: str | None = None


@dataclass(frozen=True)
class _Kind:
    """What differs between the formats.

    Attributes:
        name: As the registry has it.
        shape: What a schema of rows is, for messages.
        packages: What writing needs.
        made: Makes a schema of columns.
        fits: Whether a column can be written as a field, by their types.
    """

    name: str
    shape: str
    packages: tuple[str, ...]
    made: Callable[[pa.Schema, str, str], str]
    fits: Callable[[pa.DataType, pa.DataType], bool]


_OTHER_SCHEMA = "name another schema with subject="
_KINDS: dict[type, _Kind] = {
    AvroFormat: _Kind("AVRO", "an Avro record", ("fastavro",), avro_schema, can_be_written_as),
    ProtobufFormat: _Kind("PROTOBUF", "a Protobuf message", ("google.protobuf",), proto_schema, fits_field_type),
    JsonSchemaFormat: _Kind("JSON", "a JSON schema", ("jsonschema",), json_schema_text, fits_json_type),
}


def find_schema(chosen: RegistryFormat, schema: pa.Schema, topic: str, what: str) -> ValueSchema:
    """Return the schema with which an output is written, without a number if it has to be registered.

    Args:
        chosen: The format.
        schema: The output's columns.
        topic: The topic, after which a schema that is made here is named.
        what: The output and the sink, for messages.

    Raises:
        EnvironmentSetupError: A package is missing.
        ConfigurationError: There is no such version, or the registry refuses the login.
        SchemaError: The columns can't be written with the schema, or have no form in it.
        QueryFailedError: The registry does not answer.
    """
    kind, subject = _KINDS[type(chosen)], str(chosen.subject)
    message = chosen.message if isinstance(chosen, ProtobufFormat) else None
    check_registry(what, *kind.packages)
    version = chosen.schema if isinstance(chosen.schema, int) else None
    answer = SchemaLookup(chosen.registry, what, at_start=True).newest_of(subject, version)
    if answer is None:
        if message is not None:
            msg = (
                f"{what}: value: protobuf: message: expected none, got {message!r}: the schema registry "
                f"{chosen.registry.title} has no subject {subject!r}, and a type that is made here is named after the "
                f"topic; register the type, or leave message= out"
            )
            raise SchemaError(msg)
        return ValueSchema(FoundSchema(kind.name, kind.made(schema, topic, what)), schema, subject, None)
    number, found = answer
    place = f"{what}: value: subject {subject!r} of the schema registry {chosen.registry.title}"
    if found.kind != kind.name or (found.kind == "AVRO" and not _is_record(found.text)):
        msg = f"{place}: expected {kind.shape}, got {found.kind} {found.text[:60]}; name another with subject="
        raise SchemaError(msg)
    fields = _fields(found, message, place)
    columns = pa.schema([field for field in schema if field.name in fields.names])
    _check(fields, schema, _needed(found, message), kind.fits, place)
    return ValueSchema(found, columns, subject, number, message)


def _check(
    fields: pa.Schema,
    schema: pa.Schema,
    needed: set[str],
    fits: Callable[[pa.DataType, pa.DataType], bool],
    place: str,
) -> None:
    """Check that an output's columns can be written as a schema's fields."""
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


def _fields(found: FoundSchema, message: str | None, place: str) -> pa.Schema:
    """Return a schema's fields as columns."""
    if found.kind == "AVRO":
        from cojoin.kafka.formats.avro_decoder import avro_columns  # noqa: PLC0415 - optional

        return pa.schema(list(avro_columns(found, "value", place)))
    if found.kind == "PROTOBUF":
        from cojoin.kafka.formats.proto_decoder import proto_columns  # noqa: PLC0415 - optional

        return pa.schema(list(proto_columns(found, message, place, _OTHER_SCHEMA)))
    if found.references:
        named = ", ".join(name for name, _ in found.references)
        msg = f"{place} refers to other schemas, {named}, and rows are held to schemas of one file; {_OTHER_SCHEMA}"
        raise SchemaError(msg)
    from cojoin.kafka.formats.json_columns import json_columns  # noqa: PLC0415 - as above

    return pa.schema(list(json_columns(found, place, _OTHER_SCHEMA, _OTHER_SCHEMA)))


def _needed(found: FoundSchema, message: str | None) -> set[str]:
    """Return the fields that each value must have."""
    if found.kind == "PROTOBUF":
        from cojoin.kafka.formats.proto_files import message_type  # noqa: PLC0415 - optional

        return {each.name for each in message_type(found, message).fields if _is_required(each)}
    parsed: dict[str, Any] = json.loads(found.text)
    if found.kind == "AVRO":
        return {each["name"] for each in parsed["fields"] if "default" not in each}
    return set(parsed.get("required", ()))


def _is_required(field: Any) -> bool:
    # Protobuf 7 has no `label`, and earlier ones no `is_required`.
    return bool(field.is_required) if hasattr(field, "is_required") else bool(field.label == field.LABEL_REQUIRED)
