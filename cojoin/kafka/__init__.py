"""Kafka topics as inputs, read in ranges of offsets that advance together through event time: history, then live.

A source is an input's ``source``, as a DataFrame is::

    import cojoin as cj

    trades = cj.kafka.source(
        "localhost:9092", "trades", schema="trade_id long, customer_id long, event_time timestamp", from_="2026-01-05"
    )

The package needs confluent-kafka: ``pip install "cojoin[kafka]"``; schemas of a registry need ``cojoin[registry]``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cojoin.installed_packages import check_packages

if TYPE_CHECKING:
    from cojoin.kafka.formats.record_formats import (
        AvroFormat,
        DebeziumFormat,
        JsonFormat,
        JsonSchemaFormat,
        ProtobufFormat,
        avro,
        debezium,
        json,
        json_schema,
        protobuf,
    )
    from cojoin.kafka.formats.registry import Registry, registry
    from cojoin.kafka.kafka_source import KafkaSource, source
    from cojoin.kafka.record_columns import RecordColumn, header, key, timestamp
    from cojoin.kafka.records import Record
    from cojoin.kafka.tokens import Token

__all__ = [
    "AvroFormat",
    "DebeziumFormat",
    "JsonFormat",
    "JsonSchemaFormat",
    "KafkaSource",
    "ProtobufFormat",
    "Record",
    "RecordColumn",
    "Registry",
    "Token",
    "avro",
    "debezium",
    "header",
    "json",
    "json_schema",
    "key",
    "protobuf",
    "registry",
    "source",
    "timestamp",
]

# Imported at first use: each of a query's reader processes imports this package and needs none of these.
_MODULES = {
    **dict.fromkeys(("KafkaSource", "source"), "kafka_source"),
    **dict.fromkeys(("RecordColumn", "header", "key", "timestamp"), "record_columns"),
    **dict.fromkeys(("Registry", "registry"), "formats.registry"),
    **dict.fromkeys(("AvroFormat", "DebeziumFormat", "JsonFormat", "JsonSchemaFormat"), "formats.record_formats"),
    **dict.fromkeys(("ProtobufFormat", "avro", "debezium", "json", "json_schema"), "formats.record_formats"),
    "protobuf": "formats.record_formats",
    "Record": "records",
    "Token": "tokens",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        msg = f"module 'cojoin.kafka' has no attribute {name!r}"
        raise AttributeError(msg)
    if _MODULES[name] == "kafka_source":  # it needs PySpark's data sources
        check_packages(f"cojoin.kafka.{name}", "spark")
        from cojoin.session.versions import check_kafka  # noqa: PLC0415

        check_kafka()
    return getattr(import_module(f"cojoin.kafka.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
