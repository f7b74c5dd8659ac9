"""The end offsets of the next micro-batch: all partitions of both topics stop at one record timestamp.

The purpose is that of Flink's watermark alignment. In every partition the slice ends just before the first record of
that timestamp or later. The timestamp is the next multiple, after the first unread timestamp, of the largest power of
two of milliseconds that fits every input's limit of records, extended by up to six smaller powers that still fit. So
two readers that ask the same logs choose the same timestamp without communicating, and readers that start slightly
apart soon choose the same one. Stretches without records cost nothing.

If one millisecond exceeds the limit, the slice is cut by offsets into parts. Their number is set by the largest ratio
of an input's record count to its limit. The time does not advance until the last part.

A slice costs each input up to some nine lookups by time, since no time is looked up twice: one where the last slice
ended; at least two of the search, and one more for each power by which its hint is off; and up to six of the
refinement. Two of the answers are confirmed, which also looks up single records. If all that is left fits the limits,
it costs one confirmation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cojoin.kafka.client import Partition

_LARGEST_POWER = 45
"""The largest power of two of milliseconds: a thousand years, more than any topic spans."""

_REFINEMENTS = 6
"""The number of smaller powers that may lengthen a slice; each costs a lookup for every input."""


@dataclass(frozen=True)
class UnreadInput:
    """The unread part of one input, from the next offset of each partition to its end; ``limit`` is in records a batch.

    ``first_at`` returns, for a time in epoch milliseconds, each partition's first record that is not earlier, or one
    soon after it, as ``(offset, timestamp)``; None where there is none. ``confirms`` checks the answers of ``first_at``
    for a time against the records. It returns False if any lookup since the last call, for any time, was wrong; the
    caller then repeats all lookups.
    """

    positions: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    limit: int
    first_at: Callable[[int], Mapping[Partition, tuple[int, int] | None]]
    confirms: Callable[[int], bool] = lambda _: True

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing is left to read."""
        return all(position >= self.ends[each] for each, position in self.positions.items())

    def fits(self, ends: Mapping[Partition, int]) -> bool:
        """Return whether a batch may hold all records up to these offsets."""
        return self.count(ends) <= self.limit

    def count(self, ends: Mapping[Partition, int]) -> int:
        """Return how many records there are at most up to these offsets."""
        return sum(end - self.positions[partition] for partition, end in ends.items())

    def first_timestamp(self, after: int) -> int | None:
        """Return the earliest unread timestamp that is not before a time; None where there is none."""
        first_records = self.first_at(after)
        unread = (first_records.get(each) for each, position in self.positions.items() if position < self.ends[each])
        return min((first[1] for first in unread if first is not None), default=None)


def positions_at(side: UnreadInput, time: int) -> dict[Partition, int]:
    """Return the position of each partition once all records before a time, in epoch milliseconds, are read."""
    first_records, positions = side.first_at(time), {}
    for partition, position in side.positions.items():
        first, end = first_records.get(partition), side.ends[partition]
        positions[partition] = max(position, end if first is None else min(end, first[0]))
    return positions


def confirmed_positions(side: UnreadInput, time: int) -> dict[Partition, int]:
    """Return the result of ``positions_at``, once the records at these positions confirm it."""
    while not side.confirms(time):
        pass
    return positions_at(side, time)


@dataclass(frozen=True)
class Slice:
    """The range of record timestamps that is read next, in ``parts`` batches, up to ``time``; None reads all."""

    time: int | None
    parts: int
    hint: int
    """The power of two at which the search for the next slice begins."""


def next_slice(sides: Sequence[UnreadInput], after: int, hint: int = 20) -> Slice:
    """Return the slice that is read next, found by answers that are all confirmed.

    ``sides`` have their positions once all records before ``after`` are read, the time at which the last slice ended,
    in epoch milliseconds. ``hint`` changes what the search costs, not what it finds.
    """
    while True:
        # The search begins at the first records of this time, so a wrong answer about them would move its start.
        if _all_confirm(sides, after):
            longest = _longest(sides, after, hint)
            # If an answer was found wrong on the way, the search is repeated.
            if longest.time is None or _all_confirm(sides, longest.time):
                return longest


def _all_confirm(sides: Sequence[UnreadInput], time: int) -> bool:
    """Return whether the answers of all inputs are confirmed; every input is asked, even after one that is not."""
    wrong = [side for side in sides if not side.confirms(time)]
    return not wrong


def _longest(sides: Sequence[UnreadInput], after: int, hint: int) -> Slice:
    if all(side.fits(side.ends) for side in sides):
        return Slice(None, 1, hint)
    starts = [start for side in sides if (start := side.first_timestamp(after)) is not None]
    # If there is none, only out-of-order records are left, all before `after`.
    first = min(starts, default=after)

    def fits(time: int) -> bool:
        return all(side.fits(positions_at(side, time)) for side in sides)

    power = _largest(lambda power: fits(_next_multiple(first, power)), hint)
    if power is None:
        counts = [side.count(positions_at(side, first + 1)) for side in sides]
        return Slice(first + 1, max(-(-count // side.limit) for count, side in zip(counts, sides, strict=True)), 0)
    time = _next_multiple(first, power)
    for smaller in range(power - 1, max(-1, power - 1 - _REFINEMENTS), -1):
        if fits(time + (1 << smaller)):
            time += 1 << smaller
    return Slice(time, 1, power)


def part_of(side: UnreadInput, ends: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return where a batch ends that takes as many records as its limit, in equal proportion from all partitions.

    >>> side = UnreadInput({("trades", 0): 10, ("trades", 1): 0}, {}, 50, lambda time: {})
    >>> part_of(side, {("trades", 0): 310, ("trades", 1): 100})
    {('trades', 0): 47, ('trades', 1): 13}
    """
    total, passed, taken = side.count(ends), 0, 0
    part = {}
    for partition, end in ends.items():
        passed += end - side.positions[partition]
        share = passed * side.limit // total - taken
        taken += share
        part[partition] = side.positions[partition] + share
    return part


def _largest(fits: Callable[[int], bool], hint: int) -> int | None:
    """Return the largest power that fits, or None; where a power fits, all smaller ones fit as well."""
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
    """Return the first multiple of ``2 ** power`` after a time."""
    return ((time >> power) + 1) << power
