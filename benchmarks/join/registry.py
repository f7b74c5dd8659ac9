"""All contenders, in the order of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.join.contenders import (
    bytewax_flow,
    cojoin_joins,
    flink_java,
    in_memory,
    per_key,
    plain,
    pyflink_job,
    transform_with_state,
)

if TYPE_CHECKING:
    from benchmarks.join.contender import Contender

__all__ = ["BY_NAME", "CONTENDERS", "FLOORS"]

_MODULES = (plain, cojoin_joins, per_key, transform_with_state, flink_java, pyflink_job, bytewax_flow, in_memory)
CONTENDERS: tuple[Contender, ...] = tuple(each for module in _MODULES for each in module.CONTENDERS)
BY_NAME = {each.name: each for each in CONTENDERS}
FLOORS = ("plain", "plain-parquet", "plain-from-delta", "plain-static")
