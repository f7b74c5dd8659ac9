"""A driver that replays the historic topics, and waits to be killed.

That is inside a batch, whose rows are in the table and whose manifest is not written; or between two batches. The test
runs it as a process of its own: ``python -m tests.kafka.replaying_driver FOLDER REACHED SERVERS TRADES CUSTOMERS
MAX_RECORDS BATCH``; without a batch it is between two.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cojoin as cj
from cojoin.spark.sinks.delta_sink import DeltaSink, DeltaWriter
from tests.conftest import SETTINGS
from tests.kafka.replayed import historic

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cojoin.spark.sinks.batch_marker import BatchMarker
    from cojoin.spark.sinks.sink import OutputId
    from cojoin.storage.parquet_files import WrittenFile

IDLE = "5 seconds"
"""From the first run on, for a checkpoint keeps whether its query looks at the clock."""


@dataclass(frozen=True)
class WaitingSink(DeltaSink):
    """Commits as the Delta sink does, and goes no further after one batch."""

    reached: str = ""
    batch: int = -1

    def open(self, session: SparkSession, output: OutputId) -> WaitingWriter:
        """Return a writer that waits."""
        return WaitingWriter(session, self, output)


class WaitingWriter(DeltaWriter):
    def commit(self, schema: pa.Schema, files: Sequence[WrittenFile], marker: BatchMarker) -> dict[str, Any]:
        """Commit, then say where we are."""
        written = super().commit(schema, files, marker)
        sink = self._sink
        assert isinstance(sink, WaitingSink)
        if marker.batch_id == sink.batch:
            Path(sink.reached).touch()
            time.sleep(600)
        return written


def main(folder: str, reached: str, servers: str, trades: str, customers: str, limit: str, batch: str = "") -> None:
    """Run until killed."""
    cj.spark_session("killed", master="local[2]", conf=SETTINGS)
    joined = historic(servers, trades, customers, idle=IDLE, max_records=int(limit), group=trades)
    query = joined.start(
        output=WaitingSink(f"{folder}/out", reached=reached, batch=int(batch or -1)),
        checkpoint=f"{folder}/checkpoint",
        # A live query that takes its second batch in an hour.
        trigger=cj.Trigger.available_now() if batch else cj.Trigger.processing_time("1 hour"),
    )
    begun = query.progress
    while not batch and (query.progress is None or query.progress == begun) and query.is_active:
        time.sleep(0.05)
    if not batch and query.is_active:
        Path(reached).touch()
    query.await_termination(progress=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
