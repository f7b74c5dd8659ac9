"""Positions of a reader, as Spark's offset log keeps them, and the records after a position that no longer exist.

A position is JSON that every later version of cojoin can read: the next offset of each partition, the time up to which
both inputs are read, and all that must be the same when a batch is run again (the mark's time, the partitions that hold
more records, the latest trusted timestamp).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError
from cojoin.kafka.client import Gap, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.kafka.client import Cluster, Partition
    from cojoin.kafka.topics import Topics


def offset_of(
    until: int,
    mark: int | None,
    positions: Mapping[Partition, int],
    ends: Mapping[Partition, int] | None = None,
    trusted_until: int | None = None,
) -> dict[str, Any]:
    """Return a position: the time up to which all is read, the mark of that time, the next offsets.

    It also names the partitions that hold more, and the latest trusted timestamp. Between the parts of a slice the
    reader adds the time at which the slice ends, and how many parts are left.
    """
    spelled: dict[str, dict[str, int]] = {}
    unread: dict[str, dict[str, bool]] = {}
    for (topic, number), position in sorted(positions.items()):
        spelled.setdefault(topic, {})[str(number)] = position
        if ends is not None and position < ends[topic, number]:
            unread.setdefault(topic, {})[str(number)] = True
    offset = {"time": until, "mark": mark, "positions": spelled, "unread": unread}
    return offset if trusted_until is None else {**offset, "believed": trusted_until}


def unread_of(offset: Mapping[str, Any]) -> frozenset[Partition]:
    """Return the partitions that held more records when a batch was planned."""
    return frozenset((topic, int(number)) for topic, numbers in offset["unread"].items() for number in numbers)


def positions_of(offset: Mapping[str, Any]) -> dict[Partition, int]:
    """Return the next offset of each partition from an offset that Spark keeps."""
    return {
        (topic, int(number)): int(position)
        for topic, positions in offset["positions"].items()
        for number, position in positions.items()
    }


_NOTHING_READ = ("", "-", "null")


def gaps_since(cluster: Cluster, topics: Topics, label: str, offset: str | None) -> list[Gap]:
    """Return the ranges of offsets to be read after a position that no longer exist; none where nothing was read."""
    if offset is None or offset.strip() in _NOTHING_READ:
        return []
    try:
        positions = positions_of(json.loads(offset))
    except (ValueError, KeyError, TypeError, AttributeError):
        msg = f"{label}: the checkpoint's position is not in the form of Spark's offset log; got {offset[:60]!r}"
        raise CheckpointError(msg) from None
    existing = set(topics.select(cluster.partitions(topics.names), label))
    gone = sorted(set(positions) - existing)
    if gone:
        msg = (
            f"{label}: the checkpoint has read topic {gone[0][0]!r} partition {gone[0][1]}, which {topics} "
            f"does not have; name it, or start a new query"
        )
        raise CheckpointError(msg)
    existing_from, latest = cluster.next_existing(positions), cluster.latest(positions)
    for partition, position in positions.items():
        if latest[partition] < position:
            msg = (
                f"{label}: {name_of(partition)} ends at offset {latest[partition]:,}, before the checkpoint's "
                f"{position:,}: the topic was created again or cut off since; start a new query"
            )
            raise CheckpointError(msg)
    return [Gap(each, at, existing_from[each]) for each, at in positions.items() if at < existing_from[each]]


def skip_gaps(gaps: Sequence[Gap], offset: str) -> str:
    """Return a position moved past the gaps."""
    position: Any = json.loads(offset)
    for gap in gaps:
        topic, number = gap.partition
        position["positions"][topic][str(number)] = gap.end
    return json.dumps(position)
