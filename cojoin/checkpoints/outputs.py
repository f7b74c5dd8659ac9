"""The check of a Delta table that a restored query continues to write: it must be as it was at the checkpoint.

Where all commits after the checkpoint's version are the old query's own, they can be reverted, if the user allows it.
Where there is none of its own, rows that others have appended since stay. Where another writer has removed rows, or its
commit is among the query's own, nothing is changed, and the user must name a new table. The writer of a
commit is known by the transaction id in the Delta log (``cojoin-<query id>-<output>``). A log from which such commits
were deleted is therefore refused as well. Reverting is a commit like any other: the table's history keeps what was
there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cojoin.checkpoints.delta_log import later_commits, session_with_long_history
from cojoin.errors import CheckpointError
from cojoin.session.delta_tables import read_table, table_in_sql
from cojoin.session.spark_errors import SPARK_ERRORS
from cojoin.session.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CutBack", "check_output", "cut_back", "is_same_table"]


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


def is_same_table(spark: SparkSession, one: str, two: str) -> bool:
    """Return whether two locations, each a path or a name in any spelling, are those of one Delta table."""
    if one == two:
        return True
    first, second = read_table(spark, one), read_table(spark, two)
    if first is None or second is None:
        return False
    return open_store(spark, first.path).root == open_store(spark, second.path).root


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
        None where nothing of the query's own came after the checkpoint; else the commits to revert.

    Raises:
        CheckpointError: The table was changed by others since, other than by rows that they appended where nothing is
            to be reverted, was replaced, is gone, or its log no longer has the
            commits since; or commits must be reverted and ``cut_back`` is False.
    """
    where, app_id = f"output {output!r}, Delta table {location}", f"cojoin-{query_id}-{output}"
    table = read_table(spark, location)
    if table is None:
        if version is None:
            return None
        msg = f"{where}: the checkpoint knows its version {version}, and the table is gone; name a new table"
        raise CheckpointError(msg)
    is_known = table.transaction(app_id) is not None
    if version is None:
        if not is_known:
            return None
        commits = later_commits(spark, location, -1)
        first = next(position for position, commit in enumerate(commits) if commit.app_id == app_id)
        later, version = commits[first:], first - 1
    else:
        newest = table.version
        if newest < version or not is_known:
            got = f"only version {newest}" if newest < version else "no trace of the query that wrote the checkpoint"
            msg = (
                f"{where}: the checkpoint knows its version {version}, and the table has {got}: it was replaced by "
                f"another; name a new table"
            )
            raise CheckpointError(msg)
        later = later_commits(spark, location, version)
    if all(each.is_fence for each in later) or later[-1].leaves == version:
        return None
    # A restore to the checkpoint's version or a later one is allowed: it adds no rows but the query's own.
    others = [each for each in later if each.app_id != app_id and (each.leaves is None or each.leaves < version)]
    own = [each for each in later if each.app_id == app_id and not each.is_fence]
    if not own and not any(each.removes_rows or each.leaves is not None for each in others):
        return None
    if others:
        msg = (
            f"{where}: since the checkpoint, at version {max(version, 0)}, it was changed by someone else: "
            f"{others[0]}{f' and {len(others) - 1} more' if others[1:] else ''}; that can't be taken back, "
            f"name a new table"
        )
        raise CheckpointError(msg)
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
    table = read_table(spark, location)
    newest = None if table is None else table.version
    if newest != found.newest:
        msg = (
            f"Delta table {location}: somebody wrote to it at this moment (it was at version {found.newest} and is at "
            f"{newest}), which cutting it back would take away; start again"
        )
        raise CheckpointError(msg)
    named = table_in_sql(spark, location)
    # The location is the user's own, who could write such a statement as well.
    statement = f"DELETE FROM {named}" if version is None else f"RESTORE TABLE {named} TO VERSION AS OF {version}"  # noqa: S608
    try:
        with session_with_long_history(spark) as session:
            session.sql(statement)
    except SPARK_ERRORS as error:
        said = str(error).strip().partition("\n")[0]
        target = "no rows" if version is None else f"version {version}"
        msg = f"Delta table {location}: could not be cut back to {target}: {said}; name a new table for the output"
        raise CheckpointError(msg) from error
