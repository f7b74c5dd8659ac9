"""A driver that the tests kill: ``python -m tests.spark.killed_driver FOLDER [RESULT]``.

Joins the trades and customers below the folder, a file of each a batch, until it is killed. With a result's file it
goes on where the last one was killed, drains, and writes what there is then to the file, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import cojoin as cj
from cojoin.checkpoints.files import CheckpointFiles
from cojoin.checkpoints.manifest import Manifests
from tests.conftest import DELTA, SETTINGS
from tests.spark.data import Folders, asof, enriched_rows, table


def main(folder: Path, result: Path | None) -> None:
    settings = SETTINGS | {"spark.jars.packages": DELTA, "spark.sql.warehouse.dir": str(folder / "warehouse")}
    # It lives for seconds: nothing is gained by optimising what it runs.
    settings["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    query = asof(Folders(folder).connect(spark, key_groups=2)).start(
        output=cj.sinks.delta(f"{folder}/out"),
        checkpoint=f"{folder}/checkpoint",
        trigger=cj.Trigger.processing_time("0 seconds") if result is None else cj.Trigger.available_now(drain=True),
    )
    query.await_termination()
    if result is not None:
        result.write_text(json.dumps(found(spark, folder)))


def found(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Say what the query has left behind."""
    manifests = Manifests(CheckpointFiles(spark, f"{folder}/checkpoint"))
    ids = manifests.batch_ids()
    progress = table(spark, folder / "checkpoint" / "progress").select("batch_id").collect()
    return {
        "rows": enriched_rows(table(spark, folder / "out")),
        "manifests": ids,
        "conserved": all((each := manifests.read(number)) and each.report.is_conserved for number in ids),
        "progress": sorted(row.batch_id for row in progress),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
