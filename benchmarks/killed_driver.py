"""A driver that dies at a point: ``python -m benchmarks.killed_driver JOB.json PHASE NAME``.

It runs a job on small files, with a process group of its own, which dies with it, its JVM included, by SIGKILL. Before,
it writes the file ``reached`` beside its job. The same job is started again by ``kills.py``, in a session that lives.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import cojoin as cj
from benchmarks.kill_points import POINTS
from benchmarks.session import make_session, set_partitions
from cojoin.state.segments import SegmentOptions
from tests.spark.data import Folders
from tests.spark.saved import DRAIN, Saved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """What the driver does; what it says of files are paths as texts.

    Attributes:
        folder: Where its checkpoint is, and its table.
        data: Where trades and customers are.
        table: Its output: another query's, where it goes on in that.
        batch: The batch that was chosen.
        key_groups: How many key groups it has.
        partitions: How many shuffle partitions.
        interval: A snapshot every so many batches.
        origin: The checkpoint that it restores, if it does.
        at: The batch that it restores.
        takes_savepoint: Whether it takes a savepoint after the chosen batch.
    """

    folder: str
    data: str
    table: str
    batch: int
    key_groups: int = 4
    partitions: int = 2
    interval: int = 1
    origin: str | None = None
    at: int | None = None
    takes_savepoint: bool = False

    def saved(self, spark: SparkSession) -> Saved:
        """Give its query, for looking at it."""
        return Saved(spark, Path(self.folder), Folders(Path(self.data)), self.key_groups)

    def start(self, spark: SparkSession, trigger: cj.Trigger = DRAIN) -> cj.Query:
        """Start it, for the first time or again."""
        set_partitions(spark, self.partitions)
        restore: dict[str, Any] = {}
        if self.origin is not None:
            restore = {
                "restore_from": cj.Checkpoint(self.origin, self.at),
                "cut_back_output": not self.table.startswith(self.folder),
            }
        saved = self.saved(spark)
        joined = saved.join()
        # All versions lie in segments: the kills fall beside their files, too.
        joined._plan = replace(joined.plan, segments=SegmentOptions(0))  # noqa: SLF001 - no setting of users'
        return saved.start(
            joined,
            trigger=trigger,
            output=cj.sinks.delta(self.table),
            checkpoint_interval=self.interval,
            retained_checkpoints=2,
            **restore,
        )

    def write(self) -> Path:
        """Write it where the driver finds it."""
        path = Path(self.folder) / "job.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(asdict(self)))
        return path


def run(spark: SparkSession, job: Job) -> None:
    """Do it, to the end or until the point."""
    query = job.start(spark)
    if job.takes_savepoint:
        while query.is_active and (query.progress is None or query.progress.batch_id < job.batch):
            time.sleep(0.001)
        query.savepoint()
    query.await_termination(progress=False)


def main(path: Path, phase: str, name: str) -> None:
    """Arm the point, if there is one, and run."""
    job = Job(**json.loads(path.read_text()))

    def die() -> NoReturn:
        path.with_name("reached").touch()
        assert os.getpgrp() == os.getpid(), "the driver needs a process group of its own"
        os.killpg(os.getpid(), signal.SIGKILL)
        raise AssertionError

    for point in POINTS:
        if (point.phase, point.name) == (phase, name):
            point.arm(job.batch, die)
    run(make_session("killed", path.parent), job)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
