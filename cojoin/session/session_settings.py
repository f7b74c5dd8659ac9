"""Checks before a Spark session is used, and the settings of it that are cojoin's own.

Without the check, the first use of an unusable session fails with an error of Java's or of the transport's.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from cojoin.errors import ConfigurationError
from cojoin.session.kinds import adapter_of
from cojoin.session.spark_versions import spark_version
from cojoin.storage.locations import is_relative

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["check_full", "check_session", "is_left_to_spark", "pipeline_refusals"]

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
    adapter_of(session).check(what)


def check_full(session: Any, role: str, path: str | None) -> None:
    """Check that a path is not relative: to a server, that would be another folder than to this process.

    Args:
        session: The session; in one of another kind, any path is right.
        role: What the path belongs to, for the message.
        path: The path; None where there is none.

    Raises:
        ConfigurationError: It is relative.
    """
    if path is not None and not adapter_of(session).shares_paths and is_relative(path):
        msg = (
            f"{role}: expected a full path, got {path!r}: with Spark Connect, a relative one is another folder for the "
            f"server than for this process, for which it is {str(Path(path).absolute())!r}"
        )
        raise ConfigurationError(msg)


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
