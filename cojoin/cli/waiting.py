"""Waits for a query with a progress line; Ctrl-C stops the query, once Spark has ended its work in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.spark.progress.line import ProgressLine

if TYPE_CHECKING:
    from cojoin.spark.query.query import Query

__all__ = ["wait_for"]

_INTERVAL_SECONDS = 0.25


def wait_for(query: Query, *, total: int | None = None, history: bool = False) -> None:
    """Wait until a query ends, or its history.

    Args:
        query: The query.
        total: The number of rows in both inputs, if it is known.
        history: Whether to wait only until the query goes on live.

    Raises:
        QueryFailedError: An error stopped the query.
        KeyboardInterrupt: The user pressed Ctrl-C, and the query has stopped.
    """
    wait = query.await_history if history else query.await_termination
    with ProgressLine(query, enabled=True, total=total, span=lambda: query.span) as line:
        try:
            while not wait(_INTERVAL_SECONDS, progress=False):
                line.draw()
        except KeyboardInterrupt:
            query.stop()
            raise
