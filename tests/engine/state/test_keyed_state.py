"""State handles keep, combine and expire the values of the current key."""

from __future__ import annotations

import math
import struct
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from cojoin.engine.state import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueState,
    ValueStateDescriptor,
)
from cojoin.engine.state.keyed_state import TimedValueState, as_declared, create_state
from cojoin.engine.values.keys import KeyContext
from cojoin.engine.values.rows import Row
from cojoin.errors import CheckpointError, FunctionError
from tests.engine.state.stores import HandClock, HandStore

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    "use",
    [
        lambda: state(ValueStateDescriptor("x", "int"), code=-1).value(),
        lambda: state(ValueStateDescriptor("x", "int"), code=-1).update(1),
        lambda: state(ValueStateDescriptor("x", "int"), code=-1).clear(),
        lambda: state(ListStateDescriptor("x", "int"), code=-1).add(1),
        lambda: state(ListStateDescriptor("x", "int"), code=-1).get(),
        lambda: state(MapStateDescriptor("x", "int", "int"), code=-1).put(1, 1),
        lambda: state(MapStateDescriptor("x", "int", "int"), code=-1).is_empty(),
    ],
)
def test_a_state_is_refused_where_no_key_is_current(use: Any) -> None:
    with pytest.raises(FunctionError, match="F: state 'x': no key is current; use it in process_element1"):
        use()


def test_a_state_that_nobody_used_has_nothing_to_put_back() -> None:
    total = state(ValueStateDescriptor("total", "double"))
    assert total.dump() is None
    total.value()
    assert total.dump()[0] == []


def state(descriptor: Any, code: int = 0) -> Any:
    key_context = KeyContext()
    key_context.code = code
    return create_state(descriptor, key_context, "F", HandClock())


def restored(old: Any, descriptor: Any) -> Any:
    new = state(descriptor)
    new.load(old.dump)
    return new


CUSTOMER = ValueStateDescriptor("customer", "tier string, visits array<int>")


def test_a_value_is_one_for_each_key() -> None:
    value = state(ValueStateDescriptor("total", "double"))
    value.update(5)
    assert value.value() == 5.0
    value._key_context.code = 1
    assert value.value() is None


def test_a_struct_is_read_as_a_row_that_nobody_can_change() -> None:
    customer = state(CUSTOMER)
    customer.update({"tier": "gold", "visits": [1]})
    assert isinstance(customer.value(), Row)
    customer.value().visits.append(2)
    assert customer.value() == ("gold", [1])


def test_updating_with_none_clears() -> None:
    value = state(ValueStateDescriptor("total", "double"))
    value.update(5)
    value.update(None)
    assert value.dump()[0] == []


def test_a_list_keeps_its_order_and_gives_copies() -> None:
    amounts = state(ListStateDescriptor("amounts", "double"))
    amounts.add(2)
    amounts.add_all([1, None])
    amounts.get().append(9.0)
    assert list(amounts) == amounts.get() == [2.0, 1.0, None]
    amounts.update([3])
    assert restored(amounts, amounts.descriptor).get() == [3.0]
    amounts.update([])
    assert amounts.dump()[0] == []


def test_a_list_of_lists_gives_copies_of_them() -> None:
    paths = state(ListStateDescriptor("paths", "array<int>"))
    paths.add([1])
    paths.get()[0].append(2)
    assert paths.get() == [[1]]


def test_a_map_keeps_the_order_of_insertion_over_a_restart() -> None:
    counts = state(MapStateDescriptor("counts", "string", "long"))
    counts.put_all({"b": 1, "a": 2})
    counts.put("b", 3)
    counts = restored(counts, counts.descriptor)
    assert counts.items() == [("b", 3), ("a", 2)]
    assert (counts.keys(), counts.values(), list(counts)) == (["b", "a"], [3, 2], ["b", "a"])
    assert "a" in counts
    assert counts.get("z") is None


def test_a_map_is_used_like_a_dict_but_gives_none_where_there_is_nothing() -> None:
    counts = state(MapStateDescriptor("counts", "string", "long"))
    counts["a"] = 1
    assert (counts["a"], counts["z"], "a" in counts) == (1, None, True)
    del counts["z"]
    del counts["a"]
    assert counts.is_empty()


def test_a_map_without_its_last_key_leaves_nothing_behind() -> None:
    counts = state(MapStateDescriptor("counts", "string", "long"))
    assert counts.is_empty()
    counts.put("a", 1)
    counts.remove("z")
    counts.remove("a")
    assert counts.is_empty()
    assert counts.dump()[0] == []


def test_a_nested_key_of_a_map_is_found_in_whatever_form_it_is_given() -> None:
    seen = state(MapStateDescriptor("seen", "region string, path array<int>", "array<int>"))
    seen.put({"region": "eu", "path": [1]}, [7])
    seen.get(("eu", [1])).append(8)
    assert seen.contains(("eu", (1,)))
    assert restored(seen, seen.descriptor).get(("eu", [1])) == [7]
    seen.remove(("eu", [1]))
    assert seen.is_empty()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda: state(CUSTOMER).update(("gold",)),
            "F: state 'customer': expected struct<tier:string,visits:array<int>>",
        ),
        (lambda: state(ListStateDescriptor("l", "int")).add("x"), "F: state 'l': expected int, got 'x'"),
        (
            lambda: state(MapStateDescriptor("m", "string", "int")).put(None, 1),
            "F: state 'm': a map key must not be None",
        ),
        (lambda: state(MapStateDescriptor("m", "string", "int")).put(1, 1), "F: state 'm', map key: expected string"),
        (
            lambda: state(MapStateDescriptor("m", "string", "int")).put("a", "b"),
            "F: state 'm', map value: expected int",
        ),
    ],
)
def test_a_misfit_is_refused_when_it_is_set_with_the_states_name(change: Any, said: str) -> None:
    with pytest.raises(FunctionError) as caught:
        change()
    assert said in str(caught.value)


def test_what_only_arrow_refuses_is_refused_with_the_states_name() -> None:
    value = state(ValueStateDescriptor("name", "string"))
    value.update("\ud800")
    with pytest.raises(FunctionError, match="F: state 'name': an entry can't be stored as string"):
        value.dump()


TIMED = StateTtlConfig("1 day")


@pytest.mark.parametrize("ttl", [None, TIMED])
def test_a_user_key_that_can_not_be_there_is_told(ttl: Any) -> None:
    counts = state(MapStateDescriptor("counts", "string", "long", ttl=ttl))
    counts.put("a", 1)
    counts.put("none", None)
    said = "F: state 'counts', map key: expected string, got 5"
    for call in (counts.get, counts.contains, counts.remove, counts.__getitem__, counts.__delitem__):
        with pytest.raises(FunctionError, match=said):
            call(5)
    with pytest.raises(FunctionError, match=said):
        assert 5 in counts
    assert (counts.get("b"), counts.get("none"), counts.contains("b"), counts.get(None), None in counts) == (
        None,
        None,
        False,
        None,
        False,
    )
    counts.remove("b")
    counts.remove("none")
    assert counts.items() == [("a", 1)]


@pytest.mark.parametrize("ttl", [None, TIMED])
@pytest.mark.parametrize("given", ["abc", b"abc", None, 5])
def test_several_elements_are_no_single_value(ttl: Any, given: Any) -> None:
    names = state(ListStateDescriptor("names", "string", ttl=ttl))
    for call in (names.add_all, names.update):
        with pytest.raises(
            FunctionError, match=r"F: state 'names': expected a list of elements, got .*add\(...\) adds one"
        ):
            call(given)
    names.add_all(name for name in ("a", "b"))
    assert names.get() == ["a", "b"]


def test_a_method_of_a_state_can_not_be_set() -> None:
    total = state(ValueStateDescriptor("total", "double"))
    with pytest.raises(FunctionError, match=r"F: state 'total': value is a method and can't be set; update\(...\)"):
        total.value = 5
    total.update(5)
    assert total.value() == 5.0


NAN = float("nan")
NOON = datetime(2026, 1, 15, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize("ttl", [None, TIMED])
@pytest.mark.parametrize(
    ("dtype", "make"),
    [
        ("double", lambda: float("nan")),
        ("double", lambda: np.float64("nan")),
        ("float", lambda: struct.unpack("<f", b"\x01\x00\xc0\xff")[0]),
        ("x double, y string", lambda: (float("nan"), "a")),
        ("x double, y string", lambda: {"x": float("nan"), "y": "a"}),
        ("array<double>", lambda: [1.5, float("nan")]),
        ("array<struct<x:array<double>>>", lambda: [([float("nan")],)]),
    ],
)
def test_all_nan_are_one_key_of_a_map_before_and_after_a_restart(ttl: Any, dtype: str, make: Any) -> None:
    counts = state(MapStateDescriptor("counts", dtype, "long", ttl=ttl))
    counts.put(make(), 1)
    counts.put(make(), 2)
    stored, again = counts.dump(), state(counts.descriptor)
    again.load(lambda: stored)
    for each in (counts, again):
        assert (each.get(make()), each.contains(make()), each.values()) == (2, True, [2])
        each.put(make(), 3)
        assert each.values() == [3]
        each.remove(make())
        assert each.is_empty()


def test_both_zeros_are_one_key_of_a_map_and_the_first_is_read() -> None:
    counts = state(MapStateDescriptor("counts", "double", "long"))
    counts.put(-0.0, 1)
    for each in (counts, restored(counts, counts.descriptor)):
        each.put(0.0, 2)
        assert [(str(key), value) for key, value in each.items()] == [("-0.0", 2)]


def test_a_map_that_holds_several_nan_keeps_what_was_put_last() -> None:
    # As a release up to 0.5.0 left it.
    old = pa.array([[(NAN, 1), (7.0, 2), (NAN, 3)]], pa.map_(pa.float64(), pa.int64()))
    counts = state(MapStateDescriptor("counts", "double", "long"))
    counts.load(lambda: ([0], old))
    assert (counts.get(NAN), counts.get(7.0), len(counts.keys())) == (3, 2, 2)


@pytest.mark.parametrize(
    ("dtype", "forms"),
    [
        ("float", [0.1, np.float32(0.1)]),
        ("double", [5.0, 5, np.int64(5)]),
        ("binary", [b"a", bytearray(b"a"), memoryview(b"a")]),
        ("decimal(5,2)", [Decimal("1.5"), Decimal("1.50")]),
        ("bigint", [5, np.int64(5)]),
        ("timestamp", [NOON, NOON.astimezone(timezone(timedelta(hours=3)))]),
    ],
)
def test_a_key_of_a_map_is_found_in_any_form_in_which_it_can_be_put(dtype: str, forms: list[Any]) -> None:
    for put in forms:
        seen = state(MapStateDescriptor("seen", dtype, "long"))
        seen.put(put, 1)
        assert [seen.get(form) for form in (*forms, None)] == [*([1] * len(forms)), None]


def test_a_map_as_a_value_whose_keys_would_become_one_is_refused() -> None:
    value = state(ValueStateDescriptor("prices", "map<float,int>"))
    value.update({NAN: 1, 0.5: 2})
    assert restored(value, value.descriptor).value()[math.nan] == 1
    for keys in ({NAN: 1, float("nan"): 2}, {0.1: 1, 0.1 + 1e-12: 2}):
        with pytest.raises(FunctionError, match=r"F: state 'prices': expected map<float,int>.*several keys become"):
            value.update(keys)


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return (0.0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator.total + value, accumulator.count + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator.total / accumulator.count


class Gather(AggregateFunction):
    """Changes the accumulator that it gets, as functions for PyFlink do."""

    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        accumulator.reverse()
        return accumulator


def mean() -> HandStore:
    return HandStore(AggregatingStateDescriptor("mean", Mean(), "total double, count long"))


def test_reducing_sums_for_each_key() -> None:
    hand = HandStore(ReducingStateDescriptor("total", lambda a, b: a + b, "long"))
    seen = []
    for value, key in [(1, "hi"), (2, "hello"), (3, "hi"), (4, "hello"), (5, "hi"), (6, "hello")]:
        with hand.key(key) as total:
            total.add(value)
            seen.append(total.get())
        hand.restore()
    assert seen == [1, 2, 4, 6, 9, 12]


def test_a_reduce_function_may_be_an_object_with_reduce() -> None:
    class Longest:
        def reduce(self, first: str, second: str) -> str:
            return max(first, second, key=len)

    hand = HandStore(ReducingStateDescriptor("longest", Longest(), "string"))
    with hand.key() as longest:
        assert longest.get() is None
        for word in ("a", "ccc", "bb"):
            longest.add(word)
        assert longest.get() == "ccc"
        longest.clear()
        assert longest.get() is None


def test_what_reducing_gives_can_not_change_what_is_kept() -> None:
    hand = HandStore(ReducingStateDescriptor("all", lambda a, b: a + b, "array<long>"))
    with hand.key() as everything:
        mine = [1]
        everything.add(mine)
        mine.append(9)
        everything.get().append(8)
        everything.add([2])
        assert everything.get() == [1, 2]


def test_aggregating_keeps_the_accumulator_and_reads_its_result() -> None:
    hand = mean()
    with hand.key() as average:
        assert average.get() is None
        average.add(1)
        average.add(2)
        assert average.get() == 1.5
    hand.restore()
    assert hand.store.state_of("a") == {"mean": (3.0, 2)}
    with hand.key() as average:
        average.add(6)
        assert average.get() == 3.0
        average.clear()
        assert average.get() is None
    assert hand.stored().num_rows == 0


def test_a_function_may_change_its_accumulator() -> None:
    hand = HandStore(AggregatingStateDescriptor("all", Gather(), "array<long>"))
    with hand.key() as everything:
        everything.add(1)
        everything.add(2)
        assert everything.get() == everything.get() == [2, 1]


class Wrong(Mean):
    def __init__(self, **gives: Any) -> None:
        self.gives = gives

    def _give(self, name: str) -> Any:
        if name in self.gives:
            return self.gives[name]
        raise ZeroDivisionError(name)

    def create_accumulator(self) -> Any:
        return self._give("create")

    def add(self, value: Any, accumulator: Any) -> Any:
        return self._give("add")

    def get_result(self, accumulator: Any) -> Any:
        return self._give("result")


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        ({}, "F: state 'x': Wrong.create_accumulator raised ZeroDivisionError: create"),
        ({"create": "a"}, "F: state 'x', the result of Wrong.create_accumulator: expected bigint, got 'a' (str)"),
        (
            {"create": None},
            "F: state 'x', the result of Wrong.create_accumulator: expected bigint, got None (NoneType)",
        ),
        ({"create": 0}, "F: state 'x': Wrong.add raised ZeroDivisionError: add"),
        ({"create": 0, "add": 1.5}, "F: state 'x', the result of Wrong.add: expected bigint, got 1.5 (float)"),
        ({"create": 0, "add": 1}, "F: state 'x': Wrong.get_result raised ZeroDivisionError: result"),
    ],
)
def test_an_aggregate_functions_fault_names_function_and_state(gives: dict[str, Any], said: str) -> None:
    hand = HandStore(AggregatingStateDescriptor("x", Wrong(**gives), "long"))

    def use(state: Any) -> None:
        state.add(1)
        state.get()

    with hand.key() as state, pytest.raises(FunctionError) as caught:
        use(state)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("reduce", "values", "said"),
    [
        (max, ["a"], "F: state 'x': expected bigint, got 'a' (str)"),
        (
            max,
            [None],
            "F: state 'x': expected bigint, got None (NoneType); omit what is missing, or call clear() to forget it",
        ),
        (lambda a, b: a / b, [1, 0], "F: state 'x': reduce_function raised ZeroDivisionError: division by zero"),
        (lambda a, b: a / b, [1, 2], "F: state 'x', the result of reduce_function: expected bigint, got 0.5 (float)"),
        (
            lambda a, b: None,
            [1, 2],
            "F: state 'x', the result of reduce_function: expected bigint, got None (NoneType)",
        ),
    ],
)
def test_a_reduce_functions_fault_names_function_and_state(reduce: Any, values: list[Any], said: str) -> None:
    hand = HandStore(ReducingStateDescriptor("x", reduce, "long"))

    def use(state: Any) -> None:
        for value in values:
            state.add(value)

    with hand.key() as state, pytest.raises(FunctionError) as caught:
        use(state)
    assert str(caught.value) == said


def test_merge_is_never_needed() -> None:
    with pytest.raises(NotImplementedError):
        Mean().merge((0.0, 0), (0.0, 0))


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


def test_updating_with_none_clears_a_timed_value() -> None:
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


DAY = StateTtlConfig("1 day")


def value(ttl: StateTtlConfig | None) -> Any:
    return create_state(ValueStateDescriptor("x", "long", ttl=ttl), KeyContext(), "F", HandClock())


def at_rest(dtype: pa.DataType) -> pa.Table:
    return pa.schema([("customer", pa.string()), ("@value", dtype)]).empty_table()


def test_only_a_state_with_a_time_to_live_pays_for_it() -> None:
    assert type(value(None)) is ValueState
    assert type(value(DAY)) is TimedValueState


@pytest.mark.parametrize(
    ("ttl", "stored", "said"),
    [
        (
            None,
            pa.string(),
            "the checkpoint and the function differ in its type: it changes from string to bigint; declare",
        ),
        (
            DAY,
            create_state(ValueStateDescriptor("x", "double", ttl=DAY), KeyContext(), "F", HandClock()).type,
            "and the function differ in its type: it changes from double to bigint; declare the stored type",
        ),
        (
            None,
            value(DAY).type,
            "holds it with a time-to-live in processing time, the function declares it without a time-to-live",
        ),
        (
            DAY,
            pa.int64(),
            "holds it without a time-to-live, the function declares it with a time-to-live in processing time",
        ),
        (
            StateTtlConfig("1 day", time_domain="event_time"),
            value(DAY).type,
            "a time-to-live in processing time, the function declares it with a time-to-live in event time; declare it",
        ),
    ],
)
def test_a_stored_type_must_be_one_that_can_become_the_declared_one_and_its_clock_the_same(
    ttl: StateTtlConfig | None, stored: pa.DataType, said: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        as_declared(value(ttl), at_rest(stored))
    assert str(caught.value).startswith("F: state 'x': the checkpoint ")
    assert said in str(caught.value)
    assert str(caught.value).endswith(", or give the new state another name")


def test_a_state_of_the_declared_type_is_taken_as_it_is() -> None:
    stored = at_rest(value(DAY).type)
    assert as_declared(value(DAY), stored) is stored


def test_a_duration_may_change() -> None:
    hand = HandStore(MapStateDescriptor("m", "string", "long", ttl=DAY))
    with hand.key() as state:
        state["a"] = 1
    hand.descriptor = MapStateDescriptor("m", "string", "long", ttl=StateTtlConfig("5 ms"))
    hand.restore()
    hand.clock.time = 5
    with hand.key() as state:
        assert state["a"] is None
