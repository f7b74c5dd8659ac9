"""Where progress is drawn: a real terminal's bytes on a small model of its screen, a notebook's cell, plain lines."""

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
from itertools import chain
from pathlib import Path

import pytest

from cojoin.spark.progress import line as progress_line
from cojoin.spark.progress import screens
from cojoin.spark.progress.layout import lay_out, plain_line
from cojoin.spark.progress.line import ProgressLine
from cojoin.spark.progress.screens import NotebookScreen, PlainScreen, TerminalScreen, find_screen
from tests.spark.runs import DAY, NOON, Query, Run, replayed, report


class ScreenModel:
    """Rows of a terminal as it shows them: what we write moves its cursor, wraps, and scrolls nothing away."""

    def __init__(self, columns: int) -> None:
        self.columns, self.rows, self.row, self.column, self.wrapped = columns, [""], 0, 0, 0

    def write(self, text: str) -> None:
        for found in re.finditer(r"\x1b\[(\d*)([AKJ])|([\s\S])", text):
            number, command, character = found.groups()
            if command == "A":
                self.row -= int(number or 1)
                assert self.row >= 0, "above what was drawn"
            elif command:
                self.rows[self.row] = self.rows[self.row][: self.column]
                del self.rows[self.row + 1 if command == "J" else len(self.rows) :]
            elif character == "\r":
                self.column = 0
            elif character == "\n":
                self._down()
            else:
                assert character != "\x1b"
                if self.column == self.columns:
                    self.wrapped, self.column = self.wrapped + 1, 0
                    self._down()
                before = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = before[: self.column] + character + before[self.column + 1 :]
                self.column += 1

    def resize(self, columns: int) -> None:
        """Break the rows anew, as today's terminals do; the cursor stays at its character."""
        broken = [[text[at : at + columns] for at in range(0, max(1, len(text)), columns)] for text in self.rows]
        self.row = sum(map(len, broken[: self.row])) + self.column // columns
        self.rows, self.columns, self.column = [*chain(*broken)], columns, self.column % columns

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")


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

    def close(self) -> None:
        self.stream.close()
        os.close(self._outside)


@pytest.fixture
def terminal():
    made: list[Pty] = []

    def make(*size: int, **more: str) -> Pty:
        made.append(Pty(*size, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("columns", [10, 40, 80, 120, 200])
def test_a_terminal_shows_each_line_once(terminal, columns):
    device, model = terminal(columns), ScreenModel(columns)
    device.stream.write("before\n")
    screen, (*moments, last) = TerminalScreen(device.stream), replayed()
    for moment in moments:
        screen.draw(moment)
        model.write(device.read())
        assert model.rows == ["before", *lay_out(moment, columns - 1)]
    screen.close(last)
    device.stream.write("after\n")
    model.write(device.read())
    assert model.rows == ["before", *lay_out(last, columns - 1), "after", ""]
    assert not model.wrapped


def test_a_terminal_that_is_resized_is_wiped_whole(terminal):
    device, model = terminal(120), ScreenModel(120)
    device.stream.write("before\n")
    screen, moments = TerminalScreen(device.stream), replayed()
    for columns, moment in zip([120, 50, 25, 200, 80, 30, 120, 80], moments[4:], strict=False):
        device.resize(columns)
        model.resize(columns)
        screen.draw(moment)
        model.write(device.read())
        assert model.rows == ["before", *lay_out(moment, columns - 1)]


def test_what_something_else_writes_meanwhile_stays_readable(terminal):
    device, model = terminal(80), ScreenModel(80)
    screen, moments = TerminalScreen(device.stream), replayed()
    screen.draw(moments[5])
    warning = "WARN something else has more to say than a line of progress has in it: " + "x" * 8
    device.stream.write(f"{warning}\n")
    screen.draw(moments[6])
    model.write(device.read())
    assert model.rows == [warning, *lay_out(moments[6], 79)]


def test_a_terminal_without_height_gets_one_line_and_one_without_size_the_usual(terminal):
    shown = replayed()[5]
    device, model = terminal(80, 2), ScreenModel(80)
    TerminalScreen(device.stream).draw(shown)
    model.write(device.read())
    assert model.rows == lay_out(shown, 79)[:1]
    device = terminal(0, 0)
    TerminalScreen(device.stream).draw(shown)
    assert lay_out(shown, 79)[1] in device.read()


def test_a_terminal_without_blocks_gets_signs(terminal):
    device, model = terminal(80, encoding="ascii"), ScreenModel(80)
    TerminalScreen(device.stream).close(Run((NOON - DAY, NOON + DAY)).batch(1, report(1, names=("käufe", "customers"))))
    model.write(device.read())
    assert model.rows[0].startswith("#####-----  50%")
    assert "k?ufe" in model.rows[1]


def test_nothing_is_written_where_nothing_has_changed(terminal):
    device = terminal(80)
    screen, shown = TerminalScreen(device.stream), replayed()[5]
    screen.draw(shown)
    device.read()
    screen.draw(shown)
    device.stream.write("only this")
    assert device.read() == "only this"


def test_the_output_decides(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal(80).stream)
    assert isinstance(find_screen(), TerminalScreen)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(find_screen(), PlainScreen)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(find_screen(), PlainScreen)


class Cell(io.StringIO):
    """Standard error as a notebook's kernel has it, and what its ``display`` was given."""

    __module__ = "ipykernel.iostream"


def test_a_notebook_without_a_display_gets_plain_lines(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", io)
    monkeypatch.setattr(sys, "stderr", Cell())
    assert isinstance(find_screen(), NotebookScreen)
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    assert isinstance(find_screen(), PlainScreen)


def test_a_notebook_updates_one_output_twice_a_second(monkeypatch):
    now, shown = [100.0], []

    class Handle:
        def update(self, bundle, *, raw):
            shown.append(("update", bundle, raw))

    def display(bundle, *, raw, display_id):
        shown.append(("display", bundle, raw and display_id))
        return Handle()

    monkeypatch.setattr(screens.time, "monotonic", lambda: now[0])
    screen, (*moments, last) = NotebookScreen(display), replayed()
    for moment in moments[:8]:
        screen.draw(moment)
        now[0] += 0.25
    screen.close(last)
    assert [kind for kind, _, _ in shown] == ["display", "update", "update", "update", "update"]
    assert all(flag for _, _, flag in shown)
    assert shown[-1][1]["text/plain"].splitlines() == lay_out(last, 110)
    assert "<progress" in shown[-1][1]["text/html"]


@pytest.mark.filterwarnings("ignore")
def test_a_real_notebook_holds_the_last_state_alone(monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    folder = str(Path(__file__).resolve().parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    source = (
        "import threading\n"
        "from tests.spark.runs import NOON, DAY, Query, report\n"
        "from cojoin.spark.progress.line import ProgressLine\n"
        "query = Query()\n"
        "with ProgressLine(query, span=lambda: (NOON - DAY, NOON + DAY)) as line:\n"
        "    for batch in range(4):\n"
        "        query.progress, query.batches = report(batch, 0, NOON - DAY // (batch + 1)), batch\n"
        "        line.wait(threading.Event(), 0.6)\n"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    (output,) = notebook.cells[0]["outputs"]
    assert output["output_type"] == "display_data"
    assert output["data"]["text/plain"].startswith("███████░░░░░░░░░░░░░  38%")
    assert '<progress value="0.3750"' in output["data"]["text/html"]


def test_plain_lines_come_every_few_seconds_after_new_batches_and_once_at_the_end(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(screens.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    screen, (*moments, last) = PlainScreen(stream), replayed()
    for moment in moments[:4]:
        for _ in range(8):
            now[0] += 1
            screen.draw(moment)
    screen.close(last)
    assert stream.getvalue().splitlines() == [plain_line(moment) for moment in [*moments[:4], last]]
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: now[0])
    return now


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


def test_a_range_that_becomes_known_later_makes_a_bar(clock, terminal, monkeypatch):
    device, model = terminal(80), ScreenModel(80)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", device.stream)
    query, known = Query(report(5, 5), 1), []
    with ProgressLine(query, span=lambda: known[0] if known else None) as line:
        line.draw()
        model.write(device.read())
        assert model.rows[0].startswith("1 batch  ")
        known.append((NOON - DAY, NOON + DAY))
        assert not line.wait(threading.Event(), 0)
        line.draw()
        model.write(device.read())
        assert model.rows[0].startswith("█████░░░░░  50%")
    model.write(device.read())
    assert [text[:10] for text in model.rows] == ["█████░░░░░", "2026-01-15", ""]
