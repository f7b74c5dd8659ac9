"""What the drivers on a cluster share: their session, and trades and customers as two connected inputs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import cojoin as cj

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

EXECUTORS = 2
_TRADE_DDL = "trade_id long, customer_id string, event_time timestamp, amount double"
_CUSTOMER_DDL = "customer_id string, event_time timestamp, tier string"


def start_session(name: str, master: str, conf: Mapping[str, Any]) -> SparkSession:
    """Start the session, and wait until its executors are there."""
    shared = {
        "spark.executor.memory": "512m",
        # Most of the time goes into compiling code that runs a few times: the quick compiler alone is quicker.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "America/New_York",
    }
    spark = cj.spark_session(name, master=master, conf=shared | dict(conf))
    spark.sparkContext.setLogLevel("ERROR")
    deadline = time.monotonic() + 60
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus()
    while executors.size() <= EXECUTORS:  # the driver counts
        assert time.monotonic() < deadline, f"{executors.size() - 1} executors after 60 s"
        time.sleep(0.1)
        executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus()
    return spark


def connect(folder: str, key_groups: int) -> cj.ConnectedInputs:
    """Connect the folder's trades with its customers, two files of each a batch."""

    def read(name: str, schema: str) -> cj.Input:
        source = cj.sources.files(f"{folder}/{name}", "parquet", schema=schema, options={"maxFilesPerTrigger": 2})
        return cj.Input(source, key="customer_id", event_time="event_time", name=name)

    return cj.connect(read("trades", _TRADE_DDL), read("customers", _CUSTOMER_DDL), key_groups=key_groups)
