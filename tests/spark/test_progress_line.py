"""The line that shows progress: what it says at each moment, in a terminal and without one."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass

import pytest

from cojoin.report import BatchReport, InputReport
from cojoin.spark import progress_line
from cojoin.spark.progress_line import ProgressLine
from cojoin.watermarks import END_OF_TIME, NONE

NOON = 1_768_478_400_000


def report(trades: int, customers: int = 0, watermark: int = NOON, other: int | None = None) -> BatchReport:
    left, right = (
        InputReport(name, rows, rows, 0, {}, 0, at, at, "active", None)
        for name, rows, at in (("trades", trades, watermark), ("customers", customers, other or watermark))
    )
    return BatchReport(0, 0, watermark, "trades", (left, right), 0, {}, 0, {})


@dataclass
class Query:
    progress: BatchReport | None = None
    batches: int = 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: now[0])
    return now


def test_before_the_first_batch_there_is_only_time(clock):
    line = ProgressLine(Query())
    clock[0] += 3
    assert line.text() == "starting  3 s"


def test_it_shows_rows_watermarks_and_rate(clock):
    query = Query()
    line = ProgressLine(query)
    clock[0] += 2
    query.progress, query.batches = report(900, 100), 1
    said = "1 batch  trades 900 to 12:00:00  customers 100 to 12:00:00  500 rows/s  2 s  (2026-01-15)"
    assert line.text() == said
    clock[0] += 100
    assert "no new rows  102 s" in line.text()
    assert "10 rows/s" in line.text(final=True)


def test_a_total_makes_a_bar(clock):
    query = Query()
    line = ProgressLine(query, total=2_000)
    clock[0] += 2
    query.progress, query.batches = report(900, 100), 1
    expected = f"{'█' * 10}{'░' * 10}  50%  trades to 12:00:00  customers to 12:00:00  500 rows/s  2 s  (2026-01-15)"
    assert line.text() == expected


def test_a_restart_counts_only_its_own_rows(clock):
    query = Query(report(5_000, 1_000))
    line = ProgressLine(query)
    clock[0] += 2
    assert line.text().startswith("starting  trades 5,000 to")
    assert "rows/s" not in line.text()
    query.progress, query.batches = report(5_100, 1_100), 1
    assert "100 rows/s" in line.text()


def test_watermarks_of_different_days_and_none_and_the_end(clock):
    query = Query(report(1, 1, NOON, NOON + 86_400_000), 1)
    assert "trades 1 to 2026-01-15 12:00:00  customers 1 to 2026-01-16 12:00:00" in ProgressLine(query).text()
    query.progress = report(1, 0, NOON, NONE)
    assert "customers 0 to no watermark yet" in ProgressLine(query).text()
    query.progress = report(1, 1, END_OF_TIME)
    assert "trades 1 to the end" in ProgressLine(query).text()


def test_a_terminal_gets_one_line_cut_to_its_width(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress_line, "_columns", lambda: 30)
    query = Query()
    with ProgressLine(query) as line:
        line.draw()
        query.progress, query.batches = report(900, 100), 1
        line.draw()
        written = sys.stderr.getvalue()
    assert written.count("\n") == 0
    assert all(len(drawn) <= 29 for drawn in written.split("\r"))
    assert written.endswith("…")
    assert sys.stderr.getvalue().endswith("\n")


def test_elsewhere_it_is_silent_or_plain(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    query = Query()
    with ProgressLine(query) as line:
        line.draw()
    assert not sys.stderr.getvalue()
    with ProgressLine(query, enabled=True) as line:
        for batch in range(1, 5):
            clock[0] += 4
            query.progress, query.batches = report(batch * 100), batch
            line.draw()
    lines = sys.stderr.getvalue().splitlines()
    assert [text.split("  ")[0] for text in lines] == ["2 batches", "4 batches", "4 batches"]
    assert "\r" not in sys.stderr.getvalue()
