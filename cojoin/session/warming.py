"""Starts the Python workers and their imports in the background while the driver plans the first batch.

This is a job without data, run once per application in its own thread, with as many workers per task as a batch has.
It costs about a second of otherwise idle cores. Its errors are ignored, since they recur in the first batch.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from typing import TYPE_CHECKING

from cojoin.session.kinds import adapter_of
from cojoin.session.sealed import for_workers, installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["import_modules", "warm_up"]

_MODULES = (
    "pandas",
    "pyspark.worker",
    "cojoin.engine.joins.asof",
    "cojoin.spark.batch.call",
    "cojoin.spark.batch.packing",
    "cojoin.spark.batch.written_files",
)
_WARM: set[str] = set()


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
        # A query's process beside the server must start within ten seconds, and gets the cores for itself.
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
