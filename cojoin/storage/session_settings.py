"""Checks of a Spark session: whether cojoin can use it, of which kind it is, and whether a setting was set.

A session is either one of this process, with its own JVM, or one of Spark Connect, whose JVM is a server's. Without the
check, the first use of an unusable one fails with an error of Java's or of the transport's.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cojoin.errors import ConfigurationError, EnvironmentSetupError
from cojoin.storage.java_classes import java_class
from cojoin.storage.java_versions import java_fault
from cojoin.storage.spark_versions import delta_package, has_delta, no_delta, spark_version

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "DELTA_SETTINGS",
    "active_session",
    "check_delta",
    "check_session",
    "hadoop_setting",
    "is_connect",
    "is_left_to_spark",
    "is_set",
    "parallel_tasks",
    "pipeline_refusals",
]

_CONNECT = "pyspark.sql.connect"
_MANY: dict[str, int] = {}
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": _DELTA_CATALOG,
}
"""The settings that a session needs for Delta's tables."""

_BUILD = re.compile(r"delta-spark_(\d+\.\d+)_2\.\d+-")
"""The version of Spark in the name of Delta's jar."""

_WITH_DELTA: set[str] = set()
"""The applications whose JVMs have Delta's classes."""

_CHECKED: set[str] = set()
"""The sessions of Spark Connect whose servers were asked for their version, and the applications whose Java was."""

_IN_PIPELINE = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
"""Spark's name of the error for a call within a pipeline's function that would need the server."""


def check_session(session: Any, what: str) -> None:
    """Check that a value is a running Spark session that cojoin works with.

    Args:
        session: The value.
        what: What the session belongs to, for the message, such as ``"input 'trades'"``.

    Raises:
        ConfigurationError: The value is not such a session, the session was stopped, or its Spark Connect server can't
            be reached or is of another version than this process's PySpark.
        EnvironmentSetupError: cojoin does not work with this process's PySpark, or the session's Java gives wrong data.
    """
    spark_version()
    if is_connect(session):
        _check_server(session, what)
        return
    if not isinstance(session, SparkSession):
        msg = f"{what}: expected a SparkSession, got {type(session).__name__}"
        raise ConfigurationError(msg)
    context = session.sparkContext._jsc  # noqa: SLF001 - PySpark has no other way to ask
    if context is None or context.sc().isStopped():
        raise _stopped(what)
    _check_java(session, what)


def _check_java(session: SparkSession, what: str) -> None:
    """Check the Java of a session's driver, once; that of other hosts is not known."""
    application = session.sparkContext.applicationId
    if application in _CHECKED:
        return
    version = str(java_class(session, "java.lang.System").getProperty("java.version"))
    fault = java_fault(version, f"{what}: the Java of its Spark session")
    if fault is not None:
        raise EnvironmentSetupError(fault)
    _CHECKED.add(application)


def _check_server(session: Any, what: str) -> None:
    if session.is_stopped:
        raise _stopped(what)
    if session.session_id in _CHECKED:
        return
    try:
        server = str(session.version)
    except PySparkException as error:
        reason = str(error).strip().partition("\n")[0]
        msg = f"{what}: its Spark Connect server does not answer: {reason}; see that it runs, and connect again"
        raise ConfigurationError(msg) from error
    ours = pyspark.__version__
    if server.split(".")[:2] != ours.split(".")[:2]:
        msg = (
            f"{what}: its Spark Connect server is of version {server}, and PySpark in this process of version {ours}; "
            f"install pyspark=={server} here, since functions are sent to the server as they are in this process"
        )
        raise ConfigurationError(msg)
    _CHECKED.add(session.session_id)


@contextmanager
def pipeline_refusals(what: str) -> Iterator[None]:
    """Translate the error with which Spark refuses a join within a function of a declarative pipeline.

    Args:
        what: What was called there, for the message, such as ``"connect()"``.

    Raises:
        ConfigurationError: It was called within such a function.
    """
    try:
        yield
    except (PySparkException, ConfigurationError) as error:
        if _IN_PIPELINE not in f"{error}{error.__cause__ or ''}":
            raise
        msg = (
            f"{what} within a function of a Spark Declarative Pipeline: Spark forbids whatever looks at columns there "
            f"({_IN_PIPELINE}); make the join at the level of the module, outside of the function, and return it in "
            f"the function: joined = cj.connect(...).asof_join().to_dataframe(); its sources are files with schema=, "
            f"or tables that are there before the pipeline runs, and not datasets of the same pipeline"
        )
        raise ConfigurationError(msg) from error


def check_delta(session: Any) -> None:
    """Check that a session's JVM has Delta's classes, of its Spark's build; else a table's first use fails in Java.

    Args:
        session: The session; in one of Spark Connect the server has the classes, and says itself what it lacks.

    Raises:
        EnvironmentSetupError: It has none, or those for another version of Spark; the message names the package. Or
            there is no build of Delta for this Spark.
    """
    if is_connect(session) or session.sparkContext.applicationId in _WITH_DELTA:
        return
    loader = java_class(session, "java.lang.Thread").currentThread().getContextClassLoader()
    try:
        source = loader.loadClass(_DELTA_CATALOG).getProtectionDomain().getCodeSource()
    except Py4JJavaError:
        if not has_delta(session.version):
            raise no_delta(session.version) from None
        package = delta_package(session.version)
        msg = (
            f"this Spark {session.version} has no Delta: expected the jars of {package}, found no {_DELTA_CATALOG}; "
            f"start the program with spark-submit --packages {package} (where there is no way to a Maven repository, "
            f"with --jars and that package's jars), and with a session of cojoin.spark_session() or the settings "
            f"spark.sql.extensions={DELTA_SETTINGS['spark.sql.extensions']} and "
            f"spark.sql.catalog.spark_catalog={_DELTA_CATALOG}. Started as a plain Python program, "
            f"cojoin.spark_session() fetches the package itself"
        )
        raise EnvironmentSetupError(msg) from None
    _check_build(session.version, "" if source is None else str(source.getLocation()))
    _WITH_DELTA.add(session.sparkContext.applicationId)


def _check_build(version: str, jar: str) -> None:
    """Check by the name of Delta's jar that it is built for a version of Spark; other names say nothing of it."""
    built = _BUILD.search(jar)
    if built is None or built[1] == spark_version(version):
        return
    if not has_delta(version):
        raise no_delta(version)
    msg = (
        f"Delta's jar {jar.rpartition('/')[2]} is built for Spark {built[1]}, and this session is of Spark {version}; "
        f"start it with the package {delta_package(version)} in its place"
    )
    raise EnvironmentSetupError(msg)


def _stopped(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what}: its Spark session was stopped; make another with cojoin.spark_session(), and its DataFrames anew"
    )


def active_session() -> Any:
    """Return the active session of this thread, of either kind; None if there is none."""
    found = SparkSession.getActiveSession()
    if found is None and f"{_CONNECT}.session" in sys.modules:
        found = sys.modules[f"{_CONNECT}.session"].SparkSession.getActiveSession()
    return found


def parallel_tasks(session: SparkSession) -> int:
    """Return how many tasks run at the same time: Spark's default parallelism, the number of all cores."""
    if not is_connect(session):
        return max(1, int(session.sparkContext.defaultParallelism))
    session_id = str(session.session_id)
    if session_id not in _MANY:
        # Spark Connect does not say it, but a range has that many partitions.
        tasks = session.range(0, 1 << 20).select(F.spark_partition_id().alias("task"))
        _MANY[session_id] = max(1, int(tasks.distinct().count()))
    return _MANY[session_id]


def is_left_to_spark(session: SparkSession, name: str) -> bool:
    """Return whether a setting such as ``spark.cojoin.parquet`` leaves to Spark what the workers would do themselves.

    Args:
        session: The session.
        name: The setting.

    Raises:
        ConfigurationError: It is neither ``spark`` nor ``direct``, the default.
    """
    found = str(session.conf.get(name, "")).lower()
    if found not in {"", "direct", "spark"}:
        msg = (
            f"the session's setting {name} is {found!r}; expected 'spark', which leaves the work to Spark, or 'direct'"
        )
        raise ConfigurationError(msg)
    return found == "spark"


def is_set(session: SparkSession, name: str) -> bool:
    """Return whether a setting was set explicitly; PySpark's own API does not distinguish that from a default.

    Args:
        session: The session.
        name: The setting.
    """
    if is_connect(session):
        return any(row.key == name for row in session.sql("SET").collect())
    return bool(session._jsparkSession.conf().contains(name))  # noqa: SLF001


def is_connect(session: Any) -> bool:
    """Return whether a session is one of Spark Connect, which has no JVM in this process."""
    return type(session).__module__.startswith(_CONNECT)


def hadoop_setting(session: SparkSession, name: str) -> str | None:
    """Return a setting of Hadoop's, such as ``fs.s3a.endpoint``; None if it is not set.

    Args:
        session: The session. In one of Spark Connect, only what Spark's own configuration sets is known.
        name: The setting, without ``spark.hadoop.``.
    """
    if is_connect(session):
        found = session.conf.get(f"spark.hadoop.{name}", None)
    else:
        found = session._jsc.hadoopConfiguration().get(name)  # noqa: SLF001 - PySpark has no way to it
    return None if found is None or found == "" else str(found)
