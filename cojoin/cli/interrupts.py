"""Ctrl-C: said at once, ended in order the first time, at once the second time.

The first one raises ``KeyboardInterrupt`` where the command is; what it has under way it ends, which may take as long
as a batch. The second one ends the process. Spark's JVM goes with it, and a checkpoint is left as by a crash, which
every start deals with. PySpark's session puts a handler of its own in place, so it is taken back after that.
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

__all__ = ["INTERRUPTED", "Interrupts"]

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

_STOPPING = "Stopping: what is under way ends first. Ctrl-C again ends at once."
_AT_ONCE = "Ended at once."


class Interrupts:
    """Takes Ctrl-C while a command runs; does nothing where Python lets it not: outside of the main thread.

    Args:
        leave: Ends the process with an exit code, at once.

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
        """Take Ctrl-C from the session that was just made.

        Args:
            folder: The session's temporary folder, which goes with the process.
        """
        if cls._running is not None and threading.current_thread() is threading.main_thread():
            cls._running.listen(folder)

    def listen(self, *folders: Path) -> None:
        """Take Ctrl-C from now on; the folders go with the process where it ends at once."""
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
    # Not by sys.stderr, which the signal may have found in the middle of a line.
    os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, f"\n{text}\n".encode())
