"""Open transactions at the ends of partitions: a run over what is there ends before them.

Brokers give the records of a transaction only when it is committed, and none of those after its first one before that.
So such a run ends at the last stable offset, and the next run begins there; nothing is lost, but what is written is not
yet in the result. It costs two requests for all partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.kafka.points import name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.kafka.client import Cluster, Partition
    from cojoin.kafka.ranges import Range

__all__ = ["held_back"]


def held_back(cluster: Cluster, partitions: Sequence[Partition], read: Range) -> list[str]:
    """Return a text for each partition in which an open transaction holds records of a range back.

    Args:
        cluster: The cluster; with ``isolation.level=read_uncommitted`` nothing is held back.
        partitions: The partitions that are read.
        read: The range.
    """
    stable, written = cluster.latest(partitions), cluster.written(partitions)
    ends = read.end(cluster, partitions) or stable
    return [
        f"{read.what}: {name_of(each)}: a transaction is open from offset {end:,} on, so a run over what is there ends "
        f"before it and leaves {written[each] - end:,} offsets, up to {written[each] - 1:,}, to the next run"
        for each, end in stable.items()
        if end < written[each] and ends[each] >= end
    ]
