"""Times of simulated logs that hold markers of transactions, aborted records and stamps of the year 2100."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from cojoin.kafka.alignment import Side, next_slice, part_of, positions_at
from cojoin.kafka.times import Seen, Times, first_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cojoin.kafka.client import Cluster

Partition = tuple[str, int]
Entry = tuple[int, bool]
"""What stands at an offset: its stamp, and whether it is a record that a reader sees."""

START = 1_767_571_200_000
TODAY, FUTURE = START + 300 * 86_400_000, 4_102_444_800_000
BELIEVED = TODAY + 86_400_000
DRIFT = 600_000


@dataclass
class Logs:
    """Partitions that answer as a broker does, and let be read."""

    entries: Mapping[Partition, list[Entry]]
    looked: int = 0
    largest: dict[Partition, list[int]] = field(default_factory=dict)

    def first_at(self, partitions: Iterable[Partition], time: int) -> dict[Partition, tuple[int, int] | None]:
        found: dict[Partition, tuple[int, int] | None] = {}
        for each in partitions:
            if each not in self.largest:
                self.largest[each] = list(accumulate((stamp for stamp, _ in self.entries[each]), max))
            largest = self.largest[each]
            at = bisect_left(largest, time)
            found[each] = (at, largest[at]) if at < len(largest) else None
        return found

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {each: len(self.entries[each]) for each in partitions}

    def next_records(
        self, offsets: Mapping[Partition, int], ends: Mapping[Partition, int], believed: int | None
    ) -> dict[Partition, Seen | None]:
        self.looked += 1
        found: dict[Partition, Seen | None] = {}
        for each, offset in offsets.items():
            log = ((at, *self.entries[each][at]) for at in range(offset, ends[each]))
            seen = (Seen(at, stamp) for at, stamp, is_record in log if is_record and _is_believed(stamp, believed))
            found[each] = next(seen, None)
        return found

    def stamps(
        self, begins: Mapping[Partition, int], ends: Mapping[Partition, int], believed: int | None
    ) -> dict[Partition, list[tuple[int, int]]]:
        return {
            each: [
                (at, stamp)
                for at, (stamp, is_record) in enumerate(self.entries[each][begin : ends[each]], start=begin)
                if is_record and _is_believed(stamp, believed)
            ]
            for each, begin in begins.items()
        }

    @property
    def ends(self) -> dict[Partition, int]:
        return self.latest(self.entries)

    def times(self, limit: int) -> Times:
        made = Times(cast("Cluster", self), self, limit, DRIFT)
        made.believed = BELIEVED
        return made


def _is_believed(stamp: int, believed: int | None) -> bool:
    return believed is None or stamp <= believed


def made(rng: np.random.Generator, records: int, *, markers: bool, future: int) -> list[Entry]:
    """Two weeks of records, up to five seconds out of order, in transactions of which some were aborted."""
    moments = START + np.sort(rng.integers(0, 14 * 86_400_000, records)) - rng.integers(0, 5_000, records)
    log: list[Entry] = []
    while moments.size:
        size = int(rng.integers(1, 60))
        log += [(int(moment), not (markers and rng.random() < 0.2)) for moment in moments[:size]]
        log += [(TODAY, False)] * markers
        moments = moments[size:]
    for at in rng.integers(0, len(log) + 1, future):
        log.insert(int(at), (FUTURE, True))
    return log


def make_logs(seed: int, *, markers: bool, future: int) -> tuple[Logs, Logs]:
    rng = np.random.default_rng(seed)
    left, right = (
        Logs({("topic", at): made(rng, int(size), markers=markers, future=future) for at, size in enumerate(sizes)})
        for sizes in ([3_000, 40, 700], [500, 2])
    )
    return left, right


def side(logs: Logs, times: Times, limit: int, positions: Mapping[Partition, int]) -> Side:
    return Side(positions, logs.ends, limit, lambda time: times.first_at(time, positions, logs.ends))


@pytest.mark.parametrize(("seed", "kind"), list(product(range(4), ["honest", "markers", "future", "both"])))
def test_both_inputs_come_through_time_together_and_every_mark_holds(seed: int, kind: str) -> None:
    both = make_logs(seed, markers=kind in {"markers", "both"}, future=3 * (kind in {"future", "both"}))
    limits = (250, 90)
    times = [each.times(limit) for each, limit in zip(both, limits, strict=True)]
    sides = [
        side(each, time, limit, dict.fromkeys(each.entries, 0))
        for each, time, limit in zip(both, times, limits, strict=True)
    ]
    after, hint, batches = 0, 20, 0
    apart: list[int] = []
    while not all(each.is_read for each in sides):
        planned = next_slice(sides, after, hint)
        hint = planned.hint
        stands = [each.ends if planned.time is None else positions_at(each, planned.time) for each in sides]
        if planned.time is not None:
            asked = zip(times, stands, sides, strict=True)
            confirmed = [one.next_stamp(planned.time, at, each.ends) for one, at, each in asked]
            if not all(sincere for _, sincere in confirmed):
                continue
            for logs, at, (mark, _) in zip(both, stands, confirmed, strict=True):
                assert mark is not None
                left = [stamp for each, found in logs.stamps(at, logs.ends, BELIEVED).items() for _, stamp in found]
                assert min(left, default=mark) >= mark - DRIFT, "a mark that what is still to be read belies"
            for logs, at in zip(both, stands, strict=True):
                read = logs.stamps(dict.fromkeys(at, 0), at, BELIEVED).values()
                apart += [stamp - planned.time for stamps in read for _, stamp in stamps]
            after = planned.time
        for _ in range(planned.parts):
            ends = [at if each.fits(at) else part_of(each, at) for each, at in zip(sides, stands, strict=True)]
            counts = [each.count(end) for each, end in zip(sides, ends, strict=True)]
            assert all(count <= limit for count, limit in zip(counts, limits, strict=True))
            batches += 1
            sides = [
                side(logs, time, limit, end) for logs, time, limit, end in zip(both, times, limits, ends, strict=True)
            ]
        assert [each.positions for each in sides] == stands
    # Few are read beyond the time: the batches are as full as they may be, about.
    assert batches <= 3 * sum(len(log) for log in both[0].entries.values()) / limits[0]
    assert max(apart) < 86_400_000
    for each, time in zip(both, times, strict=True):
        stamps = [stamp for log in each.entries.values() for stamp, is_record in log if is_record and stamp < FUTURE]
        assert time.newest(dict.fromkeys(each.ends, 0), each.ends) == max(stamps)


def test_a_marker_s_time_is_not_where_a_search_begins() -> None:
    hours = [START + 3_600_000 * hour for hour in range(200)]
    log = [(START, True), (TODAY, False), *((hour, True) for hour in hours[1:]), (TODAY, False)]
    logs = Logs({("topic", 0): log})
    times = logs.times(50)
    one = side(logs, times, 50, {("topic", 0): 1})
    claims = one.first_at(START + 1)
    assert claims == {("topic", 0): (1, TODAY)}
    assert not times.confirm(claims, one.positions, one.ends)
    assert times.confirm(one.first_at(START + 1), one.positions, one.ends)
    assert one.first_timestamp(START + 1) == hours[1]
    planned = next_slice([one], START + 1)
    assert planned.time is not None
    assert START < planned.time < hours[60]


def test_a_healthy_log_is_looked_at_once_a_batch() -> None:
    logs, _ = make_logs(1, markers=False, future=0)
    times = logs.times(250)
    positions = positions_at(side(logs, times, 250, dict.fromkeys(logs.entries, 0)), START + 86_400_000)
    assert logs.looked == 0
    assert times.next_stamp(START + 86_400_000, positions, logs.ends)[1]
    assert logs.looked == 1


@pytest.mark.parametrize(("seed", "kind"), list(product(range(4), ["honest", "markers", "future", "both"])))
def test_a_range_begins_at_its_first_record_to_the_offset(seed: int, kind: str) -> None:
    logs, _ = make_logs(seed, markers=kind in {"markers", "both"}, future=3 * (kind in {"future", "both"}))
    for day in range(-1, 16):
        time = START + day * 86_400_000
        found = first_records(cast("Cluster", logs), logs, logs.entries, time, BELIEVED)
        for each, log in logs.entries.items():
            # What no reader sees may stand between the answer and its record.
            answer = found[each]
            begin = len(log) if answer is None else answer[0]
            stamps = logs.stamps({each: 0}, logs.ends, BELIEVED)[each]
            wanted = next(((at, stamp) for at, stamp in stamps if stamp >= time), None)
            assert next(((at, stamp) for at, stamp in stamps if at >= begin), None) == wanted
            assert wanted is None or answer is None or answer[1] == wanted[1]


def test_stamps_that_are_all_beyond_belief_say_nothing() -> None:
    logs = Logs({("topic", 0): [(FUTURE, True)] * 20})
    times = logs.times(5)
    one = side(logs, times, 5, {("topic", 0): 0})
    planned = next_slice([one], 0)
    assert (positions_at(one, 1), planned.parts) == ({("topic", 0): 20}, 4)
    assert times.newest({("topic", 0): 0}, logs.ends) is None
    believing = logs.times(5)
    believing.believed = None
    assert side(logs, believing, 5, {("topic", 0): 0}).first_timestamp(0) == FUTURE
