"""The check, before a query starts, that the Python workers have the driver's cojoin.

Everything that is sent to workers is sealed (``cojoin.storage.sealed``): a worker with another cojoin refuses it, and
Spark tries its task again elsewhere, until one has failed four times. So a query would fail in the middle, or continue
with the other hosts. This check asks the workers before anything is written, by one job with a task for each core, once
for the executors that are there. Later executors are checked by their first task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from cojoin.errors import EnvironmentSetupError
from cojoin.spark.session.shared_places import has_other_hosts, known_executors, worker_error
from cojoin.storage.sealed import ours, refusal, worker_trouble
from cojoin.storage.session_settings import is_connect, parallel_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["check_workers"]

_ASKED: dict[str, frozenset[str]] = {}
"""The executors that were asked, by application; none of a session of Spark Connect, whose executors are not known."""


def check_workers(session: Any) -> None:
    """Check that the workers of a cluster, or of a Spark Connect server, have what this process has.

    A local session's workers are this process's own children, whose first task refuses what is sealed if need be.

    Raises:
        EnvironmentSetupError: A worker has no cojoin, another version or other sources of it, another Python or another
            pyarrow; or none works.
    """
    if is_connect(session):
        name, where = str(session.session_id), "the Spark Connect server's workers"
    elif not has_other_hosts(session):
        return
    else:
        name, where = str(session.sparkContext.applicationId), f"the workers of {session.sparkContext.master}"
    executors = known_executors(session)
    if name in _ASKED and executors <= _ASKED[name]:
        return
    told = _told(session)
    if told:
        msg = f"{where} must have what this process has, since they execute its queries: {'. Also '.join(told)}"
        raise EnvironmentSetupError(msg)
    _ASKED[name] = executors


def _told(session: Any) -> list[str]:
    """Return what the workers lack, each kind of it once."""
    expected, tasks = ours(), parallel_tasks(session)

    # Not sealed: it returns its findings, so Spark does not try its task again elsewhere.
    def asked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pa.array([refusal(expected)] * batch.num_rows, pa.string())], ["told"])

    try:
        rows = session.range(0, tasks, 1, tasks).mapInArrow(asked, "told string").collect()
    except (PySparkException, Py4JError) as error:
        return [worker_trouble(str(error)) or f"none of them works: {worker_error(error)}"]
    return sorted({row.told for row in rows if row.told is not None})
