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
from pyspark.errors import PySparkException

from cojoin.errors import CheckpointError
from cojoin.storage.java_classes import java_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["CheckpointFiles", "UnplacedFileError", "UnreadableFileError"]

# PySpark turns some of Java's errors into its own, wherever they come from.
_JavaErrors = (Py4JJavaError, PySparkException)
_FORMER = ".former"
_TRIES = 5


class UnreadableFileError(CheckpointError):
    """A file is there and can't be read.

    Attributes:
        why: What the file system says.
    """

    def __init__(self, root: str, name: str, why: str) -> None:
        super().__init__(f"checkpoint {root}: {name} can't be read: {why}; put it back from a backup of the checkpoint")
        self.why = why


class UnplacedFileError(CheckpointError):
    """A file was written and did not get its name: there is no right to, or another process was quicker each time."""


class CheckpointFiles:
    """The small files below one directory.

    Args:
        spark: The session whose Hadoop configuration reaches the directory.
        root: The directory; a path without a scheme is on Spark's default file system.
        what: What the directory is, for messages.

    Raises:
        CheckpointError: Spark has no file system for it.
    """

    def __init__(self, spark: SparkSession, root: str, what: str = "checkpoint") -> None:
        self._what, self._hadoop_path = what, java_class(spark, "org.apache.hadoop.fs.Path")
        self._as_text = java_class(spark, "org.apache.commons.io.IOUtils").toString
        configuration = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - PySpark has no way to Hadoop's file systems
        try:
            path = self._hadoop_path(root)
            self._system = path.getFileSystem(configuration)
            self._root = self._system.makeQualified(path)
        except _JavaErrors as error:
            msg = (
                f"{what} {root!r}: Spark has no file system for it ({_said(error)}); expected a path that Spark "
                f"reaches, such as '/lake/{what}'. An object store needs its connector's package in "
                f"spark.jars.packages, and the scheme that this serves: s3a:// for S3, abfss:// for Azure, gs:// for "
                f"Google"
            )
            raise CheckpointError(msg) from error

    @property
    def root(self) -> str:
        """The directory, absolute and with its scheme."""
        return str(self._root.toString())

    def path(self, name: str) -> str:
        """Return the full path of a file or directory below."""
        return self._path(name).toString()  # type: ignore[no-any-return]

    def url(self, name: str) -> str:
        """Return the full path of a file as a URL, as Spark's own logs spell it: blanks and the like are escaped."""
        return str(self._path(name).toUri().toString())

    def exists(self, name: str = "") -> bool:
        """Return whether a file or directory is there."""
        with self._told(name, "looked for"):
            return any(self._system.exists(place) for place in self._places(name))

    def read(self, name: str) -> str | None:
        """Return a file's text, or None where there is none.

        Raises:
            UnreadableFileError: It is there and can't be read.
        """
        why = ""
        for _ in range(_TRIES):
            for place in self._places(name):
                text, why = self._read_at(name, place)
                if text is not None:
                    return text
            if not self.exists(name):
                return None
        raise UnreadableFileError(self.root, name, why)

    def _read_at(self, name: str, place: Any) -> tuple[str | None, str]:
        """Return the text, or why there is none at this moment."""
        try:
            stream = self._system.open(place)
            try:
                return str(self._as_text(stream, "UTF-8")), ""
            finally:
                stream.close()
        except _JavaErrors as error:
            # A local file and its checksum are two files, of which a successor's may be the one and not the other.
            said = _said(error)
            if any(kind in said for kind in ("FileNotFoundException", "ChecksumException")):
                return None, said
            raise UnreadableFileError(self.root, name, said) from error

    def write(self, name: str, text: str) -> None:
        """Write a text file whole, in place of an earlier one."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file whole, in place of an earlier one.

        Raises:
            CheckpointError: The directory is none that can be made, or none that can be written to.
        """
        target = self._path(name)
        partial = self._hadoop_path(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}.tmp")
        with self._told(name, "written"):
            stream = self._system.create(partial, True)
            try:
                stream.write(bytearray(content))
            finally:
                stream.close()
        former = self._former(target)
        for _ in range(_TRIES):
            with contextlib.suppress(*_JavaErrors):
                # Whoever replaces it at the same moment may have moved it away since.
                if self._system.exists(target):
                    self._system.delete(former, False)
                    self._system.rename(target, former)
            if self._system.rename(partial, target):
                self._system.delete(former, False)
                return
        msg = (
            f"checkpoint {self.root}: {name} can't be put in place: the file system does not rename "
            f"{partial.getName()}; see that nothing else writes there, and start again"
        )
        raise UnplacedFileError(msg)

    def make_directory(self, name: str) -> None:
        """Make a directory, where it is not there.

        Raises:
            CheckpointError: It can't be made.
        """
        self._make(self._path(name), name)

    def check_place(self) -> None:
        """See that the directory is there or can be made; one that was made to see it is taken away again.

        Raises:
            CheckpointError: It can't be made.
        """
        made, place = [], self._root
        with self._told("", "looked for"):
            while place is not None and not self._system.exists(place):
                made.append(place)
                place = place.getParent()
        if made:
            self._make(self._root, "")
            with contextlib.suppress(*_JavaErrors):
                # What another process has put there meanwhile keeps it.
                for each in made:
                    self._system.delete(each, False)

    def _make(self, place: Any, name: str) -> None:
        with self._told(name, "made"):
            made = self._system.mkdirs(place)
        if not made:
            raise self._refused(name, "made", "the file system declines")

    def modified(self, name: str) -> int:
        """Return when a file was last written, in epoch milliseconds."""
        return int(self._system.getFileStatus(self._path(name)).getModificationTime())

    def size(self, name: str) -> int:
        """Return the bytes of a file, or of all files below a directory."""
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
        with self._told(directory, "listed"):
            names = {status.getPath().getName() for status in self._system.listStatus(self._path(directory))}
        former = {name[1:].removesuffix(_FORMER) for name in names if name.startswith(".") and name.endswith(_FORMER)}
        return sorted(former.union(name for name in names if not name.startswith(".")))

    @contextlib.contextmanager
    def _told(self, name: str, what: str) -> Iterator[None]:
        """Return what the file system says, in a line."""
        try:
            yield
        except _JavaErrors as error:
            raise self._refused(name, what, _said(error)) from error

    def _refused(self, name: str, what: str, why: str) -> CheckpointError:
        return CheckpointError(
            f"{self._what} {self.root}: {name or 'the directory'} can't be {what}: {why}; expected a directory that is "
            f"there or can be made, and that Spark's driver may read and write"
        )

    def _places(self, name: str) -> Iterator[Any]:
        """Yield where a file may be: at its path, aside, or at its path again, if its successor has come meanwhile."""
        target = self._path(name)
        yield target
        if name:
            yield self._former(target)
            yield target

    def _former(self, target: Any) -> Any:
        return self._hadoop_path(target.getParent(), f".{target.getName()}{_FORMER}")

    def _path(self, name: str) -> Any:
        return self._hadoop_path(self._root, name) if name else self._root


def _said(error: BaseException) -> str:
    """Return what Java says, in a line, without the package of the error's class."""
    said = str(error.java_exception if isinstance(error, Py4JJavaError) else error)
    kind, colon, text = said.strip().partition("\n")[0].partition(": ")
    return f"{kind.rpartition('.')[2]}{colon}{text}"
