"""Offsets of times in simulated logs, with markers, aborted records and stamps of the year 2100, and in real topics."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

import cojoin as cj
from cojoin.kafka.alignment import UnreadInput, confirmed_positions, next_slice, part_of, positions_at
from cojoin.kafka.archive_index import NO_ARCHIVE, ArchiveIndex
from cojoin.kafka.client import Cluster, ClusterOptions
from cojoin.kafka.offsets_for_times import RecordLookup, Stamp, Times, first_records
from tests.kafka.hard_topics import await_compaction, create, open_transaction
from tests.kafka.replayed import START, Written, delete_before, make, write
from tests.kafka.test_client import WHAT, silent
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from cojoin.kafka.client import Partition
    from tests.servers.broker import Broker

Partition = tuple[str, int]
Entry = tuple[int, str]
"""What stands at an offset: its stamp, and whether it is a ``record``, is ``unseen`` by readers, or is ``gone``."""

TODAY, FUTURE = START + 300 * 86_400_000, 4_102_444_800_000
TRUSTED_UNTIL = TODAY + 86_400_000
DRIFT = 600_000
SEGMENT = 150
KINDS = ["honest", "markers", "future", "compacted", "all"]


@dataclass
class Logs:
    """Partitions that answer as a broker does, and let be read."""

    entries: Mapping[Partition, list[Entry]]
    archive: ArchiveIndex = NO_ARCHIVE
    looked: int = 0
    asked: list[tuple[Partition, int]] = field(default_factory=list)
    largest: dict[Partition, NDArray[np.int64]] = field(default_factory=dict)

    def first_at(self, partitions: Iterable[Partition], time: int) -> dict[Partition, tuple[int, int] | None]:
        found: dict[Partition, tuple[int, int] | None] = {}
        for each in partitions:
            self.asked.append((each, time))
            log = self.entries[each]
            if each not in self.largest:
                stamps = [[stamp for stamp, _ in log[at : at + SEGMENT]] for at in range(0, len(log), SEGMENT)]
                self.largest[each] = np.array([max(some) for some in stamps])
            # It looks into one segment, and a segment remembers the times of records that are gone.
            begin = SEGMENT * next(iter(np.flatnonzero(self.largest[each] >= time)), len(log))
            there = enumerate(log[begin : begin + SEGMENT], start=begin)
            found[each] = next(((at, stamp) for at, (stamp, kind) in there if stamp >= time and kind != "gone"), None)
        return found

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 0)

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {each: len(self.entries[each]) for each in partitions}

    def next_records(
        self, offsets: Mapping[Partition, int], ends: Mapping[Partition, int], trusted_until: int | None
    ) -> dict[Partition, Stamp | None]:
        self.looked += 1
        found: dict[Partition, Stamp | None] = {}
        for each, offset in offsets.items():
            log = ((at, *self.entries[each][at]) for at in range(offset, ends[each]))
            seen = (
                Stamp(at, stamp) for at, stamp, kind in log if kind == "record" and _is_believed(stamp, trusted_until)
            )
            found[each] = next(seen, None)
        return found

    def stamps(
        self, begins: Mapping[Partition, int], ends: Mapping[Partition, int], trusted_until: int | None
    ) -> dict[Partition, list[tuple[int, int]]]:
        return {
            each: [
                (at, stamp)
                for at, (stamp, kind) in enumerate(self.entries[each][begin : ends[each]], start=begin)
                if kind == "record" and _is_believed(stamp, trusted_until)
            ]
            for each, begin in begins.items()
        }

    @property
    def ends(self) -> dict[Partition, int]:
        return self.latest(self.entries)

    def times(self, limit: int) -> Times:
        made = Times(cast("Cluster", self), self, limit, DRIFT)
        made.begin_batch(TRUSTED_UNTIL)
        return made


def _is_believed(stamp: int, trusted_until: int | None) -> bool:
    return trusted_until is None or stamp <= trusted_until


def made(rng: np.random.Generator, records: int, kind: str) -> list[Entry]:
    """Two weeks of records, up to five seconds out of order, in transactions of which some were aborted."""
    moments = START + np.sort(rng.integers(0, 14 * 86_400_000, records)) - rng.integers(0, 5_000, records)
    markers, compacted = kind in {"markers", "all"}, kind in {"compacted", "all"}
    log: list[Entry] = []
    while moments.size:
        size = int(rng.integers(1, 60))
        kinds = np.where(rng.random(size) < 0.2 * markers, "unseen", "record")
        log += [(int(moment), str(kind)) for moment, kind in zip(moments[:size], kinds, strict=False)]
        log += [(TODAY, "unseen")] * markers
        moments = moments[size:]
    for at in rng.integers(0, len(log) + 1, 3 * (kind in {"future", "all"})):
        log.insert(int(at), (FUTURE, "record"))
    # Compaction comes to all but the newest segment; some of its batches are of later times than their neighbours.
    for at in np.flatnonzero(rng.random(max(0, len(log) - SEGMENT)) < 0.3 * compacted):
        stamp, what = log[at]
        log[at] = (stamp + int(rng.integers(0, 2)) * 5 * 86_400_000, "gone") if what == "record" else log[at]
    return log


def make_logs(seed: int, kind: str) -> tuple[Logs, Logs]:
    rng = np.random.default_rng(seed)
    left, right = (
        Logs({("topic", at): made(rng, int(size), kind) for at, size in enumerate(sizes)})
        for sizes in ([3_000, 40, 700], [500, 2])
    )
    return left, right


def side(logs: Logs, times: Times, limit: int, positions: Mapping[Partition, int]) -> UnreadInput:
    return UnreadInput(
        positions,
        logs.ends,
        limit,
        lambda time: times.first_at(time, positions, logs.ends),
        lambda time: times.confirms(time, positions, logs.ends),
    )


@pytest.mark.parametrize(("seed", "kind"), list(product(range(4), KINDS)))
def test_both_inputs_come_through_time_together_and_every_mark_holds(seed: int, kind: str) -> None:
    both = make_logs(seed, kind)
    limits = (250, 90)
    times = [each.times(limit) for each, limit in zip(both, limits, strict=True)]
    sides = [
        side(each, time, limit, dict.fromkeys(each.entries, 0))
        for each, time, limit in zip(both, times, limits, strict=True)
    ]
    after, hint, batches = 0, 20, 0
    beyond = 0
    while not all(each.is_exhausted for each in sides):
        planned = next_slice(sides, after, hint)
        hint = planned.hint
        stands = [each.ends if planned.time is None else positions_at(each, planned.time) for each in sides]
        if planned.time is not None:
            asked = zip(times, stands, sides, strict=True)
            confirmed = [one.next_stamp(planned.time, at, each.ends) for one, at, each in asked]
            for logs, at, mark in zip(both, stands, confirmed, strict=True):
                assert mark is not None
                left = [
                    stamp for each, found in logs.stamps(at, logs.ends, TRUSTED_UNTIL).items() for _, stamp in found
                ]
                assert min(left, default=mark) >= mark - DRIFT, "a mark that what is still to be read belies"
            for logs, at in zip(both, stands, strict=True):
                read = logs.stamps(dict.fromkeys(at, 0), at, TRUSTED_UNTIL).values()
                beyond = max(beyond, *(sum(stamp >= planned.time for _, stamp in stamps) for stamps in read))
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
    # A search goes no finer than a share of a batch.
    assert beyond <= limits[0] // 64
    for each, of_log in zip(both, times, strict=True):
        stamps = [stamp for log in each.entries.values() for stamp, kind in log if kind == "record" and stamp < FUTURE]
        assert of_log.newest(dict.fromkeys(each.ends, 0), each.ends) == max(stamps)


def test_a_marker_s_time_is_not_where_a_search_begins() -> None:
    hours = [START + 3_600_000 * hour for hour in range(200)]
    log = [(START, "record"), (TODAY, "unseen"), *((hour, "record") for hour in hours[1:]), (TODAY, "unseen")]
    logs = Logs({("topic", 0): log})
    times = logs.times(50)
    one = side(logs, times, 50, {("topic", 0): 1})
    claims = one.first_at(START + 1)
    assert claims == {("topic", 0): (1, TODAY)}
    assert not one.confirms(START + 1)
    assert one.confirms(START + 1)
    assert one.first_timestamp(START + 1) == hours[1]
    planned = next_slice([one], START + 1)
    assert planned.time is not None
    assert START < planned.time < hours[60]


def test_a_healthy_log_is_looked_at_once_a_batch() -> None:
    logs, _ = make_logs(1, "honest")
    times = logs.times(250)
    positions = positions_at(side(logs, times, 250, dict.fromkeys(logs.entries, 0)), START + 86_400_000)
    assert logs.looked == 0
    assert times.confirms(START + 86_400_000, positions, logs.ends)
    assert times.next_stamp(START + 86_400_000, positions, logs.ends) == START + 86_400_000
    assert logs.looked == 1


@pytest.mark.parametrize(("seed", "kind"), list(product(range(4), KINDS)))
def test_a_range_begins_at_its_first_record_to_the_offset(seed: int, kind: str) -> None:
    logs, _ = make_logs(seed, kind)
    for day in range(-1, 16):
        time = START + day * 86_400_000
        found = first_records(cast("Cluster", logs), logs, logs.entries, time, TRUSTED_UNTIL)
        for each, log in logs.entries.items():
            # What no reader sees may stand between the answer and its record.
            answer = found[each]
            begin = len(log) if answer is None else answer[0]
            stamps = logs.stamps({each: 0}, logs.ends, TRUSTED_UNTIL)[each]
            wanted = next(((at, stamp) for at, stamp in stamps if stamp >= time), None)
            assert next(((at, stamp) for at, stamp in stamps if at >= begin), None) == wanted
            assert wanted is None or answer is None or answer[1] == wanted[1]


def test_stamps_that_are_all_beyond_belief_say_nothing() -> None:
    logs = Logs({("topic", 0): [(FUTURE, "record")] * 20})
    times = logs.times(5)
    one = side(logs, times, 5, {("topic", 0): 0})
    planned = next_slice([one], 0)
    assert (positions_at(one, 1), planned.parts) == ({("topic", 0): 20}, 4)
    assert times.newest({("topic", 0): 0}, logs.ends) is None
    with_max_ahead = logs.times(5)
    with_max_ahead.begin_batch(None)
    assert side(logs, with_max_ahead, 5, {("topic", 0): 0}).first_timestamp(0) == FUTURE


@pytest.mark.parametrize("kind", KINDS)
def test_the_broker_is_asked_for_each_time_once_in_a_batch_and_again_in_the_next(kind: str) -> None:
    logs, _ = make_logs(1, kind)
    times, stands = logs.times(250), dict.fromkeys(logs.entries, 0)
    found = []
    for _ in range(2):
        times.begin_batch(TRUSTED_UNTIL)
        logs.asked.clear()
        planned = next_slice([side(logs, times, 250, stands)], 0)
        assert planned.time is not None
        found.append((planned, confirmed_positions(side(logs, times, 250, stands), planned.time)))
        assert {(each, moment) for each in stands for moment in (0, planned.time)} <= set(logs.asked)
        assert len(logs.asked) == len(set(logs.asked))
    assert found[0] == found[1]


LATER = START + 10_000_000_000


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    made = Cluster(ClusterOptions(broker.bootstrap_servers, {}, 30_000), WHAT)
    yield made
    made.close()


@pytest.fixture
def peeking(cluster: Cluster) -> Iterator[RecordLookup]:
    made = RecordLookup(cluster, WHAT)
    yield made
    made.close()


@pytest.mark.kafka
def test_markers_and_aborted_records_are_passed_over(broker: Broker, cluster: Cluster, peeking: RecordLookup) -> None:
    servers, (one, two) = make(broker, "peeked", partitions=2), (("peeked", 0), ("peeked", 1))

    def some(begin: int) -> list[tuple[bytes, int]]:
        return [(b"x", START + at) for at in range(begin, begin + 3)]

    open_transaction(servers, "peeked", some(0), "peeked").commit_transaction(30)  # offsets 0 to 2, and a marker at 3
    open_transaction(servers, "peeked", some(10), "peeked").abort_transaction(30)  # 4 to 6, 7
    open_transaction(servers, "peeked", some(20), "peeked").commit_transaction(30)  # 8 to 10, 11
    # A commit is answered before its marker is there.
    deadline = time.monotonic() + 30
    while (ends := cluster.latest([one, two])) != {one: 12, two: 0}:
        assert time.monotonic() < deadline, ends
        time.sleep(0.05)
    for begin, found in (
        (0, Stamp(0, START)),
        (2, Stamp(2, START + 2)),
        (3, Stamp(8, START + 20)),
        (11, None),
    ):
        assert peeking.next_records({one: begin, two: 0}, ends, None) == {one: found, two: None}
    assert peeking.next_records({one: 3}, {one: 8}, None) == {one: None}
    stamps = [(0, START), (1, START + 1), (2, START + 2), (8, START + 20)]
    assert peeking.stamps({one: 0}, {one: 9}, None) == {one: stamps}
    # The broker answers with the marker at 3, and reading begins behind it.
    claimed = cluster.first_at([one], START + 21)[one]
    assert claimed is not None
    assert claimed[0] == 3
    assert first_records(cluster, peeking, [one, two], START + 21, None) == {one: (9, START + 21), two: None}


@pytest.mark.kafka
def test_stamps_that_are_not_believed_are_passed_over(broker: Broker, cluster: Cluster, peeking: RecordLookup) -> None:
    one: Partition = ("peeked-far", 0)
    stamps = [START, LATER, LATER, START + 5, LATER]
    write(make(broker, one[0]), one[0], [Written(b"x", time=stamp) for stamp in stamps])
    ends = cluster.latest([one])
    for begin, found in ((1, Stamp(3, START + 5)), (4, None)):
        assert peeking.next_records({one: begin}, ends, LATER - 1) == {one: found}
    assert peeking.next_records({one: 1}, ends, None) == {one: Stamp(1, LATER)}
    assert first_records(cluster, peeking, [one], START + 1, LATER - 1) == {one: (3, START + 5)}
    assert first_records(cluster, peeking, [one], START + 6, LATER - 1) == {one: None}


@pytest.mark.kafka
@pytest.mark.slow
def test_a_broker_that_knows_no_record_of_a_time_is_wrong_of_a_compacted_topic(
    broker: Broker, cluster: Cluster, peeking: RecordLookup
) -> None:
    """What compaction leaves of a producer's last batch keeps the time of the record that is gone."""
    servers, topic, one = broker.bootstrap_servers, "peeked-compacted", ("peeked-compacted", 0)
    create(servers, topic, compacted=True)

    def put(key: bytes, day: int) -> None:
        write(servers, topic, [Written({"customer_id": day}, time=START + day * 86_400_000, key=key)])

    # The last one begins a segment, for it is a day after others; so those are compacted.
    for key, day in ((b"a", 0), (b"x", 10), (b"x", 1), (b"y", 2), (b"last", 20)):
        put(key, day)
    await_compaction(servers, topic, 5)
    time = START + 5 * 86_400_000
    assert cluster.first_at([one], time) == {one: None}
    (found,) = first_records(cluster, peeking, [one], time, None).values()
    assert found is not None
    assert found[1] > time
    times = Times(cluster, peeking, 1, 0)
    ends = cluster.latest([one])
    assert not times.confirms(time, {one: 0}, ends)
    assert times.first_at(time, {one: 0}, ends) == {one: found}
    assert times.confirms(time, {one: 0}, ends)


@pytest.mark.kafka
def test_what_is_gone_and_who_is_silent(broker: Broker, cluster: Cluster, peeking: RecordLookup) -> None:
    one: Partition = ("peeked-gone", 0)
    servers = make(broker, one[0])
    write(servers, one[0], [Written(b"x", time=START + at) for at in range(9)])
    delete_before(servers, one[0], 5)
    assert peeking.next_records({one: 1}, {one: 9}, None) == {one: Stamp(5, START + 5)}
    assert peeking.next_records({one: 1}, {one: 5}, None) == {one: None}
    impatient = Cluster(ClusterOptions(broker.bootstrap_servers, {}, 1_500), WHAT)
    with closing(impatient), closing(RecordLookup(impatient, WHAT)) as looks:
        assert looks.next_records({one: 6}, {one: 9}, None) == {one: Stamp(6, START + 6)}
        with silent(broker), refused(WHAT, "no record", "peeked-gone partition 0", kind=cj.QueryFailedError):
            looks.next_records({one: 7}, {one: 9}, None)


class Counting:
    """A consumer that counts what it has returned."""

    def __init__(self, consumer: Any) -> None:
        self.consumer, self.returned = consumer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.consumer, name)

    def consume(self, *arguments: Any) -> list[Any]:
        messages: list[Any] = self.consumer.consume(*arguments)
        self.returned += len(messages)
        return messages


@pytest.mark.kafka
def test_large_batches_of_some_partitions_do_not_hold_back_the_others(
    broker: Broker, cluster: Cluster, peeking: RecordLookup
) -> None:
    """A fetch that asks for little has a large batch only for its first partition."""
    servers, places = make(broker, "peeked-large", partitions=3), [("peeked-large", number) for number in range(3)]
    for _, number in places:
        records = [Written(b"x" * 100, number, START + at) for at in range(20_000)]
        write(servers, "peeked-large", records, **{"linger.ms": "200", "batch.size": "900000"})
    ends = cluster.latest(places)
    begins = {place: 100 * number for number, place in enumerate(places)}
    peeking.next_records(dict.fromkeys(places, 0), ends, None)
    counting = peeking._consumer = Counting(peeking._consumer)
    found = peeking.next_records(begins, ends, None)
    assert found == {place: Stamp(begin, START + begin) for place, begin in begins.items()}
    assert counting.returned < 20_000
