"""Values with a schema of a registry, written on the workers, one row after another.

A run keeps the schema that it began with. A registry that does not answer ends the query, before anything of the batch
is written if that is a transaction; so does a row that does not fit the schema.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import error as StructError  # noqa: N812 - a class of the standard library's
from typing import TYPE_CHECKING, Any

from cojoin.errors import QueryFailedError
from cojoin.kafka.formats.schema_lookup import SchemaLookup
from cojoin.kafka.sink.value_schema import ValueSchema, find_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from cojoin.kafka.formats.registry import Registry
    from cojoin.kafka.sink.value_schema import RegistryFormat

__all__ = ["RegistryValues"]

_OF_A_ROW = (ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError, StructError)


@dataclass(frozen=True)
class RegistryValues:
    """Writes rows with a schema of a registry; it is sent to the workers.

    Attributes:
        registry: Where the schema is.
        schema: The schema.
        topic: The topic.
        what: The output and the sink, for messages.
    """

    registry: Registry
    schema: ValueSchema
    topic: str
    what: str

    @classmethod
    def of(cls, chosen: RegistryFormat, schema: pa.Schema, topic: str, what: str) -> RegistryValues:
        """Return what writes an output; its schema is registered if the registry has none.

        Raises:
            EnvironmentSetupError, ConfigurationError, SchemaError, QueryFailedError: As ``find_schema``.
        """
        found = find_schema(chosen, schema, topic, what)
        if found.number is None:
            lookup = SchemaLookup(chosen.registry, what, at_start=True)
            found = replace(found, number=lookup.register(found.subject, found.found))
        return cls(chosen.registry, found, topic, what)

    @property
    def from_json(self) -> bool:
        """Whether ``encode`` takes one column with each row's JSON, and not the columns themselves."""
        return self.schema.found.kind == "JSON"

    def encode(self, rows: pa.Table) -> list[bytes]:
        """Return rows with the columns of ``schema`` as values.

        Raises:
            QueryFailedError: The registry does not answer, or a row does not fit the schema.
            ConfigurationError: The registry refuses the login.
        """
        kind = self.schema.found.kind
        if kind == "PROTOBUF":
            from cojoin.kafka.sink.proto_values import messages_of  # noqa: PLC0415 - optional

            prepared, written = messages_of(self.schema)
            return self._values(prepared(rows), written)
        from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415 - as below

        from cojoin.kafka.sink.avro_values import avro_rows, avro_writer  # noqa: PLC0415 - as below
        from cojoin.kafka.sink.checked_json_values import json_rows, json_writer  # noqa: PLC0415 - takes half a second

        context = SerializationContext(self.topic, MessageField.VALUE)
        settings = {
            "auto.register.schemas": False,
            "use.schema.id": self.schema.number,
            "subject.name.strategy": lambda *_: self.schema.subject,
        }
        given = avro_rows(self.schema, rows) if kind == "AVRO" else json_rows(self.schema, rows)

        def asked(client: Any) -> list[bytes]:
            make = avro_writer if kind == "AVRO" else json_writer
            write = make(self.schema, settings, client)
            return self._values(given, lambda row: write(row, context))

        values: list[bytes] = SchemaLookup(self.registry, self.what).ask(asked)
        return values

    def _values(self, rows: list[Any], write: Callable[[Any], bytes]) -> list[bytes]:
        from confluent_kafka.serialization import SerializationError  # noqa: PLC0415 - as above

        values: list[bytes] = []
        for row in rows:
            try:
                values.append(write(row))
            except (*_OF_A_ROW, SerializationError) as error:  # noqa: PERF203 - the row that does not fit is told
                msg = (
                    f"{self.what}: a row can't be written with schema {self.schema.number} of subject "
                    f"{self.schema.subject!r}: {type(error).__name__}: {error}; nothing of the batch was committed. "
                    f"Register a version that takes it, and start the query again"
                )
                raise QueryFailedError(msg) from None
        return values
