"""Small files of a checkpoint, on whatever file system its path names.

They go through Hadoop's file systems, as Spark's own checkpoint does, so a checkpoint works wherever Spark's does. A
file is written under another name first and renamed: it is there whole or not at all. One that is replaced steps aside
until its successor stands, for no file system can be relied on to replace in one step: whoever reads in between, or
after a crash there, finds the former one.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from cojoin.checkpoints.java_classes import java_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["CheckpointFiles"]

_FORMER = ".former"
_TRIES = 5


class _ReplacedError(Exception):
    """A file is not there, or is being replaced."""


class CheckpointFiles:
    """The small files below one directory.

    Args:
        spark: The session whose Hadoop configuration reaches the directory.
        root: The directory; a path without a scheme is on Spark's default file system.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._hadoop_path = java_class(spark, "org.apache.hadoop.fs.Path")
        self._as_text = java_class(spark, "org.apache.commons.io.IOUtils").toString
        configuration = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - PySpark has no way to Hadoop's file systems
        path = self._hadoop_path(root)
        self._system = path.getFileSystem(configuration)
        self._root = self._system.makeQualified(path)

    @property
    def root(self) -> str:
        """The directory, absolute and with its scheme."""
        return str(self._root.toString())

    def path(self, name: str) -> str:
        """Give the full path of a file or directory below."""
        return self._path(name).toString()  # type: ignore[no-any-return]

    def url(self, name: str) -> str:
        """Give the full path of a file as a URL, as Spark's own logs spell it: blanks and the like are escaped."""
        return str(self._path(name).toUri().toString())

    def exists(self, name: str = "") -> bool:
        """Tell whether a file or directory is there."""
        return any(self._system.exists(place) for place in self._places(name))

    def read(self, name: str) -> str | None:
        """Give a file's text, or None where there is none."""
        for _ in range(_TRIES):
            for place in self._places(name):
                with contextlib.suppress(_ReplacedError):
                    return self._read_at(place)
            if not self.exists(name):
                return None
        msg = f"{self.path(name)} can't be read: its checksum is another's"
        raise OSError(msg)

    def _read_at(self, place: Any) -> str:
        try:
            stream = self._system.open(place)
            try:
                return str(self._as_text(stream, "UTF-8"))
            finally:
                stream.close()
        except Py4JJavaError as error:
            # A local file and its checksum are two files, of which a successor's may be the one and not the other.
            if any(name in str(error.java_exception) for name in ("FileNotFoundException", "ChecksumException")):
                raise _ReplacedError from error
            raise

    def write(self, name: str, text: str) -> None:
        """Write a text file whole, in place of an earlier one."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file whole, in place of an earlier one."""
        target = self._path(name)
        partial = self._hadoop_path(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}.tmp")
        stream = self._system.create(partial, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()
        former = self._former(target)
        for _ in range(_TRIES):
            with contextlib.suppress(Py4JJavaError):
                # Whoever replaces it at the same moment may have moved it away since.
                if self._system.exists(target):
                    self._system.delete(former, False)
                    self._system.rename(target, former)
            if self._system.rename(partial, target):
                self._system.delete(former, False)
                return
        msg = f"could not rename {partial.toString()} to {target.toString()}"
        raise OSError(msg)

    def make_directory(self, name: str) -> None:
        """Make a directory, where it is not there."""
        self._system.mkdirs(self._path(name))

    def modified(self, name: str) -> int:
        """Give when a file was last written, in epoch milliseconds."""
        return int(self._system.getFileStatus(self._path(name)).getModificationTime())

    def size(self, name: str) -> int:
        """Give the bytes of a file, or of all files below a directory."""
        return int(self._system.getContentSummary(self._path(name)).getLength())

    def delete(self, name: str) -> None:
        """Delete a file; one that is not there is passed over."""
        target = self._path(name)
        self._system.delete(self._former(target), False)
        self._system.delete(target, False)

    def delete_directory(self, name: str) -> None:
        """Delete a directory with all that it holds; one that is not there is passed over."""
        self._system.delete(self._path(name), True)

    def names(self, directory: str) -> list[str]:
        """List the finished files of a directory, or nothing where it is not there."""
        if not self.exists(directory):
            return []
        names = {status.getPath().getName() for status in self._system.listStatus(self._path(directory))}
        former = {name[1:].removesuffix(_FORMER) for name in names if name.startswith(".") and name.endswith(_FORMER)}
        return sorted(former.union(name for name in names if not name.startswith(".")))

    def _places(self, name: str) -> Iterator[Any]:
        """Give where a file may be: at its path, aside, or at its path again, if its successor has come meanwhile."""
        target = self._path(name)
        yield target
        if name:
            yield self._former(target)
            yield target

    def _former(self, target: Any) -> Any:
        return self._hadoop_path(target.getParent(), f".{target.getName()}{_FORMER}")

    def _path(self, name: str) -> Any:
        return self._hadoop_path(self._root, name) if name else self._root
