"""The Python workers of a query: started early, and checked to have the driver's cojoin and to see the same places.

``warm_up`` starts them and their imports while the driver plans the first batch, by a job without data, once per
application in a thread, with as many workers per task as a batch has. It costs about a second of otherwise idle cores.
Its errors are ignored, since they recur in the first batch.

Everything that is sent to workers is sealed (``sealed``): a worker with another cojoin refuses it, and Spark tries its
task again elsewhere, until one has failed four times. So a query would fail in the middle, or continue with the other
hosts. ``check_workers`` asks the workers before anything is written, by one job with a task for each core, and a
further one only where an executor got no task. The executors of an application are asked once; later ones are checked
by their first task, which opens what is sealed.

With ``local[...]`` the workers are the driver's own children. With any other master they may run on other hosts, or in
containers with private disks, where a local path leads somewhere else: the files of an output would lie on the workers'
disks, and be missing without an error. So before anything is written, the task that has just checked its worker also
looks for the driver's token in the checkpoint and the outputs, and for a file of each input (``SharedPlaces``,
``place_tokens``). That one job runs again before and after each batch with executors that have not answered yet. Each
Python process of a worker also looks for the token at its first task of the query (``batch_facts.check_places``), so
that a host that joins in the midst of a batch writes nothing into a private folder. A query without local paths skips
all this.

With Spark Connect, the client checks the checkpoint, which it writes to, and the process next to the server that writes
the batches checks all places, when it writes its first batch.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle

from cojoin.errors import CheckpointError, ConfigurationError, EnvironmentSetupError
from cojoin.session.sealed import Sealed, for_workers, installed, ours, pickled, refusal, worker_trouble
from cojoin.session.sessions import adapter_of
from cojoin.session.spark_errors import SPARK_ERRORS, first_line
from cojoin.storage.place_tokens import (
    Fault,
    ListedFile,
    Tokens,
    described_faults,
    find_files,
    remaining_files,
    this_host,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from cojoin.storage.place_tokens import Place

_MODULES = ("pandas", "pyspark.worker", "cojoin.engine.joins.asof", "cojoin.spark.batch.call")
_WARM, _PLANNING = set[str](), set[str]()
"""The applications whose workers, and whose processes for planning, were started."""

_CHECKED: dict[str, frozenset[str]] = {}
"""The executors that were checked, by application; empty with Spark Connect, whose executors are not known."""

_LINGERS = (0.0, 0.3, 1.0)
"""Seconds for which each task lingers: where some executor got none, the tasks of a further job linger longer."""

_PYTHON_ERROR = re.compile(r"^(?:\w+\.)*\w+Error: .+$", re.MULTILINE)


def import_modules() -> None:
    """Import the modules that a worker needs for any batch."""
    for name in _MODULES:
        importlib.import_module(name)
    # Workers that are forked from this process need not read the sources again.
    installed()


def warm_up(session: SparkSession) -> None:
    """Start the workers of an application, at its first call, without waiting for them; not with Spark Connect."""
    adapter = adapter_of(session)
    if not adapter.runs_batches:
        # A query's process next to the server must start within ten seconds, and gets the cores for itself.
        return
    application = adapter.application_id
    if application in _WARM:
        return
    _WARM.add(application)
    threading.Thread(target=_start_workers, args=(session,), name="cojoin-warm-up", daemon=True).start()


def _start_workers(session: SparkSession) -> None:
    def imported(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import_modules()
        yield from batches

    ready = for_workers(imported)
    with contextlib.suppress(Exception):
        tasks = session.range(0, 64, 1, adapter_of(session).parallel_tasks())
        tasks.mapInArrow(ready, "id long").mapInArrow(ready, "id long").write.format("noop").mode("overwrite").save()


def warm_up_planning(session: SparkSession) -> None:
    """Start the processes with which Spark makes and plans data sources in Python, without waiting for them.

    A query starts them one after the other otherwise. It is done once in an application, and not with Spark Connect.
    """
    adapter = adapter_of(session)
    if adapter.runs_batches and adapter.application_id not in _PLANNING:
        _PLANNING.add(adapter.application_id)
        threading.Thread(target=_plan_nothing, args=(session,), name="cojoin-warm-up-planning", daemon=True).start()


def _plan_nothing(session: SparkSession) -> None:
    from pyspark.sql.datasource import DataSource, DataSourceReader  # noqa: PLC0415 - workers do without

    class NothingReader(DataSourceReader):
        def read(self, partition: Any) -> Iterator[tuple[int]]:
            del partition
            return iter(())

    class Nothing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "cojoin-nothing"

        def schema(self) -> str:
            return "nothing int"

        def reader(self, schema: Any) -> DataSourceReader:
            del schema
            return NothingReader()

    with contextlib.suppress(Exception):
        session.dataSource.register(Nothing)
        session.read.format(Nothing.name()).load().collect()


def check_workers(session: Any) -> None:
    """Check that the workers of a cluster, or of a Spark Connect server, have what this process has.

    A local session's workers are this process's own children, whose first task refuses what is sealed if need be.
    Errors are those of ``ask_workers``.
    """
    adapter = adapter_of(session)
    if adapter.has_child_workers:
        return
    checked = _CHECKED.get(adapter.application_id)
    if checked is None or not adapter.executors() <= checked:
        ask_workers(session)


def ask_workers(session: Any, question: Callable[[], Any] | None = None) -> list[Any]:
    """Have a task on each core check that its worker has what this process has, and return each one's answer.

    ``question`` is called on the worker and returns JSON values; with None, only the check is made. Raises
    ``EnvironmentSetupError`` where a worker has no cojoin, another version or other sources of it, another Python or
    another pyarrow; or where the job has failed.
    """
    adapter, answers = adapter_of(session), []
    executors = adapter.executors()
    sent = None if question is None else pickled(Sealed(question))
    for linger in _LINGERS:
        answers += _answers(session, len(executors) - 1, sent, linger)
        if len({each["process"] for each in answers}) >= len(executors) - 1:
            break
    refused = sorted({each["refused"] for each in answers if each["refused"] is not None})
    if refused:
        raise EnvironmentSetupError(_refused(session, ". Also ".join(refused)))
    _CHECKED[adapter.application_id] = executors
    return [each["answer"] for each in answers]


def _answers(session: Any, executors: int, sent: bytes | None, linger: float) -> list[dict[str, Any]]:
    """Return the answers of one job's tasks; each task lingers, so that no core runs two."""
    expected, tasks = ours(), max(adapter_of(session).parallel_tasks(), executors)

    # Not sealed: it returns its findings, so Spark does not try its task again elsewhere.
    def respond(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            refused, question = refusal(expected), None
            try:
                question = cloudpickle.loads(sent) if refused is None and sent is not None else None
            except RuntimeError as error:
                refused = str(error)
            # The parent is one process for each executor.
            answer = {"process": f"{socket.gethostname()} {os.getppid()}", "refused": refused}
            answer["answer"] = None if question is None else question()
            time.sleep(linger)
            yield pa.RecordBatch.from_pydict({"answer": [json.dumps(answer)]})

    try:
        rows = session.range(0, tasks, 1, tasks).mapInArrow(respond, "answer string").collect()
    except SPARK_ERRORS as error:
        why = worker_trouble(str(error)) or f"the job that asks them has failed: {_worker_error(error)}"
        raise EnvironmentSetupError(_refused(session, why)) from error
    return [json.loads(row.answer) for row in rows]


def _refused(session: Any, why: str) -> str:
    return f"{adapter_of(session).workers} must have what this process has, since they execute its queries: {why}"


def _worker_error(error: Exception) -> str:
    """Return the last Python error in the text of a failed job, or else the text's first line."""
    raised = _PYTHON_ERROR.findall(str(error))
    return str(raised[-1]) if raised else first_line(error)


class SharedPlaces:
    """The tokens of a running query in the places that workers write to, and the executors that have found them."""

    def __init__(self, written: Sequence[Place], read: Sequence[Place] = ()) -> None:
        self._tokens, self._read = Tokens(tuple(written)), tuple(read)
        self._files: list[ListedFile] = []
        self._asked: frozenset[str] = frozenset()

    def begin(self, spark: SparkSession) -> None:
        """Put the tokens, and have all workers look for them; the errors are those of ``put`` and ``ask``."""
        self.put()
        try:
            self.ask(spark)
        except BaseException:
            self.remove(of_workers=True)
            raise

    def as_text(self) -> str:
        """Return the tokens that each worker looks for, as a text."""
        return self._tokens.to_json()

    def put(self) -> None:
        """Put the driver's tokens in their places, also where they exist already, as ``Tokens.put``."""
        self._tokens.put()

    def ask(self, spark: SparkSession) -> None:
        """Have a task on each core look for the tokens and the inputs' files, where an executor has not answered yet.

        Raises ``CheckpointError`` where a host has another checkpoint, or none, ``ConfigurationError`` for its outputs
        and inputs, and ``EnvironmentSetupError`` where its Python lacks what this process has.
        """
        executors = adapter_of(spark).executors()
        if self._asked and executors <= self._asked:
            return
        # Files that were removed since, such as by a table's owner, are not waited for.
        self._files = remaining_files(self._read, self._files)
        answers = ask_workers(spark, _Looking(self._tokens.to_json(), tuple(self._files)))
        faults = [Fault(*each) for answer in answers for each in answer["faults"]]
        # Files that are gone by now are not a fault.
        gone = {each.path for each in find_files(self._files, seconds=0)} if faults else set()
        faults = [each for each in faults if not (each.is_read and each.path in gone)]
        tokens = {(answer["host"], answer["own"]) for answer in answers}
        if faults := faults or self._tokens.find(tokens):
            kind = CheckpointError if any(each.label == "checkpoint" for each in faults) else ConfigurationError
            raise kind(described_faults(faults, self._tokens.driver))
        self._asked = executors or frozenset({""})

    def before_batch(self, spark: SparkSession) -> None:
        """Renew the tokens before a batch, and ask; the errors are those of ``ask``."""
        self._tokens.touch()
        self.ask(spark)

    def remove(self, *, of_workers: bool = False) -> None:
        """Remove the tokens, and folders that were made for them; the argument is that of ``Tokens.remove``."""
        self._tokens.remove(of_workers=of_workers)


@contextlib.contextmanager
def begun(places: SharedPlaces | None, spark: SparkSession, *, to_the_end: bool = False) -> Iterator[None]:
    """Ask all workers before the block; the tokens stay after it, unless it raises an error or ``to_the_end`` is True.

    Without places, only what the workers have installed is checked. The errors are those of ``SharedPlaces.put`` and
    ``ask``.
    """
    if places is None:
        check_workers(spark)
        yield
        return
    places.begin(spark)
    try:
        yield
    except BaseException:
        places.remove(of_workers=True)
        raise
    if to_the_end:
        places.remove()


@dataclass(frozen=True)
class _Looking:
    """The question to each worker: the faults of the places and the files as it sees them."""

    tokens: str
    files: tuple[ListedFile, ...]

    def __call__(self) -> dict[str, Any]:
        own = uuid.uuid4().hex
        faults = [*Tokens.read(self.tokens).look(own), *find_files(self.files)]
        return {"own": own, "host": this_host(), "faults": faults}
