"""Files of object stores, read at any position: each read is one request for a range of bytes."""

from __future__ import annotations

import io
import os
from collections import deque
from typing import TYPE_CHECKING, Any

from cojoin.storage.object_store_errors import ABSENT, ERRORS, explained
from cojoin.storage.object_store_settings import client_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cojoin.storage.object_store_settings import Settings

__all__ = ["ObjectFile"]

_clients: deque[tuple[Settings, Any]] = deque(maxlen=16)


class ObjectFile(io.RawIOBase):
    """An object that is open for reading; whoever reads little at a time puts a buffer before it.

    Args:
        settings: How to reach the bucket or container.
        name: The object's path below it.

    Raises:
        FileNotFoundError: There is no such object.
        OSError: The store can't be reached, or refuses.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__()
        self._name, self._at = name.lstrip("/"), 0
        self._client = _client(settings)
        self._size = int(self._asked(lambda: self._client.head(self._name))["size"])

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that it can be read at any position."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, and return it."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as fit and remain, and return their number."""
        wanted = min(len(buffer), max(0, self._size - self._at))
        if wanted:
            found = self._asked(lambda: self._client.get_range(self._name, start=self._at, length=wanted))
            buffer[:wanted] = memoryview(found)
            self._at += wanted
        return wanted

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except ABSENT as error:
            raise FileNotFoundError(explained(error).why) from error
        except ERRORS as error:
            why, cure = explained(error)
            raise OSError(f"{why}; {cure}" if cure else why) from error


def _client(settings: Settings) -> Any:
    """Return the client for a place; all tasks of a process share it."""
    for known, client in _clients:
        if known == settings:
            return client
    _clients.append((settings, client_of(settings)))
    return _clients[-1][1]
