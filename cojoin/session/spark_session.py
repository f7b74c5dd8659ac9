"""``spark_session``: a Spark session with the jars and settings that cojoin needs."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cojoin.errors import EnvironmentSetupError
from cojoin.installed_packages import missing_packages
from cojoin.session.jars import gets_delta, jar_settings
from cojoin.session.launch_settings import jvm_settings, settings_of, without_jars
from cojoin.session.versions import check_java

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_CONNECT_PORT, _ANSWER_SECONDS = 15002, 10.0
_PYTHONPATH = "spark.executorEnv.PYTHONPATH"


def spark_session(
    app_name: str = "cojoin", *, master: str | None = None, kafka: bool = False, conf: Mapping[str, Any] | None = None
) -> SparkSession:
    """Return a Spark session with Delta and, if requested, Spark's Kafka source.

    Where Delta has no build for the installed Spark, the session has no Delta, and what needs it is refused by name.

    An active session is returned unchanged. cojoin also works with a session that the user made. A new one logs
    warnings and errors, without those that come at every start, unless the user has a Log4j configuration. Its JVM's
    second compiler starts later (``-XX:Tier4...Threshold``), which leaves the cores to short runs; JVM options of the
    user's own, such as ``spark.driver.extraJavaOptions``, win.

    The jars are fetched once, by one process at a time, into ``~/.cache/cojoin/jars`` or the folder that the
    environment variable ``COJOIN_JARS`` names; later starts need no network. They come from the repositories and
    proxies in ``spark.jars.repositories``, ``spark.jars.ivySettings`` and the JVM's options. The user's own jars and
    packages, including those in ``spark-defaults.conf``, are added. Delta is not fetched if Spark's own folder or
    ``spark.jars`` contains it.

    Args:
        app_name: The application's name in Spark's UI.
        master: The master, such as ``"local[4]"`` or ``"spark://host:7077"``, or the address of a Spark Connect server,
            such as ``"sc://host:15002"``, which has its own jars. None takes the master from Spark's own settings, or
            else uses all local cores.
        kafka: Whether Spark's own Kafka source is needed; ``cojoin.kafka`` does not need it.
        conf: Further settings of Spark, which override those made here.

    Returns:
        The session.

    Raises:
        EnvironmentSetupError: Java 17 or later is missing, or the one that is there gives wrong data; PySpark is too
            old; the jars can't be fetched; a program that ``spark-submit`` has started has no Delta; or Spark Connect's
            packages are missing (``pip install "cojoin[connect]"``), or no server answers.

    Example:
        ``spark = cj.spark_session("enrich", master="local[4]", conf={"spark.driver.memory": "4g"})``
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - Java is checked before Spark is touched

    from cojoin.session.sessions import adapter_of  # noqa: PLC0415 - as above
    from cojoin.session.versions import DELTA_SETTINGS  # noqa: PLC0415 - as above

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    user = dict(conf or {})
    if str(master or "").startswith("sc://"):
        return _remote_session(str(master), user)
    check_java()
    with_delta = gets_delta(user)
    user |= jar_settings(user, kafka=kafka)
    user |= jvm_settings(user)
    # Spark would use the python3 on PATH, which may lack the packages of this interpreter.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Otherwise every JVM thread that allocates native memory keeps what it freed in its own arena.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    cores = os.cpu_count() or 1
    settings: dict[str, Any] = {
        **(DELTA_SETTINGS if with_delta else {}),
        # Spark's default of 200 is for large clusters, and the number can't change after a query's first batch.
        "spark.sql.shuffle.partitions": cores,
        # The logs of small tables need few tasks, not Delta's default of 50.
        "spark.databricks.delta.snapshotPartitions": 2,
        # If the time zone is not UTC, Delta verifies this file after each commit, which takes a Spark job.
        "spark.databricks.delta.allFilesInCrc.enabled": "false",
        # Each batch writes the whole state of a key group, so Spark's default of 100 versions would fill the disk.
        "spark.sql.streaming.minBatchesToRetain": 10,
        # Larger Arrow batches between the JVM and Python gain no speed and take several times their size in memory.
        "spark.sql.execution.arrow.maxRecordsPerBatch": 50_000,
        # Spark 4.2.0 hangs if a Python UDF over Parquet precedes an input, as in any mapInArrow.
        "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if sys.platform == "linux" and (master == "local" or str(master or "").startswith("local[")):
        settings["spark.python.daemon.module"] = "cojoin.session.daemon"
        own = settings_of(user).get(_PYTHONPATH)
        user[_PYTHONPATH] = os.pathsep.join([str(Path(__file__).with_name("site")), *([own] if own else [])])
    builder: Any = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in {**settings, **user}.items():
        builder = builder.config(name, str(value))
    with without_jars():
        session: SparkSession = builder.getOrCreate()
    # By an empty string, the user declines cojoin's packages.
    if with_delta and (conf or {}).get("spark.jars.packages") != "":
        adapter_of(session).check_delta()
    return session


def _remote_session(address: str, conf: Mapping[str, Any]) -> SparkSession:
    """Return a session at a Spark Connect server; the settings that can change in a session are set in it."""
    from pyspark.errors import PySparkException, PySparkImportError  # noqa: PLC0415 - as Spark itself
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    url = urlsplit(address)
    # The rest of the address may be a token, so it is not shown.
    where = f"sc://{url.hostname}:{url.port or _CONNECT_PORT}"
    try:
        # PySpark itself would try for ten minutes without a message.
        socket.create_connection((str(url.hostname), url.port or _CONNECT_PORT), _ANSWER_SECONDS).close()
    except OSError as error:
        msg = f"Spark Connect: no server answers at {where} ({error}); see that it runs, and that its port is open"
        raise EnvironmentSetupError(msg) from error
    try:
        session: SparkSession = SparkSession.builder.remote(address).getOrCreate()
        for name, value in conf.items():
            session.conf.set(name, str(value))
    except PySparkImportError as error:
        needed_by = f"Spark Connect ({error})"
        raise missing_packages(needed_by, "connect", "pyspark[connect]") from error
    except PySparkException as error:
        reason = str(error).strip().partition("\n")[0]
        msg = f"Spark Connect: no session at {where}: {reason}"
        raise EnvironmentSetupError(msg) from error
    return session
