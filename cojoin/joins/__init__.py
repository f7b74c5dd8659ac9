"""Ready joins: vectorised operators beside ``KeyedCoProcessOperator``, one a file."""

from __future__ import annotations

from cojoin.joins.asof import AsofJoin, AsofJoinOperator
from cojoin.joins.interval import IntervalJoin, IntervalJoinOperator
from cojoin.joins.temporal import TemporalJoin, TemporalJoinOperator

__all__ = [
    "AsofJoin",
    "AsofJoinOperator",
    "IntervalJoin",
    "IntervalJoinOperator",
    "TemporalJoin",
    "TemporalJoinOperator",
]
