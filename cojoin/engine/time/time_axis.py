"""Computes the moments of event times that are not timestamps: times without a zone, dates and whole numbers.

A row's column stays as it is; the engine computes the moment where it needs it. The moment of a date is its midnight in
the zone. A clock change repeats an hour of local time or leaves one out. For a time in such an hour ``clock_change``
chooses the zone's offset: the one *before* the change, or the one *after* it. With *before*, a repeated time is the
first of the two, and a time that is left out moves forward by the gap. Python's ``fold=0`` (PEP 495) and Spark do so.

It costs two conversions for times and dates, some 0.1 µs a row, and a multiplication for numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.values.arguments import check_word
from cojoin.engine.values.tables import event_micros
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

TimeUnit: TypeAlias = Literal["s", "ms", "us"]
"""The unit of whole numbers that count from 1970 in UTC: seconds, milliseconds or microseconds."""

ClockChange: TypeAlias = Literal["before", "after", "reject"]
"""The treatment of local times that a clock change repeats or leaves out.

- *before*: they have the offset from before the change; a repeated time is the first of the two.
- *after*: they have the offset from after the change.
- *reject*: their rows are rejected.
"""

_FACTORS: Mapping[str, int] = {"s": 1_000_000, "ms": 1_000, "us": 1}
_LOCAL, _FURTHEST = pa.timestamp("us"), 2 * 86_400_000_000
"""The type of local times, and a span in microseconds that no zone's offset reaches."""

_LAST_DAY = ((1 << 63) - 1) // 86_400_000_000
"""The largest date, in days since 1970, whose microseconds have 64 bits."""


def is_local(dtype: pa.DataType) -> bool:
    """Return whether values of a type are local times: dates, and times without a zone.

    >>> is_local(pa.date32()), is_local(pa.timestamp("us")), is_local(pa.timestamp("us", "UTC"))
    (True, True, False)
    """
    return bool(pa.types.is_date32(dtype) or (pa.types.is_timestamp(dtype) and dtype.tz is None))


def is_moment(dtype: pa.DataType) -> bool:
    """Return whether values of a type are timestamps, which have a zone.

    >>> is_moment(pa.timestamp("us", "UTC")), is_moment(pa.timestamp("us"))
    (True, False)
    """
    return bool(pa.types.is_timestamp(dtype) and dtype.tz is not None)


def is_whole(dtype: pa.DataType) -> bool:
    """Return whether values of a type are whole numbers, as Spark has them.

    >>> is_whole(pa.int16()), is_whole(pa.uint8())
    (True, False)
    """
    return bool(pa.types.is_signed_integer(dtype))


@dataclass(frozen=True)
class TimeAxis:
    """The meaning of an input's event times; either a zone or a unit.

    Attributes:
        zone: The time zone of local times, such as ``"Europe/Berlin"``; None for numbers.
        unit: The unit of whole numbers; None for local times.
        clock_change: The treatment of local times that a clock change repeats or leaves out.

    >>> axis = TimeAxis(unit="ms")
    >>> axis.micros(pa.chunked_array([[1_500, None]])).tolist()
    [1500000, 0]
    """

    zone: str | None = None
    unit: TimeUnit | None = None
    clock_change: ClockChange = "before"

    def describe(self) -> dict[str, Any]:
        """Return the axis as JSON values, under the names of ``Input``'s arguments."""
        if self.unit is not None:
            return {"time_unit": self.unit}
        return {"time_zone": self.zone, "clock_change": self.clock_change}

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> TimeAxis | None:
        """Return the axis from an input's description; None if it has none."""
        zone, unit = described.get("time_zone"), described.get("time_unit")
        return None if zone is None and unit is None else cls(zone, unit, described.get("clock_change", "before"))

    @classmethod
    def of(cls, zone: Any, unit: Any, clock_change: Any, label: str) -> TimeAxis | None:
        """Return the axis that an input's arguments declare; None where its times are timestamps.

        Raises:
            ConfigurationError: The zone or the unit does not exist, both are given, or a word is unknown.
        """
        if unit is not None:
            check_word(f"{label}: time_unit", unit, get_args(TimeUnit))
            if zone is not None:
                msg = (
                    f"{label}: expected time_zone= for times without a zone and dates, or time_unit= for whole "
                    f"numbers, got both; whole numbers count from 1970 in UTC"
                )
                raise ConfigurationError(msg)
        if zone is not None:
            _check_zone(zone, label)
        check_word(f"{label}: clock_change", clock_change, get_args(ClockChange))
        if clock_change != "before" and zone is None:
            msg = f"{label}: clock_change={clock_change!r}: only times with time_zone= have clock changes; leave it out"
            raise ConfigurationError(msg)
        return None if zone is None and unit is None else cls(zone, unit, clock_change)

    @property
    def expected(self) -> str:
        """The values that the axis converts, with the argument, for messages."""
        return "a time without a zone or a date with time_zone=" if self.zone else "a whole number with time_unit="

    @property
    def largest(self) -> int:
        """The largest number of the unit whose microseconds have 64 bits."""
        return int(((1 << 63) - 1) // _FACTORS[str(self.unit)])

    def takes(self, dtype: pa.DataType) -> bool:
        """Return whether the axis converts values of a type."""
        return is_local(dtype) if self.unit is None else is_whole(dtype)

    def micros(self, column: pa.ChunkedArray) -> NDArray[np.int64]:
        """Return the moments of a column in epoch microseconds; a null, and a value that is out of range, is 0."""
        return self._moments(column)[0]

    def misfits(self, column: pa.ChunkedArray) -> NDArray[np.bool_]:
        """Return which values have no moment: those out of range, and with ``"reject"`` those of a clock change."""
        return self._moments(column)[1]

    def changed(self, column: pa.ChunkedArray) -> NDArray[np.bool_]:
        """Return which values are local times that a clock change repeats or leaves out."""
        return np.zeros(len(column), dtype=bool) if self.zone is None else self._moments(column)[2]

    def timestamps(self, column: pa.ChunkedArray) -> pa.Array:
        """Return the moments of a column as ``timestamp[us, UTC]``; null where there is none."""
        moments, misfits, _ = self._moments(column)
        return pa.array(moments, mask=pc.is_null(column).to_numpy() | misfits).cast(pa.timestamp("us", "UTC"))

    def _moments(self, column: pa.ChunkedArray) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the results of ``micros``, ``misfits`` and ``changed``."""
        is_null = pc.is_null(column).to_numpy()
        if self.unit is not None:
            numbers, factor = _numbers(column), _FACTORS[self.unit]
            misfits = (numbers > self.largest) | (numbers < -self.largest)
            return np.where(misfits, 0, numbers) * factor, misfits, np.zeros(len(column), dtype=bool)
        is_beyond = np.zeros(len(column), dtype=bool)
        if pa.types.is_date32(column.type):
            is_beyond = np.abs(_numbers(column.cast(pa.int32()))) > _LAST_DAY
            if is_beyond.any():
                column = pc.replace_with_mask(column, pa.array(is_beyond), pa.scalar(None, column.type))
        local = column.cast(_LOCAL)
        numbers = _numbers(local)
        first, last = (
            pc.assume_timezone(local, str(self.zone), ambiguous=side, nonexistent=side)
            for side in ("earliest", "latest")
        )
        moments, latest = _numbers(first), _numbers(last)
        # Near the smallest and the largest integer of 64 bits, adding the offset wraps around.
        wraps = np.where(numbers > 0, moments < numbers - _FURTHEST, moments > numbers + _FURTHEST)
        misfits = (wraps | is_beyond) & ~is_null
        changed = (moments != latest) & ~misfits & ~is_null
        if changed.any():
            side = last if self.clock_change == "after" else first
            rows = pa.array(changed)
            offsets = _numbers(pc.local_timestamp(side.filter(rows))) - _numbers(side.filter(rows))
            moments = moments.copy()
            moments[changed] = numbers[changed] - offsets
        moments = np.where(misfits, 0, moments) if misfits.any() else moments
        return moments, misfits | changed if self.clock_change == "reject" else misfits, changed


def micros_of(table: pa.Table, column: str, axis: TimeAxis | None) -> NDArray[np.int64]:
    """Return the moments of a column in epoch microseconds, a null as 0; without an axis it has timestamps."""
    return event_micros(table, column) if axis is None else axis.micros(table.column(column))


def _numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return a column's values as integers of 64 bits; a null is 0."""
    return pc.fill_null(column.cast(pa.int64()), 0).to_numpy()  # type: ignore[no-any-return]


def _check_zone(zone: Any, label: str) -> None:
    """Check that pyarrow, which computes the moments, has the time zone."""
    try:
        if not isinstance(zone, str) or not zone:
            raise ValueError  # noqa: TRY301 - one message for every wrong zone
        pc.assume_timezone(pa.array([0], _LOCAL), zone)
    except ValueError as error:
        msg = (
            f"{label}: time_zone: expected a zone's name, such as 'Europe/Berlin' or 'UTC', got {zone!r}; "
            f"zoneinfo.available_timezones() has them all"
        )
        raise ConfigurationError(msg) from error
