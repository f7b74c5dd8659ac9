"""The errors that calls of Spark raise: PySpark's own, and py4j's where PySpark has no class for one of Java's."""

from __future__ import annotations

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

__all__ = ["JAVA_ERRORS", "SPARK_ERRORS", "has_own_class", "java_message", "names_missing_file", "names_other_run"]

SPARK_ERRORS = (Py4JError, PySparkException)
"""The errors of a call of Spark, also where the JVM lacks the method or does not answer any more."""

JAVA_ERRORS = (Py4JJavaError, PySparkException)
"""The errors that Spark itself raises, in the JVM or in PySpark."""


def has_own_class(error: BaseException) -> bool:
    """Return whether PySpark has a class of its own for an error of Java's."""
    return isinstance(error, PySparkException)


def java_message(error: BaseException) -> str:
    """Return the text of an error with the class of Java's that was raised, without Python's stack."""
    return str(error.java_exception if isinstance(error, Py4JJavaError) else error)


def names_other_run(error: BaseException) -> bool:
    """Return whether an error says that another run has written to the same logs of Spark."""
    return "CONCURRENT_STREAM_LOG_UPDATE" in str(error)


def names_missing_file(error: BaseException) -> bool:
    """Return whether an error says that a file is gone that was to be read."""
    return any(each in str(error) for each in ("FILE_NOT_EXIST", "FileNotFound", "does not exist"))
