"""Shows how far a query has come while it is waited for.

In a terminal it is one line that tqdm redraws in place, and in a notebook's cell one output that IPython updates
(``notebook_cell``). Elsewhere, and where ``TERM`` is ``dumb``, it is shown only where it is asked for, as a plain line
every few seconds after new batches. The last state stays. It costs a look at the newest report four times a second, in
the thread that waits.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm
from tqdm.utils import disp_len

from cojoin.spark.progress.figures import Figures
from cojoin.spark.progress.notebook_cell import NotebookCell, is_notebook
from cojoin.spark.progress.postfix import postfix_parts

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

__all__ = ["ProgressLine"]

_INTERVAL_SECONDS, _PLAIN_SECONDS = 0.25, 5.0
_LIVE = "{elapsed}{postfix}"


class _Nowhere:
    """Where tqdm draws while its line is shown in another way."""

    def write(self, text: str) -> None:
        """Drop a text."""


class ProgressLine:
    """Draws progress while a query is waited for.

    Args:
        query: Has ``progress``, a ``BatchReport`` or None, and ``batches``.
        enabled: None decides by the output: a terminal or a notebook shows it.
        total: How many rows both inputs hold, where that is known; the bar is over them where no range is known.
        span: Returns the range of event time that the run goes through, begin and end in epoch milliseconds, or None
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
        self._query, self._span = query, span
        self._figures = Figures(time.monotonic(), query.progress, total=total)
        self._cell = NotebookCell() if is_notebook() else None
        self._stream: TextIO = sys.stderr
        is_terminal = self._cell is None and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._redraws = self._cell is not None or is_terminal
        self._enabled = self._redraws if enabled is None else enabled
        self._bar: tqdm[Any] | None = None
        self._unit, self._shown = "", ""
        self._written_at, self._written_batches = time.monotonic(), -1

    def __enter__(self) -> ProgressLine:  # noqa: PYI034 - Self needs Python 3.11
        if self._enabled:
            bar: tqdm[Any] = tqdm(
                file=self._stream if self._redraws and self._cell is None else _Nowhere(),
                bar_format=_LIVE,
                postfix="starting",
                miniters=1,
                mininterval=0,
                dynamic_ncols=self._redraws,
                ascii=None if self._cell is None else False,
            )
            # TQDM_DISABLE turns it off.
            self._bar = None if bar.disable else bar
            known = bar.format_dict
            if self._redraws and (self._cell or min(known["ncols"] or 0, known["nrows"] or 0) < 2):
                # tqdm shows nothing in a terminal that doesn't know its size and says 0.
                bar.dynamic_ncols, bar.ncols, bar.nrows = False, 120 if self._cell else 79, 24
        return self

    def __exit__(self, *raised: object) -> None:
        self.draw(final=True)

    def wait(self, ended: threading.Event, timeout: float | None) -> bool:
        """Wait for an event, drawing meanwhile; return whether it came."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not ended.wait(max(0.0, min(_INTERVAL_SECONDS, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
            self.draw()
        return True

    def draw(self, *, final: bool = False) -> None:
        """Show the query as it is now; where the line can't be redrawn, only now and then, and where it is final."""
        if self._bar is None:
            return
        self._update(self._bar, final=final)
        if final:
            self._bar.close()
        if self._redraws:
            if str(self._bar) != self._shown:
                self._shown = str(self._bar)
                if self._cell is None:
                    self._bar.refresh()
                else:
                    self._cell.show(self._shown)
            return
        now, batches = time.monotonic(), self._query.batches
        if final or (now - self._written_at >= _PLAIN_SECONDS and batches != self._written_batches):
            self._written_at, self._written_batches = now, batches
            self._stream.write(f"{self._bar}\n".lstrip())
            self._stream.flush()

    def _update(self, bar: tqdm[Any], *, final: bool) -> None:
        """Set the bar to the query as it is now; it is drawn where a batch has finished."""
        span = None if self._span is None else self._span()
        self._figures.look(time.monotonic(), self._query.progress, self._query.batches, span, final=final)
        goal = self._figures.goal
        if goal is None:
            self._unit, bar.total, bar.bar_format = "", None, _LIVE
        else:
            if goal.unit != self._unit:
                # How fast it went in another unit, or while it was live, says nothing of this goal.
                began, self._unit = bar.start_t, goal.unit
                bar.reset()
                bar.start_t, bar.initial, bar.n, bar.last_print_n = began, goal.done, goal.done, goal.done
            shape = "|{bar:10}| " if self._redraws else " "
            shape += "{elapsed}{postfix}" if final else "{elapsed}<{remaining}{postfix}"
            bar.total, bar.bar_format = goal.total, "{percentage:3.0f}%" + shape
            bar.update(goal.done - bar.n)
        bar.set_postfix_str(self._postfix(bar.format_dict), refresh=False)

    def _postfix(self, known: Mapping[str, Any]) -> str:
        """Return what the line has room for: tqdm itself would cut in the middle of a number."""
        encoding, kept = ("utf-8" if self._cell else self._stream.encoding or "utf-8"), ""
        for part in postfix_parts(self._figures):
            longer = kept + part.encode(encoding, "replace").decode(encoding)
            line = tqdm.format_meter(**{**known, "ncols": None, "postfix": longer})
            if known["ncols"] and disp_len(line) > known["ncols"]:
                break
            kept = longer
        return kept
