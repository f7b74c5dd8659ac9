"""Commits to a consumer group from outside, on a real broker: what it takes, and what it refuses in which words."""

from __future__ import annotations

import json
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from pyspark.sql.streaming.datasource import ReadMaxRows

import cojoin as cj
from cojoin.kafka.client import ClusterOptions
from cojoin.kafka.consumer_group import ConsumerGroup, TopicMonitor
from cojoin.kafka.positions import offset_of
from cojoin.kafka.reader import AlignedReader
from cojoin.kafka.topics import Topics
from tests.kafka.lags import committed, log_ends
from tests.kafka.logins import grant
from tests.kafka.replayed import add_partitions
from tests.kafka.test_client import START, WHAT, fill, parts, silent
from tests.servers.broker import USERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.broker import Broker

pytestmark = pytest.mark.kafka


@contextmanager
def group_of(broker: Broker, name: str, patience_ms: int = 10_000) -> Iterator[ConsumerGroup]:
    with closing(ConsumerGroup(ClusterOptions(broker.bootstrap_servers, {}, patience_ms), WHAT, name)) as found:
        yield found


def test_offsets_are_set_forward_and_backward_for_any_name(broker: Broker) -> None:
    fill(broker, "group-set", {0: [START] * 3, 1: [START]})
    read = parts("group-set")
    for name in ("a.b ä `c`", "other"):
        with group_of(broker, name) as group:
            assert committed(broker.bootstrap_servers, name, "group-set") == {}
            for offsets in ((3, 1, 0, 0), (1, 0, 0, 0), (3, 1, 0, 0)):
                wanted = dict(zip(read, offsets, strict=True))
                group.commit(wanted)
                assert committed(broker.bootstrap_servers, name, "group-set") == wanted
            group.commit({read[1]: 0})
            group.commit({})
            assert committed(broker.bootstrap_servers, name, "group-set") == wanted | {read[1]: 0}
            group.close()


def test_a_group_with_members_is_refused_by_name(broker: Broker) -> None:
    fill(broker, "group-members", {0: [START]})
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "members", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe(["group-members"])
    try:
        deadline = time.monotonic() + 30
        while not consumer.assignment():
            consumer.poll(0.1)
            assert time.monotonic() < deadline
        with (
            group_of(broker, "members") as group,
            pytest.raises(cj.ConfigurationError, match=r"input 'trades': consumer group 'members' has members"),
        ):
            group.commit({("group-members", 0): 1})
        assert ("group-members", 0) not in committed(broker.bootstrap_servers, "members", "group-members")
    finally:
        consumer.close()
    with group_of(broker, "members") as group:
        group.commit({("group-members", 0): 1})


@pytest.mark.slow
def test_a_user_who_may_not_is_told_what_to_grant(broker: Broker) -> None:
    fill(broker, "group-rights", {0: [START]})
    grant(broker, "ali", "group-rights")
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "ali"}
    options = ClusterOptions(broker.login_servers, login | {"sasl.password": USERS["ali"]}, 10_000)
    told = pytest.raises(cj.ConfigurationError, match=r"to consumer group 'rights': grant it READ on the group$")
    with closing(ConsumerGroup(options, WHAT, "rights")) as group, told as raised:
        group.commit({("group-rights", 0): 1})
    assert USERS["ali"] not in str(raised.value)


@pytest.mark.slow
def test_a_silent_broker_is_waited_for_but_not_for_long(broker: Broker) -> None:
    fill(broker, "group-silent", {0: [START]})
    with group_of(broker, "silent", 5_000) as group:
        group.commit({("group-silent", 0): 0})
        with silent(broker), pytest.raises(cj.QueryFailedError, match="did not answer"):
            group.commit({("group-silent", 0): 1})
        # What was not answered is committed late or never, and what is committed next comes after it.
        deadline = time.monotonic() + 60
        while committed(broker.bootstrap_servers, "silent", "group-silent") != {("group-silent", 0): 2}:
            assert time.monotonic() < deadline
            with suppress(cj.QueryFailedError):
                group.commit({("group-silent", 0): 2})


def test_what_is_unread_counts_partitions_that_were_added(broker: Broker) -> None:
    fill(broker, "group-unread", {0: [START] * 5, 1: [START] * 2})
    monitor = TopicMonitor(ClusterOptions(broker.bootstrap_servers), Topics(("group-unread",)), None, WHAT)
    read = zip(parts("group-unread"), (3, 2, 0, 0), strict=True)
    position = json.dumps(offset_of(0, None, dict(read)))
    assert monitor.unread(position) == 2
    assert not monitor.commits
    monitor.commit(position)
    add_partitions(broker.bootstrap_servers, "group-unread", 5)
    assert monitor.unread(position) == 2
    monitor.close()
    monitor.close()


def test_at_the_end_of_a_topic_of_transactions_the_lag_is_none(broker: Broker) -> None:
    broker.create_topic("group-markers", 2)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "transactional.id": "group-markers"}
    producer = Producer(settings)
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(4):
            producer.produce("group-markers", b"{}", partition=number % 2, timestamp=START + number)
        assert producer.flush(30) == 0
        end(30)
    source = cj.kafka.source(broker.bootstrap_servers, "group-markers", schema="id long", group="markers", to="latest")
    reader = AlignedReader(source.reading(1))
    position = reader.initialOffset()
    while (following := reader.latestOffset(position, ReadMaxRows(3))) != position:
        position = following
    reader.stop()
    with closing(source.monitor(WHAT)) as monitor:
        monitor.commit(json.dumps(position))
        assert monitor.unread(json.dumps(position)) == 0
    ends = log_ends(broker.bootstrap_servers, "group-markers")
    # Two records and a marker of each transaction.
    assert [*ends.values()] == [6, 6]
    assert committed(broker.bootstrap_servers, "markers", "group-markers") == ends


@pytest.mark.parametrize(("group", "told"), [("", "expected the id"), (7, "got 7"), ("cojoin-x", "are reserved")])
def test_a_group_that_can_not_be_is_refused_at_once(group: object, told: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=told):
        cj.kafka.source("localhost:9092", "trades", schema="id long", group=group)


def test_two_inputs_of_one_topic_need_two_groups() -> None:
    one = cj.kafka.source("localhost:9092", "trades", schema="id long", group="lags")
    with pytest.raises(cj.ConfigurationError, match=r"both inputs would commit .*'lags'; give each another group"):
        one.together_with(one)
    other = cj.kafka.source("localhost:9092", "customers", schema="id long", group="lags")
    assert one.together_with(other).beside is not None
