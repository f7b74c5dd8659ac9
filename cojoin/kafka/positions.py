"""A reader's position as Spark keeps it in its offset log: JSON that every later version of cojoin can read.

It holds the next offset of each partition and the time up to which both inputs are read. It also holds what must be the
same when a batch is run again: how far time has come, which partitions hold more, which timestamps are trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.kafka.client import Partition

__all__ = ["offset_of", "positions_of", "unread_of"]


def offset_of(
    until: int,
    mark: int | None,
    positions: Mapping[Partition, int],
    ends: Mapping[Partition, int] | None = None,
    trusted_until: int | None = None,
) -> dict[str, Any]:
    """Return an offset as Spark keeps it: the time up to which all is read, the mark of that time, the next offsets.

    It also names the partitions that hold more, and the latest trusted timestamp, so that a batch that is run again
    gets the same ones. Between the parts of a slice the reader adds the time at which the slice ends, and how many
    parts are left.
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
