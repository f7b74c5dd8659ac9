"""Checks of a Spark session: whether cojoin can use it, and whether a setting was set.

Without the check of the session, the first use of an unusable one fails with an error of Java's.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from cojoin.errors import ConfigurationError

__all__ = ["check_session", "is_set"]


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
