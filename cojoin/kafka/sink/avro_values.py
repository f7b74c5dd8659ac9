"""Values in Avro by a schema registry: which schema is written, and rows by it.

The schema is found before the query starts: the version that the user names, or the newest of the subject, or, where
the registry has no such subject, one that is made of the output's columns and registered. A run keeps the schema that
it began with. The schema's fields say which columns are written; columns that it does not have are left out.

confluent-kafka's own serializer writes the rows, one after another, on the workers. It costs some 20 microseconds a
row. A registry that does not answer ends the query, before anything of the batch is written if that is a transaction.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from struct import error as StructError  # noqa: N812 - a class of the standard library's
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import QueryFailedError, SchemaError, did_you_mean
from cojoin.kafka.formats.avro_schema import avro_schema, can_be_written_as
from cojoin.kafka.formats.schema_lookup import FoundSchema, SchemaLookup, check_packages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cojoin.kafka.formats.record_formats import AvroFormat
    from cojoin.kafka.formats.registry import Registry

__all__ = ["AvroValues", "find_schema"]

_MICROS = ("timestamp-micros", "local-timestamp-micros")
_OF_A_ROW = (ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError, StructError)


def find_schema(chosen: AvroFormat, schema: pa.Schema, topic: str, what: str) -> tuple[int | None, FoundSchema]:
    """Return the id and the schema with which an output is written; None for one that has to be registered.

    Args:
        chosen: The format.
        schema: The output's columns.
        topic: The topic, after which a schema that is made here is named.
        what: The output and the sink, for messages.

    Raises:
        EnvironmentSetupError: A package is missing.
        ConfigurationError: There is no such version, or the registry refuses the login.
        SchemaError: The columns can't be written with the schema, or have no form in Avro.
        QueryFailedError: The registry does not answer.
    """
    check_packages(what, ("fastavro",))
    version = chosen.schema if isinstance(chosen.schema, int) else None
    found = SchemaLookup(chosen.registry, what, at_start=True).newest_of(str(chosen.subject), version)
    if found is None:
        return None, FoundSchema("AVRO", avro_schema(schema, topic, what))
    number, there = found
    place = f"{what}: value: subject {chosen.subject!r} of the schema registry {chosen.registry.title}"
    parsed = json.loads(there.text) if there.kind == "AVRO" else None
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        msg = f"{place}: expected an Avro record, got {there.kind} {there.text[:60]}; name another with subject="
        raise SchemaError(msg)
    from cojoin.kafka.formats.avro_decoder import avro_columns  # noqa: PLC0415 - optional

    has_default = {each["name"] for each in parsed["fields"] if "default" in each}
    own = {field.name: field.type for field in schema}
    for field in avro_columns(there, "value", what):
        if field.name not in own:
            if field.name in has_default:
                continue
            near = did_you_mean(field.name, own)
            msg = f"{place} has a field {field.name!r} without a default, and the output no such column{near}"
            raise SchemaError(msg)
        if not can_be_written_as(own[field.name], field.type):
            msg = (
                f"{place}: field {field.name!r} takes {type_to_ddl(field.type)}, and the output's column is "
                f"{type_to_ddl(own[field.name])}; cast the column, or register a version that takes it"
            )
            raise SchemaError(msg)
    return number, there


@dataclass(frozen=True)
class AvroValues:
    """Writes rows as Avro; it is sent to the workers.

    Attributes:
        registry: Where the schema is.
        subject: Its subject.
        number: Its id.
        columns: The output's columns that are written, with their types.
        micros: Those of them that are times in microseconds, which are given to the serializer as numbers.
        topic: The topic.
        what: The output and the sink, for messages.
    """

    registry: Registry
    subject: str
    number: int
    columns: pa.Schema
    micros: frozenset[str]
    topic: str
    what: str

    @classmethod
    def of(cls, chosen: AvroFormat, schema: pa.Schema, topic: str, what: str) -> AvroValues:
        """Return what writes an output; its schema is registered if the registry has none.

        Raises:
            ConfigurationError, SchemaError, QueryFailedError: As ``find_schema``.
        """
        number, found = find_schema(chosen, schema, topic, what)
        subject = str(chosen.subject)
        if number is None:
            number = SchemaLookup(chosen.registry, what, at_start=True).register(subject, found)
        types = {each["name"]: each["type"] for each in json.loads(found.text)["fields"]}
        columns = pa.schema([field for field in schema if field.name in types])
        micros = frozenset(name for name, kind in types.items() if _is_micros(kind))
        return cls(chosen.registry, subject, number, columns, micros, topic, what)

    def encode(self, rows: pa.Table) -> list[bytes]:
        """Return rows with the columns of ``columns`` as values.

        Raises:
            QueryFailedError: The registry does not answer, or a row does not fit the schema.
            ConfigurationError: The registry refuses the login.
        """
        prepared = [
            # An object for each time would cost as much as writing it.
            rows.column(at).cast(pa.int64()).to_pylist() if field.name in self.micros else _prepared(rows.column(at))
            for at, field in enumerate(self.columns)
        ]
        names = self.columns.names
        dicts = [dict(zip(names, values, strict=True)) for values in zip(*prepared, strict=True)]
        values: list[bytes] = SchemaLookup(self.registry, self.what).ask(lambda client: self._written(client, dicts))
        return values

    def _written(self, client: Any, rows: Iterable[dict[str, Any]]) -> list[bytes]:
        from confluent_kafka.schema_registry.avro import AvroSerializer  # noqa: PLC0415 - takes half a second
        from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415 - as above

        settings = {
            "auto.register.schemas": False,
            "use.schema.id": self.number,
            "subject.name.strategy": lambda *_: self.subject,
        }
        serializer = AvroSerializer(client, None, conf=settings)
        context = SerializationContext(self.topic, MessageField.VALUE)
        values: list[bytes] = []
        for row in rows:
            try:
                values.append(serializer(row, context))
            except _OF_A_ROW as error:  # noqa: PERF203 - the row that does not fit is told
                msg = (
                    f"{self.what}: a row can't be written with schema {self.number} of subject {self.subject!r}: "
                    f"{type(error).__name__}: {error}; nothing of the batch was committed. Register a version that "
                    f"takes it, and start the query again"
                )
                raise QueryFailedError(msg) from None
        return values


def _is_micros(kind: Any) -> bool:
    """Return whether a field's type is a time in microseconds, or null."""
    members = kind if isinstance(kind, list) else [kind]
    return any(isinstance(each, dict) and each.get("logicalType") in _MICROS for each in members)


def _prepared(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values as fastavro takes them."""
    convert = _converter(column.type)
    values: list[Any] = column.to_pylist()
    return values if convert is None else [None if each is None else convert(each) for each in values]


def _converter(dtype: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what makes a value one of fastavro's; None where all are, as a map's list of pairs is not."""
    if pa.types.is_map(dtype):
        inner = _converter(dtype.item_type)
        return lambda pairs: {key: _applied(inner, value) for key, value in pairs}
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        inner = _converter(dtype.value_type)
        return None if inner is None else lambda values: [_applied(inner, value) for value in values]
    if pa.types.is_struct(dtype):
        fields = {field.name: convert for field in dtype if (convert := _converter(field.type)) is not None}
        return None if not fields else lambda value: _with(value, fields)
    return None


def _applied(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _with(value: Mapping[str, Any], fields: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    return {**value, **{name: _applied(convert, value[name]) for name, convert in fields.items()}}
