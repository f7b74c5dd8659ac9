"""Delta's tables by path or name in a session: where they lie, their newest versions, and their names in SQL.

A table's log is read as files (``cojoin.delta``), in sessions of every kind alike. A name is resolved by the session's
catalog each time, as the table may have been dropped and made again somewhere else.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from cojoin.delta.table_log import LOG, TableLog, TableVersion
from cojoin.session.kinds import adapter_of
from cojoin.session.stores import open_store
from cojoin.storage.locations import is_path, is_relative

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "columns_of",
    "default_properties",
    "keep_checksums_small",
    "quoted_table",
    "read_table",
    "table_in_sql",
    "table_log",
    "table_path",
]

_DEFAULTS = "spark.databricks.delta.properties.defaults."
_FILES_IN_CHECKSUM = "spark.databricks.delta.allFilesInCrc.enabled"


def table_path(session: SparkSession, location: str) -> str | None:
    """Return a table's folder; None where no table has the name.

    Args:
        session: The session.
        location: The table's path, with a ``/``, or its name.
    """
    if is_path(location):
        return location
    return adapter_of(session).table_location(location) if session.catalog.tableExists(location) else None


def table_log(session: SparkSession, location: str) -> TableLog | None:
    """Return the log of a table, or of a folder that may become one; None where no table has the name.

    Args:
        session: The session.
        location: The table's path, with a ``/``, or its name.

    Raises:
        CheckpointError: There is no way to the folder.
    """
    path = table_path(session, location)
    return None if path is None else TableLog(open_store(session, path, "Delta table"))


def read_table(session: SparkSession, location: str) -> TableVersion | None:
    """Return a Delta table at its newest version; None where there is no such table.

    Args:
        session: The session.
        location: The table's path, with a ``/``, or its name.

    Raises:
        UnreadableLogError: A part of its log is gone or damaged.
        CheckpointError: The store can't be reached.
    """
    log = table_log(session, location)
    return None if log is None else log.newest()


def columns_of(table: TableVersion) -> StructType | None:
    """Return a table's columns; None where the log has no schema, or types that this Spark does not have."""
    try:
        return StructType.fromJson(json.loads(table.schema_text)) if table.schema_text else None
    except PySparkException:
        return None


def quoted_table(location: str) -> str:
    """Return a table as SQL names it.

    >>> quoted_table("/lake/trades"), quoted_table("lake.trades")
    ('delta.`/lake/trades`', 'lake.trades')
    """
    return f"delta.`{location.replace('`', '``')}`" if is_path(location) else location


def table_in_sql(session: SparkSession, location: str) -> str:
    """Return a table as SQL names it; in SQL, Delta does not take a relative path for a table.

    Args:
        session: The session.
        location: The table's path, with a ``/``, or its name.
    """
    if is_path(location) and is_relative(location):
        store = open_store(session, location, "Delta table")
        if store.exists(LOG):
            location = store.path("")
    return quoted_table(location)


def default_properties(session: SparkSession) -> dict[str, str]:
    """Return the properties that a session gives to new tables, by their names."""
    names = adapter_of(session).setting_names()
    defaults = sorted(name for name in names if name.startswith(_DEFAULTS))
    return {f"delta.{name.removeprefix(_DEFAULTS)}": str(session.conf.get(name)) for name in defaults}


def keep_checksums_small(session: SparkSession) -> None:
    """Exclude the list of a table's files from the checksum files that a session's commits write.

    A value that the user has set stays. Where the session's time zone is not UTC, Delta reads the whole list again
    after each commit to compare the two: a Spark job each time, which takes up to half the time of a small batch.
    """
    if not adapter_of(session).is_set(_FILES_IN_CHECKSUM):
        session.conf.set(_FILES_IN_CHECKSUM, "false")
