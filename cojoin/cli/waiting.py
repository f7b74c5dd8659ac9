"""Waits for a query with its progress line; Ctrl-C stops the query after what Spark has under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.spark.progress.line import ProgressLine

if TYPE_CHECKING:
    from cojoin.spark.query.query import Query

__all__ = ["wait_for"]

_INTERVAL_SECONDS = 0.25


def wait_for(query: Query, *, total: int | None = None) -> None:
    """Wait until a query ends.

    Args:
        query: The query.
        total: How many rows both inputs hold, where that is known.

    Raises:
        QueryFailedError: An error stopped it.
        KeyboardInterrupt: The person did; the query has stopped.
    """
    with ProgressLine(query, enabled=True, total=total, span=lambda: query.span) as line:
        try:
            while not query.await_termination(_INTERVAL_SECONDS, progress=False):
                line.draw()
        except KeyboardInterrupt:
            query.stop()
            raise
