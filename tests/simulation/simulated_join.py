"""The operator of the simulated queries: a small join whose result is known in advance.

A left row is emitted once the right input has come that far, and waits in the state until then. Its state is a file for
each batch, its waiting rows lie in segments. Every fifth left row is rejected.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from cojoin.checkpoints.snapshot_row import seal_of
from cojoin.engine.time.watermarks import END_OF_TIME
from cojoin.errors import CheckpointError
from cojoin.spark.batch.call import SNAPSHOT
from cojoin.spark.query.batch_protocol import Batch, BatchProtocol
from tests.simulation.faults import INJECTED
from tests.simulation.simulated_clock import scheduler
from tests.simulation.simulated_frames import Frame, write_rows
from tests.simulation.simulated_spark import CONTROL, NOTHING, failed, files_read, log_offset, read_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from cojoin.storage.parquet_files import WrittenFile
    from tests.simulation.simulated_disk import Disk
    from tests.simulation.simulated_spark import Emitted, Session

__all__ = [
    "RIGHT_ROWS",
    "SimulatedBatchWriter",
    "check_segments",
    "expected_rows",
    "read_state",
    "snapshot_rows",
    "value_of",
]

RIGHT_ROWS = 4
"""How many rows a file of the right input has."""

_REJECTED_OF = 5


def value_of(row: int) -> str:
    """Return the value of an output row."""
    return f"{row}:{row * 7 % 11}"


def expected_rows(left: int, right_rows: float) -> tuple[list[int], list[int]]:
    """Return the ids of the output's rows and of the rejected rows, once so much of both inputs was read."""
    output = [row for row in range(left) if row % _REJECTED_OF != 3 and row < right_rows]
    return output, [row for row in range(left) if row % _REJECTED_OF == 3]


class SimulatedBatchWriter(BatchProtocol):
    """The protocol's steps, with the calls of the small join."""

    def __init__(self, plan: Any, checkpoint: Any, outputs: Any, on_batch: Any, retained: int, *_: Any) -> None:
        super().__init__(plan, checkpoint, outputs, on_batch, retained)

    def __call__(self, emitted: Emitted, batch_id: int) -> None:
        self.run(_JoinBatch(emitted, batch_id, self._plan.outputs))  # type: ignore[arg-type]

    def and_then(self, loads: None) -> SimulatedBatchWriter:
        """Return itself: the simulated queries have no static side."""
        del loads
        return self


@dataclass
class _Group:
    """The state of one key group."""

    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("left", "right", "done", "rejected"), 0))
    saved: dict[str, Any] | None = None
    segments: list[str] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    """The rows that wait; they are in the segments, too."""


class _JoinBatch(Batch):
    def __init__(self, emitted: Emitted, batch_id: int, outputs: Mapping[str, tuple[int, Any]]) -> None:
        self.batch_id, self.session = batch_id, emitted.sparkSession  # type: ignore[assignment]
        self._emitted, self._outputs = emitted, outputs
        self._rows: dict[int, list[dict[str, Any]]] = {}

    def execute(self, targets: Mapping[int, Any]) -> tuple[list[dict[str, Any]], dict[int, list[WrittenFile]]]:
        stream, batch_id = self._emitted.stream, self.batch_id
        disk, root = stream.session.disk, stream.root
        state = read_state(disk, root, batch_id - 1) if batch_id else None
        before, lines = self._emitted.before, self._emitted.lines
        if state is not None and list(before) == list(lines):
            # Without any row, no key group is called, and the state stays.
            _write(disk, "write state", f"{root}/spark/state/{batch_id}", json.dumps(state))
            return [], {kind: [] for kind in targets}
        entry = read_text(disk, "read", f"{root}/spark/offsets/{batch_id}").decode().splitlines()
        now = int(json.loads(entry[1]).get("batchTimestampMs", 0))
        statistics = self._call(state, now)
        files: dict[int, list[WrittenFile]] = {}
        for kind, target in targets.items():
            rows = self._rows[kind]
            files[kind] = []
            if rows:
                files[kind].append(write_rows(disk, target.folder, f"part-{_unique()}.parquet", rows))
        return statistics, files

    def rows(self, kind: int, schema: Any) -> Any:
        del schema
        return Frame(self._emitted.stream.session.disk, lambda: self._rows[kind])

    def release(self) -> None:
        pass

    def _call(  # noqa: C901, PLR0912 - the whole join
        self, state: dict[str, Any] | None, now: int
    ) -> list[dict[str, Any]]:
        """Execute the calls of all key groups: write their segments and the state, and return their statistics."""
        stream, batch_id = self._emitted.stream, self.batch_id
        disk, root, count = stream.session.disk, stream.root, stream.key_groups
        at = {"left": 0, "right": 0, "ended": 0}
        groups = {number: _Group() for number in range(count)}
        if state is not None:
            at = state["at"]
            for number, values in state["groups"].items():
                group = groups[int(number)] = _Group(**values)
                group.waiting = sorted(
                    row
                    for name in group.segments
                    for row in json.loads(read_text(disk, "read segment", f"{root}/segments/{name}"))
                    if row >= at["right"] * RIGHT_ROWS
                )
        left, right = at["left"], at["right"]
        messages = self._messages()
        for message in messages:
            if message is None:
                at["ended"] = 1
                continue
            left, right = message["at"]["left"], message["at"]["right"]
            for name, total in message["counters"].items():
                groups[0].counters[name] += total
            for row in message["waiting"]:
                groups[row % count].waiting.append(row)
        before, lines = self._emitted.before, self._emitted.lines
        if lines[0] != before[0] and lines[0] != NOTHING:
            at["left"] = int(json.loads(lines[0])["rows"])
        else:
            at["left"] = left
        if log_offset(lines[1]) > log_offset(before[1]):
            at["right"] = len(files_read(disk, f"{root}/spark/sources/1", log_offset(lines[1]))[0])
        else:
            at["right"] = right
        watermark = 10**9 if at["ended"] else at["right"] * RIGHT_ROWS
        kinds = {name: kind for name, (kind, _) in self._outputs.items()}
        self._rows = {kind: [] for kind in (*kinds.values(), SNAPSHOT)}
        statistics, stored = [], {}
        for number, group in groups.items():
            old = list(group.waiting)
            for row in range(left, at["left"]):
                if row % count == number:
                    group.counters["left"] += 1
                    if row % _REJECTED_OF == 3:
                        group.counters["rejected"] += 1
                        self._rows[kinds["rejected"]].append({"id": row})
                    else:
                        group.waiting.append(row)
            group.counters["right"] += sum(1 for file in range(right, at["right"]) if file % count == number)
            ready = [row for row in group.waiting if row < watermark]
            group.waiting = [row for row in group.waiting if row >= watermark]
            group.counters["done"] += len(ready)
            self._rows[kinds["output"]] += [{"id": row, "value": value_of(row)} for row in ready]
            self._write_segments(group, number, old, state is None)
            due = stream.cadence.is_due(group.saved, batch_id, now)
            content_batch_id = self._save(group, number, at) if due else None
            statistics.append(self._statistics(group, number, at, now, ready, content_batch_id, watermark))
            stored[number] = {"counters": group.counters, "saved": group.saved, "segments": group.segments}
        _write(disk, "write state", f"{root}/spark/state/{batch_id}", json.dumps({"at": at, "groups": stored}))
        return statistics

    def _messages(self) -> list[Any]:
        """Return the control input's messages: the state that a restored query begins with, and None for the end."""
        stream = self._emitted.stream
        disk, log = stream.session.disk, f"{stream.root}/spark/sources/{CONTROL}"
        first, last = log_offset(self._emitted.before[2]), log_offset(self._emitted.lines[2])
        if last <= first:
            return []
        known, _ = files_read(disk, log, first)
        found: list[Any] = []
        for path in files_read(disk, log, last)[0]:
            if path in known:
                continue
            content = read_text(disk, "read", path)
            found += [None] if content.startswith(b"PAR1") else json.loads(content)
        return found

    def _write_segments(self, group: _Group, number: int, old: Sequence[int], is_new: bool) -> None:
        """Write the rows that wait anew as a segment, and all of them where there would be more than two."""
        new = [row for row in group.waiting if is_new or row not in old]
        kept = [name for name in group.segments if group.waiting and int(name.split("-")[3]) >= min(group.waiting)]
        if len(kept) + bool(new) > 2 or (kept and not new and len(group.waiting) < 2):
            kept, new = [], group.waiting
        if not group.waiting:
            kept, new = [], []
        if new:
            stream = self._emitted.stream
            text = json.dumps(new)
            digest = hashlib.sha256(text.encode()).hexdigest()[:8]
            # The last number is the largest row, by which the segment is dropped once all its rows are emitted.
            name = f"{self.batch_id:012d}-{number:05d}-{digest}-{max(new)}-x.arrow"
            _write(stream.session.disk, "write segment", f"{stream.root}/segments/{name}", text)
            kept = [*kept, name]
        group.segments = kept

    def _save(self, group: _Group, number: int, at: Mapping[str, int]) -> int:
        """Add a key group's row to the snapshot, and return the snapshot that has its content."""
        saved, content = group.saved or {}, _content(group.waiting, backwards=scheduler().process.pid % 6 == 5)
        fingerprint = hashlib.sha256(content.encode()).hexdigest()[:16]
        is_new = saved.get("fingerprint") != fingerprint
        header = json.dumps({"at": dict(at), "counters": group.counters})
        holder = self.batch_id if is_new else int(saved["content_batch_id"])
        row = _snapshot_row(self.batch_id, number, header, content if is_new else None, holder, fingerprint)
        self._rows[SNAPSHOT].append(row)
        group.saved = {"batch_id": self.batch_id, "time": 0, "content_batch_id": holder, "fingerprint": fingerprint}
        return holder

    def _statistics(
        self,
        group: _Group,
        number: int,
        at: Mapping[str, int],
        now: int,
        ready: Sequence[int],
        content_batch_id: int | None,
        watermark: int,
    ) -> dict[str, Any]:
        kinds = {name: kind for name, (kind, _) in self._outputs.items()}
        count = self._emitted.stream.key_groups
        own = {
            name: [row for row in self._rows[kind] if int(row["id"]) % count == number] for name, kind in kinds.items()
        }
        status = "finished" if at["ended"] else "active"
        time = {
            "watermark": END_OF_TIME if at["ended"] else watermark,
            "max_timestamp": watermark,
            "status": status,
            "holding_partition": None,
            "partitions": {},
            "idle_partitions": [],
        }
        counters = group.counters
        left = {
            "rows_in": counters["left"],
            "done": counters["done"],
            "buffered": len(group.waiting),
            "rejected": {"late": counters["rejected"]} if counters["rejected"] else {},
            "late_applied": 0,
        }
        right = {
            "rows_in": counters["right"],
            "done": counters["right"],
            "buffered": 0,
            "rejected": {},
            "late_applied": 0,
        }
        return {
            "key_group": number,
            "processing_time": now,
            "watermark": time["watermark"],
            "holding_input": None if at["ended"] else 1,
            "input_watermarks": [time, time],
            "inputs": [left, right],
            "details": {},
            "emitted": {name: len(rows) for name, rows in own.items()},
            "rows_out": counters["done"],
            "state_bytes": 10 * len(group.waiting),
            "output_delay_ms": 0,
            "call_ms": 1.0,
            "row_bytes": (10, 10),
            "digests": {name: sum(_digest(row) for row in rows) for name, rows in own.items()},
            "segments": group.segments,
            "content_batch_id": content_batch_id,
        }


def _content(waiting: Sequence[int], *, backwards: bool) -> str:
    """Return the content of a snapshot: another process may write the same rows in another order."""
    return json.dumps(sorted(waiting, reverse=backwards))


def _snapshot_row(
    batch_id: int, number: int, header: str, content: str | None, holder: int, fingerprint: str
) -> dict[str, Any]:
    return {
        "batch_id": batch_id,
        "key_group": number,
        "segment": None if content is None else number,
        "header": header,
        "content_batch_id": holder,
        "fingerprint": fingerprint,
        "seal": seal_of(header, fingerprint),
        "content": content,
        "content_bytes": len(content or ""),
        "tables": [],
    }


def _digest(row: Mapping[str, Any]) -> int:
    return int(hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:12], 16)


def _write(disk: Disk, operation: str, path: str, text: str) -> None:
    disk.operate(operation, path, lambda: disk.put(path, text.encode()), error=failed, torn=lambda: disk.torn_at(path))


def _unique() -> str:
    return f"{scheduler().random.getrandbits(64):016x}"


def read_state(disk: Disk, root: str, batch_id: int) -> dict[str, Any]:
    """Return Spark's own state after a batch.

    Raises:
        PySparkException: It is not there.
    """
    found: dict[str, Any] = json.loads(read_text(disk, "read state", f"{root}/spark/state/{batch_id}"))
    return found


def check_segments(session: Session, files: Any, batch_id: int) -> set[str]:
    """Check that the segments of a state are there, as ``stored_state.check_segments`` does."""
    groups = _state_for_people(session, files, batch_id)["groups"].values()
    names = [name for group in groups for name in group["segments"]]
    for name in names:
        _segment(session, files, batch_id, name)
    return set(names)


def _state_for_people(session: Session, files: Any, batch_id: int) -> dict[str, Any]:
    try:
        return read_state(session.disk, files.root, batch_id)
    except PySparkException as error:
        raise CheckpointError(str(error)) from error


def _segment(session: Session, files: Any, batch_id: int, name: str) -> list[int]:
    try:
        found: list[int] = json.loads(read_text(session.disk, "read segment", f"{files.root}/segments/{name}"))
    except PySparkException as error:
        if INJECTED in str(error):
            raise CheckpointError(str(error)) from error
        msg = f"checkpoint {files.root}: Spark's own state after batch {batch_id}: segment {name} is missing"
        raise CheckpointError(msg) from error
    return found


def snapshot_rows(
    session: Session, files: Any, batch_id: int, as_of: int, key_groups: int, there: Collection[tuple[int, int]]
) -> Frame:
    """Return the rows of a snapshot of Spark's own state, as ``stored_state.snapshot_rows`` does."""
    del key_groups

    def rows() -> list[dict[str, Any]]:
        state = _state_for_people(session, files, batch_id)
        found = []
        for number, group in state["groups"].items():
            waiting = sorted(
                row
                for name in group["segments"]
                for row in _segment(session, files, batch_id, name)
                if row >= state["at"]["right"] * RIGHT_ROWS
            )
            saved = group["saved"] or {}
            for content in (_content(waiting, backwards=True), _content(waiting, backwards=False)):
                fingerprint = hashlib.sha256(content.encode()).hexdigest()[:16]
                if saved.get("fingerprint") == fingerprint:
                    break
            points = (saved.get("content_batch_id"), int(number)) in there and saved.get("fingerprint") == fingerprint
            header = json.dumps({"at": state["at"], "counters": group["counters"]})
            holder = int(saved["content_batch_id"]) if points else as_of
            found.append(_snapshot_row(as_of, int(number), header, None if points else content, holder, fingerprint))
        return found

    return Frame(session.disk, rows)
