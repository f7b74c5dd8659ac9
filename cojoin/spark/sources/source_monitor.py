"""What a source can say, and be told, of how far a query has read it; ``Source.monitor`` makes one."""

from __future__ import annotations

from typing import Protocol

__all__ = ["SourceMonitor"]


class SourceMonitor(Protocol):
    """A view of a source from beside the query. It never steers what is read, and one thread uses it."""

    @property
    def commits(self) -> bool:
        """Whether positions are to be committed."""

    def commit(self, position: str) -> None:
        """Commit a position for others to see.

        Args:
            position: The line of Spark's offset log after the last batch that counts.

        Raises:
            CojoinError: It was refused, or there was no answer.
        """

    def unread(self, position: str) -> int:
        """Return how many offsets there are between a position and the present end of the source.

        Raises:
            CojoinError: There was no answer.
        """

    def close(self) -> None:
        """Close the connections; a second call does nothing."""
