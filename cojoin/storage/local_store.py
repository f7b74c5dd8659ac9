"""Files of the local file system, and of network file systems that are mounted; locks between processes on files.

A file is written under a temporary name, flushed to the disk, and renamed. After a power failure, the former file may
be there again, but never a part of one. ``create`` and ``replace`` hold a lock of the operating system on a hidden file
in the root, which is released when its holder ends for any reason.

Hadoop's local file system keeps checksums of a file in a hidden file next to it, as Spark's logs have them. A file that
differs from its checksums was changed or cut; cojoin writes none. Where release 0.5.0 was stopped while it replaced a
file, the former file has its second name (``store.former_name``).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import shutil
import sys
import time
import unicodedata
import uuid
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cojoin.storage.store import (
    Store,
    Tagged,
    UnplacedFileError,
    UnreadableFileError,
    former_name,
    is_abandoned,
    visible_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


_REPORTED_AFTER_SECONDS = 3.0
_CRC_HEADER = b"crc\x00"
_TRIES = 5
_LOCK, _LOCK_SECONDS, _LOOK_SECONDS = ".lock", 10.0, 0.005
_DAMAGE = frozenset({errno.EIO, errno.EISDIR, errno.ELOOP})
"""The errors that concern the file itself; others, such as those of rights or of a mount, do not."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_ROOM = "make room on that disk, and start the query again, which continues where it stopped"
_IN_URLS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-!.~'()*,;:$&+=@/")
_BLANKS = frozenset({"Cc", "Zs", "Zl", "Zp"})
"""The categories of characters, beyond ASCII too, that Java escapes in a URL: controls, blanks and ends of lines."""


class LockTimeoutError(Exception):
    """Another process has held the lock of a file (``path``) for longer than the timeout."""

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
    """Hold the lock of a file while the block runs, and yield the file's descriptor.

    The file is created if it does not exist, and not removed, since others may wait for its lock. ``waiting`` is called
    once if another process still holds the lock after three seconds. On POSIX a child process that inherits the
    descriptor also holds the lock until the child ends. Raises ``LockTimeoutError``, or ``OSError`` where the file
    can't be created or its file system has no locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        began, was_reported = time.monotonic(), False
        while not _try(descriptor):
            waited = time.monotonic() - began
            if waited > timeout_seconds:
                raise LockTimeoutError(path)
            if waited > _REPORTED_AFTER_SECONDS and not was_reported:
                was_reported = True
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


def checksums_of(place: Path) -> Path:
    """Return the path of a file's checksums, which need not exist."""
    return place.with_name(f".{place.name}.crc")


def has_checksums(place: Path, content: bytes) -> bool:
    """Return whether a file has the checksums that Hadoop wrote next to it; True where it wrote none."""
    try:
        stored = checksums_of(place).read_bytes()
    except OSError:
        return True
    if not stored.startswith(_CRC_HEADER) or len(stored) < 8:
        return False
    step = int.from_bytes(stored[4:8], "big")
    if step < 1:
        return False
    view = memoryview(content)
    sums = b"".join(zlib.crc32(view[at : at + step]).to_bytes(4, "big") for at in range(0, len(content), step))
    return stored[8:] == sums


def is_checksum(place: Path) -> bool:
    """Return whether a file has the checksums of another."""
    return place.name.startswith(".") and place.name.endswith(".crc")


class LocalStore(Store):
    """The files below a directory of the local file system, an absolute path without a scheme."""

    has_conditional_writes = True
    _errors = (OSError,)

    def __init__(self, root: str, label: str = "checkpoint") -> None:
        self.label, self._root = label, root.rstrip("/") or "/"

    @property
    def root(self) -> str:
        """The directory, absolute and with its scheme."""
        return f"file:{self._root}"

    def path(self, name: str) -> str:
        """Return the full path of a file or directory below the root, as Spark takes it."""
        return f"file:{self._below(name)}"

    def url(self, name: str) -> str:
        """Return the full path of a file as a URL, as Spark's own logs write it: with blanks and the like escaped."""
        return f"file:{escaped(self._below(name))}"

    def exists(self, name: str = "") -> bool:
        """Return whether a file or directory exists."""
        with self._translated_errors(name, "accessed"):
            return self._place(name).exists() or (name != "" and self._place(former_name(name)).exists())

    def read_tagged(self, name: str) -> Tagged | None:
        """Return a file with its tag, or None where it does not exist; one that belies its checksums is damaged."""
        why = ""
        for _ in range(_TRIES):
            # A file that 0.5.0 replaces may have been renamed back between the first two looks.
            for file in (name, former_name(name), name):
                place = self._place(file)
                try:
                    content = place.read_bytes()
                    if has_checksums(place, content):
                        return Tagged(content, hashlib.sha256(content).hexdigest())
                    why = "its checksums are others"
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except OSError as error:
                    if error.errno not in _DAMAGE:
                        raise self._refused(name, "read", reason_of(error)) from error
                    raise UnreadableFileError(self, name, reason_of(error)) from error
            if not self.exists(name):
                return None
            time.sleep(_LOOK_SECONDS)
        raise UnreadableFileError(self, name, why or "it is a directory")

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file whole, in place of an earlier one."""
        with self._partial(name, content) as partial:
            self._put_in_place(partial, name)

    def replace(self, name: str, content: bytes, tag: str | None) -> bool:
        """Write a file whole, if it still is the one that was read; see ``Store.replace``.

        Raises ``UnplacedFileError`` where another process has held the lock for ten seconds.
        """
        with self._partial(name, content) as partial:
            try:
                lock = locked(self._place(_LOCK), timeout_seconds=_LOCK_SECONDS, look_seconds=_LOOK_SECONDS)
                with self._translated_errors(name, "written"), lock:
                    stored = self.read_tagged(name)
                    if (None if stored is None else stored.tag) != tag:
                        return False
                    self._put_in_place(partial, name)
            except LockTimeoutError as error:
                msg = (
                    f"{self.named}: {name} can't be written: another process has held the lock "
                    f"{error.path} for ten seconds; see which one has it open, such as by lsof, and stop it"
                )
                raise UnplacedFileError(msg) from error
        return True

    def make_directory(self, name: str) -> None:
        """Create a directory where it does not exist."""
        with self._translated_errors(name, "made"):
            self._place(name).mkdir(parents=True, exist_ok=True)

    def check_place(self) -> None:
        """Check that the root directory exists or can be created; what is created for the check is deleted again."""
        made, place = [], self._place("")
        while not self._exists_at(place):
            made.append(place)
            place = place.parent
        self.make_directory("")
        for folder in made:
            # A directory in which another process has written meanwhile stays.
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _exists_at(self, place: Path) -> bool:
        """Return whether a path exists, below the root or above it."""
        with self._translated_errors(str(place), "accessed"):
            return place.exists()

    def modified(self, name: str) -> int:
        """Return when a file was last written, in epoch milliseconds."""
        return self._place(name).stat().st_mtime_ns // 1_000_000

    def size(self, name: str) -> int:
        """Return the size of a file, or of all files below a directory, in bytes."""
        place = self._place(name)
        if place.is_file():
            return place.stat().st_size
        return sum(each.stat().st_size for each in place.rglob("*") if each.is_file() and not is_checksum(each))

    def delete(self, name: str) -> None:
        """Delete a file where it exists."""
        place = self._place(name)
        with self._translated_errors(name, "deleted"):
            for path in (self._place(former_name(name)), place, checksums_of(place)):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    path.unlink()

    def delete_directory(self, name: str) -> None:
        """Delete a directory with its content where it exists."""
        with self._translated_errors(name, "deleted"), contextlib.suppress(FileNotFoundError):
            try:
                shutil.rmtree(self._place(name))
            except NotADirectoryError:
                self.delete(name)

    def delete_empty_directory(self, name: str) -> None:
        """Delete a directory if it exists and is empty."""
        with contextlib.suppress(OSError):
            self._place(name).rmdir()

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory in order, of complete files and of directories; none where it is missing."""
        with self._translated_errors(directory, "listed"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return visible_names({each.name for each in self._place(directory).iterdir()})
        return []

    def times(self, descends: Callable[[str], bool]) -> Iterator[tuple[str, int]]:
        """Yield the path of each file below the root, and when it was written; see ``Store.times``."""
        folders = [self._root]
        while folders:
            # What is deleted meanwhile is left out.
            with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if not entry.is_dir():
                        with contextlib.suppress(OSError):
                            yield entry.path, entry.stat().st_mtime_ns // 1_000_000
                    elif descends(entry.name):
                        folders.append(entry.path)

    def delete_abandoned(self, directory: str) -> None:
        """Delete the temporary files that killed processes have left in a directory; see ``Store.delete_abandoned``."""
        absence = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        with self._translated_errors(directory, "cleaned"), absence, os.scandir(self._place(directory)) as entries:
            for entry in entries:
                # Another process may have renamed or deleted the file since.
                with contextlib.suppress(FileNotFoundError):
                    if entry.name.startswith(".") and is_abandoned(entry.name, entry.stat().st_mtime):
                        Path(entry.path).unlink()

    def _below(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def _place(self, name: str) -> Path:
        return Path(self._below(name))

    @contextlib.contextmanager
    def _partial(self, name: str, content: bytes) -> Iterator[Path]:
        """Write a temporary file, which is deleted where the block has not renamed it."""
        place = self._place(name)
        partial = place.with_name(f".{place.name}.{uuid.uuid4().hex}.tmp")
        try:
            with self._translated_errors(name, "written"):
                place.parent.mkdir(parents=True, exist_ok=True)
                with partial.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            yield partial
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

    def _put_in_place(self, partial: Path, name: str) -> None:
        place = self._place(name)
        with self._translated_errors(name, "written"):
            # The checksums go first: without them, the file is read as it is.
            checksums_of(place).unlink(missing_ok=True)
            partial.replace(place)
            self._place(former_name(name)).unlink(missing_ok=True)

    def _explained(self, error: BaseException) -> tuple[str, str | None]:
        assert isinstance(error, OSError)
        return reason_of(error), _ROOM if error.errno in _FULL else None


def escaped(path: str) -> str:
    """Return a path as Java writes it in a URL: what a URL can't have is escaped, and letters are kept.

    >>> escaped("/lake/my trades/ä#1\u3000")
    '/lake/my%20trades/ä%231%E3%80%80'
    """
    return "".join(
        char
        if char in _IN_URLS or (ord(char) > 127 and unicodedata.category(char) not in _BLANKS)
        else "".join(f"%{byte:02X}" for byte in char.encode())
        for char in path
    )


def reason_of(error: OSError) -> str:
    """Return an error's message on one line, such as ``Permission denied``."""
    return (error.strerror or str(error)).strip().partition("\n")[0]
