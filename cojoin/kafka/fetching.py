"""The reading of ranges of offsets from the brokers.

It returns messages in pieces of at most 20,000 records and 16 MB; a larger record is a piece of its own. A range is
read until all offsets up to its end are passed, whether they have records or not, because compaction and transactions
leave holes. It holds one piece and what librdkafka has fetched ahead (16 MB, and one fetch more), and nothing that
grows with the range. It costs about 2 microseconds a record.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cojoin.errors import ConfigurationError, QueryFailedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from cojoin.kafka.client import Cluster, ClusterOptions, Partition
    from cojoin.kafka.tasks import Span

__all__ = ["PIECE_BYTES", "PIECE_RECORDS", "fetched"]

PIECE_RECORDS, PIECE_BYTES = 20_000, 16 << 20

_WAIT_SECONDS = 0.5
_END = "_PARTITION_EOF"

# The consumer is in no group and needs no rights on any, but librdkafka asks for a coordinator nevertheless.
_OF_GROUPS = {
    *("GROUP_AUTHORIZATION_FAILED", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"),
    *("_WAIT_COORD", "INVALID_GROUP_ID"),
}


def fetched(
    cluster: Cluster,
    spans: Sequence[Span],
    options: ClusterOptions,
    what: str,
    held: Mapping[Partition, Collection[int]] | None = None,
) -> Iterator[list[Any]]:
    """Read ranges of offsets, each partition's in order.

    Args:
        cluster: The cluster that holds them.
        spans: The ranges; several of one partition are read one after another.
        options: How the cluster is reached, and how long it may be silent.
        what: The input, for messages.
        held: Offsets to leave out, by partition.

    Yields:
        Lists of confluent-kafka's messages, never empty and never more than a piece.

    Raises:
        QueryFailedError: No broker sent a record for longer than the patience allows, or offsets no longer exist.
        ConfigurationError: The user may not read a topic.
    """
    waiting: list[Any] = []
    size = 0
    consumer = cluster.consumer()
    try:
        for each in _rounds(spans):
            for message in _consumed(consumer, cluster, each, options, what):
                partition = (message.topic(), message.partition())
                if held and message.offset() in held.get(partition, ()):
                    continue
                more = _size(message)
                if waiting and (len(waiting) >= PIECE_RECORDS or size + more > PIECE_BYTES):
                    yield waiting
                    waiting, size = [], 0
                waiting.append(message)
                size += more
        if waiting:
            yield waiting
    finally:
        consumer.close()


def _rounds(spans: Sequence[Span]) -> list[list[Span]]:
    """Split ranges into rounds of at most one range per partition: a consumer is assigned each partition once."""
    rounds: list[list[Span]] = []
    seen: dict[Partition, int] = {}
    for span in spans:
        at = seen[span.partition] = seen.get(span.partition, -1) + 1
        if at == len(rounds):
            rounds.append([])
        rounds[at].append(span)
    return rounds


def _size(message: Any) -> int:
    """Return a record's approximate size in bytes."""
    size = len(message.value() or b"") + len(message.key() or b"")
    for name, value in message.headers() or ():
        size += len(name) + len(value or b"")
    return size


def _consumed(
    consumer: Any, cluster: Cluster, spans: Sequence[Span], options: ClusterOptions, what: str
) -> Iterator[Any]:
    """Read ranges of different partitions."""
    from confluent_kafka import TopicPartition  # noqa: PLC0415 - optional, but the cluster exists, so it is installed

    left: dict[Partition, Span] = {span.partition: span for span in spans}
    patience = None if options.patience_ms is None else options.patience_ms / 1000
    consumer.assign([TopicPartition(*span.partition, span.begin) for span in spans])
    heard = time.monotonic()
    while left:
        # The queue is bounded by bytes, but a consumer that waits for many records fetches beyond that bound.
        found = consumer.consume(1, _WAIT_SECONDS)
        found += consumer.consume(PIECE_RECORDS, 0) if found else []
        if any(message.error() is None or message.error().name() == _END for message in found):
            heard = time.monotonic()
        elif patience is not None and time.monotonic() - heard > patience:
            (topic, number), span = next(iter(left.items()))
            msg = (
                f"{what}: {options.bootstrap_servers} gave no record for {patience:.0f} s{_why(cluster)}; expected "
                f"those of topic {topic} partition {number} up to offset {span.end - 1:,}; see that its brokers run, "
                f"or wait for longer with patience="
            )
            raise QueryFailedError(msg)
        done = []
        for message in found:
            error = message.error()
            if error is not None and error.name() != _END:
                _judge(cluster, error, message, options, what)
                continue
            partition, offset = (message.topic(), message.partition()), message.offset()
            wanted = left.get(partition)
            # Records that were fetched for an earlier range of the partition may still arrive.
            if wanted is None or offset < wanted.begin:
                continue
            if error is None and offset < wanted.end:
                yield message
            if offset >= wanted.end - (error is None):
                del left[partition]
                done.append(TopicPartition(*partition))
        if done and left:
            consumer.incremental_unassign(done)


def _why(cluster: Cluster) -> str:
    """Return what was heard of a login that fails, for a message."""
    return "" if cluster.last_problem is None else f" ({cluster.last_problem})"


def _judge(cluster: Cluster, error: Any, message: Any, options: ClusterOptions, what: str) -> None:
    if cluster.is_passing(error) or error.name() in _OF_GROUPS:
        return
    where = f"topic {message.topic()} partition {message.partition()}"
    if error.name() == "TOPIC_AUTHORIZATION_FAILED":
        msg = (
            f"{what}: {options.bootstrap_servers} do not let this user read topic {message.topic()!r}: "
            f"grant it READ and DESCRIBE on the topic"
        )
        raise ConfigurationError(msg)
    if error.name() in {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}:
        msg = f"{what}: {where}: the records at offset {message.offset():,} were deleted while they were to be read"
    else:
        msg = f"{what}: {where}: {cluster.text(error)} ({error.name()})"
    raise QueryFailedError(msg)
