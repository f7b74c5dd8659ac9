"""Small topics for readings by event time, written at once, and what their joins must give."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

import cojoin as cj
from tests.kafka.records import CUSTOMER_DDL, OUT_OF_ORDERNESS_SECONDS, TRADE_DDL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

START = 1_767_571_200_000  # 2026-01-05
MINUTE = 60_000
SECONDS = 60

LEFT, RIGHT = "id long, k long, at timestamp", "k long, at timestamp, v long"


class Written(NamedTuple):
    """A record to be written.

    Attributes:
        value: Its value; a dict becomes JSON.
        partition: The number of its partition.
        time: Its timestamp in epoch milliseconds.
        key: Its key.
        headers: Its headers.
    """

    value: Any
    partition: int = 0
    time: int = START
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


def write(servers: str, topic: str, records: Iterable[Written], **settings: str) -> None:
    """Write records, each partition's in the order given."""
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, "enable.idempotence": True, **settings})
    for each in records:
        value = json.dumps(each.value).encode() if isinstance(each.value, dict) else each.value
        producer.produce(topic, value, each.key, each.partition, timestamp=each.time, headers=list(each.headers))
    assert producer.flush(SECONDS) == 0


def admin(servers: str) -> AdminClient:
    """Make what changes topics; its answers come only while it is held."""
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


def delete_before(servers: str, topic: str, offset: int, partition: int = 0) -> None:
    """Have the broker give up a partition's records before an offset, as its retention does."""
    client = admin(servers)
    (done,) = client.delete_records([TopicPartition(topic, partition, offset)]).values()
    done.result(SECONDS)


def add_partitions(servers: str, topic: str, total: int) -> None:
    """Add partitions to a topic, and return when the broker knows them."""
    client = admin(servers)
    (done,) = client.create_partitions([NewPartitions(topic, total)]).values()
    done.result(SECONDS)
    while len(client.list_topics(topic, timeout=SECONDS).topics[topic].partitions) < total:
        time.sleep(0.05)


def row(number: int, minute: float, partition: int = 0, key: int = 1) -> Written:
    """Make a left record of a minute."""
    time = START + int(minute * MINUTE)
    return Written({"id": number, "k": key, "at": _text(time)}, partition, time)


def version(value: int, minute: float, partition: int = 0, key: int = 1) -> Written:
    """Make a right record of a minute."""
    time = START + int(minute * MINUTE)
    return Written({"k": key, "at": _text(time), "v": value}, partition, time)


def inputs(servers: str, left: str, right: str, *, idle: str | None = None, **options: Any) -> list[cj.Input]:
    """Describe both topics' inputs, named left and right, with the same options of ``cojoin.kafka.source``."""
    strategy = cj.WatermarkStrategy.for_bounded_out_of_orderness("1 second")
    return [
        cj.Input(
            cj.kafka.source(servers, topic, **({"schema": schema} | options)),
            key="k",
            event_time="at",
            name=name,
            watermark=strategy if idle is None else strategy.with_idleness(idle),
        )
        for topic, schema, name in ((left, LEFT, "left"), (right, RIGHT, "right"))
    ]


def join(servers: str, left: str, right: str, *, key_groups: int = 2, **options: Any) -> cj.Joined:
    """Join both topics: each left record with the last right one of its key that is not later."""
    return cj.connect(*inputs(servers, left, right, **options), key_groups=key_groups).asof_join(
        suffixes=("", "_right")
    )


def start(joined: cj.Joined, folder: Any, trigger: cj.Trigger | None = None, **options: Any) -> cj.Query:
    """Start a join into a folder; by default it reads what is there, and pauses."""
    given = {"output": cj.sinks.delta(str(folder / "out")), **options}
    return joined.start(checkpoint=str(folder / "checkpoint"), trigger=trigger or cj.Trigger.available_now(), **given)


def run(joined: cj.Joined, folder: Any, *, drain: bool = False, **options: Any) -> cj.Query:
    """Run a join over what is there, to its end."""
    query = start(joined, folder, cj.Trigger.available_now(drain=drain), **options)
    query.await_termination(progress=False)
    return query


def pairs(spark: SparkSession, folder: Any) -> list[tuple[int, int | None]]:
    """Return the joined rows: each left number with the version's value, in order."""
    found = spark.read.format("delta").load(str(folder / "out")).select("id", "v").toArrow()
    return sorted(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True), key=str_of)


def rejected(spark: SparkSession, folder: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the rejected rows: input, reason, and what is known of the row."""
    found = spark.read.format("delta").load(str(folder / "checkpoint" / "rejected"))
    return sorted(
        ((each.input, each.reason, json.loads(each.row)) for each in found.collect()),
        key=lambda each: (each[0], each[2].get("partition"), each[2].get("offset")),
    )


def str_of(pair: tuple[int, int | None]) -> tuple[int, int]:
    """Order rows of which one may lack its version."""
    return pair[0], -1 if pair[1] is None else pair[1]


def make(broker: Broker, *topics: str, partitions: int = 1) -> str:
    """Make topics, and give the servers."""
    for each in topics:
        broker.create_topic(each, partitions)
    return broker.bootstrap_servers


def _text(millis: int) -> str:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(millis / 1000, timezone.utc).isoformat().replace("+00:00", "Z")


def historic(servers: str, trades: str, customers: str, *, idle: str | None = None, **options: Any) -> cj.Joined:
    """Join topics that hold a `tests.kafka.history.History`: each trade with its customer's version then in force."""
    strategy = cj.WatermarkStrategy.for_bounded_out_of_orderness(f"{OUT_OF_ORDERNESS_SECONDS} seconds")
    one, other = (
        cj.Input(
            cj.kafka.source(servers, topic, schema=schema, max_drift="10 minutes", **options),
            key="customer_id",
            event_time="event_time",
            name=name,
            watermark=strategy if idle is None else strategy.with_idleness(idle),
        )
        for topic, schema, name in ((trades, TRADE_DDL, "trades"), (customers, CUSTOMER_DDL, "customers"))
    )
    return cj.connect(one, other, key_groups=2).asof_join(suffixes=("", "_customer"))
