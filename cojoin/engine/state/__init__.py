"""Keyed state: the data that a function keeps for the current key.

The kinds of state and their descriptors are PyFlink's (``pyflink.datastream.state``). ``KeyedStateBackend`` in
``cojoin.engine.keyed_state_backend`` keeps the states of a key group: as Arrow tables between batches, and as Python
values for the keys of the current batch.
"""

from __future__ import annotations

from cojoin.engine.state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from cojoin.engine.state.keyed_state import AggregatingState, ListState, MapState, ReducingState, ValueState
from cojoin.engine.state.ttl import StateTtlConfig

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "ReducingState",
    "ReducingStateDescriptor",
    "StateDescriptor",
    "StateTtlConfig",
    "ValueState",
    "ValueStateDescriptor",
]
