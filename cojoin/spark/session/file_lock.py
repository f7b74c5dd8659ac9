"""A lock between processes on a file, which the operating system releases when the holder ends for any reason."""

from __future__ import annotations

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

__all__ = ["locked"]

_TOLD_AFTER_SECONDS = 3.0
_LOOK_SECONDS = 0.1


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the lock of a file while the block runs. The file is not removed, since others may wait for its lock.

    Args:
        path: The file. It is created if it does not exist; nothing is written to it.
        waiting: Called once if another process still holds the lock after three seconds.

    Yields:
        The file's descriptor. On POSIX a child process that inherits it also holds the lock until the child ends.

    Raises:
        OSError: The file can't be created, or its file system does not support locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _take(descriptor, waiting)
        yield descriptor
    finally:
        os.close(descriptor)


def _take(descriptor: int, waiting: Callable[[], None]) -> None:
    told_at: float | None = time.monotonic() + _TOLD_AFTER_SECONDS
    while not _try(descriptor):
        if told_at is not None and time.monotonic() > told_at:
            told_at = None
            waiting()
        time.sleep(_LOOK_SECONDS)


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
