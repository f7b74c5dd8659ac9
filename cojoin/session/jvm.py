"""The JVM of a session in this process: its classes by their full names, its objects, and a listener that it calls.

Written as ``jvm.org.apache...``, a name costs a call to the JVM for each of its parts, and each call searches all of
some hundred jars: a batch's small files alone took 200 such calls. ``java_class`` takes the whole name for that of a
class.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class of the session's JVM, to construct objects or to call static methods.

    Its name has the package; a nested class, or the class of a Scala object, is written with a ``$``.
    """
    return JavaClass(name, java_session(spark)._gateway_client)  # noqa: SLF001 - PySpark has no public way


def java_session(spark: SparkSession) -> Any:
    """Return the JVM's object of the session."""
    return spark._jsparkSession  # noqa: SLF001 - PySpark has no public way


class ExecutionListener:
    """A ``QueryExecutionListener`` of Spark's, which the JVM calls in its own thread after each action.

    ``awaited`` returns the names of the observations that are still missing; ``take`` takes such a name and its counts.
    """

    class Java:
        """The name by which py4j reads the interfaces of a class that the JVM calls."""

        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)

    def __init__(self, awaited: Callable[[], Sequence[str]], take: Callable[[str, dict[str, Any]], None]) -> None:
        self._awaited, self._take = awaited, take

    def onSuccess(self, function: str, execution: Any, duration: int) -> None:  # noqa: N802 - as the JVM calls it
        """Pass on the counts of an action that are awaited."""
        del function, duration
        # An error would only reach Spark's log.
        with contextlib.suppress(Exception):
            names = self._awaited()
            counts = execution.observedMetrics() if names else None
            if counts is None or counts.isEmpty():
                return
            for name in names:
                row = counts.get(name)
                if row.isDefined():
                    self._take(name, json.loads(row.get().json()))

    def onFailure(self, function: str, execution: Any, error: Any) -> None:  # noqa: N802 - as the JVM calls it
        """Ignore an action that has failed: a later one counts."""
