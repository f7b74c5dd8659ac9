from __future__ import annotations

import math
import struct
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cojoin.engine.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from cojoin.engine.state.handles import create_state
from cojoin.engine.values.keys import KeyContext
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
        with pytest.raises(FunctionError, match=r"F: state 'prices': expected map<float,int>.*several of its keys are"):
            value.update(keys)
