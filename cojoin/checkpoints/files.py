"""Small files of a checkpoint, on whatever file system its path names.

They go through Hadoop's file systems, as Spark's own checkpoint does, so a checkpoint works wherever Spark's does. A
file is written under another name first and renamed: it is there whole or not at all.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CheckpointFiles"]


class CheckpointFiles:
    """The small files below one directory.

    Args:
        spark: The session whose Hadoop configuration reaches the directory.
        root: The directory; a path without a scheme is on Spark's default file system.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no public way to Hadoop's file systems
        configuration = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        path = self._jvm.org.apache.hadoop.fs.Path(root)
        self._system = path.getFileSystem(configuration)
        self._root = self._system.makeQualified(path)

    @property
    def root(self) -> str:
        """The directory, absolute and with its scheme."""
        return str(self._root.toString())

    def path(self, name: str) -> str:
        """Give the full path of a file or directory below."""
        return self._path(name).toString()  # type: ignore[no-any-return]

    def exists(self, name: str = "") -> bool:
        """Tell whether a file or directory is there."""
        return bool(self._system.exists(self._path(name)))

    def read(self, name: str) -> str | None:
        """Give a file's text, or None where there is none."""
        if not self.exists(name):
            return None
        stream = self._system.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a text file whole, in place of an earlier one."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file whole, in place of an earlier one."""
        target = self._path(name)
        partial = self._jvm.org.apache.hadoop.fs.Path(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}.tmp")
        stream = self._system.create(partial, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()
        if self._system.exists(target):
            self._system.delete(target, False)
        if not self._system.rename(partial, target):
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
        self._system.delete(self._path(name), False)

    def delete_directory(self, name: str) -> None:
        """Delete a directory with all that it holds; one that is not there is passed over."""
        self._system.delete(self._path(name), True)

    def names(self, directory: str) -> list[str]:
        """List the finished files of a directory, or nothing where it is not there."""
        if not self.exists(directory):
            return []
        names = [status.getPath().getName() for status in self._system.listStatus(self._path(directory))]
        return sorted(name for name in names if not name.startswith("."))

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name) if name else self._root
