"""All that a history has: the disk, the inputs, the drivers on two machines, and what the operator does with them."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import cojoin as cj
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.savepoint import take_savepoint
from cojoin.delta.table_batches import FENCE
from cojoin.spark.query.query_options import QueryOptions
from cojoin.spark.query.start import start_query
from cojoin.spark.query.triggers import Trigger
from tests.simulation.simulated_clock import Process, Scheduler, StuckError
from tests.simulation.simulated_delta import COMMIT
from tests.simulation.simulated_deltalake import actions_of
from tests.simulation.simulated_disk import Disk
from tests.simulation.simulated_query import FIRST, SECOND, bound_inputs, plan_of
from tests.simulation.simulated_spark import Lake, Session, Stream
from tests.simulation.simulated_store import SimulatedStore

if TYPE_CHECKING:
    from cojoin.spark.query.query import Query
    from tests.simulation.plan import Action, Plan
    from tests.simulation.simulated_query import Place

__all__ = ["Driver", "World"]

_HOSTS = ("one", "two")
_ALL = 1_000_000
"""More files than the right input ever has: a drain emits all rows that wait."""


class Driver:
    """A process that runs a query."""

    def __init__(self, process: Process, place: Place) -> None:
        self.process, self.place = process, place
        self.query: Query | None = None
        self.is_done = False


class World:
    """Everything that a history has: the disk, the inputs, the drivers, and what the operator was told."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.scheduler = Scheduler(random.Random(plan.seed), plan.switching)
        self.disk = Disk(
            self.scheduler, has_conditional_writes=plan.has_conditional_writes, loses_power=plan.loses_power
        )
        self.disk.spark_writes = plan.spark_writes
        self.lake = Lake()
        self.drivers: list[Driver] = []
        self.errors: list[tuple[str, BaseException]] = []
        self.zombies: list[BaseException] = []
        self.savepoints: list[int] = []
        self._processes = 0
        self.disk.on_rival, self.disk.on_put = self._rival, self._note
        self._begun: dict[str, int] = {}
        """The epoch of the newest run that has begun, by its checkpoint and by its output's table."""
        self._promised: set[str] = set()
        self.late_drains: list[str] = []
        """The drains that were promised after a later run had begun."""
        self.is_healed = False
        self.cleaned = plan.seed % 3 == 0
        """Whether each query runs twice at the end, after which no file may be left."""
        self.read: dict[Place, Lake] = {}
        """What each query has read at its end."""

    def process(self, what: str, host: str) -> Process:
        """Return a new process on a machine."""
        self._processes += 1
        made = Process(f"{what} {self._processes} on {host}", host, self._processes)
        self.disk.processes.append(made)
        return made

    def drive(self, place: Place, host: str, trigger: Trigger, *, restore: bool = False) -> Driver:
        """Start a driver; it runs beside the operator."""
        process = self.process("driver", host)
        driver = Driver(process, place)
        self.drivers.append(driver)

        def main() -> None:
            session = Session(self.disk, self.lake)
            plan = plan_of(place)
            options = QueryOptions(
                cj.sinks.delta(place.output),
                place.checkpoint,
                trigger,
                rejected=cj.sinks.delta(f"{place.checkpoint}/rejected", options={"mergeSchema": "true"}),
                checkpoint_interval=self.plan.cadence,
                retained_checkpoints=self.plan.retained,
                restore_from=cj.Snapshot(FIRST.checkpoint) if restore else None,
            )

            def emit(
                plan: Any,
                inputs: Any,
                control: Any,
                resumed: Any,
                cadence: Any,
                segments: Any,
                facts_setting: None,
                phase: str,
            ) -> Stream:
                del inputs, control, resumed, segments, facts_setting, phase
                # From here on, no earlier run may commit to the output.
                record = json.loads(self.disk.files[f"{place.checkpoint}/lease.json"].content)["content"]
                if record["owner"] in process.owners:
                    self._begun[place.output] = self._begun[place.checkpoint] = process.epoch = record["epoch"]
                return Stream(session, place.checkpoint, plan.key_groups, cadence)

            try:
                query = driver.query = start_query(plan, bound_inputs(session), emit, options)  # type: ignore[arg-type]
                query._ended.wait()
                error = query.exception()
                if error is not None:
                    raise error  # noqa: TRY301 - as a caller of await_termination gets it
            except Exception as error:  # noqa: BLE001 - the laws look at it
                lease = self.disk.files.get(f"{place.checkpoint}/lease.json")
                owner = None if lease is None else json.loads(lease.content)["content"]["owner"]
                # One that was taken over may find files gone before it looks at its lease.
                self._told(process, error, is_zombie=bool(process.held) and owner not in process.held)
            finally:
                driver.is_done = True
            # The process ends, and with it its other threads.
            process.is_dead = True

        self.scheduler.spawn(process, "restore" if restore else "main", main)
        return driver

    def _told(self, process: Process, error: BaseException, *, is_zombie: bool = False) -> None:
        self.disk.tell("error of a zombie" if is_zombie else "error", "", str(error))
        process.error = error
        if is_zombie:
            self.zombies.append(error)
        else:
            self.errors.append((process.name, error))

    def _note(self, path: str, content: bytes) -> None:
        commit = COMMIT.fullmatch(path)
        if commit is None:
            self._note_drain(path, content)
        elif commit[1] in self._begun:
            self._note_commit(path, content, self._begun[commit[1]])

    def _note_commit(self, path: str, content: bytes, newest: int) -> None:
        written = [each["txn"] for each in actions_of(content) if "txn" in each]
        epochs = [each["version"] for each in written if each["appId"].startswith(FENCE)]
        if epochs and epochs[0] < newest:
            what = f"epoch {epochs[0]} has committed {path} after epoch {newest} began"
            self.disk.hand_overs.late_commits.append(what)

    def _note_drain(self, path: str, content: bytes) -> None:
        root, _, name = path.removeprefix("/").partition("/control/")
        if name != "end_of_input.parquet":
            root, _, name = path.removeprefix("/").rpartition("/")
            if name != "drain.json" or not json.loads(content)["content"]["promised"]:
                return
        if root not in self._promised:
            self._promised.add(root)
            epoch, newest = self.scheduler.process.epoch, self._begun.get(f"/{root}", 0)
            if epoch < newest:
                self.late_drains.append(f"a run of epoch {epoch} has ended the inputs after epoch {newest} began")

    def _rival(self) -> None:
        if self.is_healed:
            return
        me = self.scheduler.process
        place = next((each.place for each in self.drivers if each.process is me), FIRST)
        host = _HOSTS[1] if me.host == _HOSTS[0] else _HOSTS[0]
        self.drive(place, host, Trigger.available_now(), restore=place == SECOND and not self._second_is_ready())

    def _second_is_ready(self) -> bool:
        return f"{SECOND.checkpoint}/spark/commits/0" in self.disk.files

    def reads_beside(self, name: str) -> bool:
        """Return whether a process restores the first query's checkpoint while that query may run."""
        return any(each.process.name == name and each.place == SECOND for each in self.drivers)

    def read_by(self, place: Place) -> Lake:
        """Return what a query has read at its end: all that there is, unless it was drained before."""
        last = Manifests(SimulatedStore(self.disk, place.checkpoint)).last()
        if last is None or not last.report.drained:
            return Lake(self.lake.left, self.lake.right)
        return Lake(0 if last.offsets[0] == "-" else int(json.loads(last.offsets[0])["rows"]), _ALL)

    def living(self) -> list[Driver]:
        """Return the drivers that have not ended."""
        return [each for each in self.drivers if not each.is_done and not each.process.is_dead]

    def do(self, action: Action) -> None:  # noqa: C901 - a branch for each action
        """Let the operator do something."""
        running, name, how = self.scheduler, action.name, action.how
        running.step()
        host = _HOSTS[how % 2]
        living = self.living()
        self.disk.tell(f"operator: {name}", str(how))
        if name in ("rows", "left rows"):
            self.lake.left += how
            # Left rows alone wait, so that segments are written and read.
            self.lake.right += how // 3 if name == "rows" else 0
        elif name == "drive":
            self.drive(FIRST, host, Trigger.available_now())
        elif name == "live":
            self.drive(FIRST, host, Trigger.processing_time("1 second"))
        elif name == "wait":
            running.sleep(how / 2)
        elif name == "await":
            self.wait_for(living, 20.0 + how)
        elif name == "savepoint":
            self._beside(self.process("savepoint", host), None)
        elif name == "own savepoint" and living:
            self._beside(living[how % len(living)].process, living[how % len(living)])
        elif name == "stop":
            self._stop(living)
        elif name == "pause" and living:
            self.disk.hand_overs.put_to_sleep(living[how % len(living)].process, 20 * how)
        elif name == "kill" and living:
            living[how % len(living)].process.is_dead = True
        elif name == "drain":
            self.drive(FIRST, host, Trigger.available_now(drain=True))
        elif name == "restore":
            self.drive(SECOND, host, Trigger.available_now(), restore=True)

    def _beside(self, process: Process, driver: Driver | None) -> None:
        """Take a savepoint in a process."""

        def main() -> None:
            session = Session(self.disk, self.lake)
            try:
                if driver is not None and driver.query is not None:
                    taken = driver.query.savepoint()
                else:
                    taken = take_savepoint(session, session.store(FIRST.checkpoint))  # type: ignore[arg-type]
                if driver is None or driver.place == FIRST:
                    assert isinstance(taken.at, int)
                    self.savepoints.append(taken.at)
                self.disk.tell("savepoint taken", str(taken.at))
            except Exception as error:  # noqa: BLE001 - the laws look at it
                self._told(process, error)

        self.scheduler.spawn(process, "savepoint", main)

    def _stop(self, drivers: list[Driver]) -> None:
        for each in drivers:
            query = each.query
            if query is not None:
                self.scheduler.spawn(each.process, "stop", lambda query=query: query.stop() and None)  # type: ignore[misc]

    def wait_for(self, drivers: list[Driver], seconds: float) -> None:
        """Wait until drivers have ended, for so long at the most."""
        self.scheduler.wait(lambda: all(each.is_done or each.process.is_dead for each in drivers), seconds)

    def end_all(self) -> None:
        """Let every process end."""
        for each in self.disk.processes:
            each.is_dead = True
        self.scheduler.wait(lambda: not self.scheduler.tasks)

    def run_cleanly(self, place: Place) -> BaseException | None:
        """Run a query to its end while nothing goes wrong, and return its error."""
        restore = place == SECOND and not self._second_is_ready()
        driver = self.drive(place, _HOSTS[0], Trigger.available_now(), restore=restore)
        self.wait_for([driver], 600.0)
        if not driver.is_done:
            return StuckError("a query that nothing disturbs did not end")
        return driver.process.error
