"""A line that shows how far a query has come, redrawn in place in a terminal or notebook; silent elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from cojoin.watermarks import END_OF_TIME, NONE, format_time

if TYPE_CHECKING:
    import threading
    from types import TracebackType

__all__ = ["ProgressLine"]

_INTERVAL_SECONDS = 0.25
_WIDTH = 24


class ProgressLine:
    """Draws the line while a query is waited for.

    Args:
        query: Has ``progress`` and ``batches``.
        enabled: None decides by the output.
        total: How many rows both inputs hold, where that is known; it turns the line into a bar.
    """

    def __init__(self, query: Any, *, enabled: bool | None = None, total: int | None = None) -> None:
        self._query = query
        self._enabled = _is_interactive() if enabled is None else enabled
        self._total = total
        self._started = time.monotonic()
        self._first_rows = self._rows()
        self._drawn = 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._enabled:
            self._draw()
            sys.stderr.write("\n")
            sys.stderr.flush()

    def wait(self, ended: threading.Event, timeout: float | None) -> bool:
        """Wait for an event, drawing meanwhile; gives whether it came."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _INTERVAL_SECONDS if deadline is None else min(_INTERVAL_SECONDS, deadline - time.monotonic())
            if ended.wait(max(0.0, left)):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            if self._enabled:
                self._draw()

    def text(self) -> str:
        """Give the line."""
        report, seconds = self._query.progress, time.monotonic() - self._started
        if report is None:
            return f"starting … {seconds:.0f} s"
        rows = self._rows()
        watermark = report.watermark
        shown = format_time(watermark) if watermark in (NONE, END_OF_TIME) else format_time(watermark)[:19]
        parts = [
            f"{self._query.batches} batches",
            *(f"{each.rows_in:,} {each.name}" for each in report.inputs),
            f"watermark {shown}",
            f"{(rows - self._first_rows) / max(seconds, 0.001):,.0f} rows/s",
            f"{seconds:.0f} s",
        ]
        if self._total:
            done = min(1.0, rows / self._total)
            filled = round(done * _WIDTH)
            parts.insert(0, f"{'█' * filled}{'░' * (_WIDTH - filled)} {done:4.0%}")
        return "  ".join(parts)

    def _rows(self) -> int:
        report = self._query.progress
        return 0 if report is None else sum(each.rows_in for each in report.inputs)

    def _draw(self) -> None:
        text = self.text()
        sys.stderr.write("\r" + text.ljust(self._drawn))
        sys.stderr.flush()
        self._drawn = len(text)


def _is_interactive() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules
