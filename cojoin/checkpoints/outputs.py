"""The check of a Delta table that a restored query continues to write: it must be as it was at the checkpoint.

Where all commits after the checkpoint's version are the old query's own, they can be reverted, if the user allows it.
Where another writer's commit is among them, nothing is changed, and the user must name a new table. The writer of a
commit is known by the transaction id in the Delta log (``cojoin-<query id>-<output>``). A log from which such commits
were deleted is therefore refused as well. Reverting is a commit like any other: the table's history keeps what was
there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from cojoin.errors import CheckpointError
from cojoin.storage.delta_files import table_log
from cojoin.storage.java_classes import java_class
from cojoin.storage.locations import is_path
from cojoin.storage.small_files import CheckpointFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

__all__ = [
    "Commit",
    "CutBack",
    "check_output",
    "commit_versions",
    "cut_back",
    "find_commit",
    "is_same_table",
    "later_commits",
    "open_log",
    "session_with_long_history",
]

_COMMIT_FILE = re.compile(r"(\d{20})\.json")
_ACTIONS = """
    txn struct<appId: string, version: bigint>, commitInfo struct<timestamp: bigint, operation: string,
    operationParameters: map<string, string>, operationMetrics: map<string, string>, userMetadata: string>
"""
_ALL_ROWS = ("[]", '["true"]')
# Delta refuses time travel beyond the retention of deleted files; its error for missing files is enough here.
_LOOKING_BACK = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"


@dataclass(frozen=True)
class Commit:
    """A commit of a Delta table.

    Attributes:
        version: The table version that it created.
        app_id: The application id of its transaction id; None where it has none.
        operation: Delta's name of the operation, such as ``"WRITE"``.
        timestamp: The time of the commit, in UTC; None where the log does not have it.
        rows: The number of rows that it added; None where the log does not have it.
        leaves: The version whose content a ``RESTORE`` brought back; -1 for a delete of all rows; else None.
        app_version: The version of its transaction id; None where it has none.
        metadata: Its user metadata (``userMetadata``).
    """

    version: int
    app_id: str | None
    operation: str
    timestamp: datetime | None
    rows: int | None = None
    leaves: int | None = None
    app_version: int | None = None
    metadata: str | None = None

    def __str__(self) -> str:
        when = "" if self.timestamp is None else f" of {self.timestamp:%Y-%m-%d %H:%M:%S} UTC"
        return f"version {self.version} ({self.operation}{when}{f', by {self.app_id}' if self.app_id else ''})"


@dataclass(frozen=True)
class CutBack:
    """The commits of a table that must be reverted before a query continues to write it.

    Attributes:
        location: The table's path or name.
        version: The version whose content is to be restored; None for no rows at all.
        commits: The number of commits to revert.
        rows: The number of rows that they added; None where the log does not have it.
        newest: The table's version at the time of the check.
    """

    location: str
    version: int | None
    commits: int
    rows: int | None
    newest: int


def open_log(spark: SparkSession, location: str) -> Any:
    """Return the JVM's current ``DeltaLog`` of a table, by path (with a ``/``) or name.

    Returns:
        The log; None where there is no such table.
    """
    session = spark._jsparkSession  # noqa: SLF001 - Delta's Python package has no access to the log
    log = java_class(spark, "org.apache.spark.sql.delta.DeltaLog")
    if is_path(location):
        path = java_class(spark, "org.apache.hadoop.fs.Path")(location)
        # The log in this JVM's cache may be that of a table that was deleted and created again since.
        log.invalidateCache(session, path)
    else:
        known = table_log(spark, location)
        if known is None:
            return None
        log.invalidateCache(session, known.dataPath())
    table = table_log(spark, location)
    return table if table.tableExists() else None


def is_same_table(spark: SparkSession, one: str, two: str) -> bool:
    """Return whether two locations, each a path or a name in any spelling, are those of one Delta table."""
    if one == two:
        return True
    first, second = open_log(spark, one), open_log(spark, two)
    if first is None or second is None:
        return False
    return bool(first.dataPath().toString() == second.dataPath().toString())


def commit_versions(spark: SparkSession, log: Any) -> list[int]:
    """Return the versions whose commits are still in the log, oldest first."""
    names = CheckpointFiles(spark, log.logPath().toString()).names("")
    return sorted(int(found[1]) for name in names if (found := _COMMIT_FILE.fullmatch(name)))


def session_with_long_history(spark: SparkSession) -> Any:
    """Return a copy of the JVM session that allows time travel as far back as a table's log goes."""
    session = spark._jsparkSession.cloneSession()  # noqa: SLF001 - the user's own session keeps its setting
    session.conf().set(_LOOKING_BACK, "false")
    return session


def later_commits(spark: SparkSession, location: str, version: int) -> list[Commit]:
    """Return a Delta table's commits after a version, oldest first.

    Args:
        spark: The session.
        location: The table's path, with a ``/``, or its name.
        version: The version; -1 for all commits.

    Raises:
        CheckpointError: There is no such table, or some of the commits are no longer in its log.
    """
    log = open_log(spark, location)
    if log is None:
        msg = f"Delta table {location}: there is no such table; name a new table for the output"
        raise CheckpointError(msg)
    newest = _newest(log)
    wanted = range(version + 1, newest + 1)
    there = set(commit_versions(spark, log))
    gone = [each for each in wanted if each not in there]
    if gone:
        msg = (
            f"Delta table {location}: its log no longer holds all commits from version {version + 1} to {newest} "
            f"(version {gone[0]} was cleaned away), so it can't be known who wrote them; name a new table"
        )
        raise CheckpointError(msg)
    if not wanted:
        return []
    return _read_commits(spark, log, list(wanted))


def find_commit(spark: SparkSession, location: str, app_id: str, app_version: int, *, after: int) -> Commit | None:
    """Return the commit of a Delta table that has a given transaction id.

    Args:
        spark: The session.
        location: The table's path, with a ``/``, or its name.
        app_id: The application id of the transaction id.
        app_version: The version of the transaction id.
        after: A version that the commit follows; -1 where none is known.

    Returns:
        The commit; None where the log does not have it, or no longer has it.
    """
    log = open_log(spark, location)
    versions = [] if log is None else [each for each in commit_versions(spark, log) if each > after]
    commits = _read_commits(spark, log, versions) if versions else []
    found = [each for each in commits if (each.app_id, each.app_version) == (app_id, app_version)]
    return found[-1] if found else None


def _read_commits(spark: SparkSession, log: Any, versions: Sequence[int]) -> list[Commit]:
    root = log.logPath().toString()
    lines = spark.read.schema(_ACTIONS).json([f"{root}/{each:020d}.json" for each in versions])
    told = F.col("txn").isNotNull() | F.col("commitInfo").isNotNull()
    rows = lines.select(F.col("_metadata.file_name").alias("file"), "txn", "commitInfo").where(told).collect()
    told_of: dict[int, list[Any]] = {each: [] for each in versions}
    for row in rows:
        told_of[int(row.file.removesuffix(".json"))].append(row)
    return [_commit(each, told_of[each]) for each in versions]


def check_output(
    spark: SparkSession,
    location: str,
    version: int | None,
    query_id: str,
    output: str,
    *,
    cut_back: bool,
) -> CutBack | None:
    """Check whether a restored query may continue to write a Delta table; nothing is changed.

    Args:
        spark: The session.
        location: The table's path, with a ``/``, or its name.
        version: The table's version at the checkpoint; None where the query had not written it yet.
        query_id: The id of the query that wrote the checkpoint.
        output: The name of the output.
        cut_back: Whether the user allows later commits of that query to be reverted.

    Returns:
        None where the table is as it was at the checkpoint; else the commits to revert.

    Raises:
        CheckpointError: The table was changed by others since, was replaced, is gone, or its log no longer has the
            commits since; or commits must be reverted and ``cut_back`` is False.
    """
    where, app_id = f"output {output!r}, Delta table {location}", f"cojoin-{query_id}-{output}"
    log = open_log(spark, location)
    if log is None:
        if version is None:
            return None
        msg = f"{where}: the checkpoint knows its version {version}, and the table is gone; name a new table"
        raise CheckpointError(msg)
    is_known = bool(log.unsafeVolatileSnapshot().transactions().contains(app_id))
    if version is None:
        if not is_known:
            return None
        commits = later_commits(spark, location, -1)
        first = next(position for position, commit in enumerate(commits) if commit.app_id == app_id)
        later, version = commits[first:], first - 1
    else:
        newest = _newest(log)
        if newest < version or not is_known:
            got = f"only version {newest}" if newest < version else "no trace of the query that wrote the checkpoint"
            msg = (
                f"{where}: the checkpoint knows its version {version}, and the table has {got}: it was replaced by "
                f"another; name a new table"
            )
            raise CheckpointError(msg)
        later = later_commits(spark, location, version)
    if not later or later[-1].leaves == version:
        return None
    # A restore to the checkpoint's version or a later one is allowed: it adds no rows but the query's own.
    others = [each for each in later if each.app_id != app_id and (each.leaves is None or each.leaves < version)]
    if others:
        msg = (
            f"{where}: since the checkpoint, at version {max(version, 0)}, it was changed by someone else: "
            f"{others[0]}{f' and {len(others) - 1} more' if others[1:] else ''}; that can't be taken back, "
            f"name a new table"
        )
        raise CheckpointError(msg)
    own = [each for each in later if each.app_id == app_id]
    rows = None if any(each.rows is None for each in own) else sum(each.rows or 0 for each in own)
    if not cut_back:
        count = f"{len(own)} commit{'s' if len(own) != 1 else ''}"
        msg = (
            f"{where}: {count}{'' if rows is None else f' ({rows:,} rows)'} "
            f"{f'after version {version}' if version >= 0 else 'from version 0 on'} will be taken back; say "
            f"cut_back_output=True, or name a new table"
        )
        raise CheckpointError(msg)
    return CutBack(location, None if version < 0 else version, len(own), rows, later[-1].version)


def cut_back(spark: SparkSession, found: CutBack) -> None:
    """Restore the content that a Delta table had at a version.

    All later commits are reverted, so it is called right after ``check_output``.

    Args:
        spark: The session.
        found: The result of ``check_output``.

    Raises:
        CheckpointError: The table was written since the check; or Delta can't do it, for example because the table is
            append-only.
    """
    location, version = found.location, found.version
    log = open_log(spark, location)
    newest = None if log is None else _newest(log)
    if newest != found.newest:
        msg = (
            f"Delta table {location}: somebody wrote to it at this moment (it was at version {found.newest} and is at "
            f"{newest}), which cutting it back would take away; start again"
        )
        raise CheckpointError(msg)
    # Not Delta's Python package: it runs in another session of the JVM.
    tables = java_class(spark, "io.delta.tables.DeltaTable")
    by_path = is_path(location)
    try:
        table = (tables.forPath if by_path else tables.forName)(session_with_long_history(spark), location)
        if version is None:
            table.delete()
        else:
            table.restoreToVersion(version)
    except (PySparkException, Py4JError) as error:
        said = str(error).strip().partition("\n")[0]
        target = "no rows" if version is None else f"version {version}"
        msg = f"Delta table {location}: could not be cut back to {target}: {said}; name a new table for the output"
        raise CheckpointError(msg) from error


def _newest(log: Any) -> int:
    return int(log.unsafeVolatileSnapshot().version())


def _commit(version: int, actions: Sequence[Any]) -> Commit:
    transactions = [row.txn for row in actions if row.txn is not None]
    app_id, app_version = (transactions[0].appId, transactions[0].version) if transactions else (None, None)
    information = next((row.commitInfo for row in actions if row.commitInfo is not None), None)
    if information is None:
        return Commit(version, app_id, "unknown operation", None, app_version=app_version)
    parameters, metrics = information.operationParameters or {}, information.operationMetrics or {}
    operation = information.operation or "unknown operation"
    leaves = None
    if operation == "RESTORE" and str(parameters.get("version")).isdigit():
        leaves = int(parameters["version"])
    elif operation == "DELETE" and parameters.get("predicate") in _ALL_ROWS:
        leaves = -1
    rows = str(metrics.get("numOutputRows", ""))
    timestamp = information.timestamp
    return Commit(
        version,
        app_id,
        operation,
        None if timestamp is None else datetime.fromtimestamp(timestamp / 1000, tz=timezone.utc),
        int(rows) if rows.isdigit() else None,
        leaves,
        app_version,
        information.userMetadata,
    )
