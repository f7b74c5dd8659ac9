"""What of a run is shown while it goes on: how far, how fast, how long still.

Far: the operator's watermark within the range of event time that the run goes through (or the rows read, where their
number is known). Fast: rows a second over the last half minute, and over longer where batches take longer; at the end
over the whole wait. Long: the event time that is left, at the pace of the last batches; where the range's own end moves
on, what counts is how fast the distance to it shrinks. There is none before two batches. Between batches it counts
down; when a batch takes longer than usual, it grows slowly instead of staying wrong. A run that has come to the end of
a range that goes on, or has no range, is live: how far it is behind the newest timestamp is told instead.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cojoin.engine.time.watermarks import END_OF_TIME, NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.engine.batch_report import BatchReport, InputReport

__all__ = ["Figures", "Pace"]

_WINDOW_SECONDS = 30.0
_FEWEST_POINTS = 4
_CAUGHT_UP = 0.995
_CAUGHT_UP_MS = 60_000
_FALLEN_BACK = 0.9
_FALLEN_BACK_MS = 600_000


@dataclass(frozen=True)
class Figures:
    """A run at one moment.

    Attributes:
        report: The newest batch's report; None before a checkpoint's first batch.
        batches: How many batches the run has finished.
        seconds: How long it has been waited for.
        rate: Rows a second; None where no row came in the time that counts.
        done: How much of the range is done, 0 to 1; None where there is no end to come to.
        left: Seconds that are left; None where that can't be told.
        behind: Milliseconds from the watermark to the newest timestamp; only where ``done`` is None.
        is_final: Whether nothing is drawn after it.
    """

    report: BatchReport | None
    batches: int
    seconds: float
    rate: float | None = None
    done: float | None = None
    left: float | None = None
    behind: int | None = None
    is_final: bool = False

    @property
    def inputs(self) -> Sequence[InputReport]:
        """The inputs' reports; none before the first batch."""
        return () if self.report is None else self.report.inputs

    @property
    def buffered(self) -> int:
        """How many rows of both inputs wait for the watermark."""
        return sum(each.buffered for each in self.inputs)

    @property
    def drift(self) -> int | None:
        """Milliseconds between the two inputs' watermarks; None while one has none, or when one has ended."""
        times = [each.watermark for each in self.inputs]
        return None if not times or {NONE, END_OF_TIME} & {*times} else max(times) - min(times)


class _Goal(NamedTuple):
    unit: str
    done: float
    remaining: int


class _Point(NamedTuple):
    at: float
    batches: int
    remaining: int


class Pace:
    """Measures a run's pace from what is observed of it.

    Args:
        now: The time at the start, in seconds of a clock that never goes back.
        report: The last report at the start: a restart counts only its own rows.
        total: How many rows both inputs hold, where that is known; it counts where no range is known.
    """

    def __init__(self, now: float, report: BatchReport | None, *, total: int | None = None) -> None:
        self._total = total
        self._report, self._batches = report, 0
        self._first = (now, _rows(report))
        self._seen: deque[tuple[float, int]] = deque([self._first])
        self._window = _WINDOW_SECONDS
        self._span: tuple[int, int] | None = None
        self._grows = self._live = False
        self._goal: _Goal | None = None
        self._points: deque[_Point] = deque()

    def observe(self, now: float, report: BatchReport | None, batches: int, span: tuple[int, int] | None) -> None:
        """Take the newest report, and the range of event time in epoch milliseconds as it is known now."""
        self._report, self._batches = report, batches
        self._observe_rows(now, _rows(report))
        before, self._goal = self._goal, None if report is None else self._find_goal(report, span)
        if self._goal is None or (before is not None and before.unit != self._goal.unit):
            self._points.clear()
        if self._goal is not None and batches and (not self._points or batches != self._points[-1].batches):
            self._points.append(_Point(now, batches, self._goal.remaining))
        while len(self._points) > _FEWEST_POINTS and self._points[1].at < now - _WINDOW_SECONDS:
            self._points.popleft()

    def figures(self, now: float, *, final: bool = False) -> Figures:
        """Return the figures of this moment.

        Args:
            now: The time.
            final: Whether they are the last: the rate is then that of the whole wait.
        """
        done = None if self._goal is None else self._goal.done
        if final and self._goal is None and self._live and not self._grows:
            done = 1.0
        return Figures(
            report=self._report,
            batches=self._batches,
            seconds=now - self._first[0],
            rate=self._rate(now, self._first if final else self._seen[0]),
            done=done,
            left=None if final else self._left(now),
            behind=None if done is not None else self._behind(),
            is_final=final,
        )

    def _observe_rows(self, now: float, rows: int) -> None:
        if rows != self._seen[-1][1]:
            self._window = max(_WINDOW_SECONDS, 2 * (now - self._seen[-1][0]))
            self._seen.append((now, rows))
        # The newest point before the window stays: the rate is measured from it.
        while len(self._seen) > 1 and self._seen[1][0] < now - self._window:
            self._seen.popleft()

    def _find_goal(self, report: BatchReport, span: tuple[int, int] | None) -> _Goal | None:
        if span is None:
            self._span, self._live = None, False
            rows = _rows(report)
            return _Goal("rows", min(1.0, rows / self._total), max(0, self._total - rows)) if self._total else None
        self._grows = self._grows or (self._span is not None and span[1] > self._span[1])
        self._span, (begin, end) = span, span
        if report.watermark == END_OF_TIME:
            return _Goal("time", 1.0, 0)
        position = begin if report.watermark == NONE else min(max(report.watermark, begin), end)
        done, remaining = (position - begin) / max(1, end - begin), end - position
        arrived = NONE < report.watermark >= end
        caught_up = self._grows and (done >= _CAUGHT_UP or remaining <= _CAUGHT_UP_MS)
        stays = self._live and (done >= _FALLEN_BACK or remaining <= _FALLEN_BACK_MS)
        self._live = arrived or caught_up or stays
        return None if self._live else _Goal("time", done, remaining)

    def _rate(self, now: float, point: tuple[float, int]) -> float | None:
        since, before = point
        rows = _rows(self._report)
        return (rows - before) / max(now - since, 0.001) if rows > before else None

    def _left(self, now: float) -> float | None:
        if len(self._points) < 2 or self._points[-1].remaining <= 0:
            return None
        first, last = self._points[0], self._points[-1]
        came, took = first.remaining - last.remaining, last.at - first.at
        if came <= 0 or took <= 0:
            return None
        usual, waited = took / (len(self._points) - 1), now - last.at
        took += max(0.0, waited - usual)
        return max(0.0, last.remaining * took / came - min(waited, usual))

    def _behind(self) -> int | None:
        if self._report is None or self._report.watermark in {NONE, END_OF_TIME}:
            return None
        newest = max(each.max_timestamp for each in self._report.inputs)
        if self._span is not None and self._grows:
            newest = max(newest, self._span[1])
        return max(0, newest - self._report.watermark)


def _rows(report: BatchReport | None) -> int:
    return 0 if report is None else sum(each.rows_in for each in report.inputs)
