"""The sources of an input: ``delta`` for Delta tables, ``files`` for folders, ``kafka`` for topics.

A source is a description that cojoin opens itself, as a stream or as a static DataFrame. An ``Input`` also takes a
plain DataFrame, but a restored query can only continue with a source.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cojoin.errors import did_you_mean
from cojoin.installed_packages import imported

if TYPE_CHECKING:
    from cojoin.kafka.kafka_source import KafkaSource
    from cojoin.kafka.kafka_source import source as kafka
    from cojoin.spark.sources.sources import PlacedAt, Source, delta, files

__all__ = ["KafkaSource", "PlacedAt", "Source", "delta", "files", "kafka"]

_OF_TOPICS = {"kafka": "source", "KafkaSource": "KafkaSource"}
"""What ``cojoin.kafka`` has under other names, or the same."""

_FORMATS = ("parquet", "json", "csv", "orc", "avro", "text", "xml")
"""Formats for which Spark's readers have a method each."""

_MODULES = dict.fromkeys(("PlacedAt", "Source", "delta", "files"), "cojoin.spark.sources.sources")


def __getattr__(name: str) -> Any:
    if name in _OF_TOPICS:
        return getattr(import_module("cojoin.kafka"), _OF_TOPICS[name])
    if name in _MODULES:
        return imported("cojoin.sources", _MODULES, name)
    hint = did_you_mean(name, ["delta", "files", "kafka"])
    if name in _FORMATS:
        hint = f"; read a folder of files with cojoin.sources.files(path, {name!r}, schema=...)"
    msg = f"module 'cojoin.sources' has no attribute {name!r}{hint}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted(__all__)
