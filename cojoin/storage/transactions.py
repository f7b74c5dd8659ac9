"""The batches of a query that a Delta table already has, looked up at every commit so that none takes effect twice.

Delta keeps the newest version that each application wrote; here the version is the batch. Delta's own look-up is a
Spark job on the Delta log, which takes some tenths of a second. This module instead reads only the commits that are
new to it: all commits of a young table, those after the one that a manifest names (``expect``), or those after its
own last commit. It falls back on the job where there are more than 20 such commits, or where some were deleted.

Each transaction also declares to Delta that it has read the application's version. Where two drivers commit a batch at
the same moment, one of them therefore fails, and looks again. (Delta's protocol, "Transaction Identifiers";
``OptimisticTransaction.readTxn``.)

A session of Spark Connect has no access to Delta's transactions. There Spark's own writer commits (``txnAppId``), and
this module only looks the batches up. Such a commit does not compare the epoch itself: it is compared right before.

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
from cojoin.storage.locations import is_path
from cojoin.storage.session_settings import is_connect
from cojoin.storage.stores import open_store
from cojoin.storage.table_version import read_table, table_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
_CREATED_MEANWHILE = ("ProtocolChangedException", "MetadataChangedException", "ConcurrentWriteException", _CONFLICT)
"""What Delta says to a transaction that would create a table which another one has created."""


@dataclass(frozen=True)
class _Seen:
    """What is known of a table without a look-up: its id, and a version with its newest batch, metadata and epoch."""

    table_id: str
    version: int
    newest: int
    metadata: str | None = None
    epoch: int = NO_BATCH


_NO_TABLE = _Seen("", -1, NO_BATCH)


@dataclass(frozen=True)
class _Now:
    """A table at its newest version.

    Attributes:
        table_id: The table's id.
        version: The version.
        log_path: The folder of its log.
        transaction: Returns the newest version that an application has written to it; None or -1 for none.
    """

    table_id: str
    version: int
    log_path: str
    transaction: Callable[[str], int | None]

    def newest(self, app_id: str) -> int:
        """Return the newest version of an application; ``NO_BATCH`` where it has none."""
        found = self.transaction(app_id)
        return NO_BATCH if found is None else found


def _of_transaction(log: Any, transaction: Any) -> _Now:
    """Return the table's version that one of Delta's transactions reads."""
    return _Now(
        str(transaction.metadata().id()),
        int(transaction.readVersion()),
        str(log.logPath().toString()),
        lambda app_id: int(transaction.txnVersion(app_id)),
    )


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
        text = self._commit(self._log_path(), version)
        found = None if text is None else self._with_commit(_Seen(table_id, version, NO_BATCH), text)
        # Without an epoch in that commit, the newest one is only known from Delta's own look-up.
        if found is not None and found.newest == batch_id and (self._epoch is None or found.epoch != NO_BATCH):
            self._seen = found

    def look(self) -> tuple[str | None, int]:
        """Return the table's id and its newest batch; None and ``NO_BATCH`` where there is no table."""
        now = self._now()
        if now is None:
            self._seen = _NO_TABLE
            return None, NO_BATCH
        seen = self._look(now)
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
            seen = None if is_new else self._look(_of_transaction(log, transaction))
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
                if not _is_conflict(error, is_new=is_new):
                    raise
                continue
            epoch = NO_BATCH if self._epoch is None else self._epoch
            self._seen = _Seen(str(transaction.metadata().id()), version, batch_id, metadata, epoch)
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
        if is_connect(self._spark):
            if self._now() is None and create is not None:
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
                if self._look(_of_transaction(log, transaction)).epoch == self._epoch:
                    return
                transaction.readTxn().__getattr__("$plus$eq")(self._fence_id)
                commit_applications(self._spark, transaction, self._fence_ids, query_id=query_id)
            except (Py4JError, PySparkException) as error:
                if not _is_conflict(error, is_new=is_new):
                    raise
                continue
            return
        raise self._busy()

    def _fence_by_writer(self) -> None:
        """Write this run's epoch by a commit of Spark's own writer, without rows."""
        now = self._now()
        if now is None or self._look(now).epoch == self._epoch:
            return
        reader, by_path = self._spark.read.format("delta"), is_path(self._location)
        rows = (reader.load if by_path else reader.table)(self._location).limit(0)
        writer = rows.write.format("delta").mode("append").option("txnAppId", self._fence_id)
        writer = writer.option("txnVersion", str(self._epoch))
        (writer.save if by_path else writer.saveAsTable)(self._location)
        # Delta skips the commit where another run has written this epoch or a later one.
        self.look()

    def _now(self) -> _Now | None:
        """Return the table at its newest version; None where there is no table."""
        if is_connect(self._spark):
            table = read_table(self._spark, self._location)
            return None if table is None else _Now(table.table_id, table.version, table.log_path, table.transaction)
        log = table_log(self._spark, self._location)
        transaction = None if log is None else log.startTransaction()
        if transaction is None or transaction.readVersion() < 0:
            return None
        return _of_transaction(log, transaction)

    def _log_path(self) -> str | None:
        if is_connect(self._spark):
            path = table_path(self._spark, self._location)
            return None if path is None else f"{path.rstrip('/')}/_delta_log"
        log = table_log(self._spark, self._location)
        return None if log is None else str(log.logPath().toString())

    def _applications(self, batch_id: int) -> dict[str, int]:
        """Return the versions of the applications that a batch's commit writes."""
        return {self._app_id: batch_id, **self._fence_ids}

    @property
    def _fence_ids(self) -> dict[str, int]:
        """The transaction ids of a commit that only fences the table."""
        return {} if self._epoch is None else {self._fence_id: self._epoch}

    @property
    def _fence_id(self) -> str:
        return f"{FENCE}{self._app_id}"

    def _busy(self) -> QueryFailedError:
        return QueryFailedError(
            f"Delta table {self._location}: other runs of this query commit to it at the same time; stop them"
        )

    def _look(self, now: _Now) -> _Seen:
        """Return and store the newest batch in a version of the table.

        Raises:
            QueryFailedError: A later run of the query has fenced the table.
        """
        seen, found = self._seen or _NO_TABLE, None
        if seen.table_id in (_NO_TABLE.table_id, now.table_id) and seen.version <= now.version:
            found = self._look_since(now.log_path, replace(seen, table_id=now.table_id), now.version)
        if found is None:
            epoch = NO_BATCH if self._epoch is None else now.newest(self._fence_id)
            found = _Seen(now.table_id, now.version, now.newest(self._app_id), epoch=epoch)
        self._seen = found
        if self._epoch is not None and found.epoch > self._epoch:
            msg = (
                f"Delta table {self._location}: fenced off: another run of this query has taken over at epoch "
                f"{found.epoch}; this one held epoch {self._epoch} and stops here, nothing was written"
            )
            raise QueryFailedError(msg)
        return found

    def _look_since(self, log_path: str, seen: _Seen, version: int) -> _Seen | None:
        """Return the newest batch by reading the commits after a known version.

        Returns:
            None where there are too many commits, or one of them is not there.
        """
        between = range(seen.version + 1, version + 1)
        if len(between) > _MOST_COMMITS:
            return None
        for each in between:
            text = self._commit(log_path, each)
            if text is None:
                return None
            seen = self._with_commit(seen, text)
        return replace(seen, version=version)

    def _commit(self, log_path: str | None, version: int) -> str | None:
        """Return the text of a commit of the table's log; None where it is not there."""
        return None if log_path is None else open_store(self._spark, log_path).read(f"{version:020d}.json")

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


def _is_conflict(error: BaseException, *, is_new: bool) -> bool:
    """Return whether a commit failed because another one was made since the table was read.

    Args:
        error: Delta's error.
        is_new: Whether there was no table when it was read.
    """
    return any(each in str(error) for each in (_CREATED_MEANWHILE if is_new else (_CONFLICT,)))
