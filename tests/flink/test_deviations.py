"""What cojoin does where it decides otherwise than Flink; each test is named by its case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.state import ReducingStateDescriptor
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import END_OF_TIME
from cojoin.errors import FunctionError, SchemaError
from cojoin.testing import Harness, HarnessInput, StatusChange, Watermark, assert_output
from tests.flink.cases import CASES
from tests.flink.test_cases import run

LEFT = HarnessInput("k string, l long", key="k", name="left")
RIGHT = HarnessInput("k string, r long", key="k", name="right")


def test_co_34_a_drain_fires_processing_time_timers_that_were_set_before() -> None:
    values = [event["value"] for event in run(CASES["co-34"]) if event["kind"] == "record"]
    assert values == ["fired"]


def test_ij_17_a_row_without_time_is_rejected() -> None:
    harness = Harness.of(IntervalJoin("0 ms", "1 ms"), input1=LEFT, input2=RIGHT)
    harness.process_element2(("k", 1), None)
    assert [(each.input, each.reason) for each in harness.rejected] == [("right", "null_event_time")]


def test_ij_22_a_row_that_nothing_to_come_can_match_goes_when_the_watermark_has_passed_it() -> None:
    harness = Harness.of(IntervalJoin("7 ms", "10 ms"), input1=LEFT, input2=RIGHT)
    harness.process_watermark(1)
    harness.process_element2(("k", 2), 2)
    assert len(harness.buffered(2)) == 1
    harness.process_watermark(2)
    assert harness.buffered(2) == []


@pytest.mark.parametrize("name", ["ij-24", "ij-25", "ij-26"])
def test_ij_24_to_26_have_the_same_rows(name: str) -> None:
    found = [event["value"] for event in run(CASES[name]) if event["kind"] == "record"]
    expected = [event["value"] for event in CASES[name].expected or () if event["kind"] == "record"]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    times = [max(filter(None, (value[0], value[2]))) for value in found if None not in value]
    assert times == sorted(times)


def test_ij_27_and_28_a_join_needs_event_time() -> None:
    timeless = HarnessInput("k string, l long", key="k", event_time=None)
    with pytest.raises(SchemaError, match="has no event time, by which this join matches rows"):
        Harness.of(IntervalJoin("0 ms", "1 ms"), input1=timeless, input2=RIGHT)


def test_tj_11_left_rows_come_by_event_time() -> None:
    assert [event["value"][0] for event in run(CASES["tj-11"]) if event["kind"] == "record"] == [3, 5]


def test_tj_12_a_join_has_no_timers_and_rows_come_out_all_the_same() -> None:
    harness = Harness.of(TemporalJoin(), input1=LEFT, input2=RIGHT)
    for time in (5, 3, 9):
        harness.process_element1(("k", time), time)
    assert harness.timers() == []
    harness.process_watermark(6)
    assert [row.l for row in harness.output] == [3, 5]


def test_tj_15_a_key_has_one_version_in_force() -> None:
    found = [event["value"] for event in run(CASES["tj-15"]) if event["kind"] == "record"]
    assert found == [[1, "k1", "b2"], [2, "k2", "b"], [3, "k2", "b"], [4, "k3", None]]


def test_tj_16_left_rows_wait_for_the_rights_first_load() -> None:
    harness = Harness.of(AsofJoin(), input1=LEFT, input2=RIGHT, hold_left_until=100)
    harness.process_element2(("k", 1), 1)
    harness.process_watermark2(20)
    for time in (1, 2):
        harness.process_element1(("k", time), time)
    harness.process_watermark1(50)
    assert (harness.take(), len(harness.buffered(1)), harness.rejected) == ([], 2, [])


def test_tj_19_a_version_is_in_force_once_both_watermarks_have_passed_it() -> None:
    harness = Harness.of(TemporalJoin(), input1=LEFT, input2=RIGHT)
    harness.process_element2(("k", 1), 200)
    harness.process_watermark2(400)
    assert harness.state("k") == {}
    harness.process_watermark1(300)
    assert [row.r for row in harness.state("k")["versions"]] == [1]


def test_wm_08_and_09_what_is_said_of_an_input_counts_beside_its_strategy() -> None:
    assert run(CASES["wm-08"]) == [{"kind": "watermark", "value": None, "ts": 42}]
    assert run(CASES["wm-09"]) == [{"kind": "status", "value": "IDLE", "ts": None}]


@pytest.mark.parametrize("as_in_flink", [False, True])
def test_an_input_that_never_spoke_is_idle_only_if_asked(as_in_flink: bool) -> None:
    """Flink's goes idle after the timeout, and its rows, once they come, are late."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness("10 ms", even_if_silent=as_in_flink)
    harness = Harness.of(
        AsofJoin(), input1=replace(LEFT, watermark=strategy), input2=replace(RIGHT, watermark=strategy)
    )
    harness.process_element1(("k", 1), 100)
    for now in (1, 100):
        harness.set_processing_time(now)
        harness.process_element1(("k", 1), 200 + now)
    harness.process_element2(("k", 7), 50)
    harness.process_element2(("k", 8), 400)
    harness.process_element1(("k", 2), 400)
    assert harness.report().inputs[1].late_applied == (1 if as_in_flink else 0)
    assert {row.r for row in harness.output if row.l == 1} == ({None, 7} if as_in_flink else {7})


def test_a_reducing_state_that_none_is_added_to_is_an_error() -> None:
    """Flink's heap state would be cleared in silence; PyFlink's gives None to the function."""

    class Sums(KeyedCoProcessFunction):
        def open(self, ctx: Any) -> None:
            self.total = ctx.get_reducing_state(ReducingStateDescriptor("total", lambda a, b: a + b, "long"))

        def process_element1(self, value: Any, ctx: Any) -> None:
            self.total.add(value.l)

    harness = Harness(Sums(), "x long", input1=LEFT, input2=RIGHT, order="arrival")
    harness.process_element1(("k", 5), 1)
    with pytest.raises(
        FunctionError, match=r"state 'total': expected bigint, got None .*or call clear\(\) to forget it"
    ):
        harness.process_element1(("k", None), 2)
    assert harness.state("k") == {"total": 5}


def test_wm_16_times_have_microseconds_in_64_bits() -> None:
    class Tells(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> Any:
            return [(ctx.timestamp(),)]

    harness = Harness(Tells(), "timestamp long", input1=LEFT, input2=RIGHT, order="arrival")
    for time in (-62_135_596_800_000, -1, 0, 1, 253_402_300_799_999):
        harness.process_element1(("k", 1), time)
        assert harness.output[-1].timestamp == time
    with pytest.raises(SchemaError, match="64 bits"):
        harness.process_element1(("k", 1), END_OF_TIME)


def test_statuses_of_finished_inputs_are_told_which_flink_has_not() -> None:
    harness = Harness.of(AsofJoin(), input1=LEFT, input2=RIGHT)
    harness.process_element1(("k", 1), 5)
    harness.end_input()
    assert harness.take()[1:] == [Watermark(END_OF_TIME), StatusChange("finished")]
    assert_output(harness, "k | l | r\nk | 1 | null")
