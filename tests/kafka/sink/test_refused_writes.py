"""What real brokers refuse to a sink: transactions that take too long, missing rights, a topic that is gone."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

import cojoin as cj
from cojoin.kafka.sink.topic_producer import TopicConnection
from cojoin.spark.sinks.sink import OutputId
from tests.kafka.logins import allow, login
from tests.kafka.replayed import admin
from tests.kafka.sink.batches import write_batch
from tests.kafka.sink.committed import read_committed
from tests.spark.refused import refused

if TYPE_CHECKING:
    from cojoin.kafka.sink.topic_producer import TopicTarget
    from tests.servers.broker import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SETTLED_SECONDS = 40


def target(sink: cj.sinks.KafkaSink, query: str) -> TopicTarget:
    return sink.target(OutputId(query, "output", 1))


def problem(to: TopicTarget) -> str:
    """Return why a batch is refused; an empty text where it is written."""
    try:
        TopicConnection(to, at_start=True).facts()
        write_batch(to)
    except (cj.ConfigurationError, cj.QueryFailedError) as error:
        return str(error)
    return ""


def test_a_transaction_that_takes_too_long_writes_nothing(broker: Broker) -> None:
    broker.create_topic("sink-slow", 1)
    servers = broker.bootstrap_servers
    slow = cj.sinks.kafka(servers, "sink-slow", options={"transaction.timeout.ms": 2_000})
    with refused("its transaction took", "transaction.timeout.ms", "start the query again", kind=cj.QueryFailedError):
        # Brokers look for such transactions every 10 seconds.
        write_batch(target(slow, "5101"), wait=25)
    assert read_committed(servers, "sink-slow") == []
    write_batch(target(cj.sinks.kafka(servers, "sink-slow"), "5101"))
    assert [each.key for each in read_committed(servers, "sink-slow")] == [b"1"]


def test_each_right_that_is_missing_is_told_with_what_to_grant(broker: Broker) -> None:
    """Rights are given one after the other; with the last one the batch is written."""
    broker.create_topic("sink-rights", 1)
    given = login(broker, "SCRAM-SHA-256")
    sink = cj.sinks.kafka(given["bootstrap_servers"], "sink-rights", options=given["options"])
    to = target(sink, "5102")

    def until(*told: str) -> None:
        """Wait until the brokers know the rights that were just given, and refuse the next one, or none."""
        deadline = time.monotonic() + SETTLED_SECONDS
        said = problem(to)
        while bool(said) != bool(told) or not all(each in said for each in told):
            assert time.monotonic() < deadline, said
            time.sleep(0.5)
            said = problem(to)

    until("sink-rights", "grant it WRITE")
    allow(broker, "ali", ResourceType.TOPIC, "sink-rights", AclOperation.READ)
    until("do not let this user WRITE topic 'sink-rights'")
    allow(broker, "ali", ResourceType.TOPIC, "sink-rights", AclOperation.WRITE)
    until("do not let this user write transactions", "'cojoin-5102-output'")
    allow(broker, "ali", ResourceType.TRANSACTIONAL_ID, "cojoin-", AclOperation.WRITE, prefixed=True)
    until("do not let this user keep its position", "'cojoin-5102-output'")
    assert read_committed(broker.bootstrap_servers, "sink-rights") == []
    allow(broker, "ali", ResourceType.GROUP, "cojoin-", AclOperation.READ, prefixed=True)
    until()
    assert [each.key for each in read_committed(broker.bootstrap_servers, "sink-rights")] == [b"1"]


def test_a_topic_that_is_deleted_while_a_query_runs_is_told(broker: Broker) -> None:
    broker.create_topic("sink-gone", 1)
    sink = cj.sinks.kafka(broker.bootstrap_servers, "sink-gone", patience="5 seconds")
    to = target(sink, "5103")
    write_batch(to)
    client = admin(broker.bootstrap_servers)
    for done in client.delete_topics(["sink-gone"]).values():
        done.result(60)
    while "sink-gone" in client.list_topics(timeout=60).topics:
        time.sleep(0.05)
    with pytest.raises((cj.ConfigurationError, cj.QueryFailedError)) as told:
        write_batch(replace(to, epoch=2))
    assert "topic 'sink-gone' no longer exists" in str(told.value)
    assert "sink-gone" not in client.list_topics(timeout=60).topics
