"""Two checkpoints as queries leave them, without Spark: cojoin's own writers make every kind of file that they write.

Each has two runs. The first was killed between the manifest of its last batch and Spark's commit, so the second writes
that batch once more; so there is a former version of all that may be written twice.
"""

from __future__ import annotations

import io
import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row

from cojoin.checkpoints.claimed_checkpoint import resumed_batches
from cojoin.checkpoints.control import END_OF_INPUT, promise_drain
from cojoin.checkpoints.identity import claim_checkpoint, describe_query, note_sources
from cojoin.checkpoints.lease import Lease
from cojoin.checkpoints.manifest import Manifest, Manifests
from cojoin.checkpoints.restoration import Restoration
from cojoin.checkpoints.segment_files import FOLDER, SegmentFolder
from cojoin.checkpoints.snapshot_row import seal_of, snapshot_row
from cojoin.checkpoints.snapshots import SnapshotIndex, Snapshots
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.state.named_files import SEGMENTS
from cojoin.engine.state.segmented_table import SHADOWED
from cojoin.engine.state.segments import HASH, SegmentContext, SegmentOptions, write_segment
from cojoin.engine.state.waiting_rows import WaitingRows
from cojoin.engine.values import codec
from cojoin.session.spark_checkpoint import LogDigests
from cojoin.spark.sinks.parquet_sink import _FORM as _OWNER_FORM
from cojoin.storage.documents import write_document
from cojoin.storage.local_store import LocalStore
from tests.checkpoints.reports import manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["GROUPS", "LAST", "Written", "row_of", "write_checkpoint"]

GROUPS, LAST = 2, 2
"""The number of key groups, and the last batch."""

_SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


@dataclass
class Written:
    """What a query has written.

    Attributes:
        root: Its checkpoint.
        files: The content of each file at the end. Those below ``values/`` are no files of a checkpoint, but values in
            Spark's and Delta's files, which have checksums of their own.
        former: The former versions of each.
        query_id: The query.
        snapshot: Its last snapshot.
    """

    root: Path
    files: dict[str, bytes] = field(default_factory=dict)
    former: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    query_id: str = ""
    snapshot: SnapshotIndex | None = None

    def note(self) -> None:
        """Take what is there now; what was there before is a former version."""
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if path.is_file() and not path.name.startswith("."):
                self.note_value(name, path.read_bytes())

    def note_value(self, name: str, content: bytes) -> None:
        """Take one content."""
        before = self.files.get(name)
        if before is not None and before != content:
            self.former[name].append(before)
        self.files[name] = content


def write_checkpoint(root: Path, number: int) -> Written:
    """Write what a query leaves.

    Args:
        root: The checkpoint's directory.
        number: Which query: others have other rows, ids and counts, and files of the same names.
    """
    written, files = Written(root), LocalStore(str(root))
    inputs = tuple(InputSpec(name, _SCHEMA, ("id",), "at") for name in ("trades", "customers"))
    query = describe_query({"operator": "asof", "settings": {}}, inputs, _SCHEMA, GROUPS)  # type: ignore[arg-type]
    sources: list[Any] = [{"format": "delta", "location": f"/lake/{number}/trades"}, None]
    query_id = written.query_id = claim_checkpoint(files, query, sources)
    (root / FOLDER).mkdir()
    for source in range(3):
        (root / "spark/sources" / str(source)).mkdir(parents=True)
    for stage in ("begun", "written", "ready"):
        Restoration(f"file:/lake/{number}/old", 3 + number, ["-", "-"], stage=stage).write(files)
        written.note()
    counted = 0
    for run in (1, 2):
        lease = Lease.acquire(files, beat_seconds=60.0)
        sources[0] = {"format": "delta", "location": f"/lake/{number}/trades_{run}"}
        note_sources(files, sources, lease.epoch)
        written.note()
        # The second run executes batch 1 again, which the first had counted.
        for batch_id in (0, 1) if run == 1 else (1, LAST):
            files.write(f"spark/offsets/{batch_id}", _offsets(number, batch_id))
            entry = {"path": f"file:/lake/{number}/{batch_id}", "timestamp": 5, "batchId": batch_id}
            files.write(f"spark/sources/1/{batch_id}", f"v1\n{json.dumps(entry)}")
            if batch_id in (0, 2) or run == 2:
                resumed_batches(files, lease.epoch, counted)
            made = _manifest(number, query_id, batch_id, lease.epoch)
            made = replace(made, logs=LogDigests(files).sums(made.offsets))
            _write_batch(written, files, lease, made)
            files.write(f"spark/commits/{batch_id}", "v1\n{}")
            counted = lease.epoch
            written.note()
        if run == 1:
            lease._stop()
        else:
            lease.release()
    Snapshots(files).promote(LAST)
    promise_drain(files, 2)
    message = io.BytesIO()
    pq.write_table(pa.table({"key_group": pa.array([None], pa.int32()), "payload": [END_OF_INPUT]}), message)
    files.write_bytes("control/end_of_input.parquet", message.getvalue())
    written.note()
    # A snapshot that is being removed.
    snapshots = Snapshots(files)
    assert snapshots.read(0) is not None
    snapshots.remove(0)
    for group in range(GROUPS):
        rows = _rows(number, 10, group)
        header = {"restored": {"watermark": number}} if not group else {}
        header |= {"for": [query_id, 7 if group else None, f"{number} {group}"]}
        written.note_value(f"values/restored {group}", codec.encode(header, {"held1": rows}))
    for output in ("out",):
        write_document(LocalStore(str(root / output)), "_cojoin.json", _OWNER_FORM, {"query_id": query_id})
    written.note()
    # What was deleted since is gone.
    written.files = {
        name: content for name, content in written.files.items() if name.startswith("values/") or (root / name).exists()
    }
    return written


def _offsets(number: int, batch_id: int) -> str:
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000 + batch_id, "conf": {}})
    lines = [json.dumps({"version": batch_id + 10 * number}), json.dumps({"logOffset": batch_id}), "-"]
    return "\n".join(["v1", metadata, *lines])


def _manifest(number: int, query_id: str, batch_id: int, epoch: int) -> Manifest:
    made = manifest(batch_id, rows=5 * number + batch_id + epoch)
    report = replace(made.report, state_bytes_by_key_group={str(group): 500 for group in range(GROUPS)})
    offsets = tuple(_offsets(number, batch_id).split("\n")[2:])
    previous = (batch_id - 1, max(1, batch_id)) if batch_id else None
    return replace(
        made,
        query_id=query_id,
        report=report,
        offsets=offsets,
        epoch=epoch,
        described=epoch,
        called=batch_id,
        previous=previous,
    )


def _rows(number: int, batch_id: int, group: int) -> pa.Table:
    count = 40 + 10 * batch_id + group
    return pa.table(
        {"id": pa.array(range(count), pa.int64()), "value": [f"{number} {batch_id} {i}" for i in range(count)]}
    )


def _write_batch(written: Written, files: LocalStore, lease: Lease, made: Manifest) -> None:
    """Write a batch's segments and runs, state values, snapshot and manifest, in this order."""
    number, names, seals, rows_in_all = made.report.rows_out, [], [], 0
    folder = SegmentFolder.of(files)
    for group in range(GROUPS):
        rows = _rows(number, made.batch_id, group)
        hashes = np.arange(rows.num_rows, dtype=np.uint64)
        context = SegmentContext(folder, SegmentOptions(0), group, made.batch_id)
        segment = write_segment(context, hashes, rows, np.array([1_000], np.uint64))
        waiting = WaitingRows(rows.slice(group, 30), lambda found: found.column("id").to_numpy())
        waiting.flush(context)
        # Of those of a run some were taken.
        waiting.take(made.batch_id)
        names += context.written
        header = {"processing_time": 5, "saved": None, "watermark": number, "counts": [{}, {}], "operator": "asof"}
        described = {"rows": rows.num_rows + 5, "expired": None, "segments": [segment.as_list()]}
        header = {**header, SEGMENTS: {"held1": described}, codec.RUNS: {"held2": waiting.describe()}}
        tables = {"held1": rows.slice(0, 5), f"{SHADOWED}held1": pa.table({HASH: pa.array([], pa.uint64())})}
        tables["held2"] = waiting.memory
        by = {"written": [group, made.batch_id, written.query_id]}
        written.note_value(f"values/state {group}", codec.encode(header | by, tables))
        row, _ = snapshot_row(group, made.batch_id, header, tables)
        values = row.to_pylist()[0]
        written.note_value(f"values/content {group}", values.pop("content"))
        written.note_value(f"values/row {group}", json.dumps(values).encode())
        seals.append(values["seal"])
        rows_in_all += rows.num_rows + 5 + waiting.rows
    made = replace(made, segments=tuple(sorted(names)))
    snapshot = SnapshotIndex(
        made,
        "checkpoint",
        GROUPS,
        rows=rows_in_all,
        state_bytes=1_000,
        written_bytes=1_000,
        content_batch_ids={str(made.batch_id): list(range(GROUPS))},
        seal=seal_of(*seals),
        remembered=True,
    )
    written.snapshot = snapshot
    Snapshots(files).write(snapshot)
    Manifests(files).write(made)
    lease.note_counted(made.batch_id)


def row_of(content: bytes) -> Row:
    """Return a row of the state table, as Spark returns it."""
    values: Mapping[str, Any] = json.loads(content)
    return Row(**{**values, "tables": [Row(**each) for each in values["tables"]]})
