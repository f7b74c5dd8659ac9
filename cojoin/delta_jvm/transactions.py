"""The commits of a query's batches to a Delta table, so that none takes effect twice.

Every commit first looks which batches the table has (``newest_batch``). Each transaction also declares to Delta that it
has read the application's version. Where two drivers commit a batch at the same moment, one of them therefore fails,
and looks again. (Delta's protocol, "Transaction Identifiers"; ``OptimisticTransaction.readTxn``.)

Where the workers do not write the files (object stores, HDFS, partitions, writer options), and in a session of Spark
Connect, which has no access to Delta's transactions, Spark's own writer commits (``txnAppId``), and this module only
looks the batches up. Such a commit does not compare the epoch itself: it is compared right before.

A second application, whose version is the epoch of the query's lease, fences the table: a driver that takes over writes
its epoch into the table before it reads anything (``fence``), and every other commit compares the newest epoch within
its own transaction. A former driver that was suspended and continues can therefore not commit any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.delta_jvm.delta_files import append_files, commit_applications, table_log
from cojoin.delta_jvm.newest_batch import NO_BATCH, NewestBatch, TableNow
from cojoin.errors import QueryFailedError
from cojoin.session.kinds import adapter_of
from cojoin.session.spark_errors import SPARK_ERRORS
from cojoin.storage.locations import is_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cojoin.delta_jvm.delta_files import WrittenFile

__all__ = ["TableTransactions"]

_TRIES = 5
_CONFLICT = "ConcurrentTransactionException"
_CREATED_MEANWHILE = ("ProtocolChangedException", "MetadataChangedException", "ConcurrentWriteException", _CONFLICT)
"""What Delta says to a transaction that would create a table which another one has created."""


class TableTransactions:
    """The commits of one application (one output of a query) to one Delta table.

    Args:
        spark: The session.
        location: The table's path, with a ``/``, or its name.
        app_id: The application id; the application writes each batch once, in ascending order.
        epoch: The epoch of the query's lease, which fences the table; None where the table is not fenced.
    """

    def __init__(self, spark: SparkSession, location: str, app_id: str, epoch: int | None = None) -> None:
        self._spark, self._location, self._app_id, self._epoch = spark, location, app_id, epoch
        self._newest = NewestBatch(spark, location, app_id, epoch)

    @property
    def app_id(self) -> str:
        """The application id."""
        return self._app_id

    def expect(self, table_id: str, version: int, batch_id: int) -> None:
        """Start from a manifest's entry for the table; see ``NewestBatch.expect``."""
        self._newest.expect(table_id, version, batch_id)

    def look(self) -> tuple[str | None, int]:
        """Return the table's id and its newest batch; None and ``NO_BATCH`` where there is no table."""
        return self._newest.look()

    def metadata(self, batch_id: int) -> str | None:
        """Return the user metadata of a batch's commit where the last look-up read that commit, else None."""
        return self._newest.metadata(batch_id)

    def append(
        self,
        schema: pa.Schema,
        files: Sequence[WrittenFile],
        batch_id: int,
        *,
        query_id: str,
        metadata: str | None = None,
        former: pa.Schema | None = None,
        is_done: Callable[[int], bool],
    ) -> int:
        """Append files in the table's folder as a batch, unless the table already has the batch.

        Args:
            schema: The files' columns.
            files: The files.
            batch_id: The batch.
            query_id: The query id in the table's history.
            metadata: The user metadata of the commit.
            former: Columns that the table may have instead; then the commit gives it those of the files.
            is_done: Takes the newest batch that the table has of this application, and returns whether this batch is
                among those written; it raises where the newest batch is impossible.

        Returns:
            The table's version afterwards.

        Raises:
            QueryFailedError: The table does not consist, or no longer consists, of plain files with these columns; or
                other runs of the query commit to it at the same time, in each of five tries.
        """
        for _ in range(_TRIES):
            log = table_log(self._spark, self._location)
            transaction = log.startTransaction()
            is_new = transaction.readVersion() < 0
            seen = None if is_new else self._newest.look_in(TableNow.of(log, transaction))
            if is_done(NO_BATCH if seen is None else seen.newest):
                return int(transaction.readVersion())
            # Delta checks this id against those committed since the transaction began.
            for each in self._applications(batch_id):
                transaction.readTxn().__getattr__("$plus$eq")(each)
            try:
                version = append_files(
                    self._spark,
                    transaction,
                    schema,
                    files,
                    applications=self._applications(batch_id),
                    query_id=query_id,
                    metadata=metadata,
                    former=former,
                )
            except SPARK_ERRORS as error:
                if not _is_conflict(error, is_new=is_new):
                    raise
                continue
            self._newest.know(str(transaction.metadata().id()), version, batch_id, metadata)
            return version
        raise self._busy()

    def fence(self, query_id: str, create: Callable[[Any, Mapping[str, int]], None] | None = None) -> None:
        """Write this run's epoch into the table, so that no earlier run can commit any more.

        Args:
            query_id: The query id in the table's history.
            create: Creates the empty table, with transaction ids in its first commit; takes Delta's transaction, None
                for a table by name or in a session of Spark Connect, and the ids. Without it, a table that does not
                exist is not fenced.

        Raises:
            QueryFailedError: A later run has fenced the table, or other runs commit to it in each of five tries.
        """
        if self._epoch is None:
            return
        if not adapter_of(self._spark).has_delta_classes:
            if self._newest.now() is None and create is not None:
                create(None, self._fence_ids)
            self._fence_by_writer()
            return
        for _ in range(_TRIES):
            log = table_log(self._spark, self._location)
            transaction = None if log is None else log.startTransaction()
            is_new = transaction is None or transaction.readVersion() < 0
            try:
                if transaction is None or is_new:
                    if create is None:
                        return
                    create(transaction, self._fence_ids)
                    # Another application may have created the table meanwhile.
                    continue
                if self._newest.look_in(TableNow.of(log, transaction)).epoch == self._epoch:
                    return
                transaction.readTxn().__getattr__("$plus$eq")(self._newest.fence_id)
                commit_applications(self._spark, transaction, self._fence_ids, query_id=query_id)
            except SPARK_ERRORS as error:
                if not _is_conflict(error, is_new=is_new):
                    raise
                continue
            return
        raise self._busy()

    def _fence_by_writer(self) -> None:
        """Write this run's epoch by a commit of Spark's own writer, without rows."""
        now = self._newest.now()
        if now is None or self._newest.look_in(now).epoch == self._epoch:
            return
        reader, by_path = self._spark.read.format("delta"), is_path(self._location)
        rows = (reader.load if by_path else reader.table)(self._location).limit(0)
        writer = rows.write.format("delta").mode("append").option("txnAppId", self._newest.fence_id)
        writer = writer.option("txnVersion", str(self._epoch))
        (writer.save if by_path else writer.saveAsTable)(self._location)
        # Delta skips the commit where another run has written this epoch or a later one.
        self.look()

    def _applications(self, batch_id: int) -> dict[str, int]:
        """Return the versions of the applications that a batch's commit writes."""
        return {self._app_id: batch_id, **self._fence_ids}

    @property
    def _fence_ids(self) -> dict[str, int]:
        """The transaction ids of a commit that only fences the table."""
        return {} if self._epoch is None else {self._newest.fence_id: self._epoch}

    def _busy(self) -> QueryFailedError:
        return QueryFailedError(
            f"Delta table {self._location}: other runs of this query commit to it at the same time; stop them"
        )


def _is_conflict(error: BaseException, *, is_new: bool) -> bool:
    """Return whether a commit failed because another one was made since the table was read.

    Args:
        error: Delta's error.
        is_new: Whether there was no table when it was read.
    """
    return any(each in str(error) for each in (_CREATED_MEANWHILE if is_new else (_CONFLICT,)))
