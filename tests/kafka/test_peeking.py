"""Single records of real topics: markers, aborted ones, ends, records that are gone, brokers that do not answer."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.kafka.client import Cluster, ClusterOptions
from cojoin.kafka.offsets_for_times import RecordLookup, Stamp, Times, first_records
from tests.kafka.hard_topics import await_compaction, create, open_transaction
from tests.kafka.replayed import START, Written, delete_before, make, write
from tests.kafka.test_client import WHAT
from tests.kafka.test_connection import silent
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.kafka.client import Partition
    from tests.servers.broker import Broker

pytestmark = pytest.mark.kafka

FUTURE = START + 10_000_000_000


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


def test_stamps_that_are_not_believed_are_passed_over(broker: Broker, cluster: Cluster, peeking: RecordLookup) -> None:
    one: Partition = ("peeked-far", 0)
    stamps = [START, FUTURE, FUTURE, START + 5, FUTURE]
    write(make(broker, one[0]), one[0], [Written(b"x", time=stamp) for stamp in stamps])
    ends = cluster.latest([one])
    for begin, found in ((1, Stamp(3, START + 5)), (4, None)):
        assert peeking.next_records({one: begin}, ends, FUTURE - 1) == {one: found}
    assert peeking.next_records({one: 1}, ends, None) == {one: Stamp(1, FUTURE)}
    assert first_records(cluster, peeking, [one], START + 1, FUTURE - 1) == {one: (3, START + 5)}
    assert first_records(cluster, peeking, [one], START + 6, FUTURE - 1) == {one: None}


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
