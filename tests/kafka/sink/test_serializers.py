"""Values with a schema of a registry: Avro, Protobuf and JSON are read back as the rows that they were."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.values.types import parse_schema
from cojoin.kafka.formats.avro_decoder import AvroReadings
from cojoin.kafka.formats.proto_decoder import ProtoReadings, proto_columns
from cojoin.kafka.formats.registry import RegisteredSchema
from tests.kafka.formats.test_avro_columns import ALL as ALL_OF_AVRO
from tests.kafka.formats.test_proto_files import ALL as ALL_OF_PROTOBUF
from tests.kafka.sink.committed import read_committed
from tests.kafka.sink.values import AT, a_row, head, writing
from tests.servers import free_ports
from tests.spark.data import Folders, enriched_rows, generate
from tests.spark.refused import refused
from tests.spark.saved import DRAIN, Saved

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cojoin.kafka.sink.serializers import RegistryValues
    from tests.servers.broker import Broker
    from tests.servers.registry import RegistryServer

pytestmark = [pytest.mark.kafka]


def test_a_registry_that_is_away_is_told_without_its_login(registry: RegistryServer) -> None:
    rows = pa.table({"id": [1]})
    away = f"http://ali:opensesame@127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(cj.QueryFailedError, match="gave no answer") as told:
        writing(cj.kafka.avro(away, subject="x"), rows)
    assert "opensesame" not in str(told.value)
    values = writing(cj.kafka.avro(registry.url, subject="kept"), rows)
    assert "opensesame" not in repr(replace(values, registry=cj.kafka.registry(away)))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"value": cj.kafka.json("id long")}, "got Json, which sinks do not write; 'json' writes all columns"),
        ({"value": cj.kafka.avro("http://localhost", schema="id long")}, "got columns as DDL"),
        ({"value": cj.kafka.protobuf("http://localhost", schema="id long")}, "protobuf: schema: expected a"),
        (
            {"value": cj.kafka.json_schema("http://localhost", schema="id long")},
            "json_schema: schema: expected a",
        ),
        ({"value": cj.kafka.avro("http://localhost"), "delivery": "exactly_once_parallel"}, "expected columns with"),
    ],
)
def test_what_a_sink_does_not_write_is_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=told):
        cj.sinks.kafka("localhost:9092", "out", **arguments)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["avro", "protobuf", "json_schema"])
def test_oracle_of_a_query_that_writes(
    spark: SparkSession, broker: Broker, registry: RegistryServer, tmp_path: Path, kind: str
) -> None:
    form, topic = getattr(cj.kafka, kind), f"in-{kind.replace('_', '-')}"
    streams = generate(trades=60, customers=20)
    folders, servers = Folders(tmp_path / "data"), broker.bootstrap_servers
    folders.add_trades(streams.trades)
    folders.add_customers(streams.customers)
    broker.create_topic(topic, 2)
    saved = Saved(spark, tmp_path / "query", folders, 2)
    headers = {"id": "trade_id"}
    sink = cj.sinks.kafka(
        servers,
        topic,
        key="customer_id",
        value=form(registry.url),
        headers=headers,
        timestamp="event_time",
    )
    saved.run(trigger=DRAIN, output=sink)
    source = cj.kafka.source(servers, topic, value=form(registry.url), to="latest")
    rows = source.open(streaming=False).drop("topic", "partition", "offset")
    assert enriched_rows(rows) == streams.enriched()
    found = read_committed(servers, topic)
    assert all(each.headers and each.key for each in found)
    with refused(f"subject '{topic}-value' has no version 7", kind=cj.ConfigurationError):
        wrong = cj.sinks.kafka(servers, topic, value=form(registry.url, schema=7))
        Saved(spark, tmp_path / "other", folders, 2).run(output=wrong)


def avro_values(registry: RegistryServer, subject: str, rows: pa.Table, **arguments: Any) -> RegistryValues:
    return writing(cj.kafka.avro(registry.url, subject=subject, **arguments), rows)


def test_avro_rows_are_read_back_as_they_were(registry: RegistryServer) -> None:
    schema = parse_schema(ALL_OF_AVRO)
    rows = pa.Table.from_pylist([a_row(), dict.fromkeys(schema.names)], schema)
    values = avro_values(registry, "all-types", rows)
    encoded = values.encode(rows)
    assert {value[:5] for value in encoded} == {head(values)}
    there = registry.client.get_latest_version("all-types")
    assert there.schema_id == values.schema.number
    columns = pa.struct([each.with_type(pa.int32()) if each.name in ("small", "tiny") else each for each in schema])
    read, faults = AvroReadings(columns, None, "value")(RegisteredSchema("AVRO", there.schema.schema_str))(encoded)
    assert read is not None
    assert faults == [None, None]
    assert read.to_pylist() == rows.to_pylist()
    # What is registered is used again.
    assert avro_values(registry, "all-types", rows).schema.number == values.schema.number


def test_times_of_all_years_are_written(registry: RegistryServer) -> None:
    """Python's own times end with the year 9999."""
    far = pa.array([1 << 60, -(1 << 60)])
    moments, days = far.cast(pa.timestamp("us", "UTC")), pa.array([5_000_000, -5_000_000], pa.int32()).cast(pa.date32())
    inside = pa.StructArray.from_arrays([moments, days], ["at", "on"])
    lists = pa.ListArray.from_arrays([0, 1, 2], far.cast(pa.timestamp("us")))
    rows = pa.table({"at": moments, "on": days, "inside": inside, "lists": lists})
    encoded = avro_values(registry, "all-years", rows).encode(rows)
    there = registry.client.get_latest_version("all-years").schema
    read, faults = AvroReadings(pa.struct(list(rows.schema)), None, "value")(
        RegisteredSchema("AVRO", there.schema_str)
    )(encoded)
    assert faults == [None, None]
    assert pa.Table.from_struct_array(read).equals(rows)


def test_of_a_time_in_milliseconds_within_another_type_no_unit_is_lost(registry: RegistryServer) -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "at", "type": millis}]}
    registry.register("inner-millis", record({"name": "a", "type": inner}, {"name": "b", "type": "Inner"}))
    at = pa.array([5_000]).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({name: pa.StructArray.from_arrays([at], ["at"]) for name in "ab"})
    assert avro_values(registry, "inner-millis", rows, schema=1).encode(rows)[0][5:] == b"\x0a\x0a"


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Out", "fields": list(fields)})


def test_a_subjects_schema_says_which_columns_are_written(registry: RegistryServer) -> None:
    first = registry.register("chosen", record({"name": "id", "type": "long"}))
    more = {"name": "note", "type": ["null", "string"], "default": None}
    second = registry.register("chosen", record({"name": "id", "type": "long"}, more))
    rows = pa.table({"id": pa.array([5, None], pa.int32()), "amount": [1.0, 2.0]})
    newest = avro_values(registry, "chosen", rows)
    assert (newest.schema.number, newest.schema.columns.names) == (second, ["id"])
    assert newest.encode(rows.slice(0, 1)) == [b"\0" + second.to_bytes(4, "big") + b"\x0a\0"]
    assert avro_values(registry, "chosen", rows, schema=1).schema.number == first
    with pytest.raises(cj.QueryFailedError, match=r"a row can't be written with schema \d+ of subject 'chosen'"):
        newest.encode(rows)
    with pytest.raises(cj.ConfigurationError, match="subject 'chosen' has no version 9; it has 1, 2"):
        avro_values(registry, "chosen", rows, schema=9)
    with pytest.raises(cj.SchemaError, match="takes bigint, and the output's column is string; cast"):
        avro_values(registry, "chosen", pa.table({"id": ["a"]}))
    with pytest.raises(cj.SchemaError, match="has a field 'id' without a default, and the output no such column"):
        avro_values(registry, "chosen", pa.table({"it": [1]}))
    registry.register("a-text", '"string"')
    with pytest.raises(cj.SchemaError, match="expected an Avro record"):
        avro_values(registry, "a-text", rows)


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


def proto_values(
    registry: RegistryServer, subject: str, rows: pa.Table, *message: str, **arguments: Any
) -> RegistryValues:
    return writing(cj.kafka.protobuf(registry.url, *message, subject=subject, **arguments), rows)


def read(
    found: RegisteredSchema, columns: pa.StructType, encoded: list[bytes], message: str | None = None
) -> list[Any]:
    rows, faults = ProtoReadings(columns, None, message)(found)(encoded)
    assert rows is not None
    assert not any(faults), faults
    values: list[Any] = rows.to_pylist()
    return values


def test_protobuf_rows_are_read_back_as_they_were(registry: RegistryServer) -> None:
    schema = parse_schema(ALL_OF_PROTOBUF)
    rows = pa.Table.from_pylist([ROW, dict.fromkeys(schema.names)], schema)
    values = proto_values(registry, "proto-all-types", rows)
    encoded = values.encode(rows)
    assert {value[:6] for value in encoded} == {head(values) + b"\0"}
    there = registry.client.get_latest_version("proto-all-types")
    assert there.schema_id == values.schema.number
    columns = pa.struct([each.with_type(pa.int32()) if each.name == "small" else each for each in schema])
    first, empty = read(RegisteredSchema("PROTOBUF", there.schema.schema_str), columns, encoded)
    assert first == ROW
    # Protobuf does not tell a list or a map that is null from an empty one.
    assert {name for name, value in empty.items() if value is not None} == {"many", "texts", "by_name", "by_number"}
    # What is registered is used again.
    assert proto_values(registry, "proto-all-types", rows).schema.number == values.schema.number


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
    values = proto_values(registry, "shop-value", rows, "shop.Trade")
    assert values.schema.number == number
    assert values.schema.columns.names == schema.names[:-1]
    encoded = values.encode(rows)
    assert encoded[0].startswith(b"\0" + number.to_bytes(4, "big") + b"\x02\x02")
    found = RegisteredSchema("PROTOBUF", SHOP)
    columns = proto_columns(found, "Trade", "output")
    first, second = read(found, columns, encoded, "Trade")
    assert {**first, "sequence": int(first["sequence"])} == {
        **{name: value for name, value in row.items() if name != "left_out"},
        "extra": '{"a": [1.0, null]}',
        **dict.fromkeys(("not_there", "amount", "free")),
    }
    assert (second["id"], second["at"], second["side"], second["changes"]) == (0, None, "12", [])
    with pytest.raises(cj.SchemaError, match="field 'id' takes bigint, and the output's column is string; cast"):
        proto_values(registry, "shop-value", pa.table({"id": ["a"]}), "Trade")
    with pytest.raises(cj.SchemaError, match="has the fields unused, and the output none of these columns"):
        proto_values(registry, "shop-value", rows)
    with pytest.raises(cj.SchemaError, match="the file has no message type 'Nothing'"):
        proto_values(registry, "shop-value", rows, "Nothing")
    with pytest.raises(cj.SchemaError, match="message: expected none, got 'Trade'"):
        proto_values(registry, "no-such-value", rows, "Trade")
    with pytest.raises(cj.SchemaError, match="expected an Avro record, got PROTOBUF"):
        writing(cj.kafka.avro(registry.url, subject="shop-value"), rows)


@pytest.mark.parametrize(
    ("ddl", "row", "told"),
    [
        ("changes array<timestamp>", {"changes": [None]}, "a list or map holds null"),
        ("side string", {"side": "HOLD"}, "shop.Trade.Side has no value 'HOLD'"),
        ("sequence long", {"sequence": -1}, "ValueError"),
        ("amount double, free string", {"amount": 0.0, "free": ""}, "amount and free are both set"),
        ("extra string", {"extra": "{"}, "extra|Failed to load JSON"),
    ],
)
def test_a_row_that_does_not_fit_is_told(registry: RegistryServer, ddl: str, row: Any, told: str) -> None:
    registry.register("shop-value", SHOP, "PROTOBUF")
    schema = parse_schema(ddl)
    rows = pa.Table.from_pylist([row], schema)
    values = proto_values(registry, "shop-value", rows, "Trade")
    with pytest.raises(cj.QueryFailedError, match=told) as said:
        values.encode(rows)
    assert "of subject 'shop-value'" in str(said.value)


def test_a_required_field_of_proto2_is_asked_for(registry: RegistryServer) -> None:
    registry.register(
        "old-value", 'syntax = "proto2"; message Old { required int64 id = 1; optional int64 n = 2; }', "PROTOBUF"
    )
    with pytest.raises(cj.SchemaError, match="has a field 'id' without a default"):
        proto_values(registry, "old-value", pa.table({"n": [1]}))
    rows = pa.table({"id": pa.array([None], pa.int64())})
    with pytest.raises(cj.QueryFailedError, match="missing required fields: id"):
        proto_values(registry, "old-value", rows).encode(rows)


TRADE = {
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 0}, "tier": {"enum": ["gold", "basic"]}},
    "required": ["id"],
}


def json_values(registry: RegistryServer, subject: str, rows: pa.Table, **arguments: Any) -> RegistryValues:
    return writing(cj.kafka.json_schema(registry.url, subject=subject, **arguments), rows)


def as_json(*texts: str) -> pa.Table:
    return pa.table({"c0": list(texts)})


def test_rows_are_held_to_a_subjects_schema(registry: RegistryServer) -> None:
    number = registry.register("json-trades", json.dumps(TRADE), "JSON")
    rows = pa.table({"id": [1], "tier": ["gold"], "left_out": ["x"]})
    values = json_values(registry, "json-trades", rows)
    assert (values.schema.number, values.schema.columns.names) == (number, ["id", "tier"])
    texts = ['{"id":1,"tier":"gold"}', '{"id":12345678901234567890}']
    encoded = values.encode(as_json(*texts))
    assert [value[:5] for value in encoded] == [head(values)] * 2
    assert [json.loads(value[5:]) for value in encoded] == [json.loads(text) for text in texts]
    for text, told in (
        ('{"id":-1}', "-1 is less than the minimum of 0"),
        ('{"tier":"gold"}', "'id' is a required property"),
        ('{"id":1,"tier":"none"}', "'none' is not one of"),
    ):
        with pytest.raises(cj.QueryFailedError, match=told):
            values.encode(as_json(text))
    with pytest.raises(cj.SchemaError, match="has a field 'id' without a default, and the output no such column"):
        json_values(registry, "json-trades", pa.table({"tier": ["gold"]}))
    with pytest.raises(cj.SchemaError, match="field 'id' takes bigint, and the output's column is double"):
        json_values(registry, "json-trades", pa.table({"id": [1.0]}))


def test_a_schema_of_all_columns_is_registered_once(registry: RegistryServer) -> None:
    rows = pa.table({"id": [1], "amount": [0.5]})
    values = json_values(registry, "json-made", rows)
    there = registry.client.get_latest_version("json-made")
    assert there.schema_id == values.schema.number
    assert json.loads(there.schema.schema_str)["properties"] == {
        "id": {"type": "integer"},
        "amount": {"type": "number"},
    }
    assert json_values(registry, "json-made", rows).schema.number == values.schema.number


def test_a_schema_without_columns_is_told(registry: RegistryServer) -> None:
    choice = {"oneOf": [{"type": "string"}, {"type": "integer"}]}
    registry.register("json-choice", json.dumps({"type": "object", "properties": {"id": choice}}), "JSON")
    said = "got oneOf of 2 types, at #/properties/id; name another schema with subject="
    with pytest.raises(cj.SchemaError, match=said):
        json_values(registry, "json-choice", pa.table({"id": [1]}))


def test_a_null_that_the_schema_asks_for_is_put_back(registry: RegistryServer) -> None:
    maybe = {"oneOf": [{"type": "null"}, {"type": "string"}]}
    inner = {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}, "required": ["a"]}
    described = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "note": maybe,
            "side": {"$ref": "#/definitions/side"},
            "within": {"oneOf": [{"type": "null"}, inner]},
            "many": {"type": "array", "items": inner},
        },
        "required": ["id", "note", "side", "within"],
        "definitions": {"side": maybe},
    }
    registry.register("json-nulls", json.dumps(described), "JSON")
    rows = pa.table({"id": [1], "note": ["x"], "side": ["y"]}).append_column("within", pa.array([{"a": 1}]))
    values = json_values(registry, "json-nulls", rows)
    (first, second) = values.encode(as_json('{"id":1}', '{"id":2,"within":{},"many":[{}]}'))
    assert json.loads(first[5:]) == {"id": 1, "note": None, "side": None, "within": None}
    assert json.loads(second[5:]) == {"id": 2, "note": None, "side": None, "within": {"a": None}, "many": [{"a": None}]}
    with pytest.raises(cj.QueryFailedError, match="'id' is a required property"):
        values.encode(as_json('{"note":"x"}'))
