"""Starts the Python workers, with their imports, and Spark's classes in the background while the driver prepares.

These are two small jobs, run once per application in their own thread. The first starts as many workers per task as a
batch has. The second has the operators of a batch, so that Spark has loaded their classes when it plans the first one.
They cost two seconds of otherwise idle cores. Their errors are ignored, since they recur in the first batch.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.state import GroupStateTimeout

from cojoin.storage.session_settings import is_connect, parallel_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.state import GroupState

__all__ = ["import_modules", "warm_up"]

_MODULES = (
    "pandas",
    "pyspark.worker",
    "cojoin.engine.joins.asof",
    "cojoin.spark.batch.call",
    "cojoin.spark.batch.packing",
    "cojoin.spark.sinks.written_files",
)
_WARM: set[str] = set()


def import_modules() -> None:
    """Import the modules that a worker needs for any batch."""
    for name in _MODULES:
        importlib.import_module(name)


def warm_up(session: SparkSession) -> None:
    """Start the workers of an application, at its first call, without waiting for them; not with Spark Connect."""
    if is_connect(session):
        # A query's process beside the server must start within ten seconds, and gets the cores for itself.
        return
    application = session.sparkContext.applicationId
    if application in _WARM:
        return
    _WARM.add(application)
    threading.Thread(target=_start_workers, args=(session,), name="cojoin-warm-up", daemon=True).start()


def _start_workers(session: SparkSession) -> None:
    def ready(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import_modules()
        yield from batches

    def take(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        del key, state
        yield from frames

    with contextlib.suppress(Exception):
        tasks = session.range(0, 64, 1, parallel_tasks(session))
        started = tasks.mapInArrow(ready, "id long").mapInArrow(ready, "id long")
        started.write.format("noop").mode("overwrite").save()
        grouped = tasks.mapInArrow(ready, "id long").groupBy("id")
        called = grouped.applyInPandasWithState(take, "id long", "id long", "append", GroupStateTimeout.NoTimeout)
        called.mapInArrow(ready, "id long").write.format("noop").mode("overwrite").save()
