"""Makes the commits of a Delta table: creates it, appends, replaces and removes files, and fences it.

``deltalake`` makes each commit (put if absent, at the version after its handle's), the log's checkpoints and its
cleaning. It compares neither an application's version nor a file with anything, so that is done here, on the handle on
which the commit is made: the application ids that the caller compares, the table's columns, its NOT NULL columns, the
partition values, that each file is there in its size. No commit is repeated by ``deltalake`` on a newer version
(``max_commit_retries=0``): with any commit in between, the table is read and compared anew, at most five times. So
an append beside another's DELETE, OPTIMIZE or new property is made on what these left, or refused by its name.

A commit of which no answer came is settled the same way: read anew, the application ids say whether it was made.

Each commit shows in the table's history what Spark's streaming writer does, except the operation's name, which is
``deltalake``'s own (WRITE, CREATE TABLE). An append is marked as a blind one, so that it is in the way of nobody's
MERGE, UPDATE or DELETE. A commit with files costs a look at each of them.

The log's checkpoints follow ``delta.checkpointInterval`` as Spark counts it (every tenth version without it, every
hundredth of the tables made here), and its cleaning ``delta.enableExpiredLogCleanup`` and
``delta.logRetentionDuration``, right after a checkpoint. ``deltalake``'s own hooks would count from the version after,
take 100 for the default, and look for what to clean after each commit. A failure there is logged, and no commit's.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from cojoin.delta.actions import Protocol
from cojoin.delta.delta_errors import (
    LostCommitError,
    TableConflictError,
    TableRefusedError,
    check_deltalake,
    explained_error,
    translated,
)
from cojoin.delta.file_checks import check_files, nullable_schema
from cojoin.delta.place import place_of, why_unreachable
from cojoin.delta.plainness import HARMLESS_PROPERTIES, why_not_plain, why_not_removable
from cojoin.delta.table_log import LOG, TableLog, commit_name
from cojoin.errors import QueryFailedError
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    import pyarrow as pa

    from cojoin.delta.actions import DataFile
    from cojoin.storage.store import Store

    Compare: TypeAlias = Callable[[Callable[[str], "int | None"]], bool]

__all__ = ["DEFAULT_PROPERTIES", "Change", "Committed", "NewTable", "TableWriter"]

_TRIES = 5
_INTERVAL, _CLEANS = "delta.checkpointInterval", "delta.enableExpiredLogCleanup"
_DELTAS_INTERVAL = 10
DEFAULT_PROPERTIES = {_INTERVAL: "100"}
"""The properties of a new table. With Delta's own interval of 10, every tenth batch of Spark's takes seconds more."""

_CREATABLE = HARMLESS_PROPERTIES - {"delta.checkpointPolicy", "delta.enableDeletionVectors"}
"""The properties that a new table may be given here; the others bring features that Spark knows to add."""

_log = logging.getLogger("cojoin")


@dataclass(frozen=True)
class NewTable:
    """The table that a commit makes where there is none.

    Attributes:
        schema: Its columns; they are all nullable.
        partition_by: The columns by which it is partitioned.
        properties: Its properties beside ``DEFAULT_PROPERTIES``, or in their place.
    """

    schema: pa.Schema
    partition_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_made_here(self) -> bool:
        """Whether its properties are among those that this writer can give; else Spark makes the table."""
        return _CREATABLE.issuperset(self.properties)


@dataclass(frozen=True)
class Change:
    """What a commit does to a table.

    Attributes:
        applications: The versions of applications that it writes, by their ids: at least one.
        schema: The columns of the added files' rows, those of the partitions among them; None without such files.
        added: The files that it adds, which lie in the table's folder.
        removed: The files that it removes, as ``TableLog.files`` returns them.
        changes_data: Whether the table's rows change; False where files are replaced by others with the same rows.
        metadata: The user metadata of the commit (``userMetadata``).
        query_id: The query id in the table's history, together with the first application's version.
    """

    applications: Mapping[str, int]
    schema: pa.Schema | None = None
    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    changes_data: bool = True
    metadata: str | None = None
    query_id: str = ""


@dataclass(frozen=True)
class Committed:
    """The end of a commit.

    Attributes:
        table_id: The table's id.
        version: The table's version with the change.
        is_new: Whether the commit was made; False where the comparison found it done already.
    """

    table_id: str
    version: int
    is_new: bool


class TableWriter:
    """The writer of one Delta table; a thread uses one of its own.

    Args:
        store: The store.
        folder: The table's folder below the store's root; empty for the root itself.
        reads_back: Whether each commit is looked for once it was made; None for where other writers may look for a
            commit and then write it (S3).

    Raises:
        EnvironmentSetupError: ``deltalake`` is missing or too old.
        QueryFailedError: ``deltalake`` does not reach the folder (``place_of``).

    Example:
        ``TableWriter(store, "out").commit(Change({"q": 7}, schema, files), lambda version: version("q") == 7)``
    """

    def __init__(self, store: Store, folder: str = "", *, reads_back: bool | None = None) -> None:
        check_deltalake()
        place = place_of(store, folder)
        self._store, self._folder, self._path = store, folder.strip("/"), store.path(folder.strip("/"))
        if place is None:
            raise self._error(QueryFailedError, f"{why_unreachable(store, folder)}; Spark writes it")
        self._place, self._reads_back = place, place.is_overwritten if reads_back is None else reads_back
        self._handle: Any = None
        self._last: bytes | None = None
        self._txn_id = ""

    def commit(self, change: Change, compare: Compare, *, new: NewTable | None = None) -> Committed:
        """Make a commit, unless the comparison finds that it is made already.

        Args:
            change: What the commit does.
            compare: Takes a function that returns the version of an application in the very version of the table on
                which the commit is made, None for none. It returns whether the change is there already, and raises
                what forbids it. It is called once more for each try.
            new: The table to make where there is none; without it, a missing table is an error.

        Raises:
            TableRefusedError: The table does not take the change: it is not plain, or its columns or files are others.
            TableConflictError: Others have committed to the table at the same moment, in each of five tries.
            LostCommitError: The commit was made, and another writer has put its own in its place.
            QueryFailedError: There is no table, or the store can't be reached.
        """
        failed: Exception | None = None
        tried = -2
        for _ in range(_TRIES):
            handle = self._current()
            version = -1 if handle is None else int(handle.version())
            if handle is None and new is None:
                raise self._error(QueryFailedError, "there is no table; expected one that is there")
            if compare(partial(_version_of, handle)):
                return Committed("" if handle is None else str(handle.metadata().id), version, is_new=False)
            if failed is not None and version == tried:
                # Nobody was first, so this was no conflict.
                secrets = self._place.secrets
                raise QueryFailedError(explained_error(failed, self._path, "written", secrets)) from None
            self._check(handle, change, new)
            failed, tried = self._put(handle, change, new), version
            if failed is None:
                return self._made(handle, version + 1)
        why = f"others commit to it at the same time, in each of {_TRIES} tries; stop other runs of this query"
        raise self._error(TableConflictError, why)

    def refusal(self, *, removes: bool = False) -> str | None:
        """Return why the table takes no commits of this writer; None where it does, or where there is no table.

        Args:
            removes: Whether files are to be removed or replaced, too.

        Raises:
            UnreadableLogError: A part of the table's log is gone or damaged.
        """
        found = TableLog(self._store, self._folder).newest()
        return None if found is None else _refusal(found.protocol, found.metadata, removes=removes)

    def _error(self, kind: type[QueryFailedError], why: str) -> QueryFailedError:
        return kind(f"Delta table {without_login(self._path)}: {why}")

    def _not_allowed(self, why: str) -> QueryFailedError:
        return self._error(TableRefusedError, f"{why} does not allow this commit; Spark writes it")

    def _lost(self, version: int, now: str) -> LostCommitError:
        return LostCommitError(
            f"Delta table {without_login(self._path)}: the commit of version {version} was made and is {now}: another "
            f"writer of the table looks for a version and then writes it, as Spark does on S3 by default; let only one "
            f"write at a time, or give Spark a log store that is safe (spark.delta.logStore.s3a.impl)",
            version,
        )

    def _name(self, file: str) -> str:
        return f"{self._folder}/{file}" if self._folder else file

    def _content(self, version: int) -> bytes | None:
        return self._store.read_bytes(self._name(commit_name(version)))

    def _current(self) -> Any:
        """Return the handle of ``deltalake`` at the newest version; None where there is no table.

        A handle stays in use while the last commit that it has read is in the log as it was: to open one reads the
        list of all files. Otherwise the table may have been deleted and made again.
        """
        if self._handle is not None and self._content(int(self._handle.version())) != self._last:
            self._handle = None
        if self._handle is None:
            self._handle = self._opened()
        else:
            with translated(self._path, "read", self._place.secrets):
                self._handle.update_incremental()
        if self._handle is not None:
            self._last = self._content(int(self._handle.version())) or b""
        return self._handle

    def _opened(self) -> Any:
        from deltalake import DeltaTable  # noqa: PLC0415 - it takes a third of a second
        from deltalake.exceptions import DeltaError, TableNotFoundError  # noqa: PLC0415

        with translated(self._path, "opened", self._place.secrets):
            try:
                return DeltaTable(self._place.url, storage_options=dict(self._place.options) or None)
            except DeltaError as error:
                # It opens no table with a feature that it does not know, and finds none where it can't read the log.
                why = self.refusal()
                if why is not None:
                    raise self._not_allowed(why) from None
                if not isinstance(error, TableNotFoundError) or self._store.names(self._name(LOG)):
                    raise
        return None

    def _check(self, handle: Any, change: Change, new: NewTable | None) -> None:
        """Check that the table takes a change in the handle's version, or as it is made.

        Raises:
            TableRefusedError: It does not.
        """
        if handle is not None:
            why = _refusal(_protocol(handle), _metadata(handle), removes=bool(change.removed))
            if why is not None:
                raise self._not_allowed(why)
            gone = _gone(handle, change.removed)
            if gone:
                why = f"{len(gone)} files that this commit removes are not there any more, such as {gone[0]}"
                raise self._error(TableRefusedError, f"{why}: another writer has removed or replaced them")
        if change.added:
            described = _metadata_of_new(new) if handle is None and new is not None else _metadata(handle)
            features = frozenset[str]() if handle is None else _protocol(handle).features
            check_files(self._store, self._folder, described, features, change.schema, change.added)

    def _put(self, handle: Any, change: Change, new: NewTable | None) -> Exception | None:
        """Make a commit on the handle's version; return the error of ``deltalake`` where it was not made."""
        from deltalake import Schema, transaction  # noqa: PLC0415
        from deltalake.exceptions import DeltaError  # noqa: PLC0415

        self._txn_id = str(uuid.uuid4())
        version = -1 if handle is None else int(handle.version())
        properties = _commit_properties(change, version, self._txn_id)
        hooks = transaction.PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
        actions = [
            *(_removal(each, change) for each in change.removed),
            *(_addition(each, change) for each in change.added),
        ]
        try:
            if handle is None:
                assert new is not None
                transaction.create_table_with_add_actions(
                    self._place.url,
                    Schema.from_json(json.dumps(nullable_schema(new.schema))),
                    actions,
                    partition_by=list(new.partition_by),
                    configuration={**DEFAULT_PROPERTIES, **new.properties},
                    storage_options=dict(self._place.options) or None,
                    commit_properties=properties,
                    post_commithook_properties=hooks,
                )
            else:
                handle.create_write_transaction(
                    actions,
                    mode="append",
                    schema=handle.schema(),
                    partition_by=list(handle.metadata().partition_columns),
                    commit_properties=properties,
                    post_commithook_properties=hooks,
                )
        except (DeltaError, OSError, ValueError) as error:
            self._handle = None
            return error
        return None

    def _made(self, handle: Any, version: int) -> Committed:
        """Return the commit that was just made, once it was read back, and take care of the log."""
        if self._reads_back:
            content = self._content(version)
            if content is None or self._txn_id.encode() not in content:
                self._handle = None
                raise self._lost(version, "gone" if content is None else "that of another writer")
        if handle is None:
            handle = self._current()
        elif version % _interval(handle.metadata().configuration) == 0:
            self._care(version)
        return Committed(str(handle.metadata().id), version, is_new=True)

    def _care(self, version: int) -> None:
        """Write a checkpoint of the log, and clean it as the table's properties say."""
        try:
            handle = self._current()
            handle.create_checkpoint()
            if (handle.metadata().configuration or {}).get(_CLEANS, "true").lower() != "false":
                handle.cleanup_metadata()
        except Exception as error:  # noqa: BLE001 - the commit was made, and the next checkpoint makes up for this one
            why = explained_error(error, self._path, f"given a checkpoint of its log at version {version}")
            _log.warning("%s", why)


def _version_of(handle: Any, app_id: str) -> int | None:
    """Return the version of an application in the version of a handle; None for none."""
    found = None if handle is None else handle.transaction_version(app_id)
    return None if found is None else int(found)


def _protocol(handle: Any) -> Protocol:
    found = handle.protocol()
    return Protocol.of(
        {
            "minReaderVersion": found.min_reader_version,
            "minWriterVersion": found.min_writer_version,
            "readerFeatures": found.reader_features,
            "writerFeatures": found.writer_features,
        }
    )


def _metadata(handle: Any) -> dict[str, Any]:
    """Return the ``metaData`` action of a handle's version."""
    found = handle.metadata()
    return {
        "id": found.id,
        "schemaString": handle.schema().to_json(),
        "partitionColumns": list(found.partition_columns),
        "configuration": dict(found.configuration or {}),
    }


def _metadata_of_new(new: NewTable) -> dict[str, Any]:
    described = json.dumps(nullable_schema(new.schema))
    return {"schemaString": described, "partitionColumns": list(new.partition_by), "configuration": {}}


def _refusal(protocol: Protocol, metadata: Mapping[str, Any], *, removes: bool) -> str | None:
    return (why_not_removable if removes else why_not_plain)(protocol, metadata)


def _interval(configuration: Mapping[str, str] | None) -> int:
    found = (configuration or {}).get(_INTERVAL, "")
    return int(found) if found.isdigit() and int(found) > 0 else _DELTAS_INTERVAL


def _gone(handle: Any, removed: Sequence[DataFile]) -> list[str]:
    """Return those of some files that are not files of the handle's version: another writer has removed them."""
    if not removed:
        return []
    there = {unquote(each.as_py()) for each in handle.get_add_actions().column("path")}
    return [each.path for each in removed if each.path not in there]


def _commit_properties(change: Change, version: int, txn_id: str) -> Any:
    """Return what ``deltalake`` writes beside the files: the application ids, and what the table's history shows."""
    from deltalake import CommitProperties, Transaction  # noqa: PLC0415

    now = int(1000 * time.time())
    counts = {
        "numOutputRows": sum(each.rows or 0 for each in change.added),
        "numAddedFiles": len(change.added),
        "numOutputBytes": sum(each.size for each in change.added),
        "numRemovedFiles": len(change.removed),
    }
    epoch = next(iter(change.applications.values()), -1)
    told: dict[str, Any] = {
        "isBlindAppend": not change.removed,
        "isolationLevel": "Serializable",
        "operationMetrics": {name: str(count) for name, count in counts.items()},
        "operationParameters": {"outputMode": "Append", "queryId": change.query_id, "epochId": str(epoch)},
        "txnId": txn_id,
    }
    if version >= 0:
        told["readVersion"] = version
    if change.metadata is not None:
        told["userMetadata"] = change.metadata
    written = [Transaction(app_id, each, now) for app_id, each in change.applications.items()]
    return CommitProperties(custom_metadata=told, max_commit_retries=0, app_transactions=written)


def _addition(file: DataFile, change: Change) -> Any:
    from deltalake.transaction import AddAction  # noqa: PLC0415

    values = dict(file.partition_values)
    return AddAction(file.path, file.size, values, file.modified, change.changes_data, file.statistics or "{}")


def _removal(file: DataFile, change: Change) -> Any:
    from deltalake.transaction import RemoveAction  # noqa: PLC0415

    return RemoveAction(file.path, change.changes_data, int(1000 * time.time()), file.size, dict(file.partition_values))
