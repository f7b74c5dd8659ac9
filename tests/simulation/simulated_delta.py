"""Delta tables on a simulated disk: a log of commits with transaction ids, and conflicts found at the commit.

The log has Delta's own files and actions, so the code that reads commits reads these. A commit creates the next
version's file where there is none. Where another commit was first, the transaction fails if that commit wrote an
application's version that this one has read, or changed the metadata, or touched the same partition; else it takes the
version after it, as Delta does.
"""

from __future__ import annotations

import functools
import json
import re
import uuid
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from cojoin.delta_jvm.table_version import TableVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cojoin.delta_jvm.delta_files import WrittenFile
    from tests.simulation.simulated_disk import Disk

__all__ = ["NO_SEGMENT", "DeltaLog", "DeltaTables", "Row", "active_files", "commit", "commits_of", "rows_in"]

_COMMIT = re.compile(r"(\d{20})\.json")
_PARTITION = re.compile(r"batch_id = (\d+) AND segment (?:= (\d+)|IS NULL)")
NO_SEGMENT = "__HIVE_DEFAULT_PARTITION__"


@functools.lru_cache(maxsize=4096)
def _actions(text: bytes) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(line) for line in text.splitlines())


def commits_of(disk: Disk, table: str, until: int | None = None) -> list[tuple[dict[str, Any], ...]]:
    """Return the actions of each commit of a table, oldest first; nothing goes wrong here."""
    found = []
    version = 0
    while until is None or version <= until:
        file = disk.files.get(f"{table}/_delta_log/{version:020d}.json")
        if file is None:
            break
        found.append(_actions(file.content))
        version += 1
    return found


def active_files(disk: Disk, table: str, until: int | None = None) -> dict[str, dict[str, Any]]:
    """Return the ``add`` actions of a table's files, by their names."""
    active: dict[str, dict[str, Any]] = {}
    for commit in commits_of(disk, table, until):
        for action in commit:
            if "remove" in action:
                active.pop(action["remove"]["path"], None)
        for action in commit:
            if "add" in action:
                active[action["add"]["path"]] = action["add"]
    return active


def rows_in(disk: Disk, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table as a reader finds them.

    Raises:
        FileNotFoundError: A file that the log names is gone.
    """
    found: list[dict[str, Any]] = []
    for name in active_files(disk, table):
        file = disk.files.get(f"{table}/{name}")
        if file is None:
            msg = f"{table}/{name} is in the table's log and not there"
            raise FileNotFoundError(msg)
        found += json.loads(file.content)
    return found


class _Text:
    """A Java object that has a text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def toString(self) -> str:  # noqa: N802 - Java's name
        return self._text

    def mkString(self, _: str) -> str:  # noqa: N802 - Scala's name
        return self._text


class _Metadata:
    def __init__(self, table_id: str) -> None:
        self._id = table_id

    def id(self) -> str:
        return self._id

    def partitionColumns(self) -> _Text:  # noqa: N802
        return _Text("")


class _Version:
    """A version of a table: Delta's snapshot."""

    def __init__(self, disk: Disk, table: str, version: int) -> None:
        self._version = version
        self.table_id, self.applications = "", {}
        for commit in commits_of(disk, table, version):
            for action in commit:
                if "metaData" in action:
                    self.table_id = action["metaData"]["id"]
                if "txn" in action:
                    self.applications[action["txn"]["appId"]] = action["txn"]["version"]

    def version(self) -> int:
        return self._version

    def metadata(self) -> _Metadata:
        return _Metadata(self.table_id)


class _Read:
    """The applications whose version a transaction has read."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def __getattr__(self, name: str) -> Callable[[str], None]:
        assert name == "$plus$eq", name
        return self.ids.add


class _Transaction:
    def __init__(self, log: DeltaLog, version: _Version) -> None:
        self.log, self._version, self._read = log, version, _Read()
        self.table_id = version.table_id
        self.touches: set[int] = set()

    def readVersion(self) -> int:  # noqa: N802
        return self._version.version()

    def metadata(self) -> _Metadata:
        return _Metadata(self.table_id)

    def txnVersion(self, app_id: str) -> int:  # noqa: N802
        self._read.ids.add(app_id)
        return int(self._version.applications.get(app_id, -1))

    def readTxn(self) -> _Read:  # noqa: N802
        return self._read

    def commit(self, actions: Sequence[Mapping[str, Any]]) -> int:
        """Write the next version that is free, unless a commit since the read is in conflict."""
        disk, table = self.log.disk, self.log.table
        content = "\n".join(json.dumps(each) for each in actions).encode()
        version = self.readVersion() + 1
        while True:
            path = f"{table}/_delta_log/{version:020d}.json"

            def effect(path: str = path) -> bool:
                if path in disk.files:
                    return False
                disk.put(path, content)
                disk.hand_overs.note_commit(table, path, actions)
                return True

            if disk.operate("delta commit", path, effect, error=Py4JError, torn=lambda p=path: disk.torn_at(p)):
                return version
            self._compare(_actions(disk.files[path].content))
            version += 1

    def _compare(self, winner: Sequence[Mapping[str, Any]]) -> None:
        written = {action["txn"]["appId"] for action in winner if "txn" in action}
        if written & self._read.ids:
            msg = "ConcurrentTransactionException: another commit has the same application"
            raise Py4JError(msg)
        if any("metaData" in action for action in winner):
            msg = "simulated fault: MetadataChangedException: the table was created meanwhile"
            raise Py4JError(msg)
        theirs = {_batch(action) for action in winner if "add" in action or "remove" in action}
        if self.touches & theirs:
            msg = "simulated fault: ConcurrentAppendException: files were added to the same partition"
            raise Py4JError(msg)


def _batch(action: Mapping[str, Any]) -> int:
    path = action["add" if "add" in action else "remove"]["path"]
    found = re.match(r"batch_id=(\d+)/", path)
    return -1 if found is None else int(found[1])


class DeltaLog:
    """Delta's log of one table, as the code reaches it through the JVM."""

    def __init__(self, disk: Disk, table: str) -> None:
        self.disk, self.table = disk, table.rstrip("/")

    def _newest(self) -> int:
        directory = f"{self.table}/_delta_log"

        def found() -> int:
            versions = [int(each[1]) for name in self.disk.below(directory) if (each := _COMMIT.fullmatch(name))]
            return max(versions, default=-1)

        return self.disk.operate("delta look", directory, found, error=Py4JError)

    def tableExists(self) -> bool:  # noqa: N802
        return self._newest() >= 0

    def unsafeVolatileSnapshot(self) -> _Version:  # noqa: N802
        return _Version(self.disk, self.table, self._newest())

    def startTransaction(self) -> _Transaction:  # noqa: N802
        return _Transaction(self, _Version(self.disk, self.table, self._newest()))

    def dataPath(self) -> _Text:  # noqa: N802
        return _Text(self.table)

    def logPath(self) -> _Text:  # noqa: N802
        return _Text(f"{self.table}/_delta_log")


class Table(TableVersion):
    """A table at its newest version."""

    def __init__(self, location: str, found: _Version) -> None:
        self._found, self.path = found, location.rstrip("/")
        self.version, self.table_id = found.version(), found.table_id

    def partition_columns(self) -> tuple[str, ...]:
        return ()

    def schema_text(self) -> str:
        return ""  # rows are numbers here, without columns

    def transaction(self, app_id: str) -> int | None:
        return self._found.applications.get(app_id)


class Row:
    """A row as Spark collects it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    def asDict(self) -> dict[str, Any]:  # noqa: N802
        return dict(self.__dict__)


class DeltaTables:
    """The functions of ``delta_jvm.delta_files`` and of ``delta_jvm.table_version``, on the disk of the session."""

    @staticmethod
    def table_log(session: Any, location: str) -> DeltaLog:
        return DeltaLog(session.disk, location)

    @staticmethod
    def read_table(session: Any, location: str, *, again: bool = True) -> Table | None:
        del again
        found = DeltaLog(session.disk, location).unsafeVolatileSnapshot()
        return None if found.version() < 0 else Table(location, found)

    @staticmethod
    def append_files(
        session: Any,
        transaction: _Transaction,
        schema: Any,
        files: Sequence[WrittenFile],
        *,
        applications: Mapping[str, int],
        query_id: str,
        metadata: str | None = None,
        former: Any = None,
    ) -> int:
        del session, schema, former
        new: list[dict[str, Any]] = []
        if transaction.readVersion() < 0:
            transaction.table_id = str(uuid.uuid4())
            new = [{"metaData": {"id": transaction.table_id}}]
        added = [{"add": {"path": each.name, "partitionValues": {}, "dataChange": True}} for each in files]
        return commit(transaction, applications, query_id, metadata, [*new, *added])

    @staticmethod
    def commit_applications(
        session: Any,
        transaction: _Transaction,
        applications: Mapping[str, int],
        *,
        query_id: str,
        metadata: str | None = None,
        added: Sequence[str] = (),
    ) -> int:
        del session
        return commit(transaction, applications, query_id, metadata, [json.loads(each) for each in added])

    @staticmethod
    def partition_files(session: Any, transaction: _Transaction, condition: str) -> dict[str, str]:
        wanted = {
            f"batch_id={batch}/segment={segment or NO_SEGMENT}/" for batch, segment in _PARTITION.findall(condition)
        }
        active = active_files(session.disk, transaction.log.table, transaction.readVersion())
        gone = [name for name in active if name.startswith(tuple(wanted))]
        actions = {name: {"remove": {"path": name}} for name in gone}
        transaction.touches = {_batch(each) for each in actions.values()}
        return {name: json.dumps(action) for name, action in actions.items()}

    @staticmethod
    def find_commit(session: Any, location: str, app_id: str, batch_id: int, *, after: int = -1) -> Any:
        del after
        for commit in commits_of(session.disk, location.rstrip("/")):
            if any(each.get("txn") == {"appId": app_id, "version": batch_id} for each in commit):
                told = next(each["commitInfo"] for each in commit if "commitInfo" in each)
                return Row({"metadata": told.get("userMetadata"), "rows": None})
        return None


def commit(
    transaction: _Transaction,
    applications: Mapping[str, int],
    query_id: str,
    metadata: str | None,
    actions: Sequence[Mapping[str, Any]],
) -> int:
    told = {"commitInfo": {"queryId": query_id, "userMetadata": metadata}}
    seen = [{"txn": {"appId": app_id, "version": version}} for app_id, version in applications.items()]
    return transaction.commit([told, *seen, *actions])
