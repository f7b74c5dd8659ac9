"""Ctrl-C: the first one stops the command in order, the second one ends the process at once.

The first one prints a message and raises ``KeyboardInterrupt``; the command then ends the work that is in progress,
which may take as long as a batch. The second one ends the process and with it Spark's JVM, and leaves the checkpoint as
after a crash, which every start can handle. PySpark's session installs another handler, so this one is installed again
after a session was created. ``wait_for`` waits for a query with a progress line.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType, TracebackType

    from cojoin.spark.query.query import Query


INTERRUPTED = 130
"""The exit code after Ctrl-C."""

_STOPPING = "Stopping after the work in progress. Press Ctrl-C again to stop at once."
_AT_ONCE = "Stopped at once."


class Interrupts:
    """Handles Ctrl-C while a command runs; outside of the main thread, where Python allows no handler, it does nothing.

    ``leave`` ends the process at once with an exit code.

    >>> with Interrupts():
    ...     pass
    """

    _running: Interrupts | None = None

    def __init__(self, leave: Callable[[int], NoReturn] = os._exit) -> None:
        self._leave = leave
        self._before: Any = None
        self._count = 0
        self._folders: list[Path] = []

    def __enter__(self) -> Interrupts:  # noqa: PYI034 - Self needs Python 3.11
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            self.listen()
            Interrupts._running = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if Interrupts._running is self:
            signal.signal(signal.SIGINT, self._before)
            Interrupts._running = None

    @classmethod
    def take_back(cls, folder: Path) -> None:
        """Install the handler again after a session was created, whose temporary folder an end at once removes."""
        if cls._running is not None and threading.current_thread() is threading.main_thread():
            cls._running.listen(folder)

    def listen(self, *folders: Path) -> None:
        """Install the handler; the folders are removed if the process ends at once."""
        signal.signal(signal.SIGINT, self._take)
        self._folders += folders

    def _take(self, number: int, frame: FrameType | None) -> Any:
        del number, frame
        self._count += 1
        if self._count == 1:
            _say(_STOPPING)
            raise KeyboardInterrupt
        _say(_AT_ONCE)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._leave(INTERRUPTED)


def _say(text: str) -> None:
    # This avoids sys.stderr, since the signal may have interrupted it in the middle of a line.
    os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, f"\n{text}\n".encode())


_INTERVAL_SECONDS = 0.25


def wait_for(query: Query, *, total: int | None = None, history: bool = False) -> None:
    """Wait until a query ends, or only until its history does; the number of rows is for the progress line.

    After Ctrl-C it stops the query and raises ``KeyboardInterrupt``.
    """
    from cojoin.spark.query.progress import ProgressLine  # noqa: PLC0415 - it needs tqdm, which comes with Spark

    wait = query.await_history if history else query.await_termination
    with ProgressLine(query, enabled=True, total=total, span=lambda: query.span) as line:
        try:
            while not wait(_INTERVAL_SECONDS, progress=False):
                line.draw()
        except KeyboardInterrupt:
            query.stop()
            raise
