"""A user's function that is called with the report of each batch, in a thread of its own.

It is called once for each batch that counts, in their order. What it raises, or how long it takes, never stops the
query: its first error is logged. Reports wait for it while it runs; more than ``_MOST_WAITING`` do not: the oldest are
left out, which is logged, too.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any

from cojoin.engine.callbacks import user_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from cojoin.engine.batch_report import BatchReport

__all__ = ["ProgressHook"]

_LOG = logging.getLogger(__name__)
_MOST_WAITING = 1_000


class ProgressHook:
    """Calls a function with the report of each batch.

    Args:
        call: The function.
        query: The query, for messages.
    """

    def __init__(self, call: Callable[[BatchReport], Any], query: str) -> None:
        self._call, self._query = call, query
        self._waiting: deque[BatchReport] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_ending = self._told_error = self._told_slow = False

    def put(self, report: BatchReport) -> None:
        """Have the function called with a report."""
        with self._changed:
            self._waiting.append(report)
            is_slow = len(self._waiting) > _MOST_WAITING
            if is_slow:
                self._waiting.popleft()
            self._changed.notify()
        if is_slow and not self._told_slow:
            self._told_slow = True
            _LOG.warning(
                "query %s: on_progress takes longer than the batches: %s reports wait for it, and older ones are "
                "left out",
                self._query,
                f"{_MOST_WAITING:,}",
            )
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cojoin-on-progress", daemon=True)
            self._thread.start()

    @property
    def is_this_thread(self) -> bool:
        """Whether it is the function that calls."""
        return threading.current_thread() is self._thread

    def finish(self, seconds: float) -> None:
        """Wait until the function was called with every report, so many seconds at most."""
        if self._thread is None:
            return
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(seconds)
        if self._thread.is_alive():
            with self._changed:
                left = len(self._waiting)
                self._waiting.clear()
            _LOG.warning(
                "query %s: on_progress still runs %.0f s after the query's end; it is left alone, and %d reports were "
                "not passed to it",
                self._query,
                seconds,
                left,
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_ending:
                    self._changed.wait()
                if not self._waiting:
                    return
                report = self._waiting.popleft()
            try:
                self._call(report)
            except BaseException as error:  # noqa: BLE001 - even SystemExit must not end the thread unnoticed
                self._tell(error, report)

    def _tell(self, error: BaseException, report: BatchReport) -> None:
        if self._told_error:
            return
        self._told_error = True
        last = traceback.format_exception_only(error)[-1].strip()
        _LOG.warning(
            "query %s: on_progress failed at batch %d: %s%s; the query goes on, and further errors of it are not told",
            self._query,
            report.batch_id,
            last,
            user_line(error),
        )
