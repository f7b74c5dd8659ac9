"""Schemas that records name in a header or before their value, as confluent-kafka's own serializers write them."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from cojoin.kafka.formats.record_formats import avro, json_schema, protobuf, resolve
from cojoin.kafka.formats.wire_format import SchemaHead, by_schema, schema_head
from tests.kafka.formats.encoded import avro_record, framed, proto_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.registry import RegistryServer

WHAT = "input 'trades'"
TRADE: dict[str, Any] = {"type": "record", "name": "Trade", "fields": [{"name": "id", "type": "long"}]}
OBJECT = {"type": "object", "title": "Trade", "properties": {"id": {"type": "integer"}}}
PROTO = 'syntax = "proto3"; message First { string s = 1; } message Trade { int64 id = 1; }'
MESSAGE = proto_class(PROTO, "Trade")


class GuidRegistry:
    """The part of Confluent's API by which readers ask for schemas, over the client that its library has for tests."""

    def __init__(self) -> None:
        self.client = SchemaRegistryClient.new_client({"url": "mock://"})
        client = self.client

        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                _, kind, name, *_ = self.path.partition("?")[0].strip("/").split("/")
                status, answer = (
                    404,
                    {"error_code": 40403 if kind in ("ids", "guids") else 40401, "message": "not found"},
                )
                with contextlib.suppress(SchemaRegistryError, ValueError):
                    asked = client.get_schema(int(name)) if kind == "ids" else client.get_schema_by_guid(name)
                    references = [
                        {"name": each.name, "subject": each.subject, "version": each.version}
                        for each in asked.references or ()
                    ]
                    status, answer = (
                        200,
                        {"schema": asked.schema_str, "schemaType": asked.schema_type, "references": references},
                    )
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def guids() -> Iterator[GuidRegistry]:
    made = GuidRegistry()
    yield made
    made.close()


def serializer(kind: str, client: Any, settings: dict[str, Any]) -> Any:
    if kind == "avro":
        return AvroSerializer(client, json.dumps(TRADE), conf=settings)
    if kind == "json_schema":
        return JSONSerializer(json.dumps(OBJECT), client, conf=settings)
    return ProtobufSerializer(MESSAGE, client, settings | {"use.deprecated.format": False})


@pytest.mark.parametrize("by", ["header", "prefix"])
@pytest.mark.parametrize("part", ["value", "key"])
@pytest.mark.parametrize("kind", ["avro", "protobuf", "json_schema"])
def test_what_confluent_s_serializers_write(guids: GuidRegistry, kind: str, part: str, by: str) -> None:
    own = header_schema_id_serializer if by == "header" else prefix_schema_id_serializer
    write = serializer(kind, guids.client, {"schema.id.serializer": own})
    field = MessageField.VALUE if part == "value" else MessageField.KEY
    values, heads = [], []
    for number in range(3):
        headers: list[tuple[str, bytes]] = [("trace", b"7")]
        row = {"id": number}
        given = MESSAGE(**row) if kind == "protobuf" else row
        values.append(write(given, SerializationContext(f"by-{kind}", field, headers)))
        heads.append(schema_head(headers, part))
    assert [each is not None for each in heads] == [by == "header"] * 3
    made = {"avro": avro, "json_schema": json_schema, "protobuf": lambda url, **more: protobuf(url, "Trade", **more)}
    decoder = resolve(made[kind](guids.url, schema="id long"), None, part, WHAT).decoder
    assert decoder is not None
    faults: list[str | None] = [None] * 4
    found = decoder.decode([*values, None], faults, [*heads, None]).to_pylist()
    assert faults == [None] * 4
    rows = [each and json.loads(each) for each in found] if kind == "json_schema" else found
    assert rows == [{"id": 0}, {"id": 1}, {"id": 2}, None]


def decoded(url: str, value: bytes, head: SchemaHead | None = None) -> tuple[Any, str]:
    decoder = resolve(avro(url, schema="id long"), None, "value", WHAT).decoder
    assert decoder is not None
    faults: list[str | None] = [None]
    (found,) = decoder.decode([value], faults, None if head is None else [head]).to_pylist()
    return found, str(faults[0])


def test_a_header_wins_over_what_stands_before_the_value(guids: GuidRegistry) -> None:
    number = guids.client.register_schema("wins-value", Schema(json.dumps(TRADE), "AVRO"))
    value = avro_record(TRADE, {"id": 7})
    # Deserializers take an id in the header, too.
    assert decoded(guids.url, value, b"\0" + number.to_bytes(4, "big"))[0] == {"id": 7}
    last = [("__value_schema_id", b"\1"), ("__value_schema_id", framed(number, b""))]
    assert decoded(guids.url, value, schema_head(last, "value"))[0] == {"id": 7}
    assert schema_head([*last, ("__value_schema_id", None)], "value") is None


@pytest.mark.parametrize(
    ("value", "head", "said"),
    [
        (b"\6", b"\1" + bytes(16), "the value's schema 00000000-0000-0000-0000-000000000000 is not in the registry"),
        (
            b"\6",
            b"\1abc",
            "the header '__value_schema_id': expected a byte of 1 and a GUID of 16 bytes, got b'\\x01abc'",
        ),
        (b"\6", b"", "expected a byte of 1 and a GUID"),
        (b"\6", b"\2" + bytes(16), "expected a byte of 1 and a GUID"),
        (
            b"\6",
            "apicurio.value.globalId",
            "Apicurio's serializers do; have them write ids of 4 bytes before the value",
        ),
        (
            bytes(9) + b"\6",
            None,
            "the value's schema id is 0, expected 1 to 2147483647; it may be one of 8 bytes of Apicu",
        ),
        (framed(1 << 31, b"\6"), None, "schema id is 2147483648, expected 1 to 2147483647; no registry has such an id"),
        (b"\xff" * 9, None, "the value has no schema id"),
        (b"", None, "the value has no schema id"),
    ],
)
def test_what_names_no_schema_is_a_fault(guids: GuidRegistry, value: bytes, head: Any, said: str) -> None:
    found, fault = decoded(guids.url, value, head)
    assert found is None
    assert fault.startswith("undecodable: ")
    assert said in fault


def test_headers_of_apicurio_are_known() -> None:
    assert schema_head([("apicurio.value.globalId", bytes(8))], "value") == "apicurio.value.globalId"
    assert schema_head([("apicurio.value.globalId", bytes(8))], "key") is None
    both = [("__value_schema_id", b"\1"), ("apicurio.value.contentId", bytes(8))]
    assert schema_head(both, "value") == schema_head(both[::-1], "value") == b"\1"
    faults: list[str | None] = [None, None]
    assert by_schema([None, framed(7, b"")], faults, "value", ["apicurio.value.contentId", None]) == {7: [1]}
    assert faults == [None, None]


@pytest.mark.kafka
def test_a_registry_without_guids_or_of_other_ids_ends_no_query(registry: RegistryServer) -> None:
    number = registry.register("heads-value", json.dumps({**TRADE, "name": "Heads"}))
    value = avro_record(TRADE, {"id": 7})
    assert decoded(registry.url, framed(number, value))[0] == {"id": 7}
    assert "is not in the registry" in decoded(registry.url, value, b"\1" + uuid.uuid4().bytes)[1]
    for large in (99_999, (1 << 31) - 1):
        assert "is not in the registry" in decoded(registry.url, framed(large, value))[1]


def test_a_schema_that_lost_its_reference_is_a_fault_of_its_records(guids: GuidRegistry) -> None:
    outer = {"type": "record", "name": "lost.Outer", "fields": [*TRADE["fields"], {"name": "r", "type": "lost.Inner"}]}
    references = [SchemaReference("lost.Inner", "lost-inner", 1)]
    number = guids.client.register_schema("lost-value", Schema(json.dumps(outer), "AVRO", references))
    found, fault = decoded(guids.url, framed(number, b"\16\4"))
    assert found is None
    missing = "a schema refers to version 1 of subject 'lost-inner', which the registry does not have"
    assert f"{missing}; register it again" in fault
