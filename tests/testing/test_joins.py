from __future__ import annotations

import pytest

from cojoin.engine.time.watermarks import END_OF_TIME
from cojoin.errors import ConfigurationError
from cojoin.testing import AsofJoin, Harness, HarnessInput, IntervalJoin, Record, TemporalJoin, Watermark, assert_output
from tests.testing.functions import TRADES

CUSTOMERS = HarnessInput("id string, tier string, closed boolean", key="id", name="customers")


def test_an_asof_join() -> None:
    harness = Harness.of(AsofJoin(), input1=TRADES, input2=CUSTOMERS)
    harness.process_table2(
        """
        id | tier   | event_time
        ---+--------+-------------
        a  | silver | 10:00:00
        a  | gold   | 10:00:00.500
        """
    )
    harness.process_table1(
        """
        customer_id | trade_id | event_time
        a           | 1        | 10:00:00.499
        a           | 2        | 10:00:00.500
        b           | 3        | 10:00:00.600
        """
    )
    assert [row.tier for row in harness.buffered(2)] == ["silver", "gold"]
    harness.process_watermark(36_000_600)
    assert_output(
        harness,
        """
        trade_id | tier   | event_time   | customers_event_time
        1        | silver | 10:00:00.499 | 10:00:00
        2        | gold   | 10:00:00.500 | 10:00:00.500
        3        | null   | 10:00:00.600 | null
        """,
        any_order=True,
    )
    records = [event for event in harness.take() if isinstance(event, Record)]
    assert [(event.value.trade_id, event.timestamp) for event in records] == [
        (1, 36_000_499),
        (2, 36_000_500),
        (3, 36_000_600),
    ]
    assert [row.tier for row in harness.state("a")["versions"]] == ["gold"]
    assert harness.state("b") == {}
    assert harness.state_entries() == {"versions": 1}
    assert (harness.buffered(1), harness.timers()) == ([], [])


def test_a_join_that_waits_has_its_output_watermark_held_back() -> None:
    harness = Harness.of(AsofJoin(direction="forward", tolerance="20 ms"), input1=TRADES, input2=CUSTOMERS)
    harness.process_element1(("a", 1, 1.0), 100)
    harness.process_watermark(110)
    assert harness.take() == [Watermark(90)]
    assert (harness.current_watermark(), len(harness.buffered(1))) == (110, 1)
    assert [row.trade_id for row in harness.state("a")["waiting"]] == [1]
    harness.process_element2(("a", "gold", None), 115)
    harness.process_watermark(116)
    record, watermark = harness.take()
    assert (record.value.tier, record.timestamp, watermark) == ("gold", 100, Watermark(96))  # type: ignore[union-attr]


def test_a_join_that_may_wait_for_ever_has_no_output_watermark_but_the_end() -> None:
    harness = Harness.of(AsofJoin(direction="nearest"), input1=TRADES, input2=CUSTOMERS)
    harness.process_watermark(110)
    assert harness.take() == []
    harness.end_input()
    assert harness.take()[0] == Watermark(END_OF_TIME)


def test_an_interval_joins_record_has_the_later_time() -> None:
    join = IntervalJoin("-5 ms", "5 ms", "full")
    harness = Harness.of(join, input1=TRADES, input2=CUSTOMERS)
    harness.process_element1(("a", 1, 1.0), 10)
    harness.process_element2(("a", "gold", None), 12)
    harness.process_element2(("a", "tin", None), 9)
    harness.process_element1(("b", 2, 1.0), 11)
    harness.process_element2(("c", "gold", None), 13)
    harness.process_watermark(12)
    assert [row.tier for row in harness.buffered(2)] == ["tin", "gold", "gold"]
    assert len(harness.state("a")["right"]) == 2
    harness.end_input()
    told = {(row.value.trade_id, row.value.tier, row.timestamp) for row in harness.log if isinstance(row, Record)}
    assert told == {(1, "tin", 10), (1, "gold", 12), (2, None, 11), (None, "gold", 13)}


def test_a_temporal_join_with_deletes() -> None:
    harness = Harness.of(TemporalJoin("inner", deletes="closed"), input1=TRADES, input2=CUSTOMERS)
    harness.process_element2(("a", "gold", False), 10)
    harness.process_element2(("a", None, True), 20)
    for time in (9, 10, 19, 20):
        harness.process_element1(("a", time, 1.0), time)
    harness.process_watermark(20)
    assert [row.trade_id for row in harness.output] == [10, 19]


def test_an_element_that_is_late_is_rejected_a_late_version_applied() -> None:
    harness = Harness.of(AsofJoin(), input1=TRADES, input2=CUSTOMERS)
    harness.process_watermark(50)
    harness.process_element1(("a", 1, 1.0), 50)
    harness.process_element2(("a", "gold", None), 40)
    harness.process_element1(("a", 2, 1.0), 60)
    harness.process_watermark(60)
    assert [each.reason for each in harness.rejected] == ["late"]
    assert [row.tier for row in harness.output] == ["gold"]
    assert harness.report().inputs[1].late_applied == 1


def test_a_join_runs_static_inputs() -> None:
    harness = Harness.of(AsofJoin("inner"), input1=TRADES, input2=CUSTOMERS)
    harness.run_static([("a", 2, 1.0, 12), ("a", 1, 1.0, 10), ("a", 0, 1.0, 9)], [("a", "gold", None, 10)])
    assert [row.trade_id for row in harness.output] == [1, 2]


def test_a_join_has_no_side_outputs_and_needs_event_time() -> None:
    harness = Harness.of(AsofJoin(), input1=TRADES, input2=CUSTOMERS)
    with pytest.raises(ConfigurationError, match="side output: 'late' was not declared"):
        harness.side_output("late")
    timeless = HarnessInput("id string", key="id", event_time=None)
    with pytest.raises(ConfigurationError, match="has no event time"):
        Harness.of(AsofJoin(), input1=TRADES, input2=timeless)
