"""The progress of a run: figures, the parts after the bar, and the line in a terminal, a cell and a pipe."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tqdm import std as tqdm_std
from tqdm.utils import disp_len

from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.spark.query import progress
from cojoin.spark.query.progress import Figures, Goal, ProgressLine, postfix_parts
from tests.spark.query.runs import DAY, HOUR, NOON, Calendar, Query, Run, replayed, report


@pytest.fixture(autouse=True)
def calendar(monkeypatch) -> None:
    """Let the line take ``Calendar``'s day for today: two months after what is replayed, unless a test moves it."""
    monkeypatch.setattr(progress, "datetime", Calendar)


TEN_HOURS = (NOON, NOON + 10 * HOUR)


def at(done: float, rows: int = 1_000, **more: int):
    """A report that far into 10 hours from noon."""
    return report(rows, 0, NOON + int(10 * HOUR * done), **more)


def part(shown: Figures) -> float | None:
    """Return how much of the goal is done, 0 to 1."""
    return None if shown.goal is None else shown.goal.done / shown.goal.total


def test_rows_a_second_are_those_of_the_last_batches_and_at_the_end_of_the_whole_wait():
    run = Run()
    assert run.batch(2, report(900, 100)).rate == 500
    assert run.after(28).rate == 500
    assert run.after(72).rate is None
    assert run.after(0, final=True).rate == pytest.approx(1_000 / 102)


def test_rows_a_second_follow_a_change_of_pace_within_a_few_batches():
    run = Run()
    for batch in range(1, 6):
        assert run.batch(2, report(batch * 200)).rate == 100
    for batch in range(1, 6):
        shown = run.batch(2, report(1_000 + batch * 20))
    assert shown.rate == 10
    assert run.after(0, final=True).rate == 55


def test_the_time_a_query_takes_to_start_counts_only_until_the_second_batch():
    run = Run()
    assert run.batch(40, report(4_000)).rate == 100
    assert run.batch(4, report(8_000)).rate == 1_000
    assert run.batch(6, report(12_000)).rate == 800


def test_batches_that_take_longer_than_half_a_minute_have_a_rate_all_the_while():
    run = Run()
    for batch in range(1, 5):
        assert run.batch(50, report(batch * 5_000)).rate == 100
        assert run.after(45).rate == 100
        run.now -= 45


def test_a_wait_without_rows_has_no_rate():
    run = Run(last=report(5_000))
    assert run.batch(2, report(5_000)).rate is None
    assert run.after(1, final=True).rate is None


def test_a_restart_counts_only_its_own_rows():
    run = Run(last=report(5_000, 1_000))
    assert run.after(1).rate is None
    shown = run.batch(1, report(5_100, 1_100))
    assert (shown.rate, shown.rows) == (100, 200)


def test_the_bar_goes_by_the_watermark_and_a_restart_begins_where_it_was():
    run = Run(TEN_HOURS)
    assert run.after(1).goal is None
    assert run.batch(1, report(10, 0, NONE)).goal == Goal("time", 0, 10 * HOUR)
    assert part(run.batch(1, at(-0.5))) == 0.0
    assert part(run.batch(1, at(0.25))) == 0.25
    assert part(run.batch(1, report(10, 0, END_OF_TIME))) == 1.0
    assert part(Run(TEN_HOURS, last=at(0.4)).after(1)) == pytest.approx(0.4)


def test_a_total_is_a_goal_until_a_range_is_known():
    run = Run(total=2_000)
    assert run.batch(1, report(400)).goal == Goal("rows", 400, 2_000)
    assert run.batch(1, report(2_100)).goal == Goal("rows", 2_000, 2_000)
    run.span = TEN_HOURS
    assert run.batch(1, at(0.3)).goal == Goal("time", 3 * HOUR, 10 * HOUR)


def test_an_end_that_moves_on_moves_the_goal():
    run = Run((NOON, NOON + 10 * HOUR))
    assert run.batch(10, report(1, 0, NOON + 5 * HOUR)).goal == Goal("time", 5 * HOUR, 10 * HOUR)
    run.span = (NOON, NOON + 20 * HOUR)
    assert run.after(1).goal == Goal("time", 5 * HOUR, 20 * HOUR)


def test_a_live_run_tells_how_far_behind_it_is_and_not_100_percent():
    run = Run((NOON, NOON + DAY))
    assert run.batch(1, report(10, 0, NOON + DAY // 2)).behind is None
    run.span = (NOON, NOON + DAY + 5_000)
    shown = run.batch(1, report(10, 0, NOON + DAY, newest=NOON + DAY + 4_200))
    assert (shown.goal, shown.behind) == (None, 5_000)
    # A few minutes behind is still live; half a day is a replay again.
    run.span = (NOON, NOON + DAY + 300_000)
    assert run.batch(1, report(10, 0, NOON + DAY)).behind == 300_000
    run.span = (NOON, NOON + 2 * DAY)
    shown = run.batch(1, report(10, 0, NOON + DAY))
    assert (part(shown), shown.behind) == (0.5, None)


def test_a_run_that_began_at_the_newest_record_is_live_at_once():
    run = Run((NOON, NOON))
    assert part(run.batch(1, report(0, 0, NONE))) == 0
    run.span = (NOON, NOON + 10_000)
    assert run.batch(1, report(5, 0, NOON + 6_000)).behind == 4_000


def test_without_a_range_it_is_how_far_behind_the_newest_timestamp():
    run = Run()
    assert run.batch(1, report(5, 0, NONE)).behind is None
    assert run.batch(1, report(5, 0, NOON, newest=NOON + 4_200)).behind == 4_200
    assert run.batch(1, report(5, 0, END_OF_TIME)).behind is None


def test_a_range_gone_through_without_a_drain_is_full_and_not_live():
    run = Run(TEN_HOURS)
    run.batch(1, at(0.5))
    for shown in (run.batch(1, at(1.0, newest=NOON + 10 * HOUR + 70)), run.after(5), run.after(0, final=True)):
        assert (part(shown), shown.behind) == (1.0, None)
    assert part(Run((NOON, NOON)).batch(1, at(0.0))) == 1.0


def postfix(shown: Figures) -> str:
    return "".join(postfix_parts(shown))


def inputs(*marks: int, **more: tuple[str, str]) -> str:
    """Return the postfix for two inputs at their watermarks, after a batch of two rows that took a second."""
    return postfix(Run((0, 1 << 62)).batch(1, report(1, 1, *marks, **more)))


def test_before_the_first_batch_it_is_starting():
    run = Run()
    assert postfix(run.after(3)) == "starting"
    assert postfix(run.after(0, final=True)) == "no new rows"


def test_a_replay_has_all_figures():
    run = Run((NOON - 8 * HOUR, NOON + 8 * HOUR))
    run.batch(5, report(50_000, 5_000, NOON - HOUR))
    assert postfix(run.batch(5, report(100_000, 10_000, NOON, NOON + 12_400, buffered=1_000))) == (
        "01-15 trades 12:00:00, customers 12:00:12, 11.0k rows/s, held by trades, drift 12.4 s, buffered 1,100"
    )


def test_a_live_run_tells_how_far_behind_it_is_and_counts_batches_and_rows():
    run = Run(last=report(100, 0))
    shown = run.batch(2, report(1_000, 100, NOON, newest=NOON + 4_230))
    assert postfix(shown) == (
        "4.2 s behind the newest record, 01-15 trades 12:00:00, customers 12:00:00, 500 rows/s, 1 batch, 1,000 rows, "
        "drift 0 s, buffered 0"
    )
    assert postfix(run.batch(100, run.report)).startswith(
        "4.2 s behind the newest record, 01-15 trades 12:00:00, customers 12:00:00, no new rows, 2 batches, "
    )


def test_a_restart_shows_where_it_was():
    run = Run((NOON - HOUR, NOON + HOUR), last=report(5, 5))
    assert postfix(run.after(2)).startswith("01-15 trades 12:00:00, customers 12:00:00, starting, ")
    assert postfix(run.after(1, final=True)).startswith("01-15 trades 12:00:00, customers 12:00:00, no new rows, ")


def test_a_day_stands_only_where_it_matters():
    today = Calendar.at
    assert inputs(today, today) == "trades 12:00:00, customers 12:00:00, 2.00 rows/s, drift 0 s, buffered 0"
    assert inputs(NOON, NOON).startswith("01-15 trades 12:00:00, customers 12:00:00, ")
    assert inputs(NOON, NOON + DAY).startswith(
        "trades 01-15 12:00:00, customers 01-16 12:00:00, 2.00 rows/s, held by trades, drift 1 d 0 h"
    )
    assert inputs(10**17, NOON).startswith("01-15 trades 100000000000000000 ms, customers 12:00:00, ")


def test_today_is_a_day_of_one_year_and_ends_at_midnight_utc(monkeypatch):
    for at, day in [
        (NOON - 12 * HOUR, ""),
        (NOON + 12 * HOUR - 1, ""),
        (NOON - 12 * HOUR - 1, "01-15 "),
        (NOON + 12 * HOUR, "01-15 "),
        (NOON + 365 * DAY, "01-15 "),
    ]:
        monkeypatch.setattr(Calendar, "at", at)
        assert inputs(NOON, NOON).startswith(f"{day}trades 12:00:00, customers 12:00:00, ")
    # Where the days differ, today's stands too.
    monkeypatch.setattr(Calendar, "at", NOON)
    assert inputs(NOON, NOON - DAY).startswith("trades 01-15 12:00:00, customers 01-14 12:00:00, ")


def test_who_holds_who_is_idle_who_has_not_spoken_and_who_is_at_the_end():
    assert inputs(NOON, NONE) == (
        "01-15 trades 12:00:00, customers no watermark yet, 2.00 rows/s, held by customers, buffered 0"
    )
    assert inputs(END_OF_TIME, NOON) == (
        "01-15 trades at the end, customers 12:00:00, 2.00 rows/s, held by customers, buffered 0"
    )
    assert "customers 11:00:00 (idle)" in inputs(NOON, NOON - HOUR, statuses=("active", "idle"))
    assert inputs(END_OF_TIME) == "trades at the end, customers at the end, 2.00 rows/s, buffered 0"


def test_rows_that_wait_while_all_are_idle_are_shown_with_the_setting():
    def shown(buffered):
        last = replace(report(1_000, 100, NOON, NOON + 1, buffered=buffered), holding_input=None, watermark=NOON)
        return postfix(Run().batch(5, last))

    assert ", held while all are idle (when_all_idle), " in shown(7)
    assert "held" not in shown(0)


def test_a_partition_that_holds_is_named_and_why():
    def held(*, other=NOON, span=None, **more):
        last = report(1_000, 100, NOON, other)
        trades = replace(last.inputs[0], holding_partition='["t-1\\n", 3]', **more)
        return postfix(Run(span).batch(5, replace(last, inputs=(trades, last.inputs[1]))))

    several = {"partitions": {'["t-1\\n", 3]': NOON, '["t-1\\n", 4]': NOON + 1}}
    topics = {"partitions": {'["t-1\\n", 3]': NOON, '["t-2", 3]': NOON + 1, '["t-2", 4]': NOON + 1}}
    silent = {"held_by": "max_drift"}
    assert ", held by trades, " in held(other=NOON + 1, partitions={'["t-1\\n", 3]': NOON})
    assert ", held by partition 3 of trades, " in held(other=NOON + 1, **several)
    assert ", held by partition t-1?/3 of trades, " in held(other=NOON + 1, **topics)
    assert ", held by partition 3 of trades (timestamps beyond max_drift), " in held(
        other=NOON + 1, source_agrees=False, **several
    )
    assert ", held by silent partition 3 of trades (max_drift), " in held(**several, **silent)
    assert ", held by silent partition 3 of trades, " in held(**several, held_by="silence")
    assert "held by" not in held(**several), "both inputs are at one time"
    assert "held by" not in held(span=(NOON - HOUR, NOON + HOUR), **several, **silent), "which is usual in the history"


def test_buffered_and_drift_are_those_of_both_inputs():
    shown = Run().batch(1, report(9, 9, NOON, NOON - 12_000, buffered=100))
    assert postfix(shown).endswith(", drift 12 s, buffered 110")


def test_late_rows_are_shown_until_the_end():
    run = Run((NOON - HOUR, NOON + HOUR))
    last = report(1_000, 100, NOON)
    trades, customers = last.inputs
    late = replace(trades, rejected={"late": 1_032, "null_key": 4})
    shown = run.batch(5, replace(last, inputs=(late, replace(customers, late_applied=2))))
    assert "trades 12:00:00 (1,032 late), customers 12:00:00 (2 late)" in postfix(shown)
    assert "(1,032 late)" in postfix(run.after(1, final=True))


def test_how_far_a_snapshot_is_read_is_shown():
    last = report(1_000, 100, NOON)
    trades, customers = last.inputs
    shown = Run().batch(5, replace(last, inputs=(trades, replace(customers, snapshot_rows=(100, 5_000_000)))))
    assert "customers 12:00:00 (100 of 5,000,000 rows of the snapshot read)" in postfix(shown)


def test_what_can_not_be_printed_of_a_name_is_a_question_mark():
    shown = Run().batch(1, report(1, names=("a\nb\x1b[31m", "取\0引\udcff")))
    assert "a?b?[31m 12:00:00, 取?引? 12:00:00" in postfix(shown)
    assert postfix(shown).isprintable()


class ScreenModel:
    """Rows of a terminal as it shows them; every row is checked not to be wider than the terminal."""

    def __init__(self, columns: int) -> None:
        self.columns, self.rows, self.column = columns, [""], 0

    def write(self, text: str) -> None:
        for found in re.finditer(r"[\r\n]|[^\r\n]+", text):
            part = found.group()
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.rows.append("")
            else:
                assert part.isprintable()
                row = self.rows[-1].ljust(self.column)
                self.rows[-1] = row[: self.column] + part + row[self.column + len(part) :]
                self.column += len(part)
                assert disp_len(self.rows[-1].rstrip()) <= self.columns

    @property
    def shown(self) -> list[str]:
        return [row.rstrip() for row in self.rows]


class Pty:
    """A pseudo-terminal: what is written to ``stream`` comes out at its other end, as a terminal would get it."""

    def __init__(self, columns: int, lines: int = 24, encoding: str = "utf-8") -> None:
        self._outside, inside = pty.openpty()
        self._encoding = encoding
        self.stream = os.fdopen(inside, "w", encoding=encoding)
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int = 24) -> None:
        fcntl.ioctl(self.stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self) -> str:
        """Return what was written since, up to a bell of our own: what is under way is not missed."""
        self.stream.write("\a")
        self.stream.flush()
        found = b""
        while not found.endswith(b"\a"):
            found += os.read(self._outside, 1 << 16)
        return found[:-1].decode(self._encoding)

    def line(self) -> str:
        """Return what stands in the line, of what was written since."""
        return self.read().rstrip().rpartition("\r")[2]

    def close(self) -> None:
        self.stream.close()
        os.close(self._outside)


@pytest.fixture
def terminal(monkeypatch):
    made: list[Pty] = []

    def make(*size: int, term: str = "xterm", **more: str) -> Pty:
        made.append(Pty(*size, **more))
        monkeypatch.setenv("TERM", term)
        monkeypatch.setattr(sys, "stderr", made[-1].stream)
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(tqdm_std, "time", lambda: now[0])
    return now


class Running(Query):
    """A query of which a test says when its batches finish."""

    def batch(self, clock: list[float], seconds: float, *counts: int, **more: int) -> None:
        clock[0] += seconds
        self.progress, self.batches = report(*counts, **more), self.batches + 1


def half_way(clock: list[float], line: ProgressLine, query: Running) -> None:
    """Draw two batches of a replay of 16 hours; the second brings it to the middle."""
    query.batch(clock, 5, 50_000, 5_000, NOON - HOUR)
    line.draw()
    query.batch(clock, 5, 100_000, 10_000, NOON, NOON + 12_400, buffered=1_000)
    line.draw()


def span() -> tuple[int, int]:
    return NOON - 8 * HOUR, NOON + 8 * HOUR


@pytest.mark.parametrize("columns", [20, 40, 80, 120, 200])
@pytest.mark.parametrize("names", [("trades", "customers"), ("t" * 90, "取引" * 30), ("a\nb\x1b[31m", "c\0d")])
def test_a_terminal_shows_one_line_and_the_last_state_stays(clock, terminal, columns, names):
    device, model, query = terminal(columns), ScreenModel(columns), Query()
    device.stream.write("before\n")
    with ProgressLine(query, span=lambda: (NOON - 21 * DAY, NOON)) as line:
        model.write(device.read())
        assert model.shown == ["before", "00:00, starting"]
        for batch, each in enumerate(replayed(names=names), 1):
            query.progress, query.batches = each, batch
            clock[0] += 5
            line.draw()
            model.write(device.read())
            assert len(model.shown) == 2
            assert model.shown[1].startswith(f"{5 * batch if batch > 1 else 0:3}%|")
    device.stream.write("after\n")
    model.write(device.read())
    before, last, *after = model.shown
    assert (before, last[:16], after) == ("before", "100%|██████████|", ["after", ""])


@pytest.mark.parametrize(
    ("columns", "postfix"),
    [
        (52, "01-15 trades 12:00:00"),
        (60, "01-15 trades 12:00:00"),
        (80, "01-15 trades 12:00:00, customers 12:00:12"),
        (100, "01-15 trades 12:00:00, customers 12:00:12, 11.0k rows/s"),
        (115, "01-15 trades 12:00:00, customers 12:00:12, 11.0k rows/s, held by trades"),
        (130, "01-15 trades 12:00:00, customers 12:00:12, 11.0k rows/s, held by trades, drift 12.4 s"),
        (145, "01-15 trades 12:00:00, customers 12:00:12, 11.0k rows/s, held by trades, drift 12.4 s, buffered 1,100"),
    ],
)
def test_what_has_no_room_is_left_out_whole(clock, terminal, columns, postfix):
    device, query = terminal(columns), Running()
    with ProgressLine(query, span=span) as line:
        half_way(clock, line, query)
        assert device.line() == f" 50%|█████     | 00:10<00:40, {postfix}"


def test_a_narrow_terminal_has_no_half_of_a_watermark(clock, terminal):
    device, query = terminal(44), Running()
    with ProgressLine(query, span=span) as line:
        half_way(clock, line, query)
        assert device.line() in {" 50%|█████     | 00:10<00:40", " 50%|█████     | 00:10<00:40, 11.0k rows/s"}


@pytest.mark.parametrize(
    ("trades", "customers", "postfix"),
    [
        (0, 0, "01-15 trades 12:00:00, customers 12:00:00"),
        (0, 60_000, "01-15 trades 12:00:00, customers 12:01:00"),
        (60_000, 0, "01-15 trades 12:01:00, customers 12:00:00"),
    ],
)
@pytest.mark.parametrize("seconds", [1, 880])
def test_80_columns_hold_both_watermarks_of_a_past_day_and_the_time_left(
    clock, terminal, trades, customers, postfix, seconds
):
    device, query = terminal(80), Running()
    with ProgressLine(query, span=lambda: (NOON - 4 * HOUR, NOON + 4 * HOUR)) as line:
        query.batch(clock, seconds, 5_000_000, 500_000, NOON - 2 * HOUR, buffered=1_000_000)
        line.draw()
        query.batch(clock, seconds, 10_000_000, 1_000_000, NOON + trades, NOON + customers, buffered=1_000_000)
        line.draw()
        shown = device.line()
        assert re.search(r"\| \d\d:\d\d<\d\d:\d\d, (?=01-15 )", shown)
        assert postfix in shown
        assert disp_len(shown) <= 80


def test_the_line_follows_the_size_of_the_window(clock, terminal):
    device, query = terminal(145), Running()
    with ProgressLine(query, span=span) as line:
        half_way(clock, line, query)
        assert device.line().endswith("buffered 1,100")
        for columns, end in ((52, "<00:40, 01-15 trades 12:00:00"), (100, "11.0k rows/s"), (145, "buffered 1,100")):
            device.resize(columns)
            line.draw()
            shown = device.line()
            assert len(shown) < columns
            assert shown.endswith(end)


@pytest.mark.parametrize("size", [(0, 0), (80, 0), (80, 2)])
def test_a_terminal_that_does_not_know_its_size_gets_the_usual_one(clock, terminal, size):
    device, query = terminal(*size), Running()
    with ProgressLine(query, span=span) as line:
        half_way(clock, line, query)
        assert device.line().endswith("01-15 trades 12:00:00, customers 12:00:12")


def test_a_terminal_without_blocks_gets_signs(clock, terminal):
    device, query = terminal(120, encoding="ascii"), Query(report(1, names=("käufe", "customers")))
    with ProgressLine(query, span=span) as line:
        line.draw()
        assert device.line().startswith(
            " 50%|#####     | 00:00<?, 01-15 k?ufe 12:00:00, customers 12:00:00, starting, "
        )


def test_what_something_else_writes_meanwhile_stays_readable(clock, terminal):
    device, model, query = terminal(140), ScreenModel(200), Running()
    with ProgressLine(query, span=span) as line:
        half_way(clock, line, query)
        device.stream.write("WARN something else\n")
        clock[0] += 1
        line.draw()
        model.write(device.read())
        assert len(model.shown) == 2
        assert model.shown[0].endswith("WARN something else")
        assert model.shown[1].startswith(
            " 50%|█████     | 00:11<00:40, 01-15 trades 12:00:00, customers 12:00:12, 11.0k rows/s, "
        )


def test_nothing_is_written_where_nothing_has_changed(clock, terminal):
    device, query = terminal(80), Running()
    with ProgressLine(query, span=span) as line:
        half_way(clock, line, query)
        device.read()
        line.draw()
        assert not device.read()
        clock[0] += 1
        line.draw()
        assert " 00:11<" in device.line()


def test_time_left_needs_two_batches_and_follows_their_pace(clock, terminal):
    device, query, left = terminal(80), Running(), []
    with ProgressLine(query, span=lambda: (NOON, NOON + 10 * HOUR)) as line:
        for done, seconds in enumerate([20, 10, 10, 20, 20], 1):
            query.batch(clock, seconds, 1_000 * done, 0, NOON + done * HOUR)
            line.draw()
            left.append(re.findall(r"<(\S+), ", device.line())[0])
            clock[0] += 1
            line.draw()
            assert f"<{left[-1]}, " in device.line()
            clock[0] -= 1
    assert left == ["?", "01:20", "01:10", "01:27", "01:23"]
    # A run that ends half-way has nothing left to wait for.
    assert device.line() == " 50%|█████     | 01:20, 01-15 trades 17:00:00, customers 17:00:00, 62.5 rows/s"


def test_a_watermark_that_stands_still_has_no_time_left(clock, terminal):
    device, query = terminal(80), Running()
    with ProgressLine(query, span=span) as line:
        for batch in range(1, 6):
            query.batch(clock, 2, batch)
            line.draw()
        assert device.line().startswith(" 50%|█████     | 00:10<?, ")


def test_a_restart_begins_where_it_was_and_its_pace_is_its_own(clock, terminal):
    device, query = terminal(100), Running(report(5_000, 0, NOON))
    with ProgressLine(query, span=span) as line:
        line.draw()
        assert device.line().startswith(
            " 50%|█████     | 00:00<?, 01-15 trades 12:00:00, customers 12:00:00, starting, "
        )
        query.batch(clock, 10, 6_000, 0, NOON + HOUR)
        line.draw()
        assert device.line().startswith(
            " 56%|█████▋    | 00:10<01:10, 01-15 trades 13:00:00, customers 13:00:00, 100 rows/s, "
        )


def test_without_a_range_the_bar_is_over_the_rows(clock, terminal):
    device, query = terminal(100), Running()
    with ProgressLine(query, total=2_100) as line:
        for batch in (1, 2):
            query.batch(clock, 1, 400 * batch)
            line.draw()
        assert device.line().startswith(
            " 38%|███▊      | 00:02<00:03, 01-15 trades 12:00:00, customers 12:00:00, 400 rows/s, "
        )


def test_a_range_that_becomes_known_later_makes_a_bar(clock, terminal):
    device, model, query, known = terminal(120), ScreenModel(120), Running(), []
    query.batch(clock, 0, 5, 5)
    with ProgressLine(query, span=lambda: known[0] if known else None) as line:
        line.draw()
        model.write(device.read())
        assert model.shown[0].startswith(
            "00:00, 0 s behind the newest record, 01-15 trades 12:00:00, customers 12:00:00, no new rows, 1 batch, "
        )
        known.append(span())
        clock[0] += 7
        assert not line.wait(threading.Event(), 0)
        line.draw()
        model.write(device.read())
        assert model.shown[0].startswith(
            " 50%|█████     | 00:07<?, 01-15 trades 12:00:00, customers 12:00:00, no new rows, "
        )
    model.write(device.read())
    assert [text[:20] for text in model.shown] == [" 50%|█████     | 00:", ""]


def test_a_live_run_has_no_bar_until_it_falls_back(clock, terminal):
    device, query, end = terminal(120), Running(), [NOON]
    with ProgressLine(query, span=lambda: (NOON - DAY, end[0])) as line:
        query.batch(clock, 1, 100, 0, NOON - HOUR)
        line.draw()
        assert device.line().startswith(" 96%|")
        end[0] = NOON + 1_000
        query.batch(clock, 1, 200, 0, NOON, newest=NOON + 500)
        line.draw()
        assert device.line().startswith(
            "00:02, 1 s behind the newest record, 01-15 trades 12:00:00, customers 12:00:00, 100 rows/s, 2 batches, "
        )
        end[0] = NOON + DAY
        query.batch(clock, 1, 300, 0, NOON + 1)
        line.draw()
        assert device.line().startswith(
            " 50%|█████     | 00:03<?, 01-15 trades 12:00:00, customers 12:00:00, 100 rows/s, "
        )


def test_the_output_decides(terminal, monkeypatch):
    device = terminal(80)
    with ProgressLine(Query()):
        pass
    assert device.line() == "00:00, no new rows"
    device = terminal(80)
    with ProgressLine(Query(), enabled=False) as line:
        line.draw()
    assert device.read() == ""
    device = terminal(80, term="dumb")
    with ProgressLine(Query()) as line:
        line.draw()
    assert device.read() == ""
    with ProgressLine(Query(), enabled=True) as line:
        line.draw()
    assert device.read() == "00:00, no new rows\r\n"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with ProgressLine(Query()) as line:
        line.draw()
    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize("ended", [True, False])
def test_it_waits_for_an_event_as_long_as_it_may(terminal, ended):
    terminal(80)
    event = threading.Event()
    if ended:
        event.set()
    with ProgressLine(Query()) as line:
        assert line.wait(event, 0.3) is ended
        event.set()
        assert line.wait(event, None)


def test_a_pipe_gets_plain_lines_after_new_batches_and_one_at_the_end(clock, monkeypatch):
    outside, inside = os.pipe()
    query = Running()
    with os.fdopen(outside, encoding="utf-8") as reader, os.fdopen(inside, "w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with ProgressLine(query, enabled=True, span=span) as line:
            for batch in range(1, 5):
                query.batch(clock, 4.1, 1_000 * batch, 0, NOON + batch * HOUR, buffered=100, names=("käufe", "b"))
                for _ in range(3):
                    line.draw()
        stream.close()
        lines = reader.read().split("\n")
    tail = "01-15 k?ufe {0}:00:00, b {0}:00:00, 244 rows/s, drift 0 s, buffered 110"
    assert lines == [
        f"62% 00:08<00:24, {tail.format(14)}",
        f"75% 00:16<00:16, {tail.format(16)}",
        f"75% 00:16, {tail.format(16)}",
        "",
    ]


def test_each_batch_is_drawn_once(clock, terminal):
    device, query = terminal(145), Running()
    with ProgressLine(query, span=span) as line:
        device.read()
        for batch in range(1, 5):
            query.batch(clock, 5, 1_000 * batch, 0, NOON + batch * HOUR)
            line.draw()
            assert device.read().count("\r") == 1, batch


def test_elsewhere_lines_come_only_after_new_batches(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    query = Running()
    with ProgressLine(query, enabled=True) as line:
        clock[0] += 60
        line.draw()
        query.batch(clock, 6, 100)
        for _ in range(5):
            line.draw()
            clock[0] += 6
        query.batch(clock, 1, 200)
        line.draw()
    lines = sys.stderr.getvalue().splitlines()
    assert [re.findall(r"\d+ batch", text) for text in lines] == [["1 batch"], ["2 batch"], ["2 batch"]]


def test_tqdm_s_own_switch_turns_it_off(terminal, monkeypatch):
    device = terminal(80)
    # As TQDM_DISABLE=1 does, which is read when tqdm is imported.
    monkeypatch.setattr(progress, "tqdm", partial(tqdm_std.tqdm, disable=True))
    with ProgressLine(Query(report(1), 1), enabled=True, span=span) as line:
        line.draw()
    assert device.read() == ""


@pytest.mark.filterwarnings("ignore")
def test_a_real_notebook_holds_the_last_state_alone(monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    folder = str(Path(__file__).resolve().parents[3])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    source = (
        "import threading\n"
        "from tests.spark.query.runs import NOON, DAY, Calendar, Query, report\n"
        "from cojoin.spark.query import progress\n"
        "from cojoin.spark.query.progress import ProgressLine\n"
        "progress.datetime = Calendar\n"
        "query = Query()\n"
        "with ProgressLine(query, span=lambda: (NOON - DAY, NOON + DAY)) as line:\n"
        "    for batch in range(4):\n"
        "        query.progress, query.batches = report(batch, 0, NOON - DAY // (batch + 1)), batch\n"
        "        print('batch', batch)\n"
        "        line.wait(threading.Event(), 0.6)\n"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    printed, shown, *more = notebook.cells[0]["outputs"]
    # What the cell prints meanwhile comes before and after the line, and never into it.
    assert "".join(each["text"] for each in (printed, *more)) == "".join(f"batch {batch}\n" for batch in range(4))
    assert shown["output_type"] == "display_data"
    assert shown["data"].keys() == {"text/plain"}
    assert shown["data"]["text/plain"].startswith(" 38%|███▊      | 00:02, 01-15 trades 06:00:00, customers 06:00:00, ")
