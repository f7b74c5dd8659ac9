"""Which batches of a query a Delta table has in its newest version.

Delta keeps the newest version that each application wrote; here the version is the batch. Delta's own look-up is a
Spark job on the Delta log, which takes some tenths of a second. This module instead reads only the commits that are
new to it: all commits of a young table, those after the one that a manifest names (``expect``), or those after its
own last commit. It falls back on the job where there are more than 20 such commits, or where some were deleted.

Each look also finds the newest epoch of the query's lease in the table, and fails where a later run has fenced it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cojoin.delta.table_batches import FENCE, NO_BATCH, FencedOffError, fenced_off
from cojoin.delta_jvm.delta_files import has_no_log, table_log
from cojoin.delta_jvm.table_version import read_table
from cojoin.session.kinds import adapter_of
from cojoin.session.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

__all__ = ["FENCE", "NO_BATCH", "FencedOffError", "NewestBatch", "Seen", "TableNow"]

_MOST_COMMITS = 20


@dataclass(frozen=True)
class Seen:
    """What is known of a table without a look-up: its id, and a version with its newest batch, metadata and epoch."""

    table_id: str
    version: int
    newest: int
    metadata: str | None = None
    epoch: int = NO_BATCH


_NO_TABLE = Seen("", -1, NO_BATCH)


@dataclass(frozen=True)
class TableNow:
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

    @classmethod
    def of(cls, log: Any, transaction: Any) -> TableNow:
        """Return the table's version that one of Delta's transactions reads."""
        return cls(
            str(transaction.metadata().id()),
            int(transaction.readVersion()),
            str(log.logPath().toString()),
            lambda app_id: int(transaction.txnVersion(app_id)),
        )

    def newest(self, app_id: str) -> int:
        """Return the newest version of an application; ``NO_BATCH`` where it has none."""
        found = self.transaction(app_id)
        return NO_BATCH if found is None else found


class NewestBatch:
    """The newest batch of one application in one Delta table.

    Args:
        spark: The session.
        location: The table's path, with a ``/``, or its name.
        app_id: The application id.
        epoch: The epoch of the query's lease, which fences the table; None where the table is not fenced.
    """

    def __init__(self, spark: SparkSession, location: str, app_id: str, epoch: int | None) -> None:
        self._spark, self._location, self._app_id, self._epoch = spark, location, app_id, epoch
        self._seen: Seen | None = None

    @property
    def fence_id(self) -> str:
        """The id of the application whose version is the epoch."""
        return f"{FENCE}{self._app_id}"

    def expect(self, table_id: str, version: int, batch_id: int) -> None:
        """Start from a manifest's entry for the table, if the table's own log agrees with it.

        Args:
            table_id: The table's id.
            version: The table's version after the batch was written.
            batch_id: The newest batch in that version.
        """
        text = self._commit(self._log_path(), version)
        found = None if text is None else self._with_commit(Seen(table_id, version, NO_BATCH), text)
        # Without an epoch in that commit, the newest one is only known from Delta's own look-up.
        if found is not None and found.newest == batch_id and (self._epoch is None or found.epoch != NO_BATCH):
            self._seen = found

    def look(self) -> tuple[str | None, int]:
        """Return the table's id and its newest batch; None and ``NO_BATCH`` where there is no table."""
        now = self.now()
        if now is None:
            self._seen = _NO_TABLE
            return None, NO_BATCH
        seen = self.look_in(now)
        return seen.table_id, seen.newest

    def metadata(self, batch_id: int) -> str | None:
        """Return the user metadata of a batch's commit where the last look-up read that commit, else None."""
        seen = self._seen
        return None if seen is None or seen.newest != batch_id else seen.metadata

    def know(self, table_id: str, version: int, batch_id: int, metadata: str | None) -> None:
        """Note a batch that this run has just committed, with the user metadata of its commit."""
        epoch = NO_BATCH if self._epoch is None else self._epoch
        self._seen = Seen(table_id, version, batch_id, metadata, epoch)

    def now(self) -> TableNow | None:
        """Return the table at its newest version; None where there is no table."""
        if not adapter_of(self._spark).has_delta_classes:
            table = read_table(self._spark, self._location)
            return None if table is None else TableNow(table.table_id, table.version, table.log_path, table.transaction)
        if has_no_log(self._spark, self._location):
            return None
        log = table_log(self._spark, self._location)
        transaction = None if log is None else log.startTransaction()
        if transaction is None or transaction.readVersion() < 0:
            return None
        return TableNow.of(log, transaction)

    def _log_path(self) -> str | None:
        adapter = adapter_of(self._spark)
        if not adapter.has_delta_classes:
            path = adapter.table_location(self._location)
            return None if path is None else f"{path.rstrip('/')}/_delta_log"
        log = table_log(self._spark, self._location)
        return None if log is None else str(log.logPath().toString())

    def look_in(self, now: TableNow) -> Seen:
        """Return and store the newest batch in a version of the table.

        Raises:
            FencedOffError: A later run of the query has fenced the table.
        """
        seen, found = self._seen or _NO_TABLE, None
        if seen.table_id in (_NO_TABLE.table_id, now.table_id) and seen.version <= now.version:
            found = self._look_since(now.log_path, replace(seen, table_id=now.table_id), now.version)
        if found is None:
            epoch = NO_BATCH if self._epoch is None else now.newest(self.fence_id)
            found = Seen(now.table_id, now.version, now.newest(self._app_id), epoch=epoch)
        self._seen = found
        if self._epoch is not None and found.epoch > self._epoch:
            raise fenced_off(self._location, found.epoch, self._epoch)
        return found

    def _look_since(self, log_path: str, seen: Seen, version: int) -> Seen | None:
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

    def _with_commit(self, seen: Seen, commit: str) -> Seen:
        """Return what is known of the table once a commit of its Delta log is read."""
        actions = [json.loads(line) for line in commit.splitlines() if '"txn"' in line or '"commitInfo"' in line]
        written = [(each["txn"]["appId"], int(each["txn"]["version"])) for each in actions if "txn" in each]
        epochs = [version for app_id, version in written if app_id == self.fence_id]
        seen = replace(seen, epoch=max([seen.epoch, *epochs]))
        batches = [version for app_id, version in written if app_id == self._app_id]
        if not batches or max(batches) < seen.newest:
            return seen
        metadata = next((each["commitInfo"].get("userMetadata") for each in actions if "commitInfo" in each), None)
        return replace(seen, newest=max(batches), metadata=metadata)
