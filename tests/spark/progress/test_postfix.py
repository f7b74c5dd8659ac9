"""What is written after the bar at each moment."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.spark.progress.postfix import postfix_parts
from tests.spark.progress.runs import DAY, HOUR, NOON, Calendar, Run, report

if TYPE_CHECKING:
    from cojoin.spark.progress.figures import Figures


def postfix(shown: Figures) -> str:
    return "".join(postfix_parts(shown))


def inputs(*marks: int, **more: tuple[str, str]) -> str:
    """Return the postfix for two inputs at their watermarks, after a batch of two rows that took a second."""
    return postfix(Run((0, 1 << 62)).batch(1, report(1, 1, *marks, **more)))


def test_before_the_first_batch_it_is_starting():
    run = Run()
    assert postfix(run.after(3)) == "starting"
    assert postfix(run.after(0, final=True)) == "no new rows"


def test_a_replay_has_all_figures():
    run = Run((NOON - 8 * HOUR, NOON + 8 * HOUR))
    run.batch(5, report(50_000, 5_000, NOON - HOUR))
    assert postfix(run.batch(5, report(100_000, 10_000, NOON, NOON + 12_400, buffered=1_000))) == (
        "01-15 trades 12:00:00, customers 12:00:12, 11.0k rows/s, held by trades, drift 12.4 s, buffered 1,100"
    )


def test_a_live_run_tells_how_far_behind_it_is_and_counts_batches_and_rows():
    run = Run(last=report(100, 0))
    shown = run.batch(2, report(1_000, 100, NOON, newest=NOON + 4_230))
    assert postfix(shown) == (
        "4.2 s behind the newest record, 01-15 trades 12:00:00, customers 12:00:00, 500 rows/s, 1 batch, 1,000 rows, "
        "drift 0 s, buffered 0"
    )
    assert postfix(run.batch(100, run.report)).startswith(
        "4.2 s behind the newest record, 01-15 trades 12:00:00, customers 12:00:00, no new rows, 2 batches, "
    )


def test_a_restart_shows_where_it_was():
    run = Run((NOON - HOUR, NOON + HOUR), last=report(5, 5))
    assert postfix(run.after(2)).startswith("01-15 trades 12:00:00, customers 12:00:00, starting, ")
    assert postfix(run.after(1, final=True)).startswith("01-15 trades 12:00:00, customers 12:00:00, no new rows, ")


def test_a_day_stands_only_where_it_matters():
    today = Calendar.at
    assert inputs(today, today) == "trades 12:00:00, customers 12:00:00, 2.00 rows/s, drift 0 s, buffered 0"
    assert inputs(NOON, NOON).startswith("01-15 trades 12:00:00, customers 12:00:00, ")
    assert inputs(NOON, NOON + DAY).startswith(
        "trades 01-15 12:00:00, customers 01-16 12:00:00, 2.00 rows/s, held by trades, drift 1 d 0 h"
    )
    assert inputs(10**17, NOON).startswith("01-15 trades 100000000000000000 ms, customers 12:00:00, ")


def test_today_is_a_day_of_one_year_and_ends_at_midnight_utc(monkeypatch):
    for at, day in [
        (NOON - 12 * HOUR, ""),
        (NOON + 12 * HOUR - 1, ""),
        (NOON - 12 * HOUR - 1, "01-15 "),
        (NOON + 12 * HOUR, "01-15 "),
        (NOON + 365 * DAY, "01-15 "),
    ]:
        monkeypatch.setattr(Calendar, "at", at)
        assert inputs(NOON, NOON).startswith(f"{day}trades 12:00:00, customers 12:00:00, ")
    # Where the days differ, today's stands too.
    monkeypatch.setattr(Calendar, "at", NOON)
    assert inputs(NOON, NOON - DAY).startswith("trades 01-15 12:00:00, customers 01-14 12:00:00, ")


def test_who_holds_who_is_idle_who_has_not_spoken_and_who_is_at_the_end():
    assert inputs(NOON, NONE) == (
        "01-15 trades 12:00:00, customers no watermark yet, 2.00 rows/s, held by customers, buffered 0"
    )
    assert inputs(END_OF_TIME, NOON) == (
        "01-15 trades at the end, customers 12:00:00, 2.00 rows/s, held by customers, buffered 0"
    )
    assert "customers 11:00:00 (idle)" in inputs(NOON, NOON - HOUR, statuses=("active", "idle"))
    assert inputs(END_OF_TIME) == "trades at the end, customers at the end, 2.00 rows/s, buffered 0"


def test_a_partition_that_holds_is_named_and_why():
    def held(*, other=NOON, span=None, **more):
        last = report(1_000, 100, NOON, other)
        trades = replace(last.inputs[0], holding_partition='["t-1\\n", 3]', **more)
        return postfix(Run(span).batch(5, replace(last, inputs=(trades, last.inputs[1]))))

    several = {"partitions": {'["t-1\\n", 3]': NOON, '["t-1\\n", 4]': NOON + 1}}
    topics = {"partitions": {'["t-1\\n", 3]': NOON, '["t-2", 3]': NOON + 1, '["t-2", 4]': NOON + 1}}
    silent = {"held_by": "max_drift"}
    assert ", held by trades, " in held(other=NOON + 1, partitions={'["t-1\\n", 3]': NOON})
    assert ", held by partition 3 of trades, " in held(other=NOON + 1, **several)
    assert ", held by partition t-1?/3 of trades, " in held(other=NOON + 1, **topics)
    assert ", held by partition 3 of trades (timestamps beyond max_drift), " in held(
        other=NOON + 1, source_agrees=False, **several
    )
    assert ", held by silent partition 3 of trades (max_drift), " in held(**several, **silent)
    assert ", held by silent partition 3 of trades, " in held(**several, held_by="silence")
    assert "held by" not in held(**several), "both inputs are at one time"
    assert "held by" not in held(span=(NOON - HOUR, NOON + HOUR), **several, **silent), "which is usual in the history"


def test_buffered_and_drift_are_those_of_both_inputs():
    shown = Run().batch(1, report(9, 9, NOON, NOON - 12_000, buffered=100))
    assert postfix(shown).endswith(", drift 12 s, buffered 110")


def test_late_rows_are_shown_until_the_end():
    run = Run((NOON - HOUR, NOON + HOUR))
    last = report(1_000, 100, NOON)
    trades, customers = last.inputs
    late = replace(trades, rejected={"late": 1_032, "null_key": 4})
    shown = run.batch(5, replace(last, inputs=(late, replace(customers, late_applied=2))))
    assert "trades 12:00:00 (1,032 late), customers 12:00:00 (2 late)" in postfix(shown)
    assert "(1,032 late)" in postfix(run.after(1, final=True))


def test_how_far_a_snapshot_is_read_is_shown():
    last = report(1_000, 100, NOON)
    trades, customers = last.inputs
    shown = Run().batch(5, replace(last, inputs=(trades, replace(customers, snapshot_rows=(100, 5_000_000)))))
    assert "customers 12:00:00 (100 of 5,000,000 rows of the snapshot read)" in postfix(shown)


def test_what_can_not_be_printed_of_a_name_is_a_question_mark():
    shown = Run().batch(1, report(1, names=("a\nb\x1b[31m", "取\0引\udcff")))
    assert "a?b?[31m 12:00:00, 取?引? 12:00:00" in postfix(shown)
    assert postfix(shown).isprintable()
