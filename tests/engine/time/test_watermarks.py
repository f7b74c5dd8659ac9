"""The merged watermark is the minimum of the active channels, and only advances."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.display import format_time
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.time.watermarks import END_OF_TIME, NONE, Idleness, IdlenessTimer, WatermarkMerge
from cojoin.errors import ConfigurationError


def merged(*watermarks: int, **options: Any) -> WatermarkMerge:
    merge = WatermarkMerge(**options)
    for number, watermark in enumerate(watermarks):
        merge.register(str(number))
        merge.update(str(number), watermark)
    return merge


def test_time_is_the_minimum_and_held_by_the_channel_that_has_come_least_far() -> None:
    merge = merged(100, 50, 50)
    assert (merge.current(), merge.holding()) == (50, "1")
    assert merge.watermarks() == {"0": 100, "1": 50, "2": 50}


def test_a_channel_that_has_not_spoken_holds_time() -> None:
    merge = merged(100)
    merge.register("new")
    assert (merge.current(), merge.holding()) == (NONE, "new")


def test_no_channel_is_no_time() -> None:
    merge = WatermarkMerge()
    assert (merge.current(), merge.status(), merge.holding()) == (NONE, "active", None)


def test_when_the_last_channel_leaves_the_whole_is_idle_until_another_comes() -> None:
    merge = merged(100, 50)
    merge.remove("0")
    assert (merge.current(), merge.status()) == (50, "active")
    merge.remove("1")
    merge.remove("1")
    restored = WatermarkMerge()
    restored.restore(merge.snapshot())
    for each in (merge, restored):
        assert (each.current(), each.status(), each.holding()) == (50, "idle", None)
        each.register("2")
        assert (each.current(), each.status(), each.holding()) == (50, "active", "2")


def test_a_snapshot_of_release_0_5_0_has_not_lost_its_last_channel() -> None:
    merge = WatermarkMerge()
    merge.restore({"current": 50, "channels": {}})
    assert (merge.current(), merge.status()) == (50, "active")


def test_a_lower_watermark_changes_nothing() -> None:
    merge = merged(100, 100)
    merge.update("0", 5)
    assert merge.current() == 100


def test_a_slow_channel_that_goes_idle_or_leaves_lets_time_go_on() -> None:
    merge = merged(100, 50, 70)
    merge.set_status("1", "idle")
    assert (merge.current(), merge.status()) == (70, "active")
    merge.remove("2")
    assert merge.current() == 100
    merge.remove("unknown")


@pytest.mark.parametrize(("all_idle", "expected"), [("hold", 50), ("max", 100)])
@pytest.mark.parametrize("order", ["01", "10"])
def test_when_all_are_idle_time_holds_or_goes_to_the_largest_in_either_order(
    all_idle: Any, expected: int, order: str
) -> None:
    merge = merged(100, 50, all_idle=all_idle)
    merge.current()
    # With "hold" the order may matter: what the slower one let pass has passed.
    first, second = order
    merge.set_status(first, "idle")
    reached = merge.current()
    merge.set_status(second, "idle")
    assert merge.status() == "idle"
    assert merge.current() == max(reached, expected)


def test_a_finished_channel_is_not_an_idle_one_at_infinity() -> None:
    """FLINK-38477: there the end of one input let the all-idle jump go to the end of time."""
    merge = merged(100, 50, all_idle="max")
    merge.set_status("0", "finished")
    merge.set_status("1", "idle")
    assert (merge.current(), merge.status()) == (50, "idle")
    merge.set_status("1", "finished")
    assert (merge.current(), merge.status()) == (END_OF_TIME, "finished")


def test_a_returning_channel_holds_time_until_it_has_caught_up() -> None:
    merge = merged(100, 50)
    merge.set_status("1", "idle")
    assert merge.current() == 100
    merge.update("1", 60)
    merge.update("0", 200)
    assert (merge.status_of("1"), merge.current()) == ("active", 100)
    merge.update("1", 150)
    assert merge.current() == 150


def test_or_it_is_left_out_until_then() -> None:
    merge = merged(100, 50, returning="skip")
    merge.set_status("1", "idle")
    assert merge.current() == 100
    merge.update("1", 500)
    assert merge.status_of("1") == "idle"
    merge.set_status("1", "active")
    merge.update("1", 60)
    merge.update("0", 200)
    assert (merge.current(), merge.holding()) == (200, "0")
    merge.update("1", 210)
    merge.update("0", 300)
    assert merge.current() == 210


STEPS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(-5, 30) | st.sampled_from(["active", "idle", "finished"]),
    )
)


@given(STEPS, st.sampled_from(["hold", "max"]), st.sampled_from(["hold", "skip"]), st.data())
def test_time_never_goes_back_and_survives_a_restart(
    steps: list[tuple[str, Any]], all_idle: Any, returning: Any, data: st.DataObject
) -> None:
    merge, before = WatermarkMerge(all_idle=all_idle, returning=returning), NONE
    for name, step in steps:
        merge.set_status(name, step) if isinstance(step, str) else merge.update(name, step)
        assert merge.current() >= before
        before = merge.current()
        if data.draw(st.booleans()):
            snapshot = json.loads(json.dumps(merge.snapshot()))
            merge = WatermarkMerge(all_idle=all_idle, returning=returning)
            merge.restore(snapshot)
            assert merge.current() == before
            assert merge.snapshot() == snapshot


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=12), st.randoms())
def test_the_order_in_which_active_channels_speak_within_a_batch_changes_nothing(
    updates: list[tuple[str, int]], random: Any
) -> None:
    one, two = WatermarkMerge(), WatermarkMerge()
    for name, watermark in updates:
        one.update(name, watermark)
    for name, watermark in random.sample(updates, len(updates)):
        two.update(name, watermark)
    assert one.snapshot() == two.snapshot()


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


def test_silence_counts_from_the_first_look_that_finds_it() -> None:
    timer = IdlenessTimer(10)
    timer.activity()
    assert [timer.is_idle(now) for now in (1, 6, 11, 16, 17)] == [False, False, False, False, True]
    timer.activity()
    assert [timer.is_idle(now) for now in (18, 19, 29, 30)] == [False, False, False, True]


def test_silence_survives_a_restart_and_a_pause_forgets_it() -> None:
    timer, other = IdlenessTimer(10), IdlenessTimer(10)
    timer.is_idle(0)
    other.restore(timer.snapshot())
    assert other.is_idle(11)
    other.restart()
    assert not other.is_idle(12)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout_ms": 0}, "idle timeout: expected milliseconds above zero, got 0"),
        ({"timeout_ms": "1 s"}, "idle timeout: expected milliseconds above zero, got '1 s'"),
        ({"timeout_ms": 1, "returning": "hld"}, "returning: expected 'hold' or 'skip', got 'hld'; did you mean 'hold'"),
        ({"timeout_ms": 1, "even_if_silent": 1}, "even_if_silent: expected True or False, got 1"),
    ],
)
def test_idleness_made_by_hand_is_checked_as_well(options: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Idleness(**options)
    with pytest.raises(ConfigurationError, match=r"idleness: expected an Idleness, got 5; write .with_idleness"):
        WatermarkStrategy(idleness=5)  # type: ignore[arg-type]
