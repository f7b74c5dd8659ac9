"""The line as it is shown: in a real terminal on a small model of its screen, in a notebook's cell, and in a pipe."""

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
from functools import partial
from pathlib import Path

import pytest
from tqdm import std as tqdm_std
from tqdm.utils import disp_len

from cojoin.spark.progress import line as progress_line
from cojoin.spark.progress.line import ProgressLine
from tests.spark.progress.runs import DAY, HOUR, NOON, Query, replayed, report


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
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: now[0])
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


def test_elsewhere_lines_come_only_after_new_batches(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    query = Running()
    with ProgressLine(query, enabled=True) as line:
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
    monkeypatch.setattr(progress_line, "tqdm", partial(tqdm_std.tqdm, disable=True))
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
        "from tests.spark.progress.runs import NOON, DAY, Calendar, Query, report\n"
        "from cojoin.spark.progress import postfix\n"
        "from cojoin.spark.progress.line import ProgressLine\n"
        "postfix.datetime = Calendar\n"
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
