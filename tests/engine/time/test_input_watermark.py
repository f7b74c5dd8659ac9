"""The watermark of one input: its partitions, marks, idleness by the clock, and pauses of the query."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cojoin.engine.time.input_watermark import InputWatermark
from cojoin.engine.time.watermark_strategies import BoundedOutOfOrderness, WatermarkGenerator, WatermarkStrategy
from cojoin.engine.time.watermarks import NONE


def bounded(delay: int = 0) -> WatermarkStrategy:
    return WatermarkStrategy(BoundedOutOfOrderness(delay))


def test_a_partition_is_its_largest_timestamp_less_the_bound_and_a_millisecond() -> None:
    watermark = InputWatermark(bounded(5))
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


def test_a_partition_known_to_hold_rows_holds_time_until_it_speaks() -> None:
    watermark = InputWatermark()
    watermark.register("b")
    watermark.observe("a", 100)
    assert (watermark.current(), watermark.holding_partition()) == (NONE, "b")
    watermark.remove("b")
    assert watermark.current() == 99


def test_marks_may_say_other_than_timestamps() -> None:
    watermark = InputWatermark(WatermarkStrategy.for_punctuated("w"))
    watermark.observe("p", 100, NONE)
    assert (watermark.current(), watermark.max_timestamp()) == (NONE, 100)
    watermark.observe("p", 50, 40)
    assert watermark.current() == 40


def test_a_clock_lag_moves_with_the_clock_alone() -> None:
    watermark = InputWatermark(WatermarkStrategy.for_clock_lag("10 ms"))
    watermark.tick(100)
    assert watermark.current() == 90
    watermark.tick(95)
    assert watermark.current() == 90
    watermark.observe("p", 500, NONE)
    watermark.tick(120)
    assert watermark.current() == 110


def idle_after(timeout: str, **options: Any) -> InputWatermark:
    return InputWatermark(bounded().with_idleness(timeout, **options))


def test_a_silent_partition_goes_idle_and_comes_back_with_its_next_row() -> None:
    watermark = idle_after("10 ms")
    watermark.observe("a", 100)
    watermark.observe("b", 50)
    watermark.tick(0)
    for now in (1, 11, 12):
        watermark.observe("a", 100 + now)
        watermark.tick(now)
    assert watermark.statuses() == {"a": "active", "b": "idle"}
    assert (watermark.current(), watermark.status()) == (111, "active")
    watermark.observe("b", 60)
    assert (watermark.statuses()["b"], watermark.current(), watermark.holding_partition()) == ("active", 111, "b")


def test_a_partition_that_returns_may_be_left_out_until_it_has_caught_up() -> None:
    watermark = idle_after("10 ms", returning="skip")
    watermark.observe("a", 100)
    watermark.observe("b", 50)
    for now in (0, 1, 12):
        watermark.observe("a", 100 + now)
        watermark.tick(now)
    assert watermark.current() == 111
    watermark.observe("b", 60)
    watermark.observe("a", 200)
    assert watermark.current() == 199
    watermark.observe("b", 300)
    watermark.observe("a", 400)
    assert watermark.current() == 299


def test_a_pause_of_the_query_is_no_silence_of_the_source() -> None:
    watermark = idle_after("10 ms")
    watermark.observe("a", 100)
    watermark.tick(0)
    watermark.tick(1)
    watermark.resume()
    watermark.tick(10_000)
    assert watermark.status() == "active"
    watermark.tick(10_011)
    assert watermark.status() == "idle"


@pytest.mark.parametrize(("even_if_silent", "expected"), [(False, "active"), (True, "idle")])
def test_an_input_that_never_spoke_goes_idle_only_if_its_strategy_says_so(even_if_silent: bool, expected: str) -> None:
    watermark = idle_after("10 ms", even_if_silent=even_if_silent)
    watermark.tick(0)
    watermark.tick(11)
    assert watermark.status() == expected
    watermark.observe("a", 7)
    assert (watermark.status(), watermark.current()) == ("active", 6)


def test_a_generator_hears_the_batchs_processing_time_and_may_answer_in_numpys_numbers() -> None:
    @dataclass(frozen=True)
    class Capped(WatermarkGenerator):
        def watermark(self, mark: int, processing_time: int) -> Any:
            return np.minimum(np.int64(mark), processing_time - 10)

    watermark = InputWatermark(WatermarkStrategy.for_generator(Capped()))
    watermark.begin(100)
    watermark.observe("p", 500)
    assert watermark.current() == 90
    assert json.dumps(watermark.snapshot())
