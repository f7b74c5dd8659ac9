"""Killing a driver, starting its job again, and seeing what came of it: what ``kills.py`` and a test share.

What must come of it: output and rejected rows as pandas has them, each once, every manifest's counts conserved; and
the same again of a fork that is restored from one of the query's snapshots.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

import cojoin as cj
from benchmarks.differences import differences
from benchmarks.kill_points import FILES, Point
from benchmarks.killed_driver import Job
from benchmarks.session import ROOT, set_partitions
from tests.spark.data import Folders, Streams, cut, enriched_rows, generate, rows, table
from tests.spark.saved import DRAIN, PAUSE, Saved

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

__all__ = ["Kill", "Killing", "Verdict"]

PATIENCE_SECONDS = 240
LONGEST_BATCH_SECONDS = 1.5
REJECTED_A_FILE = 2


@dataclass(frozen=True)
class Kill:
    """One kill: where, and of what."""

    point: Point
    job: Job
    after_seconds: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What came of a kill.

    Attributes:
        kill: The kill.
        found: What was there after it.
        faults: What is wrong; nothing if all is well.
    """

    kill: Kill
    found: str
    faults: Sequence[str]

    def cells(self) -> tuple[str, ...]:
        """Give its line of the table."""
        point, job = self.kill.point, self.kill.job
        name = point.name if point.where else f"{self.kill.after_seconds:.2f} s after a manifest"
        return point.phase, name, f"{job.batch}", self.found, "DIFFERS" if self.faults else "equal"


class Killing:
    """Kills drivers and sees what becomes of their queries.

    Args:
        spark: The session that starts them again.
        folder: Where everything goes.
        seed: Chooses batches and moments.
    """

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self._spark, self._folder = spark, folder
        self._choice = random.Random(seed)
        self._streams = generate(trades=300, customers=80, seed=seed)
        self._data = folder / "data"
        _write(self._streams, Folders(self._data))
        self._origin: Saved | None = None

    def run(self, points: Sequence[Point], *, forks: bool = True) -> Iterator[Verdict]:
        """Kill at each point, one after the other; the next driver runs while the last one's query is examined."""
        with ThreadPoolExecutor(1) as drivers:
            waiting: tuple[Kill, Future[str | None]] | None = None
            for number, point in enumerate(points):
                kill = self._prepare(number, point)
                killed = waiting
                waiting = kill, drivers.submit(_kill, kill)
                if killed is not None:
                    yield self._conclude(*killed, forks=forks)
            if waiting is not None:
                yield self._conclude(*waiting, forks=forks)

    def _conclude(self, kill: Kill, killed: Future[str | None], *, forks: bool) -> Verdict:
        said = killed.result()
        found = left_behind(Path(kill.job.folder))
        try:
            faults = [said] if said else self._examine(kill, forks=forks)
        except cj.CojoinError as error:
            faults = [f"{type(error).__name__}: {error}"]
        return Verdict(kill, found, faults)

    def _prepare(self, number: int, point: Point) -> Kill:
        folder, batch = self._folder / f"kill-{number}", self._choice.randrange(1, FILES - 1)
        job = Job(str(folder), str(self._data), str(folder / "out"), batch)
        if point.job in {"savepoint", "promotion"}:
            job = replace(job, takes_savepoint=True, interval=100 if point.job == "savepoint" else 1)
        elif point.job != "run":
            origin = self._restorable(own=point.job == "same table")
            groups, partitions = self._choice.choice([1, 3, 7]), self._choice.choice([1, 3])
            job = replace(job, origin=origin.checkpoint, at=batch, key_groups=groups, partitions=partitions)
            if point.job == "same table":
                job = replace(job, table=str(origin.folder / "out"))
        job.write()
        return Kill(point, job, self._choice.uniform(0, LONGEST_BATCH_SECONDS))

    def _restorable(self, *, own: bool) -> Saved:
        """Give a query with a snapshot of every batch; those that are only read share one."""
        if own or self._origin is None:
            name = f"origin-{self._choice.randrange(1 << 32)}"
            made = Saved(self._spark, self._folder / name, Folders(self._data))
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
        faults += self._compare("restarted", *self._written(job)) + _broken_laws(saved)
        if forks:
            at = at if isinstance(at, int) else self._choice.choice(saved.snapshots.batch_ids())
            set_partitions(self._spark, self._choice.choice([1, 3, 5]))
            fork = replace(saved, folder=saved.folder / "fork", key_groups=self._choice.choice([1, 2, 5, 9]))
            fork.run(trigger=DRAIN, restore_from=cj.Checkpoint(saved.checkpoint, at=at))
            out, rejected = self._written(job, at)
            out += fork.rows()
            rejected += _rejected(self._spark, fork.folder / "checkpoint" / "rejected")
            faults += self._compare(f"restored at {at}", out, rejected) + _broken_laws(fork)
        return faults

    def _written(self, job: Job, at: int | None = None) -> tuple[list[Any], list[Any]]:
        """Give what a job wrote, by now or until a batch, and before it what it was restored from."""
        spark, outputs = self._spark, {"output": job.table, "rejected": f"{job.folder}/checkpoint/rejected"}
        is_same = not job.table.startswith(job.folder)
        before: tuple[list[Any], list[Any]] = [], []
        if job.origin is not None:
            folder = Path(job.origin).parent
            origin = Job(str(folder), job.data, str(folder / "out"), job.batch)
            before = self._written(origin, job.at)
        versions: dict[str, int | None] = dict.fromkeys(outputs)
        if at is not None:
            snapshot = job.saved(spark).snapshots.read(at)
            assert snapshot is not None
            known = snapshot.manifest.outputs
            # Nothing was written yet: in another's table, what that held at the beginning.
            versions = {name: -1 if known[name]["version"] is None else known[name]["version"] for name in outputs}
        rejected = before[1] + _rejected(spark, outputs["rejected"], versions["rejected"])
        if is_same and versions["output"] == -1:
            return before[0], rejected
        own = _enriched(spark, outputs["output"], versions["output"])
        return (own if is_same else before[0] + own), rejected

    def _compare(self, what: str, out: list[Any], rejected: list[Any]) -> list[str]:
        faults = differences(self._streams.enriched(), out, f"{what}, output")
        counts = Counter(row[0] for row in rejected)
        wanted = [(text,) for text in range(FILES * REJECTED_A_FILE)]
        found = [(number,) for number, count in counts.items() for _ in range(count)]
        return faults + differences(wanted, found, f"{what}, rejected")


def left_behind(folder: Path) -> str:
    """Say what a killed driver left behind, in a line."""
    checkpoint = folder / "checkpoint"

    def numbers(name: str) -> str:
        found = sorted(int(each.stem) for each in (checkpoint / name).glob("[0-9]*") if each.stem.isdigit())
        return f"{found[0]}-{found[-1]}" if len(found) > 1 else ", ".join(map(str, found)) or "none"

    names = {"planned": "spark/offsets", "committed": "spark/commits"}
    names |= {"manifests": "manifest", "snapshots": "snapshots"}
    told = [f"{what} {numbers(name)}" for what, name in names.items()]
    restored = checkpoint / "restored.json"
    stage = restored.read_text().partition('"stage": "')[2].partition('"')[0] if restored.exists() else ""
    return "; ".join(told + ([f"restoration {stage}"] if stage else []))


def _kill(kill: Kill) -> str | None:
    """Run the driver until it is dead; say if it did not come to the point."""
    folder, point = Path(kill.job.folder), kill.point
    command = [sys.executable, "-m", "benchmarks.killed_driver", str(folder / "job.json"), point.phase, point.name]
    with (folder / "driver.log").open("wb") as log:
        driver = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        if point.where is None:
            _wait_for_a_moment(kill, driver)
        else:
            driver.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return "the driver did not end"
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    if point.where is None or (folder / "reached").exists():
        return None
    return f"the driver ended and did not come to the point: {(folder / 'driver.log').read_text()[-2000:]}"


def _wait_for_a_moment(kill: Kill, driver: subprocess.Popen[bytes]) -> None:
    manifest = Path(kill.job.folder) / "checkpoint" / "manifest" / f"{kill.job.batch:012d}.json"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not manifest.exists() and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(kill.after_seconds)


def _write(streams: Streams, folders: Folders) -> None:
    """Write the streams as files; each file of trades has a few that no query can admit, for want of a key."""
    sides = zip(cut(streams.trades, FILES), cut(streams.customers, FILES), strict=True)
    for number, (trades, customers) in enumerate(sides):
        ids = [number * REJECTED_A_FILE + each for each in range(REJECTED_A_FILE)]
        keyless = trades.iloc[: len(ids)].assign(trade_id=[-1 - each for each in ids])
        keyless["customer_id"] = pd.array([None] * len(ids), dtype="Int64")
        folders.add_trades(pd.concat([trades.astype({"customer_id": "Int64"}), keyless]))
        folders.add_customers(customers)


def _enriched(spark: SparkSession, path: str, version: int | None) -> list[Any]:
    if version == -1 or not Path(path).exists():
        return []
    reader = spark.read.format("delta")
    return enriched_rows((reader if version is None else reader.option("versionAsOf", version)).load(path))


def _rejected(spark: SparkSession, path: Any, version: int | None = None) -> list[Any]:
    """Give the numbers of the rejected trades."""
    if version == -1 or not Path(path).exists():
        return []
    frame = table(spark, path)
    if version is not None:
        frame = spark.read.format("delta").option("versionAsOf", version).load(str(path))
    return rows(frame.selectExpr("-1 - CAST(get_json_object(row, '$.trade_id') AS int) AS number"))


def _broken_laws(saved: Saved) -> list[str]:
    try:
        saved.assert_conserved()
    except AssertionError:
        return [f"{saved.folder.name}: a manifest is not conserved"]
    return []
