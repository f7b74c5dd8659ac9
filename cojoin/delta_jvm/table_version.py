"""What a Delta table's log says at its newest version: its id, its version, its transactions, its partition columns.

In a session with a JVM of its own, Delta's classes answer. A session of Spark Connect has no access to them. There the
log is read as files (``cojoin/delta/table_log.py``), without Spark.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from cojoin.delta.table_log import TableLog
from cojoin.delta_jvm.delta_files import table_log
from cojoin.session.java_classes import java_class, java_session
from cojoin.session.kinds import adapter_of
from cojoin.session.stores import open_store
from cojoin.storage.locations import is_path, is_relative

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cojoin.delta import table_log as delta

__all__ = ["TableVersion", "log_path", "quoted_table", "read_log", "read_table", "table_in_sql"]


class TableVersion(ABC):
    """A Delta table at its newest version.

    Attributes:
        path: The table's folder.
        version: The version.
        table_id: The table's id.
    """

    path: str
    version: int
    table_id: str

    @property
    def log_path(self) -> str:
        """The folder of the table's log."""
        return f"{self.path.rstrip('/')}/_delta_log"

    @abstractmethod
    def partition_columns(self) -> tuple[str, ...]:
        """Return the columns by which the table is partitioned."""

    @abstractmethod
    def schema_text(self) -> str:
        """Return the table's columns as Spark's JSON of a schema; empty where the log does not say."""

    def schema(self) -> StructType | None:
        """Return the table's columns; None where the log has no schema, or types that this Spark does not have."""
        text = self.schema_text()
        try:
            return StructType.fromJson(json.loads(text)) if text else None
        except PySparkException:
            return None

    @abstractmethod
    def transaction(self, app_id: str) -> int | None:
        """Return the newest version that an application has written to the table; None if it has written none."""


def read_table(session: SparkSession, location: str, *, again: bool = True) -> TableVersion | None:
    """Return a Delta table at its newest version.

    Args:
        session: The session.
        location: The table's path, with a ``/``, or its name.
        again: Whether the log is read again; False allows a version that this process has read or written before.

    Returns:
        The table; None where there is no such table.
    """
    adapter = adapter_of(session)
    if not adapter.has_delta_classes:
        path = adapter.table_location(location)
        return None if path is None else read_log(session, path)
    log = table_log(session, location)
    if log is None:
        return None
    if again:
        # The log in this JVM's cache may be that of a table that was deleted and created again since.
        java_class(session, "org.apache.spark.sql.delta.DeltaLog").invalidateCache(
            java_session(session),
            java_class(session, "org.apache.hadoop.fs.Path")(location) if is_path(location) else log.dataPath(),
        )
        log = table_log(session, location)
    return _JvmTable(log) if log.tableExists() else None


def log_path(session: SparkSession, location: str) -> str | None:
    """Return the folder of a Delta table's log, which is not read; None where no table has the name.

    Args:
        session: The session.
        location: The table's path, with a ``/``, or its name.
    """
    adapter = adapter_of(session)
    if not adapter.has_delta_classes:
        path = adapter.table_location(location)
        return None if path is None else f"{path.rstrip('/')}/_delta_log"
    log = table_log(session, location)
    return None if log is None else str(log.logPath().toString())


def quoted_table(location: str) -> str:
    """Return a table as SQL names it.

    >>> quoted_table("/lake/trades"), quoted_table("lake.trades")
    ('delta.`/lake/trades`', 'lake.trades')
    """
    return f"delta.`{location.replace('`', '``')}`" if is_path(location) else location


def table_in_sql(spark: SparkSession, location: str) -> str:
    """Return a table as SQL names it; in SQL, Delta does not take a relative path for a table.

    Args:
        spark: The session.
        location: The table's path, with a ``/``, or its name.
    """
    if is_path(location) and is_relative(location) and (table := read_table(spark, location)) is not None:
        location = table.path
    return quoted_table(location)


class _JvmTable(TableVersion):
    """A table as Delta's classes know it."""

    def __init__(self, log: Any) -> None:
        self._snapshot = log.unsafeVolatileSnapshot()
        self.path = str(log.dataPath().toString())
        self.version = int(self._snapshot.version())
        self.table_id = str(self._snapshot.metadata().id())

    def partition_columns(self) -> tuple[str, ...]:
        """Return the columns by which the table is partitioned."""
        return tuple(self._snapshot.metadata().partitionColumns().mkString("\n").splitlines())

    def schema_text(self) -> str:
        """Return the table's columns as Spark's JSON of a schema; empty where the log does not say."""
        return str(self._snapshot.metadata().schemaString() or "")

    def transaction(self, app_id: str) -> int | None:
        """Return the newest version that an application has written to the table; None if it has written none."""
        found = self._snapshot.transactions()
        return int(found.apply(app_id)) if found.contains(app_id) else None


class _ReadTable(TableVersion):
    """A table whose log was read as files."""

    def __init__(self, path: str, found: delta.TableVersion) -> None:
        self.path, self.version, self.table_id, self._found = path, found.version, found.table_id, found

    def partition_columns(self) -> tuple[str, ...]:
        """Return the columns by which the table is partitioned."""
        return self._found.partition_columns

    def schema_text(self) -> str:
        """Return the table's columns as Spark's JSON of a schema; empty where the log does not say."""
        return self._found.schema_text

    def transaction(self, app_id: str) -> int | None:
        """Return the newest version that an application has written to the table; None if it has written none."""
        return self._found.transaction(app_id)


def read_log(session: SparkSession, path: str) -> TableVersion | None:
    """Return a Delta table at its newest version by reading its log as files; None where there is no table.

    Args:
        session: The session.
        path: The table's folder.
    """
    found = TableLog(open_store(session, path)).newest()
    return None if found is None else _ReadTable(path, found)
