"""Directories and files that a process reaches without a session and its JVM: local ones, and those on object stores.

Files on object stores are read with the settings of the session where they can be translated: the driver translates
them (``sessions.places_of``), and they travel with the tasks. Otherwise pyarrow reads them with the credentials of the
environment.
"""

from __future__ import annotations

import io
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from cojoin.errors import ConfigurationError
from cojoin.storage.local_store import LocalStore
from cojoin.storage.locations import scheme_and_place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

FILE = "file:"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_SCHEMES = {"s3a": "s3", "s3n": "s3"}
"""The URI schemes of pyarrow, by those of Hadoop, where they differ."""


def direct_store(root: str, settings: Callable[[str], Settings | None], label: str = "checkpoint") -> Store | None:
    """Return the files below a directory; None where only Hadoop reaches it. A path without a scheme is a local one.

    ``settings`` returns how to reach the object store of a root, or None. Raises ``CheckpointError`` for an invalid
    setting.
    """
    if root.startswith(FILE):
        return LocalStore("/" + root.removeprefix(FILE).lstrip("/"), label)
    if _SCHEME.match(root) is None:
        return LocalStore(str(Path(root).absolute()), label)
    store_settings = settings(root)
    if store_settings is None:
        return None
    from cojoin.storage.object_store import ObjectStore  # noqa: PLC0415 - queries on local files do not load obstore

    return ObjectStore.of(store_settings, root, label)


def open_file(uri: str, label: str, places: Mapping[str, Settings]) -> pa.NativeFile:
    """Open a file for reading at any position, by its URI as Spark writes it; ``label`` says what it belongs to.

    ``places`` are those of ``sessions.places_of``. Raises ``ConfigurationError`` where pyarrow can't access the file
    system, ``OSError`` where the file can't be read.
    """
    settings = places.get(scheme_and_place(uri))
    if settings is None:
        system, path = file_system(uri, label)
        return system.open_input_file(path)
    from cojoin.storage.object_store import ObjectFile  # noqa: PLC0415 - queries on local files do not load obstore

    return pa.PythonFile(io.BufferedReader(ObjectFile(settings, unquote(urlsplit(uri).path)), 1 << 20), mode="r")


def file_system(uri: str, label: str) -> tuple[fs.FileSystem, str]:
    """Return pyarrow's file system of a file, and the file's path on it; errors are those of ``open_file``.

    >>> file_system("file:/lake/my%20trades/a.parquet", "archive")[1]
    '/lake/my trades/a.parquet'
    """
    parts = urlsplit(uri)
    try:
        system, root = _root(parts.scheme, parts.netloc)
    except (pa.ArrowException, OSError, ValueError) as error:
        msg = (
            f"{label}: the tasks read its files by pyarrow, which can't reach {parts.scheme}://{parts.netloc}: {error}"
        )
        raise ConfigurationError(msg) from error
    return system, root.rstrip("/") + unquote(parts.path)


@lru_cache(maxsize=16)
def _root(scheme: str, place: str) -> tuple[fs.FileSystem, str]:
    if scheme in {"", "file"}:
        return fs.LocalFileSystem(), ""
    system, root = fs.FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}://{place}/")
    return system, root
