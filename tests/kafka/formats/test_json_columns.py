"""The columns of JSON schemas."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from cojoin.engine.values.types import schema_to_ddl
from cojoin.errors import SchemaError
from cojoin.kafka.formats.json_schema import json_columns
from cojoin.kafka.formats.registry import FoundSchema


def columns(properties: Any, **more: Any) -> str:
    found = FoundSchema("JSON", json.dumps({"type": "object", "properties": properties, **more}))
    return schema_to_ddl(pa.schema(list(json_columns(found, "input 'trades'"))))


def test_each_type_has_its_column() -> None:
    found = columns(
        {
            "n": {"type": "integer"},
            "x": {"type": ["number", "null"]},
            "s": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "e": {"enum": ["a", "b", None]},
            "c": {"const": None},
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "l": {"type": "array", "items": {"type": "boolean"}},
            "o": {"$ref": "#/definitions/o"},
            "m": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
        definitions={"o": {"type": "object", "properties": {"a b": {"type": "string"}}}},
    )
    assert found == (
        "n bigint, x double, s string, e string, c string, at timestamp, day date, l array<boolean>, "
        "o struct<`a b`:string>, m map<string,bigint>"
    )


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"a": {"type": ["string", "integer"]}}, "property 'a': .*got string or integer"),
        ({"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}, "got anyOf of 2 types"),
        ({"a": {"$ref": "#/definitions/a"}}, "got the reference"),
        ({"a": {"$ref": "#"}}, "contains itself"),
        ({"a": {"type": "array"}}, "got an array of any elements, at #/properties/a;"),
        ({}, "expected a JSON schema"),
    ],
)
def test_what_has_no_type_is_refused(properties: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        columns(properties)
