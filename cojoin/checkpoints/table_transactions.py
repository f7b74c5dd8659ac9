"""The commits of a query's batches to a Delta table by path or name, so that none takes effect twice.

The batches that a table has are read from its log in every case. Files that are plain Parquet are committed without the
JVM (``TableBatches``), wherever ``deltalake`` reaches the table and this process shares its paths with Spark. All else
is committed by Spark's own writer (``txnAppId``, ``txnVersion``), and ``why_spark`` says why. Spark's writer compares
the version of one application alone, so the epoch of the query's lease is compared right before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.delta.table_batches import NO_BATCH, TableBatches, fence_of
from cojoin.delta.table_log import LOG
from cojoin.errors import QueryFailedError
from cojoin.session.delta_tables import default_properties, table_path
from cojoin.session.kinds import adapter_of
from cojoin.session.stores import open_store
from cojoin.storage.local_store import LocalStore
from cojoin.storage.locations import is_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cojoin.delta.actions import Commit
    from cojoin.delta.table_log import TableVersion
    from cojoin.delta.table_writer import Committed, NewTable
    from cojoin.storage.store import Store
    from cojoin.storage.written_file import WrittenFile

__all__ = ["TableTransactions"]


class TableTransactions:
    """The commits of one application (one output of a query) to one Delta table.

    Args:
        spark: The session.
        location: The table's path, with a ``/``, or its name.
        app_id: The application id; the application writes each batch once, in ascending order.
        epoch: The epoch of the query's lease, which fences the table; None where the table is not fenced.
        is_shared: Whether a local path is known to be the same folder for Spark as for this process, as the
            checkpoint's is; in a session that is not a client of Spark Connect it is in any case.
    """

    def __init__(
        self, spark: SparkSession, location: str, app_id: str, epoch: int | None = None, *, is_shared: bool = False
    ) -> None:
        self._spark, self._location, self._app_id, self._epoch = spark, location, app_id, epoch
        self._is_shared = is_shared or adapter_of(spark).shares_paths
        self._path: str | None = None
        self._batches: TableBatches | None = None

    @property
    def app_id(self) -> str:
        """The application id."""
        return self._app_id

    def table(self) -> TableVersion | None:
        """Return the table at its newest version; None where there is no table."""
        batches = self._opened()
        return None if batches is None else batches.table()

    def look(self) -> tuple[str | None, int]:
        """Return the table's id and its newest batch; None and ``NO_BATCH`` where there is no table.

        Raises:
            FencedOffError: A later run of the query has fenced the table.
            UnreadableLogError: A part of the table's log is gone or damaged.
        """
        batches = self._opened()
        return (None, NO_BATCH) if batches is None else batches.look()

    def commit_of(self, batch_id: int) -> Commit | None:
        """Return the commit of a batch; see ``TableBatches.commit_of``."""
        batches = self._opened()
        return None if batches is None else batches.commit_of(batch_id)

    def why_spark(self, schema: pa.Schema | None = None) -> str | None:
        """Return why only Spark commits to the table, or makes it; None where files can be appended.

        Args:
            schema: The columns of the files' rows; None where no files are to be appended.
        """
        batches = self._opened()
        if batches is None:
            return "there is no table of that name"
        if not self._is_shared:
            return "with Spark Connect, its path may be another folder for Spark than for this process"
        return batches.refusal(schema)

    def store(self) -> Store | None:
        """Return the store of the table's folder, which is its root; None where no table has the name."""
        batches = self._opened()
        return None if batches is None else batches.store

    def append(
        self,
        schema: pa.Schema,
        files: Sequence[WrittenFile],
        batch_id: int,
        *,
        query_id: str,
        metadata: str | None = None,
        is_done: Callable[[int], bool],
    ) -> Committed:
        """Append files in the table's folder as a batch, unless it is there already; see ``TableBatches.append``.

        Raises:
            QueryFailedError: There is no table of that name any more, or an error of ``TableBatches.append``.
        """
        batches = self._opened()
        if batches is None:
            msg = f"Delta table {self._location}: expected the table that the batch was written for, found none"
            raise QueryFailedError(msg)
        return batches.append(schema, files, batch_id, query_id=query_id, metadata=metadata, is_done=is_done)

    def fence(
        self, query_id: str, new: NewTable | None = None, create: Callable[[Mapping[str, int]], None] | None = None
    ) -> None:
        """Write this run's epoch into the table, so that no earlier run can commit any more.

        Args:
            query_id: The query id in the table's history.
            new: The table to make, empty, where there is none; None where only Spark may make it.
            create: Makes the empty table by Spark's writer, with these transaction ids in its first commit. Without it
                and a new table, a table that is not there is not fenced.

        Raises:
            FencedOffError: A later run of the query has fenced the table.
            QueryFailedError: The errors of ``TableWriter.commit``.
        """
        if self._epoch is None:
            return
        is_there = self.table() is not None
        batches = self._batches
        if batches is not None and (is_there or new is not None) and self.why_spark() is None:
            batches.fence(query_id, new)
            return
        if not is_there and create is not None:
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
        reader, by_path = self._spark.read.format("delta"), is_path(self._location)
        rows = (reader.load if by_path else reader.table)(self._location).limit(0)
        writer = rows.write.format("delta").mode("append").option("txnAppId", fence_id)
        writer = writer.option("txnVersion", str(self._epoch))
        (writer.save if by_path else writer.saveAsTable)(self._location)
        # Delta skips the commit where another run has written this epoch or a later one.
        self.look()

    def _opened(self) -> TableBatches | None:
        """Return the table's batches; None where no table has the name, which is resolved anew each time."""
        path = table_path(self._spark, self._location)
        if path is None or path != self._path:
            self._path, self._batches = path, None
        if path is not None and self._batches is None:
            store = open_store(self._spark, path, "Delta table")
            self._is_shared = self._is_shared or not isinstance(store, LocalStore)
            properties = {} if store.exists(LOG) else default_properties(self._spark)
            self._batches = TableBatches(store, "", self._app_id, self._epoch, properties)
        return self._batches
