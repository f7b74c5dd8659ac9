"""Opens the store of a directory: local files, an object store, or what only Hadoop's file systems reach.

Local files and object stores are reached without the JVM, so a session of Spark Connect reaches them, too. Hadoop's
file systems serve everything else that Spark reaches: HDFS, and object stores whose settings only Hadoop understands.
A session in this process is always asked first whether Spark reaches the directory, since Spark keeps its own files
there. With ``spark.cojoin.storage=hadoop`` in the session's configuration, Hadoop reaches object stores, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.session.kinds import adapter_of
from cojoin.storage.locations import scheme_and_place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

__all__ = ["open_store", "places_of"]


def open_store(spark: SparkSession, root: str, what: str = "checkpoint") -> Store:
    """Return the files below a directory.

    Args:
        spark: The session, for its settings.
        root: The directory; a path without a scheme is on Spark's default file system, and with Spark Connect on the
            local one.
        what: What the directory is, for messages.

    Raises:
        CheckpointError: There is no way to the directory.
    """
    return adapter_of(spark).open_store(root, what)


def places_of(spark: SparkSession, uris: Iterable[str]) -> dict[str, Settings]:
    """Return how tasks reach the object stores of some files without the JVM, by scheme and place such as ``s3a://lake``.

    It may hold credentials: it travels with the tasks, and is never written to a file. Places that only Hadoop reaches,
    and those that are no object stores, are left out.

    Args:
        spark: The session.
        uris: The files' URIs as Spark writes them.
    """
    adapter = adapter_of(spark)
    found = {place: adapter.object_store_settings(place) for place in sorted({scheme_and_place(uri) for uri in uris})}
    return {place: each for place, each in found.items() if each is not None}
