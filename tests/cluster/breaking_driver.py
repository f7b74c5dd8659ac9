"""The driver of a job on a cluster in which something breaks: ``python breaking_driver.py MASTER FOLDER WHAT SINK``.

Reads ``trades`` and ``customers`` in the folder, two files a batch, and runs a function that breaks in its second batch
(``breaking.py``), or a join, one of whose executors is killed between the output's commit and the rejected rows' own
sink. Writes what came out as plain Parquet files for the test, and what Spark says of it as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import cojoin as cj
from tests.cluster.application import connect, start_session
from tests.cluster.breaking import BreakingTrades

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTPUT_DDL = "trade_id long, customer_id string, event_time timestamp, amount double, tier string"


def main(master: str, folder: str, what: str, sink: str, at_trade: str) -> None:
    conf = {
        # More tasks than executors: some begin when others have ended.
        "spark.sql.shuffle.partitions": 4,
        "spark.speculation": str(what == "speculation").lower(),
        "spark.speculation.interval": "200ms",
        "spark.speculation.quantile": 0.5,
        "spark.speculation.minTaskRuntime": "2s",
    }
    spark = start_session("breaking", master, conf)
    pair = connect(folder, key_groups=8)
    rejected: list[Any] = []
    if what == "between":
        joined = pair.asof_join()
    else:
        joined = pair.process(BreakingTrades(what, f"{folder}/fuse", int(at_trade)), OUTPUT_DDL)

    def take(frame: DataFrame, batch_id: int) -> None:
        if what == "between" and not Path(f"{folder}/fuse").exists():
            Path(f"{folder}/fuse").touch()
            _kill_an_executor(spark)
        rejected.extend(frame.selectExpr("get_json_object(row, '$.trade_id')").collect())

    table = f"{folder}/out"
    query = joined.start(
        output=cj.sinks.delta(table) if sink == "delta" else cj.sinks.parquet(table),
        rejected=take,
        checkpoint=f"{folder}/checkpoint",
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination(progress=False)
    assert query.progress is not None
    assert query.progress.is_conserved
    assert query.progress.drained
    pq.write_table(spark.read.format(sink).load(table).toArrow(), f"{folder}/out.parquet")
    pq.write_table(pa.table({"trade_id": [int(row[0]) for row in rejected]}), f"{folder}/rejected.parquet")
    Path(f"{folder}/told.json").write_text(json.dumps(_told(spark)))
    spark.stop()


def _kill_an_executor(spark: SparkSession) -> None:
    application = spark.sparkContext.applicationId
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text()
        except OSError:
            continue
        if "CoarseGrainedExecutorBackend" in command and application in command:
            os.kill(int(process.name), signal.SIGKILL)
            time.sleep(1)
            return
    msg = f"no executor of {application}"
    raise AssertionError(msg)


def _told(spark: SparkSession) -> dict[str, int]:
    """Return the most attempts of a stage, and how many tasks failed."""
    tracker = spark.sparkContext.statusTracker()
    stages = [info for number in range(1_000) if (info := tracker.getStageInfo(number)) is not None]
    return {
        "attempts": 1 + max(info.currentAttemptId for info in stages),
        "failed_tasks": sum(info.numFailedTasks for info in stages),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
