"""Rows as JSON by a schema: Spark's ``to_json`` writes them, and confluent-kafka's own serializer holds them to it.

Spark leaves out fields that are null; one that the schema asks for, and that may be null there, is put back.
Numbers are read and written as doubles, so a decimal of more digits is refused before the query starts. It costs some
50 microseconds a row, for the most part to look whether the row is one of the schema's.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cojoin.kafka.formats.json_columns import is_null, referred

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from cojoin.kafka.sink.value_schema import ValueSchema

__all__ = ["json_rows", "json_writer"]

_CHOICES = ("oneOf", "anyOf")


def json_rows(schema: ValueSchema, rows: pa.Table) -> list[Any]:
    """Return rows, of which the only column has their JSON, as objects."""
    root = json.loads(schema.found.text)
    objects = [json.loads(text) for text in rows.column(0).to_pylist()]
    for each in objects:
        _put_nulls_back(each, root, root)
    return objects


def _put_nulls_back(value: Any, described: Any, root: Any) -> None:
    """Add the fields that an object must have, and that may be null, as nulls, to it and to all within it."""
    schema = _resolved(described, root)
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value and _may_be_null(properties.get(name, {}), root):
                value[name] = None
        for name, inner in value.items():
            _put_nulls_back(inner, properties.get(name, schema.get("additionalProperties")), root)
    elif isinstance(value, list):
        for inner in value:
            _put_nulls_back(inner, schema.get("items"), root)


def _resolved(described: Any, root: Any) -> dict[str, Any]:
    """Return a schema without its reference, and of a choice between null and another one the other one."""
    while isinstance(described, dict):
        others = [one for name in _CHOICES for one in described.get(name, ()) if not is_null(one)]
        if "$ref" in described:
            try:
                described = referred(str(described["$ref"]), root, "")
            except ValueError:  # in another schema
                return {}
        elif len(others) == 1:
            described = others[0]
        else:
            return described
    return {}


def _may_be_null(described: Any, root: Any) -> bool:
    schema = described if isinstance(described, dict) else {}
    with suppress(ValueError):
        if "$ref" in schema:
            schema = referred(str(schema["$ref"]), root, "")
    kinds = schema.get("type", ())
    choices = [one for name in _CHOICES for one in schema.get(name, ())]
    return "null" in ([kinds] if isinstance(kinds, str) else kinds) or any(map(is_null, choices))


def json_writer(schema: ValueSchema, settings: dict[str, Any], client: Any) -> Callable[[Any, Any], bytes]:
    """Return what makes an object a value."""
    from confluent_kafka.schema_registry.json_schema import JSONSerializer  # noqa: PLC0415 - takes half a second

    serializer: Callable[[Any, Any], bytes] = JSONSerializer(schema.found.text, client, conf=settings)
    return serializer
