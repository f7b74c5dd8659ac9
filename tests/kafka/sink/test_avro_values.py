"""Values that a sink writes in Avro: by a real registry, read back by cojoin's own source, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.values.types import parse_schema
from cojoin.kafka.formats.avro_decoder import AvroReadings
from cojoin.kafka.formats.schema_lookup import FoundSchema
from cojoin.kafka.sink.avro_values import AvroValues
from tests.kafka.formats.test_avro_schema import ALL
from tests.kafka.sink.committed import read_committed
from tests.servers import free_ports
from tests.spark.data import Folders, enriched_rows, generate
from tests.spark.refused import refused
from tests.spark.saved import DRAIN, Saved

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker
    from tests.servers.registry import RegistryServer

pytestmark = [pytest.mark.kafka]


def written(registry: RegistryServer, subject: str, rows: pa.Table, **arguments: Any) -> AvroValues:
    chosen = cj.kafka.avro(registry.url, subject=subject, **arguments)
    return AvroValues.of(chosen, rows.schema, "out", "output")


def a_row() -> dict[str, Any]:
    at = datetime(2026, 1, 5, 9, 30, 0, 125, tzinfo=timezone.utc)
    return {
        "id": 1 << 40,
        "small": -3,
        "tiny": 7,
        "flag": True,
        "real": 0.5,
        "amount": -0.1,
        "name": "Zoë",
        "raw": b"\0\xff",
        "price": Decimal("-12345.67"),
        "day": date(1969, 12, 31),
        "at": at,
        "local": at.replace(tzinfo=None),
        "nested": {"a": 1, "b": {"c": None}},
        "many": [{"x": 1.5}, None],
        "by_name": [("a", [1, None]), ("b", None)],
    }


def test_rows_are_read_back_as_they_were(registry: RegistryServer) -> None:
    schema = parse_schema(ALL)
    rows = pa.Table.from_pylist([a_row(), dict.fromkeys(schema.names)], schema)
    values = written(registry, "all-types", rows)
    encoded = values.encode(rows)
    assert {value[:5] for value in encoded} == {b"\0" + values.number.to_bytes(4, "big")}
    there = registry.client.get_latest_version("all-types")
    assert there.schema_id == values.number
    columns = pa.struct([each.with_type(pa.int32()) if each.name in ("small", "tiny") else each for each in schema])
    read, faults = AvroReadings(columns, None, "value")(FoundSchema("AVRO", there.schema.schema_str))(encoded)
    assert read is not None
    assert faults == [None, None]
    assert read.to_pylist() == rows.to_pylist()
    # What is registered is used again.
    assert written(registry, "all-types", rows).number == values.number


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Out", "fields": list(fields)})


def test_a_subjects_schema_says_which_columns_are_written(registry: RegistryServer) -> None:
    first = registry.register("chosen", record({"name": "id", "type": "long"}))
    more = {"name": "note", "type": ["null", "string"], "default": None}
    second = registry.register("chosen", record({"name": "id", "type": "long"}, more))
    rows = pa.table({"id": pa.array([5, None], pa.int32()), "amount": [1.0, 2.0]})
    newest = written(registry, "chosen", rows)
    assert (newest.number, newest.columns.names) == (second, ["id"])
    assert newest.encode(rows.slice(0, 1)) == [b"\0" + second.to_bytes(4, "big") + b"\x0a\0"]
    assert written(registry, "chosen", rows, schema=1).number == first
    with pytest.raises(cj.QueryFailedError, match=r"a row can't be written with schema \d+ of subject 'chosen'"):
        newest.encode(rows)
    with pytest.raises(cj.ConfigurationError, match="subject 'chosen' has no version 9; it has 1, 2"):
        written(registry, "chosen", rows, schema=9)
    with pytest.raises(cj.SchemaError, match="takes bigint, and the output's column is string; cast"):
        written(registry, "chosen", pa.table({"id": ["a"]}))
    with pytest.raises(cj.SchemaError, match="has a field 'id' without a default, and the output no such column"):
        written(registry, "chosen", pa.table({"it": [1]}))
    registry.register("a-text", '"string"')
    with pytest.raises(cj.SchemaError, match="expected an Avro record"):
        written(registry, "a-text", rows)


def test_a_registry_that_is_away_is_told_without_its_login(registry: RegistryServer) -> None:
    rows = pa.table({"id": [1]})
    away = f"http://ali:opensesame@127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(cj.QueryFailedError, match="gave no answer") as told:
        AvroValues.of(cj.kafka.avro(away, subject="x"), rows.schema, "out", "output")
    assert "opensesame" not in str(told.value)
    values = written(registry, "kept", rows)
    assert "opensesame" not in repr(replace(values, registry=cj.kafka.registry(away)))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"value": cj.kafka.json("id long")}, "got Json, which sinks do not write"),
        ({"value": cj.kafka.avro("http://localhost", schema="id long")}, "got columns as DDL"),
        ({"value": cj.kafka.avro("http://localhost"), "delivery": "exactly_once_parallel"}, "expected columns with"),
    ],
)
def test_what_a_sink_does_not_write_is_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=told):
        cj.sinks.kafka("localhost:9092", "out", **arguments)


@pytest.mark.spark
def test_oracle_of_a_query_that_writes_avro(
    spark: SparkSession, broker: Broker, registry: RegistryServer, tmp_path: Path
) -> None:
    streams = generate(trades=60, customers=20)
    folders, servers = Folders(tmp_path / "data"), broker.bootstrap_servers
    folders.add_trades(streams.trades)
    folders.add_customers(streams.customers)
    broker.create_topic("in-avro", 2)
    saved = Saved(spark, tmp_path / "query", folders, 2)
    headers = {"id": "trade_id"}
    sink = cj.sinks.kafka(
        servers,
        "in-avro",
        key="customer_id",
        value=cj.kafka.avro(registry.url),
        headers=headers,
        timestamp="event_time",
    )
    saved.run(trigger=DRAIN, output=sink)
    source = cj.kafka.source(servers, "in-avro", value=cj.kafka.avro(registry.url), to="latest")
    rows = source.open(streaming=False).drop("topic", "partition", "offset")
    assert enriched_rows(rows) == streams.enriched()
    found = read_committed(servers, "in-avro")
    assert all(each.headers and each.key for each in found)
    with refused("subject 'in-avro-value' has no version 7", kind=cj.ConfigurationError):
        wrong = cj.sinks.kafka(servers, "in-avro", value=cj.kafka.avro(registry.url, schema=7))
        Saved(spark, tmp_path / "other", folders, 2).run(output=wrong)
