"""A position of a reading, as Spark keeps it in its offset log: JSON that every later release reads.

It holds the next offset of each partition, the time up to which both inputs are read, and what a batch must be told
alike when it is run again: how far time has come, which partitions hold more, which stamps are trusted.
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
    """Spell an offset as Spark keeps it: the time up to which all is read, what that says of time, and the offsets.

    It also says which partitions hold more, and which stamps are trusted, so that a batch that is run again is told
    the same. Between the parts of a slice it names the time at which the slice ends, and how many parts are left.
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
    """Return the partitions that held more when a batch was planned."""
    return frozenset((topic, int(number)) for topic, numbers in offset["unread"].items() for number in numbers)


def positions_of(offset: Mapping[str, Any]) -> dict[Partition, int]:
    """Return the next offset of each partition, as an offset that Spark keeps spells them."""
    return {
        (topic, int(number)): int(position)
        for topic, positions in offset["positions"].items()
        for number, position in positions.items()
    }
