"""Killing a replay at moments that the clock chooses, again and again, and seeing whether its result is exact.

One query is killed by SIGKILL, driver and JVM, and started again in its own checkpoint as often as asked: mostly a
random moment after a batch counted, so that every part of the next batch has its turn; every fourth time a random
moment after its start, while it takes its checkpoint up again. At last it runs to its end, and is compared with the
oracle.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.replay.job import Measured, Replay

__all__ = ["Kills", "run_contender"]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 600
LONGEST_BATCH_SECONDS = 2.5
START_SECONDS = (2.0, 12.0)


@dataclass
class Kills:
    """A query that is killed.

    Attributes:
        name: Which contender.
        job: What it reads, as a file.
        work: The query's own folder.
        seed: Chooses the moments.
        told: What each kill left behind.
    """

    name: str
    job: Path
    work: Path
    seed: int
    told: list[str] = field(default_factory=list)

    def run(self, kills: int) -> Measured:
        """Kill it so often, then let it run to its end.

        Returns:
            What its last run measured, and whether the result of all of them is right.
        """
        choice = random.Random(self.seed)
        for number in range(kills):
            if not self._kill(choice, at_start=number % 4 == 3):
                self.told.append("it came to its end before the kill")
                break
        return run_contender(self.name, self.job, self.work)

    @property
    def count(self) -> int:
        """How many kills hit it alive."""
        return sum(each.startswith("killed") for each in self.told)

    def _kill(self, choice: random.Random, *, at_start: bool) -> bool:
        before, started = self._batches(), time.monotonic()
        driver = start_contender(self.name, self.job, self.work, self.work / "driver.log")
        try:
            if not at_start:
                while self._batches() <= before and driver.poll() is None:
                    assert time.monotonic() - started < PATIENCE_SECONDS, f"no batch after {before} came"
                    time.sleep(0.01)
            wait = choice.uniform(*START_SECONDS) if at_start else choice.uniform(0, LONGEST_BATCH_SECONDS)
            time.sleep(wait)
        finally:
            alive = driver.poll() is None
            if alive:
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        if not alive and driver.returncode:
            _fail(self.name, (self.work / "driver.log").read_text())
        when = f"{wait:.2f} s after {'its start' if at_start else 'a batch'}"
        told = f"killed {when}; {self._batches()} batches counted, {self._planned()} planned"
        if alive:
            self.told.append(told)
            print(told, flush=True)
        return alive

    def _batches(self) -> int:
        numbers = (int(path.stem) for path in (self.work / "checkpoint" / "manifest").glob("[0-9]*.json"))
        return max(numbers, default=-1) + 1

    def _planned(self) -> int:
        names = (path.name for path in (self.work / "checkpoint" / "spark" / "offsets").glob("[0-9]*"))
        return max((int(name) for name in names if name.isdigit()), default=-1) + 1


def start_contender(name: str, job: Path, work: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a contender with a process group of its own, in which its JVM and its workers are."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "benchmarks.replay.process", name, str(job), str(work)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with log.open("wb") as out:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True)


def run_contender(name: str, job: Path, work: Path) -> Measured:
    """Run a contender to its end."""
    log = work / "contender.log"
    driver = start_contender(name, job, work, log)
    try:
        driver.wait()
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    said = log.read_text()
    if driver.returncode:
        _fail(name, said)
    return Measured.from_json(next(line for line in reversed(said.splitlines()) if line.startswith('{"name"')))


def _fail(name: str, said: str) -> None:
    print(said[-8000:], file=sys.stderr)
    msg = f"contender {name} failed"
    raise SystemExit(msg)


def kill_and_compare(
    replay: Replay, folder: Path, kills: int, seed: int, name: str = "aligned"
) -> tuple[Kills, Measured]:
    """Kill a replay of batches so small that there is one for every kill.

    Args:
        replay: The filled topics.
        folder: A folder of its own.
        kills: How often.
        seed: Chooses the moments.
        name: Which contender.
    """
    most = max(1, max(replay.sizes) // (2 * kills + 4))
    killed = Kills(name, replay.in_batches_of(min(most, replay.max_records)).write(folder), folder, seed)
    return killed, killed.run(kills)
