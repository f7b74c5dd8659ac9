"""The rows of a Delta table as a stream of its files: positions, and the files between two positions.

A stream begins with the files of one version, the *snapshot*, in the order in which they were written. It continues
with the files that each later commit adds, and skips those that only rewrite rows, such as OPTIMIZE's. A *position* is
a version and the number of the last file that was read of it, -1 for none; after the last file it is the next version.
Positions have the form and the meaning of those of Delta's own source for Spark, so either source can continue a
stream. (Delta's ``DeltaSource``, ``DeltaSourceOffset`` and ``DeltaSourceSnapshot``.)

The snapshot's version is chosen with the first batch. A run that repeats this batch computes it from the batch's end,
as Delta's own source does (``extractStartingState``). So the files between two positions depend on the log alone.

A commit that removes rows or changes the table's columns ends the stream with an error that names it. So does a table
that was deleted and made again. A batch has the next files up to its limits, and at least one. A commit is read from
the log once, and its files are kept until the position has passed them. Deletion vectors are read together with the
list of files.

The stream of a table's *changes* has, after the snapshot, the files of each commit's change feed, a commit at a time. A
commit without such files has the files that it added and removed: their rows were inserted and deleted. The stream also
has each commit's time: the one in the commit if the table has in-commit timestamps, otherwise the modification time of
the commit's file in the log, moved behind those of the hundred commits before. Unlike Delta's own, this time does not
depend on where a batch begins. It goes back only where a file more than a hundred commits older has a later time.
(``DeltaSourceCDCSupport``, ``CDCReader``, ``DeltaHistoryManager``.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from cojoin.delta.table_log import UnreadableLogError
from cojoin.errors import QueryFailedError
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.delta.actions import Commit, DataFile, FileKind, Protocol
    from cojoin.delta.table_log import TableLog, TableVersion

Removals: TypeAlias = Literal["fail", "ignore_deletes", "ignore_changes", "skip_commit"]
"""The treatment of a commit that removes files with their rows, by the names of Delta's options.

- *fail*: it ends the stream.
- *ignore_deletes*: it is skipped if it adds no rows, and ends the stream otherwise.
- *ignore_changes*: its added files are read, with rows that were read before among them.
- *skip_commit*: it is skipped, whatever it adds.
"""

DeletedRows: TypeAlias = Callable[[int, Sequence[str]], Mapping[str, bytes]]
"""A function of a version and of paths of its files that returns these files' deleted rows (``StreamFile.deleted``)."""

_READABLE_FEATURES = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "variantType"}
)
"""The reader features with which files, read by themselves, still have the table's rows."""

_MOST_READER = 3
_FIELDS = {"reservoirId", "reservoirVersion", "index", "isStartingVersion"}
_MAPPING, _MAPPED_NAME = "delta.columnMapping.mode", "delta.columnMapping.physicalName"
FEED = "delta.enableChangeDataFeed"
"""The property of a table that records its changes."""

_DELTAS_SOURCE = (
    "Delta's own source: set spark.cojoin.delta=spark in the session, connect the inputs again, and start the query "
    "from the same checkpoint"
)
_LOOK_BACK = 100
"""A commit's time is moved behind those of so many commits before it, as in Delta's ``DeltaHistoryManager``."""

_AT_ONCE = 8
"""The number of threads that look up the times of commits."""

_FEW_COMMITS = 20
"""Up to so many commits are read faster than a checkpoint of the log."""

_NULLABLE = frozenset({"nullable", "containsNull", "valueContainsNull"})


@dataclass(frozen=True)
class Position:
    """A position in the stream of a table, with the table's id."""

    table_id: str
    version: int
    index: int = -1
    in_snapshot: bool = False

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Position:
        """Return the position of an offset in Spark's offset log.

        >>> Position.of({"reservoirId": "t", "reservoirVersion": 3, "index": -1, "isStartingVersion": False})
        Position(table_id='t', version=3, index=-1, in_snapshot=False)
        """
        version, index = int(offset["reservoirVersion"]), int(offset["index"])
        return cls(str(offset["reservoirId"]), version, index, bool(offset["isStartingVersion"]))

    @classmethod
    def read(cls, line: str) -> Position | None:
        """Return the position in a line of Spark's offset log; None where it is not a Delta table's."""
        try:
            offset = json.loads(line)
        except ValueError:
            return None
        # The offset of a Kafka source has topics as its keys, which may have any name, but their values are objects.
        is_delta = isinstance(offset, dict) and offset.keys() >= _FIELDS
        return cls.of(offset) if is_delta and isinstance(offset["reservoirVersion"], int) else None

    def as_offset(self) -> dict[str, Any]:
        """Return the position as Delta's source for Spark writes it."""
        return {
            "sourceVersion": 1,
            "reservoirId": self.table_id,
            "reservoirVersion": self.version,
            "index": self.index,
            "isStartingVersion": self.in_snapshot,
        }

    @property
    def is_first(self) -> bool:
        """Whether the stream has not chosen its snapshot yet (``TableStream.first``)."""
        return self.version < 0

    @property
    def is_within(self) -> bool:
        """Whether it is inside a snapshot or a commit, some of whose files may be unread."""
        return self.in_snapshot or self.index >= 0

    @property
    def last_version(self) -> int:
        """The last version of which something was read."""
        return self.version if self.is_within else self.version - 1

    @property
    def begins_snapshot(self) -> bool:
        """Whether it is before the first file of a snapshot."""
        return self.in_snapshot and self.index < 0


class Limits(NamedTuple):
    """The largest number of files and of bytes of a batch, None for no limit.

    A batch has one file, or the change files of one commit, in any case.
    """

    files: int | None = 1_000
    size: int | None = None


class StreamFile(NamedTuple):
    """A file of a stream: one whose rows were added or removed, or one of a change feed.

    ``committed_at`` is the time of its version in epoch milliseconds, -1 in a stream that is not one of changes.
    ``deleted`` has a bit for each row, beginning with the lowest bit of the first byte; the bit of a deleted row is
    set. Rows after the last bit are not deleted. It is None where no row is.
    """

    kind: FileKind
    file: DataFile
    version: int
    committed_at: int = -1
    deleted: bytes | None = None


class _Entry(NamedTuple):
    """A file of a version, with its number in that version; ``file`` is None for a version without files."""

    version: int
    number: int
    file: StreamFile | None
    is_last: bool


class Columns(NamedTuple):
    """A table's columns.

    ``types`` are their types as JSON by their names; ``partition_by`` are those by which the table is partitioned.
    ``stored`` has, for each column, its name and its type in the files, where columns and the fields of structs may
    have other names (column mapping).
    """

    types: Mapping[str, str]
    partition_by: tuple[str, ...]
    stored: Mapping[str, tuple[str, str]]

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Columns:
        """Return the columns in a ``metaData`` action.

        >>> schema = '{"type": "struct", "fields": [{"name": "day", "type": "date"}]}'
        >>> Columns.of({"schemaString": schema, "partitionColumns": ["day"]})
        Columns(types={'day': '"date"'}, partition_by=('day',), stored={'day': ('day', '"date"')})
        """
        fields = json.loads(metadata.get("schemaString") or '{"fields": []}')["fields"]
        is_mapped = _mapping_mode(metadata) != "none"
        types = {field["name"]: json.dumps(_bare(field["type"])) for field in fields}
        stored = {
            field["name"]: (_stored_name(field, is_mapped), json.dumps(_bare(field["type"], is_mapped=is_mapped)))
            for field in fields
        }
        return cls(types, tuple(metadata.get("partitionColumns") or ()), stored)

    def partition_values(self, file: DataFile) -> dict[str, str | None]:
        """Return a file's values of the columns by which the table is partitioned."""
        names = {stored: name for name, (stored, _) in self.stored.items()}
        # Spark's writer of Delta tables writes a null as an empty text, too.
        return {names.get(name, name): value or None for name, value in file.partition_values.items()}

    def misfit(self, before: Columns, *, exactly: bool = False) -> str | None:
        """Return why rows with the columns ``before`` can't be read with these columns; None if they can.

        A column that was dropped since is not read, and one that was added since is null. Both at once may be a
        renaming, so that is a reason. With ``exactly``, one of them alone is a reason, too.
        """
        if self.partition_by != before.partition_by:
            was, are = (", ".join(each.partition_by) or "none" for each in (before, self))
            return f"its partition columns have changed from {was} to {are}"
        dropped = [*_unlike(_as_type(before), _as_type(self))]
        added = [*_unlike(_as_type(self), _as_type(before))]
        changed = [name for name in dropped if name in added]
        if changed:
            return f"the column {changed[0]!r} has another type, or another name in its files"
        if dropped and added:
            return f"the column {dropped[0]!r} was dropped and {added[0]!r} was added, perhaps as its new name"
        if not exactly or not (dropped or added):
            return None
        return f"the column {(dropped or added)[0]!r} was {'dropped' if dropped else 'added'}"


_Type: TypeAlias = "tuple[Any, Any]"
"""A type or a list of fields in its JSON form: with the table's names, and with the files' names."""


def _as_type(columns: Columns) -> _Type:
    """Return columns as the fields of a type."""
    own = [{"name": name, "type": json.loads(dtype)} for name, dtype in columns.types.items()]
    stored = (columns.stored[name] for name in columns.types)
    return own, [{"name": name, "type": json.loads(dtype)} for name, dtype in stored]


def _unlike(one: _Type, other: _Type, name: str = "") -> Iterator[str]:
    """Yield the fields of a type that another one lacks, or has with another type or under another name in files."""
    if isinstance(one[0], list) and isinstance(other[0], list):
        others = _by_names(other)
        for names, inner in _by_names(one).items():
            path = f"{name}.{names[0]}" if name else names[0]
            yield from _unlike(inner, others[names], path) if names in others else (path,)
    elif isinstance(one[0], dict) and isinstance(other[0], dict) and one[0].keys() == other[0].keys():
        for part in sorted(one[0].keys() - _NULLABLE):
            yield from _unlike((one[0][part], one[1][part]), (other[0][part], other[1][part]), name)
    elif one != other:
        yield name


def _by_names(fields: _Type) -> dict[tuple[str, str], _Type]:
    return {
        (field["name"], stored["name"]): (field["type"], stored["type"]) for field, stored in zip(*fields, strict=True)
    }


def _mapping_mode(metadata: Mapping[str, Any]) -> str:
    return str(dict(metadata.get("configuration") or {}).get(_MAPPING, "none")).lower()


def _stored_name(field: Mapping[str, Any], is_mapped: bool) -> str:
    name = (field.get("metadata") or {}).get(_MAPPED_NAME) if is_mapped else None
    return str(name or field["name"])


def _bare(dtype: Any, *, is_mapped: bool = False) -> Any:
    """Return a type in its JSON form without the metadata of fields, with the files' names where it ``is_mapped``."""
    if isinstance(dtype, list):
        return [
            {
                **field,
                "name": _stored_name(field, is_mapped),
                "type": _bare(field["type"], is_mapped=is_mapped),
                "metadata": {},
            }
            for field in dtype
        ]
    if not isinstance(dtype, dict):
        return dtype
    parts = ("fields", "elementType", "keyType", "valueType")
    return {name: _bare(part, is_mapped=is_mapped) if name in parts else part for name, part in dtype.items()}


def why_unreadable(protocol: Protocol, metadata: Mapping[str, Any], *, of_changes: bool = False) -> str | None:
    """Return why a table's rows, or with ``of_changes`` those of its change feed, can't be read from its files alone.

    >>> from cojoin.delta.actions import Protocol
    >>> protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["typeWidening"]}
    >>> why_unreadable(Protocol.of(protocol), {})
    "its feature 'typeWidening'"
    """
    mode = _mapping_mode(metadata)
    if mode not in ("none", "name"):
        return f"its column mapping by {mode}"
    if protocol.reader > _MOST_READER:
        return f"its reader protocol {protocol.reader}"
    # The changes of a commit may be the differences between two deletion vectors.
    readable = _READABLE_FEATURES - ({"deletionVectors"} if of_changes else set())
    unread = sorted(protocol.reader_features - readable)
    return f"its feature {unread[0]!r}" if unread else None


def rows_removed(path: str, version: int | str, *, only_deletes: bool) -> str:
    """Return the message about a commit that updates or deletes rows, which a stream of a table can't read."""
    rows, table = "deleted rows" if only_deletes else "updated or deleted rows", without_login(path)
    return (
        f"version {version} of the Delta table {table} has {rows}, and a stream of a table reads only what is appended "
        f"to it. To join with the rows as they change, start a new query, with its own checkpoint, that reads the "
        f"table's changes: cojoin.sources.delta({table!r}, changes=True) as the right input of temporal_join, where an "
        f"updated row is a new version and a deleted row ends its key's version; the table needs "
        f"'delta.enableChangeDataFeed'. To skip all commits that update or delete rows, give the source Delta's "
        f"option: options={{'skipChangeCommits': 'true'}}"
    )


def columns_changed(where: str, why: str | None = None) -> str:
    """Return the message about a table whose columns have changed; ``where`` is empty or names the version."""
    shown = "" if why is None else f" ({why})"
    return (
        f"the columns of a table that is read as a stream have changed{where} since the query was built{shown}: make "
        f"the inputs and connect them again; where columns were added or made wider, the query continues with a new "
        f"checkpoint and restore_from= this one; if this comes again, start a new query with its own checkpoint"
    )


class TableStream:
    """The stream of a table, computed from its log.

    ``columns`` are those with which its rows are read; a commit that changes the table's columns is an error.
    ``removals`` is None for the stream of the table's changes. Without ``deleted_rows``, a file with a deletion vector
    is an error.
    """

    def __init__(
        self,
        log: TableLog,
        table_id: str,
        columns: Columns,
        removals: Removals | None = "fail",
        deleted_rows: DeletedRows = lambda _version, _paths: {},
    ) -> None:
        self._log, self._table_id, self._columns, self._removals = log, table_id, columns, removals
        self._deleted_rows = deleted_rows
        self._newest: int | None = None
        # The newest version when reading began, whose columns are the stream's.
        self._connected: int | None = None
        self._snapshot: tuple[int, list[StreamFile]] = (-1, [])
        self._commits: dict[int, list[StreamFile]] = {}
        # The in-commit timestamps of commits, and the times of their files in the log, None for a file that is gone.
        self._own_times: dict[int, Any] = {}
        self._file_times: dict[int, int | None] = {}

    def first(self) -> Position:
        """Return the position of a stream of the whole table that has not chosen its snapshot yet."""
        return Position(self._table_id, -1, -1, in_snapshot=True)

    def newest(self) -> int:
        """Return the table's newest version; raise ``QueryFailedError`` where it was made again or is gone."""
        table = self._log.newest(waits=True)
        why, cure = None, ""
        if table is None or table.table_id != self._table_id:
            why = "it does not exist any more" if table is None else "it was made again, as another table"
        elif self._log.lost is not None:
            why = (
                f"its version {self._log.lost} is not the one that the query has read: the table was put back from a "
                f"backup, or another writer replaced the commit. If nothing is done, the next start continues after it"
            )
            cure = ", or put back what it had up to that version"
        if table is None or why is not None:
            msg = f"Delta table {self._named}: {why}; start a new query with its own checkpoint{cure}"
            raise QueryFailedError(msg)
        self._newest = table.version
        return table.version

    def next(self, begin: Position, until: int, limits: Limits) -> Position:
        """Return the end of the batch that begins at a position; the position itself where there is nothing to read.

        ``until`` is the last version that it may read. A batch that begins a snapshot reads nothing after it, so that
        its end shows the snapshot's version.
        """
        self._check_position(begin)
        begun = replace(begin, version=until) if begin.is_first else begin
        self._check_begin(begun.version)
        end, files, size = begin, 0, 0
        for entry in self._entries(begun, begun.version if begun.begins_snapshot else until):
            of_feed = entry.file is not None and entry.file.kind == "cdc"
            if entry.file is not None and not (of_feed and entry.number):
                # As in Delta, a commit's change files are taken together, and only if all fit into the bytes.
                # Of other files, the last one may go beyond the bytes.
                taken = self._of_commit(entry.version) if of_feed else [entry.file]
                taken_size = sum(each.file.size for each in taken)
                is_full = (limits.files is not None and files + len(taken) > limits.files) or (
                    limits.size is not None and size + (taken_size if of_feed else 1) > limits.size
                )
                if files and is_full:
                    break
                files, size = files + len(taken), size + taken_size
            end = self._after(begun, entry)
        return end

    def files(self, begin: Position, end: Position) -> list[StreamFile]:
        """Return the files between two positions, in order."""
        for position in (begin, end):
            self._check_position(position)
        # Where Spark repeats a batch of an earlier start, ``newest`` was not called before.
        newest = self.newest() if self._newest is None else self._newest
        self._newest = None
        self.check_reached(end, newest)
        if begin.begins_snapshot:
            # Another start may have planned the batch, with a snapshot of another version.
            begin = replace(begin, version=end.version if end.in_snapshot else end.version - 1)
        until = end.version if end.index >= 0 else end.version - 1
        self._check_begin(begin.version)
        files: list[StreamFile] = []
        for entry in self._entries(begin, until):
            if end.index >= 0 and (entry.version, entry.number) > (end.version, end.index):
                break
            if entry.file is not None:
                files.append(entry.file)
        self._forget(begin)
        if self._removals is not None:
            return files
        times = self._committed_at(sorted({each.version for each in files}))
        return [each._replace(committed_at=times[each.version]) for each in files]

    def check_first(self, position: Position, newest: int) -> None:
        """Raise ``QueryFailedError`` where a query that has read nothing begins after the next version."""
        if position.version > newest + 1:
            msg = (
                f"Delta table {self._named}: the query begins with version {position.version}, and the newest version "
                f"is {newest}; give the source a startingVersion= that the table has, or the next one"
            )
            raise QueryFailedError(msg)

    def check_reached(self, position: Position, newest: int) -> None:
        """Raise ``QueryFailedError`` where the last version that was read is later than the table's newest."""
        if position.last_version > newest:
            msg = (
                f"Delta table {self._named}: the query has read its version {position.last_version}, and the newest "
                f"version is {newest}: it was put back from a backup; start a new query with its own checkpoint, or "
                f"put the later versions back"
            )
            raise QueryFailedError(msg)

    def _check_id(self, table_id: str) -> None:
        """Raise ``QueryFailedError`` where the id is that of another table, which was in the same folder."""
        if table_id != self._table_id:
            msg = (
                f"Delta table {self._named}: a part of what the query reads is of a table with the id {table_id}, and "
                f"the present table has the id {self._table_id}: it was made again, as another table; start a new "
                f"query with its own checkpoint, and with startingVersion= at a version of this table, or put the "
                f"former table back"
            )
            raise QueryFailedError(msg)

    def _check_position(self, position: Position) -> None:
        """Raise ``QueryFailedError`` where a position is of another table, or one that only Delta's source writes."""
        self._check_id(position.table_id)
        if position.index < -1:
            msg = (
                f"Delta table {self._named}: the query has stopped at a change of its columns in version "
                f"{position.version}, as Delta's source does with schemaTrackingLocation; give the source this option "
                f"again, or start a new query with its own checkpoint"
            )
            raise QueryFailedError(msg)

    def _check_begin(self, version: int) -> None:
        """Check once that the table still has the stream's columns, and had them at the first version that is read.

        The log is read only where the columns or the protocol may have changed since that version.
        """
        if self._connected is not None:
            return
        newest = self._log.last_read or self._log.at(self.newest())
        why = Columns.of(newest.metadata).misfit(self._columns, exactly=True)
        if why is not None:
            msg = (
                f"Delta table {self._named}: its columns have changed by version {newest.version}, since the inputs "
                f"were connected ({why}): make the inputs and connect them again"
            )
            raise QueryFailedError(msg)
        table = newest if version >= newest.unchanged_since else self._at_begin(version, newest)
        if table is not None:
            self._check_fit(version, table.metadata)
            self._check_readable(table)
        self._connected = newest.version

    def _at_begin(self, version: int, newest: TableVersion) -> TableVersion | None:
        """Return the table at the first version that is read; None where its log is gone, unless columns are mapped."""
        try:
            if newest.version - version <= _FEW_COMMITS:
                later = (self._log.commit(each, has_files=False) for each in range(version + 1, newest.version + 1))
                if all(commit.metadata is None and commit.protocol is None for commit in later):
                    return newest
            return self._log.at(version)
        except UnreadableLogError as error:
            if "columnMapping" not in newest.protocol.reader_features:
                return None
            msg = f"{error}: the columns of version {version} may have had other names; {self._new_query}"
            raise QueryFailedError(msg) from error

    @staticmethod
    def _after(begin: Position, entry: _Entry) -> Position:
        if entry.is_last:
            return Position(begin.table_id, entry.version + 1)
        in_snapshot = begin.in_snapshot and entry.version == begin.version
        return Position(begin.table_id, entry.version, entry.number, in_snapshot)

    def _entries(self, begin: Position, until: int) -> Iterator[_Entry]:
        """Yield the files after a position, up to and including those of a version."""
        version, index = begin.version, begin.index
        if begin.in_snapshot:
            yield from _numbered(version, self.snapshot(version), index)
            version, index = version + 1, -1
        for later in range(version, until + 1):
            yield from _numbered(later, self._of_commit(later), index if later == version else -1)

    def snapshot(self, version: int) -> list[StreamFile]:
        """Return the files of a version, in order."""
        if self._snapshot[0] != version:
            files = [StreamFile("add", each, version) for each in self._log.files(version)]
            self._snapshot = version, self._with_deleted_rows(version, files)
        return self._snapshot[1]

    def _of_commit(self, version: int) -> list[StreamFile]:
        if version not in self._commits:
            commit = self._read(version)
            self._check_columns(commit)
            files = self._added(commit) if self._removals is not None else self._changes(commit)
            self._commits[version] = self._with_deleted_rows(version, files)
            self._own_times[version] = commit.info.get("inCommitTimestamp")
        return self._commits[version]

    def _read(self, version: int) -> Commit:
        try:
            return self._log.commit(version)
        except UnreadableLogError as error:
            first = self._log.earliest()
            if first is None or version >= first:
                raise
            cure = "start a new query with its own checkpoint"
            if self._removals is not None:
                cure += ", or restore this one with allow_data_loss=True, which leaves the commits out"
            msg = f"{error}; {cure}"
            raise QueryFailedError(msg) from error

    def _forget(self, begin: Position) -> None:
        if not begin.in_snapshot:
            self._snapshot = -1, []
        first = begin.version
        self._commits = {version: files for version, files in self._commits.items() if version >= first}
        self._own_times = {version: time for version, time in self._own_times.items() if version >= first}
        looked_at = self._file_times.items()
        self._file_times = {version: time for version, time in looked_at if version >= first - _LOOK_BACK}

    def _added(self, commit: Commit) -> list[StreamFile]:
        """Return the files that a commit adds with their rows, or raise an error where it removes rows."""
        added = [StreamFile("add", file, commit.version) for file in commit.added if file.changes_data]
        if not any(file.changes_data for file in commit.removed) or self._removals == "ignore_changes":
            return added
        if self._removals == "skip_commit" or (self._removals == "ignore_deletes" and not added):
            return []
        raise QueryFailedError(rows_removed(self._log.path, commit.version, only_deletes=not added))

    def _changes(self, commit: Commit) -> list[StreamFile]:
        """Return the files with a commit's changes, or raise an error where they were not recorded or can't be read."""
        if commit.metadata is not None and not records_changes(commit.metadata):
            msg = (
                f"Delta table {self._named}: since version {commit.version} it does not record its changes; start a "
                f"new query with its own checkpoint, once {FEED} is true again"
            )
            raise QueryFailedError(msg)
        if commit.changes:
            return [StreamFile("cdc", file, commit.version) for file in commit.changes]
        if _changed_no_row(commit):
            return []
        files = [StreamFile(kind, file, commit.version) for kind, file in commit.files if file.changes_data]
        for kind, file, *_ in files:
            why = None
            if file.deletion_vector:
                why = f"{file.path} has a deletion vector, whose changes need {_DELTAS_SOURCE}"
            elif kind == "remove" and (not file.size or len(file.partition_values) < len(self._columns.partition_by)):
                why = f"the removal of {file.path} lacks the file's size or its partition's values; {self._new_query}"
            if why is not None:
                msg = f"Delta table {self._named}: the changes of version {commit.version} can't be read: {why}"
                raise QueryFailedError(msg)
        return files

    def _committed_at(self, versions: Sequence[int]) -> dict[int, int]:
        """Return the times of commits (see the module); commits that are gone from the log do not count."""
        for version in versions:
            if version not in self._own_times:
                # It is the snapshot's, whose commit is not read otherwise.
                self._own_times[version] = self._log.commit(version, has_files=False).info.get("inCommitTimestamp")
        times = {each: int(own) for each in versions if (own := self._own_times[each]) is not None}
        of_files = [each for each in versions if each not in times]
        if of_files:
            needed = range(max(0, of_files[0] - _LOOK_BACK), of_files[-1] + 1)
            unknown = [each for each in needed if each not in self._file_times]
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                self._file_times.update(zip(unknown, threads.map(self._log.written_at, unknown), strict=True))
        for version in of_files:
            before = range(max(0, version - _LOOK_BACK), version + 1)
            behind = [time + version - each for each in before if (time := self._file_times[each]) is not None]
            if not behind:
                # The commit's file, and those before it, are gone since they were read: this raises the error.
                self._log.commit(version)
            times[version] = max(behind)
        return times

    def _check_columns(self, commit: Commit) -> None:
        if commit.metadata is not None and self._removals is not None:
            self._check_id(commit.metadata.get("id", self._table_id))
        if commit.metadata is not None:
            self._check_fit(commit.version, commit.metadata)
        if commit.protocol is not None or commit.metadata is not None:
            self._check_readable(self._log.at(commit.version))

    def _check_readable(self, table: TableVersion) -> None:
        why = why_unreadable(table.protocol, table.metadata, of_changes=self._removals is None)
        if why is not None:
            msg = f"Delta table {self._named}: since version {table.version} {why} needs {_DELTAS_SOURCE}"
            raise QueryFailedError(msg)

    def _check_fit(self, version: int, metadata: Mapping[str, Any]) -> None:
        """Raise ``QueryFailedError`` unless the stream's columns read the rows of a version with this metadata."""
        columns = Columns.of(metadata)
        if self._connected is None or version <= self._connected:
            why = self._columns.misfit(columns)
            msg = f"since version {version}, which the query reads, {why}; {self._new_query}"
        else:
            # Later rows would silently have nulls in a column that was dropped.
            why = columns.misfit(self._columns, exactly=True)
            msg = columns_changed(f" in version {version}", why)
        if why is not None:
            msg = f"Delta table {self._named}: {msg}"
            raise QueryFailedError(msg)

    @property
    def _new_query(self) -> str:
        """The advice to begin with the table's present rows."""
        which = "" if self._removals is None else ", without startingVersion= or with that of a later version"
        return f"start a new query with its own checkpoint{which}"

    def _with_deleted_rows(self, version: int, files: list[StreamFile]) -> list[StreamFile]:
        """Return files with their deleted rows."""
        paths = [each.file.path for each in files if each.file.deletion_vector]
        if not paths:
            return files
        deleted = self._deleted_rows(version, paths)
        lost = [path for path in paths if path not in deleted]
        if lost:
            msg = (
                f"Delta table {self._named}: the deletion vector of {lost[0]} in version {version} can't be read; that "
                f"needs {_DELTAS_SOURCE}"
            )
            raise QueryFailedError(msg)
        return [each._replace(deleted=deleted[each.file.path] if each.file.deletion_vector else None) for each in files]

    @property
    def _named(self) -> str:
        return without_login(self._log.path)


def records_changes(metadata: Mapping[str, Any]) -> bool:
    """Return whether a table records its changes, by its ``metaData`` action."""
    return str(dict(metadata.get("configuration") or {}).get(FEED, "false")).lower() == "true"


def _changed_no_row(commit: Commit) -> bool:
    """Return whether a MERGE that has rewritten files has changed no row, as its metrics show."""
    metrics = commit.info.get("operationMetrics") or {}
    counts = [metrics.get(f"numTargetRows{each}") for each in ("Inserted", "Updated", "Deleted")]
    return commit.info.get("operation") == "MERGE" and all(each == "0" for each in counts)


def _numbered(version: int, files: list[StreamFile], after: int) -> Iterator[_Entry]:
    if not files:
        yield _Entry(version, -1, None, is_last=True)
    last = len(files) - 1
    for number in range(after + 1, len(files)):
        yield _Entry(version, number, files[number], is_last=number == last)
