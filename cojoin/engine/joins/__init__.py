"""The built-in joins: vectorised operators that need no user function, one in each module."""

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
