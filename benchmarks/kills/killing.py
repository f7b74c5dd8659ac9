"""Killing a driver, its JVM or its Python, starting its job again, and seeing what came of it.

What must come of it: output and rejected rows as pandas has them, each once, every manifest's counts conserved; and
the same again of a fork that is restored from one of the query's snapshots. Whoever is left of the two ends by itself:
Python with an error, the JVM without a word. The job starts again as soon as Python has ended, whatever the JVM does.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cojoin as cj
from benchmarks.kills.drivers import Driver, DriverError, is_alive
from benchmarks.kills.kill_points import FILES
from benchmarks.kills.killed_driver import Job, Step, Victim
from benchmarks.kills.leavings import (
    OtherJob,
    broken_laws,
    compare,
    enriched,
    enriched_in,
    left_behind,
    rejected,
    write_files,
)
from benchmarks.kills.places import Place
from benchmarks.kills.verdicts import Verdict
from benchmarks.session import set_partitions
from tests.spark.data import Folders, generate
from tests.spark.saved import DRAIN, PAUSE, Saved

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from benchmarks.kills.points import Point

__all__ = ["VICTIMS", "Death", "Kill", "Killing", "compare", "die", "left_behind", "write_files"]

VICTIMS: tuple[Victim, ...] = ("both", "JVM", "Python")
LONGEST_BATCH_SECONDS = 1.5
ENDS_WITHIN_SECONDS = 90
"""How long whoever is left of Python and its JVM may take to see that the other has gone, and to end."""


@dataclass(frozen=True)
class Kill:
    """One kill: at a point, or so many seconds after the chosen batch's manifest."""

    point: Point
    step: Step
    after_seconds: float = 0.0

    @property
    def job(self) -> Job:
        """What the driver does."""
        return self.step.job

    @property
    def moment(self) -> str:
        """When it is."""
        return self.point.name if self.point.where else f"{self.after_seconds:.2f} s after a manifest"


@dataclass(frozen=True)
class Death:
    """How a driver died.

    Attributes:
        fault: What was wrong with that.
        orphan: The JVM that was left alone.
    """

    fault: str | None
    orphan: int | None = None


class Killing:
    """Kills drivers and sees what becomes of their queries.

    Args:
        spark: The session that starts them again.
        folder: Where everything goes.
        seed: Chooses batches and moments.
        place: Where checkpoints and tables go; the folder if not given.
    """

    def __init__(self, spark: SparkSession, folder: Path, seed: int, place: Place | None = None) -> None:
        self._spark, self._folder, self._place = spark, folder, place or Place()
        self._choice = random.Random(seed)
        self._streams, self._data = generate(trades=300, customers=80, seed=seed), folder / "data"
        write_files(self._streams, Folders(self._data), drafts=self._place.sink != "append")
        turn = self._choice.randrange(len(VICTIMS))
        self._victims = itertools.islice(itertools.cycle(VICTIMS), turn, None)
        self._origin: Saved | None = None

    def run(self, points: Sequence[Point], *, forks: bool = True, victim: Victim | None = None) -> Iterator[Verdict]:
        """Kill at each point, one after the other; the next driver runs while the last one's query is examined.

        Args:
            points: The points.
            forks: Whether a fork is restored from each query, too.
            victim: Who is killed; all in turn if not given.
        """
        with ThreadPoolExecutor(1) as drivers:
            waiting: tuple[Kill, Future[Death]] | None = None
            for number, point in enumerate(points):
                kill = self.prepare(number, point, victim or next(self._victims))
                killed, waiting = waiting, (kill, drivers.submit(_kill, kill))
                if killed is not None:
                    yield self.conclude(killed[0], killed[1].result(), forks=forks)
            if waiting is not None:
                yield self.conclude(waiting[0], waiting[1].result(), forks=forks)

    def conclude(self, kill: Kill, death: Death, *, forks: bool) -> Verdict:
        """Start the job again, and a fork of it if asked; returns what came of it."""
        found = left_behind(kill.job.files())
        # deltalake adds no row to a table with partitions whose columns are in another order.
        is_shared = kill.job.sink in {"upsert", "sql"} and kill.job.endpoint is None
        other = OtherJob(kill.job.table, kill.job.url) if is_shared else None
        try:
            if other is not None:
                other.start()
            faults = [death.fault] if death.fault else self._examine(kill, forks=forks)
        except cj.CojoinError as error:
            faults = [f"{type(error).__name__}: {error}"]
        finally:
            faults_of_other = [] if other is None else other.stop(self._spark)
        faults = [*faults, *faults_of_other]
        if death.orphan is not None and not _ends(death.orphan):
            faults = [*faults, f"the JVM lived on for {ENDS_WITHIN_SECONDS} s after its Python was killed"]
        batch = f"batch {kill.job.batch}; {found}"
        return Verdict(kill.point.phase, kill.step.victim, kill.moment, batch, None, faults)

    def prepare(self, number: int, point: Point, victim: Victim) -> Kill:
        """Return what a driver is to do for a kill."""
        folder, batch = self._folder / f"kill-{number}", self._choice.randrange(1, FILES - 1)
        job = self._place.job(folder, self._data, batch)
        if point.job in {"savepoint", "promotion"}:
            job = replace(job, takes_savepoint=True, interval=100 if point.job == "savepoint" else 1)
        elif point.job == "changed":
            job = replace(job, changes=True)
        elif point.job != "run":
            origin = self._restorable(own=point.job == "same table")
            groups, partitions = self._choice.choice([1, 3, 7]), self._choice.choice([1, 3])
            job = replace(job, origin=origin.checkpoint, at=batch, key_groups=groups, partitions=partitions)
            if point.job == "same table":
                job = replace(job, table=f"{origin.folder}/out")
        return Kill(point, Step(job, point.phase, point.name, victim), self._choice.uniform(0, LONGEST_BATCH_SECONDS))

    def _restorable(self, *, own: bool) -> Saved:
        """Return a query with a snapshot of every batch; those that are only read share one."""
        if own or self._origin is None:
            name = f"origin-{self._choice.randrange(1 << 32)}"
            made = Saved(self._spark, self._place.root(self._folder / name), Folders(self._data))
            set_partitions(self._spark, 2)
            made.run(trigger=PAUSE, retained_checkpoints=FILES)
            if own:
                return made
            self._origin = made
        return self._origin

    def _examine(self, kill: Kill, *, forks: bool) -> list[str]:
        """Start the query again, and a fork of it; tell what is wrong."""
        job, saved = kill.job, kill.job.saved(self._spark)
        at = None
        if job.takes_savepoint:
            # Of the dead query, as it lies there: the half that the kill left behind must not be in the way.
            at = cj.savepoint(self._spark, saved.checkpoint).at
        last = saved.manifests.last()
        if last is None or not last.report.drained:
            query = job.start(self._spark)
            query.await_termination(progress=False)
            last = saved.manifests.last()
        # A drain whose last manifest is there has written all: it is over, and would be refused.
        faults = [] if last is not None and last.report.drained else ["it was not drained"]
        in_two = job.origin is not None
        faults += compare(self._streams, "restarted", *self._written(job), in_two=in_two) + broken_laws(saved)
        # A database has no earlier versions, in which the rows before a fork's would be.
        if forks and job.sink != "sql":
            at = at if isinstance(at, int) else self._choice.choice(saved.snapshots.batch_ids())
            set_partitions(self._spark, self._choice.choice([1, 3, 5]))
            fork = replace(saved, folder=f"{saved.folder}/fork", key_groups=self._choice.choice([1, 2, 5, 9]))
            fork.run(trigger=DRAIN, restore_from=cj.Snapshot(saved.checkpoint, at=at))
            out, dead = self._written(job, at)
            out += fork.rows()
            dead += rejected(self._spark, f"{fork.checkpoint}/rejected")
            faults += compare(self._streams, f"restored at {at}", out, dead, in_two=True) + broken_laws(fork)
        return faults

    def _written(self, job: Job, at: int | None = None) -> tuple[list[Any], list[Any]]:
        """Return what a job wrote, by now or until a batch, and before it what it was restored from."""
        spark, outputs = self._spark, {"output": job.table, "rejected": f"{job.checkpoint}/rejected"}
        is_same = job.sink != "sql" and not job.table.startswith(job.root)
        before: tuple[list[Any], list[Any]] = [], []
        if job.origin is not None:
            root = job.origin.removesuffix("/checkpoint")
            origin = replace(job, root=root, table=f"{root}/out", origin=None, sink="append")
            before = self._written(origin, job.at)
        versions: dict[str, int | None] = dict.fromkeys(outputs)
        if at is not None:
            snapshot = job.saved(spark).snapshots.read(at)
            assert snapshot is not None
            known = snapshot.manifest.outputs
            # Nothing was written yet: in another's table, what that held at the beginning.
            versions = {name: -1 if known[name]["version"] is None else known[name]["version"] for name in outputs}
        dead = before[1] + rejected(spark, outputs["rejected"], versions["rejected"])
        if is_same and versions["output"] == -1:
            return before[0], dead
        if job.sink == "sql":
            return before[0] + enriched_in(job.url, job.table), dead
        own = enriched(spark, outputs["output"], versions["output"])
        return (own if is_same else before[0] + own), dead


def _kill(kill: Kill) -> Death:
    with Driver([kill.step]) as driver:
        return die(driver, kill)


def die(driver: Driver, kill: Kill) -> Death:
    """Wait until a driver has died of its last step."""
    step = kill.step
    try:
        if kill.point.where:
            driver.wait_for_file(step, "reached")
        else:
            files, manifest = kill.job.files(), f"manifest/{kill.job.batch:012d}.json"
            driver.wait_until(lambda: files.exists(manifest), "the batch's manifest")
            time.sleep(kill.after_seconds)
            driver.kill(step)
        driver.wait(ENDS_WITHIN_SECONDS)
    except DriverError as error:
        return Death(str(error))
    outcome = step.path.with_name("outcome")
    if outcome.exists() and outcome.read_text() == "ended" and not _is_drained(kill.job):
        return Death(f"the driver says that it ended well, without its {step.victim}")
    driver.lives_on = step.victim == "Python"
    return Death(None, driver.jvm(step) if driver.lives_on else None)


def _is_drained(job: Job) -> bool:
    files = job.files()
    newest = max(files.names("manifest"), default=None)
    return newest is not None and '"drained": true' in (files.read(f"manifest/{newest}") or "")


def _ends(pid: int) -> bool:
    deadline = time.monotonic() + ENDS_WITHIN_SECONDS
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    if not is_alive(pid):
        return True
    os.kill(pid, signal.SIGKILL)
    return False
