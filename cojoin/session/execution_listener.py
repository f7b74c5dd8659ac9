"""A listener of a session's actions, for what Spark counts beside their rows (``DataFrame.observe``)."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ExecutionListener"]


class ExecutionListener:
    """A ``QueryExecutionListener`` of Spark's, which the JVM calls in a thread of its own after each action.

    Args:
        awaited: Returns the names of the observations that nobody has had yet.
        take: Takes such a name and its counts, once an action has made them.
    """

    class Java:
        """The name by which py4j reads the interfaces of a class that the JVM calls."""

        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)

    def __init__(self, awaited: Callable[[], Sequence[str]], take: Callable[[str, dict[str, Any]], None]) -> None:
        self._awaited, self._take = awaited, take

    def onSuccess(self, function: str, execution: Any, duration: int) -> None:  # noqa: N802 - as the JVM calls it
        """Pass on what an action has counted, if somebody waits for it."""
        del function, duration
        # An error would only be Spark's log's.
        with contextlib.suppress(Exception):
            names = self._awaited()
            counts = execution.observedMetrics() if names else None
            if counts is None or counts.isEmpty():
                return
            for name in names:
                found = counts.get(name)
                if found.isDefined():
                    self._take(name, json.loads(found.get().json()))

    def onFailure(self, function: str, execution: Any, error: Any) -> None:  # noqa: N802 - as the JVM calls it
        """Leave an action that has failed: a later one is the first."""
