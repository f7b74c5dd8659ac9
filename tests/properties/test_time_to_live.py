"""A state with a time-to-live is a dict with times, whatever is done to it, and restarts change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.state import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tests.engine.state.stores import HandStore

if TYPE_CHECKING:
    from collections.abc import Callable

TTL = 10
CONFIGS = [
    StateTtlConfig("10 ms", update, visibility, domain)  # type: ignore[arg-type]
    for update in ("on_create_and_write", "on_read_and_write")
    for visibility, domain in (
        ("never_return_expired", "processing_time"),
        ("never_return_expired", "event_time"),
        ("return_expired_if_not_cleaned_up", "processing_time"),
    )
]


class Total(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return value + accumulator

    def get_result(self, accumulator: Any) -> Any:
        return -accumulator


class Model:
    """What each (key, part) holds and when it was last accessed, in the order of insertion: nothing but a dict."""

    def __init__(self, config: StateTtlConfig) -> None:
        self.renews = config.update_type == "on_read_and_write"
        self.returns = config.state_visibility == "return_expired_if_not_cleaned_up"
        self.held: dict[tuple[str, Any], tuple[Any, int]] = {}
        self.added = 0

    def write(self, place: tuple[str, Any], value: Any, now: int) -> None:
        self.held[place] = (value, now)

    def add(self, place: tuple[str, Any], value: Any, now: int) -> None:
        before, accessed = self.held.get(place, (None, 0))
        goes_on = before is not None and (now < accessed + TTL or self.returns)
        self.write(place, before + value if goes_on else value, now)

    def append(self, key: str, value: Any, now: int) -> None:
        self.added += 1
        self.write((key, self.added), value, now)

    def read(self, key: str, now: int, part: Any = ...) -> list[tuple[Any, Any]]:
        found = []
        for place in [each for each in self.held if each[0] == key and part in {..., each[1]}]:
            value, accessed = self.held[place]
            if now >= accessed + TTL:
                del self.held[place]
            elif self.renews:
                self.held[place] = (value, now)
            if now < accessed + TTL or self.returns:
                found.append((place[1], value))
        return found

    def clear(self, key: str) -> None:
        self.held = {place: held for place, held in self.held.items() if place[0] != key}

    def clean(self, now: int) -> None:
        self.held = {place: held for place, held in self.held.items() if now < held[1] + TTL}


Step = tuple[str, str, int, Any]


def one(found: list[tuple[Any, Any]]) -> Any:
    return found[0][1] if found else None


def value_step(step: Step, state: Any, model: Model) -> None:
    what, key, now, number = step
    if what == "write":
        state.update(number)
        model.write((key, None), number, now)
    else:
        assert state.value() == one(model.read(key, now))


def gathering_step(sign: int) -> Callable[[Step, Any, Model], None]:
    def run(step: Step, state: Any, model: Model) -> None:
        what, key, now, number = step
        if what == "write":
            state.add(number)
            model.add((key, None), number, now)
        else:
            expected = one(model.read(key, now))
            assert state.get() == (None if expected is None else sign * expected)

    return run


def list_step(step: Step, state: Any, model: Model) -> None:
    what, key, now, number = step
    if what == "write" and number % 4:
        state.add(number)
        model.append(key, number, now)
    elif what == "write":
        state.update([number, -number])
        model.clear(key)
        model.append(key, number, now)
        model.append(key, -number, now)
    else:
        assert state.get() == [value for _, value in model.read(key, now)]


def map_step(step: Step, state: Any, model: Model) -> None:
    what, key, now, number = step
    part = number % 3
    if what == "write" and number % 4:
        state[part] = number
        model.write((key, part), number, now)
    elif what == "write":
        del state[part]
        model.held.pop((key, part), None)
    elif number % 4 == 0:
        assert state[part] == one(model.read(key, now, part))
    elif number % 4 == 1:
        assert (part in state) == bool(model.read(key, now, part))
    else:
        assert state.items() == model.read(key, now)


KINDS: dict[str, tuple[Callable[[StateTtlConfig], Any], Callable[[Step, Any, Model], None]]] = {
    "value": (lambda ttl: ValueStateDescriptor("x", "long", ttl=ttl), value_step),
    "list": (lambda ttl: ListStateDescriptor("x", "long", ttl=ttl), list_step),
    "map": (lambda ttl: MapStateDescriptor("x", "long", "long", ttl=ttl), map_step),
    "reducing": (lambda ttl: ReducingStateDescriptor("x", lambda a, b: a + b, "long", ttl=ttl), gathering_step(1)),
    "aggregating": (lambda ttl: AggregatingStateDescriptor("x", Total(), "long", ttl=ttl), gathering_step(-1)),
}

steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "read", "write", "read", "clear", "clean", "restart"]),
        st.sampled_from("abc"),
        st.integers(0, 7),
        st.integers(0, 11),
    ),
    max_size=25,
)


def accesses(table: pa.Table) -> list[int]:
    column = table["@value"].combine_chunks()
    if pa.types.is_map(column.type):
        column = column.items
    elif pa.types.is_list(column.type):
        column = column.flatten()
    return column.field(1).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
@given(st.sampled_from(CONFIGS), steps)
def test_oracle_a_state_is_a_dict_with_times(kind: str, config: StateTtlConfig, script: list[Step]) -> None:
    declare, run = KINDS[kind]
    hand, model = HandStore(declare(config)), Model(config)
    for what, key, later, number in script:
        hand.clock.time += later
        now = hand.clock.time
        if what == "restart":
            hand.restore()
        if what in {"restart", "clean"}:
            kept = hand.store.tables()["state:x"]
            model.clean(now)
            assert sorted(accesses(kept)) == sorted(accessed for _, accessed in model.held.values())
            assert kept.num_rows == len({held_key for held_key, _ in model.held})
            continue
        with hand.key(key) as state:
            if what == "clear":
                state.clear()
                model.clear(key)
            else:
                run((what, key, now, number), state, model)
