"""Arguments as users write them: one of a few words, True or False, and durations.

A duration is a text as Spark's users write it, ``"5 seconds"`` or ``"1 minute 30 seconds"``, or a ``timedelta``. Inside
cojoin it is a whole number of milliseconds (watermarks, timers) or microseconds (``tolerance``). Bare numbers are
refused, because they do not show their unit.
"""

from __future__ import annotations

import re
from datetime import timedelta
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cojoin.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_word(name: str, value: Any, words: Sequence[str]) -> None:
    """Raise an error unless an argument's value is one of two or more words.

    >>> check_word("how", "inner", ["left", "inner"])
    """
    if value not in words:
        valid = f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}"
        near = did_you_mean(str(value), words)
        # The message has all valid words already.
        msg = f"{name}: expected {valid}, got {value!r}{near if near.endswith('?') else ''}"
        raise ConfigurationError(msg)


def check_flag(name: str, value: Any) -> None:
    """Raise an error unless an argument's value is True or False."""
    if not isinstance(value, bool):
        msg = f"{name}: expected True or False, got {value!r}"
        raise ConfigurationError(msg)


Duration: TypeAlias = str | timedelta
"""A Spark interval string such as ``"5 seconds"``, or a ``datetime.timedelta``; numpy's and pandas' are also valid."""

_MICROSECONDS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_SHORT = {
    "us": "microsecond",
    "µs": "microsecond",
    "ms": "millisecond",
    "s": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
}
_OF_NUMPY = {
    "W": "week",
    "D": "day",
    "h": "hour",
    "m": "minute",
    "s": "second",
    "ms": "millisecond",
    "us": "microsecond",
}
_PART = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-zA-Zµ]+)\s*")


def microseconds(duration: Duration, label: str) -> int:
    """Return a duration as whole microseconds; ``label`` is its argument's name in messages.

    Raises:
        ConfigurationError: It does not parse, is negative or finer than a microsecond, or is a bare number.

    >>> microseconds("1 minute 30 seconds", "tolerance")
    90000000
    """
    if isinstance(duration, np.timedelta64):
        value = _of_numpy(duration, label)
    elif isinstance(duration, timedelta):
        value = duration // timedelta(microseconds=1)
        if getattr(duration, "nanoseconds", 0):
            raise ConfigurationError(_too_fine(duration, label))
    elif isinstance(duration, str):
        value = _parse(duration, label)
    else:
        cure = "; write its unit" if isinstance(duration, Number) else ""
        msg = f"{label}: expected a duration such as '5 seconds' or a timedelta, got {duration!r}{cure}"
        raise ConfigurationError(msg)
    if value < 0:
        msg = f"{label}: expected a duration of zero or more, got {duration!r}"
        raise ConfigurationError(msg)
    return value


def milliseconds(duration: Duration, label: str) -> int:
    """Return a duration as whole milliseconds, as ``microseconds``; a finer one is refused rather than rounded.

    >>> milliseconds("5 seconds", "out-of-orderness")
    5000
    """
    value = microseconds(duration, label)
    if value % 1_000:
        msg = f"{label}: expected whole milliseconds, the unit of watermarks and timers, got {duration!r}"
        raise ConfigurationError(msg)
    return value // 1_000


def duration_text(micros: int) -> str:
    """Return a duration in its largest whole unit, as ``microseconds`` reads it.

    >>> duration_text(60_000_000), duration_text(-1_500_000), duration_text(0)
    ('1 minute', '-1500 milliseconds', '0 seconds')
    """
    unit = next(each for each in reversed(_MICROSECONDS) if micros % _MICROSECONDS[each] == 0) if micros else "second"
    count = micros // _MICROSECONDS[unit]
    return f"{count} {unit}{'' if abs(count) == 1 else 's'}"


def _of_numpy(duration: np.timedelta64, label: str) -> int:
    unit, step = np.datetime_data(duration.dtype)
    if np.isnat(duration) or unit in ("generic", "Y", "M"):
        why = "is none" if np.isnat(duration) else "has no unit" if unit == "generic" else "has no fixed length"
        msg = f"{label}: expected a duration such as '5 seconds' or a timedelta, got {duration!r}, which {why}"
        raise ConfigurationError(msg)
    count = int(duration.astype(np.int64)) * step
    if unit in _OF_NUMPY:
        return count * _MICROSECONDS[_OF_NUMPY[unit]]
    micros, rest = divmod(count, {"ns": 10**3, "ps": 10**6, "fs": 10**9}.get(unit, 10**12))
    if rest:
        raise ConfigurationError(_too_fine(duration, label))
    return micros


def _too_fine(duration: Any, label: str) -> str:
    return f"{label}: expected whole microseconds, the unit of event times, got {duration!r}"


def _parse(text: str, label: str) -> int:
    exact, fractions, position = 0, 0.0, 0
    body = re.sub(r"^\s*interval\s+", "", text, flags=re.IGNORECASE)
    while position < len(body):
        match = _PART.match(body, position)
        if match is None:
            break
        number, unit = match.groups()
        name = _SHORT.get(unit, unit.lower().removesuffix("s"))
        if name not in _MICROSECONDS:
            near = did_you_mean(unit, [f"{known}s" for known in _MICROSECONDS])
            msg = f"{label}: unknown unit {unit!r} in {text!r}{near}"
            raise ConfigurationError(msg)
        if "." in number:
            fractions += float(number) * _MICROSECONDS[name]
        else:
            exact += int(number) * _MICROSECONDS[name]
        position = match.end()
    if position == 0 or position < len(body):
        msg = f"{label}: expected a duration such as '5 seconds' or '1 minute 30 seconds', got {text!r}"
        raise ConfigurationError(msg)
    return exact + round(fractions)
