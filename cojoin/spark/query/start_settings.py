"""The session's settings while a query starts: Spark's query works in a copy of the session, and so keeps them.

A checkpoint on local files is written through Hadoop's ``FileSystem``. Spark's default, ``FileContext``, starts a
process (``readlink``, ``chmod``) some ten times for each file, as Hadoop has no native library in PySpark: 70 times a
batch, which took a twentieth of the CPU of a run and a fifth of a second of each batch. Both look whether a file is
there and then rename, and neither is atomic in that, so nothing is lost by it. On other file systems the default stays.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from cojoin.storage.store import Store

__all__ = ["start_settings"]

_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_PACKAGE = "org.apache.spark.sql.execution.streaming"
# Threads share a session, and two starts must not see each other's settings.
_STARTING = threading.Lock()


@contextlib.contextmanager
def start_settings(spark: SparkSession, files: Store, *, empty_batches: bool | None) -> Iterator[None]:
    """Set what a query has that is started in the block; settings of the user's own stay.

    Args:
        spark: The session.
        files: The checkpoint.
        empty_batches: Whether the query runs batches without rows; None leaves that as it is.
    """
    chosen = {} if empty_batches is None else {_EMPTY_BATCHES: str(empty_batches).lower()}
    if files.root.startswith(("/", "file:")) and spark.conf.get(_FILE_MANAGER, None) is None:
        chosen[_FILE_MANAGER] = _local_file_manager()
    with _STARTING:
        before = {name: spark.conf.get(name, None) for name in chosen}
        for name, value in chosen.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, value)


def _local_file_manager() -> str:
    """Return the class of Spark's that writes checkpoints through ``FileSystem``; Spark 4.1 has moved it."""
    has_moved = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)
    return f"{_PACKAGE}{'.checkpointing' if has_moved else ''}.FileSystemBasedCheckpointFileManager"
