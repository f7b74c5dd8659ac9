"""Columns as Protobuf's message types: read back as the same columns, and what has no form there."""

from __future__ import annotations

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.values.types import parse_schema
from cojoin.kafka.formats.proto_decoder import proto_columns
from cojoin.kafka.formats.proto_files import fits_field_type, message_type, proto_schema
from cojoin.kafka.formats.registry import RegisteredSchema

ALL = """id long, small smallint, flag boolean, real float, amount double, name string, raw binary, at timestamp,
    span interval day to second, nested struct<a: int, b: struct<c: timestamp>>, many array<struct<x: timestamp>>,
    texts array<string>, by_name map<string, bigint>, by_number map<bigint, struct<x: timestamp>>, _id string,
    nested_type int"""


def test_every_type_is_read_back_as_it_was() -> None:
    columns = parse_schema(ALL)
    found = RegisteredSchema("PROTOBUF", proto_schema(columns, "joined.trades-2", "output"))
    assert message_type(found, None).full_name == "joined_trades_2"
    for column, read in zip(columns, proto_columns(found, None, "output"), strict=True):
        assert read.name == column.name
        assert read.type == (pa.int32() if column.name == "small" else column.type)
        assert fits_field_type(column.type, read.type)


@pytest.mark.parametrize(
    ("ddl", "told"),
    [
        ("`a-b` long", "column 'a-b' can't be a field of Protobuf"),
        ("day date", "column 'day' has the type date, which Protobuf does not have in this place; cast it to string"),
        ("price decimal(12, 2)", r"has the type decimal\(12,2\)"),
        ("local timestamp_ntz", "has the type timestamp_ntz"),
        ("many array<array<int>>", "an element has the type array<int>"),
        ("m map<string, array<int>>", "a value has the type array<int>"),
        ("m map<double, int>", "has texts, whole numbers or booleans as keys"),
        ("a_b int, aB int", "the columns' names make no message type"),
    ],
)
def test_what_has_no_form_is_refused(ddl: str, told: str) -> None:
    with pytest.raises(cj.SchemaError, match=told):
        proto_schema(parse_schema(ddl), "out", "output")


@pytest.mark.parametrize(
    ("have", "want", "fits"),
    [
        ("bigint", "int", False),
        ("smallint", "bigint", True),
        ("bigint", "decimal(20, 0)", True),
        ("float", "double", True),
        ("double", "float", False),
        ("struct<a: int, more: date>", "struct<a: bigint, other: string>", True),
        ("struct<b: int>", "struct<a: bigint>", False),
        ("array<int>", "array<bigint>", True),
        ("int", "array<int>", False),
        ("map<int, string>", "map<bigint, string>", True),
        ("map<string, string>", "map<bigint, string>", False),
        ("int", "struct<a: int>", False),
    ],
)
def test_which_columns_a_field_takes(have: str, want: str, fits: bool) -> None:
    one, other = (parse_schema(f"c {ddl}").field("c").type for ddl in (have, want))
    assert fits_field_type(one, other) == fits
