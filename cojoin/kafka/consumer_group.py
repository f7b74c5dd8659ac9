"""Commits of offsets to a user's consumer group that has no members, so that every lag tool sees how far a query is.

Nothing is ever read from the group. The consumer that commits never subscribes, so it is not a member either: Kafka
takes such a commit only while the group has none, and keeps it for ``offsets.retention.minutes``, a week by default.
(librdkafka's admin request for the same ends the process where its connection breaks at the wrong moment.) A commit
costs one request, and waits for ``_PATIENCE_MS`` at most: the next commit replaces one that failed.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from cojoin.errors import ConfigurationError
from cojoin.kafka.client import PERMISSION_ERRORS, Cluster, no_answer
from cojoin.kafka.positions import positions_of

with contextlib.suppress(ImportError):  # an optional dependency: ``check_installed`` reports it
    from confluent_kafka import KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import Consumer, KafkaError

    from cojoin.kafka.client import ClusterOptions, Partition
    from cojoin.kafka.topics import Topics


_HAS_MEMBERS = {"UNKNOWN_MEMBER_ID", "NON_EMPTY_GROUP", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"}
# How long librdkafka itself keeps a commit for which it finds no coordinator, or no answer.
_BOUNDS = {"session.timeout.ms": "6000", "socket.timeout.ms": "6000", "group.protocol": "classic"}
_POLL_SECONDS = 0.05


class ConsumerGroup(Cluster):
    """A Kafka cluster and a consumer group of it; for its further errors see ``Cluster``."""

    def __init__(self, options: ClusterOptions, label: str, group: str) -> None:
        super().__init__(options, label)
        self._group = group
        self._committer: Consumer | None = None
        self._answers: list[tuple[KafkaError | None, Sequence[TopicPartition]]] = []

    def commit(self, positions: Mapping[Partition, int]) -> None:
        """Commit the next offset to be read of each partition, to a group that has no members."""
        if positions:
            self._patiently(lambda timeout: self._commit(positions, timeout))

    def close(self) -> None:
        """Close the connections; a second call does nothing."""
        committer, self._committer = self._committer, None
        if committer is not None:
            committer.close()
        super().close()

    def _commit(self, positions: Mapping[Partition, int], timeout: float) -> None:
        if self._committer is None:
            settings: Any = {"group.id": self._group, "on_commit": self._answered, **_BOUNDS}
            self._committer = self.consumer(settings)
        deadline = time.monotonic() + timeout
        self._answers = []
        wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in sorted(positions.items())]
        self._committer.commit(offsets=wanted, asynchronous=True)
        while time.monotonic() < deadline:
            # It runs the callback, and returns only errors: nothing is subscribed or assigned.
            event = self._committer.poll(_POLL_SECONDS)
            if event is not None and (error := event.error()) is not None:
                self._check(error)
            for failed, answered in self._answers:
                # An answer that is late belongs to an earlier commit, which had other offsets.
                if {(each.topic, each.partition): each.offset for each in answered} == positions:
                    errors = [failed, *(each.error for each in answered)]
                    self._check(next((each for each in errors if each is not None), None), is_answer=True)
                    return
        raise no_answer(timeout)

    def _answered(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        self._answers = [*self._answers, (error, partitions)]

    def _check(self, error: KafkaError | None, *, is_answer: bool = False) -> None:
        """Raise an error of the brokers; one that is not about this commit only where a repetition does not help."""
        if error is None:
            return
        if error.name() in _HAS_MEMBERS:
            self._refuse_commit(
                f"consumer group {self._group!r} has members, so offsets can't be committed to it from outside: stop "
                f"these consumers, or give this query another group with group="
            )
        if error.name() == "GROUP_AUTHORIZATION_FAILED":
            self._refuse_commit(
                f"{self._servers} do not let this user commit to consumer group {self._group!r}: grant it READ on the "
                f"group"
            )
        if error.name() in PERMISSION_ERRORS:
            self._refuse_commit(
                f"{self._servers} do not let this user commit to consumer group {self._group!r}: grant it READ on the "
                f"topics and on the group: {self.text(error)}"
            )
        if is_answer:
            raise KafkaException(error)

    def _refuse_commit(self, why: str) -> NoReturn:
        msg = f"{self._label}: {why}"
        raise ConfigurationError(msg)


_PATIENCE_MS = 10_000


class TopicMonitor:
    """A ``SourceMonitor`` of topics, which commits offsets to a consumer group, or to none for None."""

    def __init__(self, options: ClusterOptions, topics: Topics, group: str | None, label: str) -> None:
        patience = min(_PATIENCE_MS, options.patience_ms or _PATIENCE_MS)
        self._options, self._topics = replace(options, patience_ms=patience), topics
        self._group, self._label = group, label
        self._opened: Cluster | None = None

    @property
    def commits(self) -> bool:
        """Whether there is a consumer group."""
        return self._group is not None

    def commit(self, position: str) -> None:
        """Commit a position's offsets to the consumer group; see ``ConsumerGroup.commit``."""
        cluster = self._cluster
        if isinstance(cluster, ConsumerGroup):
            cluster.commit(positions_of(json.loads(position)))

    def unread(self, position: str) -> int:
        """Return how many offsets there are between a position and the ends of the topics.

        Offsets of transactions' markers and of records that were compacted away count, too, and so do partitions that
        were added since. Records of open transactions do not, unless they are read (``isolation.level``).
        """
        read = positions_of(json.loads(position))
        partitions = self._topics.select(self._cluster.partitions(self._topics.names), self._label)
        begins = read | self._cluster.earliest([partition for partition in partitions if partition not in read])
        ends = self._cluster.latest(partitions)
        return sum(max(0, ends[partition] - begins[partition]) for partition in partitions)

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _cluster(self) -> Cluster:
        if self._opened is None:
            self._opened = (
                Cluster(self._options, self._label)
                if self._group is None
                else ConsumerGroup(self._options, self._label, self._group)
            )
        return self._opened
