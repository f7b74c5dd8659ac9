"""Where a micro-batch ends, so that all partitions of both inputs advance through event time together.

A slice ends at one time for every partition: just before its first record of that time or later. It is the longest that
no input's limit of records cuts short, rounded down to a multiple of a power of two of milliseconds, and a few smaller
powers beyond. So two readers that ask the same logs find the same time, without a word between them; readers that start
a little apart find the same one soon; stretches without any record cost nothing. Where time can't part the records, as
in a millisecond that holds more than the limit, the slice is cut by offsets into parts, as many as the input with most
needs, and time stands still until the last. Costs a handful of questions to the logs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cojoin.kafka.client import Partition

__all__ = ["Side", "Slice", "confirmed_positions", "next_slice", "part_of", "positions_at"]

_LARGEST_POWER = 45
"""Of milliseconds: a thousand years, more than any topic holds."""

_REFINEMENTS = 6
"""How many smaller powers lengthen a slice, each with a question to every input."""


@dataclass(frozen=True)
class Side:
    """What one input has still to read.

    Attributes:
        positions: The next offset of each partition.
        ends: The offset at which each ends.
        limit: How many records of it a batch may hold.
        first_at: Returns, for a time in epoch milliseconds, each partition's first record that is not earlier, as
            ``(offset, timestamp)``; None where there is none.
        confirms: Looks at the records by which that answers for a time. Returns whether no answer since the last call
            was found to be wrong, for whatever time; if one was, it is asked again, for all.
    """

    positions: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    limit: int
    first_at: Callable[[int], Mapping[Partition, tuple[int, int] | None]]
    confirms: Callable[[int], bool] = lambda _: True

    @property
    def is_read(self) -> bool:
        """Whether nothing is left to read."""
        return all(position >= self.ends[each] for each, position in self.positions.items())

    def fits(self, ends: Mapping[Partition, int]) -> bool:
        """Return whether a batch may hold all up to these offsets."""
        return self.count(ends) <= self.limit

    def count(self, ends: Mapping[Partition, int]) -> int:
        """Return how many records there are at the most up to these offsets."""
        return sum(end - self.positions[partition] for partition, end in ends.items())

    def first_timestamp(self, after: int) -> int | None:
        """Return the earliest timestamp that is still to be read and not before a time; None where there is none."""
        found = self.first_at(after)
        unread = (
            found[partition]
            for partition, position in self.positions.items()
            if position < self.ends[partition] and found.get(partition) is not None
        )
        return min((timestamp for each in unread if each is not None for timestamp in each[1:]), default=None)


def positions_at(side: Side, time: int) -> dict[Partition, int]:
    """Return where each partition of an input stands once all before a time is read.

    Args:
        side: The input.
        time: In epoch milliseconds.
    """
    found = side.first_at(time)
    return {
        partition: max(position, min(side.ends[partition], _offset(found.get(partition), side.ends[partition])))
        for partition, position in side.positions.items()
    }


def confirmed_positions(side: Side, time: int) -> dict[Partition, int]:
    """Return what ``positions_at`` does, once the records that are next there have been looked at."""
    while not side.confirms(time):
        pass
    return positions_at(side, time)


@dataclass(frozen=True)
class Slice:
    """What is read next.

    Attributes:
        time: The time at which it ends, in epoch milliseconds; None where that is all there is.
        parts: In how many batches it is read.
        hint: For the search of the next one.
    """

    time: int | None
    parts: int
    hint: int


def next_slice(sides: Sequence[Side], after: int, hint: int = 20) -> Slice:
    """Choose what is read next, by answers that all stand.

    Args:
        sides: The inputs, each where it stands once all before ``after`` is read.
        after: Where the last slice ended, in epoch milliseconds.
        hint: The power of two with which the search begins; it changes what the search costs, not what it finds.
    """
    while True:
        # The search begins with the records of this time: a wrong answer would have it begin elsewhere.
        if _all_confirm(sides, after):
            found = _longest(sides, after, hint)
            # An answer that was found wrong on the way has misled the search.
            if found.time is None or _all_confirm(sides, found.time):
                return found


def _all_confirm(sides: Sequence[Side], time: int) -> bool:
    """Return whether the answers of all inputs stand; each is asked, also after one whose do not."""
    wrong = [side for side in sides if not side.confirms(time)]
    return not wrong


def _longest(sides: Sequence[Side], after: int, hint: int) -> Slice:
    if all(side.fits(side.ends) for side in sides):
        return Slice(None, 1, hint)
    starts = [start for side in sides if (start := side.first_timestamp(after)) is not None]
    # Without one, only records that came out of order are left, all before `after`.
    first = min(starts, default=after)

    def fits(time: int) -> bool:
        return all(side.fits(positions_at(side, time)) for side in sides)

    power = _largest(lambda each: fits(_next_multiple(first, each)), hint)
    if power is None:
        counts = [side.count(positions_at(side, first + 1)) for side in sides]
        return Slice(first + 1, max(-(-count // side.limit) for count, side in zip(counts, sides, strict=True)), 0)
    time = _next_multiple(first, power)
    for smaller in range(power - 1, max(-1, power - 1 - _REFINEMENTS), -1):
        if fits(time + (1 << smaller)):
            time += 1 << smaller
    return Slice(time, 1, power)


def part_of(side: Side, ends: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return where a batch ends that takes as many records as it may, of all partitions alike.

    Args:
        side: The input.
        ends: Offsets up to which there are more than it may take.

    >>> side = Side({("trades", 0): 10, ("trades", 1): 0}, {}, 50, lambda time: {})
    >>> part_of(side, {("trades", 0): 310, ("trades", 1): 100})
    {('trades', 0): 47, ('trades', 1): 13}
    """
    total, passed, taken = side.count(ends), 0, 0
    found = {}
    for partition, end in ends.items():
        passed += end - side.positions[partition]
        share = passed * side.limit // total - taken
        taken += share
        found[partition] = side.positions[partition] + share
    return found


def _largest(fits: Callable[[int], bool], hint: int) -> int | None:
    """Return the largest power that fits, given that all smaller ones do then; None where none does."""
    power = min(max(hint, 0), _LARGEST_POWER)
    if fits(power):
        while power < _LARGEST_POWER and fits(power + 1):
            power += 1
        return power
    while power > 0:
        power -= 1
        if fits(power):
            return power
    return None


def _next_multiple(time: int, power: int) -> int:
    """Return the first multiple of a power of two after a time."""
    return ((time >> power) + 1) << power


def _offset(found: tuple[int, int] | None, end: int) -> int:
    return end if found is None else found[0]
