"""Rows as JSON by a schema: Spark's ``to_json`` writes them, and confluent-kafka's own serializer holds them to it.

Numbers are read and written as doubles, so a decimal of more digits is refused before the query starts. It costs some
50 microseconds a row, for the most part to look whether the row is one of the schema's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from cojoin.kafka.sink.value_schema import ValueSchema

__all__ = ["json_rows", "json_writer"]


def json_rows(rows: pa.Table) -> list[Any]:
    """Return rows, of which the only column has their JSON, as objects."""
    return [json.loads(text) for text in rows.column(0).to_pylist()]


def json_writer(schema: ValueSchema, settings: dict[str, Any], client: Any) -> Callable[[Any, Any], bytes]:
    """Return what makes an object a value."""
    from confluent_kafka.schema_registry.json_schema import JSONSerializer  # noqa: PLC0415 - takes half a second

    serializer: Callable[[Any, Any], bytes] = JSONSerializer(schema.found.text, client, conf=settings)
    return serializer
