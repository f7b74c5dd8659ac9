"""Drivers that upsert batches into one table of a database, with ``SqlWriter`` as it is, and the laws.

The database is SQLite in memory, with one transaction at a time; who asks for a second one waits. Connections are lost,
also after a commit was made and before its answer; drivers stand still within a transaction, and are killed. A driver
that takes over ends the sessions of the others. A stranger updates rows of other keys. After it all a last driver,
which nothing disturbs, writes what is missing.

- Each key has one row, which is that of the right batch, and the stranger's rows are as it has committed them.
- After a driver has fenced the table, or has committed to it, no driver of an earlier epoch commits.
- Every error says what was done to the driver.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cojoin.engine.upsert import Upsert
from cojoin.errors import CojoinError, QueryFailedError
from cojoin.spark.sinks.batch_marker import BatchMarker
from cojoin.spark.sinks.batch_rows import BatchRows
from cojoin.spark.sinks.sink import OutputId, Position
from cojoin.sql import sql_sink
from cojoin.sql.database import DatabaseError
from cojoin.sql.sql_sink import SqlSink, SqlWriter
from cojoin.sql.sqlite import Sqlite, SqliteSession
from cojoin.storage.parquet_files import WrittenFile
from tests.simulation import simulated_clock
from tests.simulation.faults import INJECTED, Fault
from tests.simulation.simulated_batches import _CODED, SimulatedRows, _code, _keys
from tests.simulation.simulated_clock import Process, Scheduler, StuckError, scheduler
from tests.simulation.simulated_disk import Disk
from tests.simulation.simulated_store import SimulatedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["DatabasePlan", "DatabaseWorld", "run", "without_pauses"]

_BATCHES, _FOLDER, _STRANGE = 6, "/lake/staged", 1_000
_FAULTS = (
    *(("pause", each) for each in ("sql", "sql commit", "sql connect", "write rows")),
    *((kind, "sql commit") for kind in ("answer lost", "crash after", "crash before", "fails")),
    *((kind, each) for kind in ("fails", "crash before") for each in ("sql", "sql connect")),
)
_TOLD = (INJECTED, "fenced off", "another run has continued meanwhile", "the session was ended", "a lock is held")
"""What an error may say."""


@dataclass(frozen=True)
class DatabasePlan:
    """What happens in a history, apart from which task runs when.

    Attributes:
        seed: It decides which task runs when, and all other random numbers.
        rule: By which rule rows are upserted.
        switching: How often another task runs at an operation.
        starts: When the drivers start, in seconds.
        kills: When one of them is killed.
        faults: What goes wrong.
    """

    seed: int
    rule: Upsert
    switching: float
    starts: tuple[float, ...]
    kills: tuple[float, ...]
    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, seed: int) -> DatabasePlan:
        """Return the plan of a seed."""
        draw = random.Random(f"database {seed}")
        faults = []
        for _ in range(draw.randint(0, 3)):
            kind, operation = draw.choice(_FAULTS)
            wakes = draw.choice((0, draw.randint(1, 60)))
            faults.append(Fault(kind, operation, draw.randint(0, 40), draw.randint(5, 60), None, wakes))
        return cls(
            seed,
            Upsert(("key",), draw.choice(("last", "first")), draw.choice(((), ("batch",)))),
            draw.choice((0.02, 0.1, 0.3)),
            tuple(
                sorted(draw.choice((0.0, draw.uniform(0, 3), draw.uniform(0, 20))) for _ in range(draw.randint(2, 3)))
            ),
            tuple(draw.uniform(0, 10) for _ in range(draw.choice((0, 0, 1)))),
            tuple(faults),
        )


_numbers = itertools.count()


class _Database(Sqlite):
    """The database of a history."""

    def __init__(self, world: DatabaseWorld) -> None:
        super().__init__("sqlite:////simulated.db")
        self._world, self._place = world, f"file:simulated{next(_numbers)}?mode=memory&cache=shared"
        self.kept = self.opened()
        """It keeps the content as long as the history lasts."""

        self.holder: _Session | None = None
        self.sessions: list[_Session] = []

    def opened(self) -> sqlite3.Connection:
        return sqlite3.connect(self._place, uri=True, isolation_level=None, timeout=0, check_same_thread=False)

    def is_free(self) -> bool:
        return self.holder is None or self.holder.process.is_dead

    def connect(self, application: str) -> _Session:
        def effect() -> _Session:
            session = _Session(self, self.opened(), self._world, application)
            self.sessions.append(session)
            return session

        return self._world.operate("sql connect", "", effect)

    def fence_off(self, application: str) -> None:
        def effect() -> None:
            for session in list(self.sessions):
                if session.application == application and session.process is not scheduler().process:
                    session.cut()

        self._world.operate("sql", "end other sessions", effect)


class _Session(SqliteSession):
    """A session of a process, which the server ends where the process is killed."""

    def __init__(
        self, database: _Database, connection: sqlite3.Connection, world: DatabaseWorld, application: str
    ) -> None:
        super().__init__(database, connection)
        self._owner, self._world, self.application = database, world, application
        self.process, self.is_cut = scheduler().process, False

    def cut(self) -> None:
        """End the session: its transaction is rolled back."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._release()
        self.is_cut = True

    def _release(self) -> None:
        if self._owner.holder is self:
            self._owner.holder = None

    def _begin(self) -> None:
        owner = self._owner
        while owner.holder is not self:
            if owner.holder is None:
                self._look()
                self._connection.execute("BEGIN IMMEDIATE")
                owner.holder = self
            elif owner.holder.process.is_dead:
                owner.holder.cut()
            elif not scheduler().wait(owner.is_free, 60.0):
                msg = "a lock is held"
                raise DatabaseError(msg)
        self._look()

    def _look(self) -> None:
        if self.is_cut:
            msg = "the session was ended"
            raise DatabaseError(msg, is_lost=True)

    def execute(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        self._look()
        self._begin()
        return self._operate("sql", statement[:40], lambda: SqliteSession.execute(self, statement, values))

    def commit(self) -> None:
        def effect() -> None:
            self._look()
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")
                self._world.note(self.process)
            self._release()

        self._look()
        self._operate("sql commit", "", effect)

    def _operate(self, operation: str, name: str, effect: Callable[[], Any]) -> Any:
        def checked() -> Any:
            self._look()
            return effect()

        try:
            return self._world.operate(operation, name, checked)
        except DatabaseError:
            self.cut()
            raise

    def rollback(self) -> None:
        if not self.is_cut:
            self.cut()

    def close(self) -> None:
        if self in self._owner.sessions:
            self.cut()
            self._owner.sessions.remove(self)
            self._connection.close()


@dataclass(frozen=True)
class _Sink(SqlSink):
    """The table of a history."""

    made: Any = None

    @property
    def database(self) -> Any:
        return self.made


@dataclass
class DatabaseWorld:
    """The database, the drivers, and what was noticed while they ran."""

    plan: DatabasePlan
    broken: list[str] = field(default_factory=list)
    errors: list[tuple[str, BaseException]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(random.Random(self.plan.seed), self.plan.switching, 8_000)
        self.disk = Disk(self.scheduler, has_conditional_writes=True, loses_power=False)
        self.database = _Database(self)
        self.fenced = self._processes = self._files = 0
        self.strange: dict[int, int] = {}
        """The stranger's rows, as it has committed them."""

    def __str__(self) -> str:
        start = self.disk.history[0][0] if self.disk.history else 0.0
        lines = [
            f"  {moment - start:8.2f}s  {who:<24} {what:<14} {name:<60} {note}"
            for moment, who, what, name, note in self.disk.history
        ]
        return "\n".join([str(self.plan), *lines, *(f"BROKEN: {each}" for each in self.broken)])

    def operate(self, operation: str, name: str, effect: Callable[[], Any]) -> Any:
        return self.disk.operate(operation, name, effect, error=lambda text: DatabaseError(text, is_lost=True))

    def note(self, process: Process) -> None:
        """Note a commit of a driver."""
        if process.epoch and process.epoch < self.fenced:
            self.broken.append(f"zombie: epoch {process.epoch} has committed after epoch {self.fenced} began")
        self.fenced = max(self.fenced, process.epoch)

    def spawn(self, what: str, target: Callable[[], None], epoch: int = 0) -> Process:
        """Start a process, whose errors are kept."""
        self._processes += 1
        process = Process(f"{what} {self._processes}", "one", self._processes)
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
        sink = _Sink("sqlite:////simulated.db", "rows", self.plan.rule, self.database)
        output = OutputId("x", "output", epoch, takes_over=epoch > 1, schema=_CODED, order=("batch",))
        writer = SqlWriter(None, sink, output)  # type: ignore[arg-type]  # its files are given
        if output.takes_over:
            self.database.fence_off(writer._application)
        position = Position("/checkpoint", 0, {})
        fence = writer._transact(lambda session: writer._prepared(session, position, "here"))
        for batch_id in range(fence.batch_id + 1, _BATCHES):
            self._upsert(writer, batch_id)
            scheduler().sleep(self.scheduler.random.random())

    def _upsert(self, writer: SqlWriter, batch_id: int) -> None:
        rows = [_code(batch_id, key) for key in _keys(batch_id)]
        self._files += 1
        name, content = f"part-{self._files}.parquet", json.dumps(rows).encode()
        path = f"{_FOLDER}/{name}"
        self.disk.operate("write rows", path, lambda: self.disk.put(path, content), error=QueryFailedError)
        source: Any = SimulatedRows(SimulatedStore(self.disk, _FOLDER))
        batch = BatchRows(source, _CODED, self.plan.rule, ("batch",), [WrittenFile(name, len(rows), 0, 0, "")])
        marker = BatchMarker(batch_id, len(rows), batch_id, "offsets")
        writer._run(marker, lambda session: writer._upsert(session, batch))

    def disturb(self) -> None:
        """Update rows of other keys, some times."""
        for number in range(8):
            scheduler().sleep(2 * self.scheduler.random.random())
            session = self.database.connect("stranger")
            key = _STRANGE + number % 3
            try:
                if session.execute("SELECT 1 FROM sqlite_master WHERE name = 'rows'"):
                    session.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", [key, number])
                    session.commit()
                    self.strange[key] = number
            finally:
                session.close()

    def check(self) -> Iterator[str]:
        """Return the laws that were broken, as sentences, once all has ended."""
        for who, error in self.errors:
            if not any(each in str(error) for each in _TOLD):
                yield f"error: {who} stopped with one that nothing explains: {type(error).__name__}: {error}"
        for each in self.disk.processes:
            if each.error is not None:
                yield f"error: {each.name}: {type(each.error).__name__}: {each.error}"
        found = sorted(self.database.kept.execute("SELECT key, batch FROM rows").fetchall())
        batches = range(_BATCHES) if self.plan.rule.conflict == "last" else range(_BATCHES - 1, -1, -1)
        wanted = {key: batch_id + 1 for batch_id in batches for key in _keys(batch_id)}
        own = [row for row in found if row[0] < _STRANGE]
        if own != sorted(wanted.items()):
            yield f"upserts: the table has {own}, and {sorted(wanted.items())} are the right rows"
        theirs = {key: number for key, number in found if key >= _STRANGE}
        lost = {key: number for key, number in self.strange.items() if theirs.get(key, -1) < number}
        if lost:
            yield f"strangers: their rows {lost} are lost"


@contextlib.contextmanager
def without_pauses() -> Iterator[None]:
    """Let a transaction be tried again at once within the block."""
    before = sql_sink._PAUSE_SECONDS
    vars(sql_sink).update(_PAUSE_SECONDS=0.0)
    try:
        yield
    finally:
        vars(sql_sink).update(_PAUSE_SECONDS=before)


def run(plan: DatabasePlan) -> DatabaseWorld:
    """Run a history, and return what happened and which laws it broke; it needs ``without_pauses``."""
    world = DatabaseWorld(plan)
    running = world.scheduler
    simulated_clock._current.append(running)
    try:
        for fault in plan.faults:
            world.disk.arm(fault)
        world.spawn("a stranger", world.disturb)
        drivers: list[Process] = []
        began = running.now
        for moment, is_start in sorted([(each, True) for each in plan.starts] + [(each, False) for each in plan.kills]):
            running.sleep(max(0.0, began + moment - running.now))
            if is_start:
                drivers.append(world.drive(1 + len(drivers)))
            elif drivers:
                running.random.choice(drivers).is_dead = True
        running.wait(lambda: all(each.is_done or each.is_dead for each in world.disk.processes), 200.0)
        world.disk.disarm()
        for each in world.disk.processes:
            each.is_dead = True
        running.wait(lambda: not running.tasks)
        last = world.drive(10)
        running.wait(lambda: last.is_done, 600.0)
        if not last.is_done or any(who == last.name for who, _ in world.errors):
            world.broken.append(f"error: a driver that nothing disturbs did not end well: {world.errors[-1:]}")
    except StuckError as error:
        world.broken.append(f"stuck: {error}")
    finally:
        running.end()
        simulated_clock._current.pop()
    world.broken += world.check()
    world.database.kept.close()
    return world
