"""What topics no longer have of what follows a checkpoint's position: told as a loss with its size, or as an end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from tests.kafka.topics import delete_records, fill
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

WHAT = "input 'trades'"
TOPIC = "aged-out"


@pytest.fixture(scope="module")
def aged_out(spark: SparkSession, broker: Broker) -> cj.kafka.KafkaSource:
    """A topic of two partitions of 8 records, of whose first the broker has deleted 5."""
    broker.create_topic(TOPIC, 2)
    fill(spark, broker.bootstrap_servers, TOPIC, [str(number) for number in range(16)], [0] * 8 + [1] * 8)
    delete_records(spark, broker.bootstrap_servers, TOPIC, 5)
    return cj.kafka.source(broker.bootstrap_servers, TOPIC, schema="id long")


def position(*offsets: int, topic: str = TOPIC) -> str:
    positions = {topic: {str(number): offset for number, offset in enumerate(offsets)}}
    return json.dumps({"time": 7, "mark": None, "positions": positions, "unread": {}})


def test_records_that_are_gone_are_counted(spark: SparkSession, aged_out: cj.kafka.KafkaSource) -> None:
    assert aged_out.lost_since(spark, WHAT, position(5, 8)) == []
    assert aged_out.with_losses_accepted(spark, WHAT, position(5, 8)) == position(5, 8)
    assert aged_out.lost_since(spark, WHAT, position(2, 3)) == [
        "input 'trades': topic aged-out partition 0: offsets 2 to 4 (3 records)"
    ]
    assert aged_out.with_losses_accepted(spark, WHAT, position(2, 3)) == position(5, 3)
    assert aged_out.lost_since(spark, WHAT, None) == aged_out.lost_since(spark, WHAT, "-") == []


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (position(8, 9), "topic aged-out partition 1 ends at offset 8, before the checkpoint's 9: the topic was"),
        (position(8, 8, 1), "has read topic 'aged-out' partition 2, which aged-out does not have"),
        (position(8, topic="trades-of-old"), "has read topic 'trades-of-old' partition 0"),
        ('{"logOffset', "is not in the form of Spark's offset log; got '{\"logOffset'"),
    ],
)
def test_a_topic_that_is_another_is_refused(
    spark: SparkSession, aged_out: cj.kafka.KafkaSource, offset: str, said: str
) -> None:
    with refused("input 'trades': ", said, kind=cj.CheckpointError):
        aged_out.lost_since(spark, WHAT, offset)
