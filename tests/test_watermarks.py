from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.errors import ConfigurationError
from cojoin.watermarks import (
    END_OF_TIME,
    NONE,
    Control,
    InputWatermark,
    OperatorWatermark,
    WatermarkStrategy,
    format_time,
)


def operator(left: int = 0, right: int = 0) -> OperatorWatermark:
    return OperatorWatermark([WatermarkStrategy(left), WatermarkStrategy(right)])


def test_a_watermark_is_the_largest_timestamp_less_the_bound_less_a_millisecond() -> None:
    watermark = InputWatermark(5)
    assert watermark.current() == NONE
    watermark.observe("p", 100)
    watermark.observe("p", 90)
    assert watermark.current() == 94
    assert watermark.max_timestamp() == 100


def test_an_input_is_held_by_the_partition_that_has_come_least_far() -> None:
    watermark = InputWatermark()
    for partition, timestamp in [("b", 100), ("a", 50), ("c", 50)]:
        watermark.observe(partition, timestamp)
    assert (watermark.current(), watermark.holding_partition()) == (49, "a")
    assert watermark.partitions() == {"a": 49, "b": 99, "c": 49}


def test_a_partition_that_appears_late_holds_time_but_never_turns_it_back() -> None:
    watermark = InputWatermark()
    watermark.observe("a", 100)
    assert watermark.current() == 99
    watermark.observe("b", 10)
    watermark.observe("a", 200)
    assert watermark.current() == 99
    watermark.observe("b", 150)
    assert watermark.current() == 149


def test_an_operator_waits_for_both_inputs_and_goes_with_the_slower() -> None:
    watermark = operator()
    watermark.fold(Control(1, {"p": 100}))
    assert (watermark.current(), watermark.holding_input()) == (NONE, 2)
    watermark.fold(Control(2, {"p": 100}))
    assert (watermark.current(), watermark.holding_input()) == (99, 1)
    watermark.fold(Control(1, {"p": 300}))
    watermark.fold(Control(2, {"p": 200}))
    assert (watermark.current(), watermark.holding_input(), watermark.max_timestamp()) == (199, 2, 300)


def test_a_control_without_rows_that_count_says_nothing() -> None:
    watermark = operator()
    watermark.fold(Control(1, {}))
    assert watermark.current() == NONE


def test_time_ends_when_both_inputs_are_finished() -> None:
    watermark = operator()
    watermark.finish()
    assert (watermark.current(), watermark.holding_input()) == (END_OF_TIME, None)


CONTROLS = st.lists(
    st.builds(
        Control,
        st.sampled_from([1, 2]),
        st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(-50, 50), max_size=3),
    )
)


@given(CONTROLS, st.integers(0, 10), st.data())
def test_watermarks_only_advance_and_survive_a_restart(
    controls: list[Control], delay: int, data: st.DataObject
) -> None:
    watermark, before = operator(delay, 0), NONE
    for control in controls:
        watermark.fold(control)
        assert watermark.current() >= before
        before = watermark.current()
        if data.draw(st.booleans()):
            snapshot = json.loads(json.dumps(watermark.snapshot()))
            watermark = operator(delay, 0)
            watermark.restore(snapshot)
            assert watermark.current() == before
            assert watermark.snapshot() == snapshot


@given(st.permutations(range(6)), st.lists(st.integers(0, 20), min_size=6, max_size=6))
def test_what_the_tasks_of_a_batch_saw_may_be_folded_in_any_order(order: list[int], seen: list[int]) -> None:
    controls = [Control(1 if number % 2 else 2, {f"p{number % 3}": each}) for number, each in enumerate(seen)]
    first, second = operator(), operator()
    for control in controls:
        first.fold(control)
    for number in order:
        second.fold(controls[number])
    assert first.snapshot() == second.snapshot()


@pytest.mark.parametrize("bound", [-1, 1.5, "5 seconds", True])
def test_a_bound_is_whole_milliseconds(bound: Any) -> None:
    with pytest.raises(ConfigurationError, match="out_of_orderness_ms: expected whole milliseconds, zero or more"):
        WatermarkStrategy(bound)


def test_a_strategy_is_written_as_in_flink() -> None:
    assert WatermarkStrategy.for_bounded_out_of_orderness("5 seconds") == WatermarkStrategy(5_000)
    assert WatermarkStrategy.for_monotonous_timestamps() == WatermarkStrategy()


@pytest.mark.parametrize(
    ("timestamp", "shown"),
    [
        (NONE, "none"),
        (END_OF_TIME, "end of time"),
        (-1, "1969-12-31 23:59:59.999"),
        (1 << 60, "1152921504606846976 ms"),
    ],
)
def test_people_are_shown_utc(timestamp: int, shown: str) -> None:
    assert format_time(timestamp) == shown
