"""Delta's tables by path (with a ``/``) or name in a session: their folders, versions, commits, and names in SQL.

A table's log is read as files (``cojoin.delta``), alike in sessions of every kind. A name is resolved by the session's
catalog each time, as the table may have been dropped and made again in another folder.

The writer of a commit is known by the transaction id in the log (``cojoin-<query id>-<output>``). Delta deletes old
commits from the log, so the commits after a version are returned only where the log still has all of them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from cojoin.delta.table_batches import FENCE
from cojoin.delta.table_log import LOG, TableLog, TableVersion
from cojoin.errors import CheckpointError, ConfigurationError, EnvironmentSetupError
from cojoin.session.sessions import adapter_of, open_store
from cojoin.session.spark_errors import SPARK_ERRORS, first_line
from cojoin.storage.locations import is_path, is_relative, without_login

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from cojoin.delta.actions import Commit

_DEFAULTS = "spark.databricks.delta.properties.defaults."
_FILES_IN_CHECKSUM = "spark.databricks.delta.allFilesInCrc.enabled"
_PART_OF_NAME = re.compile(r"`(?:[^`]|``)+`|[^.`]+")
_ALL_ROWS = ("[]", '["true"]')
# Delta refuses time travel beyond the retention of deleted files; its error for missing files is enough here.
_LOOKING_BACK = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"


def table_path(session: SparkSession, location: str) -> str | None:
    """Return a table's folder; None where no table has the name, ``ConfigurationError`` where the catalog fails."""
    if is_path(location):
        return location
    try:
        return adapter_of(session).table_location(location) if session.catalog.tableExists(location) else None
    except SPARK_ERRORS as error:
        raise _not_looked_up(location, error) from error


def check_table_name(session: SparkSession, name: str) -> None:
    """Check that a name is that of a Delta table, or one that Spark can give to a new table.

    Raises ``ConfigurationError`` where the catalog or the schema does not exist, or where a view or a table of another
    format has the name.
    """
    schema = ".".join(_PART_OF_NAME.findall(name)[:-1])
    try:
        exists = session.catalog.tableExists(name)
        lacks_schema = not exists and bool(schema) and not session.catalog.databaseExists(schema)
        is_view = exists and session.catalog.getTable(name).tableType in ("VIEW", "TEMPORARY")
    except SPARK_ERRORS as error:
        raise _not_looked_up(name, error) from error
    if is_view:
        msg = f"Delta table {name}: expected a table, found a view of that name; give the name of a table"
        raise ConfigurationError(msg)
    if lacks_schema:
        msg = (
            f"Delta table {name}: the schema {schema} does not exist; correct the name, or run: CREATE SCHEMA {schema}"
        )
        raise ConfigurationError(msg)
    folder = table_path(session, name)
    if folder is not None and not open_store(session, folder, "Delta table").exists(LOG):
        msg = (
            f"Delta table {name}: expected a Delta log in its folder {without_login(folder)}, found none: it is a "
            f"table of another format, or its files are gone; give another name, or put its files back"
        )
        raise ConfigurationError(msg)


def check_sparks_delta(session: SparkSession, why: str | None, label: str = "") -> None:
    """Raise ``EnvironmentSetupError`` unless Spark has Delta's classes.

    ``why`` is the reason why only Spark writes a table; ``label`` names the table where its caller's errors do not.
    """
    try:
        adapter_of(session).check_delta()
    except EnvironmentSetupError as error:
        msg = f"{label}{': ' if label else ''}only Spark writes it ({why}), and {error}"
        raise EnvironmentSetupError(msg) from error


def _not_looked_up(name: str, error: BaseException) -> ConfigurationError:
    return ConfigurationError(
        f"Delta table {name}: the session's catalog can't look it up: {first_line(error)}; correct the name, or see "
        f"that the catalog answers and lets this session read it"
    )


def table_log(session: SparkSession, location: str) -> TableLog | None:
    """Return the log of a table, or of a folder that may become one; None where no table has the name.

    Raises ``CheckpointError`` where nothing reaches the folder.
    """
    path = table_path(session, location)
    return None if path is None else TableLog(open_store(session, path, "Delta table"))


def read_table(session: SparkSession, location: str) -> TableVersion | None:
    """Return a Delta table at its newest version; None where it does not exist.

    Raises ``UnreadableLogError`` where a part of its log is gone or damaged, ``CheckpointError`` where the store can't
    be reached.
    """
    log = table_log(session, location)
    return None if log is None else log.newest()


def columns_of(table: TableVersion) -> StructType | None:
    """Return a table's columns; None where the log has no schema, or types that this Spark lacks."""
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
    """Return a table as SQL names it; in SQL, Delta does not take a relative path for a table."""
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


@dataclass(frozen=True)
class CommitSummary:
    """The writer of a commit of a Delta table, and what the commit did; its files are left out, as a log has many.

    ``app_id`` is the application of its transaction id, or None; ``app_version`` is None as well where it only fences a
    table. ``operation`` is Delta's name, such as ``"WRITE"``. ``timestamp`` (UTC) and ``rows``, the number of added
    rows, are None where the log lacks them. ``leaves`` is the version whose content a ``RESTORE`` brought back, -1 for
    a delete of all rows, else None. ``removes_rows`` is False where rows were only written into other files.
    """

    version: int
    app_id: str | None
    operation: str
    timestamp: datetime | None
    rows: int | None = None
    leaves: int | None = None
    app_version: int | None = None
    removes_rows: bool = False

    @property
    def is_fence(self) -> bool:
        """Whether it only has the epoch of the query's lease, and no rows (``TableTransactions.fence``)."""
        return self.app_id is not None and self.app_version is None

    def __str__(self) -> str:
        when = "" if self.timestamp is None else f" of {self.timestamp:%Y-%m-%d %H:%M:%S} UTC"
        return f"version {self.version} ({self.operation}{when}{f', by {self.app_id}' if self.app_id else ''})"


def session_with_long_history(spark: SparkSession) -> AbstractContextManager[SparkSession]:
    """Return a context with a session that allows time travel as far back as a table's log goes."""
    return adapter_of(spark).with_settings({_LOOKING_BACK: "false"})


def later_commits(spark: SparkSession, location: str, version: int) -> list[CommitSummary]:
    """Return a Delta table's commits after a version (-1: all), oldest first.

    Raises ``CheckpointError`` where the table does not exist, or some of the commits are no longer in its log.
    """
    log = table_log(spark, location)
    table = None if log is None else log.newest()
    if log is None or table is None:
        msg = f"Delta table {location} does not exist; name a new table for the output"
        raise CheckpointError(msg)
    first = version + 1
    gone = sorted(set(range(first, table.version + 1)).difference(log.versions()))
    if gone:
        msg = (
            f"Delta table {location}: its log no longer holds all commits from version {first} to {table.version} "
            f"(version {gone[0]} was cleaned away), so it can't be known who wrote them; name a new table"
        )
        raise CheckpointError(msg)
    return [_summary(commit) for commit in log.commits(version, table.version)]


def _summary(commit: Commit) -> CommitSummary:
    own = [(app_id, number) for app_id, number in commit.applications.items() if not app_id.startswith(FENCE)]
    app_id, app_version = own[0] if own else (None, None)
    if commit.applications and not own:
        app_id = next(iter(commit.applications)).removeprefix(FENCE)
    operation = str(commit.info.get("operation") or "unknown operation")
    parameters = commit.info.get("operationParameters") or {}
    leaves = None
    if operation == "RESTORE" and str(parameters.get("version")).isdigit():
        leaves = int(parameters["version"])
    elif operation == "DELETE" and parameters.get("predicate") in _ALL_ROWS:
        leaves = -1
    timestamp = commit.info.get("timestamp")
    return CommitSummary(
        commit.version,
        app_id,
        operation,
        None if timestamp is None else datetime.fromtimestamp(timestamp / 1000, tz=timezone.utc),
        commit.rows,
        leaves,
        app_version,
        any(file.changes_data for file in commit.removed),
    )
