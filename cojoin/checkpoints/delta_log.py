"""The log of a Delta table: its commits, and who wrote which.

The writer of a commit is known by the transaction id in the log (``cojoin-<query id>-<output>``). Delta deletes old
commits from the log, so the commits after a version are returned only where all of them are still there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from cojoin.delta.table_batches import FENCE
from cojoin.errors import CheckpointError
from cojoin.session.delta_tables import table_log
from cojoin.session.kinds import adapter_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from cojoin.delta import actions as delta

__all__ = ["Commit", "later_commits", "session_with_long_history"]

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
        removes_rows: Whether it removed rows, or files with rows; rows that were only written into other files stay.
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
    log = table_log(spark, location)
    table = None if log is None else log.newest()
    if log is None or table is None:
        msg = f"Delta table {location}: there is no such table; name a new table for the output"
        raise CheckpointError(msg)
    first = version + 1
    there = set(log.versions())
    gone = [number for number in range(first, table.version + 1) if number not in there]
    if gone:
        msg = (
            f"Delta table {location}: its log no longer holds all commits from version {first} to {table.version} "
            f"(version {gone[0]} was cleaned away), so it can't be known who wrote them; name a new table"
        )
        raise CheckpointError(msg)
    return [_commit(commit) for commit in log.commits(version, table.version)]


def _commit(commit: delta.Commit) -> Commit:
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
    return Commit(
        commit.version,
        app_id,
        operation,
        None if timestamp is None else datetime.fromtimestamp(timestamp / 1000, tz=timezone.utc),
        commit.rows,
        leaves,
        app_version,
        any(file.changes_data for file in commit.removed),
    )
