"""The points of a range: what a user writes as ``from_`` or ``to`` is parsed here, without a broker.

A *point* is earliest, latest, an offset or a time. It is given for all topics, for a topic, or for one partition; the
most specific one counts: a partition's own, then its topic's, then that of all topics. A time without a zone is in UTC,
and is rounded up to Kafka's milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, TypeAlias

from cojoin.errors import ConfigurationError, did_you_mean

__all__ = [
    "ALL",
    "EARLIEST",
    "LATEST",
    "Bound",
    "Point",
    "Scope",
    "name_of",
    "nearest_point",
    "parsed_points",
    "time_of_all",
]

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
    """A place in a partition.

    Attributes:
        kind: How the place is given.
        value: The offset, or the time in epoch milliseconds; 0 for the other kinds.
    """

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


def parsed_points(bound: Any, what: str) -> dict[Scope, Point]:
    """Return the points that a user wrote, by scope.

    Args:
        bound: A ``Bound``, as far as the user is right.
        what: The input and the argument, for messages.

    Raises:
        ConfigurationError: A type or a word is wrong, or a time does not parse or has no zone.

    >>> parsed_points({"trades": {0: 7, 1: "2026-01-05"}}, "from_")
    {('trades', 0): Point(kind='offset', value=7), ('trades', 1): Point(kind='time', value=1767571200000)}
    """
    if not isinstance(bound, Mapping):
        return {ALL: _point(bound, what)}
    points: dict[Scope, Point] = {}
    for topic, of_topic in bound.items():
        if not isinstance(topic, str) or not topic:
            msg = f"{what}: expected the names of topics as keys, got {topic!r}"
            raise ConfigurationError(msg)
        if not isinstance(of_topic, Mapping):
            points[topic, None] = _point(of_topic, f"{what}: topic {topic}")
            continue
        for number, moment in of_topic.items():
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                msg = f"{what}: topic {topic}: expected the numbers of partitions as keys, got {number!r}"
                raise ConfigurationError(msg)
            points[topic, number] = _point(moment, f"{what}: {name_of((topic, number))}")
    return points


def _point(moment: Any, what: str) -> Point:
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:
            msg = f"{what}: expected a datetime with a zone, such as tzinfo=timezone.utc, got {moment!r}"
            raise ConfigurationError(msg)
        return Point("time", _milliseconds(moment))
    if isinstance(moment, int) and not isinstance(moment, bool):
        if moment < 0:
            msg = f"{what}: expected an offset of zero or more, got {moment}"
            raise ConfigurationError(msg)
        return Point("offset", moment)
    if not isinstance(moment, str):
        msg = f"{what}: {_EXPECTED}; got {moment!r}"
        raise ConfigurationError(msg)
    if moment in {"earliest", "latest"}:
        return EARLIEST if moment == "earliest" else LATEST
    return Point("time", _milliseconds(_parsed(moment, what)))


def _parsed(text: str, what: str) -> datetime:
    """Read ISO text in the same way on every version of Python; ``fromisoformat`` accepts different forms."""
    found = _ISO.fullmatch(text.strip())
    if found is None:
        near = did_you_mean(text, ["earliest", "latest"]) if text[:1].isalpha() else ""
        msg = f"{what}: {_EXPECTED}; got {text!r}{near}"
        raise ConfigurationError(msg)
    date, clock, seconds, fraction, zone = found.groups()
    zone = "+00:00" if zone in {None, "Z", "z"} else f"{zone[:3]}:{zone[-2:]}"
    try:
        return datetime.fromisoformat(
            f"{date}T{clock or '00:00'}:{seconds or '00'}.{(fraction or '').ljust(6, '0')}{zone}"
        )
    except ValueError as error:
        msg = f"{what}: expected a time of the calendar, got {text!r}: {error}"
        raise ConfigurationError(msg) from error


def _milliseconds(moment: datetime) -> int:
    """Return epoch milliseconds, rounded up: a record's timestamp is at or after both times, or before both."""
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def nearest_point(points: Mapping[Scope, Point], scope: Scope) -> Point | None:
    """Return the most specific point for a scope; None where none was given."""
    topic, _ = scope
    return next((points[each] for each in (scope, (topic, None), ALL) if each in points), None)


def time_of_all(points: Mapping[Scope, Point]) -> int | None:
    """Return the time that is given for all topics, in epoch milliseconds; None where there is no such time."""
    point = points.get(ALL)
    return point.value if point is not None and point.kind == "time" else None


def name_of(scope: Scope) -> str:
    """Return a scope's name in messages."""
    topic, number = scope
    return f"topic {topic}" if number is None else f"topic {topic} partition {number}"
