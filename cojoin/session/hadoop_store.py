"""Files on any file system that Spark supports, through Hadoop's classes in the JVM.

It serves what nothing else reaches, such as HDFS. A file is written under a temporary name and then renamed. Since not
every file system can replace a file in one step, the former file is first renamed to a second name and deleted once its
successor is in place. A reader in between, or after a crash in between, finds the former file.

Hadoop's file systems share no compare-and-swap: ``create`` and ``replace`` look first and then write, so two processes
that do so at the same moment may both succeed.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError
from cojoin.session.jvm import java_class, java_session
from cojoin.session.spark_errors import JAVA_ERRORS, java_message
from cojoin.storage.locations import without_login
from cojoin.storage.store import (
    Store,
    Tagged,
    UnplacedFileError,
    UnreadableFileError,
    cure_of,
    former_name,
    is_abandoned,
    visible_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

_TRIES = 5
# Errors that concern the file itself; others, such as those of rights or of the network, do not.
_DAMAGE = ("BlockMissingException", "BlockLengthException", "EOFException", "Corrupt")


def qualified(spark: SparkSession, root: str, label: str) -> str:
    """Return a directory absolute and with its scheme, as Hadoop spells it; errors are those of ``HadoopStore``."""
    return str(_system_and_root(spark, root, label)[1].toString())


def _system_and_root(spark: SparkSession, root: str, label: str) -> tuple[Any, Any]:
    configuration = java_session(spark).sparkContext().hadoopConfiguration()
    try:
        path = java_class(spark, "org.apache.hadoop.fs.Path")(root)
        system = path.getFileSystem(configuration)
        return system, system.makeQualified(path)
    except JAVA_ERRORS as error:
        msg = (
            f"{label} {without_login(root)!r}: Spark has no file system for it ({_message(error)}); expected a path "
            f"that Spark reaches, such as '/lake/{label}'. An object store needs its connector's package in "
            f"spark.jars.packages, and the scheme that this serves: s3a:// for S3, abfss:// for Azure, gs:// for "
            f"Google"
        )
        raise CheckpointError(msg) from error


class HadoopStore(Store):
    """The files below a directory of one of Hadoop's file systems, by the session's Hadoop configuration.

    A path without a scheme is on Spark's default file system. Raises ``CheckpointError`` where Spark has no file system
    for the directory.
    """

    has_conditional_writes = False
    _errors = JAVA_ERRORS

    def __init__(self, spark: SparkSession, root: str, label: str = "checkpoint") -> None:
        self.label, self._hadoop_path = label, java_class(spark, "org.apache.hadoop.fs.Path")
        self._to_bytes = java_class(spark, "org.apache.commons.io.IOUtils").toByteArray
        self._system, self._root = _system_and_root(spark, root, label)

    @property
    def root(self) -> str:
        """The directory, absolute and with its scheme."""
        return str(self._root.toString())

    def path(self, name: str) -> str:
        """Return the full path of a file or directory below the root."""
        return self._path(name).toString()  # type: ignore[no-any-return]

    def url(self, name: str) -> str:
        """Return the full path of a file as a URL, as Spark's own logs write it: with blanks and the like escaped."""
        return str(self._path(name).toUri().toString())

    def exists(self, name: str = "") -> bool:
        """Return whether a file or directory exists."""
        with self._translated_errors(name, "accessed"):
            return any(self._system.exists(place) for place in self._places(name))

    def read_tagged(self, name: str) -> Tagged | None:
        """Return a file with its tag, or None where it does not exist."""
        why = ""
        for _ in range(_TRIES):
            for place in self._places(name):
                content, why = self._read_at(name, place)
                if content is not None:
                    return Tagged(content, hashlib.sha256(content).hexdigest())
            if not self.exists(name):
                return None
        raise UnreadableFileError(self, name, why)

    def _read_at(self, name: str, place: Any) -> tuple[bytes | None, str]:
        """Return the content and no reason, or None and the reason why it can't be read at this moment."""
        try:
            stream = self._system.open(place)
            try:
                return bytes(self._to_bytes(stream)), ""
            finally:
                stream.close()
        except JAVA_ERRORS as error:
            # A local file's checksum is a second file: during a replacement, the two may not match.
            message = _message(error)
            if any(kind in message for kind in ("FileNotFoundException", "ChecksumException")):
                return None, message
            if not any(kind in message for kind in _DAMAGE):
                raise self._refused(name, "read", message, cure_of(message)) from error
            raise UnreadableFileError(self, name, message) from error

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file whole, in place of an earlier one; ``UnplacedFileError`` where it could not be renamed."""
        target = self._path(name)
        partial = self._hadoop_path(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}.tmp")
        with self._translated_errors(name, "written"):
            stream = self._system.create(partial, True)
            try:
                stream.write(bytearray(content))
            finally:
                stream.close()
        former = self._former(target)
        for _ in range(_TRIES):
            with contextlib.suppress(*JAVA_ERRORS):
                # Another process that replaces the file at the same moment may have renamed it since.
                if self._system.exists(target):
                    self._system.delete(former, False)
                    self._system.rename(target, former)
            if self._system.rename(partial, target):
                self._system.delete(former, False)
                return
        msg = (
            f"{self.named}: {name} can't be put in place: the file system does not rename "
            f"{partial.getName()}; see that nothing else writes to this folder, and start again"
        )
        raise UnplacedFileError(msg)

    def replace(self, name: str, content: bytes, tag: str | None) -> bool:
        """Write a file whole, if it still is the one that was read; see ``Store.replace``. It is not atomic."""
        stored = self.read_tagged(name)
        if (None if stored is None else stored.tag) != tag:
            return False
        try:
            self.write_bytes(name, content)
        except UnplacedFileError:
            # Another process's rename came first.
            return False
        stored = self.read_tagged(name)
        return stored is not None and stored.content == content

    def make_directory(self, name: str) -> None:
        """Create a directory where it does not exist."""
        self._make(self._path(name), name)

    def check_place(self) -> None:
        """Check that the root directory exists or can be created; what is created for the check is deleted again."""
        made, place = [], self._root
        with self._translated_errors("", "accessed"):
            while place is not None and not self._system.exists(place):
                made.append(place)
                place = place.getParent()
        if made:
            self._make(self._root, "")
            with contextlib.suppress(*JAVA_ERRORS):
                # Not recursive: the file system keeps a directory in which another process has written meanwhile.
                for folder in made:
                    self._system.delete(folder, False)

    def _make(self, place: Any, name: str) -> None:
        with self._translated_errors(name, "made"):
            made = self._system.mkdirs(place)
        if not made:
            raise self._refused(name, "made", "the file system declines")

    def modified(self, name: str) -> int:
        """Return when a file was last written, in epoch milliseconds."""
        with self._translated_errors(name, "accessed"):
            return int(self._system.getFileStatus(self._path(name)).getModificationTime())

    def size(self, name: str) -> int:
        """Return the size of a file, or of all files below a directory, in bytes."""
        return int(self._system.getContentSummary(self._path(name)).getLength())

    def delete(self, name: str) -> None:
        """Delete a file where it exists."""
        target = self._path(name)
        self._system.delete(self._former(target), False)
        self._system.delete(target, False)

    def delete_directory(self, name: str) -> None:
        """Delete a directory with its content where it exists."""
        self._system.delete(self._path(name), True)

    def delete_empty_directory(self, name: str) -> None:
        """Delete a directory if it exists and is empty."""
        with contextlib.suppress(*JAVA_ERRORS):
            # Not recursive: the file system keeps a directory in which another process has written meanwhile.
            self._system.delete(self._path(name), False)

    def names(self, directory: str) -> list[str]:
        """Return the names of a directory's complete files in order; none where the directory does not exist."""
        if not self.exists(directory):
            return []
        with self._translated_errors(directory, "listed"):
            return visible_names({each.getPath().getName() for each in self._system.listStatus(self._path(directory))})

    def times(self, descends: Callable[[str], bool]) -> Iterator[tuple[str, int]]:
        """Yield the path of each file below the root, and when it was written; see ``Store.times``."""
        folders = [self._root]
        with self._translated_errors("", "listed"):
            while folders:
                listed = self._system.listStatusIterator(folders.pop())
                while listed.hasNext():
                    status = listed.next()
                    if not status.isDirectory():
                        yield str(status.getPath().toUri().getPath()), int(status.getModificationTime())
                    elif descends(str(status.getPath().getName())):
                        folders.append(status.getPath())

    def delete_abandoned(self, directory: str) -> None:
        """Delete the temporary files that killed processes have left in a directory; see ``Store.delete_abandoned``."""
        if not self.exists(directory):
            return
        with self._translated_errors(directory, "cleaned"):
            for status in self._system.listStatus(self._path(directory)):
                if is_abandoned(status.getPath().getName(), status.getModificationTime() / 1000):
                    self._system.delete(status.getPath(), False)

    def _explained(self, error: BaseException) -> tuple[str, str | None]:
        message = _message(error)
        return message, cure_of(message)

    def _places(self, name: str) -> Iterator[Any]:
        """Yield a file's possible paths: its path, its second name, and its path again, if it was just replaced."""
        target = self._path(name)
        yield target
        if name:
            yield self._former(target)
            yield target

    def _former(self, target: Any) -> Any:
        return self._hadoop_path(target.getParent(), former_name(target.getName()))

    def _path(self, name: str) -> Any:
        return self._hadoop_path(self._root, name) if name else self._root


def _message(error: BaseException) -> str:
    """Return the first line of Java's message, without the package of the error's class."""
    kind, colon, text = java_message(error).strip().partition("\n")[0].partition(": ")
    return f"{kind.rpartition('.')[2]}{colon}{text}"
