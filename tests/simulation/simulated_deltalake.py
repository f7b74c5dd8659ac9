"""``deltalake`` on a simulated disk: the interface of ``DeltalakeTable`` with the rules of the real one.

The log has Delta's own files and actions, so that ``TableLog`` reads it through the simulated store.

- A commit is made at the version after the newest one, where nobody was first (put if absent). It looks for the newest
  version first, and another task may run in between.
- With a commit after the handle's version it fails, unless it may repeat. Then it fails where the other commit wrote an
  application id that this one writes, removed rows of a file that the handle's version has or that this one removes,
  or changed the metadata. A file that two commits replace by others with the same rows is in the way of neither.
  Ids that were only read are compared with nothing, nor is it compared if a version goes back.
- Where the log ends before the handle's version, it fails: the table was deleted.
- A handle stays at its version after its own commit. An update reads the commits after it, and looks at nothing before
  it; it fails where the newest commit is an earlier one: the table was deleted and made again.
- No file is looked at, and a file that a commit removes need not be there.

What is left out: a log is not cleaned, for no history lasts as many days, and a feature that ``deltalake`` does not
know is refused by ``TableWriter`` before. ``test_simulated_deltalake`` holds it equal to the real one.
"""

from __future__ import annotations

import functools
import json
import re
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from cojoin.delta.actions import DataFile
from tests.simulation.simulated_store import SimulatedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cojoin.storage.store import Store

__all__ = ["SEAMS", "SimulatedDeltalakeTable", "actions_of"]

_COMMIT = re.compile(r"(\d{20})\.json")


@functools.lru_cache(maxsize=4096)
def actions_of(content: bytes) -> tuple[dict[str, Any], ...]:
    """Return the actions of a commit's file."""
    return tuple(json.loads(line) for line in content.splitlines())


@dataclass
class _Opened:
    """A version of a table, as its commits give it."""

    version: int = -1
    protocol: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    applications: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def advance(self, actions: Sequence[Mapping[str, Any]]) -> None:
        """Go on by one commit."""
        self.version += 1
        for each in actions:
            if "remove" in each:
                self.files.pop(each["remove"]["path"], None)
        for each in actions:
            if "add" in each:
                self.files[each["add"]["path"]] = each["add"]
            elif "txn" in each:
                self.applications[each["txn"]["appId"]] = each["txn"]
            self.protocol = each.get("protocol", self.protocol)
            self.metadata = each.get("metaData", self.metadata)


class SimulatedDeltalakeTable:
    """A table by ``deltalake``, and the version at which it is open: see ``DeltalakeTable``."""

    def __init__(self, store: Store, folder: str) -> None:
        assert isinstance(store, SimulatedStore)
        self._disk, self._log = store._disk, f"{store.path(folder.strip('/'))}/_delta_log"
        self.is_overwritten, self.secrets = self._disk.is_overwritten, list[str]()
        self._opened: _Opened | None = None

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    @property
    def version(self) -> int:
        return self._now.version

    @property
    def table_id(self) -> str:
        return str(self._now.metadata["id"])

    def open(self) -> None:
        self._opened = None

        def effect() -> _Opened:
            found = _Opened()
            newest = self._newest()
            while found.version < newest:
                content = self._content(found.version + 1)
                if content is None:
                    msg = f"Expected contiguous commit files, but found gap: {found.version + 1}"
                    raise DeltaError(msg)
                found.advance(actions_of(content))
            if newest < 0:
                msg = "No files in log segment"
                raise TableNotFoundError(msg)
            return found

        self._opened = self._look(effect)

    def close(self) -> None:
        self._opened = None

    def update(self) -> None:
        def effect() -> None:
            newest = self._newest()
            # Commit 0 is not looked at.
            if 1 <= newest < self._now.version:
                msg = f"the newest version in the log {newest} is older than the existing snapshot version"
                raise DeltaError(msg)
            while (content := self._content(self._now.version + 1)) is not None:
                self._now.advance(actions_of(content))

        self._look(effect)

    def files(self) -> list[DataFile]:
        found = map(DataFile.of, self._now.files.values())
        return [DataFile(each.path, each.size, each.modified, None, each.partition_values) for each in found]

    def commit(
        self,
        added: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
        *,
        changes_data: bool = True,
        applications: Mapping[str, int],
        info: Mapping[str, Any],
        retries: int,
    ) -> None:
        both = {each.path for each in added} & {each.path for each in removed}
        if both:
            msg = f"Cannot add and remove the same file path in one transaction: {both}"
            raise ValueError(msg)
        if removed and changes_data and self._now.metadata["configuration"].get("delta.appendOnly") == "true":
            msg = "The transaction includes Remove action with data change but Delta table is append-only"
            raise CommitFailedError(msg)
        told = {**info, "operation": "WRITE", "timestamp": self._milliseconds()}
        actions = [
            {"commitInfo": told},
            *({"remove": self._removal(each, changes_data)} for each in removed),
            *({"add": _addition(each, changes_data)} for each in added),
            *self._transactions(applications),
        ]
        version, read = self._now.version, {*self._now.files, *(quote(each.path, safe="/=") for each in removed)}
        for _ in range(retries + 1):
            newest = self._look(self._newest)
            if newest < version:
                msg = f"Invalid table version: {version}"
                raise DeltaError(msg)
            if newest > version and not retries:
                break
            winners = [actions_of(self._content(each) or b"") for each in range(version + 1, newest + 1)]
            for winner in winners:
                _compare(winner, applications, read)
            version = newest
            read |= {each["add"]["path"] for winner in winners for each in winner if "add" in each}
            if self._put(version + 1, actions):
                return
        msg = f"Failed to commit transaction: {retries}"
        raise CommitFailedError(msg)

    def create(
        self,
        schema: Mapping[str, Any],
        added: Sequence[DataFile],
        *,
        partition_by: Sequence[str],
        properties: Mapping[str, str],
        applications: Mapping[str, int],
        info: Mapping[str, Any],
    ) -> None:
        if self._look(self._newest) >= 0:
            msg = "Generic error: A Delta Lake table already exists at that location."
            raise DeltaError(msg)
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema),
            "partitionColumns": list(partition_by),
            "createdTime": self._milliseconds(),
            "configuration": dict(properties),
        }
        actions = [
            {"commitInfo": {**info, "operation": "CREATE TABLE", "timestamp": self._milliseconds()}},
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"metaData": metadata},
            *({"add": _addition(each, changes_data=True)} for each in added),
            *self._transactions(applications),
        ]
        if not self._put(0, actions):
            msg = "Failed to commit transaction: 0"
            raise CommitFailedError(msg)

    def write_checkpoint(self) -> None:
        now = self._now
        path = f"{self._log}/{now.version:020d}.checkpoint.simulated.json"
        rows = [
            {"protocol": now.protocol},
            {"metaData": now.metadata},
            *({"txn": each} for each in now.applications.values()),
            *({"add": each} for each in now.files.values()),
        ]
        content = "\n".join(map(json.dumps, rows)).encode()
        disk = self._disk
        disk.operate("write", path, lambda: disk.put(path, content), error=OSError, torn=lambda: disk.torn_at(path))

    def clean_log(self) -> None:
        """Delete nothing: no commit of a history is as old."""

    @property
    def _now(self) -> _Opened:
        assert self._opened is not None
        return self._opened

    def _look(self, effect: Callable[[], Any]) -> Any:
        return self._disk.operate("delta look", self._log, effect, error=OSError)

    def _path(self, version: int) -> str:
        return f"{self._log}/{version:020d}.json"

    def _content(self, version: int) -> bytes | None:
        file = self._disk.files.get(self._path(version))
        return None if file is None else file.content

    def _newest(self) -> int:
        return max(
            (int(each[1]) for name in self._disk.below(self._log) if (each := _COMMIT.fullmatch(name))), default=-1
        )

    def _put(self, version: int, actions: Sequence[Mapping[str, Any]]) -> bool:
        """Write a commit where there is none of its version; return whether it was written."""
        disk, path = self._disk, self._path(version)
        content = "\n".join(map(json.dumps, actions)).encode()

        def effect() -> bool:
            if path in disk.files:
                return False
            disk.put(path, content)
            return True

        return disk.operate("delta commit", path, effect, error=OSError, torn=lambda: disk.torn_at(path))

    def _milliseconds(self) -> int:
        return int(1000 * self._disk.scheduler.now)

    def _transactions(self, applications: Mapping[str, int]) -> list[dict[str, Any]]:
        now = self._milliseconds()
        return [
            {"txn": {"appId": app_id, "version": version, "lastUpdated": now}}
            for app_id, version in applications.items()
        ]

    def _removal(self, file: DataFile, changes_data: bool) -> dict[str, Any]:
        return {
            "path": quote(file.path, safe="/="),
            "dataChange": changes_data,
            "deletionTimestamp": self._milliseconds(),
            "partitionValues": dict(file.partition_values),
            "size": file.size,
        }


def _addition(file: DataFile, changes_data: bool) -> dict[str, Any]:
    return {
        "path": quote(file.path, safe="/="),
        "partitionValues": dict(file.partition_values),
        "size": file.size,
        "modificationTime": file.modified,
        "dataChange": changes_data,
        "stats": file.statistics or "{}",
    }


def _compare(winner: Sequence[Mapping[str, Any]], applications: Mapping[str, int], read: set[str]) -> None:
    """Compare a commit with one that was made before it.

    Args:
        winner: The actions of the other commit.
        applications: The application ids that this one writes.
        read: The paths of the files of the version on which it was to be made, and of those that it removes.

    Raises:
        CommitFailedError: They are in conflict.
    """
    why = None
    if any(each["txn"]["appId"] in applications for each in winner if "txn" in each):
        why = "Concurrent transaction failed."
    elif any(each["remove"]["dataChange"] and each["remove"]["path"] in read for each in winner if "remove" in each):
        why = "a concurrent transaction deleted data this operation read."
    elif any("metaData" in each for each in winner):
        why = "Metadata changed since last commit."
    if why is not None:
        msg = f"Failed to commit transaction: {why}"
        raise CommitFailedError(msg)


SEAMS = {"DeltalakeTable": SimulatedDeltalakeTable, "DEFAULT_PROPERTIES": {"delta.checkpointInterval": "5"}}
"""What is replaced in ``cojoin.delta.table_writer``. A log has a checkpoint within short histories, too."""
