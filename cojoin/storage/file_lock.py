"""A lock between processes on a file, which the operating system releases when the holder ends for any reason."""

from __future__ import annotations

import math
import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["LockTimeoutError", "locked"]

_TOLD_AFTER_SECONDS = 3.0


class LockTimeoutError(Exception):
    """Another process has held a lock for longer than the timeout.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(f"another process holds the lock {path}")
        self.path = path


@contextmanager
def locked(
    path: Path,
    waiting: Callable[[], None] = lambda: None,
    *,
    timeout_seconds: float = math.inf,
    look_seconds: float = 0.1,
) -> Iterator[int]:
    """Hold the lock of a file while the block runs. The file is not removed, since others may wait for its lock.

    Args:
        path: The file. It is created if it does not exist; nothing is written to it.
        waiting: Called once if another process still holds the lock after three seconds.
        timeout_seconds: For how long to wait for the lock.
        look_seconds: The time between two attempts.

    Yields:
        The file's descriptor. On POSIX a child process that inherits it also holds the lock until the child ends.

    Raises:
        LockTimeoutError: Another process holds the lock for longer than the timeout.
        OSError: The file can't be created, or its file system does not support locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        began, was_told = time.monotonic(), False
        while not _try(descriptor):
            waited = time.monotonic() - began
            if waited > timeout_seconds:
                raise LockTimeoutError(path)
            if waited > _TOLD_AFTER_SECONDS and not was_told:
                was_told = True
                waiting()
            time.sleep(look_seconds)
        yield descriptor
    finally:
        os.close(descriptor)


def _try(descriptor: int) -> bool:
    """Return whether the lock was acquired; errors that do not mean "held by another process" are raised."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
