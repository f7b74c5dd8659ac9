"""The lateness of rows: by how much each is behind the rows that arrived before it, for choosing a watermark's bound.

A row's *lateness* is the largest timestamp among the earlier arrivals of its source partition, less its own timestamp,
in milliseconds; 0 if that is negative or if nothing has arrived before it. With ``for_bounded_out_of_orderness(b)`` the
partition's watermark is then that largest timestamp less b less 1 ms, so a row is late if its lateness is above b.
Rows that arrive together come in one micro-batch, so none of them makes another one late. A row without event time,
without arrival, or too far ahead of its arrival is left out. It does not move the watermark, as in a stream.

It keeps a count for each lateness, rounded up to four significant digits of milliseconds: at most 9,000 numbers for
each power of ten, however many rows there are. So the count of late rows is exact for a bound of at most four such
digits, and the usual bounds, such as ``"90 seconds"`` and ``"7 days"``, have no more. The largest lateness is exact,
too. Rows must be sorted by partition and arrival.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from cojoin.engine.display import Display, Shown, format_span
from cojoin.engine.time.watermarks import NONE
from cojoin.engine.values.arguments import Duration, microseconds, milliseconds
from cojoin.errors import ConfigurationError, SchemaError, did_you_mean
from cojoin.installed_packages import check_pandas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from numpy.typing import NDArray

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_SHOWN = (0, _SECOND, 10 * _SECOND, _MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, _DAY, 7 * _DAY, 30 * _DAY)
"""The bounds of the table, in milliseconds."""

_SHARES = (0.99, 0.999, 1.0)
"""The shares of the rows for which the smallest bound is shown."""

_LARGEST = 18
"""The number of digits of the largest lateness in milliseconds."""

_INTEGERS = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True)
class ArrivalOrder:
    """The order in which rows arrive.

    Attributes:
        column: The column that orders them; None for the order in which the rows are stored.
        kind: Its type, as Spark names it.
        every_us: The length of a micro-batch's window of arrival times in microseconds; 0 for no windows.
        max_ahead_ms: How far a row may be ahead of its arrival, in milliseconds; None for any distance.
        now_ms: The time that ``max_ahead_ms`` counts from where arrivals are not times, in epoch milliseconds.
    """

    column: str | None
    kind: str
    every_us: int
    max_ahead_ms: int | None
    now_ms: int

    @property
    def has_clock(self) -> bool:
        """Whether arrivals are times; ``max_ahead_ms`` then counts from the end of a row's window of arrivals."""
        return self.kind == "timestamp"

    @property
    def window_us(self) -> tuple[int, int]:
        """The distance between the begins of windows of arrivals, and how long a window lasts, in microseconds."""
        return max(self.every_us, 1), self.every_us if self.every_us > 1 else 0

    def words(self, partition: Sequence[str]) -> str:
        """Return the order in words, such as ``"in the order of 'offset', by topic and partition"``."""
        order = "in the order given" if self.column is None else f"in the order of {self.column!r}"
        windows = f", in windows of {format_span(-(-self.every_us // 1_000))}" if self.every_us else ""
        return f"{order}{windows}{', by ' if partition else ''}{' and '.join(partition)}"


def arrival_order(
    types: Mapping[str, str], arrival: Any, every: Duration | None, max_ahead: Duration | None, now_ms: int
) -> ArrivalOrder:
    """Return the order of arrival that the arguments of ``cojoin.lateness`` name.

    ``types`` are the columns, with their types as Spark names them. The other arguments are not checked yet.

    >>> arrival_order({"arrived": "timestamp"}, "arrived", "1 day", None, 0).every_us
    86400000000
    """
    length = 0 if every is None else microseconds(every, "every")
    if every is not None and not length:
        msg = f"every: expected a duration above zero, got {every!r}"
        raise ConfigurationError(msg)
    ahead = None if max_ahead is None else milliseconds(max_ahead, "max_ahead")
    column, kind = _arrival_column(types, arrival)
    if length and kind != "timestamp":
        label = "the order of the rows" if column is None else f"{column!r}, which is {kind}"
        msg = f"every: expected an arrival column of times, got {label}; leave every= out"
        raise SchemaError(msg)
    return ArrivalOrder(column, kind, length, ahead, now_ms)


def _arrival_column(types: Mapping[str, str], arrival: Any) -> tuple[str | None, str]:
    """Return the arrival column and its type."""
    if arrival is None:
        return None, "bigint"
    if not isinstance(arrival, str):
        msg = f"arrival: expected a column's name, got {arrival!r}"
        raise SchemaError(msg)
    name = arrival if arrival in types else next((each for each in types if each.lower() == arrival.lower()), None)
    if name is None:
        msg = f"arrival: the rows have no column {arrival!r}{did_you_mean(arrival, types)}"
        raise SchemaError(msg)
    kind = types[name]
    # A column without any value, such as that of an empty day.
    if kind == "void":
        kind = "timestamp"
    if kind not in (*_INTEGERS, "timestamp", "date"):
        cure = "; it has no time zone: convert it to timestamps in its zone" if kind == "timestamp_ntz" else ""
        msg = f"arrival: column {name!r} is {kind}; expected a timestamp, a date or whole numbers{cure}"
        raise SchemaError(msg)
    return name, kind


def round_up(lateness: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return spans in milliseconds, rounded up to four significant digits.

    >>> round_up(np.array([0, 10_000, 10_001, 3_600_000, 86_400_001])).tolist()
    [0, 10000, 10010, 3600000, 86410000]
    """
    step = np.ones_like(lateness)
    for digits in range(5, _LARGEST + 1):
        above = lateness > 10 ** (digits - 1)
        if not above.any():
            break
        step[above] = 10 ** (digits - 4)
    return -(-lateness // step) * step


class LatenessCounter:
    """Counts the lateness of rows that come sorted by partition and arrival, in any number of pieces.

    ``counts`` are the rows by lateness in milliseconds, rounded up to four significant digits; ``largest_ms`` is exact.

    >>> counter = LatenessCounter()
    >>> zeros = np.zeros(4, np.int64)
    >>> counter.add(zeros, np.array([1, 2, 2, 3]), np.array([50, 40, 90, 80]))
    >>> counter.counts, counter.largest_ms
    ({0: 2, 10: 2}, 10)
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.largest_ms = 0
        self._partition = self._arrival = 0
        self._before, self._newest = NONE, NONE
        """The largest timestamps of the last partition that was added: before its last arrival, and with it."""

    def add(
        self,
        partitions: NDArray[np.int64],
        arrivals: NDArray[np.int64],
        timestamps: NDArray[np.int64],
        counted: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add the next rows: their partitions as numbers, arrivals, and event times in milliseconds.

        Rows of a partition with equal arrivals have arrived together. Rows that are not ``counted`` only move the
        largest timestamp; None counts all rows.
        """
        if not len(timestamps):
            return
        differs = partitions[1:] != partitions[:-1]
        starts = np.concatenate([[0], np.flatnonzero(differs) + 1])
        ends = np.append(starts[1:], len(timestamps))
        # For each row, the position of the first row that has arrived together with it.
        begins = np.zeros(len(timestamps), np.int64)
        begins[1:] = np.where(differs | (arrivals[1:] != arrivals[:-1]), np.arange(1, len(timestamps)), 0)
        np.maximum.accumulate(begins, out=begins)
        before = np.empty(len(timestamps), np.int64)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            if partitions[start] != self._partition:
                self._partition, self._before, self._newest = int(partitions[start]), NONE, NONE
            elif arrivals[start] != self._arrival:
                self._before = self._newest
            largest = np.maximum.accumulate(timestamps[start:end])
            np.maximum(largest, self._newest, out=largest)
            first = begins[start:end] - start
            before[start:end] = np.where(first > 0, largest[first - 1], self._before)
            self._before, self._newest = int(before[end - 1]), int(largest[-1])
            self._arrival = int(arrivals[end - 1])
        behind = before > timestamps
        if counted is not None:
            behind &= counted
        lateness = before[behind] - timestamps[behind]
        on_time = (len(timestamps) if counted is None else int(counted.sum())) - len(lateness)
        values, rows = np.unique(round_up(lateness), return_counts=True)
        largest_ms = int(lateness.max()) if len(lateness) else 0
        self.merge({0: on_time, **dict(zip(values.tolist(), rows.tolist(), strict=True))}, largest_ms)

    def merge(self, counts: Mapping[int, int], largest_ms: int) -> None:
        """Add the counts and the largest lateness of other rows."""
        for lateness, rows in counts.items():
            if rows:
                self.counts[lateness] = self.counts.get(lateness, 0) + rows
        self.largest_ms = max(self.largest_ms, largest_ms)


@dataclass(frozen=True, repr=False)
class Lateness(Shown):
    """The lateness of rows, returned by ``lateness``, with the share of late rows for any bound.

    Attributes:
        order: The order in which the rows arrived, in words.
        rows: The number of all rows.
        counts: The number of rows by their lateness in milliseconds, ascending. Each lateness is rounded up to four
            significant digits; 0 is a row that is not behind any other.
        largest_ms: The largest lateness in milliseconds, exactly.
        left_out: The number of rows that are not counted, by reason, if there are any: ``"null_event_time"``,
            ``"null_arrival"``, ``"too_far_ahead"``. They move no watermark.
    """

    order: str
    rows: int
    counts: Mapping[int, int]
    largest_ms: int
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def counted(self) -> int:
        """The number of rows whose lateness is known."""
        return sum(self.counts.values())

    def late(self, bound: Duration) -> int:
        """Return how many rows are late with a bound, ``for_bounded_out_of_orderness(bound)``.

        Args:
            bound: ``"10 minutes"`` or a ``timedelta``, in whole milliseconds. If it has more than four significant
                digits of milliseconds, some rows with a lateness just below it count as late, too.

        Raises:
            ConfigurationError: It is negative, has no unit, or does not parse.
        """
        millis = milliseconds(bound, "bound")
        if millis >= self.largest_ms:
            return 0
        return sum(rows for lateness, rows in self.counts.items() if lateness > millis)

    def share_late(self, bound: Duration) -> float:
        """Return the share of the counted rows, from 0 to 1, that is late with a bound; 0 without any rows.

        Args:
            bound: As in ``late``.
        """
        return self.late(bound) / max(self.counted, 1)

    def bound_for(self, share: float) -> timedelta:
        """Return the smallest bound with which at least a share of the counted rows is not late.

        Args:
            share: From 0 to 1; 1 is all rows.

        Returns:
            The bound, rounded up to four significant digits of milliseconds; for all rows it is exact. It is an
            argument for ``WatermarkStrategy.for_bounded_out_of_orderness``.

        Raises:
            ConfigurationError: The share is not a number from 0 to 1.
        """
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            msg = f"share: expected a number from 0 to 1, such as 0.999, got {share!r}"
            raise ConfigurationError(msg)
        return timedelta(milliseconds=self._bound_for(share))

    def _bound_for(self, share: float) -> int:
        if share == 1 or not self.counts:
            return self.largest_ms
        bounds = sorted(self.counts)
        on_time = np.cumsum([self.counts[each] for each in bounds])
        position = int(np.searchsorted(on_time / on_time[-1], share))
        return min(bounds[min(position, len(bounds) - 1)], self.largest_ms)

    def to_pandas(self) -> pd.DataFrame:
        """Return the table: ``bound`` (a timedelta), ``late`` (rows) and ``share_late`` (from 0 to 1).

        Its last bound is the first of the usual ones with which no row is late, or 30 days.

        Raises:
            EnvironmentSetupError: pandas is missing or too old.
        """
        check_pandas("to_pandas()")
        import pandas as pd  # noqa: PLC0415 - it takes half a second, and is not always installed

        frame: pd.DataFrame = pd.DataFrame(self._table(), columns=["bound", "late", "share_late"])
        frame["bound"] = pd.to_timedelta(frame["bound"], unit="ms")
        return frame

    def _table(self) -> list[tuple[int, int, float]]:
        """Return the table's bounds in milliseconds, each with the number and the share of late rows."""
        bounds = _SHOWN[: bisect_right(_SHOWN, max(self.largest_ms - 1, -1)) + 1]
        late = [self.late(timedelta(milliseconds=bound)) for bound in bounds]
        return [(bound, rows, rows / max(self.counted, 1)) for bound, rows in zip(bounds, late, strict=True)]

    def _display(self) -> Display:
        table = [(_span(bound), f"{late:,}", _percent(share)) for bound, late, share in self._table()]
        rows = [("bound", "late rows", "share late"), *table]
        notes = []
        if self.counted:
            shares = [(_percent(share) if share < 1 else "all", _span(self._bound_for(share))) for share in _SHARES]
            notes.append(f"Bound for rows on time: {', '.join(f'{share} {bound}' for share, bound in shares)}.")
        left_out = [f"{rows:,} {reason}" for reason, rows in self.left_out.items() if rows]
        if left_out:
            notes.append(f"Rows left out: {', '.join(left_out)}.")
        return Display(f"Lateness of {self.counted:,} rows {self.order}", rows, notes)


def _span(millis: int) -> str:
    """Return a bound as text, rounded up to what the text shows, so that it is never too small."""
    step = 1 if millis < _MINUTE else _SECOND if millis < _HOUR else _MINUTE if millis < _DAY else _HOUR
    return format_span(-(-millis // step) * step)


def _percent(share: float) -> str:
    """Return a share in percent with three significant digits, or with more where these would round up to 100 %.

    >>> _percent(0.0602), _percent(0.999), _percent(1), _percent(0.9999999), _percent(0.00001234)
    ('6.02 %', '99.9 %', '100 %', '99.99999 %', '0.00123 %')
    """
    for digits in range(3, 17):
        text = f"{100 * share:.{digits}g}"
        if float(text) != 100 or share == 1:
            break
    return f"{Decimal(text):f} %"
