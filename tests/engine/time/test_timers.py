from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from cojoin.engine.time.timers import MAX_STALLED_TIMERS, Timers, TimerService
from cojoin.engine.values.keys import KeyContext
from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Callable


def timers(*timestamps: int) -> Timers:
    key_context = KeyContext()
    key_context.code = 0
    made = Timers(key_context, "F")
    for timestamp in timestamps:
        made.register(timestamp)
    return made


def sweep(
    swept: Timers, now: int, on_timer: Callable[[int], None] | None = None, last_event: int | None = None
) -> list[int]:
    """Fire the timers up to a time; give their timestamps in the order in which they fired."""
    fired: list[int] = []
    code = swept._key_context.code
    swept.of_key(code)
    swept.begin_sweep(now)
    swept.limit(last_event)
    while (timestamp := swept.pop(code)) is not None:
        fired.append(timestamp)
        if on_timer is not None:
            on_timer(timestamp)
    swept.limit(None)
    swept.end_sweep()
    return fired


def test_timers_fire_in_the_order_of_time_up_to_the_watermark() -> None:
    assert sweep(timers(5, 1, 3, 7), 5) == [1, 3, 5]


def test_one_timestamp_is_one_timer() -> None:
    assert sweep(timers(5, 5, np.int64(5)), 5) == [5]


def test_a_timer_that_is_deleted_and_set_again_fires_once() -> None:
    made = timers(5)
    made.delete(5)
    made.register(5)
    assert sweep(made, 9) == [5]


def test_deleting_what_is_not_there_does_nothing() -> None:
    made = timers()
    made.delete(5)
    made.register(6)
    made.delete(5)
    assert sweep(made, 9) == [6]


def test_a_deleted_timer_leaves_nothing_behind() -> None:
    made = timers(5)
    made.delete(5)
    assert made.dump()[1].to_pylist() == []


def test_a_timer_set_for_the_past_by_a_timer_fires_in_the_same_sweep() -> None:
    made = timers(5, 6)
    assert sweep(made, 6, lambda timestamp: made.register(1) if timestamp == 5 else None) == [5, 1, 6]


def test_a_timer_may_delete_and_set_those_to_come() -> None:
    made = timers(1, 2, 3)

    def on_timer(timestamp: int) -> None:
        made.delete(2)
        if timestamp == 1:
            made.register(4)
            made.register(9)

    assert sweep(made, 5, on_timer) == [1, 3, 4]
    assert made.dump()[1].to_pylist() == [9]


def test_what_is_dumped_is_loaded() -> None:
    made = timers(5, -1)
    codes, timestamps = made.dump()
    again = timers()
    again.load(codes.tolist(), timestamps.to_pylist())
    assert sweep(again, 9) == [-1, 5]


def test_a_chain_that_goes_forward_ends_by_itself_however_long_it_is() -> None:
    made = timers(0)
    last = 2 * MAX_STALLED_TIMERS
    assert sweep(made, last, lambda timestamp: made.register(timestamp + 1)) == list(range(last + 1))


@pytest.mark.parametrize("back", [0, 1, 7])
def test_ten_thousand_timers_that_do_not_go_forward_are_an_endless_loop(back: int) -> None:
    made = timers(9)

    def on_timer(timestamp: int) -> None:
        made.register(timestamp - back if timestamp == 9 else timestamp + 1)

    with pytest.raises(FunctionError, match=f"F: on_timer set 10,000 timers at or below .*, the last at {9 - back} in"):
        sweep(made, 100, on_timer)


def test_a_chain_may_look_back_at_every_step() -> None:
    """Each timer sets itself again once, and then the next: finite, so nothing to stop."""
    made, again = timers(0), set[int]()

    def on_timer(timestamp: int) -> None:
        made.register(timestamp + (timestamp in again))
        again.add(timestamp)

    fired = sweep(made, MAX_STALLED_TIMERS + 5, on_timer)
    assert fired == sorted(2 * list(range(MAX_STALLED_TIMERS + 6)))


def test_in_a_drain_timers_beyond_the_largest_event_time_are_counted_once_each() -> None:
    made = timers(1, 2)

    def on_timer(timestamp: int) -> None:
        if timestamp < 5:
            made.register(5)
            made.register(6)

    assert sweep(made, 1 << 62, on_timer, last_event=5) == [1, 2, 5]
    assert made.not_fired == 1
    made.delete(6)
    assert made.not_fired == 0


def test_in_a_drain_a_row_may_set_the_timer_that_was_refused_to_a_timer() -> None:
    made = timers(1)
    sweep(made, 3, lambda timestamp: made.register(9), last_event=5)
    made.register(9)
    assert made.not_fired == 0
    assert sweep(made, 1 << 62, last_event=5) == [9]


def test_in_a_drain_a_timer_that_sets_itself_for_ever_ends() -> None:
    made = timers(1)
    assert sweep(made, 1 << 62, lambda timestamp: made.register(timestamp + 5), last_event=12) == [1, 6, 11]
    assert made.not_fired == 1


@pytest.mark.parametrize("timestamp", [1.0, "5", None, True, 1 << 63])
def test_a_timer_needs_whole_milliseconds_of_64_bits(timestamp: Any) -> None:
    made = timers()
    said = "F: a timer needs a whole number of epoch milliseconds, got"
    with pytest.raises(FunctionError, match=said):  # noqa: PT012 - an int is checked when it is stored
        made.register(timestamp)
        made.dump()
    with pytest.raises(FunctionError, match="F: a timer needs"):
        made.delete(timestamp)


def test_the_service_gives_the_timers_and_both_times() -> None:
    made = timers()
    processing = timers()
    service = TimerService(made, processing)
    for register, delete in (
        (service.register_event_time_timer, service.delete_event_time_timer),
        (service.register_processing_time_timer, service.delete_processing_time_timer),
    ):
        register(5)
        register(6)
        delete(5)
    assert (service.current_watermark(), service.current_processing_time()) == (-(1 << 63), 0)
    assert (service.current_watermark1(), service.current_watermark2()) == (-(1 << 63), -(1 << 63))
    assert (sweep(made, 9), sweep(processing, 9)) == ([6], [6])
    service.refusal = "F: no clock"
    with pytest.raises(FunctionError, match="F: no clock"):
        service.register_processing_time_timer(7)


def test_the_earliest_timer_of_each_key_is_found_by_time() -> None:
    made = timers(5, 9)
    made._key_context.code = 3
    made.register(4)
    made._key_context.code = 7
    made.register(8)
    assert sorted(made.due(5)) == [(4, 3), (5, 0)]
    made.begin_sweep(5)
    assert (made.pop(3), made.next_due(3), made.next_due(0)) == (4, None, 5)


class TimersAreASet(RuleBasedStateMachine):
    """Whatever is set, deleted and swept, the timers are a set that fires from its least on."""

    def __init__(self) -> None:
        super().__init__()
        self.timers, self.model = timers(), set[int]()

    @rule(timestamp=st.integers(0, 9))
    def register(self, timestamp: int) -> None:
        self.timers.register(timestamp)
        self.model.add(timestamp)

    @rule(timestamp=st.integers(0, 9))
    def delete(self, timestamp: int) -> None:
        self.timers.delete(timestamp)
        self.model.discard(timestamp)

    @precondition(lambda self: self.model)
    @rule(watermark=st.integers(0, 9), chosen=st.integers(0, 9))
    def sweep(self, watermark: int, chosen: int) -> None:
        set_once = [chosen]

        def on_timer(timestamp: int) -> None:
            if set_once:
                self.timers.register(set_once.pop())

        fired, expected = sweep(self.timers, watermark, on_timer), []
        while self.model and min(self.model) <= watermark:
            expected.append(min(self.model))
            self.model.remove(expected[-1])
            if len(expected) == 1:
                self.model.add(chosen)
        assert fired == expected

    @rule()
    def restart(self) -> None:
        codes, timestamps = self.timers.dump()
        assert timestamps.to_pylist() == sorted(self.model)
        self.timers = timers()
        self.timers.load(codes.tolist(), timestamps.to_pylist())


test_timers_are_a_set = TimersAreASet.TestCase
