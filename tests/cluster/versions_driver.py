"""The driver of jobs on a cluster whose second host has something else installed: ``python ... MASTER FOLDER WHAT``.

``start`` starts a query, ``later`` executes a plain DataFrame, without the check before a start. ``lacking`` runs a
function of a module that only this process can import, ``sent`` sends that module first, ``submitted`` has it from
``spark-submit``. Writes what was raised, or the rows that came out, as JSON for the test.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import cojoin as cj
from tests.cluster.application import EXECUTORS, connect, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(master: str, folder: str, what: str) -> None:
    told = {"error": "", "rows": 0}
    try:
        # One attempt a task: another one may be run by the other host, which is right.
        conf = {"spark.sql.shuffle.partitions": EXECUTORS, "spark.task.maxFailures": 1}
        spark = start_session("versions", master, conf)
        told["rows"] = _run(spark, folder, what)
        spark.stop()
    except Exception as error:  # noqa: BLE001 - it is what the test looks at
        told["error"] = f"{type(error).__name__}: {error}"
    Path(f"{folder}/{what}.json").write_text(json.dumps(told))


def _run(spark: SparkSession, folder: str, what: str) -> int:
    if what == "later":
        frames = [spark.read.parquet(f"{folder}/{name}").repartition(8) for name in ("trades", "customers")]
        sides = [cj.Input(frame, key="customer_id", event_time="event_time") for frame in frames]
        return cj.connect(*sides, key_groups=4).asof_join().to_dataframe().count()
    pair = connect(folder, key_groups=4)
    joined = pair.asof_join()
    if what not in {"start", "later"}:
        sys.path.append(f"{folder}/modules")
        if what == "sent":
            spark.sparkContext.addPyFile(f"{folder}/modules/passing.py")
        from passing import PassOn  # type: ignore[import-not-found]

        joined = pair.process(PassOn(), "trade_id long")
    query = joined.start(
        output=cj.sinks.delta(f"{folder}/{what}-out"),
        checkpoint=f"{folder}/{what}-checkpoint",
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination(progress=False)
    return spark.read.format("delta").load(f"{folder}/{what}-out").count()


if __name__ == "__main__":
    main(*sys.argv[1:])
