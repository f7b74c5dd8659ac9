"""Ready joins: vectorised operators beside ``KeyedCoProcessOperator``, one a file."""

from __future__ import annotations

from cojoin.joins.asof import AsofJoin, AsofJoinOperator

__all__ = ["AsofJoin", "AsofJoinOperator"]
