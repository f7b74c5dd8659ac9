"""The simulated ``deltalake`` answers as the real one does and leaves the same log, whatever sequence of steps it gets.

Handles of several writers open one table, go on to newer versions, create it and commit to it; others write commits by
hand in between. A seed decides each sequence.
"""

from __future__ import annotations

import inspect
import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from deltalake.exceptions import DeltaError

from cojoin.delta.actions import DataFile
from cojoin.delta.deltalake_table import DeltalakeTable
from cojoin.delta.table_log import TableLog, commit_name
from cojoin.storage.local_store import LocalStore
from tests.seeds import SEED
from tests.simulation.simulated_clock import Scheduler
from tests.simulation.simulated_deltalake import SimulatedDeltalakeTable
from tests.simulation.simulated_disk import Disk
from tests.simulation.simulated_store import SimulatedStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cojoin.delta.actions import Commit
    from cojoin.storage.store import Store

_HANDLES, _STEPS = 3, 14
_COLUMNS = {"id": "string", "batch_id": "long", "segment": "integer", "day": "date"}
_FIELDS = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _COLUMNS.items()]
_SCHEMA = {"type": "struct", "fields": _FIELDS}
_PARTITIONS: Sequence[Mapping[str, str | None]] = (
    {},
    {"batch_id": "7", "segment": None},
    {"batch_id": "-1", "day": "2026-11-28"},
)
"""The values of a sequence's partition columns, which all of its files have."""

_PROPERTIES: Sequence[Mapping[str, str]] = (
    {},
    {},
    {"delta.appendOnly": "true"},
    {"delta.isolationLevel": "WriteSerializable"},
)
_OPERATIONS = {
    "open": 4,
    "update": 4,
    "commit": 12,
    "create": 2,
    "stranger": 3,
    "files": 1,
    "checkpoint": 1,
    "delete the table": 0.3,
}
_STRANGERS = ("append", "property", "protocol", "removal", "compaction", "application", "nothing")


def drawn_step(draw: random.Random, number: int) -> dict[str, Any]:
    """Return a step: an operation, a handle, and all that it may need."""
    operation = draw.choices([*_OPERATIONS], [*_OPERATIONS.values()])[0] if number else "create"
    names = [f"part {each}%.parquet" for each in range(number + 3)]
    return {
        "operation": operation,
        "handle": draw.randrange(_HANDLES),
        "added": [f"new {number}.{each}" for each in range(draw.choice((0, 1, 1, 2)))]
        + draw.sample(names, draw.choice((0, 0, 0, 1))),
        "removed": draw.sample(names, draw.choice((0, 0, 0, 1, 2))),
        "changes_data": draw.random() < 0.7,
        "applications": {
            each: draw.randint(0, 9) for each in draw.sample(("ours", "theirs", "fence"), draw.randint(0, 2))
        },
        "info": {"isBlindAppend": draw.random() < 0.7, "userMetadata": f"marker {number}", "txnId": str(number)},
        "retries": draw.choice((0, 0, 1, 15)),
        "properties": draw.choice(_PROPERTIES),
        "stranger": draw.choice(_STRANGERS),
    }


class Side:
    """One of both: handles on a table, in a store."""

    def __init__(self, store: Store, kind: Any, partition: Mapping[str, str | None]) -> None:
        self.store, self.handles, self._partition = store, [kind(store, "t") for _ in range(_HANDLES)], partition
        self._ids: dict[str, int] = {}

    def do(self, step: dict[str, Any]) -> Any:
        """Return what a step answers, and at which version its handle is then."""
        handle = self.handles[step["handle"]]
        answer: Any
        try:
            answer = getattr(self, step["operation"].replace(" ", "_"))(handle, step)
        except (DeltaError, OSError, ValueError) as error:
            answer = "refused" if isinstance(error, DeltaError) else type(error).__name__
        if not handle.is_open:
            return answer, None
        return answer, handle.version, self._ids.setdefault(handle.table_id, len(self._ids))

    def _file(self, name: str) -> DataFile:
        return DataFile(name, 7, 1_000, '{"numRecords": 1}', self._partition)

    def open(self, handle: Any, _: dict[str, Any]) -> None:
        handle.open()

    def update(self, handle: Any, _: dict[str, Any]) -> None:
        if handle.is_open:
            handle.update()

    def files(self, handle: Any, _: dict[str, Any]) -> Any:
        return sorted(handle.files(), key=lambda each: each.path) if handle.is_open else None

    def commit(self, handle: Any, step: dict[str, Any]) -> None:
        if not handle.is_open:
            handle.open()
        handle.commit(
            list(map(self._file, step["added"])),
            list(map(self._file, step["removed"])),
            **{name: step[name] for name in ("changes_data", "applications", "info", "retries")},
        )

    def create(self, handle: Any, step: dict[str, Any]) -> None:
        given = {name: step[name] for name in ("properties", "applications", "info")}
        handle.create(_SCHEMA, list(map(self._file, step["added"])), partition_by=[*self._partition], **given)

    def checkpoint(self, handle: Any, _: dict[str, Any]) -> None:
        # That of a handle on a table that was deleted and made again would be a checkpoint of both.
        now = self._log.newest()
        if handle.is_open and now is not None and (now.version, now.table_id) == (handle.version, handle.table_id):
            handle.write_checkpoint()

    def delete_the_table(self, _: Any, __: dict[str, Any]) -> None:
        self.store.delete_directory("t")

    def stranger(self, _: Any, step: dict[str, Any]) -> None:
        """Write a commit by hand."""
        found = self._log.newest()
        if found is None:
            return
        metadata = {
            **found.metadata,
            "format": {"provider": "parquet", "options": {}},
            "configuration": {**found.properties, "delta.checkpointInterval": step["info"]["txnId"]},
        }
        added = {
            "path": f"strange%20{step['info']['txnId']}",
            "partitionValues": self._partition,
            "size": 1,
            "modificationTime": 1,
        }
        removed = {
            "path": (step["removed"] or ["none"])[0].replace("%", "%25").replace(" ", "%20"),
            "deletionTimestamp": 1,
        }
        kinds: dict[str, list[dict[str, Any]]] = {
            "append": [{"add": {**added, "dataChange": True}}],
            "property": [{"metaData": metadata}],
            "protocol": [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}],
            "removal": [{"remove": {**removed, "dataChange": True}}],
            "compaction": [{"remove": {**removed, "dataChange": False}}, {"add": {**added, "dataChange": False}}],
            "application": [{"txn": {"appId": each, "version": 3}} for each in step["applications"]],
            "nothing": [],
        }
        lines = [{"commitInfo": {"timestamp": 1, "operation": "WRITE"}}, *kinds[step["stranger"]]]
        content = "\n".join(map(json.dumps, lines)).encode()
        self.store.write_bytes(f"t/{commit_name(found.version + 1)}", content)

    @property
    def _log(self) -> TableLog:
        return TableLog(self.store, "t")

    def log(self) -> Any:
        """Return the whole log as it is read, without what differs by chance."""
        found = self._log.newest()
        if found is None:
            return None
        metadata = {name: value for name, value in found.metadata.items() if value is not None}
        for name in ("id", "createdTime", "format"):
            metadata.pop(name)
        metadata["schemaString"] = json.loads(metadata["schemaString"])
        told = ("isBlindAppend", "userMetadata", "txnId", "operation")
        commits = [
            (
                replace(each, info={}, metadata=None, files=_without_times(each)),
                {name: each.info.get(name) for name in told},
            )
            for each in self._log.commits(-1)
        ]
        return (
            found.version,
            found.protocol,
            metadata,
            dict(found.applications),
            self._log.files(found.version),
            commits,
        )


def _without_times(commit: Commit) -> Any:
    """Return a commit's files, the removed ones without the moments of their removal."""
    return tuple((kind, replace(file, modified=0) if kind == "remove" else file) for kind, file in commit.files)


def compare(folder: Path, number: int) -> None:
    """Take random steps with the real ``deltalake`` and the simulated one, and compare each answer and the logs."""
    draw = random.Random(f"deltalake {SEED} {number}")
    disk = Disk(Scheduler(random.Random(0), 0.0), has_conditional_writes=True, loses_power=False)
    partition = _PARTITIONS[number % len(_PARTITIONS)]
    real = Side(LocalStore(str(folder), "table"), DeltalakeTable, partition)
    made = Side(SimulatedStore(disk, "/lake"), SimulatedDeltalakeTable, partition)
    done = []
    for step in (drawn_step(draw, each) for each in range(_STEPS)):
        done.append(step)
        answers = real.do(step), made.do(step)
        shown = "\n".join(map(str, done))
        assert answers[0] == answers[1], f"sequence {number}: {answers} at the end of\n{shown}"
    logs = real.log(), made.log()
    differing = [pair for pair in zip(*logs, strict=True) if pair[0] != pair[1]] if all(logs) else logs
    assert logs[0] == logs[1], f"sequence {number}: the logs differ: {differing} after\n{shown}"


_PARTS, _OF_PUSH = 10, 1


@pytest.mark.parametrize(
    "part", [*range(_OF_PUSH), *(pytest.param(part, marks=pytest.mark.slow) for part in range(_OF_PUSH, _PARTS))]
)
def test_the_same_sequence_gives_the_same_answers_and_the_same_log(part: int, tmp_path: Path) -> None:
    for number in range(200 * part, 200 * (part + 1)):
        compare(tmp_path / str(number), number)


def test_both_have_the_same_interface() -> None:
    def interface(kind: type) -> dict[str, Any]:
        return {
            name: inspect.signature(member) if callable(member) else type(member)
            for name, member in vars(kind).items()
            if not name.startswith("_") or name == "__init__"
        }

    assert interface(DeltalakeTable) == interface(SimulatedDeltalakeTable)
