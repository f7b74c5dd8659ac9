"""Opens the checkpoints that a command reads without Spark: this process reaches their store as a session would.

That is so where the settings that Spark would see say how: the options of the command, ``PYSPARK_SUBMIT_ARGS`` and
``spark-defaults.conf``. Where Hadoop has files of settings, a session reads them.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cojoin.session.submit_settings import settings_of
from cojoin.storage import object_store_settings
from cojoin.storage.direct_store import direct_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.storage.store import Store

__all__ = ["has_session", "store_without_spark"]

_HADOOPS_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_DECIDING = ("spark.hadoop.fs.defaultFS", "spark.hadoop.fs.default.name", "spark.hadoop.fs.file.impl")


def store_without_spark(path: str, conf: Mapping[str, str]) -> Store | None:
    """Return the files of a checkpoint's directory; None where a session is needed, or is there.

    Args:
        path: The directory.
        conf: The settings that the command gives.

    Raises:
        CheckpointError: A setting of the object store is invalid.
    """
    settings = settings_of(conf)
    if has_session() or any(map(os.environ.get, _HADOOPS_FOLDERS)) or any(map(settings.get, _DECIDING)):
        return None
    if settings.get("spark.cojoin.storage", "").lower() == "hadoop":
        return None
    return direct_store(
        path, lambda root: object_store_settings.settings_of(root, lambda name: settings.get(f"spark.hadoop.{name}"))
    )


def has_session() -> bool:
    """Return whether there is an active session, without importing Spark."""
    loaded = sys.modules.get("pyspark.sql")
    return loaded is not None and loaded.SparkSession.getActiveSession() is not None
