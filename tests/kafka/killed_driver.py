"""A driver that joins the filled topics and waits to be killed where it hurts.

That is after a batch's rows are in the table, and before its manifest is written. The test runs it as a process of its
own: ``python -m tests.kafka.killed_driver TABLE CHECKPOINT REACHED SERVERS TRADES CUSTOMERS SIZE SIZE``.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cojoin as cj
from cojoin.spark.sinks import DeltaSink, WriteContext
from tests.conftest import DELTA, SETTINGS
from tests.kafka.topics import Topics
from tests.servers.jars import kafka_session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LAST_BATCH = 2

# It lives for a few batches: the quick compiler alone is quicker.
QUICK_START = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@dataclass(frozen=True)
class WaitingSink(DeltaSink):
    """Writes as the Delta sink does, and goes no further after one batch."""

    reached: str = ""

    def write(self, frame: DataFrame, context: WriteContext) -> dict[str, Any]:
        """Write, then say where we are."""
        written = super().write(frame, context)
        if context.batch_id == LAST_BATCH:
            Path(self.reached).touch()
            time.sleep(600)
        return written


def main(table: str, checkpoint: str, reached: str, *where: str) -> None:
    """Run until killed."""
    servers, trades, customers, *sizes = where
    kafka = kafka_session_conf()
    packages = {"spark.jars.packages": f"{DELTA},{kafka['spark.jars.packages']}"}
    cj.spark_session("killed", master="local[2]", conf=SETTINGS | QUICK_START | kafka | packages)
    topics = Topics(servers, trades, customers, (int(sizes[0]), int(sizes[1])))
    query = (
        topics.connect()
        .asof_join(suffixes=("", "_customer"))
        .start(
            output=WaitingSink(table, reached=reached),
            checkpoint=checkpoint,
            trigger=cj.Trigger.available_now(drain=True),
        )
    )
    query.await_termination(progress=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
