"""What is measured of a run: how far, how fast, how long still, and how far behind."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from tests.spark.runs import DAY, HOUR, NOON, Run, report


def at(done: float, rows: int = 1_000, **more: int):
    """A report that far into 10 hours from noon."""
    return report(rows, 0, NOON + int(10 * HOUR * done), **more)


TEN_HOURS = (NOON, NOON + 10 * HOUR)


def test_rows_a_second_are_those_of_the_last_half_minute_and_at_the_end_of_the_whole_wait():
    run = Run()
    assert run.batch(2, report(900, 100)).rate == 500
    assert run.after(100).rate is None
    assert run.after(0, final=True).rate == pytest.approx(1_000 / 102)


def test_batches_that_take_longer_than_half_a_minute_have_a_rate_all_the_while():
    run = Run()
    for batch in range(1, 5):
        run.batch(50, report(batch * 5_000))
        assert run.after(45).rate == pytest.approx(5_000 / 95, rel=0.6)
        run.now -= 45


def test_a_restart_counts_only_its_own_rows():
    run = Run(last=report(5_000, 1_000))
    assert run.after(1).rate is None
    assert run.batch(1, report(5_100, 1_100)).rate == 100


def test_the_bar_goes_by_the_watermark_and_a_restart_begins_where_it_was():
    run = Run(TEN_HOURS)
    assert run.after(1).done is None
    assert run.batch(1, report(10, 0, NONE)).done == 0.0
    assert run.batch(1, at(-0.5)).done == 0.0
    assert run.batch(1, at(0.25)).done == 0.25
    assert run.batch(1, report(10, 0, END_OF_TIME)).done == 1.0
    assert Run(TEN_HOURS, last=at(0.4)).after(1).done == pytest.approx(0.4)


def test_a_total_is_a_goal_until_a_range_is_known():
    run = Run(total=2_000)
    assert run.batch(1, report(400)).done == 0.2
    assert run.batch(1, report(800)).left == pytest.approx(3)
    run.span = TEN_HOURS
    shown = run.batch(1, at(0.3))
    assert (shown.done, shown.left) == (pytest.approx(0.3), None)


def test_time_left_needs_two_batches_then_counts_down():
    run = Run(TEN_HOURS)
    assert run.batch(20, at(0.1)).left is None
    assert run.after(5).left is None
    assert run.batch(5, at(0.2)).left == pytest.approx(80)
    assert run.after(4).left == pytest.approx(76)
    assert run.after(6).left == pytest.approx(70)
    assert run.batch(0, at(0.3)).left == pytest.approx(70)
    assert run.after(0, final=True).left is None


def test_time_left_grows_without_a_jump_when_a_batch_takes_longer_than_usual():
    run = Run(TEN_HOURS)
    for tenth in (1, 2, 3, 4):
        run.batch(10, at(tenth / 10))
    shown = [run.after(1).left for _ in range(60)]
    assert shown[9] == pytest.approx(50)
    assert all(abs(after - before) <= 2.1 for before, after in pairwise(shown))
    assert shown[-1] > 100


def test_time_left_does_not_jump_when_batches_alternate():
    run, done, shown = Run(TEN_HOURS), 0.0, []
    for batch in range(40):
        done += 0.03 if batch % 2 else 0.01
        shown.append((run.batch(3, at(done)).left, (1 - done) / 0.02 * 3))
    # After the first few, each is within a fifth of the truth, give or take a batch.
    assert all(left == pytest.approx(truth, rel=0.2, abs=6) for left, truth in shown[4:-1])


def test_a_watermark_that_stands_still_has_no_time_left():
    run = Run(TEN_HOURS)
    for batch in range(5):
        shown = run.batch(2, at(0.5, rows=batch))
    assert (shown.done, shown.left) == (0.5, None)


def test_an_end_that_moves_on_counts_by_the_distance_to_it():
    run = Run((NOON, NOON + 10 * HOUR))
    for batch in range(1, 5):
        run.span = (NOON, NOON + 10 * HOUR + batch * HOUR)
        shown = run.batch(10, report(batch, 0, NOON + batch * 2 * HOUR))
    assert shown.left == pytest.approx(60)


def test_a_live_run_tells_how_far_behind_it_is_and_not_100_percent():
    run = Run((NOON, NOON + DAY))
    assert run.batch(1, report(10, 0, NOON + DAY // 2)).behind is None
    run.span = (NOON, NOON + DAY + 5_000)
    shown = run.batch(1, report(10, 0, NOON + DAY, newest=NOON + DAY + 4_200))
    assert (shown.done, shown.left, shown.behind) == (None, None, 5_000)
    # A few minutes behind is still live; half a day is a replay again.
    run.span = (NOON, NOON + DAY + 300_000)
    assert run.batch(1, report(10, 0, NOON + DAY)).behind == 300_000
    run.span = (NOON, NOON + 2 * DAY)
    assert run.batch(1, report(10, 0, NOON + DAY)).done == 0.5


def test_a_run_that_began_at_the_newest_record_is_live_at_once():
    run = Run((NOON, NOON))
    assert run.batch(1, report(0, 0, NONE)).done == 0
    run.span = (NOON, NOON + 10_000)
    assert run.batch(1, report(5, 0, NOON + 6_000)).behind == 4_000


def test_without_a_range_it_is_how_far_behind_the_newest_timestamp():
    run = Run()
    assert run.batch(1, report(5, 0, NONE)).behind is None
    assert run.batch(1, report(5, 0, NOON, newest=NOON + 4_200)).behind == 4_200
    assert run.batch(1, report(5, 0, END_OF_TIME)).behind is None


def test_a_range_gone_through_without_a_drain_is_full_at_the_end():
    run = Run(TEN_HOURS)
    run.batch(1, at(0.5))
    assert run.batch(1, at(1.0, newest=NOON + 10 * HOUR + 70)).behind == 70
    assert run.after(0, final=True).done == 1.0


def test_buffered_and_drift_are_those_of_both_inputs():
    shown = Run().batch(1, report(9, 9, NOON, NOON - 12_000, buffered=100))
    assert (shown.buffered, shown.drift) == (110, 12_000)
    assert Run().batch(1, report(9, 9, NOON, NONE)).drift is None
    assert Run().batch(1, report(9, 9, NOON, END_OF_TIME)).drift is None
    assert Run().after(1).drift is None
