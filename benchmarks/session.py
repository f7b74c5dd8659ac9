"""The Spark session of the programs that try what may go wrong: as the tests have it, with what cojoin needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import cojoin as cj
from tests.conftest import SETTINGS
from tests.servers.jars import kafka_settings, s3_jars
from tests.servers.s3 import settings_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["ROOT", "make_session", "set_partitions"]

ROOT = Path(__file__).resolve().parents[1]


def make_session(
    name: str,
    folder: Path,
    *,
    kafka: bool = False,
    memory: str = "2g",
    s3: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start it.

    Args:
        name: What the application is called.
        folder: Where the warehouse goes, which nothing uses.
        kafka: Whether Kafka is read: its jars are those that the tests fetch.
        memory: The driver's heap.
        s3: The endpoint of a server of S3's protocol, for ``s3a://``.
        conf: More of its settings.
    """
    # Python workers must find the tests' modules, whatever folder they are started in.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"spark.driver.memory": memory, "spark.sql.warehouse.dir": str(folder / "warehouse")}
    # A driver that is suspended for minutes must not be given up by its own scheduler.
    own["spark.network.timeout"] = "3600s"
    settings = SETTINGS | own | {"spark.log.level": "ERROR"}
    if kafka:
        settings |= kafka_settings()
    if s3 is not None:
        jars = [settings["spark.jars"]] if kafka else []
        settings["spark.jars"] = ",".join([*jars, *map(str, s3_jars())])
        settings |= {f"spark.hadoop.{each}": value for each, value in settings_for(s3).items()}
    return cj.spark_session(name, master="local[2]", conf=settings | dict(conf or {}))


def set_partitions(spark: SparkSession, count: int) -> None:
    """Set how many shuffle partitions a query gets that is started next; it keeps them for good."""
    spark.conf.set("spark.sql.shuffle.partitions", count)
