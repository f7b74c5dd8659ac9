from __future__ import annotations

from typing import Any

import pytest

from cojoin.engine.state import AggregateFunction, AggregatingStateDescriptor, ReducingStateDescriptor
from cojoin.errors import FunctionError
from tests.engine.state.stores import HandStore


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
        ({"create": "a"}, "F: state 'x', what Wrong.create_accumulator gave: expected bigint, got 'a' (str)"),
        ({"create": None}, "F: state 'x', what Wrong.create_accumulator gave: expected bigint, got None (NoneType)"),
        ({"create": 0}, "F: state 'x': Wrong.add raised ZeroDivisionError: add"),
        ({"create": 0, "add": 1.5}, "F: state 'x', what Wrong.add gave: expected bigint, got 1.5 (float)"),
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
        (lambda a, b: a / b, [1, 2], "F: state 'x', what reduce_function gave: expected bigint, got 0.5 (float)"),
        (lambda a, b: None, [1, 2], "F: state 'x', what reduce_function gave: expected bigint, got None (NoneType)"),
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
