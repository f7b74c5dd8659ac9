"""The kinds of files, and who reads each: what a start, a restore and a task do before they believe a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cojoin.checkpoints.checkpoint import find_snapshot
from cojoin.checkpoints.claimed_checkpoint import resumed_batches
from cojoin.checkpoints.control import drain_is_promised
from cojoin.checkpoints.identity import check_description, read_query
from cojoin.checkpoints.lease import Lease
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.segment_files import SegmentCleaner, SegmentFolder
from cojoin.checkpoints.snapshot_row import are_whole, open_content
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.engine.state.segments import Segment
from cojoin.engine.state.waiting_rows import Run
from cojoin.engine.values import codec
from cojoin.errors import CheckpointError
from cojoin.session.spark_checkpoint import check_offsets, check_source_logs
from cojoin.spark.batch.batch_facts import check_state
from cojoin.spark.batch.control_input import RestoredState
from cojoin.spark.savepoints.restore import unfinished
from cojoin.spark.sinks.parquet_sink import owner_of
from cojoin.storage.local_store import LocalStore
from tests.corruption.written import GROUPS, LAST, row_of
from tests.streams import specs

if TYPE_CHECKING:
    from collections.abc import Callable

    from cojoin.checkpoints.snapshots import SnapshotIndex
    from tests.corruption.written import Written

__all__ = ["KINDS", "Kind", "World"]


class World:
    """A checkpoint of which one file at a time is damaged."""

    def __init__(self, written: Written) -> None:
        self.written, self.contents = written, dict(written.files)
        self._stamps = {name: self._stamp(name) for name in written.files if not name.startswith("values/")}

    @property
    def files(self) -> LocalStore:
        """The checkpoint, as a process opens it that has read nothing yet."""
        return LocalStore(str(self.written.root))

    def damage(self, name: str, content: bytes) -> None:
        """Put a content in a file's place."""
        self.contents[name] = content
        if not name.startswith("values/"):
            (self.written.root / name).write_bytes(content)

    def put_back(self) -> None:
        """Make all files what they were, also those that a reader has written."""
        root, whole = self.written.root, self.written.files
        self.contents = dict(whole)
        there = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
        for name, path in there.items():
            if name not in whole and not path.name.startswith("."):
                path.unlink()
        for name, stamp in self._stamps.items():
            if name not in there or self._stamp(name) != stamp:
                (root / name).write_bytes(whole[name])
                self._stamps[name] = self._stamp(name)

    def _stamp(self, name: str) -> tuple[int, ...]:
        about = (self.written.root / name).stat()
        return about.st_ino, about.st_size, about.st_mtime_ns


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        name: Its name, for the table.
        prefix: How its files' names begin.
        read: Reads them, and returns what they say.
        told_as: What a refusal names, one of these; the file's own name where there are none.
    """

    name: str
    prefix: str
    read: Callable[[World], Any]
    told_as: tuple[str, ...] = ()

    def files(self, written: Written) -> list[str]:
        """Return its files."""
        return [name for name in written.files if name.startswith(self.prefix)]


def _start(world: World) -> Any:
    """Read what a start reads, in its order, up to the first batch."""
    files = world.files
    restoration = unfinished(None, files, None)  # type: ignore[arg-type]
    query = read_query(files)
    lease = Lease.acquire(files, beat_seconds=60.0)
    try:
        manifests = Manifests(files)
        last = manifests.last()
        assert last is not None
        check_description(files, last.described)
        manifests.check_counted(last, lease.counted)
        check_offsets(files, last.batch_id, last.offsets)
        check_source_logs(files, last.logs)
        starts = resumed_batches(files, lease.epoch, last.epoch)
        recent = [asdict(each) for each in SegmentCleaner(files, manifests)._recent]
        all_snapshots = Snapshots(files).all()
        found = find_snapshot(files)
        assert found in all_snapshots
        return query, restoration, lease.epoch, recent, starts, _restored_from(found), drain_is_promised(files)
    finally:
        lease.release()


def _restored_from(snapshot: SnapshotIndex) -> dict[str, Any]:
    """Return what a restore takes from an index.

    That it is a savepoint is left out: where the index from before is put back, it is an ordinary snapshot again.
    """
    return {name: value for name, value in asdict(snapshot).items() if name != "kind"}


def _removed(world: World) -> Any:
    # ``removed`` passes over what this refuses, and leaves the rows.
    read_query(world.files)
    found = Snapshots(world.files)._read_removed(0)
    return None if found is None else asdict(found)


def _state(world: World) -> Any:
    """Read the state values, and the segments and runs that they name, as a task does."""
    folder, found = SegmentFolder.of(world.files), []
    for group in range(GROUPS):
        header, tables = codec.decode(world.contents[f"values/state {group}"])
        expected = {"called": LAST, "query_id": world.written.query_id}
        check_state(header.get("written"), group, expected)
        opened = [Segment(*each).open(folder) for each in header["segments"]["held1"]["segments"]]
        rows = [(each.table.to_pydict(), each.tombstones.tolist()) for each in opened]
        runs = map(Run.of, header[codec.RUNS]["held2"])
        rows += [(run.rows_up_to(run.last, folder)[0].to_pydict(), []) for run in runs]
        found.append((header, {name: each.to_pydict() for name, each in tables.items()}, rows))
    return found


def _snapshot(world: World) -> Any:
    """Read the last snapshot's rows and contents, as a restore does."""
    snapshot, found = world.written.snapshot, []
    assert snapshot is not None
    rows = [_row(world.contents[f"values/row {group}"]) for group in range(GROUPS)]
    # As from the table: by key group, each once.
    by_group = {row.key_group: row for row in rows}
    rows = [by_group[group] for group in sorted(by_group)]
    if len(rows) != GROUPS or not are_whole(rows, snapshot):
        msg = "its rows in the table state are not those that were written"
        raise CheckpointError(msg)
    for group, row in enumerate(rows):
        content, where = world.contents[f"values/content {group}"], f"key group {group}"
        files, tables = open_content(content, row.fingerprint, where)
        tables = files.whole(tables, SegmentFolder.of(world.files))
        described = [each.asDict() for each in row.tables]
        found.append(
            (row.header, described, row.content_bytes, {name: each.to_pydict() for name, each in tables.items()})
        )
    return found


def _row(content: bytes) -> Any:
    # In a table there is a row or there is none; what is no JSON stands for a file that Spark refuses.
    try:
        row = row_of(content)
        assert {"key_group", "header", "fingerprint", "seal", "content_batch_id", "content_bytes"} <= {*row.__fields__}
        assert all({"name", "rows", "bytes", "columns"} <= {*each.__fields__} for each in row.tables)
    except (ValueError, KeyError, TypeError, AssertionError, AttributeError) as error:
        msg = f"the table state can't be read: {error}"
        raise CheckpointError(msg) from error
    return row


def _restored(world: World) -> Any:
    restored = RestoredState(7, world.written.query_id, specs())
    for group in range(GROUPS):
        restored.add(pa.py_buffer(world.contents[f"values/restored {group}"]))
    operator = _Loaded()
    restored.load_into(operator, keeps_counts=True)  # type: ignore[arg-type]
    return operator.header, operator.rows


class _Loaded:
    """Takes a restored state, as an operator does."""

    def load_spilled(self, header: Any, spilled: Any, *, keeps_counts: bool) -> None:
        self.header, self.rows = header, {name: each.to_pydict() for name, each in spilled.whole().items()}

    def check_states(self) -> None: ...


def _owner(world: World) -> Any:
    query_id = world.written.query_id
    folder = world.written.root / "out"
    owner = owner_of(LocalStore(str(folder)))
    if owner != query_id:
        # As ``check`` and ``_claim`` refuse the folder.
        msg = f"{folder}/_cojoin.json: it has folders of batches that this query did not write"
        raise CheckpointError(msg)
    return owner


KINDS = (
    Kind("query.json", "query.json", _start),
    Kind("lease.json", "lease.json", _start),
    Kind("beats/", "beats/", _start),
    Kind("manifest/", "manifest/", _start),
    Kind("snapshots/", "snapshots/", _start),
    Kind("snapshots_removed/", "snapshots_removed/", _removed),
    Kind("restored.json", "restored.json", _start),
    Kind("runs.json", "runs.json", _start),
    Kind("drain.json", "drain.json", _start),
    Kind("control/end_of_input", "control/end_of_input", _start),
    Kind("spark/offsets/", f"spark/offsets/{LAST}", _start),
    Kind("spark/sources/", "spark/sources/1/", _start, ("spark/sources/1",)),
    Kind("segments/", f"segments/{LAST:012d}", _state),
    Kind("values in spark/state", "values/state", _state, ("state bytes", "spark/state")),
    Kind("contents in state/", "values/content", _snapshot, ("key group",)),
    Kind("rows in state/", "values/row", _snapshot, ("table state",)),
    Kind("messages in control/", "values/restored", _restored, ("state bytes", "control/restored")),
    Kind("_cojoin.json", "out/_cojoin.json", _owner, ("_cojoin.json",)),
)
"""All kinds of files that cojoin writes, and the values that it writes into files of Spark's and Delta's.

Those files as a whole are damaged by ``test_corruption_on_spark``.
"""
