"""The log of a Delta table: its commits, and who wrote which.

The writer of a commit is known by the transaction id in the log (``cojoin-<query id>-<output>``). Delta deletes old
commits from the log, so the commits after a version are returned only where all of them are still there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from cojoin.delta_jvm.newest_batch import FENCE
from cojoin.delta_jvm.table_version import read_table
from cojoin.errors import CheckpointError
from cojoin.session.kinds import adapter_of
from cojoin.session.stores import open_store
from cojoin.storage.locations import literally

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from cojoin.delta_jvm.table_version import TableVersion

__all__ = [
    "Commit",
    "commit_versions",
    "find_commit",
    "later_commits",
    "session_with_long_history",
]

_COMMIT_FILE = re.compile(r"(\d{20})\.json")
_ACTIONS = """
    txn struct<appId: string, version: bigint>, commitInfo struct<timestamp: bigint, operation: string,
    operationParameters: map<string, string>, operationMetrics: map<string, string>, userMetadata: string>,
    remove struct<dataChange: boolean>
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
        app_version: The version of its transaction id; None where it has none, or where it only fences a table off.
        metadata: Its user metadata (``userMetadata``).
        removes_rows: Whether it removed rows, or files with rows; rows that were only written into other files stay.
    """

    version: int
    app_id: str | None
    operation: str
    timestamp: datetime | None
    rows: int | None = None
    leaves: int | None = None
    app_version: int | None = None
    metadata: str | None = None
    removes_rows: bool = False

    @property
    def is_fence(self) -> bool:
        """Whether it only has the epoch of the query's lease, and no rows (``TableTransactions.fence``)."""
        return self.app_id is not None and self.app_version is None

    def __str__(self) -> str:
        when = "" if self.timestamp is None else f" of {self.timestamp:%Y-%m-%d %H:%M:%S} UTC"
        return f"version {self.version} ({self.operation}{when}{f', by {self.app_id}' if self.app_id else ''})"


def commit_versions(spark: SparkSession, table: TableVersion) -> list[int]:
    """Return the versions whose commits are still in the log, oldest first."""
    names = open_store(spark, table.log_path).names("")
    return sorted(int(found[1]) for name in names if (found := _COMMIT_FILE.fullmatch(name)))


def session_with_long_history(spark: SparkSession) -> AbstractContextManager[SparkSession]:
    """Return a context with a session that allows time travel as far back as a table's log goes."""
    return adapter_of(spark).with_setting(_LOOKING_BACK, "false")


def later_commits(spark: SparkSession, location: str, version: int) -> list[Commit]:
    """Return a Delta table's commits after a version, oldest first.

    Args:
        spark: The session.
        location: The table's path, with a ``/``, or its name.
        version: The version; -1 for all commits.

    Raises:
        CheckpointError: There is no such table, or some of the commits are no longer in its log.
    """
    table = read_table(spark, location)
    if table is None:
        msg = f"Delta table {location}: there is no such table; name a new table for the output"
        raise CheckpointError(msg)
    newest = table.version
    wanted = range(version + 1, newest + 1)
    there = set(commit_versions(spark, table))
    gone = [each for each in wanted if each not in there]
    if gone:
        msg = (
            f"Delta table {location}: its log no longer holds all commits from version {version + 1} to {newest} "
            f"(version {gone[0]} was cleaned away), so it can't be known who wrote them; name a new table"
        )
        raise CheckpointError(msg)
    if not wanted:
        return []
    return _read_commits(spark, table.log_path, list(wanted))


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
    table = read_table(spark, location)
    if table is None:
        return None
    versions = [each for each in commit_versions(spark, table) if each > after]
    commits = _read_commits(spark, table.log_path, versions) if versions else []
    found = [each for each in commits if (each.app_id, each.app_version) == (app_id, app_version)]
    return found[-1] if found else None


def _read_commits(spark: SparkSession, root: str, versions: Sequence[int]) -> list[Commit]:
    lines = spark.read.schema(_ACTIONS).json([literally(f"{root}/{each:020d}.json") for each in versions])
    removes = F.col("remove").isNotNull() & F.coalesce("remove.dataChange", F.lit(True))
    columns = (F.col("_metadata.file_name").alias("file"), "txn", "commitInfo", removes.alias("removes"))
    told = F.col("txn").isNotNull() | F.col("commitInfo").isNotNull() | F.col("removes")
    rows = lines.select(*columns).where(told).collect()
    told_of: dict[int, list[Any]] = {each: [] for each in versions}
    for row in rows:
        told_of[int(row.file.removesuffix(".json"))].append(row)
    return [_commit(each, told_of[each]) for each in versions]


def _commit(version: int, actions: Sequence[Any]) -> Commit:
    transactions = [row.txn for row in actions if row.txn is not None]
    own = [each for each in transactions if not each.appId.startswith(FENCE)]
    app_id, app_version = (own[0].appId, own[0].version) if own else (None, None)
    if transactions and not own:
        app_id = transactions[0].appId.removeprefix(FENCE)
    removes_rows = any(row.removes for row in actions)
    information = next((row.commitInfo for row in actions if row.commitInfo is not None), None)
    if information is None:
        return Commit(version, app_id, "unknown operation", None, app_version=app_version, removes_rows=removes_rows)
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
        removes_rows,
    )
