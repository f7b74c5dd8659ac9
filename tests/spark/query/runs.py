"""Made-up runs for what shows progress: reports at moments of our choice."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import datetime, tzinfo

from cojoin.engine.batch_report import BatchReport, InputReport
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.spark.query.progress import Figures

NOON = 1_768_478_400_000
HOUR = 3_600_000
DAY = 24 * HOUR


class Calendar(datetime):
    """Stands in for the real clock, so that what is today doesn't change."""

    at = NOON + 60 * DAY

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Calendar:
        """Return the moment that ``at`` holds, in epoch milliseconds."""
        return cls.fromtimestamp(cls.at / 1000, tz=tz)


def report(
    trades: int,
    customers: int = 0,
    watermark: int = NOON,
    other: int | None = None,
    *,
    buffered: int = 0,
    newest: int | None = None,
    names: tuple[str, str] = ("trades", "customers"),
    statuses: tuple[str, str] = ("active", "active"),
) -> BatchReport:
    """Make a report of two inputs, at their watermarks."""
    marks = (watermark, watermark if other is None else other)
    left, right = (
        InputReport(name, rows, rows, waits, {}, 0, at, at if newest is None else newest, status, None)
        for name, rows, at, waits, status in zip(
            names, (trades, customers), marks, (buffered, buffered // 10), statuses, strict=True
        )
    )
    holding = names[0] if marks[0] <= marks[1] else names[1]
    drained = set(marks) == {END_OF_TIME}
    return BatchReport(0, 0, min(marks), None if drained else holding, (left, right), 0, {}, 0, {}, drained)


@dataclass
class Query:
    progress: BatchReport | None = None
    batches: int = 0


class Run:
    """A run over a range of event time, batch by batch."""

    def __init__(self, span: tuple[int, int] | None = None, *, last: BatchReport | None = None, **options: int) -> None:
        self.span, self.now = span, 0.0
        self.report, self.batches = last, 0
        self._figures = Figures(0.0, last, **options)

    def batch(self, seconds: float, report: BatchReport) -> Figures:
        """Finish a batch after some seconds."""
        self.report, self.batches = report, self.batches + 1
        return self.after(seconds)

    def after(self, seconds: float, *, final: bool = False) -> Figures:
        """Return the figures some seconds later."""
        self.now += seconds
        self._figures.look(self.now, self.report, self.batches, self.span, final=final)
        return copy.copy(self._figures)


def replayed(batches: int = 20, *, names: tuple[str, str] = ("trades", "customers")) -> list[BatchReport]:
    """Return the report of each batch of a replay of the three weeks before noon, its inputs a minute apart."""
    begin, length = NOON - 21 * DAY, 21 * DAY
    shown = [report(0, 0, NONE, names=names)]
    for batch in range(2, batches + 1):
        at = begin + length * batch // batches if batch < batches else END_OF_TIME
        other = at if at == END_OF_TIME else at + (batch % 3 - 1) * 60_000
        shown.append(report(batch * 100_000, batch * 10_000, at, other, buffered=3_456 * (batch % 7), names=names))
    return shown
