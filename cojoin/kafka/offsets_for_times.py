"""The offsets of times in partitions, from brokers' answers that single records confirm.

A broker's answer to a search by time can be misleading. It may be the offset of a commit marker, which consumers never
see and whose timestamp is the time of the commit. It may be a record whose timestamp is far ahead, which is the answer
for all later times. For a compacted topic it may be that no such record exists, because the rest of a batch keeps the
time of a record that was compacted away.

So where reading is to end, the next record is looked up, or the last ones where the broker returns none. If they
contradict the answer, the broker's answers for this partition are only a lower bound, and its records are searched by
bisection over few offsets. Timestamps further ahead of the clock than ``max_ahead`` are skipped, and so are those of
-1, which stand for none, and those that no timestamp of Spark's holds, such as nanoseconds.

A lookup costs one fetch, a few milliseconds, for all partitions, and one more for the end of a partition. A batch needs
one where it ends, and one at the end of a partition; where the broker's answers are wrong, some thirty more.

In all arguments times are in epoch milliseconds. ``ends`` are the offsets at which reading or a partition ends, and
``trusted_until`` is the latest timestamp that is trusted; None trusts all.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from cojoin.errors import QueryFailedError
from cojoin.kafka.client import GONE_ERRORS, name_of

with contextlib.suppress(ImportError):  # an optional dependency: ``check_installed`` reports it
    from confluent_kafka import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from cojoin.kafka.client import Cluster, Partition


LAST_MILLIS = ((1 << 63) - 1) // 1000
"""The latest time that a timestamp of Spark's holds, in epoch milliseconds; the earliest is as far before 1970."""

_NO_STAMP = -1

_PIECES = 64
"""The search divides what a batch may hold into about this many pieces."""

_TAIL, _GROWTH, _LONGEST_TAIL = 256, 16, 65_536
"""The number of offsets before an end that are read for its newest record, the factor by which it grows while no record
is found, and its limit."""

_BACK = 1_000
"""The number of earlier records that a search reads backwards until it takes a record for the first one of a time."""

_MOST_KEPT = 10_000


class Stamp(NamedTuple):
    """A record that was looked up; its timestamp is None where many records from there on have no trusted one."""

    offset: int
    timestamp: int | None


def stamp_of(message: Any) -> int | None:
    """Return a message's timestamp in epoch milliseconds; None where it has none, which producers write as -1."""
    kind, stamp = message.timestamp()
    return stamp if kind and stamp != _NO_STAMP else None


def time_of(message: Any) -> int | None:
    """Return a record's timestamp as ``stamp_of`` does; None also for one that no timestamp of Spark's holds."""
    stamp = stamp_of(message)
    return stamp if stamp is not None and abs(stamp) <= LAST_MILLIS else None


class Times:
    """The offsets of times in one input's partitions; it remembers where the broker's answers were wrong.

    The search goes no finer than a small share of ``limit``, the largest number of records of a batch.
    """

    def __init__(self, cluster: Cluster, lookup: RecordLookup, limit: int, max_drift_ms: int) -> None:
        self._cluster, self._lookup, self._drift = cluster, lookup, max_drift_ms
        # What is in the archive needs no lookup: its index was made by reading the records.
        self._is_archived = cluster.archive.is_archived
        self._step = 1 << (max(1, limit // _PIECES).bit_length() - 1)
        self._misleading: set[Partition] = set()
        self._stand = True
        self._kept: dict[Partition, dict[int, Stamp]] = {}
        self._newest: dict[tuple[Partition, int], int | None] = {}
        self._answers: dict[int, dict[Partition, tuple[int, int] | None]] = {}
        """The broker's answers since the batch was begun, by the time that was asked for."""

        self.trusted_until: int | None = None
        """The latest timestamp that is trusted, in epoch milliseconds; None trusts all."""

    def begin_batch(self, trusted_until: int | None) -> None:
        """Begin the search for a batch's end; within it, the broker is asked for each time once.

        Where reading ends must be known by then: what is appended later lies behind it, so it changes no answer.
        """
        self.trusted_until, self._answers = trusted_until, {}

    def first_at(
        self, time: int, begins: Mapping[Partition, int], ends: Mapping[Partition, int]
    ) -> dict[Partition, tuple[int, int] | None]:
        """Return the offset and timestamp of each partition's first record from a time on, or of one soon after it.

        It is None where there is none. Before the offsets of ``begins`` records no longer matter.
        """
        answers = self._answered(begins, time)
        low: dict[Partition, int] = {}
        for partition, answer in answers.items():
            if answer is not None and self.trusted_until is not None and answer[1] > self.trusted_until:
                self._distrust(partition)
            if partition in self._misleading:
                # Even a wrong answer is a lower bound, because all records before it are earlier.
                low[partition] = begins[partition] if answer is None else max(begins[partition], answer[0])
        return answers | self.searched(time, low, ends)

    def _answered(self, partitions: Collection[Partition], time: int) -> dict[Partition, tuple[int, int] | None]:
        known = self._answers.setdefault(time, {})
        missing = [each for each in partitions if each not in known]
        if missing:
            known |= self._cluster.first_at(missing, time)
        return {each: known[each] for each in partitions}

    def confirms(self, time: int, positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> bool:
        """Check the answers of ``first_at`` for a time against the records.

        Return False if an answer since the last call, for this time or another, was wrong by more than the drift; the
        caller then asks for all of them again.
        """
        claims = self.first_at(time, positions, ends)
        trusted = [
            partition
            for partition in claims
            if partition not in self._misleading and positions[partition] < ends[partition]
        ]
        silent = [partition for partition in trusted if claims[partition] is None]
        named = {partition: claim for partition in trusted if (claim := claims[partition]) is not None}
        for partition in self.contradicted(time, dict.fromkeys(silent, 0), ends):
            self._distrust(partition)
        places = {partition: max(positions[partition], offset) for partition, (offset, _) in named.items()}
        for partition, record in self._next(self._unread(places, ends), ends).items():
            _, stamp = named[partition]
            if record is None or record.timestamp is None or record.timestamp < stamp - self._drift:
                self._distrust(partition)
        stand, self._stand = self._stand, True
        return stand

    def contradicted(
        self, time: int, begins: Mapping[Partition, int], ends: Mapping[Partition, int]
    ) -> list[Partition]:
        """Return the partitions whose last records contradict the answer that no record is of a time or later."""
        on_brokers = {each: begin for each, begin in begins.items() if not self._is_archived(each, ends[each] - 1)}
        newest = self.newest_of(on_brokers, ends)
        return [each for each, stamp in newest.items() if stamp is not None and stamp >= time]

    def next_stamp(self, time: int, positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> int | None:
        """Return the smallest of ``time`` and the next records' timestamps; None where one can't be known."""
        seen = [each for each in self._next(self._unread(positions, ends), ends).values() if each is not None]
        stamps = [each.timestamp for each in seen if each.timestamp is not None]
        return min([time, *stamps]) if len(stamps) == len(seen) else None

    def newest_of(self, begins: Mapping[Partition, int], ends: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """Return the largest timestamp near each partition's end; None where it is empty."""
        if len(self._newest) > _MOST_KEPT:
            self._newest.clear()
        wanted = {
            partition: ends[partition] for partition in begins if (partition, ends[partition]) not in self._newest
        }
        archived = {
            partition
            for partition in wanted
            if wanted[partition] > begins[partition] and self._is_archived(partition, wanted[partition] - 1)
        }
        for partition in archived:
            last = self._cluster.archive.archived[partition].last
            trusted = last if self.trusted_until is None else min(last, self.trusted_until)
            self._newest[partition, wanted[partition]] = trusted
        left = {partition: end for partition, end in wanted.items() if partition not in archived}
        width = _TAIL
        while left:
            tails = {partition: max(begins[partition], end - width) for partition, end in left.items()}
            some = {partition: at for partition, at in tails.items() if at < left[partition]}
            tail_stamps = self._lookup.stamps(some, left, self.trusted_until) if some else {}
            for partition, tail in tails.items():
                stamps = [stamp for _, stamp in tail_stamps.get(partition, ())]
                if stamps or tail <= begins[partition] or width >= _LONGEST_TAIL:
                    self._newest[partition, left.pop(partition)] = max(stamps, default=None)
            width *= _GROWTH
        return {partition: self._newest[partition, ends[partition]] for partition in begins}

    def newest(self, begins: Mapping[Partition, int], ends: Mapping[Partition, int]) -> int | None:
        """Return the largest timestamp near the partitions' ends; None where all are empty."""
        stamps = self.newest_of(begins, ends).values()
        return max((each for each in stamps if each is not None), default=None)

    def searched(
        self, time: int, low: Mapping[Partition, int], ends: Mapping[Partition, int]
    ) -> dict[Partition, tuple[int, int] | None]:
        """Return the result of ``first_at``, found by bisection in all partitions at once.

        Before the offsets of ``low`` no record is of the time or later. The offsets that are looked up do not depend on
        where a search begins.
        """
        records: dict[Partition, tuple[int, int] | None] = {}
        between: dict[Partition, tuple[int, int]] = {}
        for partition, record in self._next(
            {partition: at for partition, at in low.items() if at < ends[partition]}, ends
        ).items():
            if record is None or record.timestamp is None:
                records[partition] = None
            elif record.timestamp >= time:
                records[partition] = (max(low[partition], record.offset), record.timestamp)
            else:
                records[partition], between[partition] = None, (record.offset, ends[partition])
        records |= {partition: None for partition in low if partition not in records}
        while True:
            halves = {
                partition: at for partition, span in between.items() if (at := _half(*span, self._step)) is not None
            }
            if not halves:
                return records
            between = {partition: between[partition] for partition in halves}
            for partition, record in self._next(halves, ends).items():
                begin, end = between[partition]
                if record is not None and record.timestamp is not None and record.timestamp < time:
                    between[partition] = (max(halves[partition], min(record.offset, end - 1)), end)
                else:
                    between[partition] = (begin, halves[partition])
                    if record is not None:
                        # The record's own offset: others may lie before it, of times too far ahead.
                        is_known = record.timestamp is not None
                        at = record.offset if is_known else halves[partition]
                        records[partition] = at, time if record.timestamp is None else record.timestamp

    def _next(self, offsets: Mapping[Partition, int], ends: Mapping[Partition, int]) -> dict[Partition, Stamp | None]:
        """Return the next record from each offset on; each is looked up once."""
        records: dict[Partition, Stamp | None] = {}
        for partition, offset in offsets.items():
            kept = self._kept.setdefault(partition, {})
            if len(kept) > _MOST_KEPT:
                kept.clear()
            if offset in kept and kept[offset].offset >= ends[partition]:
                records[partition] = None
            elif offset in kept and kept[offset].timestamp is not None:
                records[partition] = kept[offset]
        wanted = {partition: offset for partition, offset in offsets.items() if partition not in records}
        if wanted:
            for partition, record in self._lookup.next_records(wanted, ends, self.trusted_until).items():
                records[partition] = record
                if record is None:
                    self._kept[partition][wanted[partition]] = Stamp(ends[partition], None)
                elif record.timestamp is not None:  # a timestamp that is not trusted now may be later
                    self._kept[partition][wanted[partition]] = record
        return records

    def _distrust(self, partition: Partition) -> None:
        """Remember that the broker's answers for a partition are wrong."""
        self._stand = self._stand and partition in self._misleading
        self._misleading.add(partition)

    def _unread(self, offsets: Mapping[Partition, int], ends: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the offsets at which the brokers have records to look up."""
        return {each: at for each, at in offsets.items() if at < ends[each] and not self._is_archived(each, at)}


def first_records(
    cluster: Cluster, lookup: RecordLookup, partitions: Iterable[Partition], time: int, trusted_until: int | None
) -> dict[Partition, tuple[int, int] | None]:
    """Return the offset and timestamp of each partition's first record, by offset, of a time or later, or None."""
    claimed = cluster.first_at(partitions, time)
    times = Times(cluster, lookup, 1, 0)
    times.trusted_until = trusted_until
    ends = cluster.latest(claimed)
    silent = [partition for partition, at in claimed.items() if at is None]
    begins = cluster.earliest(silent) if silent else {}
    # An answer is a lower bound; the answer that there is none is wrong if the last records contradict it.
    low = {
        partition: at[0]
        for partition, at in claimed.items()
        if at is not None and not cluster.archive.is_archived(partition, at[0])
    }
    low |= {partition: begins[partition] for partition in times.contradicted(time, begins, ends)}
    records = claimed | times.searched(time, low, ends)
    for partition, begin in low.items():
        end = ends[partition] if (answer := records[partition]) is None else answer[0]
        records[partition] = _first_before(lookup, partition, (begin, end), time, trusted_until) or records[partition]
    return records


def _first_before(
    lookup: RecordLookup, partition: Partition, span: tuple[int, int], time: int, trusted_until: int | None
) -> tuple[int, int] | None:
    """Return a range's first record of a time or later, with enough earlier ones before it to allow for disorder."""
    (begin, end), first = span, None
    seen, width = 0, _BACK
    while begin < end and seen < _BACK:
        some = max(begin, end - width)
        stamps = lookup.stamps({partition: some}, {partition: end}, trusted_until)[partition]
        earlier = next(((offset, stamp) for offset, stamp in stamps if stamp >= time), None)
        # Offsets of transaction markers and of compacted records do not count as earlier records.
        seen = seen + len(stamps) if earlier is None else sum(offset < earlier[0] for offset, _ in stamps)
        first, end, width = earlier or first, some, 2 * width
    return first


def _half(begin: int, end: int, step: int) -> int | None:
    """Return the offset between two that is a multiple of the largest power of two; None if that is below ``step``.

    >>> [_half(begin, 2048, 16) for begin in (0, 1024, 1536, 2000, 2031, 2032)]
    [1024, 1536, 1792, 2016, 2032, None]
    """
    last = end - 1
    if last <= begin:
        return None
    shift = (begin ^ last).bit_length() - 1
    return None if (1 << shift) < step else (last >> shift) << shift


_LITTLE = {
    "fetch.message.max.bytes": "16384",
    "fetch.wait.max.ms": "10",
    "fetch.queue.backoff.ms": "1",
    "queued.max.messages.kbytes": "1024",
}
_AT_ONCE, _SOON_SECONDS, _WAIT_SECONDS = 500, 0.02, 0.2

_MOST_PASSED = 10_000
"""The number of untrusted records that a lookup skips before it gives up."""


class RecordLookup:
    """Lookups of single records of a cluster, for one thread, by one consumer that fetches little at once.

    It skips transaction markers and records of aborted transactions, which consumers never see. A broker that does not
    answer for longer than the patience is a QueryFailedError.
    """

    def __init__(self, cluster: Cluster, label: str) -> None:
        self._cluster, self._label = cluster, label
        self._consumer: Any = None

    def next_records(
        self, offsets: Mapping[Partition, int], ends: Mapping[Partition, int], trusted_until: int | None
    ) -> dict[Partition, Stamp | None]:
        """Return each partition's first trusted record at or after an offset; one without a time where it gave up."""
        records: dict[Partition, Stamp | None] = {}
        passed = dict.fromkeys(offsets, 0)

        def take(partition: Partition, message: Any) -> bool:
            stamp = time_of(message)
            if stamp is not None and (trusted_until is None or stamp <= trusted_until):
                records[partition] = Stamp(message.offset(), stamp)
                return True
            passed[partition] += 1
            if passed[partition] < _MOST_PASSED:
                return False
            records[partition] = Stamp(offsets[partition], None)
            return True

        self._read(offsets, ends, take, one_each=True)
        return {each: records.get(each) for each in offsets}

    def stamps(
        self, begins: Mapping[Partition, int], ends: Mapping[Partition, int], trusted_until: int | None
    ) -> dict[Partition, list[tuple[int, int]]]:
        """Return the offsets and timestamps of all trusted records in a range of each partition."""
        records: dict[Partition, list[tuple[int, int]]] = {each: [] for each in begins}

        def take(partition: Partition, message: Any) -> bool:
            stamp = time_of(message)
            if stamp is not None and (trusted_until is None or stamp <= trusted_until):
                records[partition].append((message.offset(), stamp))
            return False

        self._read(begins, ends, take, one_each=False)
        return records

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None

    def _read(
        self,
        begins: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        take: Callable[[Partition, Any], bool],
        *,
        one_each: bool,
    ) -> None:
        """Pass records to `take`, each partition's in order, until it has enough or the range ends."""
        left = {each: begin for each, begin in begins.items() if begin < ends[each]}
        if not left:
            return
        if self._consumer is None:
            self._consumer = self._cluster.consumer(_LITTLE)
        self._consumer.assign([TopicPartition(*each, begin) for each, begin in left.items()])
        answered_at = time.monotonic()
        try:
            while left:
                # `consume` waits for this many messages: each partition sends at least one record, or reports its end.
                amount = (len(left), _WAIT_SECONDS) if one_each else (_AT_ONCE, _SOON_SECONDS)
                messages = self._consumer.consume(*amount)
                if messages:
                    answered_at = time.monotonic()
                else:
                    expected = f"one of {name_of(next(iter(left)))}"
                    self._cluster.check_patience(time.monotonic() - answered_at, expected)
                wanted = set(left)
                for message in messages:
                    self._pass_on(message, left, ends, take)
                done = wanted - left.keys()
                if done and left:
                    # A broker sends a batch larger than the little asked for only to the first partition of a fetch,
                    # so one that is done would keep the others from theirs until it was read to its end.
                    self._consumer.incremental_unassign([TopicPartition(*each) for each in done])
        finally:
            self._consumer.unassign()

    def _pass_on(
        self,
        message: Any,
        left: dict[Partition, int],
        ends: Mapping[Partition, int],
        take: Callable[[Partition, Any], bool],
    ) -> None:
        """Pass a record to `take`; a partition that needs no more is not left."""
        partition = (message.topic(), message.partition())
        if partition not in left:
            return
        if message.error() is not None:
            self._skip_event(message, left, ends[partition])
        # Messages that are left over from an earlier lookup are ignored.
        elif message.offset() >= left[partition]:
            has_enough = message.offset() >= ends[partition] or take(partition, message)
            if has_enough or message.offset() >= ends[partition] - 1:
                del left[partition]

    def _skip_event(self, message: Any, left: dict[Partition, int], end: int) -> None:
        """Continue after a message that is not a record: a partition's end, offsets that no longer exist, an error."""
        error, partition = message.error(), (message.topic(), message.partition())
        if error.name() == "_PARTITION_EOF":
            if message.offset() >= left[partition]:
                del left[partition]
        elif error.name() in GONE_ERRORS:
            begin = max(left.pop(partition) + 1, self._cluster.log_starts([partition])[partition])
            if begin < end:
                left[partition] = begin
                self._consumer.incremental_unassign([TopicPartition(*partition)])
                self._consumer.incremental_assign([TopicPartition(*partition, begin)])
        elif not self._cluster.is_passing(error):
            msg = f"{self._label}: {name_of(partition)}: {self._cluster.text(error)} ({error.name()})"
            raise QueryFailedError(msg)
