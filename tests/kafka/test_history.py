"""The generated history holds what makes a replay hard, and topics hold the history."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.kafka.history import History, fill, largest_in_a_window, make_history
from tests.kafka.live_writer import LiveWriter
from tests.kafka.records import PARTITIONS, Records, expected_join, values

if TYPE_CHECKING:
    from tests.servers.broker import Broker

DAY = 86_400_000


@pytest.fixture(scope="module")
def history() -> History:
    return make_history()


def test_partitions_go_at_speeds_of_their_own(history: History) -> None:
    for topic, empty, stops, silent in ((history.trades, 3, 2, 1), (history.customers, 1, 3, 2)):
        days = {name: (each // 1000 - history.begin) / DAY for name, each in topic.groupby("partition")["micros"]}
        assert sorted(days) == sorted({0, 1, 2, 3} - {empty})
        assert days[stops].max() < 10.5
        assert 2.5 < np.diff(np.sort(days[silent])).max() < 5
        halves = (days[0] < 10.5).mean()
        assert abs(halves - 0.5) > 0.1
        assert (len(days[stops]), len(days[silent])) != (len(days[0]), len(days[0]))


def test_nothing_comes_for_eight_hours(history: History) -> None:
    begin, end = history.nothing
    assert end - begin == 8 * 3_600_000
    for topic in (history.trades, history.customers):
        millis = topic["micros"] // 1000
        assert not ((millis >= begin) & (millis < end)).any()
        assert millis.between(history.begin, history.end - 1).all()


def test_records_are_out_of_order_and_tie(history: History) -> None:
    trades, customers = history.trades, history.customers
    for topic in (trades, customers):
        late_by = topic.groupby("partition")["micros"].cummax() - topic["micros"]
        assert late_by.max() <= 5_000_000
        assert topic.groupby("partition")["offset"].apply(lambda each: (each == range(len(each))).all()).all()
    assert (trades.groupby("partition")["micros"].diff() < 0).mean() > 0.05
    assert trades.merge(customers, on=["customer_id", "micros"]).shape[0] > 90
    twins = customers[customers.duplicated(["customer_id", "micros"], keep=False)]
    assert len(twins) > 180
    assert twins.groupby(["customer_id", "micros"])["partition"].nunique().gt(1).any()
    assert expected_join(history)["version_id"].null_count < len(trades) * 0.8


def test_the_same_arguments_make_the_same_history(history: History) -> None:
    again = make_history()
    assert again.trades.equals(history.trades)
    assert again.customers.equals(history.customers)
    assert not make_history(seed=1).trades.equals(history.trades)


def test_the_largest_window() -> None:
    micros = pd.Series([0, 500, 999, 1_000, 5_000])
    assert largest_in_a_window(micros, 1) == 3
    assert largest_in_a_window(micros, 5) == 4
    assert largest_in_a_window(micros, 6) == 5
    assert largest_in_a_window(micros[:0], 6) == 0


@pytest.mark.slow
@pytest.mark.kafka
def test_topics_hold_the_history_and_what_is_written_on(broker: Broker, history: History) -> None:
    for topic, records in (("history-trades", history.trades), ("history-customers", history.customers)):
        broker.create_topic(topic, PARTITIONS)
        fill(broker.bootstrap_servers, topic, records)
    servers, topics = broker.bootstrap_servers, ("history-trades", "history-customers")
    _assert_holds(servers, topics, history, record_lag_ms=0)

    with LiveWriter(servers, topics, history, seconds=3, begin=history.end) as writer:
        writer.join()
    both = writer.records()
    assert 1_000 < len(both.trades) - len(history.trades) < 3_000
    assert both.trades["micros"].iloc[len(history.trades) :].min() >= 1000 * history.end
    _assert_holds(servers, topics, both, record_lag_ms=0)
    assert expected_join(both).num_rows == len(both.trades)


@pytest.mark.kafka
def test_records_may_be_later_than_their_events(broker: Broker) -> None:
    short = make_history(trades=200, versions=20, keys=100, days=1)
    broker.create_topic("late-trades", PARTITIONS)
    fill(broker.bootstrap_servers, "late-trades", short.trades, record_lag_ms=60_000)
    assert _read(broker.bootstrap_servers, "late-trades") == _wanted(short.trades, 60_000)


def _assert_holds(servers: str, topics: tuple[str, str], records: Records, record_lag_ms: int) -> None:
    assert _read(servers, topics[0]) == _wanted(records.trades, record_lag_ms)
    assert _read(servers, topics[1]) == _wanted(records.customers, record_lag_ms)


def _wanted(records: pd.DataFrame, lag_ms: int) -> list[tuple[object, ...]]:
    times, keys = (records["micros"] // 1000 + lag_ms).tolist(), records["customer_id"].tolist()
    places = records["partition"].tolist(), records["offset"].tolist()
    return sorted(zip(*places, times, map(str, keys), values(records), strict=True))


def _read(servers: str, topic: str) -> list[tuple[object, ...]]:
    settings = {"bootstrap.servers": servers, "group.id": "test", "auto.offset.reset": "earliest"}
    consumer, found = Consumer(settings | {"enable.partition.eof": True}), []
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    ended, deadline = 0, time.monotonic() + 60
    while ended < PARTITIONS:
        assert time.monotonic() < deadline
        for message in consumer.consume(10_000, timeout=0.2):
            if message.error() is not None:
                ended += 1
                continue
            key, value = message.key().decode(), message.value().decode()
            found.append((message.partition(), message.offset(), message.timestamp()[1], key, value))
    consumer.close()
    return sorted(found)
