"""The places of a query that its workers reach by themselves: all of them see what the driver sees, or it is refused.

With ``local[...]`` the workers are the driver's own children. With any other master they may run on other hosts, or in
containers with disks of their own, where a local path leads somewhere else: the files of an output would lie on the
workers' disks, and nobody would miss them. So before anything is written, one job with a task for each core looks for
the driver's token in the checkpoint and the outputs, and for a file of each input (``place_tokens``). The job runs
again before and after each batch that has executors which have not answered yet. Beside that, each Python process of a
worker looks for the token at its first task of the query (``batch_facts.check_places``), so that a host that comes in
the midst of a batch writes nothing into a place of its own.

With Spark Connect, the client does so for the checkpoint, which it writes to, and the process beside the server that
writes the batches does so for all places, when it writes its first one.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException

from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.spark.query.failures import explain
from cojoin.spark.query.output_places import local_places
from cojoin.storage.place_tokens import Fault, ListedFile, Tokens, files_in, find_files, this_host, told_faults
from cojoin.storage.sealed import for_workers
from cojoin.storage.session_settings import is_connect, parallel_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.spark.bound_input import BoundInput
    from cojoin.spark.sinks.sink import Sink
    from cojoin.storage.store import Store

__all__ = ["SharedPlaces", "has_other_hosts"]


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
    def open(
        cls, spark: SparkSession, files: Store, sinks: Mapping[str, Sink], inputs: Sequence[BoundInput] = ()
    ) -> SharedPlaces | None:
        """Return the places of a query, in which nothing was put yet; None where its workers are this one's children.

        Args:
            spark: The session.
            files: The query's checkpoint.
            sinks: The sink of each output, by the output's name.
            inputs: The inputs.
        """
        if not has_other_hosts(spark):
            return None
        outputs, read = local_places(spark, files, sinks, inputs)
        return cls(Tokens(outputs), [each for place in read for each in files_in(place)])

    @classmethod
    @contextlib.contextmanager
    def begun(
        cls, spark: SparkSession, files: Store, sinks: Mapping[str, Sink], inputs: Sequence[BoundInput]
    ) -> Iterator[SharedPlaces | None]:
        """Yield the places of a query after all have answered; the tokens stay, unless the block raises an error.

        The arguments and what is returned are those of ``open``, the errors those of ``put`` and ``ask``.
        """
        # With Spark Connect, the process that writes the batches looks at the others.
        places = cls.open(spark, files, *(({}, ()) if is_connect(spark) else (sinks, inputs)))
        if places is None:
            yield None
            return
        places.put()
        try:
            places.ask(spark)
            yield places
        except BaseException:
            places.remove()
            raise

    def told(self) -> str:
        """Return what each worker has to know, as a text."""
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
        executors = _executors(spark)
        if self._asked and executors <= self._asked:
            return
        asking = _Asking(self._tokens.to_json(), self._files)

        def asked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return asking(batches)

        tasks = max(parallel_tasks(spark), len(executors) - 1)
        try:
            rows = spark.range(0, tasks, 1, tasks).mapInArrow(for_workers(asked), "told string").collect()
        except PySparkException as error:
            raise ConfigurationError(explain(error)) from error
        told = [json.loads(row.told) for row in rows]
        faults = [Fault(*each) for one in told for each in one["faults"]]
        # Files that are gone by now, such as those that a table's owner has removed, say nothing.
        gone = {each.path for each in find_files(self._files, seconds=0)} if faults else set()
        faults = [each for each in faults if not (each.is_read and each.path in gone)]
        _raise(faults or self._tokens.find({(one["host"], one["own"]) for one in told}), self._tokens.driver)
        self._asked = executors or frozenset({""})

    @contextlib.contextmanager
    def held(self, spark: SparkSession) -> Iterator[None]:
        """Keep the tokens in their places during the block; the errors are those of ``put`` and ``ask``."""
        self.put()
        try:
            self.ask(spark)
            yield
        finally:
            self.remove()

    def before_batch(self, spark: SparkSession) -> None:
        """Look after the tokens before a batch; the errors are those of ``ask``."""
        self._tokens.touch()
        self.ask(spark)

    def remove(self) -> None:
        """Remove the tokens, and folders that were made for them."""
        self._tokens.remove()


class _Asking:
    """What a task of the job does; it is sent to the workers."""

    def __init__(self, told: str, files: tuple[ListedFile, ...]) -> None:
        self._told, self._files = told, files

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            own = uuid.uuid4().hex
            faults = [*Tokens.read(self._told).look(own), *find_files(self._files)]
            answer = {"own": own, "host": this_host(), "faults": faults}
            yield pa.RecordBatch.from_pydict({"told": [json.dumps(answer)]})


def has_other_hosts(spark: SparkSession) -> bool:
    """Return whether a session's workers may be on other hosts, or have other disks, than its driver."""
    master = str(spark.conf.get("spark.master", ""))
    return master != "local" and not master.startswith("local[")


def _executors(spark: SparkSession) -> frozenset[str]:
    """Return the executors that the driver knows, and the driver, by their addresses; none with Spark Connect."""
    if is_connect(spark):
        return frozenset()
    status = spark.sparkContext._jsc.sc().getExecutorMemoryStatus()  # noqa: SLF001 - PySpark has no way to them
    return frozenset(str(status.keySet().mkString("\n")).splitlines())


def _raise(faults: Sequence[Fault], driver: str) -> None:
    if faults:
        kind = CheckpointError if any(each.what == "checkpoint" for each in faults) else ConfigurationError
        raise kind(told_faults(faults, driver))
