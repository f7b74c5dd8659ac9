from __future__ import annotations

from typing import Any

import pytest

from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.testing import Element, HarnessError, HarnessInput, Record, StatusChange, Watermark
from tests.testing.functions import CUSTOMERS, TRADES, enrich


def test_the_watermark_is_the_minimum_of_both_inputs() -> None:
    harness = enrich()
    harness.process_watermark1(100)
    assert (harness.current_watermark(), harness.input_watermark(1), harness.input_watermark(2)) == (NONE, 100, NONE)
    harness.process_watermark2(90)
    harness.process_watermark2(90)
    assert harness.take() == [Watermark(90)]
    assert harness.current_watermark() == 90


def test_a_watermark_that_goes_back_is_a_mistake_unless_it_is_said() -> None:
    harness = enrich()
    harness.process_watermark(100)
    message = (
        r"input 'trades', partition '\[\]': its watermark is 100 \(1970-01-01 00:00:00.100\) and can't go back to 99"
    )
    with pytest.raises(HarnessError, match=message):
        harness.process_watermark1(99)
    with pytest.raises(HarnessError, match="input 'customers'"):
        harness.process_watermark2(-5)
    relaxed = enrich(regressing_watermarks="ignore")
    relaxed.process_watermark(100)
    relaxed.process_watermark(99)
    assert relaxed.take() == [Watermark(100)]


def test_partitions_make_the_inputs_watermark() -> None:
    harness = enrich()
    harness.process_watermark2(500)
    harness.process_watermark1(100, partition="0")
    harness.process_watermark1(90, partition=("trades", 1))
    assert harness.take() == [Watermark(100)]
    assert harness.input_watermark(1, partition='["trades", 1]') == 90
    harness.process_watermark1(300)
    assert harness.take() == [Watermark(300)]
    assert harness.report().inputs[0].partitions == {"0": 300, '["trades", 1]': 300}


def test_a_partition_that_is_declared_active_holds_time_until_it_speaks() -> None:
    harness = enrich()
    harness.set_active(1, partition="0")
    harness.set_active(1, partition="1")
    harness.process_watermark2(500)
    harness.process_watermark1(100, partition="0")
    assert harness.take() == []
    harness.set_idle(1, partition="1")
    assert harness.take() == [Watermark(100)]
    assert (harness.status(1), harness.status(1, partition="1")) == ("active", "idle")


def test_an_element_without_partition_is_of_the_first_one_known() -> None:
    harness = enrich()
    harness.set_active(1, partition="0")
    harness.process_element1(("a", 7, 1.0), 50)
    harness.process_element1(("a", 8, 1.0), 50, partition="1")
    assert list(harness.report().inputs[0].partitions) == ["0", "1"]


def test_an_idle_input_is_left_out_until_it_returns() -> None:
    harness = enrich()
    harness.process_watermark1(100)
    harness.process_watermark2(90)
    harness.set_idle(2)
    assert (harness.status(), harness.status(1), harness.status(2)) == ("active", "active", "idle")
    harness.set_idle(1)
    harness.set_active(1)
    assert harness.take() == [
        *(Watermark(90), Watermark(100)),
        *(StatusChange("idle"), StatusChange("active")),
    ]
    harness.process_element2(("a", "gold"), 150)
    assert harness.status(2) == "active"


def test_when_all_are_idle_time_stands_or_goes_to_the_largest() -> None:
    for policy, expected in (("hold", []), ("max", [Watermark(100)])):
        harness = enrich(when_all_idle=policy)
        harness.process_watermark1(100)
        harness.process_watermark2(90)
        harness.take()
        harness.set_idle(2)
        harness.set_idle(1)
        found = [event for event in harness.take() if event != StatusChange("idle")]
        assert found == ([Watermark(100)] if policy == "hold" else expected)
        assert harness.status() == "idle"


def test_a_finished_input_is_left_out_for_good() -> None:
    harness = enrich()
    harness.set_finished(2)
    harness.process_element1(("a", 7, 1.0), 50)
    harness.process_watermark1(60)
    assert harness.current_watermark() == 60
    harness.set_finished(1)
    assert harness.take()[-1] == StatusChange("finished")


def test_only_the_inputs_1_and_2_are_there() -> None:
    with pytest.raises(HarnessError, match="expected input 1 or 2, got 3"):
        enrich().set_idle(3)  # type: ignore[arg-type]


def with_strategy(strategy: WatermarkStrategy, **more: Any) -> HarnessInput:
    return HarnessInput(TRADES.columns, key="customer_id", name="trades", watermark=strategy, **more)


def test_a_strategy_moves_the_watermark_at_the_end_of_the_call() -> None:
    harness = enrich(input1=with_strategy(WatermarkStrategy.for_bounded_out_of_orderness("10 ms")))
    harness.set_finished(2)
    harness.process_element1(("a", 1, 1.0), 100)
    harness.process_element1(("a", 2, 1.0), 95)
    harness.process_element1(("a", 3, 1.0), 89)
    harness.process_element1(("a", 4, 1.0), 111)
    assert harness.take() == [
        Watermark(89),
        harness.rejected[0],
        *(enrich_event for enrich_event in harness.log[-3:-1]),
        Watermark(100),
    ]
    assert harness.rejected[0].row["trade_id"] == 3
    assert [row.trade_id for row in harness.side_output("unknown")] == [2, 1]


def test_partition_columns_name_the_partitions_as_a_job_does() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    trades = HarnessInput(
        "customer_id string, topic string, part int", key="customer_id", partition=["topic", "part"], watermark=strategy
    )
    harness = enrich(input1=trades)
    harness.process_batch([("a", "t", 0, 100), ("a", "t", 1, 50), ("a", "t", 0, 70)])
    assert harness.report().inputs[0].partitions == {'["t", 0]': 99, '["t", 1]': 49}
    assert harness.report().inputs[0].holding_partition == '["t", 1]'


def test_punctuated_rows_move_the_watermark() -> None:
    trades = HarnessInput(
        "customer_id string, flag boolean", key="customer_id", watermark=WatermarkStrategy.for_punctuated("flag")
    )
    harness = enrich(input1=trades, order="arrival")
    harness.set_finished(2)
    harness.take()
    for flag, time in ((False, 10), (True, 20), (None, 30)):
        harness.process_element1({"customer_id": None, "flag": flag}, time)
    assert [event for event in harness.take() if isinstance(event, Watermark)] == [Watermark(20)]


def test_idleness_counts_by_the_clock_of_the_calls() -> None:
    trades = with_strategy(WatermarkStrategy.for_monotonous_timestamps().with_idleness("10 ms"))
    harness = enrich(input1=trades)
    harness.process_watermark2(500)
    harness.set_processing_time(1)
    harness.process_element1(("a", 1, 1.0), 100)
    for now in (5, 10, 15):
        harness.set_processing_time(now)
    assert harness.status(1) == "active"
    harness.set_processing_time(16)
    assert harness.status(1) == "idle"
    assert harness.take()[-1] == Watermark(500)


def test_the_clock_after_a_restore_does_not_count_as_silence() -> None:
    trades = with_strategy(WatermarkStrategy.for_monotonous_timestamps().with_idleness("10 ms"))
    harness = enrich(input1=trades)
    harness.set_processing_time(1)
    harness.process_element1(("a", 1, 1.0), 100)
    for now in (2, 3):
        harness.set_processing_time(now)
    harness.restore(harness.snapshot())
    harness.set_processing_time(1_000)
    assert harness.status(1) == "active"
    harness.set_processing_time(1_011)
    assert harness.status(1) == "idle"


def test_time_can_wait_for_the_rights_first_load() -> None:
    harness = enrich(hold_left_until=100)
    harness.process_element1(("a", 7, 1.0), 10)
    harness.process_watermark(90)
    assert harness.take() == []
    harness.process_element2(("a", "gold"), 5)
    harness.process_watermark2(100)
    assert harness.take() == [Record((7, "gold"), 10), Watermark(90)]


def test_elements_of_a_batch_name_their_partitions() -> None:
    trades = with_strategy(WatermarkStrategy.for_monotonous_timestamps())
    harness = enrich(input1=trades, input2=CUSTOMERS)
    harness.process_batch([Element(("a", 1, 1.0), 10, "p"), Element(("a", 2, 1.0), 20, ("t", 1))])
    assert harness.report().inputs[0].partitions == {"p": 9, '["t", 1]': 19}


def test_the_end_fires_what_was_set_before_and_nothing_follows() -> None:
    harness = enrich()
    harness.process_element1(("a", 7, 1.0), 50)
    harness.process_element2(("a", "gold"), 20)
    harness.end_input()
    assert harness.take() == [Record((7, "gold"), 50), Watermark(END_OF_TIME), StatusChange("finished")]
    assert (harness.timers(), harness.state("a"), harness.report().drained) == ([], {}, True)
    for call in (
        harness.end_input,
        lambda: harness.process_watermark(1),
        lambda: harness.process_element1(("a", 1, 1.0), 1),
    ):
        with pytest.raises(HarnessError, match="the inputs have ended, and nothing can follow"):
            call()
