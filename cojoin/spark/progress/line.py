"""Shows how far a query has come while somebody waits for it.

In a terminal and in a notebook it is a bar over event time with its figures, redrawn in place; elsewhere, where it is
asked for, a plain line every few seconds. It costs a look at the newest report four times a second, in the thread that
waits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cojoin.spark.progress.figures import Pace
from cojoin.spark.progress.screens import find_screen

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from types import TracebackType

    from cojoin.spark.progress.figures import Figures

__all__ = ["ProgressLine"]

_INTERVAL_SECONDS = 0.25


class ProgressLine:
    """Draws progress while a query is waited for.

    Args:
        query: Has ``progress``, a ``BatchReport`` or None, and ``batches``.
        enabled: None decides by the output: a terminal or a notebook shows it.
        total: How many rows both inputs hold, where that is known; the bar is over them where no range is known.
        span: Gives the range of event time that the run goes through, begin and end in epoch milliseconds, or None
            while it isn't known; the bar is over it. The end may move on. It is called at every drawing, several times
            a second: it must be cheap, and must not raise.
    """

    def __init__(
        self,
        query: Any,
        *,
        enabled: bool | None = None,
        total: int | None = None,
        span: Callable[[], tuple[int, int] | None] | None = None,
    ) -> None:
        self._query = query
        self._screen = find_screen()
        self._enabled = self._screen.redraws if enabled is None else enabled
        self._span = span
        self._pace = Pace(time.monotonic(), query.progress, total=total)

    def __enter__(self) -> ProgressLine:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._enabled:
            self._screen.close(self._figures(final=True))

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
        """Show the query as it is now; where lines can't be redrawn, only now and then."""
        if self._enabled:
            self._screen.draw(self._figures())

    def _figures(self, *, final: bool = False) -> Figures:
        now = time.monotonic()
        span = None if self._span is None else self._span()
        self._pace.observe(now, self._query.progress, self._query.batches, span)
        return self._pace.figures(now, final=final)
