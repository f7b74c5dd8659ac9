"""A driver to which something is done at a point: ``python -m benchmarks.kills.killed_driver STEP.json ...``.

It does one step after the other in one session: a job on small files, with a point, and there the deed. ``both``: its
process group dies by SIGKILL, its JVM included; ``JVM``: that alone; ``Python``: this process alone; ``suspended``: the
group stands still until somebody wakes it. Before, it writes the file ``reached`` beside the step; and how the step
ended, where it lives to see that, as ``outcome``. The same jobs are started again by ``kills.py``, in a session that
lives.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import cojoin as cj
from benchmarks.kills.kill_points import POINTS, SQL_POINTS, SUSPENSIONS
from benchmarks.kills.topic_points import TOPIC_POINTS, WORKER, Mortal, TopicDeed, armed_in_worker
from benchmarks.session import make_session, set_partitions
from cojoin.checkpoints.lease import Lease
from cojoin.engine.state.segments import SegmentOptions
from cojoin.storage.local_store import LocalStore
from cojoin.storage.object_store import ObjectStore
from cojoin.storage.object_store_settings import settings_of
from tests.servers.s3 import settings_for
from tests.spark.data import FIVE_SECONDS, Folders
from tests.spark.saved import DRAIN, PAUSE, Saved

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from cojoin.storage.store import Store

__all__ = ["ANOTHER_MACHINE", "BEAT_SECONDS", "Job", "Sink", "Step", "Victim"]

Victim: TypeAlias = Literal["both", "JVM", "Python", "suspended", "worker"]

Sink: TypeAlias = Literal["append", "upsert", "merge", "sql"]

ANOTHER_MACHINE = "another-machine"
"""What a driver that is to be suspended calls its machine: on one machine a process that stands still counts as alive,
so nobody takes over from it; between machines the beat alone tells."""

BEAT_SECONDS = 0.2
"""How often its lease beats: whoever takes over waits for three beats at least."""


@dataclass(frozen=True)
class Job:
    """What the driver does; what it says of files are paths as texts.

    Attributes:
        folder: Where what is known of it lies, on this machine.
        root: Where its checkpoint is, and its table: the folder, or a place on S3.
        data: Where trades and customers are.
        table: Its output: another query's, where it goes on in that.
        batch: The batch that was chosen.
        key_groups: How many key groups it has.
        partitions: How many shuffle partitions.
        interval: A snapshot every so many batches.
        origin: The checkpoint that it restores, if it does.
        at: The batch that it restores.
        takes_savepoint: Whether it takes a savepoint after the chosen batch.
        changes: Whether it has run with other settings before.
        endpoint: The server of S3's protocol that its root is on.
        servers: The brokers whose topic its output is, by the name of the table; None for a table.
        sink: How its rows are written: appended, upserted by the driver or into a database, or merged by Spark.
        url: The database, where its table is in one.
    """

    folder: str
    root: str
    data: str
    table: str
    batch: int
    key_groups: int = 4
    partitions: int = 2
    interval: int = 1
    origin: str | None = None
    at: int | None = None
    takes_savepoint: bool = False
    changes: bool = False
    endpoint: str | None = None
    servers: str | None = None
    sink: Sink = "append"
    url: str = ""

    @property
    def output(self) -> cj.sinks.Sink:
        """Where its joined rows go."""
        if self.sink == "sql":
            return cj.sinks.sql(self.url, self.table, upsert="trade_id")
        if self.servers is None:
            more: dict[str, Any] = {} if self.sink == "append" else {"upsert": "trade_id"}
            return cj.sinks.delta(self.table, **more, partition_by="tier" if self.sink == "merge" else ())
        return cj.sinks.kafka(self.servers, self.table, key="customer_id", timestamp="event_time")

    @property
    def checkpoint(self) -> str:
        """Where its checkpoint is."""
        return f"{self.root}/checkpoint"

    def files(self) -> Store:
        """Return its checkpoint's files, without Spark."""
        if self.endpoint is None:
            return LocalStore(self.checkpoint)
        settings = settings_of(self.checkpoint, settings_for(self.endpoint).get)
        assert settings is not None
        return ObjectStore.of(settings, self.checkpoint)

    def saved(self, spark: SparkSession) -> Saved:
        """Return its query, for looking at it."""
        return Saved(spark, self.root, Folders(Path(self.data)), self.key_groups)

    def start(self, spark: SparkSession, trigger: cj.Trigger = DRAIN, **settings: Any) -> cj.Query:
        """Start it, for the first time or again; the settings are its inputs'."""
        set_partitions(spark, self.partitions)
        restore: dict[str, Any] = {}
        if self.origin is not None:
            restore = {
                "restore_from": cj.Snapshot(self.origin, self.at),
                "cut_back_output": self.sink != "sql" and not self.table.startswith(self.root),
            }
        saved = self.saved(spark)
        joined = saved.join(**settings)
        # All versions lie in segments: the kills fall beside their files, too.
        joined._plan = replace(joined.plan, segments=SegmentOptions(0))  # noqa: SLF001 - no setting of users'
        return saved.start(
            joined,
            trigger=trigger,
            output=self.output,
            checkpoint_interval=self.interval,
            retained_checkpoints=2,
            **restore,
        )


@dataclass(frozen=True)
class Step:
    """A job, and what is done to its driver: at a point, by its phase and name, or by others from outside."""

    job: Job
    phase: str
    name: str
    victim: Victim = "both"

    @property
    def path(self) -> Path:
        """Where the driver finds it."""
        return Path(self.job.folder) / "step.json"

    def write(self) -> Path:
        """Write it there."""
        self.path.parent.mkdir(parents=True)
        self.path.write_text(json.dumps(asdict(self)))
        return self.path

    @classmethod
    def read(cls, path: Path) -> Step:
        """Return what ``write`` wrote."""
        values = json.loads(path.read_text())
        return cls(**{**values, "job": Job(**values["job"])})


def run(spark: SparkSession, job: Job) -> None:
    """Do it, to the end or until the point."""
    # A savepoint is taken beside the batches. All of them may be done before it is, and a drained query has none.
    query = job.start(spark, PAUSE if job.takes_savepoint else DRAIN)
    if job.takes_savepoint:
        while query.is_active and (query.progress is None or query.progress.batch_id < job.batch):
            time.sleep(0.001)
        query.savepoint()
    query.await_termination(progress=False)


def main(paths: list[Path]) -> None:
    """Do the steps; the last one's error is this program's own."""
    assert os.getpgrp() == os.getpid(), "the driver needs a process group of its own"
    steps = [Step.read(path) for path in paths]
    if any(step.victim == "suspended" for step in steps):
        socket.gethostname = lambda: ANOTHER_MACHINE
        Lease.acquire = partial(Lease.acquire, beat_seconds=BEAT_SECONDS)  # type: ignore[method-assign]
    spark = make_session("killed", paths[0].parent, s3=steps[0].job.endpoint)
    jvm = spark.sparkContext._gateway.proc.pid  # noqa: SLF001 - nobody else knows the JVM's process
    for step in steps:
        step.path.with_name("jvm").write_text(str(jvm))
        every = (*POINTS, *SUSPENSIONS, *TOPIC_POINTS, *SQL_POINTS)
        chosen = [each for each in every if (each.phase, each.name) == (step.phase, step.name)]
        told = "ended"
        try:
            if step.phase == WORKER:
                victim = cast("Mortal", step.victim)
                deed = TopicDeed(str(step.path.with_name("reached")), victim, os.getpid(), jvm)
                with armed_in_worker(chosen[0], "output", step.job.batch, deed):
                    run(spark, step.job)
            elif chosen:
                if step.job.changes:
                    earlier = FIVE_SECONDS.with_idleness("1 hour")
                    step.job.start(spark, PAUSE, watermark=earlier).await_termination(progress=False)
                with chosen[0].armed(step.job.batch, _deed(step, jvm)):
                    run(spark, step.job)
            else:
                run(spark, step.job)
        except Exception as error:  # noqa: BLE001 - whoever started this judges it
            told = f"{type(error).__name__}: {error}"
        _write_whole(step.path.with_name("outcome"), told)
        print(step.phase, step.name, step.victim, told, flush=True)


def _deed(step: Step, jvm: int) -> Callable[[], None]:
    def do() -> None:
        _write_whole(step.path.with_name("reached"), step.name)
        if step.victim == "JVM":
            # What is called next finds nobody: Python must see that, and end.
            with suppress(ProcessLookupError):
                os.kill(jvm, signal.SIGKILL)
        elif step.victim == "Python":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            os.killpg(os.getpid(), signal.SIGSTOP if step.victim == "suspended" else signal.SIGKILL)

    return do


def _write_whole(path: Path, text: str) -> None:
    hidden = path.with_suffix(".tmp")
    hidden.write_text(text)
    hidden.rename(path)


if __name__ == "__main__":
    main([Path(each) for each in sys.argv[1:]])
