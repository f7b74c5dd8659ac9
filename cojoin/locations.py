"""Where tables are: a path or a name, told apart by one rule for sources, sinks and checkpoints."""

from __future__ import annotations

__all__ = ["is_path"]


def is_path(location: str) -> bool:
    r"""Tell a path from a table's name.

    >>> is_path("/lake/trades"), is_path("s3a://lake/trades"), is_path("lake.trades")
    (True, True, False)
    """
    return "/" in location or "\\" in location
