"""Slices of event time over simulated logs: lists of timestamps, out of order as topics have them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import accumulate

from hypothesis import example, given
from hypothesis import strategies as st

from cojoin.kafka.alignment import Slice, UnreadInput, next_slice, part_of, positions_at

Logs = tuple[list[int], ...]
"""An input's partitions: of each the timestamps in the order of offsets."""

DAY = 86_400_000
START = 1_767_571_200_000

APART_FOR = 3
"""So many slices of one reader may end where none of the other's does."""


@dataclass(frozen=True)
class Read:
    """A batch of both inputs: where it ends, and each input's positions there."""

    after: int
    time: int | None
    positions: tuple[dict[tuple[str, int], int], ...]
    counts: tuple[int, ...]
    first: int
    part: int


def side(logs: Logs, limit: int, positions: dict[tuple[str, int], int] | None = None) -> UnreadInput:
    # The first record at or after a time is the first by which the largest timestamp so far is.
    partitions = {("topic", number): list(accumulate(log, max)) for number, log in enumerate(logs)}

    def first_at(time: int) -> dict[tuple[str, int], tuple[int, int] | None]:
        at = {each: bisect_left(log, time) for each, log in partitions.items()}
        return {each: (at[each], log[at[each]]) if at[each] < len(log) else None for each, log in partitions.items()}

    ends = {each: len(log) for each, log in partitions.items()}
    return UnreadInput(dict.fromkeys(partitions, 0) if positions is None else positions, ends, limit, first_at)


def standing_at(side: UnreadInput, time: int) -> UnreadInput:
    return replace(side, positions=positions_at(side, time)) if time else side


def slices(sides: tuple[UnreadInput, ...], after: int = 0, hint: int = 20) -> list[Read]:
    """Read all in batches, as a reader does."""
    found: list[Read] = []
    while not all(each.is_exhausted for each in sides):
        first = min((moment for each in sides if (moment := each.first_timestamp(after)) is not None), default=after)
        planned = next_slice(sides, after, hint)
        hint = planned.hint
        targets = [dict(each.ends) if planned.time is None else positions_at(each, planned.time) for each in sides]
        for part in range(planned.parts, 0, -1):
            ends = [
                target if each.fits(target) else part_of(each, target)
                for each, target in zip(sides, targets, strict=True)
            ]
            counts = tuple(each.count(end) for each, end in zip(sides, ends, strict=True))
            found.append(Read(after, planned.time if part == 1 else after, tuple(ends), counts, first, part))
            assert sum(counts) > 0, found[-1]
            sides = tuple(replace(each, positions=end) for each, end in zip(sides, ends, strict=True))
        assert [each.positions for each in sides] == targets
        after = after if planned.time is None else planned.time
    return found


def fewest(sides: tuple[UnreadInput, ...], times: list[int]) -> int:
    """Return how many slices are needed at the least, whatever the times at which they end."""
    count = 0
    while not all(each.is_exhausted for each in sides):
        fitting, after = None, None
        for time in [*times, times[-1] + 1]:
            ends = [positions_at(each, time) for each in sides]
            if all(end == each.positions for each, end in zip(sides, ends, strict=True)):
                continue
            if fitting is None or all(each.fits(end) for each, end in zip(sides, ends, strict=True)):
                fitting, after = ends, time
            else:
                break
        assert fitting is not None
        assert after is not None
        sides = tuple(replace(each, positions=end) for each, end in zip(sides, fitting, strict=True))
        count += 1
    return count


@st.composite
def log(draw: st.DrawFn, spread: int) -> list[int]:
    """A partition: bursts, ties and silences, and records that come late."""
    steps = draw(st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 7, 50, 1_000, 60_000, DAY, 20 * DAY]), max_size=40))
    now, times = START + draw(st.integers(0, 3 * DAY)), []
    for step in steps:
        now += step
        times.append(now - draw(st.integers(0, spread)))
    return times


def inputs(spread: int = 5_000) -> st.SearchStrategy[tuple[Logs, Logs]]:
    logs = st.lists(log(spread), min_size=1, max_size=4).map(tuple)
    return st.tuples(logs, logs)


limits = st.tuples(st.integers(1, 30), st.integers(1, 30))


@given(inputs(), limits, st.integers(0, 50))
def test_every_batch_goes_on_keeps_to_its_limit_and_all_is_read_once(
    logs: tuple[Logs, Logs], limit: tuple[int, int], hint: int
) -> None:
    sides = tuple(map(side, logs, limit))
    found = slices(sides, hint=hint)

    before: tuple[dict[tuple[str, int], int], ...] = tuple(dict(each.positions) for each in sides)
    for each in found:
        assert each.time is None or each.time > each.after or each.part > 1
        assert all(count <= most for count, most in zip(each.counts, limit, strict=True)), each
        for one, old, new in zip(sides, before, each.positions, strict=True):
            assert all(old[partition] <= end <= one.ends[partition] for partition, end in new.items())
        before = each.positions
    assert list(before) == [dict(each.ends) for each in sides]
    assert [each.time is None for each in found].count(True) <= 1


@given(inputs(), limits, st.integers(0, 50), st.integers(0, 50))
def test_both_readers_find_the_same_times_whatever_they_have_seen_before(
    logs: tuple[Logs, Logs], limit: tuple[int, int], hint: int, other_hint: int
) -> None:
    left, right = map(side, logs, limit)
    one, other = slices((left, right), hint=hint), slices((right, left), hint=other_hint)
    assert [(each.time, each.positions) for each in one] == [(each.time, each.positions[::-1]) for each in other]


@given(inputs(), limits)
def test_a_reader_that_knows_only_the_time_finds_where_the_other_stands(
    logs: tuple[Logs, Logs], limit: tuple[int, int]
) -> None:
    sides = tuple(map(side, logs, limit))
    for each in slices(sides):
        for one, positions in zip(sides, each.positions, strict=True):
            if each.time is not None and each.part == 1:
                assert standing_at(one, each.time).positions == positions


@given(inputs(), limits, st.integers(0, 3_000), st.integers(0, 30))
def test_readers_that_stand_a_little_apart_meet(
    logs: tuple[Logs, Logs], limit: tuple[int, int], apart: int, at: int
) -> None:
    sides = tuple(map(side, logs, limit))
    times = sorted(moment for each in logs for one in each for moment in one) or [START]
    begin = times[min(at, len(times) - 1)]
    one, other = (
        [each.time for each in slices(tuple(standing_at(each, moment) for each in sides), moment)]
        for moment in (begin, begin + apart)
    )
    # What ends before the second reader's beginning, that one can't know.
    # A slice that time can't part comes in several parts, which end at one time.
    alone = {time for time in one if time not in other and (time is None or time > begin + apart)}
    assert len(alone) <= APART_FOR, (one, other)


@given(inputs(spread=0), limits)
def test_stretches_without_records_take_no_slices(logs: tuple[Logs, Logs], limit: tuple[int, int]) -> None:
    """Records that are a thousand times as far apart are read in no more slices than there are moments."""
    moments = {moment for each in logs for one in each for moment in one}
    found = slices(tuple(map(side, logs, limit)))
    assert sum(each.part == 1 for each in found) <= len(moments)
    assert all(sum(each.counts) for each in found)


@given(inputs(), limits)
@example((([START + each for each in range(300)],), ([],)), (10, 10))
def test_slices_are_few(logs: tuple[Logs, Logs], limit: tuple[int, int]) -> None:
    sides = tuple(map(side, logs, limit))
    times = sorted({moment + more for each in logs for one in each for moment in one for more in (0, 1)})
    least = fewest(sides, times) if times else 0
    assert sum(each.part == 1 for each in slices(sides)) <= 2.5 * least + 1


def test_a_millisecond_of_many_records_is_cut_by_offsets() -> None:
    many, few = side(([START] * 1_000, [START] * 30), 250), side(([START, START + 7],), 10)
    planned = next_slice([many, few], 0)
    assert (planned.time, planned.parts) == (START + 1, 5)
    assert next_slice([few, many], 0) == planned
    ends = positions_at(many, START + 1)
    read = []
    while not many.fits(ends):
        many = replace(many, positions=part_of(many, ends))
        read.append(sum(many.positions.values()))
    assert (read, sum(ends.values())) == ([250, 500, 750, 1_000], 1_030)


def test_a_short_topic_goes_as_far_in_time_as_a_long_one() -> None:
    long, short = [START + 10 * each for each in range(10_000)], [START + 1_000 * each for each in range(100)]
    found = slices((side((long,), 1_000), side((short,), 1_000)))
    for each in found[:-1]:
        assert each.time is not None
        for log, positions in zip((long, short), each.positions, strict=True):
            assert positions["topic", 0] == sum(moment < each.time for moment in log)
    assert len(found) <= 20


def test_what_came_late_belongs_to_the_slice_in_which_it_stands() -> None:
    late = [START, START + 9_000, START + 5_000, START + 20_000]
    one = side((late,), 1)
    assert positions_at(one, START + 6_000) == {("topic", 0): 1}
    assert positions_at(one, START + 9_001) == {("topic", 0): 3}
    assert positions_at(one, START + 30_000) == {("topic", 0): 4}
    assert positions_at(replace(one, ends={("topic", 0): 2}), START + 30_000) == {("topic", 0): 2}
    assert positions_at(replace(one, positions={("topic", 0): 2}), START) == {("topic", 0): 2}


def test_topics_without_records() -> None:
    empty = side(([], []), 5)
    assert empty.is_exhausted
    assert next_slice([empty], 0) == Slice(None, 1, 20)
    assert next_slice([empty, side(([START],), 5)], 0) == Slice(None, 1, 20)
