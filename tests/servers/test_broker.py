from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.servers import ServerError
from tests.servers.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka

RECORDS = 1_000
PARTITIONS = 4


@pytest.mark.spark
def test_records_come_back_from_all_partitions(spark: SparkSession, broker: Broker) -> None:
    broker.create_topic("smoke", PARTITIONS)
    kafka = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    records = spark.range(RECORDS).selectExpr(
        "string(id) AS key",
        "to_json(named_struct('id', id, 'price', id / 8)) AS value",
        f"int(id % {PARTITIONS}) AS partition",
    )
    records.write.format("kafka").options(**kafka, topic="smoke").save()

    topic = spark.read.format("kafka").options(**kafka, subscribe="smoke").load()
    rows = topic.selectExpr("string(value) AS value", "partition").collect()
    assert {row.partition for row in rows} == set(range(PARTITIONS))
    values = sorted((json.loads(row.value) for row in rows), key=lambda value: value["id"])
    assert values == [{"id": number, "price": number / 8} for number in range(RECORDS)]


def test_a_topic_is_made_once(broker: Broker) -> None:
    broker.create_topic("once", 1)
    with pytest.raises(ServerError, match="error code 36"):
        broker.create_topic("once", 1)


@pytest.mark.slow
def test_stopping_a_broker_ends_its_own_process_and_no_other(broker: Broker) -> None:
    with Broker() as other:
        pid = other.pid
        assert pid != broker.pid
        other.create_topic("gone", 2)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(ServerError, match="not running"):
        other.create_topic("too-late", 1)
    broker.create_topic("still-there", 2)
