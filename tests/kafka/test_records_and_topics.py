"""What else a topic can hold, or be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from tests.kafka.records import TRADE_DDL
from tests.kafka.topics import Topics, fill
from tests.servers import free_ports

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

NOON = "2025-11-02T12:00:00.000001Z"


def test_bad_records_are_rejected_and_counted(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    servers = broker.bootstrap_servers
    trades = [
        json.dumps({"trade_id": 1, "customer_id": 7, "event_time": NOON, "amount": 2.5}),
        "not JSON",  # nothing of it is known; the first of its faults is named
        None,  # what deletes a key from a compacted topic
        json.dumps({"trade_id": 2, "customer_id": "seven", "event_time": NOON, "amount": 2.5}),
        json.dumps({"trade_id": 3, "event_time": NOON, "amount": 2.5}),
        json.dumps({"trade_id": 4, "customer_id": 7, "event_time": "noon", "amount": 2.5}),
    ]
    customers = [json.dumps({"version_id": 1, "customer_id": 7, "event_time": NOON, "tier": "gold"}), "{"]
    for name, values in (("bad-trades", trades), ("bad-customers", customers)):
        broker.create_topic(name, 1)
        fill(spark, servers, name, values, [0] * len(values))
    topics = Topics(servers, "bad-trades", "bad-customers", (len(trades), len(customers)))
    table, checkpoint = str(tmp_path / "enriched"), str(tmp_path / "checkpoint")
    query = (
        topics.connect(batches=1)
        .asof_join(suffixes=("", "_customer"))
        .start(output=cj.sinks.delta(table), checkpoint=checkpoint, trigger=cj.Trigger.available_now(drain=True))
    )
    query.await_termination(progress=False)

    joined = spark.read.format("delta").load(table).select("trade_id", "tier").collect()
    assert [tuple(row) for row in joined] == [(1, "gold")]
    rejected = spark.read.format("delta").load(f"{checkpoint}/rejected").collect()
    # Topic, partition and offset lead back to the record.
    found = {(row.input, json.loads(row.row)["offset"]): row.reason for row in rejected}
    assert found == {
        ("trades", 1): "null_event_time",
        ("trades", 2): "null_event_time",
        ("trades", 3): "null_key",
        ("trades", 4): "null_key",
        ("trades", 5): "null_event_time",
        ("customers", 1): "null_event_time",
    }
    assert {json.loads(row.row)["topic"] for row in rejected} == {"bad-trades", "bad-customers"}
    assert query.progress is not None
    assert query.progress.is_conserved
    left, right = query.progress.inputs
    assert (left.rows_in, left.done, left.rejected) == (6, 1, {"null_key": 2, "null_event_time": 3})
    assert (right.rows_in, right.done, right.rejected) == (2, 1, {"null_event_time": 1})


def test_a_topic_that_is_not_there_is_named(topics: Topics) -> None:
    misspelt = Topics(topics.servers, topics.trades, "custmers", topics.sizes)
    with pytest.raises(cj.ConfigurationError, match="has no topic 'custmers'; did you mean 'customers'"):
        misspelt.connect()


def test_a_broker_that_is_not_there_is_named(spark: SparkSession) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    impatient = {"kafka.default.api.timeout.ms": 1000, "kafka.request.timeout.ms": 500}
    source = cj.sources.kafka(address, "trades", schema=TRADE_DDL, options=impatient)
    with pytest.raises(cj.ConfigurationError, match=f"{address} does not answer as a Kafka broker"):
        source.open()
