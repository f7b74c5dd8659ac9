"""Columns as Avro's schemas: read back as the same columns, and what has no form there."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.values.types import parse_schema
from cojoin.kafka.formats.avro_columns import avro_schema, can_be_written_as
from cojoin.kafka.formats.avro_decoder import avro_columns
from cojoin.kafka.formats.registry import RegisteredSchema

ALL = """id long, small smallint, tiny tinyint, flag boolean, real float, amount double, name string, raw binary,
    price decimal(12, 2), day date, at timestamp, local timestamp_ntz, nested struct<a: int, b: struct<c: string>>,
    many array<struct<x: double>>, by_name map<string, array<bigint>>"""


def test_every_type_is_read_back_as_it_was() -> None:
    columns = parse_schema(ALL)
    text = avro_schema(columns, "joined.trades-2", "output")
    assert json.loads(text)["name"] == "joined_trades_2"
    found = avro_columns(RegisteredSchema("AVRO", text), "value", "output")
    wider = {pa.int8(): pa.int32(), pa.int16(): pa.int32()}
    for column, read in zip(columns, found, strict=True):
        assert read.name == column.name
        assert read.type == wider.get(column.type, column.type)
        assert can_be_written_as(column.type, read.type)
    assert all(each["type"][0] == "null" and each["default"] is None for each in json.loads(text)["fields"])


def test_a_name_that_begins_with_a_digit_is_one_all_the_same() -> None:
    assert json.loads(avro_schema(parse_schema("id long"), "2-out", "output"))["name"] == "_2_out"


@pytest.mark.parametrize(
    ("ddl", "told"),
    [
        ("`a-b` long", "column 'a-b' can't be a field of Avro"),
        ("span interval day to second", "cast it to string"),
        ("m map<int, string>", "a map needs texts as keys"),
    ],
)
def test_what_has_no_form_is_refused(ddl: str, told: str) -> None:
    with pytest.raises(cj.SchemaError, match=told):
        avro_schema(parse_schema(ddl), "out", "output")


@pytest.mark.parametrize(
    ("have", "want", "fits"),
    [
        ("int", "bigint", True),
        ("bigint", "int", False),
        ("float", "double", True),
        ("double", "float", False),
        ("void", "string", True),
        ("string", "int", False),
        ("timestamp", "timestamp_ntz", False),
        ("decimal(4,2)", "decimal(5,2)", False),
        ("struct<a: int, b: int>", "struct<a: bigint>", True),
        ("struct<b: int>", "struct<a: bigint>", False),
        ("array<int>", "array<bigint>", True),
        ("map<string, int>", "map<string, string>", False),
    ],
)
def test_only_what_loses_nothing_can_be_written(have: str, want: str, fits: Any) -> None:
    one, other = (parse_schema(f"c {ddl}").field(0).type for ddl in (have, want))
    assert can_be_written_as(one, other) is fits
