"""Folders on a disk or on S3's protocol, copied and deleted as by a tool that knows nothing of what they are."""

from __future__ import annotations

import contextlib
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers.s3 import client_of

__all__ = ["Files", "LocalFiles", "S3Files"]


class Files(ABC):
    """The files below folders, which are paths or URLs."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the paths of all files below a folder, relative to it; none where it does not exist."""

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Copy a folder file by file, as it lies there; a query may write into it meanwhile."""

    @abstractmethod
    def delete(self, folder: str) -> None:
        """Delete a folder with all files below it."""


class LocalFiles(Files):
    """Folders on a local disk."""

    def names(self, folder: str) -> list[str]:
        """Return the paths of all files below a folder."""
        return [str(path.relative_to(folder)) for path in sorted(Path(folder).rglob("*")) if path.is_file()]

    def copy(self, source: str, target: str) -> None:
        """Copy a folder, with the directories in it that are empty."""
        for path in sorted(Path(source).rglob("*")):
            place = Path(target) / path.relative_to(source)
            # A file may go while a query runs on.
            with contextlib.suppress(FileNotFoundError):
                if path.is_dir():
                    place.mkdir(parents=True, exist_ok=True)
                else:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, place)

    def delete(self, folder: str) -> None:
        """Delete a folder."""
        shutil.rmtree(folder)


class S3Files(Files):
    """Folders on a server of S3's protocol, whose objects the server itself copies.

    Args:
        endpoint: The server's endpoint.
    """

    def __init__(self, endpoint: str) -> None:
        self._client = client_of(endpoint)

    def names(self, folder: str) -> list[str]:
        """Return the names of all objects below a folder."""
        bucket, prefix = _split(folder)
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [each["Key"].removeprefix(prefix) for page in pages for each in page.get("Contents", [])]

    def copy(self, source: str, target: str) -> None:
        """Copy the objects below a folder."""
        (bucket, prefix), (other, into) = _split(source), _split(target)
        for name in self.names(source):
            origin = {"Bucket": bucket, "Key": f"{prefix}{name}"}
            # An object may go while a query runs on.
            with contextlib.suppress(self._client.exceptions.NoSuchKey):
                self._client.copy_object(Bucket=other, Key=f"{into}{name}", CopySource=origin)

    def delete(self, folder: str) -> None:
        """Delete the objects below a folder."""
        bucket, prefix = _split(folder)
        for name in self.names(folder):
            self._client.delete_object(Bucket=bucket, Key=f"{prefix}{name}")


def _split(url: str) -> tuple[str, str]:
    """Return a folder's bucket, and what the names of its objects begin with.

    >>> _split("s3a://lake/one/checkpoint")
    ('lake', 'one/checkpoint/')
    """
    parts = urlsplit(url)
    return parts.netloc, f"{parts.path.strip('/')}/"
