"""What a complete reading says of time: a table's promise, and quiet time from one reading to the next."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from cojoin.engine.time.control_rows import CLOCK_SKEW_MS, CompleteReading, Control
from cojoin.engine.time.operator_watermark import InputWatermark, OperatorWatermark
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import NONE
from tests.seeds import SEED

if TYPE_CHECKING:
    from collections.abc import Sequence

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
PLAIN = WatermarkStrategy.for_monotonous_timestamps()
DAILY = PLAIN.with_idleness("1 day")


def read(watermark: InputWatermark, moment: int, **partitions: int) -> InputWatermark:
    """Run once over what is there: the rows of some partitions, then the reading; and restart the query."""
    watermark.resume()
    if partitions:
        watermark.fold([Control(1, partitions)])
        watermark.tick(moment + 1)
    watermark.fold([Control(1, reading=CompleteReading(moment))])
    watermark.tick(moment + 2)
    return restarted(watermark)


def restarted(watermark: InputWatermark) -> InputWatermark:
    again = InputWatermark(watermark._strategy)
    again.restore(json.loads(json.dumps(watermark.snapshot())))
    return again


def promised(watermark: InputWatermark, **reading: int) -> int:
    watermark.fold([Control(1, reading=CompleteReading(**reading))])
    return watermark.current()


@pytest.mark.parametrize(
    ("committed_at", "max_ahead", "up_to"),
    [
        (0, None, 9 * MINUTE),
        (9 * MINUTE + 1, None, 9 * MINUTE + 1),
        (10 * MINUTE, HOUR, 10 * MINUTE),
        (10 * MINUTE + HOUR, HOUR, 10 * MINUTE + HOUR),
        (10 * MINUTE + HOUR + 1, HOUR, 9 * MINUTE),
    ],
)
def test_a_table_promises_the_moment_less_the_skew_but_never_less_than_its_version(
    committed_at: int, max_ahead: int | None, up_to: int
) -> None:
    reading = CompleteReading.of_table(10 * MINUTE, 3, committed_at, MINUTE, max_ahead)
    assert reading == CompleteReading(10 * MINUTE, 3, up_to)
    assert CompleteReading.read(json.loads(json.dumps(reading.as_dict()))) == reading


def test_a_promise_is_the_watermark_of_an_input_that_sent_nothing() -> None:
    watermark = InputWatermark()
    assert promised(watermark, asked_at=100, version=0, up_to=40) == 40
    assert (watermark.status(), watermark.promise) == ("active", {"asked_at": 100, "version": 0, "up_to": 40})
    watermark.observe("[]", 30)
    assert watermark.current() == 40
    assert promised(watermark, asked_at=120, version=0, up_to=35) == 40, "it never goes back"
    watermark.observe("[]", 60)
    assert restarted(watermark).current() == 59


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (WatermarkStrategy.for_bounded_out_of_orderness("10 ms"), 90),
        (WatermarkStrategy.no_watermarks(), NONE),
        (WatermarkStrategy.for_punctuated("w"), NONE),
        (WatermarkStrategy.for_clock_lag("10 ms"), NONE),
    ],
)
def test_only_a_strategy_that_follows_event_times_takes_a_promise(strategy: WatermarkStrategy, expected: int) -> None:
    watermark = InputWatermark(strategy)
    assert promised(watermark, asked_at=150, version=0, up_to=100) == expected
    assert (watermark.promise is None) == (expected == NONE)


def test_files_that_are_unread_hold_a_promise_too() -> None:
    watermark = InputWatermark()
    watermark.hold(NONE)
    assert promised(watermark, asked_at=100, version=0, up_to=40) == NONE


def test_quiet_time_is_counted_from_reading_to_reading() -> None:
    watermark = read(InputWatermark(DAILY), 0, a=0, b=0)
    watermark = read(watermark, DAY - 1, a=DAY - 5)
    assert (watermark.statuses(), watermark.current()) == ({"a": "active", "b": "active"}, 0 - 1)
    watermark = read(watermark, 2 * DAY, a=2 * DAY - 5)
    assert (watermark.statuses(), watermark.current()) == ({"a": "active", "b": "idle"}, 2 * DAY - 6)
    watermark = read(watermark, 3 * DAY - 1, b=2 * DAY + 7)
    assert watermark.statuses() == {"a": "active", "b": "active"}
    watermark = read(watermark, 3 * DAY, b=3 * DAY - 1)
    assert (watermark.statuses(), watermark.quiet_since()) == ({"a": "idle", "b": "active"}, None)


def test_a_month_without_a_run_is_one_quiet_time() -> None:
    watermark = read(InputWatermark(DAILY), 0, a=0)
    watermark = read(watermark, 30 * DAY)
    assert (watermark.status(), watermark.quiet_since()) == ("idle", 0)
    watermark = read(watermark, 31 * DAY)
    assert (watermark.status(), watermark.quiet_since()) == ("idle", 0)
    watermark = read(watermark, 60 * DAY, a=31 * DAY + 1)
    assert watermark.status() == "active", "rows of the month were read with the run, so it was not quiet"


def test_a_clock_that_went_back_begins_the_quiet_time_anew() -> None:
    watermark = read(InputWatermark(DAILY), 1_000 * DAY, a=0)
    watermark = read(watermark, 2 * DAY)
    watermark = read(watermark, 3 * DAY)
    assert watermark.status() == "active"
    watermark = read(watermark, 4 * DAY)
    assert (watermark.status(), watermark.quiet_since()) == ("idle", 3 * DAY)


def test_a_moment_of_a_run_that_was_taken_over_counts_no_quiet_time() -> None:
    """Its message may be read after those of later runs, and after rows that came later than its moment."""
    watermark = read(InputWatermark(DAILY), 10 * DAY, a=0, b=0)
    watermark = read(watermark, 9 * DAY)
    watermark = read(watermark, 10 * DAY + 1)
    assert (watermark.status(), watermark.quiet_since()) == ("active", None)


def test_a_run_without_an_end_says_nothing_of_quiet_time() -> None:
    """One that failed, or was stopped: what it read counts, and the next complete reading begins to count."""
    watermark = read(InputWatermark(DAILY), 0, a=0)
    watermark.resume()
    watermark.fold([Control(1, {"a": DAY})])
    watermark = read(restarted(watermark), 2 * DAY)
    assert watermark.status() == "active"
    assert read(watermark, 3 * DAY).status() == "idle"


def test_a_reading_that_comes_with_later_rows_is_older_than_they() -> None:
    """A crash may leave the message of a reading to the next run's first batch."""
    watermark = read(InputWatermark(DAILY), 0, a=0)
    watermark.fold([Control(1, {"a": 5}), Control(1, reading=CompleteReading(DAY))])
    assert watermark.status() == "active"
    assert read(watermark, 2 * DAY).status() == "active"


@pytest.mark.parametrize(("even_if_silent", "expected"), [(False, "active"), (True, "idle")])
def test_an_input_that_never_spoke_is_quiet_only_if_its_strategy_says_so(even_if_silent: bool, expected: str) -> None:
    watermark = InputWatermark(PLAIN.with_idleness("1 day", even_if_silent=even_if_silent))
    for day in range(2):
        watermark = read(watermark, day * DAY)
    assert watermark.status() == expected
    assert read(watermark, 2 * DAY, a=7).status() == "active"


def test_since_when_an_input_is_quiet_is_unknown_once_a_partition_had_rows_in_a_live_run() -> None:
    watermark = read(InputWatermark(PLAIN.with_idleness("10 ms")), 0, a=0, b=0)
    watermark = read(watermark, 100)
    assert (watermark.status(), watermark.quiet_since()) == ("idle", 0)
    # The query runs on: one partition gets a row, and then both are silent by the clock.
    watermark.fold([Control(1, {"b": 5})])
    for moment in (200, 211, 222):
        watermark.tick(moment)
    assert (watermark.status(), watermark.quiet_since()) == ("idle", None)


def test_since_when_an_input_is_quiet_is_known_where_it_may_be_silent_and_was_not() -> None:
    watermark = read(InputWatermark(PLAIN.with_idleness("10 ms", even_if_silent=True)), 0, a=0)
    watermark = read(watermark, 100)
    assert (watermark.status(), watermark.quiet_since()) == ("idle", 0)


def test_a_promise_is_a_sign_of_life_and_live_silence_counts_from_then_on() -> None:
    watermark = read(InputWatermark(PLAIN.with_idleness("10 ms")), 0, a=0)
    watermark = read(watermark, 100)
    assert watermark.status() == "idle"
    assert promised(watermark, asked_at=200, version=4, up_to=190) == 190
    for now, status in ((300, "active"), (301, "active"), (311, "active"), (312, "idle")):
        watermark.tick(now)
        assert watermark.status() == status, now


def test_an_operator_of_an_earlier_release_has_neither() -> None:
    snapshot = OperatorWatermark([DAILY, PLAIN]).snapshot()
    assert not {"quiet_since", "promised", "never_spoke_since"} & {*snapshot["inputs"][0]}


class SimulatedTable:
    """A table whose writers have clocks of their own, and what a run reads of it; times are true unless said."""

    def __init__(self, chance: random.Random, slowest: int, *, ordered: bool) -> None:
        self.chance, self.slowest, self.ordered = chance, slowest, ordered
        self.now = chance.randrange(DAY)
        self.commits = [self.now]
        self.made_at = [self.now]

    def passes(self, upto: int) -> None:
        """Let time pass, and perhaps writers commit meanwhile."""
        for _ in range(self.chance.choice([0, 0, 1, 3])):
            self.now += self.chance.randrange(1, upto)
            stamp = self.now - self.chance.randint(0, self.slowest)
            # In-commit timestamps are ordered whatever the writers' clocks are, times of files are not.
            self.commits.append(max(stamp, self.commits[-1] + 1) if self.ordered else stamp)
            self.made_at.append(self.now)
        self.now += self.chance.randrange(1, upto)


def expected_promise(commits: Sequence[int], asked_at: int, version: int, skew: int) -> int:
    return max(asked_at - skew, commits[version])


@pytest.mark.parametrize("slow", [False, True], ids=["clocks within the skew", "clocks two minutes slow"])
def test_a_thousand_schedules_of_commits_look_ups_and_runs(slow: bool) -> None:
    """What was promised holds within the skew; beyond it, it is the slow writers' commits alone that break it."""
    seed, broken, read_later = SEED, 0, 0
    for schedule in range(1_000):
        chance = random.Random(f"{seed} {schedule}")
        skew = chance.choice([0, MINUTE, HOUR])
        table = SimulatedTable(chance, skew + 2 * MINUTE * slow, ordered=chance.random() < 0.5)
        watermark, read_up_to, last = InputWatermark(PLAIN), 0, NONE
        for _ in range(chance.randint(1, 6)):
            table.passes(chance.choice([MINUTE, DAY]))
            asked_at = table.now
            table.passes(MINUTE)
            version = len(table.commits) - 1
            table.passes(MINUTE)
            end = len(table.commits)
            read_later += end - 1 - version
            before = watermark.promised
            for commit in range(read_up_to, end):
                if read_up_to and table.commits[commit] <= before:
                    broken += 1
                    said = f"seed {seed}, schedule {schedule}: commit {commit} breaks the promise"
                    is_slow = table.made_at[commit] - table.commits[commit] > skew
                    assert is_slow or table.commits[commit] <= max(table.commits[:commit]), said
                    assert not table.ordered or is_slow, said
            if read_up_to < end:
                watermark.fold([Control(1, {"[]": max(table.commits[read_up_to:end])})])
            is_killed, planned = chance.random() < 0.2, restarted(watermark)
            reading = CompleteReading.of_table(asked_at, version, table.commits[version], skew, None)
            if not is_killed:
                watermark.fold([Control(1, reading=reading)])
                planned.fold([Control(1, reading=reading)])
                assert planned.current() == watermark.current(), "a batch that is run again finds the same"
                assert watermark.promised == max(before, expected_promise(table.commits, asked_at, version, skew))
            assert watermark.current() >= last
            read_up_to, last, watermark = end, watermark.current(), restarted(watermark)
    assert broken if slow else True
    assert read_later > 100, "commits between look-up and run are among them"


def test_the_allowance_is_a_minute() -> None:
    assert CLOCK_SKEW_MS == MINUTE
