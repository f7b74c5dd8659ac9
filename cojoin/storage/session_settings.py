"""Checks of a Spark session: whether cojoin can use it, and whether a setting was set.

Without the check of the session, the first use of an unusable one fails with an error of Java's.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from cojoin.errors import ConfigurationError

__all__ = ["check_session", "hadoop_setting", "is_connect", "is_set"]


def check_session(session: Any, what: str) -> None:
    """Check that a value is a Spark session of this process that was not stopped.

    Args:
        session: The value.
        what: What the session belongs to, for the message, such as ``"input 'trades'"``.

    Raises:
        ConfigurationError: The value is not such a session, or the session was stopped.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        msg = f"{what}: expected a session in this process, got one of Spark Connect, which cojoin does not work with"
        raise ConfigurationError(msg)
    if not isinstance(session, SparkSession):
        msg = f"{what}: expected a SparkSession, got {type(session).__name__}"
        raise ConfigurationError(msg)
    context = session.sparkContext._jsc  # noqa: SLF001 - PySpark has no other way to ask
    if context is None or context.sc().isStopped():
        msg = (
            f"{what}: its Spark session was stopped; make another with cojoin.spark_session(), and its DataFrames anew"
        )
        raise ConfigurationError(msg)


def is_set(session: SparkSession, name: str) -> bool:
    """Return whether a setting was set explicitly; PySpark's own API does not distinguish that from a default.

    Args:
        session: The session.
        name: The setting.
    """
    return bool(session._jsparkSession.conf().contains(name))  # noqa: SLF001


def is_connect(session: Any) -> bool:
    """Return whether a session is one of Spark Connect, which has no JVM in this process."""
    return type(session).__module__.startswith("pyspark.sql.connect")


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
