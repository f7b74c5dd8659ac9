"""Where the real code of the driver meets what is simulated: every name that is replaced, in one table.

All else is the code that runs in production: the start of a query, its lease, identity, restoration and control input,
the steps of a batch, the writer of a Delta output and its transactions, manifests, snapshots, the state and the
progress tables, savepoints and the cleaning.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints.control import CONTROL_DDL
from cojoin.metrics.query_metrics import process_instruments
from cojoin.storage import documents
from tests.simulation import simulated_deltalake, simulated_join
from tests.simulation.simulated_clock import SimulatedThreads, SimulatedTime, is_simulated, scheduler
from tests.simulation.simulated_delta import COLUMNS
from tests.simulation.simulated_frames import Functions, write_rows, write_state_rows
from tests.simulation.simulated_join import RIGHT_ROWS, SimulatedBatchWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.checkpoints.state_table import StateTable
    from tests.simulation.simulated_spark import Session
    from tests.simulation.simulated_store import SimulatedStore

__all__ = ["simulated"]


class _System:
    """What the lease uses of ``os`` and ``socket``."""

    @staticmethod
    def getpid() -> int:
        return scheduler().process.pid

    @staticmethod
    def gethostname() -> str:
        return scheduler().process.host


class _Json:
    """The module ``json`` without indentation, which takes most of a history's time."""

    loads = staticmethod(json.loads)

    @staticmethod
    def dumps(values: Any, **options: Any) -> str:
        options.pop("indent", None)
        return json.dumps(values, **options)


_checked: dict[tuple[Any, ...], dict[str, Any]] = {}
_check_content = documents._content


def _content(files: Any, name: str, form: Any, text: str) -> dict[str, Any]:
    """Return the content of a document as ``documents`` does, which computes the checksum of each text once."""
    key = name, form.label, form.format, text
    found = _checked.get(key)
    if found is None:
        if len(_checked) > 2_000:
            _checked.clear()
        found = _checked[key] = _check_content(files, name, form, text)
    else:
        # It may read, so that a history would differ by what was cached.
        documents._check_query(files, name, form, json.loads(text).get("query_id"))
    return dict(found)


class _Owners:
    """The leases that each process holds."""

    @staticmethod
    def add(owner: str) -> None:
        scheduler().process.owners.add(owner)
        scheduler().process.held.add(owner)

    @staticmethod
    def discard(owner: str) -> None:
        scheduler().process.owners.discard(owner)

    def __contains__(self, owner: object) -> bool:
        return owner in scheduler().process.owners


class _StateLock:
    """The lock on the state table, of which each process has one."""

    def __enter__(self) -> None:
        running = scheduler()
        process, me = running.process, running.current
        if process.state_lock_holder is not me:
            running.wait(lambda: process.state_lock_holder is None)
            process.state_lock_holder = me
        process.state_lock_depth += 1

    def __exit__(self, *_: object) -> None:
        process = scheduler().process
        process.state_lock_depth -= 1
        if not process.state_lock_depth:
            process.state_lock_holder = None


def _process_started(pid: int) -> str | None:
    me = scheduler().process
    for task in scheduler().tasks:
        process = task.process
        if process is not None and (process.host, process.pid) == (me.host, pid) and not process.is_dead:
            return process.started
    return None


def _why_unreachable(store: SimulatedStore, folder: str = "") -> str | None:
    del folder
    return None if store.has_conditional_writes else "only Hadoop's file systems reach it"


def _open_control(session: Session, files: Any, labels: Any, tag: int, *, has_loads: bool) -> str:
    del session, labels, tag
    files.make_directory("control")
    return CONTROL_DDL


def _open_segments(files: Any, _: int | None, *, names_files: bool) -> str:
    del names_files
    files.make_directory("segments")
    return str(files.path("segments"))


class _HistoryHolds:
    def __init__(self, *_: Any) -> None:
        pass

    @staticmethod
    def around(write: Any) -> Any:
        return write


class _FileTarget:
    @staticmethod
    def at(session: Session, location: str, *_: Any) -> Any:
        # The workers' files are on the simulated disk, where the commit alone looks for them.
        return None if session.disk.spark_writes else SimpleNamespace(folder=location, is_local=False)


class _StoredState:
    @staticmethod
    def of_snapshot(table: StateTable, snapshot: Any) -> Any:
        return [json.loads(row.header) for row in table.headers(snapshot)], table.contents(snapshot)


class _Messages:
    """The rows of an old state, which Spark writes as files of the control input."""

    def __init__(self, session: Session, state: Any, *_: Any) -> None:
        self._session, self._state = session, state

    @property
    def write(self) -> _Messages:
        return self

    def mode(self, _: str) -> _Messages:
        return self

    def parquet(self, path: str) -> None:
        headers, contents = self._state
        total = {name: sum(each["counters"][name] for each in headers) for name in headers[0]["counters"]}
        waiting = [row for each in contents.collect() for row in json.loads(each.content)]
        waiting = [row for row in waiting if row >= headers[0]["at"]["right"] * RIGHT_ROWS]
        disk = self._session.disk
        disk.operate(
            "delete directory",
            path,
            lambda: [disk.remove(each) for each in disk.all_below(path)],
        )
        message = {"at": headers[0]["at"], "counters": total, "waiting": sorted(waiting)}
        write_rows(disk, path, f"part-{uuid.uuid4()}.parquet", [message])


def _write_progress(table: Any, rows: Any) -> Any:
    name, folder = f"part-{uuid.uuid4()}.parquet", table._path
    return write_rows(table._files._disk, folder, name, rows)


_REAL_UUID4 = uuid.uuid4


def _uuid4() -> uuid.UUID:
    if not is_simulated():
        # A draw of another thread would change the history.
        return _REAL_UUID4()
    return uuid.UUID(int=scheduler().random.getrandbits(128), version=4)


def _emptied(*_: Any) -> None:
    return None


_SEAMS: dict[str, dict[str, Any]] = {
    "cojoin.checkpoints.identity": {"time": SimulatedTime},
    "cojoin.checkpoints.lease": {
        "time": SimulatedTime,
        "threading": SimulatedThreads,
        "os": _System,
        "socket": _System,
        "process_started": _process_started,
        "_owners": _Owners(),
        # A heartbeat is looked at every few seconds, so that a history does not consist of that.
        "_POLL_SECONDS": 4.0,
    },
    "cojoin.session.spark_checkpoint": {
        "planned_entry": lambda *_: json.dumps({"batchTimestampMs": int(1000 * scheduler().now)}),
        "compact_interval": lambda _: 10,
    },
    # Few manifests and small groups, so that cleaning happens within short histories.
    "cojoin.checkpoints.segment_files": {"KEPT_MANIFESTS": 3},
    # A savepoint is taken for interrupted while a driver still stands still.
    "cojoin.checkpoints.snapshots": {"time": SimulatedTime, "_SAFE_SECONDS": 60.0},
    "cojoin.checkpoints.state_commits": {"write_rows": write_state_rows, "why_unreachable": _why_unreachable},
    "cojoin.checkpoints.savepoint": {
        "STATE_LOCK": _StateLock(),
        "os": _System,
        "socket": _System,
        "check_segments": simulated_join.check_segments,
        "snapshot_rows": simulated_join.snapshot_rows,
    },
    "cojoin.checkpoints.progress_table": {
        "time": SimulatedTime,
        "threading": SimulatedThreads,
        "F": Functions,
        "why_unreachable": _why_unreachable,
        "progress_rows": lambda manifests: [{"batch_id": each.batch_id} for each in manifests],
        "_GROUP_BATCHES": 4,
        "_KEPT_MANIFESTS": 5,
    },
    "cojoin.checkpoints.progress_table:ProgressTable": {"_write_file": _write_progress},
    "cojoin.storage.documents": {"json": _Json, "_content": _content},
    "cojoin.delta.deltalake_table": {"why_unreachable": _why_unreachable},
    "cojoin.delta.table_checks": {"nullable_schema": lambda _: COLUMNS},
    "cojoin.delta.table_batches": {"why_unreachable": _why_unreachable},
    "cojoin.delta.table_writer": {**simulated_deltalake.SEAMS, "nullable_schema": lambda _: COLUMNS},
    "cojoin.session.classic_session:ClassicSession": {
        "open_store": lambda adapter, root, what: adapter.spark.store(root, what),
        "encrypts_files": lambda adapter: adapter.spark.disk.spark_writes,
        "hadoop_setting": lambda _, name: "org.example.Files" if name.startswith("fs.AbstractFileSystem.") else None,
        "setting_names": lambda _: [],
        "check_delta": lambda _: None,
    },
    "cojoin.spark.sinks.delta_sink": {"FileTarget": _FileTarget},
    "cojoin.spark.savepoints.restore": {
        "state_messages": _Messages,
        "StoredState": _StoredState,
        "_check_states": _emptied,
    },
    "cojoin.spark.query.batch_protocol": {
        "time": SimulatedTime,
        "threading": SimulatedThreads,
        "STATE_LOCK": _StateLock(),
    },
    "cojoin.spark.query.query": {
        "time": SimulatedTime,
        "threading": SimulatedThreads,
        "_STARTING": contextlib.nullcontext(),
    },
    "cojoin.spark.query.start": {
        "open_control": _open_control,
        "open_segments": _open_segments,
        "runs_python": lambda _: False,
        "BatchWriter": SimulatedBatchWriter,
        "HistoryHolds": _HistoryHolds,
        "InputStreams": SimpleNamespace(of=lambda _: SimpleNamespace(lines=(1, 1), logs=(None, None))),
        # Rows are numbers here, so no table has columns to compare.
        "_check_tables": lambda *_: None,
    },
    "uuid": {"uuid4": _uuid4},
}


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Replace every name of the table within the block."""
    # Importing OpenTelemetry draws ids, which in the midst of a history would be draws of its own.
    process_instruments()
    before = []
    for place, names in _SEAMS.items():
        module, _, attribute = place.partition(":")
        holder: Any = importlib.import_module(module)
        holder = getattr(holder, attribute) if attribute else holder
        for name, value in names.items():
            before.append((holder, name, getattr(holder, name)))
            setattr(holder, name, value)
    try:
        yield
    finally:
        for holder, name, value in reversed(before):
            setattr(holder, name, value)
