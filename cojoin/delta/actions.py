"""The actions of a commit in a Delta table's log, by the published protocol.

A commit is a file of JSON lines, one action each. The paths of files are URL-encoded in it, and are decoded. Actions
that cojoin does not use, such as domain metadata, are skipped. (Delta's protocol, "Actions".)
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

FileKind: TypeAlias = Literal["add", "remove", "cdc"]
"""The kinds of actions on files: a table's own, added or removed, and those of its change feed."""

_IMPLIED_BY_WRITER = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
"""The features that each older writer protocol adds; since version 7, a protocol lists its features itself."""

_OUTSIDE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
"""The beginning of an encoded path that is not below the table's folder: a root, or the scheme of a URL."""

_NAMED_WRITER_FEATURES = 7


@dataclass(frozen=True)
class Protocol:
    """A table's protocol: its reader and writer versions, and its features, listed or implied by the writer version.

    ``reader_features`` are those that a reader must support, too; a protocol that does not list features has none.
    """

    reader: int
    writer: int
    features: frozenset[str]
    reader_features: frozenset[str] = frozenset()

    @classmethod
    def of(cls, action: Mapping[str, Any]) -> Protocol:
        """Return the protocol of a ``protocol`` action.

        >>> sorted(Protocol.of({"minReaderVersion": 1, "minWriterVersion": 3}).features)
        ['appendOnly', 'checkConstraints', 'invariants']
        """
        reader, writer = int(action["minReaderVersion"]), int(action["minWriterVersion"])
        of_readers = frozenset(action.get("readerFeatures") or ())
        named = {*of_readers, *(action.get("writerFeatures") or ())}
        if writer < _NAMED_WRITER_FEATURES:
            named |= {name for version, names in _IMPLIED_BY_WRITER.items() if version <= writer for name in names}
        return cls(reader, writer, frozenset(named), of_readers)


@dataclass(frozen=True)
class DataFile:
    """A file that a commit adds or removes, or that has its changes.

    ``path`` is below the table's folder, decoded; a URL where the file is elsewhere. ``size`` is in bytes, 0 where a
    removal lacks it; ``modified`` is when it was written or removed, in epoch milliseconds, 0 where unknown. The
    statistics are JSON; a partition value is a text, None for a null. ``changes_data`` is False for compaction.
    ``deletion_vector`` has its deleted rows, as the protocol describes it. ``logged_path`` is the path as the log has
    it, encoded; empty for a file that was not read from a log.
    """

    path: str
    size: int
    modified: int = 0
    statistics: str | None = None
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    changes_data: bool = True
    deletion_vector: Mapping[str, Any] | None = None
    logged_path: str = field(default="", compare=False)

    @classmethod
    def of(cls, action: Mapping[str, Any]) -> DataFile:
        """Return the file of an ``add``, ``remove`` or ``cdc`` action."""
        # A checkpoint has maps as lists of pairs.
        values = dict(action.get("partitionValues") or {})
        return cls(
            unquote(action["path"]),
            int(action.get("size") or 0),
            int(action.get("modificationTime") or action.get("deletionTimestamp") or 0),
            action.get("stats"),
            values,
            bool(action.get("dataChange", True)),
            action.get("deletionVector"),
            action["path"],
        )

    @property
    def is_outside(self) -> bool:
        """Whether it is not in the table's folder, as those of a shallow clone, which are another table's."""
        return _OUTSIDE.match(self.logged_path or self.path) is not None

    @property
    def rows(self) -> int | None:
        """The number of rows, deleted ones among them; None where the statistics lack it."""
        number = self.counted().get("numRecords")
        return None if number is None else int(number)

    def counted(self) -> dict[str, Any]:
        """Return the statistics; empty where it has none."""
        statistics = json.loads(self.statistics) if self.statistics else {}
        return statistics if isinstance(statistics, dict) else {}


@dataclass(frozen=True)
class Commit:
    """One version of a table, with the changes that its commit made.

    ``info`` is ``commitInfo``: the operation, its parameters and metrics, the user metadata; it may be empty.
    ``applications`` has the versions of applications that it wrote, by their ids. ``files`` are those of its actions,
    in their order. ``protocol`` and the ``metaData`` action are None where they stay.
    """

    version: int
    info: Mapping[str, Any]
    applications: Mapping[str, int]
    files: tuple[tuple[FileKind, DataFile], ...]
    protocol: Protocol | None
    metadata: Mapping[str, Any] | None

    @property
    def added(self) -> tuple[DataFile, ...]:
        """The files that it adds to the table."""
        return self._of("add")

    @property
    def removed(self) -> tuple[DataFile, ...]:
        """The files that it removes from the table."""
        return self._of("remove")

    @property
    def changes(self) -> tuple[DataFile, ...]:
        """The files of its change feed; without any, the added and removed files are the change."""
        return self._of("cdc")

    def _of(self, kind: FileKind) -> tuple[DataFile, ...]:
        return tuple(file for each, file in self.files if each == kind)

    @property
    def user_metadata(self) -> str | None:
        """The user metadata (``userMetadata``); None without any."""
        metadata = self.info.get("userMetadata")
        return None if metadata is None else str(metadata)

    @property
    def rows(self) -> int | None:
        """The number of rows that it added, by its operation's metrics; None where they lack it."""
        rows = str((self.info.get("operationMetrics") or {}).get("numOutputRows", ""))
        return int(rows) if rows.isdigit() else None

    @property
    def timestamp(self) -> int | None:
        """The commit's time in epoch milliseconds; None where it has none, or its writer gave it in another form."""
        time = str(self.info.get("inCommitTimestamp", self.info.get("timestamp")))
        return int(time) if time.isdigit() else None


def lines_of(content: bytes) -> list[dict[str, Any]]:
    """Return the actions of a commit's file, or of a checkpoint's in JSON; ``ValueError`` where a line is damaged."""
    actions = [json.loads(line) for line in content.splitlines() if line.strip()]
    if not all(isinstance(each, dict) for each in actions):
        msg = "a line is not a JSON object"
        raise ValueError(msg)
    return actions


def commit_of(version: int, content: bytes) -> Commit:
    """Return a commit by its file's content; ``ValueError``, ``KeyError`` or ``TypeError`` where that is damaged.

    >>> commit_of(3, b'{"txn":{"appId":"a","version":7}}').applications
    {'a': 7}
    """
    actions = lines_of(content)

    def of(kind: str) -> list[Any]:
        return [each[kind] for each in actions if each.get(kind) is not None]

    return Commit(
        version,
        next(iter(of("commitInfo")), {}),
        {str(each["appId"]): int(each["version"]) for each in of("txn")},
        tuple(
            (kind, DataFile.of(action[kind]))
            for action in actions
            for kind in get_args(FileKind)
            if action.get(kind) is not None
        ),
        next((Protocol.of(each) for each in of("protocol")), None),
        next(iter(of("metaData")), None),
    )
