"""Records of the two topics in Avro, Protobuf or JSON, each in two versions of their schema."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fastavro
from google.protobuf.message_factory import GetMessageClass

from cojoin.kafka.formats.proto_files import message_type
from cojoin.kafka.formats.registry import RegisteredSchema
from tests.kafka.records import values

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from tests.servers.registry import RegistryServer

_TIME = {"type": "long", "logicalType": "timestamp-micros"}
_NOTE = {"name": "note", "type": ["null", "string"], "default": None}
AVRO = {
    "trades": [
        {
            "type": "record",
            "name": "shop.Trade",
            "fields": [
                {"name": "trade_id", "type": number},
                {"name": "customer_id", "type": number},
                {"name": "event_time", "type": _TIME},
                {"name": "amount", "type": real},
                *more,
            ],
        }
        for number, real, more in (("int", "float", []), ("long", "double", [_NOTE]))
    ],
    "customers": [
        {
            "type": "record",
            "name": "shop.Customer",
            "fields": [
                {"name": "version_id", "type": "long"},
                {"name": "customer_id", "type": number},
                {"name": "event_time", "type": _TIME},
                {"name": "tier", "type": ["null", "string"]},
                *more,
            ],
        }
        for number, more in (("int", []), ("long", [_NOTE]))
    ],
}
"""Both versions of each topic's schema: the second has wider numbers, and a note."""

_PROTO = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message {name} {{
{fields}
}}
"""
_COMMON = ["{number} customer_id = 2;", "google.protobuf.Timestamp event_time = 3;"]
_OWN = {
    "trades": ("Trade", "{number} trade_id = 1;", "double amount = 4;"),
    "customers": ("Customer", "{number} version_id = 1;", "string tier = 4;"),
}


def proto(topic: str, version: int) -> str:
    """Return a version of a topic's .proto; the second has wider numbers, and a note."""
    name, *own = _OWN[topic]
    fields = [*own, *_COMMON, *(["optional string note = 5;"] if version else [])]
    number = ("int32", "int64")[version]
    return _PROTO.format(name=name, fields="\n".join(f"  {each.format(number=number)}" for each in fields))


JSON = {
    topic: [
        {
            "type": "object",
            "properties": {
                **{name: {"type": "integer"} for name in numbers},
                "event_time": {"type": "string", "format": "date-time"},
                **more,
            },
        }
        for more in ({**own}, {**own, "note": {"type": "string"}})
    ]
    for topic, numbers, own in (
        ("trades", ("trade_id", "customer_id"), {"amount": {"type": "number"}}),
        ("customers", ("version_id", "customer_id"), {"tier": {"type": "string"}}),
    )
}


def framed(number: int, record: bytes) -> bytes:
    """Return a record in the wire format."""
    return b"\0" + number.to_bytes(4, "big") + record


def avro_record(schema: Any, row: Any) -> bytes:
    """Return a row in Avro."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, row)
    return stream.getvalue()


def proto_class(text: str, name: str | None = None) -> Any:
    """Return the class of a message type."""
    return GetMessageClass(message_type(RegisteredSchema("PROTOBUF", text), name))


@dataclass
class Encoder:
    """Makes values of a topic, those until `turn` in the first version of its schema, the others in the second.

    Attributes:
        kind: ``"avro"``, ``"protobuf"``, ``"json_schema"`` or ``"json"``.
        topic: ``"trades"`` or ``"customers"``.
        ids: The ids of both versions.
        turn: An event time in epoch microseconds.
    """

    kind: str
    topic: str
    ids: tuple[int, int]
    turn: int

    @classmethod
    def registered(cls, registry: RegistryServer, kind: str, topic: str, subject: str, turn: int) -> Encoder:
        """Register both versions of a topic's schema."""
        if kind == "json":
            return cls(kind, topic, (0, 0), turn)
        texts = {
            "avro": [json.dumps(each) for each in AVRO[topic]],
            "protobuf": [proto(topic, version) for version in range(2)],
            "json_schema": [json.dumps(each) for each in JSON[topic]],
        }[kind]
        names = {"avro": "AVRO", "protobuf": "PROTOBUF", "json_schema": "JSON"}
        one, two = (registry.register(subject, text, names[kind]) for text in texts)
        return cls(kind, topic, (one, two), turn)

    def __call__(self, records: pd.DataFrame) -> list[bytes]:
        """Return the records' values."""
        later = (records["micros"] >= self.turn).tolist()
        if self.kind in ("json", "json_schema"):
            texts = [each.encode() for each in values(records)]
            if self.kind == "json":
                return texts
            return [framed(self.ids[version], text) for version, text in zip(later, texts, strict=True)]
        encode: Callable[[int, dict[str, Any]], bytes] = self._avro() if self.kind == "avro" else self._protobuf()
        rows = records.drop(columns=["partition", "offset"]).to_dict("records")
        return [framed(self.ids[version], encode(version, row)) for version, row in zip(later, rows, strict=True)]

    def _avro(self) -> Callable[[int, dict[str, Any]], bytes]:
        schemas = [fastavro.parse_schema(each) for each in AVRO[self.topic]]

        def encode(version: int, row: dict[str, Any]) -> bytes:
            return avro_record(schemas[version], {**row, "event_time": row["micros"], "note": f"by {version}"})

        return encode

    def _protobuf(self) -> Callable[[int, dict[str, Any]], bytes]:
        classes = [proto_class(proto(self.topic, version)) for version in range(2)]

        def encode(version: int, row: dict[str, Any]) -> bytes:
            micros = row.pop("micros")
            message = classes[version](**row, **({"note": "by 1"} if version else {}))
            message.event_time.seconds, left = divmod(micros, 1_000_000)
            message.event_time.nanos = 1_000 * left
            return b"\0" + message.SerializeToString()

        return encode
