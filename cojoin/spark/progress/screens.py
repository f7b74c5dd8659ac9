"""Where progress is drawn: in place in a terminal or a notebook's cell, or as plain lines.

A terminal's lines are redrawn from where the cursor waits, at the begin of the first one: so a warning that something
else writes meanwhile stays readable, and a window that has become narrower is wiped whole. A plain line comes every
few seconds, and only after new batches. Each ends with one last, final state that stays.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from cojoin.spark.progress.layout import as_html, lay_out, plain_line

if TYPE_CHECKING:
    from cojoin.spark.progress.figures import Figures

__all__ = ["NotebookScreen", "PlainScreen", "Screen", "TerminalScreen", "find_screen"]

_NOTEBOOK_SECONDS = 0.5
_PLAIN_SECONDS = 5.0
_USUAL_COLUMNS, _USUAL_ROWS = 80, 24
_NOTEBOOK_COLUMNS = 110
_UP, _ERASE_TO_THE_RIGHT, _ERASE_BELOW = "\x1b[{}A", "\x1b[K", "\x1b[J"
_ASCII = str.maketrans({"█": "#", "░": "-", "…": "~"})


class Screen(Protocol):
    """Something that shows figures."""

    redraws: bool
    """Whether it draws in place; only such a one shows progress unasked."""

    def draw(self, figures: Figures) -> None:
        """Show the figures, unless it is too early."""

    def close(self, figures: Figures) -> None:
        """Show the last figures, to stay."""


class TerminalScreen:
    """A terminal that understands ANSI's cursor movements."""

    redraws = True

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn: tuple[list[str], os.terminal_size] | None = None

    def draw(self, figures: Figures) -> None:
        """Redraw the lines in place, where they or the window have changed."""
        size = _size(self._stream)
        lines = self._lines(figures, size)
        if (lines, size) == self._drawn:
            return
        self._drawn = lines, size
        back = _UP.format(len(lines) - 1) if len(lines) > 1 else ""
        self._write(lines, f"{back}\r")

    def close(self, figures: Figures) -> None:
        """Draw the last state and leave the cursor below it."""
        self._write(self._lines(figures, _size(self._stream)), "\n")

    def _lines(self, figures: Figures, size: os.terminal_size) -> list[str]:
        # The last column stays free: some terminals wrap as soon as it is written.
        return lay_out(figures, size.columns - 1)[: max(1, size.lines - 1)]

    def _write(self, lines: list[str], after: str) -> None:
        shown = f"{_ERASE_TO_THE_RIGHT}\n".join(_writable(line, self._stream) for line in lines)
        self._stream.write(f"\r{shown}{_ERASE_BELOW}{after}")
        self._stream.flush()


class NotebookScreen:
    """A notebook's cell: one output, updated in place."""

    redraws = True

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None
        self._drawn_at = -_NOTEBOOK_SECONDS

    def draw(self, figures: Figures) -> None:
        """Update the output, at most twice a second."""
        now = time.monotonic()
        if now - self._drawn_at >= _NOTEBOOK_SECONDS:
            self._drawn_at = now
            self._show(figures)

    def close(self, figures: Figures) -> None:
        """Update the output a last time; it is what a saved notebook holds."""
        self._show(figures)

    def _show(self, figures: Figures) -> None:
        shown = {"text/plain": "\n".join(lay_out(figures, _NOTEBOOK_COLUMNS)), "text/html": as_html(figures)}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


class PlainScreen:
    """A stream that can't be redrawn: a file, a pipe, a log."""

    redraws = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn_at, self._batches = time.monotonic(), -1

    def draw(self, figures: Figures) -> None:
        """Write a line, where the last is some seconds old and batches have come since."""
        now = time.monotonic()
        if now - self._drawn_at >= _PLAIN_SECONDS and figures.batches != self._batches:
            self._drawn_at, self._batches = now, figures.batches
            self.close(figures)

    def close(self, figures: Figures) -> None:
        """Write a line."""
        self._stream.write(_writable(plain_line(figures), self._stream) + "\n")
        self._stream.flush()


def find_screen() -> Screen:
    """Find what standard error is: a notebook's cell, a terminal, or neither."""
    if "ipykernel" in sys.modules and type(sys.stderr).__module__.startswith("ipykernel"):
        try:
            return NotebookScreen(import_module("IPython.display").display)
        except (ImportError, AttributeError):
            return PlainScreen(sys.stderr)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return TerminalScreen(sys.stderr)
    return PlainScreen(sys.stderr)


def _size(stream: TextIO) -> os.terminal_size:
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError, AttributeError):
        size = os.terminal_size((0, 0))
    # A terminal that doesn't know its size says 0.
    return os.terminal_size((size.columns or _USUAL_COLUMNS, size.lines or _USUAL_ROWS))


def _writable(text: str, stream: TextIO) -> str:
    """Replace what the stream's encoding has not, column by column."""
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    return text
