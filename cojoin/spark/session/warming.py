"""Workers that are ready when the first batch comes: they start, and import what they need, while the driver plans.

A job without data, once an application and in a thread of its own, with as many workers a task as a batch has. It costs
a second of cores that wait otherwise; what goes wrong in it goes wrong again, and is told, in the first batch.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from typing import TYPE_CHECKING

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
    "cojoin.spark.sinks.written_files",
)
_WARM: set[str] = set()


def import_modules() -> None:
    """Import what a worker needs for any batch."""
    for name in _MODULES:
        importlib.import_module(name)


def warm_up(session: SparkSession) -> None:
    """Start the workers, the first time that an application asks, without waiting for them."""
    application = session.sparkContext.applicationId
    if application in _WARM:
        return
    _WARM.add(application)
    threading.Thread(target=_start_workers, args=(session,), name="cojoin-warm-up", daemon=True).start()


def _start_workers(session: SparkSession) -> None:
    def ready(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import_modules()
        yield from batches

    with contextlib.suppress(Exception):
        tasks = session.range(0, 64, 1, session.sparkContext.defaultParallelism)
        tasks.mapInArrow(ready, "id long").mapInArrow(ready, "id long").write.format("noop").mode("overwrite").save()
