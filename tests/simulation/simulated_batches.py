"""Drivers that append or upsert batches to one Delta table, with the writers as they are, and the laws.

The writers are ``TableBatches``, ``TableWriter`` and ``TableUpsert``; only files of rows are simulated.

Each driver has an epoch of its own, fences the table, looks for its newest batch and appends those that follow. The
operator starts drivers beside others that stand still or go on, kills some, and lets strangers write. Two compactors
replace files by others with the same rows. After it all a last driver, which nothing disturbs, appends what is missing.

- No batch is there twice, none is lost, and every file of the log is there. With upserts each key has one row, which is
  that of the right batch, and no row of a stranger is lost or doubled.
- After a driver has fenced the table, or has committed to it, no driver of an earlier epoch commits.
- No commit is made while the table has a constraint, and the version that a commit returns has its batch.
- Every error says what was done to the driver.

Where others look for a commit and then write it, one of ours may be lost; then its driver stops, and the next one finds
the batch missing. What a table that was deleted had is gone, and a later driver begins again.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from cojoin.delta import table_writer
from cojoin.delta.actions import DataFile
from cojoin.delta.table_batches import FENCE, TableBatches
from cojoin.delta.table_log import TableLog, commit_name
from cojoin.delta.table_writer import Change, NewTable, TableWriter
from cojoin.engine.upsert import Upsert
from cojoin.errors import CojoinError, QueryFailedError
from cojoin.spark.batch.written_files import FileTarget
from cojoin.spark.sinks import delta_upsert
from cojoin.spark.sinks.batch_rows import BatchRows, FileRows
from cojoin.spark.sinks.delta_upsert import TableUpsert
from cojoin.storage.parquet_files import WrittenFile
from tests.simulation import simulated_clock
from tests.simulation.faults import INJECTED, Fault
from tests.simulation.simulated_clock import Process, Scheduler, StuckError, scheduler
from tests.simulation.simulated_deltalake import SEAMS, actions_of
from tests.simulation.simulated_disk import Disk
from tests.simulation.simulated_store import SimulatedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cojoin.delta.table_writer import Committed
    from cojoin.storage.store import Store

__all__ = ["KINDS", "BatchPlan", "BatchWorld", "run", "simulated_tables"]

_SCHEMA = pa.schema([("id", pa.int64())])
_CODED = pa.schema([("key", pa.int64()), ("batch", pa.int64())])
_APP, _FOLDER, _BATCHES = "cojoin-x-output", "out", 6
_TABLE, _LOG = f"/lake/{_FOLDER}", f"/lake/{_FOLDER}/_delta_log"
_CONSTRAINT = "delta.constraints.positive"
_STRANGE = 1_000
"""The least id of a row that is a stranger's."""

KINDS = ("alone", "compacted", "strangers", "constrained", "overwritten", "deleted")
_FAULTS = (
    *(("pause", each) for each in ("delta commit", "delta look", "read", "size", "write rows", "list")),
    *(("answer lost", each) for each in ("delta commit", "write rows")),
    *(("crash after", each) for each in ("delta commit", "write rows")),
    *(("crash before", each) for each in ("delta commit", "read")),
    *(("fails", each) for each in ("delta commit", "delta look", "read", "list")),
    ("torn", "delta commit"),
)
_TOLD = (INJECTED, "fenced off", "others commit to it at the same time")
"""What an error may say in any history, and below in those of a kind."""

_TOLD_OF = {
    "alone": (),
    "compacted": ("that this commit removes are gone",),
    "strangers": (),
    "constrained": ("its CHECK constraint 'positive' does not allow this commit",),
    "overwritten": ("was made and is that of another writer", "the table lacks"),
    "deleted": ("the table lacks",),
}


@dataclass(frozen=True)
class BatchPlan:
    """What happens in a history, apart from which task runs when.

    Attributes:
        seed: It decides which task runs when, and all other random numbers.
        kind: Who writes beside the drivers: one of ``KINDS``.
        switching: How often another task runs at an operation.
        fences: Whether the drivers have epochs, and fence the table.
        creates: Whether a driver makes the table when it fences it; else the first batch does.
        starts: When the drivers start, in seconds.
        kills: When one of them is killed.
        faults: What goes wrong.
        upserts: By which rule the drivers upsert their rows; None where they append them.
    """

    seed: int
    kind: str
    switching: float
    fences: bool
    creates: bool
    starts: tuple[float, ...]
    kills: tuple[float, ...]
    faults: tuple[Fault, ...]
    upserts: Literal["last", "first"] | None = None

    @classmethod
    def of(cls, seed: int) -> BatchPlan:
        """Return the plan of a seed."""
        draw = random.Random(f"batches {seed}")
        faults = []
        for _ in range(draw.randint(0, 3)):
            kind, operation = draw.choice(_FAULTS)
            wakes = draw.choice((0, draw.randint(1, 60)))
            faults.append(
                Fault(kind, operation, draw.choice((0, 0, 1, 2, 3, 5, 8, 13)), draw.randint(5, 60), None, wakes)
            )
        return cls(
            seed,
            draw.choice(KINDS),
            draw.choice((0.02, 0.1, 0.3)),
            draw.random() < 0.8,
            draw.random() < 0.6,
            tuple(
                sorted(draw.choice((0.0, draw.uniform(0, 3), draw.uniform(0, 20))) for _ in range(draw.randint(2, 3)))
            ),
            tuple(draw.uniform(0, 10) for _ in range(draw.choice((0, 0, 1)))),
            tuple(faults),
            draw.choice((None, None, "last", "first")),
        )


@dataclass
class BatchWorld:
    """The disk, the drivers, and what was noticed while they ran."""

    plan: BatchPlan
    broken: list[str] = field(default_factory=list)
    errors: list[tuple[str, BaseException]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(random.Random(self.plan.seed), self.plan.switching, 4_000)
        self.disk = Disk(self.scheduler, has_conditional_writes=True, loses_power=False)
        self.disk.on_put, self.disk.is_overwritten = self._note, self.plan.kind == "overwritten"
        self.fenced = 0
        """The epoch before which no driver may commit."""
        self.is_healed = self._is_strange = False
        self._processes = self._strangers = self._busy = self._made = 0

    def __str__(self) -> str:
        start = self.disk.history[0][0] if self.disk.history else 0.0
        lines = [
            f"  {moment - start:8.2f}s  {who:<24} {what:<14} {name:<60} {note}"
            for moment, who, what, name, note in self.disk.history
        ]
        return "\n".join([str(self.plan), *lines, *(f"BROKEN: {each}" for each in self.broken)])

    def spawn(self, what: str, target: Callable[[], None], epoch: int = 0) -> Process:
        """Start a process, whose errors are kept."""
        self._processes += 1
        process = Process(f"{what} {self._processes}", "one", self._processes)
        # A pause counts the operations of those that hold a lease.
        process.epoch, process.owners = epoch, {"a lease"}
        self.disk.processes.append(process)

        def main() -> None:
            try:
                target()
            except CojoinError as error:
                self.disk.tell("error", "", str(error))
                self.errors.append((process.name, error))
            process.is_done = True

        self.scheduler.spawn(process, "main", main)
        return process

    def drive(self, epoch: int) -> Process:
        """Start a driver."""
        return self.spawn(f"driver {epoch}", lambda: self._drive(epoch), epoch)

    def _drive(self, epoch: int) -> None:
        plan, new = self.plan, NewTable(_SCHEMA) if self.plan.creates else None
        known = epoch if plan.fences else None
        if plan.upserts is None:
            batches = TableBatches(self._store, _FOLDER, _APP, known)
        else:
            batches = TableBatches(SimulatedStore(self.disk, _TABLE), "", _APP, known, replaces=True)
        self._in(lambda: batches.fence("x", new))
        if plan.fences and plan.creates:
            self.fenced = max(self.fenced, epoch)
        newest = self._in(batches.look)[1]
        for batch_id in range(newest + 1, _BATCHES):
            self._append(batches, epoch, batch_id)
            scheduler().sleep(self.scheduler.random.random())

    def _append(self, batches: TableBatches, epoch: int, batch_id: int) -> None:
        """Append a batch of one row, the batch's number; now and then its file is not where the driver looks."""
        is_seen = self.scheduler.random.random() < 0.98
        rows = [batch_id] if self.plan.upserts is None else [_code(batch_id, key) for key in _keys(batch_id)]
        file = self._written(f"part-{epoch}-{batch_id}.parquet", rows, is_seen=is_seen)

        def is_done(newest: int) -> bool:
            if newest < batch_id - 1:
                msg = f"the table lacks batches {newest + 1} to {batch_id - 1}"
                raise QueryFailedError(msg)
            return newest >= batch_id

        if self.plan.upserts is None:
            done = self._in(lambda: batches.append(_SCHEMA, [file], batch_id, query_id="x", is_done=is_done))
        else:
            done = self._in(lambda: self._upsert(batches, file, batch_id, is_done))
        version = done.version
        newest = max(_ids(each).get(_APP, -1) for each in self.commits(version))
        if newest < batch_id:
            self.broken.append(f"version: batch {batch_id} is not in version {version}, which its commit returned")

    def _upsert(
        self, batches: TableBatches, file: WrittenFile, batch_id: int, is_done: Callable[[int], bool]
    ) -> Committed:
        """Upsert a file of rows as ``DeltaWriter`` does."""
        assert self.plan.upserts is not None
        target: Any = FileTarget(_TABLE, _CODED, settings=self)  # type: ignore[arg-type]  # where the files are made
        rule = Upsert(("key",), self.plan.upserts)
        source: Any = SimulatedRows(batches.store)
        rows = BatchRows(source, _CODED, rule, ("batch",), [file])
        upsert = TableUpsert(batches.store, source, target, rows, may_leave=False)
        named: list[WrittenFile] = []

        def plan(present: Sequence[DataFile]) -> tuple[Sequence[WrittenFile], Sequence[DataFile]]:
            named[:], removed = upsert(present)
            return named, removed

        done = batches.replace(_SCHEMA, plan, batch_id, query_id="x", is_done=is_done)
        if done.is_new:
            upsert.clean(named)
        return done

    def made(self, rows: list[int], prefix: str) -> WrittenFile:
        """Write a file of an upsert."""
        self._made += 1
        return self._written(f"made-{prefix}-{scheduler().process.pid}-{self._made}.parquet", rows)

    def compact(self) -> None:
        """Replace the first two files of the table by one, some times."""
        log, writer = TableLog(self._store, _FOLDER), TableWriter(self._store, _FOLDER)
        for number in range(3):
            scheduler().sleep(2 * self.scheduler.random.random())
            found = log.newest()
            files = [] if found is None else log.files(found.version)[:2]
            if len(files) < 2:
                continue
            rows = [
                row for each in files for row in json.loads(self._store.read_bytes(f"{_FOLDER}/{each.path}") or b"[]")
            ]
            made = self._written(f"compact-{scheduler().process.pid}-{number}.parquet", rows)
            kept = [DataFile(made.name, made.size, made.modified, made.statistics)]
            change = Change({"compaction": number}, _SCHEMA, kept, files, changes_data=False)
            writer.commit(change, lambda _: False)

    def strange(self) -> None:
        """Commit as a stranger, some times: a row, a property, or a constraint that is dropped again."""
        kinds = ("constrain", "drop") if self.plan.kind == "constrained" else ("append", "append", "property")
        for _ in range(12):
            scheduler().sleep(self.scheduler.random.random() / 2)
            self._commit_as_stranger(self.scheduler.random.choice(kinds))

    def _commit_as_stranger(self, kind: str) -> None:
        commits = self.commits()
        if not commits:
            return
        actions = [self._stranger()] if kind == "append" else [{"metaData": _metadata(commits, kind)}]
        path = f"{_TABLE}/{commit_name(len(commits))}"

        def effect() -> None:
            if path not in self.disk.files:
                self._put_as_stranger(path, actions)

        self.disk.operate("delta commit", path, effect, error=QueryFailedError)

    def _stranger(self) -> dict[str, Any]:
        self._strangers += 1
        name, content = f"strange-{self._strangers}.parquet", json.dumps([_STRANGE + self._strangers]).encode()
        self.disk.put(f"{_TABLE}/{name}", content)
        return {
            "add": {
                "path": name,
                "partitionValues": {},
                "size": len(content),
                "modificationTime": 1,
                "dataChange": True,
            }
        }

    def _put_as_stranger(self, path: str, actions: list[dict[str, Any]]) -> None:
        content = "\n".join(json.dumps(each) for each in ({"commitInfo": {"operation": "WRITE"}}, *actions)).encode()
        self._is_strange = True
        self.disk.put(path, content)
        self._is_strange = False
        self.disk.tell("by a stranger", path)

    def disturb(self) -> None:
        """Delete the table, or overwrite its newest commit, while no driver is using it."""
        for _ in range(12):
            scheduler().sleep(self.scheduler.random.random())
            commits = self.commits()
            if self._busy or len(commits) < 2 or self.is_healed:
                continue
            if self.plan.kind == "deleted":
                self.disk.tell("deletes the table")
                for path in self.disk.all_below(_LOG):
                    self.disk.remove(path)
                self.fenced = 0
                return
            if not any(f"{len(commits) - 1:020d}.checkpoint" in path for path in self.disk.all_below(_LOG)):
                self._overwrite(f"{_TABLE}/{commit_name(len(commits) - 1)}")

    def _overwrite(self, path: str) -> None:
        self._put_as_stranger(path, [self._stranger()])
        self.fenced = max((_ids(each).get(f"{FENCE}{_APP}", 0) for each in self.commits()), default=0)

    def _note(self, path: str, _: bytes) -> None:
        """Note a commit of a driver: who made it, and when; perhaps another writes over it at once."""
        if self._is_strange or not (
            path.startswith(f"{_LOG}/0") and path.endswith(".json") and "checkpoint" not in path
        ):
            return
        process = self.scheduler.process
        if self.plan.fences and process.epoch and process.epoch < self.fenced:
            self.broken.append(f"zombie: epoch {process.epoch} has committed {path} after epoch {self.fenced} began")
        if any(_CONSTRAINT in each["metaData"]["configuration"] for each in _last_metadata(self.commits())):
            self.broken.append(f"constraint: {process.name} has committed {path} although the table has a constraint")
        is_first = path.endswith(f"{0:020d}.json")
        if self.disk.is_overwritten and not (is_first or self.is_healed) and self.scheduler.random.random() < 0.1:
            self._overwrite(path)
        elif self.plan.fences:
            self.fenced = max(self.fenced, process.epoch)

    def _in(self, call: Callable[[], Any]) -> Any:
        """Use the table; nobody deletes it meanwhile."""
        self._busy += 1
        try:
            return call()
        finally:
            self._busy -= 1

    @property
    def _store(self) -> SimulatedStore:
        return SimulatedStore(self.disk, "/lake")

    def _written(self, name: str, rows: list[int], *, is_seen: bool = True) -> WrittenFile:
        """Write a data file, which is somewhere else where it is not seen."""
        path, content = f"{_TABLE if is_seen or self.is_healed else '/elsewhere'}/{name}", json.dumps(rows).encode()
        self.disk.operate("write rows", path, lambda: self.disk.put(path, content), error=QueryFailedError)
        return WrittenFile(
            name, len(rows), len(content), int(1000 * self.scheduler.now), json.dumps({"numRecords": len(rows)})
        )

    def commits(self, until: int | None = None) -> list[tuple[dict[str, Any], ...]]:
        """Return the actions of each commit, oldest first."""
        found: list[tuple[dict[str, Any], ...]] = []
        while until is None or len(found) <= until:
            file = self.disk.files.get(f"{_TABLE}/{commit_name(len(found))}")
            if file is None:
                break
            found.append(actions_of(file.content))
        return found

    def check(self) -> Iterator[str]:
        """Return the laws that were broken, as sentences, once all has ended."""
        yield from self._check_errors()
        yield from self._check_rows()

    def _check_errors(self) -> Iterator[str]:
        told = (*_TOLD, *_TOLD_OF[self.plan.kind], "found no such file")
        for who, error in self.errors:
            if not any(each in str(error) for each in told):
                yield f"error: {who} stopped with one that nothing explains: {type(error).__name__}: {error}"
        for each in self.disk.processes:
            if each.error is not None:
                yield f"error: {each.name}: {type(each.error).__name__}: {each.error}"

    def _check_rows(self) -> Iterator[str]:
        active: dict[str, Any] = {}
        for commit in self.commits():
            for action in commit:
                if "remove" in action:
                    active.pop(action["remove"]["path"], None)
            active.update((action["add"]["path"], action) for action in commit if "add" in action)
        rows: Counter[int] = Counter()
        for name in active:
            file = self.disk.files.get(f"{_TABLE}/{name}")
            if file is None:
                yield f"unreadable: {name} is in the table's log and not there"
            else:
                rows.update(json.loads(file.content))
        double = sorted(row for row, count in rows.items() if count > 1)
        if double:
            yield f"double: the table has rows twice: {double}"
        if self.plan.upserts is not None:
            yield from self._check_upserted(rows)
            return
        lost = sorted(set(range(_BATCHES)) - set(rows))
        if lost:
            yield f"lost: the table lacks rows: {lost}"

    def _check_upserted(self, rows: Counter[int]) -> Iterator[str]:
        batches = range(_BATCHES) if self.plan.upserts == "last" else range(_BATCHES - 1, -1, -1)
        wanted = {key: _code(batch_id, key) for batch_id in batches for key in _keys(batch_id)}
        found = sorted(row for row in rows if row < _STRANGE)
        if found != sorted(wanted.values()):
            yield f"upserts: the table has rows {found}, and {sorted(wanted.values())} are those of the right batches"


def _keys(batch_id: int) -> tuple[int, ...]:
    """Return the keys of a batch's rows."""
    return batch_id % 4, (batch_id + 1) % 4


def _code(batch_id: int, key: int) -> int:
    """Return a row of a key as a number."""
    return 10 * (batch_id + 1) + key


class SimulatedRows(FileRows):
    """Files whose rows are numbers: a stranger's is its own key, and any other has key and batch (``FileRows``)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, name: str, schema: pa.Schema) -> Iterator[pa.Table]:
        content = self._store.read_bytes(name)
        if content is None:
            msg = f"file {name}: found no such file"
            raise QueryFailedError(msg)
        rows = json.loads(content)
        columns = {
            "key": [row if row >= _STRANGE else row % 10 for row in rows],
            "batch": [0 if row >= _STRANGE else row // 10 for row in rows],
        }
        yield pa.table({column: columns[column] for column in schema.names}, schema=schema)


class _SimulatedFile:
    """A file that an upsert writes: ``TargetFile``."""

    def __init__(self, target: Any, prefix: str) -> None:
        self._world, self._prefix = target.settings, prefix
        self._rows: list[int] = []

    def add(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            self._rows.append(row["key"] if row["key"] >= _STRANGE else 10 * row["batch"] + row["key"])

    def close(self) -> WrittenFile:
        written: WrittenFile = self._world.made(self._rows, self._prefix)
        return written


def _ids(commit: tuple[dict[str, Any], ...]) -> dict[str, int]:
    return {each["txn"]["appId"]: each["txn"]["version"] for each in commit if "txn" in each}


def _last_metadata(commits: list[tuple[dict[str, Any], ...]]) -> list[dict[str, Any]]:
    return [each for commit in commits for each in commit if "metaData" in each][-1:]


def _metadata(commits: list[tuple[dict[str, Any], ...]], kind: str) -> dict[str, Any]:
    found = dict(_last_metadata(commits)[0]["metaData"])
    others = {name: value for name, value in found["configuration"].items() if name != _CONSTRAINT}
    new = {"constrain": {_CONSTRAINT: "id >= 0"}, "drop": {}, "property": {"delta.appendOnly": "false"}}[kind]
    return {**found, "configuration": {**others, **new}}


@contextlib.contextmanager
def simulated_tables() -> Iterator[None]:
    """Replace ``deltalake`` within the block."""
    before = {name: getattr(table_writer, name) for name in SEAMS}
    file = delta_upsert.TargetFile
    vars(table_writer).update(SEAMS)
    vars(delta_upsert).update(TargetFile=_SimulatedFile)
    try:
        yield
    finally:
        vars(table_writer).update(before)
        vars(delta_upsert).update(TargetFile=file)


def run(plan: BatchPlan) -> BatchWorld:
    """Run a history, and return what happened and which laws it broke; it needs ``simulated_tables``."""
    world = BatchWorld(plan)
    running = world.scheduler
    simulated_clock._current.append(running)
    try:
        for fault in plan.faults:
            world.disk.arm(fault)
        if plan.kind in ("strangers", "constrained"):
            world.spawn("a stranger", world.strange)
        elif plan.kind == "compacted":
            for _ in range(2):
                world.spawn("a compactor", world.compact)
        elif plan.kind in ("overwritten", "deleted"):
            world.spawn("someone", world.disturb)
        _operate(world)
        _heal(world)
    except StuckError as error:
        world.broken.append(f"stuck: {error}")
    finally:
        running.end()
        simulated_clock._current.pop()
    world.broken += world.check()
    return world


def _operate(world: BatchWorld) -> None:
    """Start the drivers, and kill some."""
    running, plan, began = world.scheduler, world.plan, world.scheduler.now
    moments = [(each, True) for each in plan.starts] + [(each, False) for each in plan.kills]
    drivers: list[Process] = []
    for moment, is_start in sorted(moments):
        running.sleep(max(0.0, began + moment - running.now))
        if is_start:
            drivers.append(world.drive(1 + len(drivers)))
        elif drivers:
            running.random.choice(drivers).is_dead = True
    running.wait(lambda: all(each.is_done or each.is_dead for each in world.disk.processes), 100.0)


def _heal(world: BatchWorld) -> None:
    """Let nothing go wrong any more, and let a last driver append what is missing."""
    world.is_healed = True
    world.disk.disarm()
    for each in world.disk.processes:
        each.is_dead = True
    world.scheduler.wait(lambda: not world.scheduler.tasks)
    commits = world.commits()
    if _last_metadata(commits):
        path = f"{_TABLE}/{commit_name(len(commits))}"
        world._put_as_stranger(path, [{"metaData": _metadata(commits, "drop")}])
    last = world.drive(10)
    world.scheduler.wait(lambda: last.is_done, 600.0)
    if not last.is_done or any(who == last.name for who, _ in world.errors):
        world.broken.append(f"error: a driver that nothing disturbs did not end well: {world.errors[-1:]}")
