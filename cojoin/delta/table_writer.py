"""Makes the commits of a Delta table: creates it, appends, replaces and removes files, and fences it.

``deltalake`` makes each commit (put if absent, at the version after its handle's), writes the log's checkpoints, and
cleans the log (``deltalake_table``). It compares neither an application's version nor a file with the table. So this
module does that, by ``TableLog``, in the version on which the commit is made: the caller compares the versions of
applications, and ``table_checks`` the columns, NOT NULL columns, partition values, and that each file exists in its
size. (For each application id, the handle would read the commits since the last checkpoint: on an object store, dozens
of requests.)

``deltalake`` does not repeat a commit on a newer version (``retries=0``). After a commit in between, this module reads
and compares the table again, in five tries at most. So an append next to another writer's DELETE, OPTIMIZE or new
property is compared with the result, and then made or refused. A commit whose answer was lost is settled in the same
way: in the next try, the application ids show whether it was made.

In the table's history, each commit has what Spark's streaming writer writes, except the operation's name, which is
``deltalake``'s own (WRITE, CREATE TABLE). An append is marked as a blind one, as Spark's are. At the isolation level
WriteSerializable, a blind append is in conflict with no other writer's MERGE, UPDATE or DELETE. At Serializable, the
only level of open-source Delta on Spark, it is in conflict with those whose conditions on partitions its files meet. A
commit costs one request for each added file.

A checkpoint of the log is written every ``delta.checkpointInterval`` versions, counted as Spark does: every tenth
version by default, every hundredth in the tables made here. The log is cleaned right after a checkpoint, by
``delta.enableExpiredLogCleanup`` and ``delta.logRetentionDuration``. ``deltalake``'s own hooks are not used: they count
from the version after, take 100 for the default, and list what to clean after each commit. A checkpoint or a cleaning
that fails is logged, and does not fail the commit.
"""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cojoin.delta.deltalake_table import (
    DeltalakeTable,
    LostCommitError,
    TableConflictError,
    TableRefusedError,
    explained_error,
    translated,
)
from cojoin.delta.table_checks import (
    HARMLESS_PROPERTIES,
    check_files,
    nullable_schema,
    why_not_plain,
    why_not_removable,
)
from cojoin.delta.table_log import LOG, KnownFiles, TableLog, commit_name
from cojoin.errors import QueryFailedError
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    import pyarrow as pa

    from cojoin.delta.actions import DataFile
    from cojoin.delta.table_log import TableVersion
    from cojoin.storage.store import Store

    Compare: TypeAlias = Callable[[Callable[[str], "int | None"]], bool]
    Plan: TypeAlias = Callable[[Sequence[DataFile]], "Change | None"]

_TRIES = 5
_INTERVAL, _CLEANS = "delta.checkpointInterval", "delta.enableExpiredLogCleanup"
_DELTAS_INTERVAL = 10
DEFAULT_PROPERTIES = {_INTERVAL: "100"}
"""The properties of a new table. With Delta's own interval of 10, every tenth batch of Spark's takes seconds more."""

_CREATABLE = HARMLESS_PROPERTIES - {"delta.checkpointPolicy", "delta.enableDeletionVectors"}
"""The properties that this writer can give a new table; the others bring features that only Spark adds."""

_log = logging.getLogger("cojoin")


@dataclass(frozen=True)
class NewTable:
    """The table that a commit makes where it does not exist yet.

    Its columns are all nullable. Its properties are added to ``DEFAULT_PROPERTIES``, or override them.
    """

    schema: pa.Schema
    partition_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """The change that a commit makes to a table.

    ``applications`` has the versions that it writes for applications, by their ids. It is empty only where the change
    just removes files: that these are gone shows that the commit is made. ``schema`` has the columns of the added
    files' rows, partition columns included; None without such files. The added files are in the table's folder, the
    removed ones are of ``TableLog.files`` or ``TableWriter.files``. ``changes_data`` is False where files are replaced
    by others with the same rows. ``is_blind`` is False where the added rows depend on the table's, so that the commit
    is in conflict with another writer's MERGE. ``metadata`` is the commit's ``userMetadata``. ``query_id`` is for the
    table's history, with the first application's version.
    """

    applications: Mapping[str, int]
    schema: pa.Schema | None = None
    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    changes_data: bool = True
    is_blind: bool = True
    metadata: str | None = None
    query_id: str = ""


@dataclass(frozen=True)
class Committed:
    """The table's id and version after a commit; ``is_new`` is False where the comparison found it done already."""

    table_id: str
    version: int
    is_new: bool


class TableWriter:
    """The writer of one Delta table, in a folder below the store's root, for one thread.

    With ``statistics``, a plan gets the files with their statistics, in order of time. With ``reads_back``, each commit
    is read back once it was made; None does so where other writers may replace a commit (S3). ``log`` is the table's,
    where the caller reads it, too. Raises ``EnvironmentSetupError`` where ``deltalake`` is missing or too old, and
    ``QueryFailedError`` where it does not reach the folder (``address_of``).
    """

    def __init__(
        self,
        store: Store,
        folder: str = "",
        *,
        reads_back: bool | None = None,
        log: TableLog | None = None,
        statistics: bool = False,
    ) -> None:
        self._store, self._folder, self._path = store, folder.strip("/"), store.path(folder.strip("/"))
        self._table, self._log = DeltalakeTable(store, folder), log or TableLog(store, folder)
        self._known = KnownFiles(self._log) if statistics else None
        self._reads_back = self._table.is_overwritten if reads_back is None else reads_back
        self._txn_id = ""

    def files(self) -> list[DataFile]:
        """Return the files of the newest version, without their statistics; none without a table."""
        return [] if self._current() is None else self._files()

    def commit(self, change: Change | Plan, compare: Compare, *, new: NewTable | None = None) -> Committed:
        """Make a commit, unless the comparison finds that it is made already.

        ``change`` is the change, or a plan: a function that takes the files of the version on which the commit is made,
        and returns the change, or None for none. ``compare`` takes a function that returns an application's version in
        that version of the table, None for none. It returns whether the change is made already, and raises an error
        where it must not be made. Both are called once more for each try. Without ``new``, a missing table is an error.

        Raises ``TableRefusedError`` where the table is not plain or differs in its columns or files,
        ``TableConflictError`` where others have committed at the same moment in each of five tries, ``LostCommitError``
        where another writer has put its commit in the place of this one, and ``QueryFailedError`` without a table, or
        where the store can't be reached.
        """
        failed: Exception | None = None
        tried = -2
        for _ in range(_TRIES):
            table = self._current()
            table_id, version = ("", -1) if table is None else (table.table_id, table.version)
            if table is None and new is None:
                raise self._error(QueryFailedError, "it does not exist; create it first")
            if compare((lambda _: None) if table is None else table.transaction):
                return Committed(table_id, version, is_new=False)
            if failed is not None and version == tried:
                # No other commit was first, so this was not a conflict.
                raise QueryFailedError(explained_error(failed, self._path, "written", self._table.secrets)) from None
            planned = change(self._files()) if callable(change) else change
            if planned is None:
                return Committed(table_id, version, is_new=False)
            self._check(table, planned, new)
            failed, tried = self._put(version, planned, new), version
            if failed is None:
                return self._made(table, version + 1)
        raise self._busy()

    def refusal(self, *, removes: bool = False) -> str | None:
        """Return why the table takes no commits of this writer, or none that remove files; None if it does."""
        table = TableLog(self._store, self._folder).newest()
        return None if table is None else _refusal(table, removes=removes)

    def _error(self, kind: type[QueryFailedError], why: str) -> QueryFailedError:
        return kind(f"Delta table {without_login(self._path)}: {why}")

    def _busy(self) -> QueryFailedError:
        why = (
            f"others commit to it at the same time, in each of {_TRIES} tries; stop other runs of this query, or pause "
            f"the other writers, and start the query again"
        )
        return self._error(TableConflictError, why)

    def _not_allowed(self, why: str) -> QueryFailedError:
        return self._error(
            TableRefusedError, f"{why} does not allow this commit; start the query again, and Spark writes it"
        )

    def _lost(self, version: int, now: str) -> LostCommitError:
        return LostCommitError(
            f"Delta table {without_login(self._path)}: the commit of version {version} was made and is {now}: another "
            f"writer of the table looks for a commit and then writes it, as Spark does on S3 with each of Delta's log "
            f"stores (S3DynamoDBLogStore excludes only writers that use it, too); let only one of them write at a "
            f"time, and start the query again, which makes the commit again",
            version,
        )

    def _current(self) -> TableVersion | None:
        """Return the table at its newest version, which is that of the handle of ``deltalake``; None without a table.

        A handle is used again while the last commit that was read is unchanged in the log, since opening one reads the
        list of all files. Otherwise the table may have been deleted and made again.
        """
        for _ in range(_TRIES):
            if self._table.is_open and self._log.is_as_it_was():
                with translated(self._path, "read", self._table.secrets):
                    self._table.update()
            else:
                self._open()
                self._log.forget()
                self._known = self._known and KnownFiles(self._log)
            if not self._table.is_open:
                return None
            version = self._table.version
            table = self._log.newest(version)
            if table is not None and (table.version, table.table_id) == (version, self._table.table_id):
                return table
            # Between the two reads, another writer has made a commit, or the table again.
            self._table.close()
        raise self._busy()

    def _open(self) -> None:
        """Open the newest version, if there is a table."""
        from deltalake.exceptions import DeltaError  # noqa: PLC0415 - it takes a third of a second

        with translated(self._path, "opened", self._table.secrets):
            for number in range(_TRIES):
                try:
                    self._table.open()
                except DeltaError as error:  # noqa: PERF203 - it costs nothing next to the opening
                    if self._is_missing(error):
                        return
                    # Another writer may have been creating the table.
                    if number == _TRIES - 1:
                        self._log.check_checkpoint()
                        raise
                else:
                    return

    def _is_missing(self, error: Exception) -> bool:
        """Return whether the table does not exist; ``TableRefusedError`` where it has a feature that prevents opening.

        ``deltalake`` opens no table with a feature that it does not know, and finds none where it can't read the log.
        """
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415

        why = self.refusal()
        if why is not None:
            raise self._not_allowed(why) from None
        return isinstance(error, TableNotFoundError) and not self._store.names(self._log.name(LOG))

    def _check(self, table: TableVersion | None, change: Change, new: NewTable | None) -> None:
        """Raise ``TableRefusedError`` unless the table, in its newest version or as it is made, takes a change."""
        if table is not None:
            why = _refusal(table, removes=bool(change.removed))
            if why is not None:
                raise self._not_allowed(why)
            gone = self._gone(change.removed)
            if gone:
                why = f"{len(gone)} files that this commit removes are gone, such as {gone[0]}"
                raise self._error(TableRefusedError, f"{why}: another writer has removed or replaced them")
        if change.added:
            described = table.metadata if table is not None else {} if new is None else _metadata_of_new(new)
            features = frozenset[str]() if table is None else table.protocol.features
            check_files(self._store, self._folder, described, features, change.schema, change.added)

    def _gone(self, removed: Sequence[DataFile]) -> list[str]:
        """Return the paths of those files that the handle's version lacks: another writer has removed them."""
        if not removed:
            return []
        present = {each.path for each in self._table.files()} if self._table.is_open else set()
        return [each.path for each in removed if each.path not in present]

    def _files(self) -> list[DataFile]:
        """Return the files of the version that is open; none without a table."""
        if not self._table.is_open:
            return []
        return self._table.files() if self._known is None else self._known.at(self._table.table_id, self._table.version)

    def _put(self, version: int, change: Change, new: NewTable | None) -> Exception | None:
        """Make a commit on the handle's version; return the error of ``deltalake`` where it was not made."""
        from deltalake.exceptions import DeltaError  # noqa: PLC0415

        self._txn_id = str(uuid.uuid4())
        applications, info = change.applications, _commit_info(change, version, self._txn_id)
        try:
            if self._table.is_open:
                self._table.commit(
                    change.added,
                    change.removed,
                    changes_data=change.changes_data,
                    applications=applications,
                    info=info,
                    retries=0,
                )
            else:
                assert new is not None
                self._table.create(
                    nullable_schema(new.schema),
                    change.added,
                    partition_by=new.partition_by,
                    properties={**DEFAULT_PROPERTIES, **new.properties},
                    applications=applications,
                    info=info,
                )
        except (DeltaError, OSError, ValueError) as error:
            self._table.close()
            return error
        return None

    def _made(self, table: TableVersion | None, version: int) -> Committed:
        """Read back the commit that was just made, maintain the log, and return the commit."""
        if self._reads_back:
            content = self._store.read_unreplaced(self._log.name(commit_name(version)))
            if content is None or self._txn_id.encode() not in content:
                self._table.close()
                raise self._lost(version, "gone" if content is None else "that of another writer")
            self._log.add(version, content)
        if table is None:
            made = self._current()
            return Committed("" if made is None else made.table_id, version, is_new=True)
        if version % _interval(table) == 0:
            self._maintain_log(version)
        return Committed(table.table_id, version, is_new=True)

    def _maintain_log(self, version: int) -> None:
        """Write a checkpoint of the log, and clean the log as the table's properties require."""
        try:
            table = self._current()
            self._table.write_checkpoint()
            if table is not None and table.properties.get(_CLEANS, "true").lower() != "false":
                self._table.clean_log()
        except Exception as error:  # noqa: BLE001 - the commit was made, and the next checkpoint makes up for this one
            label = f"given a checkpoint of its log at version {version}"
            _log.warning("%s", explained_error(error, self._path, label, self._table.secrets))


def why_not_creatable(properties: Iterable[str]) -> str | None:
    """Return why only Spark makes a new table with these properties; None where this writer can."""
    others = sorted(set(properties) - _CREATABLE)
    return f"new tables have properties that only Spark gives: {', '.join(others)}" if others else None


def _metadata_of_new(new: NewTable) -> dict[str, Any]:
    described = json.dumps(nullable_schema(new.schema))
    return {"schemaString": described, "partitionColumns": list(new.partition_by), "configuration": {}}


def _refusal(table: TableVersion, *, removes: bool) -> str | None:
    return (why_not_removable if removes else why_not_plain)(table.protocol, table.metadata)


def _interval(table: TableVersion) -> int:
    text = table.properties.get(_INTERVAL, "")
    return int(text) if text.isdigit() and int(text) > 0 else _DELTAS_INTERVAL


def _commit_info(change: Change, version: int, txn_id: str) -> dict[str, Any]:
    """Return the ``commitInfo`` of a commit, for the table's history."""
    counts = {
        "numOutputRows": sum(each.rows or 0 for each in change.added),
        "numAddedFiles": len(change.added),
        "numOutputBytes": sum(each.size for each in change.added),
        "numRemovedFiles": len(change.removed),
    }
    epoch, mode = next(iter(change.applications.values()), -1), "Append" if change.is_blind else "Update"
    info: dict[str, Any] = {
        "isBlindAppend": change.is_blind and not change.removed,
        "isolationLevel": "Serializable",
        "operationMetrics": {name: str(count) for name, count in counts.items()},
        "operationParameters": {"outputMode": mode, "queryId": change.query_id, "epochId": str(epoch)},
        "txnId": txn_id,
    }
    if version >= 0:
        info["readVersion"] = version
    if change.metadata is not None:
        info["userMetadata"] = change.metadata
    return info
