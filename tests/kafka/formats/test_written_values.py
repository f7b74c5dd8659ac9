"""What other writers' serializers write is read as the format's own reader reads it."""

from __future__ import annotations

import io
import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from cojoin.kafka.formats.avro_decoder import AvroReadings, avro_columns
from cojoin.kafka.formats.registry import RegisteredSchema
from tests.kafka.formats.encoded import framed
from tests.kafka.formats.written_values import AVRO

if TYPE_CHECKING:
    from collections.abc import Sequence

BY_HAND: dict[str, Any] = {
    # By Avro's specification a decimal of a negative scale is its bytes; fastavro refuses the schema.
    "Kafka Connect: Decimal of a negative scale": b"\x0c",
    # fastavro does not know a fixed one.
    "Avro Java: uuid as fixed": str(UUID(int=0)),
}
OTHERWISE: dict[str, str | None] = {
    # fastavro does not know these types, whose numbers are times.
    "Kafka Connect: io.debezium.time.Date": "date",
    "Kafka Connect: io.debezium.time.Timestamp": "local-timestamp-millis",
    "Kafka Connect: io.debezium.time.MicroTimestamp": "local-timestamp-micros",
    # Python has no times of nanoseconds, and the columns have these as numbers.
    "Kafka Connect: Time": None,
    "Avro Java: time-micros": None,
    "Avro Java: timestamp-nanos": None,
}


def oracle(kind: Any, content: bytes, logical: str | None = "") -> Any:
    """Return what fastavro reads, by a logical type where it knows none; None reads the plain number."""
    schema = {"type": "record", "name": "shop.Value", "fields": [{"name": "x", "type": kind}]}
    text = json.dumps(schema)
    if logical:
        text = text.replace('"connect.version"', f'"logicalType": "{logical}", "connect.version"')
    if logical is None:
        text = text.replace("logicalType", "noType")
    stream = io.BytesIO(content)
    found = fastavro.schemaless_reader(stream, fastavro.parse_schema(json.loads(text)), None)
    assert stream.tell() == len(content)
    return found["x"]


def read(schema: RegisteredSchema, values: Sequence[bytes]) -> tuple[list[Any], list[str | None]]:
    reading = AvroReadings(avro_columns(schema, "value", "input 't'"), schema, "value")(schema)
    rows, faults = reading([framed(7, each) for each in values])
    assert rows is not None
    return rows.to_pylist(maps_as_pydicts="strict"), faults


@pytest.mark.parametrize(("origin", "kind", "content"), AVRO, ids=[origin for origin, *_ in AVRO])
def test_oracle_fastavro_of_what_other_writers_write(origin: str, kind: Any, content: str) -> None:
    schema = {"type": "record", "name": "shop.Value", "fields": [{"name": "x", "type": kind}]}
    found, faults = read(RegisteredSchema("AVRO", json.dumps(schema)), [bytes.fromhex(content)])
    assert faults == [None]
    value = bytes.fromhex(content)
    expected = BY_HAND[origin] if origin in BY_HAND else oracle(kind, value, OTHERWISE.get(origin, ""))
    assert found == [{"x": str(expected) if isinstance(expected, UUID) else expected}]


LOGICAL = {
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "tier": {"type": "enum", "name": "Tier", "symbols": ["A", "B"]},
    "notes": {"type": "map", "values": ["null", "string"]},
    "inner": [
        "null",
        {"type": "record", "name": "Inner", "fields": [{"name": "y", "type": {"type": "array", "items": "long"}}]},
    ],
}
ROW: dict[str, Any] = {
    "at": datetime(2026, 1, 5, 0, 0, 0, 7, timezone.utc),
    "price": Decimal("-12.34"),
    "tier": "B",
    "notes": {"a": None, "b": "x"},
    "inner": {"y": [1, -(1 << 62)]},
}
PLAIN: list[tuple[Any, Any]] = [
    ("string", "ä€😀"),
    ("bytes", b"\xff\0"),
    ("long", -(1 << 63)),
    (["null", "double"], 0.5),
    ({"type": "array", "items": "string"}, ["a", ""]),
    ({"type": "long", "logicalType": "timestamp-millis"}, datetime(1969, 12, 31, 23, 59, 59, 999_000, timezone.utc)),
]


def written(client: Any, schema: Schema, value: Any) -> bytes:
    write = AvroSerializer(client, schema)
    found = write(value, SerializationContext("t", MessageField.VALUE))
    assert found is not None
    return bytes(found[5:])


@pytest.mark.parametrize(("kind", "value"), PLAIN)
def test_what_confluent_s_python_client_writes(kind: Any, value: Any) -> None:
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    text = json.dumps({"type": "record", "name": "T", "fields": [{"name": "x", "type": kind}]})
    content = written(client, Schema(text, "AVRO"), {"x": value})
    assert read(RegisteredSchema("AVRO", text), [content]) == ([{"x": value}], [None])


@pytest.mark.parametrize("value", [ROW, ROW | {"inner": None, "notes": {}}])
def test_what_confluent_s_python_client_writes_of_records_and_references(value: dict[str, Any]) -> None:
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    record = {
        "type": "record",
        "name": "shop.Row",
        "fields": [{"name": name, "type": kind} for name, kind in LOGICAL.items()],
    }
    client.register_schema("row", Schema(json.dumps(record), "AVRO"))
    references = [SchemaReference("shop.Row", "row", 1)]
    for text, member in (
        ('["shop.Row"]', False),
        ('["null", "shop.Row"]', False),
        ('["string", "shop.Row"]', True),
    ):
        content = written(client, Schema(text, "AVRO", references), value)
        found, faults = read(RegisteredSchema("AVRO", text, (("shop.Row", json.dumps(record)),)), [content])
        assert faults == [None], text
        assert found == [{"member0": None, "member1": value} if member else value], text
