"""Starts an embedded Spark whose log does not appear in the terminal, or opens a checkpoint without Spark.

The JVM inherits the process's standard outputs for its lifetime, so they point to a log file while it starts. If Spark
does not start, the error quotes the lines of that log with the reason. An active session is used as it is, and is left
running.

A checkpoint is opened without Spark where the settings that Spark would see (the options of the command,
``PYSPARK_SUBMIT_ARGS`` and ``spark-defaults.conf``) lead this process to the same store. Hadoop's files of settings are
read by a session alone.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojoin.cli.interrupts import Interrupts
from cojoin.errors import CojoinError, ConfigurationError, EnvironmentSetupError
from cojoin.installed_packages import check_packages
from cojoin.session.jars import jar_settings
from cojoin.session.launch_settings import settings_of
from cojoin.session.spark_session import spark_session
from cojoin.session.versions import check_java
from cojoin.storage import object_store_settings
from cojoin.storage.file_systems import direct_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from cojoin.cli.options import Arguments
    from cojoin.storage.store import Store

SHORT_RUN = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Settings of a short run, which gains more from quick compilation than from fast code."""


_SETTINGS = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
}
_REASON_LINE = re.compile(r"Exception in thread|Caused by|^Error", re.IGNORECASE)


@contextmanager
def local_session(
    folder: Path,
    say: Callable[[str], None],
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[SparkSession]:
    """Yield a session with temporary files in a folder; one that was created for it is stopped at the end.

    A master of None takes it from Spark's settings, or else all local cores. ``conf`` overrides the settings of this
    module. A log of None is a file in the folder.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - so that --help is quick

    if SparkSession.getActiveSession() is not None:
        # The code that has made it may have made it just now, with PySpark's own handler of Ctrl-C.
        Interrupts.take_back(folder)
        yield spark_session()
        return
    check_java()
    settings = {**_SETTINGS, "spark.sql.warehouse.dir": str(folder / "spark-warehouse"), **(conf or {})}
    settings |= jar_settings(settings, kafka=False, say=say)
    chosen = master or settings_of(settings).get("spark.master", "local")
    say("Starting Spark on this machine ..." if chosen.startswith("local") else "Starting Spark ...")
    log = log or folder / "spark.log"
    try:
        with _outputs_to(log):
            spark = spark_session(master=master, conf=settings)
        Interrupts.take_back(folder)
    except CojoinError:
        raise
    except Exception as error:
        msg = f"Spark did not start: {_reason(log, error)}"
        raise EnvironmentSetupError(msg) from error
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def session_on_demand(say: Callable[[str], None], arguments: Arguments) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that returns a session, the same at each call; the first call starts it."""
    sessions: list[SparkSession] = []
    had_one = has_session()
    with ExitStack() as held:

        def session() -> SparkSession:
            if not sessions:
                check_packages(f"cojoin {arguments.command}", "spark")
                if (arguments.master or arguments.conf) and not had_one and has_session():
                    msg = (
                        "the job makes a Spark session itself, so --master and --conf come too late; have its function "
                        "take the session as an argument, or leave the options out"
                    )
                    raise ConfigurationError(msg)
                folder = tempfile.TemporaryDirectory(prefix="cojoin-", ignore_cleanup_errors=True)
                chosen = {"master": arguments.master, "conf": arguments.conf, "log": arguments.log}
                sessions.append(held.enter_context(local_session(Path(held.enter_context(folder)), say, **chosen)))
            return sessions[0]

        yield session


@contextmanager
def _outputs_to(log: Path) -> Iterator[None]:
    """Redirect this process's standard outputs to a file, for the processes that inherit them."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        msg = f"Spark's log {log} can't be written: {error.strerror or error}"
        raise EnvironmentSetupError(msg) from error
    saved = os.dup(1), os.dup(2)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(saved, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(target)


def _reason(log: Path, error: Exception) -> str:
    """Return the lines of Spark's log with the reason why it did not start; without any, the error's first line."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines: dict[str, Any] = dict.fromkeys(line.strip() for line in text.splitlines() if _REASON_LINE.search(line))
    return "; ".join(list(lines)[:3]) or str(error).strip().splitlines()[0]


_HADOOPS_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_DECIDING = ("spark.hadoop.fs.defaultFS", "spark.hadoop.fs.default.name", "spark.hadoop.fs.file.impl")


def store_without_spark(path: str, conf: Mapping[str, str]) -> Store | None:
    """Return the files of a checkpoint's directory; None where a session is needed, or is active already."""
    settings = settings_of(conf)
    if has_session() or any(map(os.environ.get, _HADOOPS_FOLDERS)) or any(map(settings.get, _DECIDING)):
        return None
    if settings.get("spark.cojoin.storage", "").lower() == "hadoop":
        return None
    return direct_store(
        path, lambda root: object_store_settings.settings_of(root, lambda name: settings.get(f"spark.hadoop.{name}"))
    )


def has_session() -> bool:
    """Return whether a session is active, without importing Spark."""
    loaded = sys.modules.get("pyspark.sql")
    return loaded is not None and loaded.SparkSession.getActiveSession() is not None
