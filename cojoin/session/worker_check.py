"""The check, before a query starts, that the Python workers have the driver's cojoin, and one question to each of them.

Everything that is sent to workers is sealed (``cojoin.session.sealed``): a worker with another cojoin refuses it, and
Spark tries its task again elsewhere, until one has failed four times. So a query would fail in the middle, or continue
with the other hosts. This check asks the workers before anything is written, by one job with a task for each core, and
a further one only where an executor got no task. A worker that has the driver's cojoin answers the question in the same
task, such as whether it sees the places of the query (``shared_places``).

Without a question, the executors of an application are asked once. Later executors are checked by their first task,
which opens what is sealed.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer

from cojoin.errors import EnvironmentSetupError
from cojoin.session.kinds import adapter_of
from cojoin.session.sealed import Sealed, ours, refusal, worker_trouble
from cojoin.session.spark_errors import SPARK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["ask_workers", "check_workers"]

_ASKED: dict[str, frozenset[str]] = {}
"""The executors that were asked, by application; none of a session of Spark Connect, whose executors are not known."""

_LINGERS = (0.0, 0.3, 1.0)
"""Seconds for which each task lingers: where some executor got none, the tasks of a further job linger longer."""

_PYTHON_ERROR = re.compile(r"^(?:\w+\.)*\w+Error: .+$", re.MULTILINE)


def check_workers(session: Any) -> None:
    """Check that the workers of a cluster, or of a Spark Connect server, have what this process has.

    A local session's workers are this process's own children, whose first task refuses what is sealed if need be.

    Raises:
        EnvironmentSetupError: As ``ask_workers``.
    """
    adapter = adapter_of(session)
    if adapter.has_child_workers:
        return
    asked = _ASKED.get(adapter.application_id)
    if asked is None or not adapter.executors() <= asked:
        ask_workers(session)


def ask_workers(session: Any, question: Callable[[], Any] | None = None) -> list[Any]:
    """Have a task on each core check that its worker has what this process has, and then answer a question.

    Args:
        session: The session.
        question: A function that is called there and returns JSON values; with None, only the check is made.

    Returns:
        What the function has returned in each task.

    Raises:
        EnvironmentSetupError: A worker has no cojoin, another version or other sources of it, another Python or another
            pyarrow; or the job has failed.
    """
    adapter, told = adapter_of(session), []
    executors = adapter.executors()
    sent = None if question is None else CloudPickleSerializer().dumps(Sealed(question))
    for linger in _LINGERS:
        told += _answers(session, len(executors) - 1, sent, linger)
        if len({each["process"] for each in told}) >= len(executors) - 1:
            break
    refused = sorted({each["refused"] for each in told if each["refused"] is not None})
    if refused:
        raise EnvironmentSetupError(_refused(session, ". Also ".join(refused)))
    _ASKED[adapter.application_id] = executors
    return [each["answer"] for each in told]


def _answers(session: Any, executors: int, sent: bytes | None, linger: float) -> list[dict[str, Any]]:
    """Return what the tasks of one job say, of which each lingers so long, so that no core runs two."""
    expected, tasks = ours(), max(adapter_of(session).parallel_tasks(), executors)

    # Not sealed: it returns its findings, so Spark does not try its task again elsewhere.
    def asked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            refused, question = refusal(expected), None
            try:
                question = CloudPickleSerializer().loads(sent) if refused is None and sent is not None else None
            except RuntimeError as error:
                refused = str(error)
            # The parent is one process for each executor.
            told = {"process": f"{socket.gethostname()} {os.getppid()}", "refused": refused}
            told["answer"] = None if question is None else question()
            time.sleep(linger)
            yield pa.RecordBatch.from_pydict({"told": [json.dumps(told)]})

    try:
        rows = session.range(0, tasks, 1, tasks).mapInArrow(asked, "told string").collect()
    except SPARK_ERRORS as error:
        why = worker_trouble(str(error)) or f"the job that asks them has failed: {_worker_error(error)}"
        raise EnvironmentSetupError(_refused(session, why)) from error
    return [json.loads(row.told) for row in rows]


def _refused(session: Any, why: str) -> str:
    return f"{adapter_of(session).workers} must have what this process has, since they execute its queries: {why}"


def _worker_error(error: Exception) -> str:
    """Return the last Python error in the text of a failed job, or else the text's first line."""
    raised = _PYTHON_ERROR.findall(str(error))
    return str(raised[-1]) if raised else str(error).strip().partition("\n")[0]
