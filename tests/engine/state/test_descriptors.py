from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cojoin.engine.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
    reducer,
    stored_type,
)
from cojoin.engine.state.ttl import StateTtlConfig
from cojoin.errors import ConfigurationError, SchemaError
from tests.engine.state.test_keyed_state import Mean

DAY = StateTtlConfig("1 day")


def test_a_type_is_ddl_an_arrow_type_or_one_of_pyspark() -> None:
    class LongType:
        def simpleString(self) -> str:  # noqa: N802 - Spark's name
            return "bigint"

    for declared in ("long", pa.int64(), LongType()):
        assert stored_type(ValueStateDescriptor("x", declared)) == pa.int64()
    with pytest.raises(SchemaError, match="state 'x'="):
        stored_type(ValueStateDescriptor("x", "lnog"))


@pytest.mark.parametrize(
    ("descriptor", "stored"),
    [
        (ValueStateDescriptor("x", "int", ttl=DAY), "struct<@value: int32, @processing_time: int64>"),
        (ReducingStateDescriptor("x", max, "int", ttl=DAY), "struct<@value: int32, @processing_time: int64>"),
        (AggregatingStateDescriptor("x", Mean(), "int"), "int32"),
        (ListStateDescriptor("x", "int", ttl=DAY), "list<item: struct<@value: int32, @processing_time: int64>>"),
        (
            MapStateDescriptor("x", "string", "int", ttl=StateTtlConfig("1 day", time_domain="event_time")),
            "map<string, struct<@value: int32, @event_time: int64>>",
        ),
    ],
)
def test_a_last_access_is_stored_beside_what_it_belongs_to(descriptor: Any, stored: str) -> None:
    assert str(stored_type(descriptor)) == stored


def test_a_reduce_function_is_called_or_has_reduce() -> None:
    class Longest:
        def reduce(self, first: str, second: str) -> str:
            return max(first, second, key=len)

    assert reducer(ReducingStateDescriptor("x", np.add, "int")) is np.add
    assert reducer(ReducingStateDescriptor("x", Longest(), "int"))("a", "bb") == "bb"  # type: ignore[misc]
    for wrong in (5, Longest):
        with pytest.raises(ConfigurationError, match="state 'x': reduce_function: expected a function of two values"):
            ReducingStateDescriptor("x", wrong, "int")


def test_an_aggregate_function_is_an_instance() -> None:
    with pytest.raises(ConfigurationError, match=r"state 'x': aggregate_function: .* make an instance of it"):
        AggregatingStateDescriptor("x", Mean, "int")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"expected an instance of an AggregateFunction, got 5$"):
        AggregatingStateDescriptor("x", 5, "int")  # type: ignore[arg-type]


def test_a_time_to_live_is_a_configuration() -> None:
    with pytest.raises(ConfigurationError, match=r"state 'x': ttl: expected a StateTtlConfig, got '1 day'; write ttl="):
        ListStateDescriptor("x", "int", ttl="1 day")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "  ", None, 5])
def test_a_state_has_a_name(name: Any) -> None:
    for make in (
        lambda: ValueStateDescriptor(name, "int"),
        lambda: ListStateDescriptor(name, "int"),
        lambda: MapStateDescriptor(name, "int", "int"),
        lambda: ReducingStateDescriptor(name, max, "int"),
        lambda: AggregatingStateDescriptor(name, Mean(), "int"),
    ):
        with pytest.raises(ConfigurationError, match="StateDescriptor: name: expected a name that is not empty, got"):
            make()
