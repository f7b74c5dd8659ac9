"""The Delta tables that a query writes: no batch takes effect twice, and a restored query continues them unchanged.

*Commits.* The batches that a table has are read from its log in every case. Files that are plain Parquet are committed
without the JVM (``TableBatches``), wherever ``deltalake`` reaches the table and this process shares its paths with
Spark. All else is committed by Spark's own writer (``txnAppId``, ``txnVersion``), for the reason of ``why_spark``. That
writer compares the version of one application alone, so the epoch of the query's lease is compared right before.

*Restored queries.* A table must be as it was at the checkpoint. Where all commits after the checkpoint's version are
the old query's own, they can be reverted, if the user allows it. Where none is its own, rows that others have appended
since stay. Where another writer has removed rows, or its commit is among the query's own, nothing is changed, and the
user must name a new table; so it is where such commits were deleted from the log. Reverting is a commit like any other:
the table's history keeps the reverted rows.

A location is a table's path, with a ``/``, or its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cojoin.delta.table_batches import NO_BATCH, TableBatches, fence_of
from cojoin.delta.table_log import LOG
from cojoin.errors import CheckpointError, QueryFailedError
from cojoin.session.delta_tables import (
    default_properties,
    later_commits,
    read_table,
    session_with_long_history,
    table_in_sql,
    table_path,
)
from cojoin.session.sessions import adapter_of, open_store
from cojoin.session.spark_errors import SPARK_ERRORS, first_line
from cojoin.storage.local_store import LocalStore
from cojoin.storage.locations import is_path, literally

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

    from cojoin.delta.actions import Commit
    from cojoin.delta.table_log import TableVersion
    from cojoin.delta.table_writer import NewTable
    from cojoin.storage.store import Store


@dataclass(frozen=True)
class CutBack:
    """The commits of a table that must be reverted before a query continues to write it.

    ``version`` is the one whose content is to be restored; None for no rows at all. ``rows`` is the number of rows that
    the commits added; None where the log does not have it. ``newest`` is the table's version at the time of the check.
    """

    location: str
    version: int | None
    commits: int
    rows: int | None
    newest: int


def read_rows(session: SparkSession, kind: str, location: str) -> DataFrame:
    """Return the rows of an output as they are now: a table (``"delta"``), or a folder of files (``"parquet"``)."""
    reader = session.read.format(kind)
    if kind == "parquet":
        return reader.load(literally(location))
    return reader.load(location) if is_path(location) else reader.table(location)


def save_rows(writer: DataFrameWriter, location: str) -> None:
    """Write rows into a table."""
    (writer.save if is_path(location) else writer.saveAsTable)(location)


def is_same_table(spark: SparkSession, one: str, two: str) -> bool:
    """Return whether two locations, in any spelling, are those of one Delta table."""
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
    """Return the commits to revert before a restored query may continue to write a table; None if none.

    ``version`` is the table's at the checkpoint; None where the query had not written it yet. Nothing is changed.
    Raises ``CheckpointError`` where the table was changed by others since, other than by rows that they appended where
    nothing is to be reverted, was replaced, is gone, or its log no longer has the commits since; or commits must be
    reverted and ``cut_back`` is False.
    """
    where, app_id = f"output {output!r}, Delta table {location}", f"cojoin-{query_id}-{output}"
    table = read_table(spark, location)
    if table is None:
        if version is None:
            return None
        msg = f"{where}: the checkpoint has its version {version}, and the table is gone; name a new table"
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
                f"{where}: the checkpoint has its version {version}, and the table has {got}: it was replaced by "
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
            f"{f'after version {version}' if version >= 0 else 'from version 0 on'} will be taken back; pass "
            f"cut_back_output=True, or name a new table"
        )
        raise CheckpointError(msg)
    return CutBack(location, None if version < 0 else version, len(own), rows, later[-1].version)


def cut_back(spark: SparkSession, cut: CutBack) -> None:
    """Restore the content that a Delta table had at a version.

    All later commits are reverted, so it is called right after ``check_output``. Raises ``CheckpointError`` where the
    table was written since the check, or Delta can't do it, for example because the table is append-only.
    """
    location, version = cut.location, cut.version
    table = read_table(spark, location)
    newest = None if table is None else table.version
    if newest != cut.newest:
        msg = (
            f"Delta table {location}: another writer wrote to it at this moment (it was at version {cut.newest} and "
            f"is at {newest}), which cutting it back would take away; start again"
        )
        raise CheckpointError(msg)
    named = table_in_sql(spark, location)
    # The location is the user's own, who could write such a statement as well.
    statement = f"DELETE FROM {named}" if version is None else f"RESTORE TABLE {named} TO VERSION AS OF {version}"  # noqa: S608
    try:
        with session_with_long_history(spark) as session:
            session.sql(statement)
    except SPARK_ERRORS as error:
        target = "no rows" if version is None else f"version {version}"
        why = f"could not be cut back to {target}: {first_line(error)}"
        msg = f"Delta table {location}: {why}; name a new table for the output"
        raise CheckpointError(msg) from error


class TableTransactions:
    """The commits of one application (one output of a query) to one Delta table.

    The application writes each batch once, in ascending order. ``epoch`` is that of the query's lease; None where the
    table is not fenced. ``is_shared``: a local path is known to be the same folder for Spark as for this process, as
    the checkpoint's is; without Spark Connect it is in any case. ``replaces`` and errors are those of ``TableBatches``.
    """

    def __init__(
        self,
        spark: SparkSession,
        location: str,
        app_id: str,
        epoch: int | None = None,
        *,
        is_shared: bool = False,
        replaces: bool = False,
    ) -> None:
        self._spark, self._location, self._app_id, self._epoch = spark, location, app_id, epoch
        self._replaces = replaces
        self._is_shared = is_shared or adapter_of(spark).shares_paths
        self._path: str | None = None
        self._batches: TableBatches | None = None

    @property
    def app_id(self) -> str:
        """The application id."""
        return self._app_id

    def table(self) -> TableVersion | None:
        """Return the table at its newest version; None without a table."""
        batches = self._opened()
        return None if batches is None else batches.table()

    @property
    def last_read(self) -> TableVersion | None:
        """The table as it was read last, which asks the store for nothing; None where there was none."""
        return None if self._batches is None else self._batches.last_read

    def look(self) -> tuple[str | None, int]:
        """Return the table's id and its newest batch; None and ``NO_BATCH`` without a table."""
        batches = self._opened()
        return (None, NO_BATCH) if batches is None else batches.look()

    def commit_of(self, batch_id: int) -> Commit | None:
        """Return the commit of a batch; see ``TableBatches.commit_of``."""
        batches = self._opened()
        return None if batches is None else batches.commit_of(batch_id)

    def why_spark(self, schema: pa.Schema | None = None) -> str | None:
        """Return why only Spark commits files of a schema (None: no files) to the table, or makes it; else None."""
        batches = self._opened()
        if batches is None:
            return "no table has that name"
        if not self._is_shared:
            return "with Spark Connect, its path may be another folder for Spark than for this process"
        return batches.refusal(schema)

    def store(self) -> Store | None:
        """Return the store of the table's folder, which is its root; None where no table has the name."""
        batches = self._opened()
        return None if batches is None else batches.store

    def batches(self) -> TableBatches:
        """Return the table's batches, by which files are committed; QueryFailedError: no table has the name."""
        batches = self._opened()
        if batches is None:
            msg = f"Delta table {self._location}: expected the table that the batch was written for, found none"
            raise QueryFailedError(msg)
        return batches

    def fence(
        self, query_id: str, new: NewTable | None = None, create: Callable[[Mapping[str, int]], None] | None = None
    ) -> None:
        """Write this run's epoch into the table, so that no earlier run can commit any more.

        ``new`` is the empty table to make where it is missing; None where only Spark may make it. ``create`` makes it
        by Spark's writer, with these transaction ids in its first commit. Without both, a missing table is not fenced.
        """
        if self._epoch is None:
            return
        exists = self.table() is not None
        batches = self._batches
        if batches is not None and (exists or new is not None) and self.why_spark() is None:
            batches.fence(query_id, new)
            return
        if not exists and create is not None:
            create({fence_of(self._app_id): self._epoch})
        self._fence_by_writer()

    def _fence_by_writer(self) -> None:
        """Write this run's epoch by a commit of Spark's own writer, without rows."""
        table, fence_id = self.table(), fence_of(self._app_id)
        if table is None:
            return
        self.look()
        if table.transaction(fence_id) == self._epoch:
            return
        rows = read_rows(self._spark, "delta", self._location).limit(0)
        writer = rows.write.format("delta").mode("append").option("txnAppId", fence_id)
        save_rows(writer.option("txnVersion", str(self._epoch)), self._location)
        # Delta skips the commit where another run has written this epoch or a later one.
        self.look()

    def _opened(self) -> TableBatches | None:
        """Return the table's batches; None where no table has the name, which is resolved again each time."""
        path = table_path(self._spark, self._location)
        if path is None or path != self._path:
            self._path, self._batches = path, None
        if path is not None and self._batches is None:
            store = open_store(self._spark, path, "Delta table")
            self._is_shared = self._is_shared or not isinstance(store, LocalStore)
            properties = {} if store.exists(LOG) else default_properties(self._spark)
            self._batches = TableBatches(store, "", self._app_id, self._epoch, properties, replaces=self._replaces)
        return self._batches
