"""Values are encoded as they are or refused; none is changed."""

from __future__ import annotations

import enum
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.values.encoding import coercer, encode_column, encode_entries, encode_rows, has_mutable_parts
from cojoin.engine.values.rows import decode_column, row_class
from cojoin.engine.values.types import parse_schema, parse_type, type_to_ddl
from cojoin.errors import FunctionError

VALUES: dict[str, Any] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "string": st.text(max_size=3),
    "double": st.floats(allow_nan=False),
    "timestamp": st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(timezone.utc)),  # noqa: DTZ001
    "decimal(5,2)": st.decimals(-999, 999, places=2).map(lambda value: Decimal(value).quantize(Decimal("0.01"))),
}
"""Leaves: their DDL and values."""


def types_with_values() -> Any:
    """Draw a type, up to three levels deep, and a strategy of its values."""

    def nested(inner: Any) -> Any:
        return st.one_of(
            inner.map(lambda part: (f"array<{part[0]}>", st.lists(st.none() | part[1], max_size=3))),
            inner.map(
                lambda part: (
                    f"map<string,{part[0]}>",
                    st.dictionaries(st.text(max_size=2), st.none() | part[1], max_size=3),
                )
            ),
            st.tuples(inner, inner).map(
                lambda parts: (
                    f"struct<a:{parts[0][0]},b:{parts[1][0]}>",
                    st.tuples(st.none() | parts[0][1], st.none() | parts[1][1]),
                )
            ),
        )

    return st.recursive(st.sampled_from(list(VALUES.items())), nested, max_leaves=4)


def as_pyarrow_takes(value: Any, dtype: pa.DataType) -> Any:
    """Return a value as pyarrow's own conversion takes it: structs by name, maps as pairs."""
    if value is None:
        return None
    if pa.types.is_struct(dtype):
        return {field.name: as_pyarrow_takes(each, field.type) for field, each in zip(dtype, value, strict=True)}
    if pa.types.is_map(dtype):
        pairs = value.items()
        return [(as_pyarrow_takes(k, dtype.key_type), as_pyarrow_takes(v, dtype.item_type)) for k, v in pairs]
    return [as_pyarrow_takes(each, dtype.value_type) for each in value] if pa.types.is_list(dtype) else value


@given(st.data())
def test_oracle_what_is_encoded_is_decoded_as_it_was_and_as_pyarrow_encodes_it(data: st.DataObject) -> None:
    ddl, values = data.draw(types_with_values())
    dtype = parse_type(ddl)
    entries = [coercer(dtype, "")(value) for value in data.draw(st.lists(st.none() | values, max_size=6))]
    column = encode_entries(entries, dtype)
    column.validate(full=True)
    assert column.type == dtype
    assert decode_column(column) == entries
    assert column.equals(pa.array([as_pyarrow_takes(entry, dtype) for entry in entries], dtype))


def test_fields_that_are_never_null_and_names_that_differ_are_kept() -> None:
    dtype = pa.struct(
        [pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.list_(pa.field("element", pa.int32())))]
    )
    column = encode_entries([(1, [2]), None], dtype)
    assert column.type == dtype
    assert column.to_pylist() == [{"id": 1, "at": [2]}, None]


def test_a_struct_without_fields_is_counted() -> None:
    assert encode_entries([(), None, ()], pa.struct([])).to_pylist() == [{}, None, {}]


def test_what_arrow_can_not_hold_is_its_own_error() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        encode_entries([("\ud800",)], pa.struct([("name", pa.string())]))


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


SCHEMA = parse_schema("trade_id long NOT NULL, tier string")


@pytest.mark.parametrize(
    "row", [(7, "gold"), [7, "gold"], {"tier": "gold", "trade_id": 7}, row_class(("a", "b"))((7, "gold"))]
)
def test_a_row_is_a_tuple_a_list_a_dict_or_a_row(row: Any) -> None:
    assert encode_rows([row], SCHEMA, "F").to_pylist() == [{"trade_id": 7, "tier": "gold"}]


def test_a_single_column_takes_bare_values() -> None:
    assert encode_rows([1, (2,)], parse_schema("a long"), "F").column("a").to_pylist() == [1, 2]


def test_no_rows_are_an_empty_table() -> None:
    assert encode_rows([], SCHEMA, "F").schema == SCHEMA


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((7,), "F: expected a row of 2 fields (trade_id, tier) as a tuple or a dict, got 1 values: (7,)"),
        ({"trade_id": 7, "teir": "x"}, "got missing ['tier'], unknown ['teir']"),
        (7, "got int (a callback yields its rows, or returns a list of them): 7"),
        ("ab", "got str"),
    ],
)
def test_a_row_of_another_form_is_shown(row: Any, said: str) -> None:
    with pytest.raises(FunctionError) as caught:
        encode_rows([(1, "a"), row], SCHEMA, "F")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("bigint", 1.5),
        ("bigint", 1.0),
        ("bigint", np.float64(1.5)),
        ("bigint", Decimal("1.5")),
        ("bigint", "1"),
        ("tinyint", 128),
        ("double", True),
        ("string", b"a"),
        ("binary", "a"),
        ("timestamp", 1_577_836_800_000),
        ("timestamp", datetime(2020, 1, 1)),  # noqa: DTZ001
        ("date", 18_262),
        ("interval second", 5),
        ("time", 5),
        ("bigint NOT NULL", None),
        ("array<int>", [1, "x"]),
        ("struct<a:int>", (1, 2)),
        ("map<string,int>", {None: 1}),
        ("string", "\ud800"),
    ],
)
def test_a_value_that_pyarrow_would_bend_or_refuse_is_shown_with_its_field_and_row(ddl: str, value: Any) -> None:
    schema = parse_schema(f"a long, b {ddl}")
    fitting = 5 if ddl.endswith("NOT NULL") else None
    with pytest.raises(FunctionError) as caught:
        encode_rows([(1, fitting), (2, value)], schema, "F")
    assert f"F: output field 'b': expected {type_to_ddl(schema.field('b').type)}, got " in str(caught.value)
    assert "in the row (2, " in str(caught.value)


def test_numpys_scalars_are_taken_where_they_fit() -> None:
    schema = parse_schema("a int, b double, c boolean, d float")
    rows = [(np.int64(1), np.float32(0.5), np.bool_(0), np.float64(0.5)), (None, 2, None, 1)]
    assert [tuple(row.values()) for row in encode_rows(rows, schema, "F").to_pylist()] == [
        (1, 0.5, False, 0.5),
        (None, 2.0, None, 1.0),
    ]


@pytest.mark.parametrize("columns", ["a long", "a long, b long"])
def test_none_is_no_row(columns: str) -> None:
    """As where a callback yields what a helper gives that forgot its return."""
    with pytest.raises(
        FunctionError, match=r"F: expected a row of .*, got None, which is not a row \(to emit no row, yield nothing"
    ):
        encode_rows([None], parse_schema(columns), "F")
