"""The lines of progress: what they say at each moment, and what they leave out where there is no room."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.spark.progress.layout import as_html, format_left, lay_out, plain_line
from tests.spark.runs import DAY, HOUR, NOON, Run, replayed, report


def columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(each) in {"W", "F"} else 1 for each in text)


def half_way():
    run = Run((NOON - 8 * HOUR, NOON + 8 * HOUR))
    run.batch(5, report(50_000, 5_000, NOON - HOUR))
    return run.batch(5, report(100_000, 10_000, NOON, NOON + 12_400, buffered=1_000))


def test_before_the_first_batch_there_is_only_time():
    shown = Run().after(3)
    assert lay_out(shown, 80) == ["starting  3 s"]
    assert plain_line(shown) == "starting  3 s"
    assert ">starting  3 s<" in as_html(shown)


def test_a_replay_at_each_width():
    shown = half_way()
    assert lay_out(shown, 40) == ["████░░░░  50%  about 40 s left", "trades 12:00:00  customers 12:00:12"]
    assert lay_out(shown, 80) == [
        "█████░░░░░  50%  11,000 rows/s  about 40 s left  buffered 1,100  10 s",
        "2026-01-15  trades 12:00:00 (holds)  customers 12:00:12  drift 12 s",
    ]
    first, second = lay_out(shown, 120)
    assert first == "██████████░░░░░░░░░░  50%  11,000 rows/s  about 40 s left  buffered 1,100  10 s"
    assert second == lay_out(shown, 80)[1]
    assert lay_out(shown, 200) == [f"{first}  {second}"]


@pytest.mark.parametrize("width", [1, 2, 5, 12, 40, 79, 80, 119, 120, 199, 200])
@pytest.mark.parametrize("names", [("trades", "customers"), ("t" * 90, "取引" * 30), ("a\nb\x1b[31m", "c\0d")])
def test_no_line_is_wider_than_it_may_be(width, names):
    for shown in replayed(names=names):
        lines = lay_out(shown, width)
        assert len(lines) <= 2
        assert all(columns(line) <= width and line.isprintable() for line in lines)


def test_without_a_range_it_counts_batches_and_rows():
    run = Run()
    shown = run.batch(2, report(900, 100, NOON, newest=NOON + 4_230))
    assert lay_out(shown, 120) == [
        "1 batch  500 rows/s  4.2 s behind  buffered 0  2 s",
        "2026-01-15  trades 900 to 12:00:00  customers 100 to 12:00:00  drift 0 s",
    ]
    assert lay_out(run.batch(100, run.report), 120)[0].startswith("2 batches  no new rows  ")


def test_a_restart_shows_where_it_was():
    run = Run((NOON - HOUR, NOON + HOUR), last=report(5, 5))
    assert lay_out(run.after(2), 80)[0] == "█████░░░░░  50%  starting  buffered 0  2 s"
    assert lay_out(run.after(1, final=True), 80)[0] == "█████░░░░░  50%  no new rows  buffered 0  3 s"


def test_a_day_stands_only_where_it_matters():
    def second(watermark: int, other: int) -> str:
        return lay_out(Run().batch(1, report(1, 1, watermark, other)), 120)[1]

    today = int(datetime.now(tz=timezone.utc).replace(hour=12, minute=0, second=0).timestamp()) * 1000
    assert second(today, today) == "trades 1 to 12:00:00  customers 1 to 12:00:00  drift 0 s"
    assert (
        second(NOON, NOON + DAY) == "trades 1 to 01-15 12:00:00 (holds)  customers 1 to 01-16 12:00:00  drift 1 d 0 h"
    )
    assert "trades 1 to 2025-01-15 12:00:00 (holds)  customers 1 to 2026" in second(NOON - 365 * DAY, NOON)
    assert second(10**17, NOON).startswith("2026-01-15  trades 1 to 100000000000000000 ms  customers 1 to 12:00:00")


def test_who_holds_who_is_idle_who_has_not_spoken_and_who_is_at_the_end():
    def second(*marks: int, **more: tuple[str, str]) -> str:
        return lay_out(Run().batch(1, report(1, 0, *marks, **more)), 120)[1]

    assert "trades 1 to 12:00:00  customers 0 to no watermark yet (holds)" in second(NOON, NONE)
    assert "trades 1 to the end  customers 0 to 12:00:00 (holds)" in second(END_OF_TIME, NOON)
    assert "customers 0 to 11:00:00 (idle)" in second(NOON, NOON - HOUR, statuses=("active", "idle"))
    assert second(END_OF_TIME) == "trades 1 to the end  customers 0 to the end"


def test_time_left_is_told_as_roughly_as_it_is_known():
    shown = {
        4: "5 s",
        41: "45 s",
        59: "1 min",
        100: "2 min",
        3_500: "58 min",
        7_200: "2 h",
        40_000: "11 h",
        9e5: "10 d",
    }
    assert {seconds: format_left(seconds) for seconds in shown} == {
        seconds: f"about {text} left" for seconds, text in shown.items()
    }


def test_a_notebook_gets_a_bar_and_escaped_names():
    run = Run((NOON - HOUR, NOON + HOUR))
    made = as_html(run.batch(1, report(1, 1, names=("<script>alert(1)</script>", "a&b"))))
    assert '<progress value="0.5000" max="1"' in made
    assert "<script>" not in made
    assert "&lt;script&gt;" in made
    assert "a&amp;b" in made


def test_a_plain_line_has_all_figures():
    assert plain_line(half_way()) == (
        "50%  11,000 rows/s  about 40 s left  buffered 1,100  10 s  2026-01-15  trades 12:00:00 (holds)  "
        "customers 12:00:12  drift 12 s"
    )


def test_late_rows_are_shown_until_the_end():
    run = Run((NOON - HOUR, NOON + HOUR))
    last = report(1_000, 100, NOON)
    trades, customers = last.inputs
    late = replace(trades, rejected={"late": 1_032, "null_key": 4})
    shown = run.batch(5, replace(last, inputs=(late, replace(customers, late_applied=2))))
    assert "trades 12:00:00 (1,032 late)" in lay_out(shown, 80)[1]
    assert "customers 12:00:00 (2 late)" in lay_out(shown, 80)[1]
    assert "(1,032 late)" in plain_line(run.after(1, final=True))
