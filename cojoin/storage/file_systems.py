"""pyarrow's file systems for Spark's URIs, with which tasks read and write files without the JVM."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from cojoin.errors import ConfigurationError

__all__ = ["file_system"]

_SCHEMES = {"s3a": "s3", "s3n": "s3"}
"""The URI schemes of pyarrow, by those of Hadoop, where they differ."""


def file_system(uri: str, what: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a file, and the file's path on it.

    Args:
        uri: The file's URI as Spark writes it.
        what: What the file belongs to, for messages.

    Raises:
        ConfigurationError: pyarrow can't access the file system.

    >>> file_system("file:/lake/my%20trades/a.parquet", "archive")[1]
    '/lake/my trades/a.parquet'
    """
    parts = urlsplit(uri)
    try:
        system, root = _root(parts.scheme, parts.netloc)
    except (pa.ArrowException, OSError, ValueError) as error:
        msg = f"{what}: the tasks read its files by pyarrow, which can't reach {parts.scheme}://{parts.netloc}: {error}"
        raise ConfigurationError(msg) from error
    return system, root.rstrip("/") + unquote(parts.path)


@lru_cache(maxsize=16)
def _root(scheme: str, place: str) -> tuple[fs.FileSystem, str]:
    if scheme in {"", "file"}:
        return fs.LocalFileSystem(), ""
    system, root = fs.FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}://{place}/")
    return system, root
