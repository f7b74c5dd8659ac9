"""Ready joins: vectorised operators beside ``KeyedCoProcessOperator``, one a file."""

from __future__ import annotations

from cojoin.engine.joins.asof import AsofJoin, AsofJoinOperator
from cojoin.engine.joins.interval import IntervalJoin, IntervalJoinOperator
from cojoin.engine.joins.temporal import TemporalJoin, TemporalJoinOperator

__all__ = [
    "AsofJoin",
    "AsofJoinOperator",
    "IntervalJoin",
    "IntervalJoinOperator",
    "TemporalJoin",
    "TemporalJoinOperator",
]
