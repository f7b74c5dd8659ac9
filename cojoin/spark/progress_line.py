"""A line that shows how far a query has come.

In a terminal or notebook it is redrawn in place and cut to the terminal's width; elsewhere, where it is asked for, it
is a plain line every few seconds. It shows each input's rows and watermark, so that whoever waits sees which input
holds time back. The rate is that of the last half minute, and at the end that of the whole wait; without a batch
there is none to show.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from cojoin.watermarks import END_OF_TIME, NONE, format_time

if TYPE_CHECKING:
    import threading
    from types import TracebackType

    from cojoin.report import BatchReport

__all__ = ["ProgressLine"]

_INTERVAL_SECONDS = 0.25
_PLAIN_SECONDS = 5.0
_RATE_SECONDS = 30.0
_BAR_WIDTH = 20
_NARROW, _NOTEBOOK_WIDTH = 100, 120
_NO_TIME = {NONE: "no watermark yet", END_OF_TIME: "the end"}


class ProgressLine:
    """Draws the line while a query is waited for.

    Args:
        query: Has ``progress`` and ``batches``.
        enabled: None decides by the output: a terminal or a notebook shows it.
        total: How many rows both inputs hold, where that is known; it turns the line into a bar.
    """

    def __init__(self, query: Any, *, enabled: bool | None = None, total: int | None = None) -> None:
        self._query = query
        self._in_place = _redraws()
        self._enabled = self._in_place if enabled is None else enabled
        self._total = total
        self._started = time.monotonic()
        self._seen: deque[tuple[float, int]] = deque([(self._started, self._rows())])
        self._first = self._seen[0]
        self._drawn = 0
        self._plain_at, self._plain_batches = self._started, -1

    def __enter__(self) -> ProgressLine:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._enabled:
            self._write(self.text(final=True), last=True)

    def wait(self, ended: threading.Event, timeout: float | None) -> bool:
        """Wait for an event, drawing meanwhile; gives whether it came."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _INTERVAL_SECONDS if deadline is None else min(_INTERVAL_SECONDS, deadline - time.monotonic())
            if ended.wait(max(0.0, left)):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            self.draw()

    def draw(self) -> None:
        """Draw the line as it is now; where lines can't be redrawn, only now and then."""
        if not self._enabled:
            return
        if self._in_place:
            self._write(self.text())
            return
        now, batches = time.monotonic(), self._query.batches
        if now - self._plain_at >= _PLAIN_SECONDS and batches != self._plain_batches:
            self._plain_at, self._plain_batches = now, batches
            self._write(self.text())

    def text(self, *, final: bool = False) -> str:
        """Give the line.

        Args:
            final: Whether it is the last: the rate is then that of the whole wait.
        """
        now, report, batches = time.monotonic(), self._query.progress, self._query.batches
        seconds = f"{now - self._started:.0f} s"
        if report is None:
            return f"starting  {seconds}"
        times, day = _times(report)
        rate = self._rate(now, final=final)
        if self._total:
            parts = [_bar(self._rows() / self._total), *(f"{name} to {moment}" for name, _, moment in times)]
        else:
            counted = f"{batches} batch{'' if batches == 1 else 'es'}" if batches or final else "starting"
            parts = [counted, *(f"{name} {rows:,} to {moment}" for name, rows, moment in times)]
        if rate is not None:
            parts.append(f"{rate:,.0f} rows/s")
        elif batches or final:
            parts.append("no new rows")
        return "  ".join([*parts, seconds, *([f"({day})"] if day else [])])

    def _rows(self) -> int:
        report = self._query.progress
        return 0 if report is None else sum(each.rows_in for each in report.inputs)

    def _rate(self, now: float, *, final: bool) -> float | None:
        """Give rows a second; None where no row came in the time that counts."""
        rows = self._rows()
        if rows != self._seen[-1][1]:
            self._seen.append((now, rows))
        # The newest point before the window stays: the rate is measured from it.
        while len(self._seen) > 1 and self._seen[1][0] < now - _RATE_SECONDS:
            self._seen.popleft()
        since, before = self._first if final else self._seen[0]
        return (rows - before) / max(now - since, 0.001) if rows > before else None

    def _write(self, text: str, *, last: bool = False) -> None:
        if self._in_place:
            shown = _cut(text, _columns() - 1)
            sys.stderr.write("\r" + shown.ljust(self._drawn) + ("\n" if last else ""))
            self._drawn = len(shown)
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _times(report: BatchReport) -> tuple[list[tuple[str, int, str]], str]:
    """Give each input's name, rows and watermark, the latter as the time of day; and the day, where it isn't today."""
    shown = [format_time(each.watermark) for each in report.inputs]
    days = {text[:10] for text, each in zip(shown, report.inputs, strict=True) if each.watermark not in _NO_TIME}
    today = f"{datetime.now(tz=timezone.utc):%Y-%m-%d}"
    clock = slice(11 if len(days) == 1 else 0, 19)
    times = [
        (each.name, each.rows_in, _NO_TIME.get(each.watermark, text[clock]))
        for each, text in zip(report.inputs, shown, strict=True)
    ]
    return times, days.pop() if len(days) == 1 and days != {today} else ""


def _bar(done: float) -> str:
    width = _BAR_WIDTH if _columns() >= _NARROW else _BAR_WIDTH // 2
    filled = min(width, int(done * width))
    return f"{'█' * filled}{'░' * (width - filled)} {min(100, int(done * 100)):3d}%"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _NOTEBOOK_WIDTH
    except (OSError, ValueError, AttributeError):
        return _NOTEBOOK_WIDTH


def _redraws() -> bool:
    """Tell whether the output can redraw a line: a terminal, or a notebook's cell."""
    if "ipykernel" in sys.modules and type(sys.stderr).__module__.startswith("ipykernel"):
        return True
    return sys.stderr.isatty()
