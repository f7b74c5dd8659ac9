"""The range of a Kafka source: ``from_`` and ``to``, checked and then resolved into offsets.

It keeps a point (``points``) for all topics, for a topic, or for one partition. Without any, the range begins at the
earliest offset and ends at the run's own end.

A beginning is inclusive, an end exclusive. A time is compared with record timestamps. A partition begins at its first
record (by offset) at or after the time, and ends before such a record; where it has none, its end offset counts. So
where timestamps are out of order, earlier ones after such a record belong to what follows it. Transaction markers do
not count as records, and a record whose timestamp is further ahead of the clock than ``max_ahead`` has no time.

It costs one round trip to the cluster for each kind of point and each time, and a lookup of the records found.
"""

from __future__ import annotations

import time as clock
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.kafka.peeking import Peeking
from cojoin.kafka.points import ALL, EARLIEST, LATEST, Point, name_of, nearest_point, parsed_points, time_of_all
from cojoin.kafka.times import LAST_MILLIS, Times, first_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cojoin.kafka.client import Cluster, Partition
    from cojoin.kafka.points import Bound, Scope

__all__ = ["Range", "lost"]

# No partition holds so many records, so a larger offset is probably meant as epoch milliseconds, a time after 1973.
_LIKE_A_TIME = 100_000_000_000


@dataclass(frozen=True)
class Range:
    """Where reading begins and ends, made by ``Range.of``. It can be pickled.

    Attributes:
        from_: The points at which reading begins, by scope: a topic and a partition's number, each None for all.
        to: The points at which reading ends, in the same form; None where no ``to`` was given.
        what: What is read, for messages, such as ``"input 'trades'"``.
        max_ahead_ms: How far a record's timestamp may be ahead of the clock and still be trusted, in milliseconds; None
            trusts all that a timestamp of Spark's holds.
    """

    from_: Mapping[Scope, Point]
    to: Mapping[Scope, Point] | None
    what: str
    max_ahead_ms: int | None = None

    @classmethod
    def of(cls, from_: Bound = "earliest", to: Bound | None = None, *, what: str) -> Range:
        """Return the range that a user wrote, checked as far as possible without a broker.

        Args:
            from_: The first record that is read. What a dict does not name begins at the earliest offset.
            to: The first record that is no longer read. For None, and for what a dict does not name, a bounded run ends
                at what is there when it starts, and a live run does not end.
            what: What is read, for messages.

        Raises:
            ConfigurationError: A type or a word is wrong, a time does not parse or has no zone, or ``from_`` is after
                ``to``.

        >>> Range.of("2026-01-05", "2026-01-26", what="input 'trades'").from_ms
        1767571200000
        """
        begins = parsed_points(from_, f"{what}: from_")
        ends = None if to is None else parsed_points(to, f"{what}: to")
        made = cls(begins, ends, what)
        made._check_order()
        return made

    @property
    def from_ms(self) -> int | None:
        """The time at which all partitions begin, in epoch milliseconds; None where there is no such time."""
        return time_of_all(self.from_)

    @property
    def to_ms(self) -> int | None:
        """The time at which all partitions end, in epoch milliseconds; None where there is no such time."""
        return None if self.to is None else time_of_all(self.to)

    @property
    def is_bounded(self) -> bool:
        """Whether a ``to`` was given."""
        return self.to is not None

    def resolve(
        self, cluster: Cluster, partitions: Iterable[Partition]
    ) -> tuple[dict[Partition, int], dict[Partition, int] | None]:
        """Return ``begin`` and ``end``, adjusted so that no partition ends before it begins.

        Raises:
            ConfigurationError: ``begin`` or ``end`` raises it; a partition begins after its end, where both are offsets
                or times; or all records before an end offset are gone.
        """
        read = list(partitions)
        begins = self.begin(cluster, read)
        ends = self.end(cluster, read)
        wrong = []
        for each, end in (ends or {}).items():
            asked, until = self._from(each), self._to(each) or LATEST
            if begins[each] > end and asked.kind == "earliest" and until.kind == "offset":
                wrong.append(f"{name_of(each)}: offsets before {begins[each]} are gone, and it is read up to {until}")
            elif begins[each] > end and {asked.kind, until.kind} <= {"offset", "time"}:
                spelled = f"{name_of(each)}: it begins at offset {begins[each]} (from_: {asked}) and ends before offset"
                wrong.append(f"{spelled} {end} (to: {until})")
        self._refuse("from_ is after to", wrong)
        return begins, None if ends is None else {each: max(begins[each], end) for each, end in ends.items()}

    def begin(
        self, cluster: Cluster, partitions: Iterable[Partition], *, skip_lost: bool = False
    ) -> dict[Partition, int]:
        """Return each partition's first offset to be read.

        Args:
            cluster: The cluster that is asked.
            partitions: The partitions that are read.
            skip_lost: Whether to begin at the earliest offset where the given one no longer exists.

        Raises:
            ConfigurationError: A dict names a topic or partition that is not read; or an offset no longer exists, or is
                beyond the end.
        """
        read = list(partitions)
        self._check_scopes("from_", self.from_, read)
        wanted = {each: self._from(each) for each in read}
        offsets = self._resolved(cluster, wanted)
        asked = {each: point.value for each, point in wanted.items() if point.kind == "offset"}
        if asked:
            first = cluster.earliest(asked)
            if not skip_lost:
                self._refuse("from_ is no longer there; begin later, or at 'earliest'", lost(asked, first))
            self._check_ends("from_", cluster, asked)
            offsets |= {each: max(offset, first[each]) for each, offset in asked.items()}
        return {each: offsets[each] for each in read}

    def end(self, cluster: Cluster, partitions: Iterable[Partition]) -> dict[Partition, int] | None:
        """Return each partition's first offset that is no longer read.

        Args:
            cluster: The cluster that is asked; ``"latest"`` is the end at this moment.
            partitions: The partitions that are read.

        Returns:
            The offsets; for a partition without an end of its own, the end at this moment. None where no ``to`` was
            given.

        Raises:
            ConfigurationError: A dict names a topic or partition that is not read; or an offset is beyond the current
                end, so that the run might never reach it.
        """
        if self.to is None:
            return None
        read = list(partitions)
        self._check_scopes("to", self.to, read)
        wanted = {each: self._to(each) or LATEST for each in read}
        offsets = self._resolved(cluster, wanted)
        asked = {each: point.value for each, point in wanted.items() if point.kind == "offset"}
        if asked:
            self._check_ends("to", cluster, asked)
        return {each: (offsets | asked)[each] for each in wanted}

    @property
    def trusted_until(self) -> int:
        """The latest record timestamp that is trusted now, in epoch milliseconds."""
        ahead = LAST_MILLIS if self.max_ahead_ms is None else int(1000 * clock.time()) + self.max_ahead_ms
        return min(ahead, LAST_MILLIS)

    def _resolved(self, cluster: Cluster, wanted: Mapping[Partition, Point]) -> dict[Partition, int]:
        """Return the offsets of all points that are not offsets, asked together by kind."""
        found: dict[Partition, int] = {}
        ask: dict[str, Callable[[list[Partition]], dict[Partition, int]]]
        ask = {"earliest": cluster.earliest, "latest": cluster.latest, "time": cluster.latest}
        for kind, question in ask.items():
            of_kind = [each for each, point in wanted.items() if point.kind == kind]
            # For a time the end is asked first, so that a record that is written meanwhile is not skipped.
            found |= question(of_kind) if of_kind else {}
        times = sorted({point.value for point in wanted.values() if point.kind == "time"})
        peeking, trusted_until = Peeking(cluster, self.what), self.trusted_until
        try:
            for moment in times:
                of_time = [each for each, point in wanted.items() if point == Point("time", moment)]
                first = first_records(cluster, peeking, of_time, moment, trusted_until)
                found |= {each: record[0] for each, record in first.items() if record is not None}
        finally:
            peeking.close()
        return found

    def span(self, cluster: Cluster, partitions: Iterable[Partition]) -> tuple[int, int] | None:
        """Return the first and last timestamp at the moment, in epoch milliseconds; None where there is no record."""
        read, peeking = list(partitions), Peeking(cluster, self.what)
        try:
            found = first_records(cluster, peeking, read, self.from_ms or 0, self.trusted_until)
            times = Times(cluster, peeking, 1, 0)
            times.trusted_until = self.trusted_until
            last = times.newest(cluster.earliest(read), cluster.latest(read))
        finally:
            peeking.close()
        first = [each[1] for each in found.values() if each is not None]
        if not first or last is None:
            return None
        return min(first), last if self.to_ms is None else min(self.to_ms, last)

    def _from(self, scope: Scope) -> Point:
        return nearest_point(self.from_, scope) or EARLIEST

    def _to(self, scope: Scope) -> Point | None:
        return None if self.to is None else nearest_point(self.to, scope)

    def _check_order(self) -> None:
        for scope in sorted({ALL, *self.from_, *(self.to or ())}, key=str):
            begin, end = self._from(scope), self._to(scope)
            if end is None:
                continue
            where = self.what + (f": {name_of(scope)}" if scope != ALL else "")
            if begin.kind == end.kind and begin.value > end.value:
                msg = f"{where}: from_ is after to: expected a beginning before the end, got {begin} and {end}"
                raise ConfigurationError(msg)
            if end.kind == "earliest" or begin.kind == end.kind == "latest":
                msg = f"{where}: nothing is between from_={str(begin)!r} and to={str(end)!r}: expected a later end"
                raise ConfigurationError(msg)

    def _check_scopes(self, argument: str, points: Mapping[Scope, Point], read: list[Partition]) -> None:
        topics = sorted({topic for topic, _ in read})
        for topic, number in points:
            if topic is not None and topic not in topics:
                near = did_you_mean(topic, topics)
                msg = f"{self.what}: {argument}: topic {topic!r} is not among those that are read{near}"
                raise ConfigurationError(msg)
            if topic is not None and number is not None and (topic, number) not in read:
                there = sorted(partition for name, partition in read if name == topic)
                msg = f"{self.what}: {argument}: partition {number} of topic {topic!r} is not among those read: {there}"
                raise ConfigurationError(msg)

    def _check_ends(self, argument: str, cluster: Cluster, asked: Mapping[Partition, int]) -> None:
        ends = cluster.latest(asked)
        beyond = [each for each, offset in asked.items() if offset > ends[each]]
        wrong = [f"{name_of(each)}: got offset {asked[each]}, the end is {ends[each]}" for each in beyond]
        if any(asked[each] > _LIKE_A_TIME for each in beyond):
            wrong.append("a time is written as a text or a datetime, not as a number")
        self._refuse(f"{argument} is beyond the end", wrong)

    def _refuse(self, why: str, wrong: list[str]) -> None:
        if wrong:
            msg = f"{self.what}: {why}: {'; '.join(wrong)}"
            raise ConfigurationError(msg)


def lost(wanted: Mapping[Partition, int], earliest: Mapping[Partition, int]) -> list[str]:
    """Return a text for each partition in which records that were to be read next no longer exist.

    Args:
        wanted: The next offset to be read of each partition.
        earliest: The first offset that still exists.

    >>> lost({("trades", 0): 10, ("trades", 1): 7}, {("trades", 0): 100, ("trades", 1): 0})
    ['topic trades partition 0: offsets 10 to 99 are gone (up to 90 records); the earliest is 100']
    """
    return [
        f"{name_of(each)}: offsets {offset} to {earliest[each] - 1} are gone "
        f"(up to {earliest[each] - offset} records); the earliest is {earliest[each]}"
        for each, offset in wanted.items()
        if offset < earliest[each]
    ]
