"""Drivers that stand still: suspended at a point by SIGSTOP, taken over from, and woken while others have gone on.

One driver does all the jobs, one after the other; in each it is suspended with its JVM. A session that lives takes the
checkpoint over, as it would from another machine, whose beat stands still. It drains, or pauses, or still runs, when
the driver is woken by SIGCONT. What must come of it: output and rejected rows as pandas has them, each once; and the
driver is told that it was fenced off, or has nothing left to do.
"""

from __future__ import annotations

import random
import signal
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias
from unittest import mock

import cojoin as cj
from benchmarks.kills.drivers import Driver, DriverError
from benchmarks.kills.kill_points import FILES, SQL_POINTS, SUSPENSIONS
from benchmarks.kills.killed_driver import BEAT_SECONDS, Step
from benchmarks.kills.leavings import broken_laws, compare, enriched, enriched_in, left_behind, rejected, write_files
from benchmarks.kills.places import Place
from benchmarks.kills.verdicts import Verdict, unfit_words
from cojoin.checkpoints.lease import Lease
from cojoin.session.spark_errors import TWO_RUNS
from tests.spark.data import Folders, generate
from tests.spark.saved import DRAIN, PAUSE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from benchmarks.kills.killed_driver import Job
    from benchmarks.kills.points import Point

__all__ = ["Suspending", "Waking"]

Waking: TypeAlias = Literal["after a drain", "after a pause", "while the other runs"]
"""When the driver is woken: what the one that took over has done by then."""

_WAKINGS: tuple[Waking, ...] = ("after a drain", "after a pause", "while the other runs")
_PATIENCE_SECONDS = 5 * BEAT_SECONDS
"""For how long the beat must stand still."""


class Suspending:
    """Suspends a driver, takes over from it, and wakes it.

    Args:
        spark: The session that takes over.
        folder: Where everything goes.
        seed: Chooses batches and when it is woken.
        place: Where checkpoints and tables go; the folder if not given.
    """

    def __init__(self, spark: SparkSession, folder: Path, seed: int, place: Place | None = None) -> None:
        self._spark, self._folder, self._place = spark, folder, place or Place()
        self._choice, self._stands = random.Random(seed), False
        self._streams, self._data = generate(trades=300, customers=80, seed=seed), folder / "data"
        write_files(self._streams, Folders(self._data), drafts=self._place.sink != "append")

    def choose(self, count: int) -> list[Point]:
        """Return so many points, each as often as may be."""
        every = (*SQL_POINTS, *SUSPENSIONS) if self._place.sink == "sql" else SUSPENSIONS
        points = [point for _ in range(-(-count // len(every))) for point in every]
        return points[:count] if count >= len(every) else self._choice.sample(points, count)

    def run(self, points: Sequence[Point]) -> Iterator[Verdict]:
        """Suspend at each point, one after the other."""
        wakings = self._choice.sample(_WAKINGS, len(_WAKINGS))
        steps = [self.step(number, point) for number, point in enumerate(points)]
        if not steps:
            return
        with Driver(steps) as driver:
            for number, step in enumerate(steps):
                yield self.meet(driver, step, wakings[number % len(wakings)])

    def step(self, number: int, point: Point) -> Step:
        """Return what a driver is to do to be suspended at a point."""
        folder, batch = self._folder / f"stop-{number}", self._choice.randrange(1, FILES - 1)
        return Step(self._place.job(folder, self._data, batch), point.phase, point.name, "suspended")

    def meet(self, driver: Driver, step: Step, waking: Waking) -> Verdict:
        """Take over from a driver once it stands still, wake it, and see what came of it."""
        job, refusal, found = step.job, None, "not suspended"
        try:
            driver.wait_for_file(step, "reached")
            driver.wait_until_stopped(step)
            self._stands = True
            found = left_behind(job.files())
            refusal, faults = self._take_over(driver, step, waking)
        except (DriverError, cj.CojoinError, AssertionError) as error:
            faults = [f"{type(error).__name__}: {error}"]
            if self._stands:
                self._wake(driver)
        moment = f"{step.name}, woken {waking}"
        return Verdict(step.phase, "suspended", moment, f"batch {job.batch}; {found}", refusal, faults)

    def _take_over(self, driver: Driver, step: Step, waking: Waking) -> tuple[str | None, list[str]]:
        job = step.job
        saved = job.saved(self._spark)
        with mock.patch.object(Lease, "acquire", partial(Lease.acquire, patience_seconds=_PATIENCE_SECONDS)):
            other = job.start(self._spark, PAUSE if waking == "after a pause" else DRAIN)
        if waking == "while the other runs":
            begun = other.batches
            while other.is_active and other.batches == begun:
                time.sleep(0.002)
        else:
            other.await_termination(progress=False)
        self._wake(driver)
        outcome = driver.wait_for_file(step, "outcome")
        try:
            other.await_termination(progress=False)
        except cj.QueryFailedError as error:
            # Spark's own log has no epochs: who was woken may be the first to write the batch that follows.
            if TWO_RUNS not in str(error):
                raise
            job.start(self._spark).await_termination(progress=False)
        if waking == "after a pause":
            job.start(self._spark).await_termination(progress=False)
        refusal = None if outcome == "ended" else outcome
        faults = [] if refusal is None else unfit_words(refusal, saved.checkpoint, job.table)
        last = saved.manifests.last()
        faults += [] if last is not None and last.report.drained else ["it was not drained"]
        is_sql = job.sink == "sql"
        out = enriched_in(job.url, job.table) if is_sql else enriched(self._spark, job.table)
        dead = rejected(self._spark, f"{saved.checkpoint}/rejected")
        faults += compare(self._streams, waking, out, dead) + broken_laws(saved)
        if job.batch in saved.snapshots.batch_ids() and not is_sql:
            # Long removed, or written again by the one that was woken: then it must be whole.
            faults += self._fork(job)
        return refusal, faults

    def _wake(self, driver: Driver) -> None:
        # Once: the next signal would wake it from its next stop.
        self._stands = False
        driver.signal(signal.SIGCONT)

    def _fork(self, job: Job) -> list[str]:
        """Restore the snapshot of the batch in which the driver stood still; return what is wrong with it."""
        saved = job.saved(self._spark)
        snapshot = saved.snapshots.read(job.batch)
        assert snapshot is not None
        fork = replace(saved, folder=f"{saved.folder}/fork", key_groups=3)
        fork.run(trigger=DRAIN, restore_from=cj.Snapshot(saved.checkpoint, at=job.batch))
        written = {name: each["version"] for name, each in snapshot.manifest.outputs.items()}
        before, dead = (
            [] if written[name] is None else read(self._spark, path, written[name])
            for name, read, path in (
                ("output", enriched, job.table),
                ("rejected", rejected, f"{saved.checkpoint}/rejected"),
            )
        )
        dead += rejected(self._spark, f"{fork.checkpoint}/rejected")
        return compare(self._streams, f"restored at {job.batch}", before + fork.rows(), dead, in_two=True)
