"""Which store a directory is on: local files, an object store, or what only Hadoop's file systems reach.

Local files and object stores are reached without the JVM, so a session of Spark Connect reaches them, too. Hadoop's
file systems serve everything else that Spark reaches: HDFS, and object stores whose settings only Hadoop understands.
A session in this process is always asked first whether Spark reaches the directory, since Spark keeps its own files
there. With ``spark.cojoin.storage=hadoop`` in the session's configuration, Hadoop reaches object stores, too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from cojoin.errors import CheckpointError
from cojoin.installed_packages import check_packages
from cojoin.storage.local_store import LocalStore
from cojoin.storage.locations import scheme_and_place, without_login
from cojoin.storage.object_store_settings import settings_of
from cojoin.storage.session_settings import hadoop_setting, is_connect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from cojoin.storage.object_store import ObjectStore
    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

__all__ = ["open_store", "places_of"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_FILE, _PLAIN_FILE = "file:", re.compile(r"file:(/(?!\.{1,2}(/|$))[^/]+)+")
_LOCAL_CLASSES = frozenset({"LocalFileSystem", "RawLocalFileSystem"})


def open_store(spark: SparkSession, root: str, what: str = "checkpoint") -> Store:
    """Return the files below a directory.

    Args:
        spark: The session, for its settings.
        root: The directory; a path without a scheme is on Spark's default file system, and with Spark Connect on the
            local one.
        what: What the directory is, for messages.

    Raises:
        CheckpointError: There is no way to the directory.
        EnvironmentSetupError: It is on an object store, and obstore is not installed.
    """
    if is_connect(spark):
        return _open_without_jvm(spark, root, what)
    from cojoin.storage.hadoop_store import HadoopStore, qualified  # noqa: PLC0415 - it needs the JVM

    if _PLAIN_FILE.fullmatch(root) is None:
        root = qualified(spark, root, what)
    local = hadoop_setting(spark, "fs.file.impl")
    if root.startswith(_FILE) and (local is None or local.rpartition(".")[2] in _LOCAL_CLASSES):
        return LocalStore(root.removeprefix(_FILE), what)
    return _object_store(spark, root, what) or HadoopStore(spark, root, what)


def _open_without_jvm(spark: SparkSession, root: str, what: str) -> Store:
    if root.startswith(_FILE):
        return LocalStore("/" + root.removeprefix(_FILE).lstrip("/"), what)
    if _SCHEME.match(root) is None:
        return LocalStore(str(Path(root).absolute()), what)
    store = _object_store(spark, root, what)
    if store is None:
        msg = (
            f"{what} {without_login(root)!r}: there is no way to it from a session of Spark Connect; expected a local "
            f"path that the server shares, or an object store's whose settings are in Spark's configuration: s3a:// "
            f"for S3, abfss:// for Azure, gs:// for Google"
        )
        raise CheckpointError(msg)
    return store


def places_of(spark: SparkSession, uris: Iterable[str]) -> dict[str, Settings]:
    """Return how tasks reach the object stores of some files without the JVM, by scheme and place such as ``s3a://lake``.

    It may hold credentials: it travels with the tasks, and is never written to a file. Places that only Hadoop reaches,
    and those that are no object stores, are left out.

    Args:
        spark: The session.
        uris: The files' URIs as Spark writes them.
    """
    found = {place: _settings(spark, place) for place in sorted({scheme_and_place(uri) for uri in uris})}
    return {place: each for place, each in found.items() if each is not None}


def _settings(spark: SparkSession, root: str) -> Settings | None:
    if str(spark.conf.get("spark.cojoin.storage", "")).lower() == "hadoop":
        return None
    found = settings_of(root, lambda name: hadoop_setting(spark, name))
    if found is not None:
        check_packages(without_login(root), "spark", "obstore")
    return found


def _object_store(spark: SparkSession, root: str, what: str) -> ObjectStore | None:
    settings = _settings(spark, root)
    if settings is None:
        return None
    from cojoin.storage.object_store import ObjectStore  # noqa: PLC0415 - queries on local files do not load obstore

    return ObjectStore.of(settings, root, what)
