"""Watermarks of inputs and operators fold from control rows in any order, and survive restarts."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cojoin.engine.time.control_rows import Control
from cojoin.engine.time.operator_watermark import InputWatermark, OperatorWatermark, TimePolicy
from cojoin.engine.time.watermark_strategies import BoundedOutOfOrderness, WatermarkGenerator, WatermarkStrategy
from cojoin.engine.time.watermarks import END_OF_TIME, NONE, Idleness


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


def operator(left: int = 0, right: int = 0, policy: TimePolicy | None = None) -> OperatorWatermark:
    return OperatorWatermark([bounded(left), bounded(right)], policy)


def test_what_is_known_to_be_unread_holds_an_input_and_lets_it_go() -> None:
    watermark = operator()
    watermark.hold({1: 40})
    watermark.fold([Control(1, {"p": 100})])
    watermark.fold([Control(2, {"p": 200})])
    assert ([each.current() for each in watermark.inputs], watermark.current()) == ([40, 199], 40)

    restored = operator()
    restored.restore(json.loads(json.dumps(watermark.snapshot())))
    assert restored.current() == 40, "a new driver goes on where the last one stood"
    restored.hold({1: 30})
    assert restored.current() == 40, "time never goes back"
    restored.hold({1: NONE, 2: 150})
    restored.fold([Control(1, {"p": 130})])
    assert [each.current() for each in restored.inputs] == [40, 199]
    restored.hold({})
    assert [each.current() for each in restored.inputs] == [129, 199], "its own rows take it where they are"
    assert "held" not in restored.snapshot()["inputs"][0]


def test_an_input_that_is_held_is_not_idle_and_may_be_finished() -> None:
    idle = WatermarkStrategy(BoundedOutOfOrderness(0)).with_idleness("1 second", even_if_silent=True)
    watermark = OperatorWatermark([idle, idle])
    watermark.hold({1: 40})
    for at in (1_000, 9_000):
        watermark.begin(at)
        watermark.fold([Control(2, {"p": at})])
        watermark.tick(at)
    assert ([each.status() for each in watermark.inputs], watermark.current()) == (["active", "active"], NONE)
    watermark.hold({})
    assert (watermark.inputs[0].status(), watermark.current()) == ("idle", 8_999)
    watermark.hold({1: 40})
    watermark.finish()
    assert watermark.current() == END_OF_TIME


def test_an_input_whose_last_partition_is_gone_leaves_time_to_the_other() -> None:
    watermark = operator()
    watermark.fold([Control(1, {"p": 100}), Control(2, {"p": 200})])
    watermark.inputs[0].remove("p")
    assert (watermark.current(), watermark.holding_input(), watermark.status()) == (199, 2, "active")
    watermark.fold([Control(1, {"q": 150})])
    assert (watermark.current(), watermark.holding_input()) == (199, 1)


def test_an_operator_waits_for_both_inputs_and_goes_with_the_slower() -> None:
    watermark = operator()
    watermark.fold([Control(1, {"p": 100})])
    assert (watermark.current(), watermark.holding_input()) == (NONE, 2)
    watermark.fold([Control(2, {"p": 100})])
    assert (watermark.current(), watermark.holding_input()) == (99, 1)
    watermark.fold([Control(1, {"p": 300})])
    watermark.fold([Control(2, {"p": 200})])
    assert (watermark.current(), watermark.holding_input(), watermark.max_timestamp()) == (199, 2, 300)


def test_what_is_said_from_outside_counts_as_well() -> None:
    watermark = operator()
    watermark.fold([Control(1, watermarks={"p": 100})])
    watermark.fold([Control(2, watermarks={"p": 90})])
    assert watermark.current() == 90
    watermark.fold([Control(2, statuses={None: "idle"})])
    assert (watermark.current(), watermark.holding_input(), watermark.status()) == (100, 1, "active")
    watermark.fold([Control(1, statuses={"p": "idle"})])
    assert (watermark.holding_input(), watermark.status()) == (None, "idle")
    watermark.fold([Control(2, watermarks={"p": 95})])
    assert (watermark.current(), watermark.holding_input()) == (100, 2)


def test_a_control_without_rows_that_count_says_nothing() -> None:
    watermark = operator()
    watermark.fold([Control(1, {})])
    assert watermark.current() == NONE


def test_time_ends_when_both_inputs_are_finished() -> None:
    watermark = operator()
    watermark.fold([Control(1, {"p": 5})])
    watermark.finish()
    assert (watermark.current(), watermark.holding_input(), watermark.status()) == (END_OF_TIME, None, "finished")


def test_one_finished_input_leaves_time_to_the_other() -> None:
    watermark = operator()
    watermark.fold([Control(1, {"p": 5}, statuses={None: "finished"})])
    watermark.fold([Control(2, {"p": 50})])
    assert (watermark.current(), watermark.inputs[0].current()) == (49, END_OF_TIME)


@pytest.mark.parametrize("release", [{"partitions": {"p": 101}}, {"statuses": {None: "idle"}}])
def test_time_may_wait_until_the_right_has_loaded(release: dict[str, Any]) -> None:
    watermark = operator(policy=TimePolicy(hold_left_until=100))
    watermark.fold([Control(1, {"p": 500})])
    watermark.fold([Control(2, {"p": 90})])
    assert (watermark.current(), watermark.holding_input()) == (NONE, 2)
    restored = operator(policy=TimePolicy(hold_left_until=100))
    restored.restore(json.loads(json.dumps(watermark.snapshot())))
    restored.fold([Control(2, **release)])
    assert restored.current() == (100 if "partitions" in release else 499)


def test_who_takes_the_waiting_away_goes_on() -> None:
    watermark, without = operator(policy=TimePolicy(hold_left_until=100)), operator()
    for number in (1, 2):
        watermark.fold([Control(number, {"p": 50})])  # type: ignore[arg-type]
    without.restore(json.loads(json.dumps(watermark.snapshot())))
    assert (watermark.current(), without.current()) == (NONE, 49)


CONTROLS = st.lists(
    st.builds(
        Control,
        st.sampled_from([1, 2]),
        st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(-50, 50), max_size=3),
        statuses=st.dictionaries(
            st.sampled_from(["a", "b", None]), st.sampled_from(["active", "idle", "finished"]), max_size=1
        ),
    )
)


@given(CONTROLS, st.integers(0, 10), st.booleans(), st.data())
def test_watermarks_only_advance_and_survive_a_restart(
    controls: list[Control], delay: int, idles: bool, data: st.DataObject
) -> None:
    strategies = [bounded(delay).with_idleness("3 ms", even_if_silent=True) if idles else bounded(delay), bounded()]
    watermark, before = OperatorWatermark(strategies), NONE
    for now, control in enumerate(controls):
        watermark.fold([control])
        watermark.tick(now)
        assert watermark.current() >= before
        before = watermark.current()
        if data.draw(st.booleans()):
            snapshot = json.loads(json.dumps(watermark.snapshot()))
            watermark = OperatorWatermark(strategies)
            watermark.restore(snapshot)
            assert watermark.current() == before
            assert watermark.snapshot() == snapshot


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_partition_that_wakes_hears_what_is_said_of_it_in_the_same_batch(order: tuple[int, int]) -> None:
    watermark = OperatorWatermark([bounded().with_idleness("10 ms", returning="skip"), bounded()])
    watermark.fold([Control(1, {"p": 1}, statuses={"p": "idle"})])
    controls = [Control(1, {"p": 7_000}), Control(1, watermarks={"p": 8_000})]
    watermark.fold([controls[number] for number in order])
    assert watermark.inputs[0].current() == 8_000


def test_of_several_statuses_the_one_that_holds_time_counts() -> None:
    for statuses in permutations(["finished", "active", "idle"]):
        watermark = operator()
        watermark.fold([Control(1, statuses={"p": status}) for status in statuses])  # type: ignore[dict-item]
        assert watermark.inputs[0].statuses() == {"p": "active"}


@dataclass(frozen=True)
class Wavering(WatermarkGenerator):
    """Its watermark does not grow with its mark, so only the largest mark of a batch may be asked for."""

    def watermark(self, mark: int, processing_time: int) -> int:
        return mark - 10 * (mark % 2) - processing_time % 3


PARTITION = st.sampled_from(["a", "b", "c"])
TIMES = st.integers(-20, 20)
NAMED_TIMES = st.dictionaries(PARTITION, TIMES, max_size=2)
STATUS = st.sampled_from(["active", "idle", "finished"])
GENERATOR = st.sampled_from([BoundedOutOfOrderness(0), BoundedOutOfOrderness(3), Wavering()])
IDLENESS = st.one_of(
    st.none(), st.builds(Idleness, st.integers(1, 3), st.sampled_from(["hold", "skip"]), st.booleans())
)
STRATEGY = st.builds(WatermarkStrategy, GENERATOR, IDLENESS)


@st.composite
def what_a_task_says(draw: st.DrawFn) -> Control:
    seen = draw(st.dictionaries(PARTITION, st.tuples(TIMES, st.one_of(TIMES, st.just(NONE))), max_size=3))
    return Control(
        draw(st.sampled_from([1, 2])),
        {name: timestamp for name, (timestamp, _) in seen.items()},
        marks={name: mark for name, (_, mark) in seen.items()} if draw(st.booleans()) else None,
        watermarks=draw(NAMED_TIMES) if draw(st.booleans()) else {},
        statuses=draw(st.dictionaries(st.one_of(PARTITION, st.none()), STATUS, max_size=1)),
        source_watermarks=draw(NAMED_TIMES),
        agrees=draw(st.sampled_from([None, True, True, False])),
        unread=draw(st.lists(PARTITION, max_size=1)),
    )


def halves(control: Control) -> list[Control]:
    """Return the controls of two tasks that had the rows of one between them; one saw only the smallest of each."""
    low = dict.fromkeys(control.partitions, -30)
    return [
        replace(control, partitions=low, marks=None if control.marks is None else dict.fromkeys(low, NONE)),
        Control(control.input, control.partitions, marks=control.marks, agrees=control.agrees),
    ]


@settings(max_examples=settings.default.max_examples // 2)
@given(
    st.lists(st.lists(what_a_task_says(), max_size=4), max_size=4),
    st.tuples(STRATEGY, STRATEGY),
    st.sampled_from([TimePolicy(), TimePolicy("max"), TimePolicy(hold_left_until=5)]),
    st.data(),
)
def test_neither_the_order_of_the_controls_nor_how_rows_are_spread_over_tasks_means_anything(
    batches: list[list[Control]],
    strategies: tuple[WatermarkStrategy, WatermarkStrategy],
    policy: TimePolicy,
    data: st.DataObject,
) -> None:
    first, second, third = (OperatorWatermark(strategies, policy) for _ in range(3))
    for now, controls in enumerate(batches):
        spread = [half for control in controls for half in halves(control)]
        for watermark, said in (
            (first, controls),
            (second, data.draw(st.permutations(controls))),
            (third, data.draw(st.permutations(spread))),
        ):
            watermark.begin(2 * now)
            watermark.fold(said)
            watermark.tick(2 * now)
        assert first.snapshot() == second.snapshot() == third.snapshot()
        # Bytes that differ for nothing would be written anew.
        assert json.dumps(first.snapshot()) == json.dumps(second.snapshot())


def test_what_a_source_says_of_time_counts_while_its_rows_agree():
    watermark = operator(right=5)
    unknown = Control(2, source_watermarks={"p": 100, "q": 100}, unread=["q"])
    watermark.fold([unknown])
    assert watermark.inputs[1].partitions() == {"q": NONE}, "nobody knows yet what it is worth; what holds more holds"

    agrees = [Control(2, {"q": 90}, agrees=True), Control(2, source_watermarks={"p": 80, "q": 80})]
    watermark.fold(agrees)
    assert watermark.inputs[1].partitions() == {"p": 80, "q": 84}
    assert (watermark.inputs[1].holding_partition(), watermark.inputs[1].held_by()) == ("p", "max_drift")

    silent = Control(2, source_watermarks={"p": 95, "q": 95})
    watermark.fold([silent])
    assert watermark.inputs[1].current() == 95, "a batch without rows changes no judgement"
    assert watermark.inputs[1].held_by() == "max_drift"
    watermark.fold([Control(2, {"q": 105})])
    assert watermark.inputs[1].held_by() == "silence", "the source has said nothing in this batch"
    watermark.fold([Control(2, {"p": 102})])
    assert (watermark.inputs[1].holding_partition(), watermark.inputs[1].held_by()) == ("p", None), "its rows gave it"

    apart = [Control(2, source_watermarks={"p": 1_000}), Control(2, {"q": 97}, agrees=False), Control(2, agrees=True)]
    watermark.fold(apart)
    assert (watermark.inputs[1].current(), watermark.inputs[1].held_by()) == (96, None)
    restored = operator(right=5)
    restored.restore(watermark.snapshot())
    assert restored.inputs[1].source_agrees is False
