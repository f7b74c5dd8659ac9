"""Topics whose times or offsets mislead: transactional, compacted, stamped far ahead, skewed; or all of it at once.

Each is filled from a `tests.kafka.history.History`, with records beside it that a reader must not see: those of aborted
transactions, and those that compaction removes. What is there in the end is read back, with its offsets.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from tests.kafka.history import History, make_history, make_producer
from tests.kafka.records import PARTITIONS, _in_writing_order, values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

KINDS = ("transactional", "compacted", "future", "skewed")

FUTURE = 4_102_444_800_000
"""The year 2100, in epoch milliseconds."""

FAR_ROWS, FAR_STAMPS = 5, 3
"""So many records of a topic have an event time in that year; of so many others only the stamp is."""

PRODUCERS = 3
_ABORTED, _SUPERSEDED = 2_000_000_000, 1_000_000_000
_SKEW = (0.949, 0.04, 0.01, 0.001)
_SECONDS = 60


@dataclass(frozen=True)
class HardTopics:
    """Two topics, filled.

    Attributes:
        trades: The left topic's name.
        customers: The right topic's name.
        history: What a join must see, with the offsets at which it stands.
        stamps: Of each topic, every record that a reader sees: ``partition, offset, stamp, is_far``.
    """

    trades: str
    customers: str
    history: History
    stamps: tuple[pd.DataFrame, pd.DataFrame]

    @property
    def far(self) -> tuple[int, int]:
        """How many rows of each topic are too far ahead."""
        left, right = (int(each["is_far"].sum()) for each in self.stamps)
        return left, right

    def before(self, moment: int) -> tuple[int, int]:
        """Count the records of each topic that stand before its partitions' first of a time, in epoch milliseconds."""
        counts = []
        for each in self.stamps:
            latest = each["stamp"].where(each["stamp"] < FUTURE, 0).groupby(each["partition"]).cummax()
            counts.append(int((latest < moment).sum()))
        return counts[0], counts[1]


def fill_hard(
    servers: str, name: str, kinds: Collection[str], *, seed: int, trades: int = 20_000, versions: int = 2_000
) -> HardTopics:
    """Make and fill two topics.

    Args:
        servers: The broker's address.
        name: Their names begin so.
        kinds: Some of ``KINDS``.
        seed: Of the random numbers.
        trades: How many trades there are.
        versions: How many versions of customers there are.
    """
    rng = np.random.default_rng(seed)
    history = make_history(trades, versions, keys=max(20, trades // 4), seed=seed)
    names = (f"{name}-trades", f"{name}-customers")
    found, stamps = [], []
    frames, numbers = (history.trades, history.customers), ("trade_id", "version_id")
    for topic, frame, number in zip(names, frames, numbers, strict=True):
        made = _skewed(frame, rng) if "skewed" in kinds else frame
        made = made.assign(stamp=made["micros"] // 1000, key=made[number].astype(str))
        made = _with_superseded(made, number, rng) if "compacted" in kinds else made
        made = _with_far(made, number, rng) if "future" in kinds else made
        create(servers, topic, compacted="compacted" in kinds)
        if "transactional" in kinds:
            _write_in_transactions(servers, topic, made, number, rng)
        else:
            _write(servers, topic, made)
        if "compacted" in kinds:
            await_compaction(servers, topic, len(made))
        there = read_committed(servers, topic, number)
        assert set(made[number]) >= set(there[number])
        seen = made.drop(columns=["offset", "partition"]).merge(there, on=number)
        seen = seen.sort_values(["partition", "offset"], ignore_index=True)
        seen["is_far"] = seen["micros"] >= 1000 * FUTURE
        stamps.append(seen[["partition", "offset", "stamp", "is_far"]])
        found.append(seen.loc[~seen["is_far"], list(frame.columns)].reset_index(drop=True))
    return HardTopics(*names, replace(history, trades=found[0], customers=found[1]), (stamps[0], stamps[1]))


def open_transaction(servers: str, topic: str, records: Collection[tuple[bytes, int]], name: str) -> Producer:
    """Write records of a partition 0, with their stamps, in a transaction that is left open."""
    producer = _transactional(servers, name)
    producer.begin_transaction()
    for value, stamp in records:
        producer.produce(topic, value, partition=0, timestamp=stamp)
    assert producer.flush(_SECONDS) == 0
    return producer


def read_committed(servers: str, topic: str, number: str) -> pd.DataFrame:
    """Return ``partition``, ``offset`` and the number of each record that a reader sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reads-back",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    rows, left = [], set(range(PARTITIONS))
    consumer.assign([TopicPartition(topic, each, 0) for each in left])
    try:
        while left:
            for message in consumer.consume(10_000, 0.1):
                if message.error() is not None:
                    assert message.error().name() == "_PARTITION_EOF", message.error()
                    left.discard(message.partition())
                else:
                    rows.append((message.partition(), message.offset(), json.loads(message.value())[number]))
    finally:
        consumer.close()
    return pd.DataFrame(rows, columns=["partition", "offset", number])


def _skewed(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Put nearly all into one partition, a thousandth into the last, and a share into one millisecond."""
    partition = rng.choice(PARTITIONS, len(frame), p=_SKEW)
    burst = rng.choice(len(frame), len(frame) // 20, replace=False)
    micros = frame["micros"].to_numpy().copy()
    micros[burst] = micros[burst[0]] // 1000 * 1000 + rng.integers(0, 1000, len(burst))
    return _in_writing_order(frame.assign(partition=partition, micros=micros), rng)


def _with_superseded(frame: pd.DataFrame, number: str, rng: np.random.Generator) -> pd.DataFrame:
    """Put records before others of the same key, which compaction removes where it comes to them."""
    of = np.sort(rng.choice(len(frame), len(frame) // 3, replace=False))
    earlier = frame.iloc[of].copy()
    earlier[number] += _SUPERSEDED
    return _merged(frame, earlier, of - 0.5)


def _with_far(frame: pd.DataFrame, number: str, rng: np.random.Generator) -> pd.DataFrame:
    at = rng.choice(len(frame), FAR_ROWS + FAR_STAMPS, replace=False)
    far = frame.iloc[at[:FAR_ROWS]].copy()
    far[number] += 3 * _SUPERSEDED
    far = far.assign(micros=1000 * FUTURE, stamp=FUTURE, key=far[number].astype(str))
    made = frame.copy()
    made.iloc[at[FAR_ROWS:], made.columns.get_loc("stamp")] = FUTURE  # type: ignore[index]
    return _merged(made, far, at[:FAR_ROWS] + 0.5)


def _merged(frame: pd.DataFrame, more: pd.DataFrame, places: Any) -> pd.DataFrame:
    order = np.concatenate([np.arange(len(frame)), places])
    return pd.concat([frame, more]).iloc[np.argsort(order, kind="stable")].reset_index(drop=True)


def create(servers: str, topic: str, *, compacted: bool) -> None:
    """Make a topic of ``PARTITIONS`` partitions."""
    # A segment a day of event time: all but the last are compacted.
    config = {"segment.ms": "86400000", "min.cleanable.dirty.ratio": "0.001", "cleanup.policy": "compact"}
    client = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    made = client.create_topics([NewTopic(topic, PARTITIONS, 1, config=config if compacted else {})])
    made[topic].result(_SECONDS)
    while topic not in client.list_topics(timeout=_SECONDS).topics:
        time.sleep(0.05)


def await_compaction(servers: str, topic: str, written: int) -> None:
    """Wait until compaction has left holes in a topic, whose records have a `customer_id`, and have it stop there."""
    deadline, number = time.monotonic() + _SECONDS, "customer_id"
    before = written
    while True:
        found = len(read_committed(servers, topic, number))
        if found < written and found == before:
            break
        before = found
        assert time.monotonic() < deadline, f"{topic}: nothing was compacted"
        time.sleep(0.5)
    client = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    (done,) = client.incremental_alter_configs(
        [ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])]
    ).values()
    done.result(_SECONDS)


def _messages(frame: pd.DataFrame) -> list[tuple[str, str, int, int]]:
    bodies = values(frame.drop(columns=["stamp", "key"]))
    return list(zip(bodies, frame["key"], frame["partition"].tolist(), frame["stamp"].tolist(), strict=True))


def _write(servers: str, topic: str, frame: pd.DataFrame) -> None:
    failed: list[object] = []
    producer = make_producer(servers, failed)
    messages = _messages(frame)
    some = max(1, len(messages) // 40)  # a segment ends only between the producer's batches
    for at in range(0, len(messages), some):
        _produce(producer, topic, messages[at : at + some])
    assert not failed, failed[:3]


def _produce(producer: Producer, topic: str, messages: Collection[tuple[str, str, int, int]]) -> None:
    for value, key, partition, stamp in messages:
        producer.produce(topic, value, key, partition, timestamp=stamp)
    assert producer.flush(_SECONDS) == 0


def _write_in_transactions(
    servers: str, topic: str, frame: pd.DataFrame, number: str, rng: np.random.Generator
) -> None:
    """Write by several producers in turn, whose transactions overlap; every fifth is of no records, and is aborted."""
    messages = _messages(frame)
    producers = [_transactional(servers, f"{topic}-{each}") for each in range(PRODUCERS)]
    open_: list[tuple[Producer, Callable[[Producer], object]]] = []
    at = turn = 0
    while at < len(messages) or open_:
        if len(open_) == PRODUCERS - 1 or at >= len(messages):
            producer, end = open_.pop(0)
            end(producer)
            continue
        producer = producers[turn % PRODUCERS]
        producer.begin_transaction()
        size = int(rng.integers(1, max(2, len(messages) // 25)))
        if turn % 5 == 4:
            _produce(producer, topic, _messages(frame.iloc[at : at + size].assign(**{number: _ABORTED + at})))
            open_.append((producer, lambda each: each.abort_transaction(_SECONDS)))
        else:
            _produce(producer, topic, messages[at : at + size])
            open_.append((producer, lambda each: each.commit_transaction(_SECONDS)))
            at += size
        turn += 1


def _transactional(servers: str, name: str) -> Producer:
    # A transaction stays open for as long as a busy machine takes for a query, up to the brokers' 15 minutes.
    open_for = {"transactional.id": name, "transaction.timeout.ms": 800_000}
    producer = Producer({"bootstrap.servers": servers, **open_for, "linger.ms": 1, "log_level": 0})
    producer.init_transactions(_SECONDS)
    return producer
