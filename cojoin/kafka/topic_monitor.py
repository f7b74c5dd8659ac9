"""How far a query has read its topics, seen from beside it: offsets for a consumer group, and what is still unread.

It keeps a connection of its own, opened by its first request. A request waits for ``_PATIENCE_MS`` at most: a broker
that is away is the concern of the query's readers, and the next commit says all that this one would have said.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from cojoin.kafka.client import Cluster
from cojoin.kafka.consumer_group import ConsumerGroup
from cojoin.kafka.positions import positions_of

if TYPE_CHECKING:
    from cojoin.kafka.cluster_options import ClusterOptions
    from cojoin.kafka.topics import Topics

__all__ = ["TopicMonitor"]

_PATIENCE_MS = 10_000


class TopicMonitor:
    """A ``SourceMonitor`` of topics.

    Args:
        options: How the cluster is reached.
        topics: The topics and partitions that are read.
        group: The consumer group to which offsets are committed; None for none.
        what: The input, for messages.
    """

    def __init__(self, options: ClusterOptions, topics: Topics, group: str | None, what: str) -> None:
        patience = min(_PATIENCE_MS, options.patience_ms or _PATIENCE_MS)
        self._options, self._topics = replace(options, patience_ms=patience), topics
        self._group, self._what = group, what
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
        there = self._topics.found(self._cluster.partitions(self._topics.names), self._what)
        begins = read | self._cluster.earliest([each for each in there if each not in read])
        ends = self._cluster.latest(there)
        return sum(max(0, ends[each] - begins[each]) for each in there)

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _cluster(self) -> Cluster:
        if self._opened is None:
            self._opened = (
                Cluster(self._options, self._what)
                if self._group is None
                else ConsumerGroup(self._options, self._what, self._group)
            )
        return self._opened
