"""Formats of values and keys, as a user declares them, and the columns and decoder to which they are resolved.

A format is a description. It is resolved when its source is opened: the reader's columns are then fixed for the query,
and are stored in its checkpoint. So a query that names no version, and starts again after the subject has got another
one, is refused as any query whose columns differ: it continues with ``schema=`` the version that it had, or with
``restore_from=`` in a new checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, get_args

import pyarrow as pa

from cojoin.engine.row_changes import DELETED
from cojoin.engine.values.arguments import check_word
from cojoin.engine.values.types import parse_schema, schema_to_ddl
from cojoin.errors import ConfigurationError, SchemaError
from cojoin.kafka.formats.avro_decoder import AvroReadings, avro_columns
from cojoin.kafka.formats.debezium import (
    CHANGED_AT,
    DebeziumJson,
    Placeholder,
    Unavailable,
    envelope_of,
    needs_schema,
    row_of,
)
from cojoin.kafka.formats.decoding import FramedJson, RegistryDecoder
from cojoin.kafka.formats.json_schema import json_columns
from cojoin.kafka.formats.proto_decoder import ProtoReadings, proto_columns
from cojoin.kafka.formats.registry import Registry, SchemaLookup, as_registry, check_registry

if TYPE_CHECKING:
    from cojoin.kafka.formats.decoding import Decoder
    from cojoin.kafka.formats.registry import RegisteredSchema


@dataclass(frozen=True)
class JsonFormat:
    """Plain JSON; ``json`` makes one.

    Attributes:
        schema: The columns, as DDL.
    """

    schema: str


@dataclass(frozen=True)
class RegistryFormat:
    """A format whose schemas are in a registry.

    Attributes:
        registry: The registry.
        schema: A version of the subject, or the columns as DDL; None is the newest version.
        subject: The subject; None is that of the topic, such as ``trades-value``.
    """

    registry: Registry
    schema: int | str | None = None
    subject: str | None = None


@dataclass(frozen=True)
class AvroFormat(RegistryFormat):
    """Avro; ``avro`` makes one."""


@dataclass(frozen=True)
class ProtobufFormat(RegistryFormat):
    """Protobuf; ``protobuf`` makes one.

    Attributes:
        message: The name of the message type; None is the first one of the schema.
    """

    message: str | None = None


@dataclass(frozen=True)
class JsonSchemaFormat(RegistryFormat):
    """JSON with a schema in a registry; ``json_schema`` makes one."""


class RegistryKind(NamedTuple):
    """A registry's word for the schemas of a format, the function that makes the format, and what decodes it."""

    name: str
    maker: str
    packages: tuple[str, ...] = ()


KINDS: dict[type, RegistryKind] = {
    AvroFormat: RegistryKind("AVRO", "avro", ("fastavro",)),
    ProtobufFormat: RegistryKind("PROTOBUF", "protobuf", ("google.protobuf",)),
    JsonSchemaFormat: RegistryKind("JSON", "json_schema"),
}


RowFormat: TypeAlias = JsonFormat | RegistryFormat


@dataclass(frozen=True)
class DebeziumFormat:
    """Debezium's envelope; ``debezium`` makes one.

    Attributes:
        value: The format that the envelope has.
        placeholder: The placeholder of values that are unavailable, and what happens to their rows.
    """

    value: RowFormat
    placeholder: Placeholder = field(default=Placeholder(), repr=False)


ValueFormat: TypeAlias = RowFormat | DebeziumFormat
"""The formats that ``value=`` of ``cojoin.kafka.source`` takes."""


def json(schema: str) -> JsonFormat:
    """Return the format of plain JSON, as Spark reads it; ``value=json(schema)`` is the same as ``schema=schema``.

    A value is one object; with anything but blanks behind it, it is undecodable. A number for a ``timestamp`` is
    seconds since 1970, as Spark reads it. One of 12 digits or more, such as milliseconds since 1973, makes the record
    undecodable; read it as a ``bigint``, and convert it. For a ``timestamp_ntz`` or ``date`` any number does.

    Args:
        schema: DDL of the columns.

    Raises:
        SchemaError: It does not parse.

    Example:
        >>> json("trade_id long, tier string")
        JsonFormat(schema='trade_id long, tier string')
    """
    parse_schema(schema, label="json")
    return JsonFormat(schema)


def avro(registry: str | Registry, *, schema: int | str | None = None, subject: str | None = None) -> AvroFormat:
    """Return the format of Avro in the wire format of a schema registry: a zero byte, the schema's id, the record.

    A header of the record may name the schema by its GUID instead (``__value_schema_id``), for other formats as well.
    Each record is decoded by the schema that it was written with, and resolved to the reader's by Avro's rules. So the
    schema may change in the middle of a topic.

    Args:
        registry: The registry's address, or what ``cojoin.kafka.registry`` returned.
        schema: The reader's schema: a version of the subject, the newest for None, or the columns as DDL. With DDL,
            fields are matched by name; one that the writer's schema lacks is null, and fields that are not named may
            be of any type.
        subject: The subject of the reader's schema; None is the topic's own, such as ``trades-value``. Sources of
            several topics need it, unless the columns are DDL.

    Raises:
        ConfigurationError: An argument is not valid.
        SchemaError: DDL does not parse.

    Example:
        >>> avro("http://localhost:8081", schema=2)
        AvroFormat(registry=Registry(http://localhost:8081), schema=2, subject=None)
    """
    return AvroFormat(as_registry(registry, "avro"), *_checked(schema, subject, "avro"))


def protobuf(
    registry: str | Registry,
    message: str | None = None,
    *,
    schema: int | str | None = None,
    subject: str | None = None,
) -> ProtobufFormat:
    """Return the format of Protobuf in the wire format of a schema registry.

    Args:
        registry: The registry's address, or what ``cojoin.kafka.registry`` returned.
        message: The name of the message type, such as ``"shop.Trade"``; None is the first one of the schema. A record
            of another type is undecodable.
        schema: The reader's schema, as in ``avro``. With DDL, only the fields that it names are looked at. Any message
            may be a ``string`` then, its JSON, a ``confluent.type.Decimal`` a decimal, and a ``google.type.Date`` a
            date.
        subject: The subject of the reader's schema, as in ``avro``.

    Raises:
        ConfigurationError: An argument is not valid.
        SchemaError: DDL does not parse.

    Example:
        >>> protobuf("http://localhost:8081", "shop.Trade").message
        'shop.Trade'
    """
    if message is not None and (not isinstance(message, str) or not message.strip()):
        msg = f"protobuf: message: expected a message type's name, such as 'shop.Trade', got {message!r}"
        raise ConfigurationError(msg)
    return ProtobufFormat(as_registry(registry, "protobuf"), *_checked(schema, subject, "protobuf"), message)


def json_schema(
    registry: str | Registry, *, schema: int | str | None = None, subject: str | None = None
) -> JsonSchemaFormat:
    """Return the format of JSON in the wire format of a schema registry; Spark parses it as plain JSON.

    A value that is not one JSON text, such as an object with something behind it, is undecodable.

    Args:
        registry: The registry's address, or what ``cojoin.kafka.registry`` returned.
        schema: The reader's schema, as in ``avro``. Only its types are used: whether a value is in a range or matches a
            pattern is not looked at. With DDL, a ``string`` takes any JSON as its text.
        subject: The subject of the reader's schema, as in ``avro``.

    Raises:
        ConfigurationError: An argument is not valid.
        SchemaError: DDL does not parse.

    Example:
        >>> json_schema("http://localhost:8081", subject="trades-value").subject
        'trades-value'
    """
    return JsonSchemaFormat(as_registry(registry, "json_schema"), *_checked(schema, subject, "json_schema"))


def debezium(
    value: RowFormat, *, unavailable: Unavailable = "reject", placeholder: str = Placeholder.text
) -> DebeziumFormat:
    """Return the format of Debezium's change events, as versions and deletes for a ``temporal_join``.

    A create, update or snapshot read is a version, the row of ``after``; a delete is the row of ``before``. An update
    that moves the row to another key of the join is both, where ``before`` has the former key. The join, whose right
    input they are, takes both without an argument. Next to the row's columns there are ``_deleted``, a
    boolean, and ``_source_timestamp``, the time of the change in the database (``source.ts_ms``), which is a good event
    time. With a column of the row as event time, a delete takes effect at the later of that and the change. The
    tombstone that Debezium writes after a delete is not a row: it is counted as done, and as a tombstone. Any other
    event, such as a truncation, is rejected as undecodable.

    JSON with the envelope in ``payload``, next to its ``schema``, is read by that: decimals, which Connect writes as
    base64, and Debezium's times, which are numbers of days, milliseconds, microseconds or nanoseconds. Without it,
    and with ``json_schema``, decimals must be numbers (``decimal.format=NUMERIC``, ``decimal.handling.mode=double``) or
    texts of them (``string``), and times texts: a number for a time makes the record undecodable, and so does a text
    for a decimal that may as well be base64, such as "1234"; read those as ``bigint`` and ``string``.

    Args:
        value: The format of the envelope. Where the columns are given as DDL, they are those of the row. JSON may have
            the envelope in ``payload``, next to its ``schema``, or not.
        unavailable: The treatment of a row with a value that the database's log does not hold, because it is large and
            was not changed: it is rejected as ``unavailable_value``, or the value is null and the row is counted.
        placeholder: Debezium's text for such a value: the connector's ``unavailable.value.placeholder``.

    Raises:
        ConfigurationError: It is not such a format, or another argument is not valid.

    Example:
        >>> debezium(json("customer_id long, tier string"))
        DebeziumFormat(value=JsonFormat(schema='customer_id long, tier string'))
    """
    if not isinstance(value, (JsonFormat, RegistryFormat)):
        msg = f"debezium: expected json(), avro(), protobuf() or json_schema() of cojoin.kafka, got {value!r}"
        raise ConfigurationError(msg)
    check_word("debezium: unavailable", unavailable, get_args(Unavailable))
    if not isinstance(placeholder, str) or not placeholder:
        msg = f"debezium: placeholder: expected a text such as {Placeholder.text!r}, got {placeholder!r}"
        raise ConfigurationError(msg)
    return DebeziumFormat(value, Placeholder(placeholder, unavailable))


def _checked(schema: Any, subject: Any, label: str) -> tuple[int | str | None, str | None]:
    if isinstance(schema, str):
        parse_schema(schema, label=f"{label}: schema")
    elif schema is not None and (isinstance(schema, bool) or not isinstance(schema, int) or schema < 1):
        msg = f"{label}: schema: expected a version such as 2, or columns as DDL, got {schema!r}"
        raise ConfigurationError(msg)
    if subject is not None and (not isinstance(subject, str) or not subject.strip()):
        msg = f"{label}: subject: expected a name such as 'trades-value', got {subject!r}"
        raise ConfigurationError(msg)
    return schema, subject


@dataclass(frozen=True)
class ResolvedFormat:
    """A format with its columns; for Debezium they are the parts of its envelope that are read, and ``row`` is its row.

    The decoder decodes a value or key on the workers; None leaves plain JSON to Spark.
    """

    columns: pa.StructType
    decoder: Decoder | None
    row: pa.StructType | None = None
    placeholder: Placeholder | None = None

    @property
    def in_python(self) -> bool:
        """Whether the workers decode it to columns; otherwise Spark parses it as JSON."""
        return self.decoder is not None and pa.types.is_struct(self.decoder.dtype)

    @property
    def row_names(self) -> list[str]:
        """The names of the columns that rows have of it."""
        if self.row is None:
            return [field.name for field in self.columns]
        return [*(field.name for field in self.row), DELETED, CHANGED_AT]

    @property
    def ddl(self) -> str:
        """The columns as DDL, without Debezium's own."""
        return schema_to_ddl(pa.schema(list(self.columns if self.row is None else self.row)))


def resolve(chosen: ValueFormat, subject: str | None, part: str, label: str) -> ResolvedFormat:
    """Return a format with its columns, asked of its registry; a source of several topics has no ``subject``."""
    inner = chosen.value if isinstance(chosen, DebeziumFormat) else chosen
    declared = _declared_columns(inner)
    registered = None if declared is not None else _reader(inner, subject, label)
    columns = declared if declared is not None else _columns(inner, registered, part, label)
    if not isinstance(chosen, DebeziumFormat):
        return ResolvedFormat(columns, _decoder(inner, columns, registered, part, label))
    columns, row = row_of(columns if declared is None else envelope_of(declared), label)
    decoder = _decoder(inner, columns, registered, part, label)
    if isinstance(inner, (JsonFormat, JsonSchemaFormat)) and needs_schema(row):
        decoder = DebeziumJson(row, decoder if isinstance(decoder, FramedJson) else None)
    return ResolvedFormat(columns, decoder, row, chosen.placeholder)


def _declared_columns(chosen: RowFormat) -> pa.StructType | None:
    if not isinstance(chosen.schema, str):
        return None
    return pa.struct([field.with_nullable(True) for field in parse_schema(chosen.schema, label="schema")])


def _reader(chosen: Any, subject: str | None, label: str) -> RegisteredSchema:
    name = chosen.subject or subject
    if name is None:
        msg = f"{label}: expected subject=, the subject of the reader's schema, because it reads several topics"
        raise ConfigurationError(msg)
    check_registry(label)
    registered = SchemaLookup(chosen.registry, label, at_start=True).of_subject(name, chosen.schema)
    kind = KINDS[type(chosen)].name
    if registered.kind != kind:
        makers = {each.name: f"{each.maker}()" for each in KINDS.values()}
        msg = (
            f"{label}: subject {name!r} of the schema registry {chosen.registry.title} is {registered.kind}, expected "
            f"{kind}: use cojoin.kafka.{makers.get(registered.kind, 'decode=')}"
        )
        raise SchemaError(msg)
    return registered


def _columns(chosen: Any, registered: RegisteredSchema | None, part: str, label: str) -> pa.StructType:
    assert registered is not None
    check_registry(label, *KINDS[type(chosen)].packages)
    if isinstance(chosen, AvroFormat):
        columns = avro_columns(registered, part, label)
    elif isinstance(chosen, ProtobufFormat):
        columns = proto_columns(registered, chosen.message, label)
    else:
        columns = json_columns(registered, label)
    schema_to_ddl(pa.schema(list(columns)), label=f"{label}: the {part}'s schema")  # refuses names that differ by case
    return columns


def _decoder(
    chosen: Any, columns: pa.StructType, registered: RegisteredSchema | None, part: str, label: str
) -> Decoder | None:
    if isinstance(chosen, JsonFormat):
        return None
    kind = KINDS[type(chosen)]
    check_registry(label, *kind.packages)
    if isinstance(chosen, JsonSchemaFormat):
        return FramedJson(chosen.registry, part, label)
    make: AvroReadings | ProtoReadings
    if isinstance(chosen, AvroFormat):
        make = AvroReadings(columns, registered, part)
    else:
        make = ProtoReadings(columns, registered, chosen.message)
    return RegistryDecoder(chosen.registry, kind.name, columns, make, part, label)
