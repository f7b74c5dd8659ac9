"""The commits of a query's batches to a Delta table, so that none takes effect twice.

Each commit writes the batch as the version of an application, and the epoch of the query's lease as that of a second
one, which fences the table: a driver that takes over writes its epoch into the table before it reads anything
(``fence``). Both are compared on the version on which the commit is made, and again after any commit in between. So a
former driver that was suspended can't commit any more, and of two drivers that commit a batch at the same moment one
finds it done. (Delta's protocol, "Transaction Identifiers".)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cojoin.delta.actions import DataFile
from cojoin.delta.deltalake_table import why_unreachable
from cojoin.delta.table_checks import column_difference, not_null_columns, why_not_plain, why_not_removable
from cojoin.delta.table_log import TableLog
from cojoin.delta.table_writer import Change, NewTable, TableWriter, why_not_creatable
from cojoin.errors import QueryFailedError
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from cojoin.delta.actions import Commit, Protocol
    from cojoin.delta.table_log import TableVersion
    from cojoin.delta.table_writer import Committed
    from cojoin.storage.parquet_files import WrittenFile
    from cojoin.storage.store import Store

NO_BATCH = -1
"""The newest batch of a table that has no batch of the query."""

_CHANGES = "delta.enableChangeDataFeed"

KEPT = "kept"
"""The beginning of the names of files that a batch has written again: their rows are of earlier batches."""

FENCE = "epoch-of-"
"""The prefix of the id of the application that fences another one."""


class FencedOffError(QueryFailedError):
    """A table that a run of a higher epoch (``epoch``) has fenced."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


def fence_of(app_id: str) -> str:
    """Return the id of the application whose version is the epoch of another one.

    >>> fence_of("cojoin-0b8e-output")
    'epoch-of-cojoin-0b8e-output'
    """
    return f"{FENCE}{app_id}"


class TableBatches:
    """The commits of one application (one output of a query) to one Delta table.

    The application writes each batch once, in ascending order. ``epoch`` is that of the query's lease; None where the
    table is not fenced. ``properties`` are those of the table where a batch makes it. With ``replaces``, batches
    replace files of the table. Methods raise ``FencedOffError`` where a later run of the query has fenced the table,
    and ``UnreadableLogError`` where a part of its log is gone or damaged.
    """

    def __init__(
        self,
        store: Store,
        folder: str,
        app_id: str,
        epoch: int | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        replaces: bool = False,
    ) -> None:
        self.app_id, self._epoch, self._path, self._properties = app_id, epoch, store.path(folder), properties or {}
        self._store, self._folder, self._log = store, folder, TableLog(store, folder)
        self._replaces = replaces
        self._made: TableWriter | None = None

    @property
    def store(self) -> Store:
        """The store."""
        return self._store

    @property
    def _writer(self) -> TableWriter:
        """The writer, which needs ``deltalake`` and a place that it reaches."""
        if self._made is None:
            self._made = TableWriter(self._store, self._folder, log=self._log, statistics=self._replaces)
        return self._made

    def table(self) -> TableVersion | None:
        """Return the table at its newest version; None without a table."""
        return self._log.newest()

    @property
    def last_read(self) -> TableVersion | None:
        """The table as it was read last, which asks the store for nothing; None where there was none."""
        return self._log.last_read

    def look(self) -> tuple[str | None, int]:
        """Return the table's id and its newest batch; None and ``NO_BATCH`` without a table."""
        newest = self._log.newest()
        return (None, NO_BATCH) if newest is None else (newest.table_id, self._newest(newest.transaction))

    def commit_of(self, batch_id: int) -> Commit | None:
        """Return the commit of a batch; None where the log lacks it."""
        return self._log.commit_of(self.app_id, batch_id)

    def refusal(self, schema: pa.Schema | None = None) -> str | None:
        """Return why only Spark commits files of a schema (None: no files) to the table, or makes it; else None."""
        why = why_unreachable(self._store, self._folder)
        if why is not None:
            return why
        table = self._log.newest()
        if table is None:
            return why_not_creatable(self._properties)
        why = (_why_not_replaceable if self._replaces else why_not_plain)(table.protocol, table.metadata)
        if why is not None or schema is None:
            return why
        must = not_null_columns(table.metadata)
        if must:
            return f"its column {must[0]!r} is NOT NULL"
        if table.partition_columns:
            return f"it is partitioned by {', '.join(table.partition_columns)}"
        return column_difference(table.metadata, schema)

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
        """Append files in the table's folder as a batch, unless the table already has the batch.

        ``query_id`` and ``metadata`` are for the table's history. ``is_done`` takes the newest batch of this
        application in the table, and returns whether this batch is written; it raises where the newest batch is
        impossible. Other errors are those of ``TableWriter.commit``.
        """
        change = self._change(schema, files, batch_id, query_id, metadata)
        new = NewTable(schema, properties=self._properties)
        return self._writer.commit(change, lambda version: is_done(self._newest(version)), new=new)

    def replace(
        self,
        schema: pa.Schema,
        plan: Callable[[Sequence[DataFile]], tuple[Sequence[WrittenFile], Sequence[DataFile]]],
        batch_id: int,
        *,
        query_id: str,
        metadata: str | None = None,
        is_done: Callable[[int], bool],
    ) -> Committed:
        """Replace some of the table's files by others as a batch, unless the table already has the batch.

        ``plan`` takes the files, with their statistics, of the version on which the commit is made, and returns those
        to add, which are in the table's folder, and those to remove. It is called once more for each try. The rest is
        as in ``append``.
        """

        def change(present: Sequence[DataFile]) -> Change:
            added, removed = plan(present)
            made = self._change(schema, added, batch_id, query_id, metadata)
            return replace(made, removed=removed, is_blind=False)

        new = NewTable(schema, properties=self._properties)
        return self._writer.commit(change, lambda version: is_done(self._newest(version)), new=new)

    def _change(
        self, schema: pa.Schema, files: Sequence[WrittenFile], batch_id: int, query_id: str, metadata: str | None
    ) -> Change:
        added = [DataFile(each.name, each.size, each.modified, each.statistics) for each in files]
        return Change({self.app_id: batch_id, **self._fence}, schema, added, metadata=metadata, query_id=query_id)

    def fence(self, query_id: str, new: NewTable | None = None) -> None:
        """Write this run's epoch into the table, so that no earlier run can commit any more.

        ``new`` is the empty table to make where it does not exist; without it, a missing table is not fenced.
        """
        if not self._fence or (new is None and self._log.newest() is None):
            return

        def is_fenced(version: Callable[[str], int | None]) -> bool:
            self._newest(version)
            return version(fence_of(self.app_id)) == self._epoch

        self._writer.commit(Change(self._fence, query_id=query_id), is_fenced, new=new)

    @property
    def _fence(self) -> dict[str, int]:
        return {} if self._epoch is None else {fence_of(self.app_id): self._epoch}

    def _newest(self, version: Callable[[str], int | None]) -> int:
        """Return the newest batch in a version of the table; raise where a later run has fenced it."""
        epoch = version(fence_of(self.app_id))
        if self._epoch is not None and epoch is not None and epoch > self._epoch:
            msg = (
                f"Delta table {without_login(self._path)}: fenced off: another run of this query has taken over at "
                f"epoch {epoch}; this one held epoch {self._epoch} and stops without a write"
            )
            raise FencedOffError(msg, epoch)
        number = version(self.app_id)
        return NO_BATCH if number is None else number


def _why_not_replaceable(protocol: Protocol, metadata: Mapping[str, Any]) -> str | None:
    """Return why files of a table are not replaced by others with some of their rows; None where they may be."""
    why = why_not_removable(protocol, metadata)
    if why is None and dict(metadata.get("configuration") or {}).get(_CHANGES, "false").lower() == "true":
        return f"its property {_CHANGES}, by which a commit names the rows that it has changed"
    return why
