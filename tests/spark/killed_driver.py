"""A driver that the tests kill: ``python -m tests.spark.killed_driver FOLDER``.

Joins the trades and customers below the folder, a file of each a batch, until it is killed or all is read.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import cojoin as cj
from tests.conftest import DELTA, SETTINGS
from tests.spark.data import Folders, asof


def main(folder: Path) -> None:
    settings = SETTINGS | {"spark.jars.packages": DELTA, "spark.sql.warehouse.dir": str(folder / "warehouse")}
    # It lives for seconds: nothing is gained by optimising what it runs.
    settings["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1"
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    query = asof(Folders(folder).connect(spark, key_groups=2)).start(
        output=cj.sinks.delta(f"{folder}/out"),
        checkpoint=f"{folder}/checkpoint",
        trigger=cj.Trigger.processing_time("0 seconds"),
    )
    query.await_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
