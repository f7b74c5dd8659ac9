"""A Spark session with what cojoin needs; a user's own session serves as well."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojoin.errors import EnvironmentSetupError
from cojoin.spark.session.jars import jar_settings
from cojoin.spark.session.submit_settings import without_jars

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["check_java", "spark_session"]

_OLDEST_JAVA = 17


def spark_session(
    app_name: str = "cojoin", *, master: str | None = None, kafka: bool = False, conf: Mapping[str, Any] | None = None
) -> SparkSession:
    """Return a session with Delta and, if asked, Kafka; one that runs already is returned as it is.

    The jars are fetched once, by one process at a time, into ``~/.cache/cojoin/jars`` or the folder that the
    environment's ``COJOIN_JARS`` names; later starts need no network. ``spark.jars.repositories``,
    ``spark.jars.ivySettings`` and the JVM's proxy options say where from. Jars and packages of your own, also those in
    ``spark-defaults.conf``, are added. Where Spark's own folder or ``spark.jars`` has Delta, nothing is fetched.

    Args:
        app_name: The application's name in Spark's UI.
        master: Such as ``"local[4]"`` or ``"spark://host:7077"``; all local cores if neither this nor Spark's own
            settings say.
        kafka: Whether Spark's own Kafka source is needed.
        conf: Further settings of Spark's; they win over those made here.

    Raises:
        EnvironmentSetupError: Java 17 or later is missing, or the jars can't be fetched.

    Example:
        ``spark = cj.spark_session("enrich", master="local[4]", conf={"spark.driver.memory": "4g"})``
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - Java is checked before Spark is touched

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    given = dict(conf or {})
    if not str(master or "").startswith("sc://"):
        check_java()
        given |= jar_settings(given, kafka=kafka)
    # Spark would take the python3 on PATH, which may not have the packages that this one has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Else each of the JVM's threads that ever allocated outside of the heap keeps what it freed to itself.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    cores = os.cpu_count() or 1
    settings: dict[str, Any] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Spark's 200 tasks a shuffle are for large clusters; a state is bound to the number of its first batch.
        "spark.sql.shuffle.partitions": cores,
        # Small tables are read with one task, not 50.
        "spark.databricks.delta.snapshotPartitions": 2,
        # Where the time zone is not UTC, Delta compares it with the log after each commit: a Spark job each time.
        "spark.databricks.delta.allFilesInCrc.enabled": "false",
        # A key group's state is written whole each batch: 100 kept versions would fill the disk.
        "spark.sql.streaming.minBatchesToRetain": 10,
        # Large Arrow batches between the JVM and Python; larger ones are no faster and take their memory several times.
        "spark.sql.execution.arrow.maxRecordsPerBatch": 50_000,
        # Spark 4.2.0 hangs for ever where a Python UDF over Parquet comes before an input, as in any mapInArrow.
        "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if sys.platform == "linux" and str(master or "").startswith("local"):
        settings["spark.python.daemon.module"] = "cojoin.spark.session.daemon"
    builder: Any = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in {**settings, **given}.items():
        builder = builder.config(name, str(value))
    with without_jars():
        session: SparkSession = builder.getOrCreate()
    return session


def check_java() -> None:
    """See that Java is there and new enough, before Spark fails without saying so.

    Raises:
        EnvironmentSetupError: It is missing or too old; the message says in one sentence what to install.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not (shutil.which(java) or Path(java).exists()):
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        msg = f"Spark needs Java {_OLDEST_JAVA} or later, and {where}: {_cure()}"
        raise EnvironmentSetupError(msg)
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is not None and int(found[1]) < _OLDEST_JAVA:
        msg = f"Spark needs Java {_OLDEST_JAVA} or later, and {java} is Java {found[1]}: {_cure()}"
        raise EnvironmentSetupError(msg)


def _cure() -> str:
    commands = {
        "darwin": "`brew install openjdk@17` installs it",
        "win32": "`winget install EclipseAdoptium.Temurin.17.JDK` installs it",
    }
    return commands.get(
        sys.platform, "`sudo apt-get install openjdk-17-jre-headless` (or your system's package) installs it"
    )
