"""What is measured of a run: how far, how fast, and how far behind."""

from __future__ import annotations

import pytest

from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.spark.progress.figures import Figures, Goal
from tests.spark.progress.runs import DAY, HOUR, NOON, Run, report

TEN_HOURS = (NOON, NOON + 10 * HOUR)


def at(done: float, rows: int = 1_000, **more: int):
    """A report that far into 10 hours from noon."""
    return report(rows, 0, NOON + int(10 * HOUR * done), **more)


def part(shown: Figures) -> float | None:
    """Return how much of the goal is done, 0 to 1."""
    return None if shown.goal is None else shown.goal.done / shown.goal.total


def test_rows_a_second_are_those_of_the_last_batches_and_at_the_end_of_the_whole_wait():
    run = Run()
    assert run.batch(2, report(900, 100)).rate == 500
    assert run.after(28).rate == 500
    assert run.after(72).rate is None
    assert run.after(0, final=True).rate == pytest.approx(1_000 / 102)


def test_rows_a_second_follow_a_change_of_pace_within_a_few_batches():
    run = Run()
    for batch in range(1, 6):
        assert run.batch(2, report(batch * 200)).rate == 100
    for batch in range(1, 6):
        shown = run.batch(2, report(1_000 + batch * 20))
    assert shown.rate == 10
    assert run.after(0, final=True).rate == 55


def test_the_time_a_query_takes_to_start_counts_only_until_the_second_batch():
    run = Run()
    assert run.batch(40, report(4_000)).rate == 100
    assert run.batch(4, report(8_000)).rate == 1_000
    assert run.batch(6, report(12_000)).rate == 800


def test_batches_that_take_longer_than_half_a_minute_have_a_rate_all_the_while():
    run = Run()
    for batch in range(1, 5):
        assert run.batch(50, report(batch * 5_000)).rate == 100
        assert run.after(45).rate == 100
        run.now -= 45


def test_a_wait_without_rows_has_no_rate():
    run = Run(last=report(5_000))
    assert run.batch(2, report(5_000)).rate is None
    assert run.after(1, final=True).rate is None


def test_a_restart_counts_only_its_own_rows():
    run = Run(last=report(5_000, 1_000))
    assert run.after(1).rate is None
    shown = run.batch(1, report(5_100, 1_100))
    assert (shown.rate, shown.rows) == (100, 200)


def test_the_bar_goes_by_the_watermark_and_a_restart_begins_where_it_was():
    run = Run(TEN_HOURS)
    assert run.after(1).goal is None
    assert run.batch(1, report(10, 0, NONE)).goal == Goal("time", 0, 10 * HOUR)
    assert part(run.batch(1, at(-0.5))) == 0.0
    assert part(run.batch(1, at(0.25))) == 0.25
    assert part(run.batch(1, report(10, 0, END_OF_TIME))) == 1.0
    assert part(Run(TEN_HOURS, last=at(0.4)).after(1)) == pytest.approx(0.4)


def test_a_total_is_a_goal_until_a_range_is_known():
    run = Run(total=2_000)
    assert run.batch(1, report(400)).goal == Goal("rows", 400, 2_000)
    assert run.batch(1, report(2_100)).goal == Goal("rows", 2_000, 2_000)
    run.span = TEN_HOURS
    assert run.batch(1, at(0.3)).goal == Goal("time", 3 * HOUR, 10 * HOUR)


def test_an_end_that_moves_on_moves_the_goal():
    run = Run((NOON, NOON + 10 * HOUR))
    assert run.batch(10, report(1, 0, NOON + 5 * HOUR)).goal == Goal("time", 5 * HOUR, 10 * HOUR)
    run.span = (NOON, NOON + 20 * HOUR)
    assert run.after(1).goal == Goal("time", 5 * HOUR, 20 * HOUR)


def test_a_live_run_tells_how_far_behind_it_is_and_not_100_percent():
    run = Run((NOON, NOON + DAY))
    assert run.batch(1, report(10, 0, NOON + DAY // 2)).behind is None
    run.span = (NOON, NOON + DAY + 5_000)
    shown = run.batch(1, report(10, 0, NOON + DAY, newest=NOON + DAY + 4_200))
    assert (shown.goal, shown.behind) == (None, 5_000)
    # A few minutes behind is still live; half a day is a replay again.
    run.span = (NOON, NOON + DAY + 300_000)
    assert run.batch(1, report(10, 0, NOON + DAY)).behind == 300_000
    run.span = (NOON, NOON + 2 * DAY)
    shown = run.batch(1, report(10, 0, NOON + DAY))
    assert (part(shown), shown.behind) == (0.5, None)


def test_a_run_that_began_at_the_newest_record_is_live_at_once():
    run = Run((NOON, NOON))
    assert part(run.batch(1, report(0, 0, NONE))) == 0
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
    shown = run.after(0, final=True)
    assert (part(shown), shown.behind) == (1.0, None)
