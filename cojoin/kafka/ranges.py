"""The range of a Kafka source: ``from_`` and ``to``, checked without a broker and then resolved into offsets.

A *point* is earliest, latest, an offset or a time, for all topics, for a topic, or for one partition; the most specific
one counts. Without any, the range begins at the earliest offset and ends at the run's own end. A time without a zone is
in UTC, and is rounded up to Kafka's milliseconds.

A beginning is inclusive, an end exclusive. A time is compared with record timestamps. A partition begins at its first
record (by offset) at or after the time, and ends before such a record; where it has none, its end offset counts. So
where timestamps are out of order, earlier ones after such a record belong to what follows it. Transaction markers do
not count as records, and a record whose timestamp is further ahead of the clock than ``max_ahead`` has no time.

It costs one round trip to the cluster for each kind of point and each time, and a lookup of the records.
"""

from __future__ import annotations

import re
import time as clock
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.kafka.client import name_of
from cojoin.kafka.offsets_for_times import LAST_MILLIS, RecordLookup, Times, first_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cojoin.kafka.client import Cluster, Partition


Moment: TypeAlias = str | int | datetime
Bound: TypeAlias = Moment | Mapping[str, Moment | Mapping[int, Moment]]
"""``"earliest"``, ``"latest"``, a time (ISO text, in UTC where it has no zone, or an aware ``datetime``) or an offset;
or a dict by topic of these, or of dicts of these by partition number."""

_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:[.,](\d{1,6}))?)?\s?(Z|[+-]\d\d:?\d\d)?)?", re.IGNORECASE
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EXPECTED = "expected 'earliest', 'latest', a time such as '2026-01-05T10:00:00Z', or an offset as an int"


@dataclass(frozen=True)
class Point:
    """A place in a partition; ``value`` is the offset, or the time in epoch milliseconds, and 0 for the other kinds."""

    kind: Literal["earliest", "latest", "offset", "time"]
    value: int = 0

    def __str__(self) -> str:
        if self.kind == "time":
            moment = _EPOCH + timedelta(milliseconds=self.value)
            return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z").replace(".000Z", "Z")
        return f"offset {self.value}" if self.kind == "offset" else self.kind


EARLIEST, LATEST = Point("earliest"), Point("latest")

Scope: TypeAlias = tuple[str | None, int | None]
"""A topic and a partition's number, each None for all."""

ALL: Scope = (None, None)


def parsed_points(bound: Any, label: str) -> dict[Scope, Point]:
    """Return the points that a user wrote, by scope; ``bound`` is a ``Bound``, as far as the user is right.

    >>> parsed_points({"trades": {0: 7, 1: "2026-01-05"}}, "from_")
    {('trades', 0): Point(kind='offset', value=7), ('trades', 1): Point(kind='time', value=1767571200000)}
    """
    if not isinstance(bound, Mapping):
        return {ALL: _point(bound, label)}
    points: dict[Scope, Point] = {}
    for topic, of_topic in bound.items():
        if not isinstance(topic, str) or not topic:
            msg = f"{label}: expected the names of topics as keys, got {topic!r}"
            raise ConfigurationError(msg)
        if not isinstance(of_topic, Mapping):
            points[topic, None] = _point(of_topic, f"{label}: topic {topic}")
            continue
        for number, moment in of_topic.items():
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                msg = f"{label}: topic {topic}: expected the numbers of partitions as keys, got {number!r}"
                raise ConfigurationError(msg)
            points[topic, number] = _point(moment, f"{label}: {name_of((topic, number))}")
    return points


def _point(moment: Any, label: str) -> Point:
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:
            msg = f"{label}: expected a datetime with a zone, such as tzinfo=timezone.utc, got {moment!r}"
            raise ConfigurationError(msg)
        return Point("time", _milliseconds(moment))
    if isinstance(moment, int) and not isinstance(moment, bool):
        if moment < 0:
            msg = f"{label}: expected an offset of zero or more, got {moment}"
            raise ConfigurationError(msg)
        return Point("offset", moment)
    if not isinstance(moment, str):
        msg = f"{label}: {_EXPECTED}; got {moment!r}"
        raise ConfigurationError(msg)
    if moment in {"earliest", "latest"}:
        return EARLIEST if moment == "earliest" else LATEST
    return Point("time", _milliseconds(_parsed(moment, label)))


def _parsed(text: str, label: str) -> datetime:
    """Read ISO text in the same way on every version of Python; ``fromisoformat`` accepts different forms."""
    matched = _ISO.fullmatch(text.strip())
    if matched is None:
        near = did_you_mean(text, ["earliest", "latest"]) if text[:1].isalpha() else ""
        msg = f"{label}: {_EXPECTED}; got {text!r}{near}"
        raise ConfigurationError(msg)
    date, clock, seconds, fraction, zone = matched.groups()
    zone = "+00:00" if zone in {None, "Z", "z"} else f"{zone[:3]}:{zone[-2:]}"
    try:
        return datetime.fromisoformat(
            f"{date}T{clock or '00:00'}:{seconds or '00'}.{(fraction or '').ljust(6, '0')}{zone}"
        )
    except ValueError as error:
        msg = f"{label}: expected a time of the calendar, got {text!r}: {error}"
        raise ConfigurationError(msg) from error


def _milliseconds(moment: datetime) -> int:
    """Return epoch milliseconds, rounded up: a record's timestamp is at or after both times, or before both."""
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def nearest_point(points: Mapping[Scope, Point], scope: Scope) -> Point | None:
    """Return the most specific point for a scope; None where there is none."""
    topic, _ = scope
    return next((points[each] for each in (scope, (topic, None), ALL) if each in points), None)


def _time_of_all(points: Mapping[Scope, Point]) -> int | None:
    """Return the time that holds for all topics, in epoch milliseconds; None where there is none."""
    point = points.get(ALL)
    return point.value if point is not None and point.kind == "time" else None


_SHOWN = 5
"""The number of partitions that a warning names."""

# No partition holds so many records, so a larger offset is probably meant as epoch milliseconds, a time after 1973.
_LIKE_A_TIME = 100_000_000_000


@dataclass(frozen=True)
class Range:
    """The range that is read, made by ``Range.of``. It can be pickled.

    ``to`` is None where there is none. A record's timestamp is trusted up to ``max_ahead_ms`` milliseconds ahead of the
    clock; None trusts all that a timestamp of Spark's holds.
    """

    from_: Mapping[Scope, Point]
    to: Mapping[Scope, Point] | None
    label: str
    max_ahead_ms: int | None = None

    @classmethod
    def of(cls, from_: Bound = "earliest", to: Bound | None = None, *, label: str) -> Range:
        """Return the range that a user wrote, checked as far as possible without a broker.

        Partitions that a dict leaves out begin at the earliest offset. Without an end, a bounded run ends at the
        records that exist when it starts, and a live run does not end.

        >>> Range.of("2026-01-05", "2026-01-26", label="input 'trades'").from_ms
        1767571200000
        """
        begins = parsed_points(from_, f"{label}: from_")
        ends = None if to is None else parsed_points(to, f"{label}: to")
        made = cls(begins, ends, label)
        made._check_order()
        return made

    @property
    def from_ms(self) -> int | None:
        """The time at which all partitions begin, in epoch milliseconds; None where there is none."""
        return _time_of_all(self.from_)

    @property
    def to_ms(self) -> int | None:
        """The time at which all partitions end, in epoch milliseconds; None where there is none."""
        return None if self.to is None else _time_of_all(self.to)

    @property
    def is_bounded(self) -> bool:
        """Whether the user set a ``to``."""
        return self.to is not None

    def resolve(
        self, cluster: Cluster, partitions: Iterable[Partition]
    ) -> tuple[dict[Partition, int], dict[Partition, int] | None]:
        """Return ``begin`` and ``end``, adjusted so that no partition ends before it begins."""
        read = list(partitions)
        begins = self.begin(cluster, read)
        ends = self.end(cluster, read)
        wrong = []
        for partition, end in (ends or {}).items():
            first, since, until = begins[partition], self._from(partition), self._to(partition) or LATEST
            if first > end and since.kind == "earliest" and until.kind == "offset":
                wrong.append(f"{name_of(partition)}: offsets before {first} are gone, and it is read up to {until}")
            elif first > end and {since.kind, until.kind} <= {"offset", "time"}:
                wrong.append(
                    f"{name_of(partition)}: it begins at offset {first} (from_: {since}) and ends before offset {end} "
                    f"(to: {until})"
                )
        self._refuse("from_ is after to", wrong)
        return begins, None if ends is None else {
            partition: max(begins[partition], end) for partition, end in ends.items()
        }

    def begin(
        self, cluster: Cluster, partitions: Iterable[Partition], *, skip_lost: bool = False
    ) -> dict[Partition, int]:
        """Return each partition's first offset to be read; the earliest one where it is gone, if ``skip_lost``.

        A dict that names what is not read is refused, and so is an offset beyond the end, or that no longer exists.
        """
        read = list(partitions)
        self._check_scopes("from_", self.from_, read)
        wanted = {each: self._from(each) for each in read}
        offsets = self._resolved(cluster, wanted)
        fixed = {each: point.value for each, point in wanted.items() if point.kind == "offset"}
        if fixed:
            first = cluster.earliest(fixed)
            if not skip_lost:
                self._refuse("the records at from_ no longer exist; begin later, or at 'earliest'", lost(fixed, first))
            self._check_ends("from_", cluster, fixed)
            offsets |= {each: max(offset, first[each]) for each, offset in fixed.items()}
        return {each: offsets[each] for each in read}

    def aged_out(self, cluster: Cluster, begins: Mapping[Partition, int]) -> list[str]:
        """Return a warning where the oldest record that partitions have is later than their ``from_``, a time.

        Earlier offsets are gone from them, as retention removes them, and their records may have been of the range.
        ``begins`` are the offsets at which partitions are to be read.
        """
        times = {each: point for each in begins if (point := self._from(each)).kind == "time"}
        earliest = cluster.earliest(times) if times else {}
        late: list[str] = []
        with closing(RecordLookup(cluster, self.label)) as lookup:
            records = first_records(cluster, lookup, [each for each in times if earliest[each]], 0, self.trusted_until)
        for partition, record in records.items():
            if record is not None and record[0] >= begins[partition] and record[1] > times[partition].value:
                late.append(
                    f"{name_of(partition)}: from_ is {times[partition]}, and the oldest record is offset "
                    f"{record[0]:,} of {Point('time', record[1])}"
                )
        if not late:
            return []
        more = f"; and {len(late) - _SHOWN} more partitions" if len(late) > _SHOWN else ""
        cure = "any since from_ are left out: have them in an archive=, or accept it with from_='earliest'"
        return [f"{self.label}: {'; '.join(late[:_SHOWN])}{more}. Earlier records are gone from the topic, and {cure}"]

    def end(self, cluster: Cluster, partitions: Iterable[Partition]) -> dict[Partition, int] | None:
        """Return the offset after the last one that each partition reads; None where the user set no ``to``.

        A partition without an end ends at this moment's, and so does ``"latest"``. A dict that names topics or
        partitions that are not read is refused, and so is an offset beyond the current end, which the run might never
        reach.
        """
        if self.to is None:
            return None
        read = list(partitions)
        self._check_scopes("to", self.to, read)
        wanted = {each: self._to(each) or LATEST for each in read}
        offsets = self._resolved(cluster, wanted)
        fixed = {each: point.value for each, point in wanted.items() if point.kind == "offset"}
        if fixed:
            self._check_ends("to", cluster, fixed)
        return {each: (offsets | fixed)[each] for each in wanted}

    @property
    def trusted_until(self) -> int:
        """The latest record timestamp that is trusted now, in epoch milliseconds."""
        ahead = LAST_MILLIS if self.max_ahead_ms is None else int(1000 * clock.time()) + self.max_ahead_ms
        return min(ahead, LAST_MILLIS)

    def _resolved(self, cluster: Cluster, wanted: Mapping[Partition, Point]) -> dict[Partition, int]:
        """Return the offsets of all points that are not offsets, requested together by kind."""
        offsets: dict[Partition, int] = {}
        requests: dict[str, Callable[[list[Partition]], dict[Partition, int]]]
        requests = {"earliest": cluster.earliest, "latest": cluster.latest, "time": cluster.latest}
        for kind, request in requests.items():
            of_kind = [each for each, point in wanted.items() if point.kind == kind]
            # For a time the end is asked first, so that a record that is written meanwhile is not skipped.
            offsets |= request(of_kind) if of_kind else {}
        times = sorted({point.value for point in wanted.values() if point.kind == "time"})
        trusted_until = self.trusted_until
        with closing(RecordLookup(cluster, self.label)) as lookup:
            for moment in times:
                of_time = [each for each, point in wanted.items() if point == Point("time", moment)]
                first = first_records(cluster, lookup, of_time, moment, trusted_until)
                offsets |= {each: record[0] for each, record in first.items() if record is not None}
        return offsets

    def held_back(self, cluster: Cluster, partitions: Sequence[Partition]) -> list[str]:
        """Return a text for each partition in which an open transaction holds records of the range back.

        Brokers give the records of a transaction only when it is committed, and none of those after its first one
        before that. So a run over the records that exist ends at the last stable offset, and the next run begins there;
        nothing is lost, but what is written is not yet in the result. With ``isolation.level=read_uncommitted`` nothing
        is held back. It costs two requests for all partitions.
        """
        stable, written = cluster.latest(partitions), cluster.written(partitions)
        ends = self.end(cluster, partitions) or stable
        return [
            f"{self.label}: {name_of(partition)}: a transaction is open from offset {end:,} on, so a run over the "
            f"records that exist ends before it and leaves {written[partition] - end:,} offsets, up to "
            f"{written[partition] - 1:,}, to the next run"
            for partition, end in stable.items()
            if end < written[partition] and ends[partition] >= end
        ]

    def span(self, cluster: Cluster, partitions: Iterable[Partition]) -> tuple[int, int] | None:
        """Return the first and last timestamp at the moment, in epoch milliseconds; None without records."""
        read = list(partitions)
        with closing(RecordLookup(cluster, self.label)) as lookup:
            records = first_records(cluster, lookup, read, self.from_ms or 0, self.trusted_until)
            times = Times(cluster, lookup, 1, 0)
            times.trusted_until = self.trusted_until
            last = times.newest(cluster.earliest(read), cluster.latest(read))
        first = [each[1] for each in records.values() if each is not None]
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
            where = self.label + (f": {name_of(scope)}" if scope != ALL else "")
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
                msg = f"{self.label}: {argument}: topic {topic!r} is not among those that are read{near}"
                raise ConfigurationError(msg)
            if topic is not None and number is not None and (topic, number) not in read:
                numbers = sorted(partition for name, partition in read if name == topic)
                msg = (
                    f"{self.label}: {argument}: partition {number} of topic {topic!r} is not among those read: "
                    f"{numbers}"
                )
                raise ConfigurationError(msg)

    def _check_ends(self, argument: str, cluster: Cluster, offsets: Mapping[Partition, int]) -> None:
        ends = cluster.latest(offsets)
        beyond = [each for each, offset in offsets.items() if offset > ends[each]]
        wrong = [f"{name_of(each)}: got offset {offsets[each]}, the end is {ends[each]}" for each in beyond]
        if any(offsets[each] > _LIKE_A_TIME for each in beyond):
            wrong.append("a time is written as a text or a datetime, not as a number")
        self._refuse(f"{argument} is beyond the end", wrong)

    def _refuse(self, why: str, wrong: list[str]) -> None:
        if wrong:
            msg = f"{self.label}: {why}: {'; '.join(wrong)}"
            raise ConfigurationError(msg)


def lost(wanted: Mapping[Partition, int], earliest: Mapping[Partition, int]) -> list[str]:
    """Return a text for each partition in which records between ``wanted`` and ``earliest`` no longer exist.

    >>> lost({("trades", 0): 10, ("trades", 1): 7}, {("trades", 0): 100, ("trades", 1): 0})
    ['topic trades partition 0: offsets 10 to 99 are gone (up to 90 records); the earliest is 100']
    """
    return [
        f"{name_of(partition)}: offsets {offset} to {earliest[partition] - 1} are gone "
        f"(up to {earliest[partition] - offset} records); the earliest is {earliest[partition]}"
        for partition, offset in wanted.items()
        if offset < earliest[partition]
    ]
