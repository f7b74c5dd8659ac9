from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cojoin.errors import CheckpointError
from cojoin.state import Cursor, MapStateDescriptor, StateTtlConfig, ValueState, ValueStateDescriptor
from cojoin.state.handles import check_stored_type, create_state
from cojoin.state.timed import TimedValueState
from tests.state.stores import HandClock, HandStore

DAY = StateTtlConfig("1 day")


def value(ttl: StateTtlConfig | None) -> Any:
    return create_state(ValueStateDescriptor("x", "long", ttl=ttl), Cursor(), "F", HandClock())


def test_only_a_state_with_a_time_to_live_pays_for_it() -> None:
    assert type(value(None)) is ValueState
    assert type(value(DAY)) is TimedValueState


@pytest.mark.parametrize(
    ("ttl", "stored", "said"),
    [
        (None, pa.int32(), "the checkpoint holds it as int, the function declares bigint; declare the stored type"),
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
def test_a_stored_type_and_its_clock_must_be_the_declared_ones(
    ttl: StateTtlConfig | None, stored: pa.DataType, said: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        check_stored_type(value(ttl), stored)
    assert str(caught.value).startswith("F: state 'x': the checkpoint ")
    assert said in str(caught.value)
    assert str(caught.value).endswith(", or give the new state another name")


def test_a_duration_may_change() -> None:
    hand = HandStore(MapStateDescriptor("m", "string", "long", ttl=DAY))
    with hand.key() as state:
        state["a"] = 1
    hand.descriptor = MapStateDescriptor("m", "string", "long", ttl=StateTtlConfig("5 ms"))
    hand.restore()
    hand.clock.time = 5
    with hand.key() as state:
        assert state["a"] is None
