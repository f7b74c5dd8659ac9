"""What a cluster answers, and which topics and partitions it refuses."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

import cojoin as cj
from cojoin.kafka.client import Cluster, ClusterOptions

if TYPE_CHECKING:
    from cojoin.kafka.client import Partition
    from tests.servers.broker import Broker

pytestmark = pytest.mark.kafka

START = 1_767_571_200_000  # 2026-01-05
WHAT = "input 'trades'"


def fill(broker: Broker, topic: str, timestamps: dict[int, list[int]], **settings: str) -> None:
    """Make a topic of 4 partitions, whose records have these timestamps."""
    broker.create_topic(topic, 4)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, **settings})
    for partition, moments in timestamps.items():
        for moment in moments:
            producer.produce(topic, b"{}", partition=partition, timestamp=moment)
    assert producer.flush(20) == 0


def parts(topic: str) -> list[Partition]:
    return [(topic, number) for number in range(4)]


def cluster(broker: Broker, patience_ms: int | None = 10_000, **settings: str) -> Cluster:
    return Cluster(ClusterOptions(broker.bootstrap_servers, settings, patience_ms), WHAT)


def test_answers_of_full_empty_and_disordered_partitions(broker: Broker) -> None:
    times = {0: [START + 10 * each for each in range(100)], 1: [START, START + 50], 2: [START + 9, START + 7, START]}
    fill(broker, "client-answers", times)
    asked, read = cluster(broker), parts("client-answers")

    assert asked.partitions()["client-answers"] == [0, 1, 2, 3]
    assert list(asked.earliest(read).values()) == [0, 0, 0, 0]
    assert list(asked.latest(read).values()) == [100, 2, 3, 0]
    assert asked.first_at(read, START + 8) == {
        read[0]: (1, START + 10),
        read[1]: (1, START + 50),
        read[2]: (0, START + 9),
        read[3]: None,
    }
    assert list(asked.first_at(read, START + 991).values()) == [None] * 4
    assert asked.first_at(read[1:2], -5) == {read[1]: (0, START)}
    assert asked.latest([read[2], read[0], read[2]]) == {read[2]: 3, read[0]: 100}
    assert asked.latest([]) == {}
    asked.close()
    asked.close()


def test_the_end_is_before_open_transactions_unless_they_are_wanted(broker: Broker) -> None:
    fill(broker, "client-transactions", {0: [START]})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("client-transactions", b"{}", partition=0, timestamp=START + 5)
    producer.flush(20)
    first = [("client-transactions", 0)]
    try:
        assert cluster(broker).latest(first) == {first[0]: 1}
        assert cluster(broker).first_at(first, START + 5) == {first[0]: None}
        open_too = cluster(broker, **{"isolation.level": "read_uncommitted"})
        assert open_too.latest(first) == {first[0]: 2}
        assert open_too.first_at(first, START + 5) == {first[0]: (1, START + 5)}
    finally:
        producer.abort_transaction(20)


def test_a_topic_or_partition_that_is_not_there_is_named_at_once(broker: Broker) -> None:
    broker.create_topic("client-trades", 4)
    begin = time.monotonic()
    with pytest.raises(cj.ConfigurationError, match=r"input 'trades': .* no topic 'client-trade'.*'client-trades'"):
        cluster(broker).latest([("client-trade", 0), ("client-trades", 0)])
    with pytest.raises(cj.ConfigurationError, match="no topic 'client-trade'"):
        cluster(broker).first_at([("client-trade", 0)], START)
    with pytest.raises(cj.ConfigurationError, match=r"'client-trades' has no partition 4; it has \[0, 1, 2, 3\]"):
        cluster(broker).latest([*parts("client-trades"), ("client-trades", 4)])
    assert time.monotonic() - begin < 5
