from __future__ import annotations

from typing import Any

import pytest

from cojoin.engine.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from cojoin.engine.state.handles import create_state
from cojoin.engine.values.key_context import KeyContext
from cojoin.engine.values.rows import Row
from cojoin.errors import FunctionError
from tests.engine.state.stores import HandClock


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
