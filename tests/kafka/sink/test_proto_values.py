"""Values in Protobuf by a real registry: read back as they were, and what a subject's message type says."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.values.types import parse_schema
from cojoin.kafka.formats.proto_decoder import ProtoReadings, proto_columns
from cojoin.kafka.formats.registry import FoundSchema
from tests.kafka.formats.test_proto_schema import ALL
from tests.kafka.sink.values import AT, head, writing

if TYPE_CHECKING:
    from cojoin.kafka.sink.serializers import RegistryValues
    from tests.servers.registry import RegistryServer

pytestmark = [pytest.mark.kafka]

SHOP = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Other { int32 unused = 1; }
message Trade {
  enum Side { BUY = 0; SELL = 1; }
  int64 id = 1;
  google.protobuf.Timestamp at = 2;
  Side side = 3;
  google.protobuf.StringValue note = 4;
  uint64 sequence = 5;
  repeated google.protobuf.Timestamp changes = 6;
  google.protobuf.Struct extra = 7;
  optional string not_there = 8;
  oneof price { double amount = 9; string free = 10; }
}
"""
BEFORE_1970 = datetime(1969, 1, 5, 9, 30, 0, 125, tzinfo=timezone.utc)
ROW = {
    "id": 1 << 40,
    "small": -3,
    "flag": True,
    "real": 0.5,
    "amount": -0.1,
    "name": "Zoë",
    "raw": b"\0\xff",
    "at": BEFORE_1970,
    "span": timedelta(microseconds=-1_500_001),
    "nested": {"a": 0, "b": {"c": AT}},
    "many": [{"x": AT}, {"x": None}],
    "texts": ["", "x"],
    "by_name": [("a", 1), ("b", 0)],
    "by_number": [(-1, {"x": BEFORE_1970})],
    "_id": "",
    "nested_type": 0,
}


def written(registry: RegistryServer, subject: str, rows: pa.Table, *message: str, **arguments: Any) -> RegistryValues:
    return writing(cj.kafka.protobuf(registry.url, *message, subject=subject, **arguments), rows)


def read(found: FoundSchema, columns: pa.StructType, encoded: list[bytes], message: str | None = None) -> list[Any]:
    rows, faults = ProtoReadings(columns, None, message)(found)(encoded)
    assert rows is not None
    assert not any(faults), faults
    values: list[Any] = rows.to_pylist()
    return values


def test_rows_are_read_back_as_they_were(registry: RegistryServer) -> None:
    schema = parse_schema(ALL)
    rows = pa.Table.from_pylist([ROW, dict.fromkeys(schema.names)], schema)
    values = written(registry, "proto-all-types", rows)
    encoded = values.encode(rows)
    assert {value[:6] for value in encoded} == {head(values) + b"\0"}
    there = registry.client.get_latest_version("proto-all-types")
    assert there.schema_id == values.schema.number
    columns = pa.struct([each.with_type(pa.int32()) if each.name == "small" else each for each in schema])
    first, empty = read(FoundSchema("PROTOBUF", there.schema.schema_str), columns, encoded)
    assert first == ROW
    # Protobuf does not tell a list or a map that is null from an empty one.
    assert {name for name, value in empty.items() if value is not None} == {"many", "texts", "by_name", "by_number"}
    # What is registered is used again.
    assert written(registry, "proto-all-types", rows).schema.number == values.schema.number


def test_a_subjects_type_says_which_columns_are_written(registry: RegistryServer) -> None:
    number = registry.register("shop-value", SHOP, "PROTOBUF")
    row = {
        "id": 5,
        "at": AT,
        "side": "SELL",
        "note": "x",
        "sequence": 7,
        "changes": [AT, BEFORE_1970],
        "extra": '{"a": [1, null]}',
        "left_out": "y",
    }
    ddl = "id int, at timestamp, side string, note string, sequence long, changes array<timestamp>, extra string"
    schema = parse_schema(f"{ddl}, left_out string")
    rows = pa.Table.from_pylist([row, {**dict.fromkeys(row), "side": "12"}], schema)
    values = written(registry, "shop-value", rows, "shop.Trade")
    assert values.schema.number == number
    assert values.schema.columns.names == schema.names[:-1]
    encoded = values.encode(rows)
    assert encoded[0].startswith(b"\0" + number.to_bytes(4, "big") + b"\x02\x02")
    found = FoundSchema("PROTOBUF", SHOP)
    columns = proto_columns(found, "Trade", "output")
    first, second = read(found, columns, encoded, "Trade")
    assert {**first, "sequence": int(first["sequence"])} == {
        **{name: value for name, value in row.items() if name != "left_out"},
        "extra": '{"a": [1.0, null]}',
        **dict.fromkeys(("not_there", "amount", "free")),
    }
    assert (second["id"], second["at"], second["side"], second["changes"]) == (0, None, "12", [])
    with pytest.raises(cj.SchemaError, match="field 'id' takes bigint, and the output's column is string; cast"):
        written(registry, "shop-value", pa.table({"id": ["a"]}), "Trade")
    with pytest.raises(cj.SchemaError, match="has the fields unused, and the output none of these columns"):
        written(registry, "shop-value", rows)
    with pytest.raises(cj.SchemaError, match="there is no message type 'Nothing'"):
        written(registry, "shop-value", rows, "Nothing")
    with pytest.raises(cj.SchemaError, match="message: expected none, got 'Trade'"):
        written(registry, "no-such-value", rows, "Trade")
    with pytest.raises(cj.SchemaError, match="expected an Avro record, got PROTOBUF"):
        writing(cj.kafka.avro(registry.url, subject="shop-value"), rows)


@pytest.mark.parametrize(
    ("ddl", "row", "told"),
    [
        ("changes array<timestamp>", {"changes": [None]}, "a list or map holds null"),
        ("side string", {"side": "HOLD"}, "shop.Trade.Side has no value 'HOLD'"),
        ("sequence long", {"sequence": -1}, "ValueError"),
        ("amount double, free string", {"amount": 0.0, "free": ""}, "amount and free are both there"),
        ("extra string", {"extra": "{"}, "extra|Failed to load JSON"),
    ],
)
def test_a_row_that_does_not_fit_is_told(registry: RegistryServer, ddl: str, row: Any, told: str) -> None:
    registry.register("shop-value", SHOP, "PROTOBUF")
    schema = parse_schema(ddl)
    rows = pa.Table.from_pylist([row], schema)
    values = written(registry, "shop-value", rows, "Trade")
    with pytest.raises(cj.QueryFailedError, match=told) as said:
        values.encode(rows)
    assert "of subject 'shop-value'" in str(said.value)


def test_a_required_field_of_proto2_is_asked_for(registry: RegistryServer) -> None:
    registry.register(
        "old-value", 'syntax = "proto2"; message Old { required int64 id = 1; optional int64 n = 2; }', "PROTOBUF"
    )
    with pytest.raises(cj.SchemaError, match="has a field 'id' without a default"):
        written(registry, "old-value", pa.table({"n": [1]}))
    rows = pa.table({"id": pa.array([None], pa.int64())})
    with pytest.raises(cj.QueryFailedError, match="missing required fields: id"):
        written(registry, "old-value", rows).encode(rows)
