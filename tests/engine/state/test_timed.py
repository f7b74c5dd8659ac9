"""Flink's cases of time-to-live (``TtlStateTestBase``), for every kind of state, with a time-to-live of 100 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from cojoin.engine.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tests.engine.state.stores import HandStore
from tests.engine.state.test_aggregating import Mean

if TYPE_CHECKING:
    from collections.abc import Callable

NEVER = StateTtlConfig("100 ms")
EVENT_TIME = StateTtlConfig("100 ms", time_domain="event_time")
RELAXED = StateTtlConfig("100 ms", state_visibility="return_expired_if_not_cleaned_up")
RENEWED = StateTtlConfig("100 ms", update_type="on_read_and_write")
RENEWED_RELAXED = StateTtlConfig(
    "100 ms", update_type="on_read_and_write", state_visibility="return_expired_if_not_cleaned_up"
)


class Kind(NamedTuple):
    """One way to hold a number: how it is declared, set and read."""

    declare: Callable[[StateTtlConfig], Any]
    set: Callable[[Any, int], None]
    get: Callable[[Any], Any]
    empty: Any
    shown: Callable[[int], Any]


def replace(state: Any, number: int) -> None:
    state.clear()
    state.add(number)


KINDS = {
    "value": Kind(
        lambda ttl: ValueStateDescriptor("x", "long", ttl=ttl),
        lambda state, number: state.update(number),
        lambda state: state.value(),
        None,
        lambda number: number,
    ),
    "list": Kind(
        lambda ttl: ListStateDescriptor("x", "array<long>", ttl=ttl),
        lambda state, number: state.update([[number], [number]]),
        lambda state: state.get(),
        [],
        lambda number: [[number], [number]],
    ),
    "map": Kind(
        lambda ttl: MapStateDescriptor("x", "string", "long", ttl=ttl),
        lambda state, number: state.put_all({"a": number, "b": number}),
        lambda state: state.items(),
        [],
        lambda number: [("a", number), ("b", number)],
    ),
    "map entry": Kind(
        lambda ttl: MapStateDescriptor("x", "string", "array<long>", ttl=ttl),
        lambda state, number: state.put("a", [number]),
        lambda state: state["a"],
        None,
        lambda number: [number],
    ),
    "reducing": Kind(
        lambda ttl: ReducingStateDescriptor("x", lambda a, b: a + b, "long", ttl=ttl),
        replace,
        lambda state: state.get(),
        None,
        lambda number: number,
    ),
    "aggregating": Kind(
        lambda ttl: AggregatingStateDescriptor("x", Mean(), "total double, count long", ttl=ttl),
        replace,
        lambda state: state.get(),
        None,
        float,
    ),
}


class Script:
    """Writes and reads one state; each in a batch of its own, after a restart where it is said so."""

    def __init__(self, kind: Kind, ttl: StateTtlConfig, *, restarts: bool = True) -> None:
        self._kind, self._restarts = kind, restarts
        self.hand = HandStore(kind.declare(ttl))

    def at(self, time: int) -> Script:
        # A snapshot cleans, so it is taken before the clock moves: the read itself must find what has expired.
        if self._restarts:
            self.hand.restore()
        self.hand.clock.time = time
        return self

    def set(self, number: int, key: str = "a") -> Script:
        with self.hand.key(key) as state:
            self._kind.set(state, number)
        return self

    def gives(self, number: int | None, key: str = "a") -> Script:
        with self.hand.key(key) as state:
            expected = self._kind.empty if number is None else self._kind.shown(number)
            assert self._kind.get(state) == expected
        return self

    def rows(self) -> int:
        return int(self.hand.stored().num_rows)


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("ttl", [NEVER, EVENT_TIME], ids=["processing time", "event time"])
def test_a_write_renews_and_a_read_does_not(kind: Kind, ttl: StateTtlConfig) -> None:
    script = (
        Script(kind, ttl).at(0).set(1).at(20).gives(1).at(50).set(2).at(120).gives(2).at(170).set(3).at(220).gives(3)
    )
    assert script.rows() == 1
    script.at(300).gives(None)
    assert script.rows() == 0


def test_it_expires_when_its_time_has_come_and_not_before(kind: Kind) -> None:
    Script(kind, NEVER).at(0).set(1).at(99).gives(1).at(100).gives(None)


def test_an_expired_value_may_be_given_once_more(kind: Kind) -> None:
    script = Script(kind, RELAXED).at(0).set(1).at(120).gives(1)
    assert script.rows() == 0
    script.gives(None)


def test_a_read_may_renew(kind: Kind) -> None:
    Script(kind, RENEWED).at(0).set(1).at(90).gives(1).at(180).gives(1).at(280).gives(None)


def test_a_read_of_what_has_expired_does_not_renew(kind: Kind) -> None:
    Script(kind, RENEWED_RELAXED).at(0).set(1).at(50).gives(1).at(170).gives(1).gives(None)


def test_each_key_expires_by_itself(kind: Kind) -> None:
    script = Script(kind, NEVER).at(0).set(1, "id2").at(50).set(1, "id1").set(2, "id2")
    script.at(120).gives(1, "id1").gives(2, "id2").at(170).set(3, "id2")
    script.at(230).gives(None, "id1").gives(3, "id2").at(300).gives(None, "id1").gives(None, "id2")


@pytest.mark.parametrize("ttl", [NEVER, RELAXED], ids=["never", "relaxed"])
def test_a_snapshot_removes_what_has_expired_for_good(kind: Kind, ttl: StateTtlConfig) -> None:
    """Moving the clock back does not bring it back."""
    script = Script(kind, ttl, restarts=False).set(1, "id2").at(50).set(1, "id1").set(2, "id2").at(170).set(3, "id2")
    script.at(230).hand.restore()
    script.at(170).gives(None, "id1").gives(3, "id2")
    script.at(300).hand.restore()
    assert script.rows() == 0
    script.at(230).gives(None, "id1").gives(None, "id2")


def test_a_snapshot_has_the_times_of_its_own_moment(kind: Kind) -> None:
    script = Script(kind, NEVER, restarts=False).set(1, "k1").at(50).set(2, "k1").at(100).set(1, "k2")
    snapshot = script.hand.snapshot()
    script.at(170).set(3, "k1").set(2, "k2").hand.restore(snapshot)
    script.at(180).gives(None, "k1").gives(1, "k2")


def test_keys_that_nobody_touches_are_cleaned_up(kind: Kind) -> None:
    script = Script(kind, NEVER, restarts=False)
    for number in range(20):
        script.set(number, f"key {number}")
    script.at(50).set(7, "late")
    script.at(120).hand.store.tables()
    assert script.rows() == 1


def test_it_expires_within_a_batch_too(kind: Kind) -> None:
    """What is at work in Python is no cache that knows no times (FLINK-24105)."""
    hand = HandStore(kind.declare(NEVER))
    with hand.key() as state:
        kind.set(state, 1)
        hand.clock.time = 150
        assert kind.get(state) == kind.empty


def test_the_last_access_is_what_the_clock_says_it_is(kind: Kind) -> None:
    script = Script(kind, EVENT_TIME).at(-(1 << 63))
    script.hand.clock.stamp = 40
    script.set(1)
    script.at(139).gives(1).at(140).gives(None)


def test_the_end_of_time_is_no_overflow(kind: Kind) -> None:
    end = (1 << 63) - 1
    script = Script(kind, EVENT_TIME).at(end - 50).set(1).at(end).gives(1)
    assert script.hand.store.tables()["state:x"].num_rows == 1


def test_updating_with_none_clears() -> None:
    hand = HandStore(ValueStateDescriptor("x", "string", ttl=RELAXED))
    with hand.key() as state:
        state.update("v")
        assert state.value() == "v"
        state.update(None)
        assert state.value() is None


def test_each_element_of_a_list_expires_by_itself() -> None:
    for ttl, given in ((NEVER, [2, 3]), (RELAXED, [1, 2, 3])):
        hand = HandStore(ListStateDescriptor("x", "long", ttl=ttl))
        with hand.key() as state:
            for time in (0, 50, 90):
                hand.clock.time = time
                state.add(len(state.get()) + 1)
        hand.clock.time = 120
        with hand.key() as state:
            assert state.get() == given
            assert list(state) == [2, 3]
        assert [row["@processing_time"] for row in hand.stored()["@value"].to_pylist()[0]] == [50, 90]


def test_each_entry_of_a_map_expires_by_itself() -> None:
    hand = HandStore(MapStateDescriptor("x", "string", "long", ttl=RENEWED))
    with hand.key() as state:
        for time, key in ((0, "a"), (50, "b"), (90, "c")):
            hand.clock.time = time
            state[key] = time
        hand.clock.time = 120
        assert "a" not in state
        assert state["b"] == 50
        hand.clock.time = 200
        assert not state.is_empty()
        assert (state.keys(), state.values()) == (["b"], [50])
        hand.clock.time = 300
        assert state.is_empty()
    assert hand.stored().num_rows == 1
    with hand.key() as state:
        assert list(state) == []
    assert hand.stored().num_rows == 0


def test_whether_a_map_has_a_key_is_a_read() -> None:
    """As in Flink: so it is the last time that an expired entry is seen."""
    hand = HandStore(MapStateDescriptor("x", "string", "long", ttl=RELAXED))
    with hand.key() as state:
        state["a"] = 1
        hand.clock.time = 100
        assert not state.is_empty()
        assert "a" in state
        assert "a" not in state
        state["a"] = 2
        del state["a"]
        assert state.is_empty()


def test_adding_to_an_expired_value_begins_anew_unless_it_may_still_be_seen() -> None:
    for ttl, total in ((NEVER, 2), (RELAXED, 3)):
        hand = HandStore(ReducingStateDescriptor("x", lambda a, b: a + b, "long", ttl=ttl))
        with hand.key() as state:
            state.add(1)
            hand.clock.time = 100
            state.add(2)
            hand.clock.time = 199
            assert state.get() == total


def test_values_are_given_as_copies() -> None:
    hand = HandStore(ValueStateDescriptor("x", "array<long>", ttl=NEVER))
    with hand.key() as state:
        state.update([1])
        state.value().append(2)
        assert state.value() == [1]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("value", 5),
        ("list", [[5], [5]]),
        ("map", {"a": 5, "b": 5}),
        ("reducing", 5),
        ("aggregating", (5.0, 1)),
    ],
)
def test_a_state_is_shown_without_its_times(name: str, shown: Any) -> None:
    script = Script(KINDS[name], RELAXED).at(0).set(5)
    assert script.hand.store.state_of("a") == {"x": shown}
    script.hand.clock.time = 100
    assert script.hand.store.state_of("a") == {"x": shown}  # a read would still give it
    assert Script(KINDS[name], NEVER).at(0).set(5).at(100).hand.store.state_of("a") == {}
