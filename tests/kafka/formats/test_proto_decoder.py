"""Protobuf decoded by columns, over versions of a message type."""

from __future__ import annotations

import base64
import pickle
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.values.types import schema_to_ddl
from cojoin.errors import SchemaError
from cojoin.kafka.formats.proto_decoder import ProtoReadings, proto_columns
from cojoin.kafka.formats.proto_files import message_type
from cojoin.kafka.formats.registry import RegisteredSchema
from tests.kafka.formats.encoded import framed, proto, proto_class

EACH_TYPE = """syntax = "proto3";
package shop;
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Tier { BASIC = 0; GOLD = 1; }
message Other { int32 a = 1; }
message Trade {
  message Inner { string x = 1; }
  int64 trade_id = 1; uint64 big = 2; uint32 middle = 3; double amount = 4; bytes raw = 5; bool flag = 6;
  google.protobuf.Timestamp at = 7; google.protobuf.Duration took = 8; google.protobuf.Int64Value wrapped = 9;
  google.protobuf.Struct free = 10; Inner inner = 11; repeated Inner many = 12; map<string, int32> counts = 13;
  optional string note = 14; Tier tier = 15; oneof choice { int32 one = 16; string two = 17; }
}
"""
WHOLE = RegisteredSchema("PROTOBUF", EACH_TYPE)
TRADE = proto_class(EACH_TYPE, "shop.Trade")
SECOND = b"\2\2"  # the place of the second message type


def read(written: RegisteredSchema, values: list[bytes], **arguments: Any) -> Any:
    reader, message = arguments.get("reader", written), arguments.get("message")
    columns = arguments.get("columns") or proto_columns(reader, message, "input 'trades'")
    chosen = None if "columns" in arguments else reader
    readings = pickle.loads(pickle.dumps(ProtoReadings(columns, chosen, message)))
    return readings(written)([framed(7, each) for each in values])


def test_each_type_has_its_column() -> None:
    full = TRADE(
        trade_id=-1, big=(1 << 64) - 1, middle=(1 << 32) - 1, amount=0.5, raw=b"\xff", flag=True, note="", one=0
    )
    full.at.seconds, full.at.nanos = -1, 999_999_999
    full.took.seconds = 3
    full.wrapped.value = 0
    full.free["k"] = [1, None]
    full.many.add(x="a")
    full.counts["b"], full.counts["a"] = 1, 2
    full.tier = 9
    rows, faults = read(
        WHOLE, [SECOND + full.SerializeToString(), SECOND + TRADE().SerializeToString()], message="shop.Trade"
    )
    assert faults == [None, None]
    assert rows.to_pylist() == [
        {
            "trade_id": -1,
            "big": Decimal((1 << 64) - 1),
            "middle": (1 << 32) - 1,
            "amount": 0.5,
            "raw": b"\xff",
            "flag": True,
            "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, timezone.utc),
            "took": timedelta(seconds=3),
            "wrapped": 0,
            "free": '{"k": [1.0, null]}',
            "inner": None,
            "many": [{"x": "a"}],
            "counts": [("a", 2), ("b", 1)],
            "note": "",
            "tier": "9",
            "one": 0,
            "two": None,
        },
        {
            **dict.fromkeys(("trade_id", "middle"), 0),
            **dict.fromkeys(("at", "took", "wrapped", "free", "inner", "note", "one", "two")),
            "big": Decimal(0),
            "amount": 0.0,
            "raw": b"",
            "flag": False,
            "many": [],
            "counts": [],
            "tier": "BASIC",
        },
    ]
    assert schema_to_ddl(pa.schema(list(rows.type))) == (
        "trade_id bigint, big decimal(20,0), middle bigint, amount double, raw binary, flag boolean, at timestamp, "
        "took interval day to second, wrapped bigint, free string, inner struct<x:string>, "
        "many array<struct<x:string>>, counts map<string,int>, note string, tier string, one int, two string"
    )


OLD, NEW = (proto("trades", version) for version in range(2))
NUMBERS = st.lists(st.tuples(st.integers(0, 1 << 30), st.floats(allow_nan=False)), min_size=1, max_size=20)


@given(numbers=NUMBERS, is_newer=st.booleans())
def test_oracle_messages_of_either_version(numbers: list[tuple[int, float]], is_newer: bool) -> None:
    """Read by the other version's columns, as the runtime itself does."""
    texts = (NEW, OLD) if is_newer else (OLD, NEW)
    make, other = (proto_class(each) for each in texts)
    values = [make(trade_id=number, amount=amount).SerializeToString() for number, amount in numbers]
    written, reader = (RegisteredSchema("PROTOBUF", each) for each in texts)
    rows, faults = read(written, [b"\0" + each for each in values], reader=reader)
    assert faults == [None] * len(values)
    expected = [other.FromString(each) for each in values]
    assert rows.field("trade_id").to_pylist() == [each.trade_id for each in expected]
    assert rows.field("amount").to_pylist() == [each.amount for each in expected]


def test_a_compiled_descriptor_is_read_as_the_text_is() -> None:
    compiled = message_type(RegisteredSchema("PROTOBUF", OLD), None).file.serialized_pb
    found = RegisteredSchema("PROTOBUF", base64.b64encode(compiled).decode())
    assert proto_columns(found, None, "w") == proto_columns(RegisteredSchema("PROTOBUF", OLD), None, "w")


def test_files_that_a_schema_refers_to_are_read() -> None:
    text = 'syntax = "proto3"; import "shop/inner.proto"; message Outer { shop.Inner inner = 1; }'
    inner = 'syntax = "proto3"; package shop; message Inner { string x = 1; }'
    found = RegisteredSchema("PROTOBUF", text, (("shop/inner.proto", inner),))
    assert proto_columns(found, None, "w") == pa.struct([("inner", pa.struct([("x", pa.string())]))])
    with pytest.raises(SchemaError, match="leads out of its folder"):
        proto_columns(RegisteredSchema("PROTOBUF", text, (("../inner.proto", inner),)), None, "w")


def test_wrong_bytes_are_faults_of_their_records_alone() -> None:
    beyond = TRADE()
    beyond.at.seconds = 1 << 62
    whole = SECOND + TRADE(trade_id=5).SerializeToString()
    values = [whole, b"\0\x08\1", SECOND + b"\x08", b"", SECOND + beyond.SerializeToString(), whole]
    rows, faults = read(WHOLE, values, message="Trade")
    assert [None if each is None else each["trade_id"] for each in rows.to_pylist()] == [5, *[None] * 4, 5]
    assert "it is a shop.Other, expected shop.Trade" in faults[1]
    assert [each is None for each in faults] == [True, False, False, False, False, True]


def test_a_number_that_got_another_type_can_not_be_read() -> None:
    changed = RegisteredSchema("PROTOBUF", OLD.replace("double amount", "string amount"))
    with pytest.raises(ValueError, match="field 4 is double amount in the record's schema, expected string amount"):
        read(RegisteredSchema("PROTOBUF", OLD), [], reader=changed)


def test_columns_of_the_user_are_found_by_name() -> None:
    value = b"\0" + proto_class(OLD)(trade_id=5).SerializeToString()
    wanted = pa.struct([("note", pa.string()), ("trade_id", pa.int64())])
    rows, _ = read(RegisteredSchema("PROTOBUF", OLD), [value], columns=wanted)
    assert rows.to_pylist() == [{"note": None, "trade_id": 5}]


@pytest.mark.parametrize(
    ("text", "message", "said"),
    [
        ('syntax = "proto3"; message T { T next = 1; }', None, "contains itself"),
        ('syntax = "proto3"; message T { }', None, "has no field"),
        (OLD, "shop.Nothing", "the file has no message type 'shop.Nothing'; it has shop.Trade"),
        ("message {", None, "protoc can't compile"),
    ],
)
def test_schemas_without_columns_are_refused(text: str, message: str | None, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        proto_columns(RegisteredSchema("PROTOBUF", text), message, "input 'trades'")
