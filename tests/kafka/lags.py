"""A consumer group as a lag tool sees it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from cojoin.kafka.client import Partition

SECONDS = 60


def _consumer(servers: str, group: str) -> Consumer:
    """Make a consumer that subscribes to nothing, and so is no member of the group."""
    return Consumer({"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, "log_level": 0})


def _partitions(consumer: Consumer, topics: tuple[str, ...]) -> list[TopicPartition]:
    there = consumer.list_topics(timeout=SECONDS).topics
    return [TopicPartition(topic, number) for topic in topics for number in there[topic].partitions]


def committed(servers: str, group: str, *topics: str) -> dict[Partition, int]:
    """Return the offsets of topics that are committed to a group; a partition without one is left out."""
    with closing(_consumer(servers, group)) as consumer:
        found = consumer.committed(_partitions(consumer, topics), timeout=SECONDS)
    return {(each.topic, each.partition): each.offset for each in found if each.offset >= 0}


def log_ends(servers: str, *topics: str) -> dict[Partition, int]:
    """Return the ends of all partitions of topics: after their markers, and after open transactions."""
    with closing(_consumer(servers, "looks")) as consumer:
        return {
            (each.topic, each.partition): consumer.get_watermark_offsets(each, timeout=SECONDS)[1]
            for each in _partitions(consumer, topics)
        }


def set_offsets(servers: str, group: str, offsets: Mapping[Partition, int]) -> None:
    """Commit offsets to a group, as another program would."""
    with closing(_consumer(servers, group)) as consumer:
        wanted = [TopicPartition(*each, offset) for each, offset in offsets.items()]
        assert all(each.error is None for each in consumer.commit(offsets=wanted, asynchronous=False))


def lags(spark: SparkSession, servers: str, group: str) -> dict[Partition, int]:
    """Return the lag of a group in each partition for which it has an offset, by Kafka's own admin API."""
    jvm: Any = spark._jvm
    settings, wanted = jvm.java.util.HashMap(), jvm.java.util.HashMap()
    settings.put("bootstrap.servers", servers)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    try:
        offsets = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
        for partition in offsets:
            wanted.put(partition, jvm.org.apache.kafka.clients.admin.OffsetSpec.latest())
        ends = admin.listOffsets(wanted).all().get()
        return {
            (partition.topic(), partition.partition()): ends[partition].offset() - offsets[partition].offset()
            for partition in offsets
        }
    finally:
        admin.close()
