"""JSON schemas as columns, columns as JSON schemas, and the columns that properties can be written from."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.values.types import parse_schema, schema_to_ddl
from cojoin.errors import SchemaError
from cojoin.kafka.formats.json_schema import fits_json_type, json_columns, json_schema_text
from cojoin.kafka.formats.registry import RegisteredSchema


def columns(properties: Any, **more: Any) -> str:
    found = RegisteredSchema("JSON", json.dumps({"type": "object", "properties": properties, **more}))
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


ALL = """id long, small smallint, flag boolean, real float, amount double, name string, raw binary,
    price decimal(12, 2), day date, at timestamp, local timestamp_ntz, nested struct<a: int, b: struct<c: string>>,
    many array<struct<x: double>>, by_name map<string, array<bigint>>"""
READ = """id long, small long, flag boolean, real double, amount double, name string, raw string, price double,
    day date, at timestamp, local string, nested struct<a: bigint, b: struct<c: string>>,
    many array<struct<x: double>>, by_name map<string, array<bigint>>"""


def test_every_type_is_read_back_as_json_has_it() -> None:
    columns = parse_schema(ALL)
    text = json_schema_text(columns, "joined", "output")
    assert "required" not in json.loads(text)
    read = pa.schema(list(json_columns(RegisteredSchema("JSON", text), "output")))
    assert read == parse_schema(READ)
    assert all(fits_json_type(one.type, other.type) for one, other in zip(columns, read, strict=True))


@pytest.mark.parametrize(
    ("ddl", "told"),
    [
        ("price decimal(20, 2)", r"decimal\(20,2\), which a JSON number keeps 15 digits of; cast it to string"),
        ("span interval day to second", "which JSON schemas do not have"),
        ("many array<decimal(38, 0)>", "an element has the type"),
    ],
)
def test_what_has_no_form_is_refused(ddl: str, told: str) -> None:
    with pytest.raises(cj.SchemaError, match=told):
        json_schema_text(parse_schema(ddl), "out", "output")


@pytest.mark.parametrize(
    ("have", "want", "fits"),
    [
        ("int", "bigint", True),
        ("int", "double", True),
        ("double", "bigint", False),
        ("timestamp", "string", True),
        ("timestamp_ntz", "timestamp", False),
        ("string", "timestamp", False),
        ("struct<a: int, more: string>", "struct<a: bigint>", True),
        ("struct<a: string>", "struct<a: bigint>", False),
        ("map<int, int>", "map<string, bigint>", True),
        ("array<string>", "array<bigint>", False),
        ("string", "map<string, bigint>", False),
    ],
)
def test_which_columns_a_property_takes(have: str, want: str, fits: bool) -> None:
    one, other = (parse_schema(f"c {ddl}").field("c").type for ddl in (have, want))
    assert fits_json_type(one, other) == fits
