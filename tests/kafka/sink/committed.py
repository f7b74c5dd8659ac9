"""What a consumer that reads committed records sees in a topic."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition

__all__ = ["Committed", "read_committed"]

PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class Committed:
    """A record.

    Attributes:
        partition: Its partition.
        key: Its key.
        value: Its value.
        headers: Its headers.
        timestamp: Its timestamp in epoch milliseconds.
    """

    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp: int

    @property
    def json(self) -> Any:
        """The value, read as JSON."""
        return json.loads(self.value or b"null")


def read_committed(servers: str, topic: str, isolation: str = "read_committed") -> list[Committed]:
    """Return all records that are committed by now, each partition's in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "a consumer",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    found: list[Committed] = []
    try:
        numbers = consumer.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        ended: set[int] = set()
        while len(ended) < len(numbers):
            record = consumer.poll(PATIENCE_SECONDS)
            assert record is not None, "the broker does not answer"
            error = record.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                ended.add(int(record.partition() or 0))
                continue
            found.append(
                Committed(
                    int(record.partition() or 0), record.key(), record.value(), record.headers(), record.timestamp()[1]
                )
            )
    finally:
        consumer.close()
    return sorted(found, key=lambda each: each.partition)
