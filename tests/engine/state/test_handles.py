from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cojoin.engine.state import MapStateDescriptor, StateTtlConfig, ValueState, ValueStateDescriptor
from cojoin.engine.state.handles import as_declared, create_state
from cojoin.engine.state.timed import TimedValueState
from cojoin.engine.values.keys import KeyContext
from cojoin.errors import CheckpointError
from tests.engine.state.stores import HandClock, HandStore

DAY = StateTtlConfig("1 day")


def value(ttl: StateTtlConfig | None) -> Any:
    return create_state(ValueStateDescriptor("x", "long", ttl=ttl), KeyContext(), "F", HandClock())


def at_rest(dtype: pa.DataType) -> pa.Table:
    return pa.schema([("customer", pa.string()), ("@value", dtype)]).empty_table()


def test_only_a_state_with_a_time_to_live_pays_for_it() -> None:
    assert type(value(None)) is ValueState
    assert type(value(DAY)) is TimedValueState


@pytest.mark.parametrize(
    ("ttl", "stored", "said"),
    [
        (
            None,
            pa.string(),
            "the checkpoint and the function differ in its type: it is string there and bigint here; declare",
        ),
        (
            DAY,
            create_state(ValueStateDescriptor("x", "double", ttl=DAY), KeyContext(), "F", HandClock()).type,
            "and the function differ in its type: it is double there and bigint here; declare the stored type",
        ),
        (
            None,
            value(DAY).type,
            "holds it with a time-to-live in processing time, the function declares it without a time-to-live",
        ),
        (
            DAY,
            pa.int64(),
            "holds it without a time-to-live, the function declares it with a time-to-live in processing time",
        ),
        (
            StateTtlConfig("1 day", time_domain="event_time"),
            value(DAY).type,
            "a time-to-live in processing time, the function declares it with a time-to-live in event time; declare it",
        ),
    ],
)
def test_a_stored_type_must_be_one_that_can_become_the_declared_one_and_its_clock_the_same(
    ttl: StateTtlConfig | None, stored: pa.DataType, said: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        as_declared(value(ttl), at_rest(stored))
    assert str(caught.value).startswith("F: state 'x': the checkpoint ")
    assert said in str(caught.value)
    assert str(caught.value).endswith(", or give the new state another name")


def test_a_state_of_the_declared_type_is_taken_as_it_is() -> None:
    stored = at_rest(value(DAY).type)
    assert as_declared(value(DAY), stored) is stored


def test_a_duration_may_change() -> None:
    hand = HandStore(MapStateDescriptor("m", "string", "long", ttl=DAY))
    with hand.key() as state:
        state["a"] = 1
    hand.descriptor = MapStateDescriptor("m", "string", "long", ttl=StateTtlConfig("5 ms"))
    hand.restore()
    hand.clock.time = 5
    with hand.key() as state:
        assert state["a"] is None
