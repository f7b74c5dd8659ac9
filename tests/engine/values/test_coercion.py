from __future__ import annotations

import enum
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.values.coercion import coercer, has_mutable_parts
from cojoin.engine.values.encoding import encode_column
from cojoin.engine.values.rows import decode_column
from cojoin.engine.values.types import parse_type
from cojoin.errors import FunctionError

UTC, PARIS = timezone.utc, timezone(timedelta(hours=1))


class Tier(str, enum.Enum):
    GOLD = "gold"


FITTING: list[tuple[str, Any, Any]] = [
    ("bigint", np.int32(5), 5),
    ("bigint", -(1 << 63), -(1 << 63)),
    ("double", 5, 5.0),
    ("double", np.float32(0.5), 0.5),
    ("double", np.int64(5), 5.0),
    ("float", 0.1, 0.10000000149011612),
    ("string", Tier.GOLD, "gold"),
    ("binary", bytearray(b"a"), b"a"),
    ("boolean", np.bool_(1), True),
    ("date", date(1, 1, 1), date(1, 1, 1)),
    ("timestamp", datetime(2020, 1, 1, 1, tzinfo=PARIS), datetime(2020, 1, 1, tzinfo=UTC)),
    ("timestamp", pd.Timestamp("2020-01-01 00:00:00.123456789Z"), datetime(2020, 1, 1, 0, 0, 0, 123456, UTC)),
    ("timestamp_ntz", pd.Timestamp("2020-01-01"), datetime(2020, 1, 1)),  # noqa: DTZ001
    ("interval second", pd.Timedelta("1 s"), timedelta(seconds=1)),
    ("time", time(3, 4, 5, 6), time(3, 4, 5, 6)),
    ("decimal(5,2)", 5, Decimal("5.00")),
    ("decimal(5,2)", Decimal("1.5"), Decimal("1.50")),
    ("array<double>", (1, None), [1.0, None]),
    ("struct<a:int,b:double>", {"b": 1, "a": 2}, (2, 1.0)),
    ("struct<a:int,b:double>", [2, 1], (2, 1.0)),
    ("struct<a:float>", (0.1,), (0.10000000149011612,)),
    ("map<string,float>", {"a": 0.1}, {"a": 0.10000000149011612}),
    ("map<array<int>,int>", {(1, 2): 3}, {(1, 2): 3}),
    ("map<struct<a:int>,int>", {(1,): 3}, {(1,): 3}),
]


@pytest.mark.parametrize(("ddl", "value", "stored"), FITTING)
def test_a_stored_value_reads_the_same_before_and_after_a_restart(ddl: str, value: Any, stored: Any) -> None:
    dtype = parse_type(ddl)
    before = coercer(dtype, "x")(value)
    (after,) = decode_column(encode_column([before], dtype))
    assert before == after == stored
    assert type(before) is type(after)


MISFITS: list[tuple[str, Any]] = [
    ("bigint", 1.0),
    ("bigint", True),
    ("bigint", 1 << 63),
    ("tinyint", 128),
    ("double", True),
    ("double", "1"),
    ("double", Decimal(1)),
    ("double", 10**400),
    ("float", 1e300),
    ("string", 5),
    ("string", b"a"),
    ("binary", "a"),
    ("boolean", 1),
    ("date", datetime(2020, 1, 1, tzinfo=UTC)),
    ("date", 5),
    ("timestamp", datetime(2020, 1, 1)),  # noqa: DTZ001
    ("timestamp", 1_577_836_800_000),
    ("timestamp", date(2020, 1, 1)),
    ("timestamp", datetime(1, 1, 1, tzinfo=PARIS)),
    ("timestamp_ntz", datetime(2020, 1, 1, tzinfo=UTC)),
    ("timestamp_ntz", pd.NaT),
    ("interval second", 5),
    ("interval second", timedelta.max),
    ("time", 5),
    ("decimal(5,2)", 1.5),
    ("decimal(5,2)", Decimal("1.555")),
    ("decimal(5,2)", Decimal("NaN")),
    ("decimal(5,2)", 10_000),
    ("array<int>", "ab"),
    ("array<int>", [1, "a"]),
    ("struct<a:int,b:int>", (1,)),
    ("struct<a:int,b:int>", {"a": 1}),
    ("struct<a:int,b:int>", {"a": 1, "b": 2, "c": 3}),
    ("struct<a:int,b:int>", 5),
    ("struct<a: int NOT NULL>", (None,)),
    ("map<string,int>", [("a", 1)]),
    ("map<string,int>", {None: 1}),
    ("map<string,int>", {1: 1}),
    ("void", 1),
]


@pytest.mark.parametrize(("ddl", "value"), MISFITS)
def test_a_value_that_does_not_fit_is_refused_by_name_and_with_its_type(ddl: str, value: Any) -> None:
    with pytest.raises(FunctionError, match=r"F: state 'x'.*expected .*, got "):
        coercer(parse_type(ddl), "F: state 'x'")(value)


def test_a_naive_datetime_is_told_what_it_lacks() -> None:
    with pytest.raises(FunctionError, match="give the datetime a time zone"):
        coercer(parse_type("timestamp"), "x")(datetime(2020, 1, 1))  # noqa: DTZ001


def test_the_misfit_in_a_nested_value_is_named_with_its_place() -> None:
    with pytest.raises(FunctionError, match=r"x, field 'b'\[\]: expected int, got 'no' \(str\)"):
        coercer(parse_type("struct<a:int,b:array<int>>"), "x")((1, [2, "no"]))


def test_nulls_pass() -> None:
    assert coercer(parse_type("bigint"), "x")(None) is None


def test_what_is_stored_is_a_copy() -> None:
    given = [1, 2]
    stored = coercer(parse_type("array<int>"), "x")(given)
    given.append(3)
    assert stored == [1, 2]


@pytest.mark.parametrize(("ddl", "mutable"), [("int", False), ("struct<a:int>", False), ("struct<a:array<int>>", True)])
def test_only_lists_and_maps_can_be_changed_by_a_reader(ddl: str, mutable: bool) -> None:
    assert has_mutable_parts(parse_type(ddl)) is mutable


STRUCTS = st.tuples(
    st.none() | st.integers(-(1 << 33), 1 << 33),
    st.none() | st.text(max_size=2) | st.integers(),
    st.none() | st.floats(),
)


@given(STRUCTS)
def test_the_quick_check_of_a_struct_decides_as_the_full_one(value: tuple[Any, ...]) -> None:
    fields = [coercer(parse_type(ddl), "x") for ddl in ("int", "string", "double")]
    convert = coercer(parse_type("a int, b string, c double"), "x")
    try:
        expected: Any = repr(tuple(field(item) for field, item in zip(fields, value, strict=True)))
    except FunctionError:
        expected = None
    try:
        actual: Any = repr(tuple(convert(value)))
    except FunctionError:
        actual = None
    assert actual == expected
