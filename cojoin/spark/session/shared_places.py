"""The places that a query's workers reach by themselves: all of them see there what the driver sees, or it is refused.

With ``local[...]`` the workers are the driver's own children. With any other master they may run on other hosts, or in
containers with disks of their own, where a local path leads somewhere else: the files of an output would lie on the
workers' disks, and nobody would miss them. So before anything is written, one job with a task for each core looks for
the driver's token in the checkpoint and the outputs, and for a file of each input (``place_tokens``). The job runs
again before and after each batch that has executors which have not answered yet. In addition, each Python process of a
worker looks for the token at its first task of the query (``batch_facts.check_places``), so that a host that comes in
the midst of a batch writes nothing into a place of its own.

With Spark Connect, the client does so for the checkpoint, which it writes to, and the process beside the server that
writes the batches does so for all places, when it writes its first one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.storage.place_tokens import Fault, ListedFile, Tokens, files_in, find_files, this_host, told_faults
from cojoin.storage.sealed import for_workers
from cojoin.storage.session_settings import is_connect, parallel_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from cojoin.storage.place_tokens import Place

__all__ = ["SharedPlaces", "begun", "has_other_hosts", "known_executors", "worker_error"]

_LINGERS = (0.0, 0.3, 1.0)
"""The seconds for which each task of a job waits; if an executor got no task, those of the next job wait longer."""

_PYTHON_ERROR = re.compile(r"^(?:\w+\.)*\w+Error: .+$", re.MULTILINE)


class SharedPlaces:
    """The tokens of a query that runs, and who has answered so far.

    Args:
        tokens: The driver's tokens, which were not put yet.
        files: Some files of each input.
    """

    def __init__(self, tokens: Tokens, files: Sequence[ListedFile] = ()) -> None:
        self._tokens, self._files = tokens, tuple(files)
        self._asked: frozenset[str] = frozenset()

    @classmethod
    def of(cls, written: Sequence[Place], read: Sequence[Place] = ()) -> SharedPlaces:
        """Return the places that workers write to and read, in which nothing was put yet."""
        return cls(Tokens(tuple(written)), [each for place in read for each in files_in(place)])

    def begin(self, spark: SparkSession) -> None:
        """Put the tokens, and have all workers look for them; the errors are those of ``put`` and ``ask``."""
        self.put()
        try:
            self.ask(spark)
        except BaseException:
            self.remove()
            raise

    def told(self) -> str:
        """Return the tokens that each worker looks for, as a text."""
        return self._tokens.to_json()

    def put(self) -> None:
        """Put the driver's tokens in their places, also where they are there already.

        Raises:
            CheckpointError: A place can't be written to.
        """
        self._tokens.put()

    def ask(self, spark: SparkSession) -> None:
        """Have a task on each core look for the tokens and the inputs' files, where an executor has not answered yet.

        Args:
            spark: The session.

        Raises:
            CheckpointError: A host has another checkpoint, or none.
            ConfigurationError: It has another output or input, or none; or its Python can't look.
        """
        executors = known_executors(spark)
        if self._asked and executors <= self._asked:
            return
        told: list[dict[str, Any]] = []
        for linger in _LINGERS:
            told += self._answers(spark, len(executors) - 1, linger)
            if len({(one["host"], one["process"]) for one in told}) >= len(executors) - 1:
                break
        faults = [Fault(*each) for one in told for each in one["faults"]]
        # Files that are gone by now, such as those that a table's owner has removed, say nothing.
        gone = {each.path for each in find_files(self._files, seconds=0)} if faults else set()
        faults = [each for each in faults if not (each.is_read and each.path in gone)]
        _raise(faults or self._tokens.find({(one["host"], one["own"]) for one in told}), self._tokens.driver)
        self._asked = executors or frozenset({""})

    def _answers(self, spark: SparkSession, executors: int, linger: float) -> list[dict[str, Any]]:
        """Return the answers of the tasks of one job, each of which waits, so that no core runs two."""
        asking = _Asking(self._tokens.to_json(), self._files, linger)

        def asked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return asking(batches)

        tasks = max(parallel_tasks(spark), executors)
        try:
            rows = spark.range(0, tasks, 1, tasks).mapInArrow(for_workers(asked), "told string").collect()
        except (PySparkException, Py4JError) as error:
            msg = f"a task that looks whether all workers see the places of the query has failed: {worker_error(error)}"
            raise ConfigurationError(msg) from error
        return [json.loads(row.told) for row in rows]

    def before_batch(self, spark: SparkSession) -> None:
        """Look after the tokens before a batch; the errors are those of ``ask``."""
        self._tokens.touch()
        self.ask(spark)

    def remove(self) -> None:
        """Remove the tokens, and folders that were made for them."""
        self._tokens.remove()


@contextlib.contextmanager
def begun(places: SharedPlaces | None, spark: SparkSession, *, to_the_end: bool = False) -> Iterator[None]:
    """Have all workers look for the tokens before the block; those stay after it, unless it raises an error.

    Args:
        places: The places; with None, nothing is done.
        spark: The session.
        to_the_end: Whether the tokens are removed after the block in any case.

    Raises:
        CheckpointError: A host has another checkpoint, or none, or the driver can't write to a place.
        ConfigurationError: A host has another output or input, or none.
    """
    if places is None:
        yield
        return
    places.begin(spark)
    try:
        yield
    except BaseException:
        places.remove()
        raise
    if to_the_end:
        places.remove()


class _Asking:
    """The task of the job, which is sent to the workers."""

    def __init__(self, told: str, files: tuple[ListedFile, ...], linger: float) -> None:
        self._told, self._files, self._linger = told, files, linger

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            own = uuid.uuid4().hex
            faults = [*Tokens.read(self._told).look(own), *find_files(self._files)]
            # The parent is one process for each executor.
            answer = {"own": own, "host": this_host(), "process": os.getppid(), "faults": faults}
            time.sleep(self._linger)
            yield pa.RecordBatch.from_pydict({"told": [json.dumps(answer)]})


def has_other_hosts(spark: SparkSession) -> bool:
    """Return whether a session's workers may be on other hosts, or have other disks, than its driver."""
    master = str(spark.conf.get("spark.master", ""))
    return master != "local" and not master.startswith("local[")


def worker_error(error: Exception) -> str:
    """Return the last Python error in the text of a failed job, or else the text's first line."""
    raised = _PYTHON_ERROR.findall(str(error))
    return str(raised[-1]) if raised else str(error).strip().partition("\n")[0]


def known_executors(spark: SparkSession) -> frozenset[str]:
    """Return the addresses of the driver and of the executors that it has; none with Spark Connect."""
    if is_connect(spark):
        return frozenset()
    status = spark.sparkContext._jsc.sc().getExecutorMemoryStatus()  # noqa: SLF001 - PySpark has no way to them
    return frozenset(str(status.keySet().mkString("\n")).splitlines())


def _raise(faults: Sequence[Fault], driver: str) -> None:
    if faults:
        kind = CheckpointError if any(each.what == "checkpoint" for each in faults) else ConfigurationError
        raise kind(told_faults(faults, driver))
