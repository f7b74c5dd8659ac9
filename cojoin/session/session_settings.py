"""Checks of a Spark session: whether cojoin can use it, of which kind it is, and whether a setting was set.

A session is either one of this process, with its own JVM, or one of Spark Connect, whose JVM is a server's. Without the
check, the first use of an unusable one fails with an error of Java's or of the transport's.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cojoin.errors import ConfigurationError, EnvironmentSetupError
from cojoin.session.java_classes import java_class
from cojoin.session.spark_versions import delta_package, spark_version

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

_WITH_DELTA: set[str] = set()
"""The applications whose JVMs have Delta's classes."""

_CHECKED: set[str] = set()
"""The sessions of Spark Connect whose servers were asked for their version."""

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
        EnvironmentSetupError: cojoin does not work with this process's PySpark.
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
    """Check that a session's JVM has Delta's classes; without them its first use of a table ends with Java's stack.

    Args:
        session: The session; in one of Spark Connect the server has the classes, and says itself what it lacks.

    Raises:
        EnvironmentSetupError: It has not; the message names the package.
    """
    if is_connect(session) or session.sparkContext.applicationId in _WITH_DELTA:
        return
    loader = java_class(session, "java.lang.Thread").currentThread().getContextClassLoader()
    try:
        loader.loadClass(_DELTA_CATALOG)
    except Py4JJavaError:
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
    _WITH_DELTA.add(session.sparkContext.applicationId)


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
