"""Reads a Delta table's log as files, by the published protocol: a version's content, and each commit's changes.

``deltalake`` does not open a table with a reader feature unknown to it, nor a path with a ``%`` in it. It always reads
the list of all files, and does not return the actions of a commit. cojoin also needs the application ids of tables that
only Spark may write. So one reader serves every table on every store, and reads a list of files only for a caller that
needs it.

A version is computed from the newest checkpoint that can be read, and the commits after it. The newest version that was
read is kept, and the next call reads only the commits after it. That is so only while the last commit that was read is
unchanged in the log: otherwise the table may have been deleted and made again. A commit costs a read of a small file, a
checkpoint a read of the columns that are needed. (Delta's protocol, "Delta Log Entries", "Checkpoints", "Action
Reconciliation".)

The rows of cojoin's own small tables, such as ``progress``, are read by pyarrow: whole files, in the order in which
they were written (``TableRows``). A column that a file lacks, since it was added later, is null. Where a table's rows
differ from those of its files (deletion vectors, column mapping, widened types, partition columns), Spark reads them.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cojoin.delta.actions import Commit, DataFile, Protocol, commit_of, lines_of
from cojoin.delta.table_checks import why_not_plain
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cojoin.storage.store import Store

LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[\w-]+)?\.(parquet|json)")
_STATE = ("protocol", "metaData", "txn")
_REQUIRED = {"protocol": "minReaderVersion", "metaData": "id", "txn": "appId", "add": "path", "sidecar": "path"}
_FIELDS = ("path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "deletionVector")
"""The fields that are read of a checkpoint's ``add`` actions."""

_COPIED_WITHIN_S = 60
_DAMAGE = (pa.ArrowException, ValueError, KeyError, TypeError)


class UnreadableLogError(ConfigurationError):
    """A table's log of which a part is gone or damaged."""


@dataclass(frozen=True)
class TableVersion:
    """A Delta table at one version: its folder as Spark takes it, its protocol and its ``metaData`` action.

    ``applications`` has the newest version of each application, by its id. The protocol and the metadata have not
    changed since the version ``unchanged_since``, and may be older than it.
    """

    path: str
    version: int
    protocol: Protocol
    metadata: Mapping[str, Any]
    applications: Mapping[str, int]
    unchanged_since: int

    @property
    def table_id(self) -> str:
        """The table's id; empty where the log has none."""
        return str(self.metadata.get("id") or "")

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The columns by which the table is partitioned."""
        return tuple(self.metadata.get("partitionColumns") or ())

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(self.metadata.get("configuration") or {})

    @property
    def schema_text(self) -> str:
        """The table's columns as JSON of a schema, Spark's form; empty where the log has none."""
        return str(self.metadata.get("schemaString") or "")

    def transaction(self, app_id: str) -> int | None:
        """Return the newest version that an application has written to the table; None if it has written none."""
        return self.applications.get(app_id)

    def after(self, commit: Commit) -> TableVersion:
        """Return the table once a commit is made on this version."""
        stays = commit.protocol is None and commit.metadata is None
        return replace(
            self,
            version=commit.version,
            protocol=commit.protocol or self.protocol,
            metadata=self.metadata if commit.metadata is None else commit.metadata,
            applications={**self.applications, **commit.applications},
            unchanged_since=self.unchanged_since if stays else commit.version,
        )


@dataclass(frozen=True)
class _Listed:
    """The content of a log: the versions of its commits, and the files of its complete checkpoints by version."""

    commits: tuple[int, ...]
    checkpoints: Mapping[int, tuple[str, ...]]

    @classmethod
    def of(cls, names: Sequence[str]) -> _Listed:
        commits = sorted(int(name_parts[1]) for name in names if (name_parts := _COMMIT.fullmatch(name)))
        whole: dict[int, tuple[str, ...]] = {}
        parts: dict[tuple[int, int], list[str]] = {}
        for name in sorted(names):
            name_parts = _CHECKPOINT.fullmatch(name)
            if name_parts is not None and name_parts[3] is None:
                whole[int(name_parts[1])] = (name,)
            elif name_parts is not None:
                parts.setdefault((int(name_parts[1]), int(name_parts[3])), []).append(name)
        for (version, count), files in parts.items():
            if len(files) == count:
                whole.setdefault(version, tuple(files))
        return cls(tuple(commits), whole)

    @property
    def newest(self) -> int:
        return max((*self.commits, *self.checkpoints), default=-1)


class TableLog:
    """The log of a Delta table, or of a folder that may become one, below the store's root.

    ``lost`` is None until ``newest`` finds another commit, or none, in place of the last that was read; then it is that
    commit's version. Methods raise ``UnreadableLogError`` where a part of the log is gone or damaged,
    ``CheckpointError`` where the store can't be reached.
    """

    def __init__(self, store: Store, folder: str = "") -> None:
        self._store, self._folder = store, folder.strip("/")
        self._known: tuple[TableVersion, bytes] | None = None
        # The commit that was last found empty, and when.
        self._empty: tuple[int, float] | None = None
        self.lost: int | None = None

    @property
    def path(self) -> str:
        """The table's folder, as Spark takes it."""
        return self._store.path(self._folder)

    @property
    def last_read(self) -> TableVersion | None:
        """The table as it was read last, without a request to the store; None before the first read."""
        return None if self._known is None else self._known[0]

    def name(self, file: str) -> str:
        """Return the name of a file of the table below the store's root."""
        return f"{self._folder}/{file}" if self._folder else file

    def forget(self) -> None:
        """Forget what was read, as it may be of another table."""
        self._known = self.lost = None

    def add(self, version: int, content: bytes) -> None:
        """Add a commit that the caller has made and read back, if it follows the last commit that was read."""
        if self._known is not None and self._known[0].version == version - 1:
            self._known = self._known[0].after(self._parsed(version, _state_lines(content))), content

    def is_as_it_was(self) -> bool | None:
        """Return whether the last commit that was read is unchanged in the log: the table is the same one.

        None where that commit is gone, or none was read.
        """
        content = None if self._known is None else self._content(self._known[0].version)
        return None if self._known is None or content is None else content == self._known[1]

    def newest(self, at: int | None = None, *, waits: bool = False) -> TableVersion | None:
        """Return the table at its newest version; None without a table.

        ``at`` is the newest version of the same table, where the caller has it already; later versions are then not
        looked for. With ``waits``, the newest commit counts as missing while its file is empty, for a minute at most:
        it is being copied.
        """
        known = self._known
        is_same = True if at is not None else self.is_as_it_was()
        if known is not None and is_same:
            self._known = self._advanced(*known, at, waits=waits)
            return self._known[0]
        self._known = None
        listed = self._listed()
        if listed.newest < 0:
            return None
        table = self._built(listed, listed.newest)
        # Where the commit is gone, the log may have removed it because it is old; later versions exist then.
        if known is not None and (is_same is False or table.version < known[0].version):
            self.lost = known[0].version
        last = self._content(table.version)
        if last is not None:
            self._known = table, last
        return table

    def at(self, version: int) -> TableVersion:
        """Return the table at a version, which the log must still have."""
        return self._built(self._listed(), version)

    def files(self, version: int) -> list[DataFile]:
        """Return the files of a version in the order in which they were written, by their times and their paths.

        A position in a snapshot is a number in this order, so it is the order of Delta's ``DeltaSourceSnapshot``, which
        compares the encoded paths of the log.
        """
        _, rows, commits = self._replayed(self._listed(), version, "add")
        by_key = {_key(file): file for file in (DataFile.of(row["add"]) for row in rows if row.get("add"))}
        for commit in commits:
            for file in commit.removed:
                by_key.pop(_key(file), None)
            by_key.update((_key(file), file) for file in commit.added)
        return sorted(by_key.values(), key=lambda file: (file.modified, file.logged_path))

    def commits(self, after: int, until: int | None = None) -> Iterator[Commit]:
        """Yield the commits after a version (-1: all), up to another (None: the newest), oldest first."""
        last = self._listed().newest if until is None else until
        for version in range(after + 1, last + 1):
            yield self.commit(version)

    def commit(self, version: int, *, has_files: bool = True) -> Commit:
        """Return one commit; it is read faster without its files, where it has thousands."""
        content = self._content(version)
        if content is None:
            first = self.earliest()
            has = "it has no commits" if first is None else f"its oldest commit is {first}"
            msg = (
                f"Delta table {self._named}: the commit of version {version} is not in its log: {has}; what the log "
                f"keeps follows the table's property delta.logRetentionDuration"
            )
            raise UnreadableLogError(msg)
        return self._parsed(version, content if has_files else _state_lines(content, "commitInfo"))

    def commit_of(self, app_id: str, app_version: int) -> Commit | None:
        """Return the newest commit, without files, that wrote an application's version; None where the log lacks it."""
        for version in reversed(self._listed().commits):
            content = self._content(version)
            if content is None:
                return None
            commit = self._parsed(version, _state_lines(content, "commitInfo"))
            if commit.applications.get(app_id) == app_version:
                return commit
        return None

    def versions(self) -> tuple[int, ...]:
        """Return the versions whose commits the log still has, oldest first."""
        return self._listed().commits

    def committed_at(self, commit: Commit) -> int:
        """Return a commit's time, in epoch milliseconds: the one in it, or when its file in the log was written."""
        kept = commit.info.get("inCommitTimestamp")
        return self._store.modified(self.name(commit_name(commit.version))) if kept is None else int(kept)

    def written_at(self, version: int) -> int | None:
        """Return when a commit's file in the log was written, in epoch milliseconds; None where it is gone."""
        name = self.name(commit_name(version))
        try:
            return self._store.modified(name)
        except (CheckpointError, FileNotFoundError):
            if self._store.exists(name):
                raise
            return None

    def earliest(self) -> int | None:
        """Return the version of the oldest commit that the log still has; None where it has none."""
        return next(iter(self.versions()), None)

    def check_checkpoint(self) -> None:
        """Raise ``UnreadableLogError`` where the newest checkpoint is damaged, even if the log suffices without it."""
        listed = self._listed()
        newest = max(listed.checkpoints, default=None)
        if newest is not None:
            self._of_checkpoint(listed.checkpoints[newest], (*_STATE, "add"))

    @property
    def _named(self) -> str:
        return without_login(self.path)

    def _listed(self) -> _Listed:
        return _Listed.of(self._store.names(self.name(LOG)))

    def _content(self, version: int, *, waits: bool = False) -> bytes | None:
        content = self._store.read_unreplaced(self.name(commit_name(version)))
        if content == b"" and waits and self._is_awaited(version):
            return None
        if content is not None and not content.strip():
            # Every writer puts an action into a commit. Without one it would count as a version without changes.
            msg = (
                f"Delta table {self._named}: {commit_name(version)} is empty, and a commit has at least one action: it "
                f"is still being copied, or was cut off. Start again once it is whole; or put it back from a backup of "
                f"the table; or if it is the newest and its writer has ended, delete it"
            )
            raise UnreadableLogError(msg)
        return content

    def _is_awaited(self, version: int) -> bool:
        """Return whether a commit that was just found empty may become whole (``newest``)."""
        if self._empty is None or self._empty[0] != version:
            self._empty = version, time.monotonic()
        if time.monotonic() - self._empty[1] > _COPIED_WITHIN_S:
            return False
        # Where the next commit exists, this one may have become whole since it was read.
        is_last = not self._store.exists(self.name(commit_name(version + 1)))
        return is_last or self._store.read_unreplaced(self.name(commit_name(version))) != b""

    def _parsed(self, version: int, content: bytes) -> Commit:
        try:
            return commit_of(version, content)
        except _DAMAGE as error:
            msg = (
                f"Delta table {self._named}: {commit_name(version)} can't be read: {type(error).__name__}: {error}; "
                f"put it back from a backup of the table"
            )
            raise UnreadableLogError(msg) from error

    def _advanced(
        self, known: TableVersion, content: bytes, until: int | None, *, waits: bool
    ) -> tuple[TableVersion, bytes]:
        """Return the newest version and its commit, from a known version whose commit is still in the log."""
        # A log has no gaps after a commit that it still has, so the first that is missing was not made yet.
        while known.version != until and (more := self._content(known.version + 1, waits=waits)) is not None:
            known, content = known.after(self._parsed(known.version + 1, _state_lines(more))), more
        return known, content

    def _built(self, listed: _Listed, version: int) -> TableVersion:
        begin, rows, commits = self._replayed(listed, version, *_STATE)

        def last(kind: str) -> Any:
            return next((row[kind] for row in rows if row.get(kind) is not None), None)

        protocol, metadata = last("protocol"), last("metaData") or {}
        table = TableVersion(
            self.path,
            begin,
            Protocol.of(protocol) if protocol else Protocol(1, 1, frozenset()),
            # A checkpoint has the properties as pairs.
            {**metadata, "configuration": dict(metadata.get("configuration") or {})},
            {row["txn"]["appId"]: int(row["txn"]["version"]) for row in rows if row.get("txn") is not None},
            begin,
        )
        for commit in commits:
            table = table.after(commit)
        return table

    def _replayed(
        self, listed: _Listed, version: int, *kinds: str
    ) -> tuple[int, list[dict[str, Any]], Iterator[Commit]]:
        """Return a checkpoint's version (-1: none), its actions of some kinds, and the commits from it to a version."""
        if not 0 <= version <= listed.newest:
            msg = f"Delta table {self._named}: version {version} does not exist; the newest is {listed.newest}"
            raise UnreadableLogError(msg)
        rows: list[dict[str, Any]] = []
        damaged: UnreadableLogError | None = None
        for begin in sorted((each for each in listed.checkpoints if each <= version), reverse=True):
            try:
                rows = self._of_checkpoint(listed.checkpoints[begin], kinds)
                break
            except UnreadableLogError as error:
                # An older checkpoint, or no checkpoint, gives the same result with more commits.
                damaged = error
        else:
            begin = -1
        needed = range(begin + 1, version + 1)
        missing = next((each for each in needed if each not in set(listed.commits)), None)
        if missing is not None and damaged is not None:
            raise damaged
        return begin, rows, (self.commit(each, has_files="add" in kinds) for each in needed)

    def _of_checkpoint(self, names: Sequence[str], kinds: Sequence[str]) -> list[dict[str, Any]]:
        """Return a checkpoint's actions of some kinds, from its files and its sidecar files."""
        actions: list[dict[str, Any]] = []
        for name in names:
            rows = self._of_file(f"{LOG}/{name}", (*kinds, "sidecar") if "add" in kinds else kinds)
            for row in rows:
                if row.get("sidecar") is not None:
                    path = row["sidecar"]["path"]
                    actions += self._of_file(path if "/" in path else f"{LOG}/_sidecars/{path}", kinds)
            actions += rows
        return actions

    def _of_file(self, name: str, kinds: Sequence[str]) -> list[dict[str, Any]]:
        content = self._store.read_unreplaced(self.name(name))
        try:
            if content is None:
                msg = "it is missing"
                raise ValueError(msg)
            if name.endswith(".json"):
                return [each for each in lines_of(content) if any(each.get(kind) is not None for kind in kinds)]
            return _of_parquet(content, kinds)
        except _DAMAGE as error:
            msg = (
                f"Delta table {self._named}: the checkpoint {name} can't be read: {type(error).__name__}: "
                f"{str(error).partition(chr(10))[0]}; where the log still has all commits from version 0 on, delete it "
                f"and {LOG}/_last_checkpoint, or else put it back from a backup of the table"
            )
            raise UnreadableLogError(msg) from error


class KnownFiles:
    """The files of a table in order of time, with their statistics; a later version costs a read of the commits since.

    It is for tables without deletion vectors, whose files are identified by their paths.
    """

    def __init__(self, log: TableLog) -> None:
        self._log, self._table = log, ("", -1)
        self._files: dict[str, DataFile] = {}

    def at(self, table_id: str, version: int) -> list[DataFile]:
        """Return the files of a table's version, which the log must still have."""
        known_id, known = self._table
        if known_id != table_id or not 0 <= known <= version:
            self._files = {file.path: file for file in self._log.files(version)}
        else:
            for commit in self._log.commits(known, version):
                for file in commit.removed:
                    self._files.pop(file.path, None)
                self._files.update((file.path, file) for file in commit.added)
        self._table = table_id, version
        return list(self._files.values())


def commit_name(version: int) -> str:
    """Return the name of a commit's file below the table's folder.

    >>> commit_name(7)
    '_delta_log/00000000000000000007.json'
    """
    return f"{LOG}/{version:020d}.json"


def _state_lines(content: bytes, *more: str) -> bytes:
    """Return the lines of a commit that have actions of the kinds ``_STATE``, or of ``more`` kinds."""
    kinds = [f'"{kind}"'.encode() for kind in (*_STATE, *more)]
    lines = [line for line in content.splitlines() if any(kind in line for kind in kinds)]
    return b"\n".join(lines)


def _key(file: DataFile) -> tuple[str, str]:
    """Return a file's path and deletion vector: a commit that changes the vector removes one pair and adds another."""
    vector = file.deletion_vector or {}
    return file.path, json.dumps([vector.get(each) for each in ("storageType", "pathOrInlineDv", "offset")])


def _of_parquet(content: bytes, kinds: Sequence[str]) -> list[dict[str, Any]]:
    # With a Python file object instead of the buffer, Arrow's threads may abort the process at its end.
    file = pq.ParquetFile(pa.BufferReader(content))
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        if kind not in file.schema_arrow.names:
            continue
        column = file.read(columns=[f"{kind}.{each}" for each in _FIELDS] if kind == "add" else [kind]).column(kind)
        # In a row without an action of this kind, some writers leave out the struct, and others only its fields.
        present = pc.is_valid(pc.struct_field(column, _REQUIRED[kind]))
        rows += [{kind: each} for each in column.filter(present).to_pylist()]
    return rows


class TableRows:
    """The rows of a table at its newest version.

    ``files`` are the table's; none without a table. ``why_not`` is why only Spark can read its rows, None where this
    class can. ``why_not_appended`` is why only Spark can add files to it, None where cojoin can.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self._store, self._folder = store, folder.strip("/")
        log = TableLog(store, folder)
        newest = log.newest()
        self.files: Sequence[DataFile] = [] if newest is None else log.files(newest.version)
        self.why_not_appended = None if newest is None else why_not_plain(newest.protocol, newest.metadata)
        self.why_not = self.why_not_appended
        if newest is not None and newest.partition_columns:
            self.why_not = "its partition columns"
        if any(each.deletion_vector for each in self.files):
            self.why_not = "its deletion vectors"

    def largest(self, column: str) -> int | None:
        """Return the largest value of a column of integers, by the files' statistics; None without rows."""
        values: list[int] = []
        for file in self.files:
            value = (file.counted().get("maxValues") or {}).get(column)
            if value is None and file.rows != 0:
                value = max(
                    (row for row in self._read(file, [column])[column].to_pylist() if row is not None), default=None
                )
            if value is not None:
                values.append(int(value))
        return max(values, default=None)

    def read(self, schema: pa.Schema) -> pa.Table:
        """Return all rows, with the columns and types of a schema."""
        tables = [self._as(self._read(each, None), schema) for each in self.files]
        return pa.concat_tables([schema.empty_table(), *tables])

    def _read(self, file: DataFile, columns: list[str] | None) -> pa.Table:
        content = self._store.read_bytes(f"{self._folder}/{file.path}")
        try:
            return pq.read_table(pa.BufferReader(content or b""), columns=columns)
        except (pa.ArrowException, ValueError, OSError) as error:
            why = "it is missing" if content is None else str(error).partition("\n")[0]
            msg = (
                f"Delta table {without_login(self._store.path(self._folder))}: file {file.path} can't be read: {why}; "
                f"put it back from a backup of the table"
            )
            raise UnreadableLogError(msg) from error

    @staticmethod
    def _as(rows: pa.Table, schema: pa.Schema) -> pa.Table:
        columns = [
            rows[field.name].cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)
