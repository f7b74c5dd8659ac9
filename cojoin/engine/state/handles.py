"""State handles for descriptors, and the conversion of a stored state to what its handle reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.engine.state.aggregating import AggregatingState, ReducingState
from cojoin.engine.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from cojoin.engine.state.kinds import ListState, MapState, ValueState
from cojoin.engine.state.timed import (
    TimedAggregatingState,
    TimedListState,
    TimedMapState,
    TimedReducingState,
    TimedValueState,
)
from cojoin.engine.state.ttl import split_type
from cojoin.engine.values.schema_evolution import differences, evolve
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    import pyarrow as pa

    from cojoin.engine.state.descriptors import StateDescriptor
    from cojoin.engine.state.keyed import KeyedState
    from cojoin.engine.state.ttl import Clock
    from cojoin.engine.values.keys import KeyContext

__all__ = ["as_declared", "create_state"]

_HANDLES: dict[type[StateDescriptor], tuple[Any, Any]] = {
    ValueStateDescriptor: (ValueState, TimedValueState),
    ListStateDescriptor: (ListState, TimedListState),
    MapStateDescriptor: (MapState, TimedMapState),
    ReducingStateDescriptor: (ReducingState, TimedReducingState),
    AggregatingStateDescriptor: (AggregatingState, TimedAggregatingState),
}
"""The class of each kind's handles, without and with a time-to-live, so that a state without one has no cost for it."""


def create_state(descriptor: StateDescriptor, key_context: KeyContext, owner: str, clock: Clock) -> KeyedState:
    """Return the handle that a function gets for its descriptor.

    Args:
        descriptor: What the function declares.
        key_context: The current key.
        owner: The function's name, for messages.
        clock: The clock of a time-to-live.
    """
    for kind, (plain, timed) in _HANDLES.items():
        if isinstance(descriptor, kind):
            made: KeyedState = (
                plain(descriptor, key_context, owner)
                if descriptor.ttl is None
                else timed(descriptor, key_context, owner, clock)
            )
            return made
    raise AssertionError(descriptor)


def as_declared(state: KeyedState, stored: pa.Table) -> pa.Table:
    """Return a stored state as the function declares it now, if the stored type can become the declared one.

    As in Flink, a time-to-live can't be added to a state or removed from it; its length may change.

    Args:
        state: The declared state.
        stored: The state at rest: the key columns, then what is stored.

    Raises:
        CheckpointError: The time-to-live has another clock, or the type can't become the declared one.
    """
    last = stored.num_columns - 1
    field = stored.schema.field(last)
    if field.type.equals(state.type):
        return stored
    (held, clock), (declared, declared_clock) = split_type(field.type), split_type(state.type)
    if clock != declared_clock:
        difference = f"holds it {_described(clock)}, the function declares it {_described(declared_clock)}"
        action = "declare it as it is stored"
    elif found := differences(held, declared):
        difference = f"and the function differ in its type: {'; '.join(found)}"
        action = "declare the stored type"
    else:
        return evolve(stored, stored.schema.set(last, field.with_type(state.type)), state.what)
    msg = f"{state.what}: the checkpoint {difference}; {action}, or give the new state another name"
    raise CheckpointError(msg)


def _described(clock: str | None) -> str:
    return "without a time-to-live" if clock is None else f"with a time-to-live in {clock.replace('_', ' ')}"
