"""What is measured of a run: how far it is, how many rows a second it reads, and how far it is behind.

How far it is goes by the operator's watermark within the range of event time that the run goes through, or by the rows
read where no range is known but their number is. A run that has caught up with a range whose end moves on, or that has
no range, is live: it has no goal, and its distance to the newest timestamp is measured instead. A live run gets a goal
again only when it has fallen back by more than a tenth of the range and more than ten minutes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from cojoin.engine.time.watermarks import END_OF_TIME, NONE

if TYPE_CHECKING:
    from cojoin.engine.batch_report import BatchReport

__all__ = ["Figures", "Goal"]

_LAST_BATCHES, _LULL_SECONDS = 5, 30.0
_CAUGHT_UP, _CAUGHT_UP_MS = 0.995, 60_000
_FALLEN_BACK, _FALLEN_BACK_MS = 0.9, 600_000


class Goal(NamedTuple):
    """How much of a run is done; ``unit`` is ``"time"`` for milliseconds of event time, or ``"rows"``."""

    unit: str
    done: int
    total: int


class Figures:
    """A run as it was last looked at.

    Args:
        now: The time at the start, in seconds of a clock that never goes back.
        report: The last report at the start: a restart counts only its own rows.
        total: How many rows both inputs hold, where that is known.

    Attributes:
        report: The newest batch's report; None before a checkpoint's first batch.
        batches: How many batches the run has finished.
        rows: How many rows of both inputs the run has read.
        rate: Rows a second over the last batches, or at the end over the whole wait; None where no new row came.
        goal: How much is done; None where the run is live, and before the first report.
        behind: Milliseconds from the watermark to the newest timestamp; only where ``goal`` is None.
        is_final: Whether nothing is shown after it.
    """

    def __init__(self, now: float, report: BatchReport | None, *, total: int | None = None) -> None:
        self._began, self._before, self._total = now, _rows(report), total
        self._points = deque([(now, 0)], maxlen=1 + _LAST_BATCHES)
        self._span: tuple[int, int] | None = None
        self._grows = self._live = False
        self.look(now, report, 0, None)

    def look(
        self, now: float, report: BatchReport | None, batches: int, span: tuple[int, int] | None, *, final: bool = False
    ) -> None:
        """Take the newest report, and the range of event time in epoch milliseconds as it is known now."""
        self.report, self.batches, self.is_final = report, batches, final
        self.rows = _rows(report) - self._before
        if self.rows > self._points[-1][1]:
            if len(self._points) == 2 and not self._points[0][1]:
                # How long the query took to start says nothing of its pace, once a second batch does.
                self._points.popleft()
            self._points.append((now, self.rows))
        self.rate = self.rows / max(now - self._began, 0.001) or None if final else self._last_rate(now)
        self.goal = None if report is None else self._find_goal(report, span)
        if final and self._live and not self._grows:
            self.goal = Goal("time", 1, 1)
        self.behind = None if report is None or self.goal is not None else self._find_behind(report)

    def _last_rate(self, now: float) -> float | None:
        (first, before), (last, rows) = self._points[0], self._points[-1]
        if rows == before or now - last > max(_LULL_SECONDS, 2 * (last - self._points[-2][0])):
            return None
        return (rows - before) / max(last - first, 0.001)

    def _find_goal(self, report: BatchReport, span: tuple[int, int] | None) -> Goal | None:
        if span is None:
            self._span, self._live = None, False
            return Goal("rows", min(_rows(report), self._total), self._total) if self._total else None
        self._grows = self._grows or (self._span is not None and span[1] > self._span[1])
        self._span, (begin, end) = span, span
        total = max(1, end - begin)
        if report.watermark == END_OF_TIME:
            return Goal("time", total, total)
        done = 0 if report.watermark == NONE else min(max(report.watermark, begin), end) - begin
        left = end - begin - done
        caught_up = self._grows and (done >= _CAUGHT_UP * total or left <= _CAUGHT_UP_MS)
        stays = self._live and (done >= _FALLEN_BACK * total or left <= _FALLEN_BACK_MS)
        self._live = NONE < report.watermark >= end or caught_up or stays
        return None if self._live else Goal("time", done, total)

    def _find_behind(self, report: BatchReport) -> int | None:
        if report.watermark in {NONE, END_OF_TIME}:
            return None
        newest = [each.max_timestamp for each in report.inputs]
        newest += [self._span[1]] if self._span is not None and self._grows else []
        return max(0, max(newest) - report.watermark)


def _rows(report: BatchReport | None) -> int:
    return 0 if report is None else sum(each.rows_in for each in report.inputs)
