"""From a descriptor to the handle that a function gets, and whether a stored state can be read by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError
from cojoin.state.aggregating import AggregatingState, ReducingState
from cojoin.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from cojoin.state.kinds import ListState, MapState, ValueState
from cojoin.state.timed import (
    TimedAggregatingState,
    TimedListState,
    TimedMapState,
    TimedReducingState,
    TimedValueState,
)
from cojoin.state.ttl import split_type
from cojoin.types import type_to_ddl

if TYPE_CHECKING:
    import pyarrow as pa

    from cojoin.state.descriptors import StateDescriptor
    from cojoin.state.keyed import Cursor, KeyedState
    from cojoin.state.ttl import Clock

__all__ = ["check_stored_type", "create_state"]

_HANDLES: dict[type[StateDescriptor], tuple[Any, Any]] = {
    ValueStateDescriptor: (ValueState, TimedValueState),
    ListStateDescriptor: (ListState, TimedListState),
    MapStateDescriptor: (MapState, TimedMapState),
    ReducingStateDescriptor: (ReducingState, TimedReducingState),
    AggregatingStateDescriptor: (AggregatingState, TimedAggregatingState),
}
"""The class of each kind's handles, without and with a time-to-live: a state without one pays nothing for it."""


def create_state(descriptor: StateDescriptor, cursor: Cursor, owner: str, clock: Clock) -> KeyedState:
    """Make the handle that a function gets for its descriptor.

    Args:
        descriptor: What the function declares.
        cursor: The current key.
        owner: The function's name, for messages.
        clock: What a time-to-live goes by.
    """
    for kind, (plain, timed) in _HANDLES.items():
        if isinstance(descriptor, kind):
            made: KeyedState = (
                plain(descriptor, cursor, owner) if descriptor.ttl is None else timed(descriptor, cursor, owner, clock)
            )
            return made
    raise AssertionError(descriptor)


def check_stored_type(state: KeyedState, stored: pa.DataType) -> None:
    """Refuse a stored state whose type, or whose time-to-live's clock, is not the one that the function declares now.

    As in Flink a time-to-live can't be added to a state or taken from it; how long it is may change.

    Raises:
        CheckpointError: They differ.
    """
    (held, clock), (declared, declared_clock) = split_type(stored), split_type(state.type)
    if clock != declared_clock:
        difference = f"holds it {_described(clock)}, the function declares it {_described(declared_clock)}"
        action = "declare it as it is stored"
    elif stored != state.type:
        difference = f"holds it as {type_to_ddl(held)}, the function declares {type_to_ddl(declared)}"
        action = "declare the stored type"
    else:
        return
    msg = f"{state.what}: the checkpoint {difference}; {action}, or give the new state another name"
    raise CheckpointError(msg)


def _described(clock: str | None) -> str:
    return "without a time-to-live" if clock is None else f"with a time-to-live in {clock.replace('_', ' ')}"
