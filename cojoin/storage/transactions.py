"""The batches of a query that a Delta table already has, looked up at every commit so that none takes effect twice.

Delta keeps the newest version that each application wrote; here the version is the batch. Delta's own look-up is a
Spark job on the Delta log, which takes some tenths of a second. This module instead reads only the commits that are
new to it: all commits of a young table, those after the one that a manifest names (``expect``), or those after its
own last commit. It falls back on the job where there are more than 20 such commits, or where some were deleted.

Each transaction also declares to Delta that it has read the application's version. Where two drivers commit a batch at
the same moment, one of them therefore fails, and looks again. (Delta's protocol, "Transaction Identifiers";
``OptimisticTransaction.readTxn``.)

A second application, whose version is the epoch of the query's lease, fences the table: a driver that takes over writes
its epoch into the table before it reads anything (``fence``), and every commit compares the newest epoch within its own
transaction. A former driver that was suspended and continues can therefore not commit any more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from cojoin.errors import QueryFailedError
from cojoin.storage.delta_files import append_files, commit_applications, table_log
from cojoin.storage.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cojoin.storage.delta_files import WrittenFile

__all__ = ["FENCE", "NO_BATCH", "TableTransactions"]

NO_BATCH = -1
"""The newest batch of a table that has no batch of the query."""

FENCE = "epoch-of-"
"""What precedes an application's id in the id of the application that fences it."""

_TRIES, _MOST_COMMITS = 5, 20
_CONFLICT = "ConcurrentTransactionException"


@dataclass(frozen=True)
class _Seen:
    """What is known of a table without a look-up: its id, and a version with its newest batch, metadata and epoch."""

    table_id: str
    version: int
    newest: int
    metadata: str | None = None
    epoch: int = NO_BATCH


_NO_TABLE = _Seen("", -1, NO_BATCH)


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
        self._seen: _Seen | None = None

    @property
    def app_id(self) -> str:
        """The application id."""
        return self._app_id

    def expect(self, table_id: str, version: int, batch_id: int) -> None:
        """Start from a manifest's entry for the table, if the table's own log agrees with it.

        Args:
            table_id: The table's id.
            version: The table's version after the batch was written.
            batch_id: The newest batch in that version.
        """
        log = table_log(self._spark, self._location)
        text = None if log is None else self._commit(log, version)
        found = None if text is None else self._with_commit(_Seen(table_id, version, NO_BATCH), text)
        # Without an epoch in that commit, the newest one is only known from Delta's own look-up.
        if found is not None and found.newest == batch_id and (self._epoch is None or found.epoch != NO_BATCH):
            self._seen = found

    def look(self) -> tuple[str | None, int]:
        """Return the table's id and its newest batch; None and ``NO_BATCH`` where there is no table."""
        log = table_log(self._spark, self._location)
        transaction = None if log is None else log.startTransaction()
        if transaction is None or transaction.readVersion() < 0:
            self._seen = _NO_TABLE
            return None, NO_BATCH
        seen = self._look(log, transaction)
        return seen.table_id, seen.newest

    def metadata(self, batch_id: int) -> str | None:
        """Return the user metadata of a batch's commit where the last look-up read that commit, else None."""
        seen = self._seen
        return None if seen is None or seen.newest != batch_id else seen.metadata

    def append(
        self,
        schema: pa.Schema,
        files: Sequence[WrittenFile],
        batch_id: int,
        *,
        query_id: str,
        metadata: str | None = None,
        is_done: Callable[[int], bool],
    ) -> int:
        """Append files in the table's folder as a batch, unless the table already has the batch.

        Args:
            schema: The files' columns.
            files: The files.
            batch_id: The batch.
            query_id: The query id in the table's history.
            metadata: The user metadata of the commit.
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
            seen = None if is_new else self._look(log, transaction)
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
                )
            except (Py4JError, PySparkException) as error:
                if _CONFLICT not in str(error):
                    raise
                continue
            epoch = NO_BATCH if self._epoch is None else self._epoch
            self._seen = _Seen(str(transaction.metadata().id()), version, batch_id, metadata, epoch)
            return version
        raise self._busy()

    def fence(self, query_id: str) -> None:
        """Write this run's epoch into the table, if there is a table, so that no earlier run can commit any more.

        Args:
            query_id: The query id in the table's history.

        Raises:
            QueryFailedError: A later run has fenced the table, or other runs commit to it in each of five tries.
        """
        if self._epoch is None:
            return
        for _ in range(_TRIES):
            log = table_log(self._spark, self._location)
            transaction = None if log is None else log.startTransaction()
            if transaction is None or transaction.readVersion() < 0:
                return
            if self._look(log, transaction).epoch == self._epoch:
                return
            transaction.readTxn().__getattr__("$plus$eq")(self._fence_id)
            try:
                commit_applications(self._spark, transaction, {self._fence_id: self._epoch}, query_id=query_id)
            except (Py4JError, PySparkException) as error:
                if _CONFLICT not in str(error):
                    raise
                continue
            return
        raise self._busy()

    def _applications(self, batch_id: int) -> dict[str, int]:
        """Return the versions of the applications that a batch's commit writes."""
        fence = {} if self._epoch is None else {self._fence_id: self._epoch}
        return {self._app_id: batch_id, **fence}

    @property
    def _fence_id(self) -> str:
        return f"{FENCE}{self._app_id}"

    def _busy(self) -> QueryFailedError:
        return QueryFailedError(
            f"Delta table {self._location}: other runs of this query commit to it at the same time; stop them"
        )

    def _look(self, log: Any, transaction: Any) -> _Seen:
        """Return and store the newest batch in the version that a transaction reads.

        Raises:
            QueryFailedError: A later run of the query has fenced the table.
        """
        table_id, version = str(transaction.metadata().id()), int(transaction.readVersion())
        seen, found = self._seen or _NO_TABLE, None
        if seen.table_id in (_NO_TABLE.table_id, table_id) and seen.version <= version:
            found = self._look_since(log, replace(seen, table_id=table_id), version)
        if found is None:
            epoch = NO_BATCH if self._epoch is None else int(transaction.txnVersion(self._fence_id))
            found = _Seen(table_id, version, int(transaction.txnVersion(self._app_id)), epoch=epoch)
        self._seen = found
        if self._epoch is not None and found.epoch > self._epoch:
            msg = (
                f"Delta table {self._location}: fenced off: another run of this query has taken over at epoch "
                f"{found.epoch}; this one held epoch {self._epoch} and stops here, nothing was written"
            )
            raise QueryFailedError(msg)
        return found

    def _look_since(self, log: Any, seen: _Seen, version: int) -> _Seen | None:
        """Return the newest batch by reading the commits after a known version.

        Returns:
            None where there are too many commits, or one of them is not there.
        """
        between = range(seen.version + 1, version + 1)
        if len(between) > _MOST_COMMITS:
            return None
        for each in between:
            text = self._commit(log, each)
            if text is None:
                return None
            seen = self._with_commit(seen, text)
        return replace(seen, version=version)

    def _commit(self, log: Any, version: int) -> str | None:
        """Return the text of a commit of the table's log; None where it is not there."""
        return open_store(self._spark, log.logPath().toString()).read(f"{version:020d}.json")

    def _with_commit(self, seen: _Seen, commit: str) -> _Seen:
        """Return what is known of the table once a commit of its Delta log is read."""
        actions = [json.loads(line) for line in commit.splitlines() if '"txn"' in line or '"commitInfo"' in line]
        written = [(each["txn"]["appId"], int(each["txn"]["version"])) for each in actions if "txn" in each]
        epochs = [version for app_id, version in written if app_id == self._fence_id]
        seen = replace(seen, epoch=max([seen.epoch, *epochs]))
        batches = [version for app_id, version in written if app_id == self._app_id]
        if not batches or max(batches) < seen.newest:
            return seen
        metadata = next((each["commitInfo"].get("userMetadata") for each in actions if "commitInfo" in each), None)
        return replace(seen, newest=max(batches), metadata=metadata)
