"""Two historic topics: weeks of event time whose partitions go at speeds of their own.

What makes a replay hard is all there. Rates differ between partitions and change half way; of each topic one partition
is empty, one stops half way and one is silent for days; for eight hours nothing comes anywhere. Within each partition
records come up to five seconds after later ones. Trades are fills of orders, several in a millisecond or within
seconds; versions fall into the millisecond of a trade, onto its very microsecond, or onto another version of the same
customer. Keys are skewed. A record's own time is its event time, floored to Kafka's milliseconds, or a fixed time
after it. In these weeks New York, the zone of the tests' session, sets its clocks forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.kafka.records import PARTITIONS, Records, _in_writing_order, values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

DAYS = 21

# From each of these days on, so many records an hour come to each partition, relative to each other.
_FROM_DAY = np.array([0, 5, 9, 10.5, 14, 14 + 8 / 24, 16, 19])
_NOTHING_FROM = 4  # the piece in which no record comes to either topic: eight hours
_TRADE_RATES = np.array(
    [
        [4, 4, 4, 12, 0, 12, 12, 12],  # three times as many from the middle on
        [6, 0, 6, 6, 0, 6, 6, 6],  # silent for four days
        [3, 3, 3, 0, 0, 0, 0, 0],  # stops half way
        [0, 0, 0, 0, 0, 0, 0, 0],  # empty
    ]
)
_VERSION_RATES = np.array(
    [
        [6, 6, 6, 2, 0, 2, 2, 2],  # a third from the middle on
        [0, 0, 0, 0, 0, 0, 0, 0],
        [2, 2, 2, 2, 0, 2, 0, 2],  # silent for three days, not those of the trades
        [3, 3, 3, 0, 0, 0, 0, 0],
    ]
)
_DAY = 86_400_000  # milliseconds
_FILLS = 2.5  # trades an order, on average
_FILLS_WITHIN = 3_000_000  # microseconds
_WITHOUT_VERSIONS = 10  # so many keys trade and are never described
_TIERS = np.array(["basic", "silver", "gold", "platin"])

_QUEUED = 500_000
_SLICE = 100_000
_PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class History(Records):
    """The records of both topics, each topic's in the order in which its partitions are written.

    Attributes:
        begin: The first instant of the span, in epoch milliseconds.
        end: The first instant after it.
        nothing: The first instant of the stretch without any record, and the first after it.
    """

    begin: int
    end: int
    nothing: tuple[int, int]


def make_history(
    trades: int = 20_000,
    versions: int = 2_000,
    *,
    keys: int = 10_000,
    days: float = DAYS,
    begin: str = "2026-03-02",
    seed: int = 20260302,
) -> History:
    """Make both topics' records, always the same for the same arguments.

    Args:
        trades: How many there are.
        versions: How many versions of customers there are.
        keys: How many customers.
        days: The span; whatever happens in it is stretched or squeezed with it.
        begin: Its first day, in UTC.
        seed: Of the random numbers.
    """
    rng = np.random.default_rng(seed)
    first = int(np.datetime64(begin, "ms").astype(np.int64))
    edges = 1000 * (first + np.rint(np.append(_FROM_DAY, DAYS) * (days / DAYS) * _DAY).astype(np.int64))
    made = _trades(trades, keys, edges, rng)
    described = _versions(versions, keys, made, edges, rng)
    begins, nothing, nothing_ends, ends = (
        int(edges[piece]) // 1000 for piece in (0, _NOTHING_FROM, _NOTHING_FROM + 1, -1)
    )
    return History(
        _in_writing_order(made, rng), _in_writing_order(described, rng), begins, ends, (nothing, nothing_ends)
    )


def largest_in_a_window(micros: pd.Series, milliseconds: int) -> int:
    """Return the largest number of records whose event times lie within a window of a length, wherever it stands."""
    ordered = np.sort(micros.to_numpy())
    ends = np.searchsorted(ordered, ordered + milliseconds * 1000, side="left")
    return int((ends - np.arange(len(ordered))).max(initial=0))


def fill(
    servers: str,
    topic: str,
    records: pd.DataFrame,
    *,
    record_lag_ms: int = 0,
    encode: Callable[[pd.DataFrame], Sequence[str | bytes]] = values,
    encode_keys: Callable[[pd.DataFrame], Sequence[str | bytes]] | None = None,
) -> None:
    """Write records to the partitions that they name, in the order given, and see that each partition has them all.

    Args:
        servers: The broker's address.
        topic: The topic, which is there.
        records: As a `History` has them; a record's key is its customer's number as a text.
        record_lag_ms: How long after its event time a record's own time is.
        encode: Makes the values.
        encode_keys: Makes the keys; None makes texts of the customers' numbers.
    """
    keys = record_keys if encode_keys is None else encode_keys
    failed: list[object] = []
    producer = make_producer(servers, failed)
    for start in range(0, len(records), _SLICE):  # so that never all of them are there as texts
        some = records.iloc[start : start + _SLICE]
        partitions, times = some["partition"].tolist(), record_times(some, record_lag_ms)
        for value, key, partition, time in zip(encode(some), keys(some), partitions, times, strict=True):
            while True:
                try:
                    producer.produce(topic, value, key, partition, timestamp=time)
                    break
                except BufferError:  # the queue is full
                    producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(_PATIENCE_SECONDS) == 0, f"records of {topic!r} were not taken"
    assert not failed, failed[:3]
    wanted = records["partition"].value_counts()
    assert counts(servers, topic) == [int(wanted.get(partition, 0)) for partition in range(PARTITIONS)]


def make_producer(servers: str, failed: list[object], *, reports: bool = False) -> Producer:
    """Make a producer that keeps each partition's order.

    Args:
        servers: The broker's address.
        failed: Gets what goes wrong.
        reports: Whether it also tells of each record that was taken, to whom the record names.
    """
    return Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": _QUEUED,
            "queue.buffering.max.kbytes": 1_000_000,
            "delivery.report.only.error": not reports,
            "on_delivery": lambda error, _: failed.append(error) if error is not None else None,
        }
    )


def counts(servers: str, topic: str, partitions: int = PARTITIONS) -> list[int]:
    """Return how many records each partition of a topic holds."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "counts", "enable.auto.commit": False})
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_PATIENCE_SECONDS)
            for partition in range(partitions)
        ]
    finally:
        consumer.close()
    return [high - low for low, high in ends]


def record_times(records: pd.DataFrame, lag_ms: int = 0) -> list[int]:
    """Return the records' own times in epoch milliseconds, as their topic gets them."""
    return (records["micros"] // 1000 + lag_ms).tolist()


def record_keys(records: pd.DataFrame) -> list[str]:
    """Return the records' keys, as their topic gets them."""
    return records["customer_id"].astype("string").tolist()


def _trades(count: int, keys: int, edges: NDArray[np.int64], rng: np.random.Generator) -> pd.DataFrame:
    popularity = 1 / np.arange(1, keys + 1) ** 0.8
    orders = max(1, int(count / _FILLS))
    order_key = rng.choice(keys, orders, p=popularity / popularity.sum())
    order_micros = _moments(orders, _TRADE_RATES, edges, rng)
    order = np.sort(rng.integers(0, orders, count))
    at_once = rng.random(count) < 0.5  # within the order's millisecond
    micros = np.where(at_once, order_micros[order] // 1000 * 1000, order_micros[order])
    fills = micros + (rng.random(count) * np.where(at_once, 1_000, _FILLS_WITHIN)).astype(np.int64)
    # None may slip over an edge, into a time in which none come.
    fills = np.where(_piece(fills, edges) == _piece(order_micros[order], edges), fills, order_micros[order])
    return pd.DataFrame(
        {
            "trade_id": rng.permutation(count),
            "customer_id": order_key[order],
            "micros": fills,
            "amount": rng.integers(1, 1 << 20, count) / 8,
            "partition": _partitions(fills, _TRADE_RATES, edges, rng),
        }
    )


def _versions(
    count: int, keys: int, trades: pd.DataFrame, edges: NDArray[np.int64], rng: np.random.Generator
) -> pd.DataFrame:
    in_a_trade_millisecond, at_a_trade, twins = (int(share * count) for share in (0.2, 0.05, 0.05))
    described = trades[trades["customer_id"] < keys - _WITHOUT_VERSIONS]
    key, micros = described["customer_id"].to_numpy(), described["micros"].to_numpy()
    of = rng.choice(len(key), count - twins)  # the trade whose customer changes
    times = micros[of]
    near = slice(at_a_trade, at_a_trade + in_a_trade_millisecond)
    times[near] = times[near] // 1000 * 1000 + rng.integers(0, 1000, in_a_trade_millisecond)
    anywhere = slice(near.stop, None)
    times[anywhere] = _moments(len(times[anywhere]), _VERSION_RATES, edges, rng)
    twin_of = rng.choice(len(of), twins, replace=False)
    times = np.concatenate([times, times[twin_of]])
    return pd.DataFrame(
        {
            "version_id": rng.permutation(count),
            "customer_id": np.concatenate([key[of], key[of][twin_of]]),
            "micros": times,
            "tier": rng.choice(_TIERS, count),
            "partition": _partitions(times, _VERSION_RATES, edges, rng),
        }
    )


def _moments(
    count: int, rates: NDArray[np.int64], edges: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw event times, as dense as all partitions together."""
    lengths = np.diff(edges)
    weights = rates.sum(axis=0) * lengths
    piece = rng.choice(len(lengths), count, p=weights / weights.sum())
    moments: NDArray[np.int64] = edges[piece] + (rng.random(count) * lengths[piece]).astype(np.int64)
    return moments


def _partitions(
    micros: NDArray[np.int64], rates: NDArray[np.int64], edges: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw each record's partition by the partitions' rates at its time."""
    steps = np.cumsum(rates, axis=0)[:, _piece(micros, edges)]
    partitions: NDArray[np.int64] = (rng.random(len(micros)) * steps[-1] >= steps).sum(axis=0)
    return partitions


def _piece(micros: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    pieces: NDArray[np.int64] = np.searchsorted(edges, micros, side="right") - 1
    return pieces
