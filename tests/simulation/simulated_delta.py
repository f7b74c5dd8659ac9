"""The log of a Delta table on a simulated disk, and Delta's own transactions, as Spark's writer commits by them.

The log has Delta's own files and actions, so ``TableLog`` and ``SimulatedDeltalakeTable`` read what is committed here.
A commit creates the next version's file where there is none. Where another commit was first, the transaction fails if
that commit wrote an application's version that this one has read, or changed the metadata, or touched files that this
one replaces or removes; else it takes the version after it, as Delta does.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from tests.simulation.simulated_deltalake import actions_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.simulation.simulated_disk import Disk

__all__ = ["COLUMNS", "COMMIT", "Row", "Transaction", "active_files", "commits_of", "rows_in"]

COMMIT = re.compile(r"(.*)/_delta_log/(\d{20})\.json")
"""The path of a commit: its table and its version."""

_NUMBERS = {"batch_id": "long", "segment": "integer"}
COLUMNS = {
    "type": "struct",
    "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _NUMBERS.items()],
}
"""The columns of every table, as its log has them: rows are numbers here, and only partitions need their types."""


def commits_of(disk: Disk, table: str, until: int | None = None) -> list[tuple[dict[str, Any], ...]]:
    """Return the actions of each commit of a table, oldest first; nothing goes wrong here."""
    found = []
    version = 0
    while until is None or version <= until:
        file = disk.files.get(f"{table}/_delta_log/{version:020d}.json")
        if file is None:
            break
        found.append(actions_of(file.content))
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


class Row:
    """A row as Spark collects it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    def asDict(self) -> dict[str, Any]:  # noqa: N802
        return dict(self.__dict__)


class Transaction:
    """A transaction of Delta's on a table's newest version.

    Args:
        disk: The disk.
        table: The table's folder.
        partition_by: The columns by which the table is partitioned where this makes it.

    Attributes:
        touches: The folders, below the table's, of which it replaces or removes all files.
    """

    def __init__(self, disk: Disk, table: str, partition_by: Sequence[str] = ()) -> None:
        self._disk, self.table, self._partition_by = disk, table.rstrip("/"), partition_by
        self._read: set[str] = set()
        self.touches: tuple[str, ...] = ()
        log = f"{self.table}/_delta_log"

        def newest() -> int:
            paths = (COMMIT.fullmatch(f"{log}/{name}") for name in disk.below(log))
            return max((int(each[2]) for each in paths if each), default=-1)

        self._version: int = disk.operate("delta look", log, newest, error=Py4JError)

    def application(self, app_id: str) -> int:
        """Return the newest version of an application; -1 for none. Another commit that writes it is in conflict."""
        self._read.add(app_id)
        versions = [
            int(each["txn"]["version"])
            for commit in commits_of(self._disk, self.table, self._version)
            for each in commit
            if each.get("txn", {}).get("appId") == app_id
        ]
        return versions[-1] if versions else -1

    def replaces(self, batches: set[int]) -> list[dict[str, Any]]:
        """Touch the files that have rows of some batches, and return the other rows of these files."""
        paths = {name: f"{self.table}/{name}" for name in active_files(self._disk, self.table, self._version)}
        found = {name: json.loads(self._disk.files[path].content) for name, path in paths.items()}
        touched = {name: rows for name, rows in found.items() if any(row["batch_id"] in batches for row in rows)}
        self.touches = tuple(touched)
        return [row for rows in touched.values() for row in rows if row["batch_id"] not in batches]

    def removals(self) -> list[dict[str, Any]]:
        """Return the actions that remove the files of the folders that it touches."""
        active = active_files(self._disk, self.table, self._version) if self.touches else {}
        return [
            {"remove": {"path": name, "dataChange": True, "partitionValues": each["partitionValues"]}}
            for name, each in active.items()
            if name.startswith(self.touches)
        ]

    def commit(
        self, applications: Mapping[str, int], metadata: str | None, actions: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write the next version that is free, unless a commit since the read is in conflict."""
        disk = self._disk
        written = [{"txn": {"appId": app_id, "version": version}} for app_id, version in applications.items()]
        made = [] if self._version >= 0 else self._made()
        lines = [{"commitInfo": {"operation": "WRITE", "userMetadata": metadata}}, *made, *written, *actions]
        content = "\n".join(map(json.dumps, lines)).encode()
        version = self._version + 1
        while True:
            path = f"{self.table}/_delta_log/{version:020d}.json"

            def effect(path: str = path) -> bool:
                if path in disk.files:
                    return False
                disk.put(path, content)
                return True

            if disk.operate("delta commit", path, effect, error=Py4JError, torn=lambda p=path: disk.torn_at(p)):
                return
            self._compare(actions_of(disk.files[path].content))
            version += 1

    def _made(self) -> list[dict[str, Any]]:
        metadata = {
            "id": str(uuid.uuid4()),
            "schemaString": json.dumps(COLUMNS),
            "partitionColumns": list(self._partition_by),
            "configuration": {},
        }
        return [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]

    def _compare(self, winner: Sequence[Mapping[str, Any]]) -> None:
        written = {action["txn"]["appId"] for action in winner if "txn" in action}
        why = None
        if written & self._read:
            why = "ConcurrentTransactionException: another commit has the same application"
        elif any("metaData" in action for action in winner):
            why = "simulated fault: MetadataChangedException: the table was created meanwhile"
        elif self.touches and any(_path(action).startswith(self.touches) for action in winner):
            why = "simulated fault: ConcurrentAppendException: files were added to the same partition"
        if why is not None:
            raise Py4JError(why)


def _path(action: Mapping[str, Any]) -> str:
    return str((action.get("add") or action.get("remove") or {}).get("path", ""))
