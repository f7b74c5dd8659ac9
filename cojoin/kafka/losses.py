"""Records that topics no longer have after a position of Spark's offset log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError
from cojoin.kafka.archive.hybrid_cluster import HybridCluster
from cojoin.kafka.positions import positions_of
from cojoin.kafka.tasks import Gap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.kafka.client import Cluster
    from cojoin.kafka.topics import Topics

__all__ = ["gaps_since", "moved_behind"]

_NOTHING_READ = ("", "-", "null")


def gaps_since(cluster: Cluster, topics: Topics, what: str, offset: str | None) -> list[Gap]:
    """Return the ranges of offsets that no longer exist among those to be read next.

    Args:
        cluster: The cluster of the topics.
        topics: The topics and partitions that are read.
        what: The input, for messages.
        offset: The line of Spark's offset log.

    Raises:
        CheckpointError: The position does not belong to these topics.
    """
    if offset is None or offset.strip() in _NOTHING_READ:
        return []
    try:
        positions = positions_of(json.loads(offset))
    except (ValueError, KeyError, TypeError, AttributeError):
        msg = f"{what}: the checkpoint's position is not in the form of Spark's offset log; got {offset[:60]!r}"
        raise CheckpointError(msg) from None
    there = set(topics.found(cluster.partitions(topics.names), what))
    gone = sorted(set(positions) - there)
    if gone:
        msg = (
            f"{what}: the checkpoint has read topic {gone[0][0]!r} partition {gone[0][1]}, which {topics} "
            f"does not have; name it, or start a new query"
        )
        raise CheckpointError(msg)
    there_next = cluster.next_there if isinstance(cluster, HybridCluster) else cluster.earliest
    earliest, latest = there_next(positions), cluster.latest(positions)
    for (topic, number), position in positions.items():
        if latest[topic, number] < position:
            msg = (
                f"{what}: topic {topic} partition {number} ends at offset {latest[topic, number]:,}, before the "
                f"checkpoint's {position:,}: the topic was made anew or cut off since; start a new query"
            )
            raise CheckpointError(msg)
    return [Gap(each, at, earliest[each]) for each, at in positions.items() if at < earliest[each]]


def moved_behind(gaps: Sequence[Gap], offset: str) -> str:
    """Return a position moved past the gaps."""
    position: Any = json.loads(offset)
    for gap in gaps:
        topic, number = gap.partition
        position["positions"][topic][str(number)] = gap.end
    return json.dumps(position)
