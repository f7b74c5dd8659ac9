"""Values with schemas of a real registry: what is refused, and queries that write them, read back by the source."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from tests.kafka.sink.committed import read_committed
from tests.kafka.sink.values import writing
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
@pytest.mark.parametrize(
    "kind", ["avro", *(pytest.param(each, marks=pytest.mark.slow) for each in ("protobuf", "json_schema"))]
)
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
