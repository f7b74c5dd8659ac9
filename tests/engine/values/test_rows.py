"""Rows and texts as Python sees them equal what Arrow holds, to the byte."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.input_spec import InputSpec, rejected_table
from cojoin.engine.ordering import OrderedPart, total_order
from cojoin.engine.values.encoding import encode_column, encode_entries, encode_rows
from cojoin.engine.values.rows import (
    Row,
    beyond_python,
    decode_column,
    decode_rows,
    decode_texts,
    describe_row,
    dump_json,
    encode_texts,
    row_class,
    show_text,
    text_bytes,
    value_of_text,
)
from cojoin.engine.values.types import parse_type
from cojoin.errors import FunctionError

BYTES = st.binary(max_size=6) | st.sampled_from(
    [b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xe2\x82", b"\xf4\x90\x80\x80", b"a\xffb"]
)


def texts(values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary()).view(pa.string())


def raw(column: pa.Array) -> list[bytes | None]:
    return column.view(pa.binary()).to_pylist()  # type: ignore[no-any-return]


@given(st.lists(st.none() | BYTES))
def test_any_bytes_are_a_string_and_the_same_bytes_again(values: list[bytes | None]) -> None:
    decoded = decode_texts(texts(values))
    assert raw(encode_texts(decoded)) == values
    assert raw(encode_column(decoded, pa.string())) == values


@given(st.lists(BYTES))
def test_valid_texts_are_what_they_always_were(values: list[bytes]) -> None:
    valid = [value.decode("utf-8", "ignore") for value in values]
    assert decode_texts(pa.array(valid, pa.string())) == valid


@given(st.lists(BYTES, min_size=1))
def test_nested_texts_keep_their_bytes(values: list[bytes]) -> None:
    leaf = texts(list(values))
    offsets = pa.array([0, len(values)], pa.int32())
    keys = texts(sorted({*values}))
    counts = pa.array(range(len(keys)), pa.int64())
    column = pa.StructArray.from_arrays(
        [
            pa.ListArray.from_arrays(offsets, leaf),
            pa.MapArray.from_arrays(pa.array([0, len(keys)], pa.int32()), keys, counts),
        ],
        names=["tags", "counts"],
    )
    decoded = decode_column(column)
    for encoded in (encode_column(decoded, column.type), encode_entries(decoded, column.type)):
        assert raw(encoded.field(0).values) == values
        assert raw(encoded.field(1).keys) == raw(keys)


@given(st.lists(BYTES, min_size=2))
def test_rows_of_one_moment_are_in_the_order_of_their_bytes(values: list[bytes]) -> None:
    zeros = pa.array([0] * len(values)).to_numpy()
    flat = texts(list(values))
    for column in (flat, pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), flat)):
        order = total_order([OrderedPart(zeros, zeros, 1, pa.table({"v": column}))])
        assert [values[at] for at in order] == sorted(values)


def test_a_half_that_stands_for_no_byte_is_refused() -> None:
    with pytest.raises(FunctionError, match=r"F: output field 'v': expected string, got '\\ud800'"):
        encode_rows([("\ud800",)], pa.schema([("v", pa.string())]), "F")


@given(BYTES)
def test_a_rejected_row_holds_every_byte(value: bytes) -> None:
    schema = pa.schema([("k", pa.string()), ("tags", pa.list_(pa.string())), ("at", pa.timestamp("us", "UTC"))])
    tags = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), texts([value]))
    rows = pa.table([texts([value]), tags, pa.array([0], schema.field("at").type)], schema=schema)
    spelled: Any = rejected_table(rows, InputSpec("trades", schema, ("k",), "at"), "late", 5).column("row")
    spelled.validate(full=True)
    found = json.loads(spelled[0].as_py())
    assert text_bytes(found["k"]) == text_bytes(found["tags"][0]) == value


@given(st.text(st.characters(categories=None) | st.sampled_from('\udcff\ud800"\\\n')))
def test_json_and_screens_take_any_string(text: str) -> None:
    dumped = dump_json({text: [text]})
    assert json.loads(dumped) == {text: [text]}
    for shown in (dumped, show_text(text)):
        shown.encode()


def test_a_function_sees_its_row_as_python_has_such_texts() -> None:
    (row,) = decode_rows(pa.table({"name": texts([b"\xffA"])}))
    assert row.name.encode("utf-8", "surrogateescape") == b"\xffA"


UTC = timezone.utc


def test_a_field_is_read_by_name_key_and_place() -> None:
    trade = row_class(("trade_id", "odd name", "_x", "count"))((7, 1, 2, 3))
    assert (trade.trade_id, trade["trade_id"], trade[0], trade[-1]) == (7, 7, 7, 3)
    assert (trade["odd name"], trade["_x"], trade.count, trade[1:3]) == (1, 2, 3, (1, 2))
    assert trade == (7, 1, 2, 3)
    assert trade.as_dict() == {"trade_id": 7, "odd name": 1, "_x": 2, "count": 3}


def test_a_field_that_is_not_there_is_named_with_those_that_are() -> None:
    trade = row_class(("trade_id", "amount"))((7, 2.5))
    with pytest.raises(AttributeError, match="a row has no field 'amuont'; its fields are trade_id, amount"):
        _ = trade.amuont
    with pytest.raises(KeyError, match="a row has no field 'amuont'"):
        trade["amuont"]


def test_a_field_that_is_called_as_what_a_row_can_do_is_read_by_its_name() -> None:
    row = row_class(("as_dict", "count", "_fields", "def"))((1, 2, 3, 4))
    assert (row["as_dict"], row.count, row["_fields"], row["def"]) == (1, 2, 3, 4)
    assert row.as_dict() == {"as_dict": 1, "count": 2, "_fields": 3, "def": 4}


NAMES = st.sampled_from(
    ["_0", "_1", "_2", "_x", "x", "class", "count", "index", "_fields", "_asdict", "as_dict", "odd name", "__len__"]
)


@given(st.lists(NAMES, unique=True))
def test_every_name_reads_its_own_value(names: list[str]) -> None:
    row = row_class(tuple(names))(range(len(names)))
    assert row.as_dict() == {name: row[at] for at, name in enumerate(names)}
    for at, name in enumerate(names):
        assert row[name] == at
        if name not in {"_fields", "as_dict", "__len__"} and name.isidentifier():
            assert getattr(row, name) == at
    assert [*row] == [*range(len(names))]
    for name in {"_0", "_1", "_2", "_x", "_asdict"}.difference(names):
        with pytest.raises(AttributeError, match=f"a row has no field '{name}'"):
            getattr(row, name)


def test_the_names_that_pyspark_makes_up_are_attributes() -> None:
    row = row_class(("_1", "_2"))((10, 20))
    assert (row._1, row._2, row["_1"], row["_2"], repr(row)) == (10, 20, 10, 20, "Row(_1=10, _2=20)")
    first, second = row
    assert (first, second) == (row[0], row[1]) == (10, 20)


def test_a_row_is_immutable() -> None:
    trade = row_class(("amount",))((2.5,))
    with pytest.raises(AttributeError):
        trade.amount = 3.0
    with pytest.raises(TypeError):
        trade[0] = 3.0  # type: ignore[index]


COLUMNS: list[tuple[str, list[Any]]] = [
    ("bigint", [1, None, -3, 4]),
    ("double", [1.5, None, -0.0, 4.0]),
    ("string", ["a", None, "", "ß"]),
    ("timestamp", [datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), None, datetime(2020, 1, 1, tzinfo=UTC)]),
    ("timestamp_ntz", [datetime(1, 1, 1), None, datetime(9999, 12, 31, 23, 59, 59, 999_999)]),  # noqa: DTZ001
    ("date", [date(1, 1, 1), None, date(9999, 12, 31)]),
    ("interval day to second", [timedelta(microseconds=-1), None, timedelta(3)]),
    ("array<int>", [[1, 2], None, [], [None]]),
    ("array<array<timestamp>>", [[[datetime(2020, 1, 1, tzinfo=UTC)], None], None, [], [[]]]),
    ("struct<a:int,b:array<int>>", [(1, [2]), None, (None, None), (3, [])]),
    ("array<struct<a:int>>", [[(1,), None], None, [], [(2,)]]),
    ("map<string,array<int>>", [{"a": [1]}, None, {}, {"b": None, "c": [2]}]),
    ("struct<>", [(), None, ()]),
    ("void", [None, None]),
]


def arrow(values: list[Any], ddl: str) -> pa.Array:
    from cojoin.engine.values.encoding import encode_column

    return encode_column(values, parse_type(ddl))


@pytest.mark.parametrize(("ddl", "values"), COLUMNS)
def test_a_column_is_decoded_wherever_it_is_sliced_and_however_it_is_chunked(ddl: str, values: list[Any]) -> None:
    array = arrow(values, ddl)
    for start in range(len(values) + 1):
        for stop in range(start, len(values) + 1):
            assert decode_column(array.slice(start, stop - start)) == values[start:stop]
    cut = [array.slice(1, 1), array.slice(0, 2), array.slice(2)]
    assert decode_column(pa.chunked_array(cut)) == values[1:2] + values[:2] + values[2:]


def test_structs_are_rows_in_rows() -> None:
    (row,) = decode_rows(pa.table({"c": pa.array([{"tier": {"name": "gold"}}])}))
    assert isinstance(row.c.tier, Row)
    assert row.c.tier.name == "gold"


def test_a_table_of_no_columns_has_its_rows() -> None:
    assert decode_rows(pa.table({"a": [1, 2]}).select([])) == [(), ()]


def test_lists_as_keys_of_a_map_are_tuples() -> None:
    array = pa.array([[([1, 2], 3)]], pa.map_(pa.list_(pa.int64()), pa.int64()))
    assert decode_column(array) == [{(1, 2): 3}]


@pytest.mark.parametrize(
    ("values", "dtype", "said"),
    [
        ([0, 1 << 60], pa.timestamp("us", "UTC"), "13343998 days and 77406 seconds since 1970"),
        ([0, 10_000_000], pa.date32(), "10000000 days and 0 seconds since 1970"),
        ([0, (1 << 31) - 1], pa.date32(), "2147483647 days and 0 seconds since 1970"),
    ],
)
def test_a_moment_beyond_pythons_years_raises_or_something_stands_for_it(values: Any, dtype: Any, said: str) -> None:
    array = pa.array(values, pa.int32() if dtype == pa.date32() else pa.int64()).cast(dtype)
    with pytest.raises(OverflowError):
        decode_column(array)
    first, second = decode_column(array, beyond=str)
    assert (first.year, second) == (1970, said)


LIMITS = {
    "timestamp": (-62_135_596_800_000_000, 253_402_300_799_999_999),
    "timestamp_ntz": (-62_135_596_800_000_000, 253_402_300_799_999_999),
    "date": (-719_162, 2_932_896),
}


@st.composite
def columns_of_times(draw: st.DrawFn) -> pa.Array:
    """Draw a column whose leaves are times, some of them beyond Python's, at the limits and anywhere."""
    leaf = draw(st.sampled_from([*LIMITS]))
    first, last = LIMITS[leaf]
    most = 1 << (31 if leaf == "date" else 63)
    near = [first - 1, first, 0, 0, 0, last, last + 1, -most, most - 1]
    values: Any = st.none() | st.sampled_from(near)
    dtype = pa.int32() if leaf == "date" else pa.int64()
    right = parse_type(leaf)
    for _ in range(draw(st.integers(0, 2))):
        form = draw(st.sampled_from(["array", "struct", "map", "keys"]))
        if form == "array":
            values, dtype, right = st.none() | st.lists(values, max_size=2), pa.list_(dtype), pa.list_(right)
        elif form == "struct":
            fields = [("a", dtype), ("n", pa.int64())], [("a", right), ("n", pa.int64())]
            values = st.none() | st.fixed_dictionaries({"a": values, "n": st.just(1)})
            dtype, right = map(pa.struct, fields)
        elif form == "map" or pa.types.is_nested(dtype):
            values = st.none() | st.lists(st.tuples(st.sampled_from("ab"), values), max_size=2)
            dtype, right = pa.map_(pa.string(), dtype), pa.map_(pa.string(), right)
        else:
            values = st.none() | st.lists(st.tuples(st.sampled_from(near), st.just(1)), max_size=2)
            dtype, right = pa.map_(dtype, pa.int64()), pa.map_(right, pa.int64())
    return pa.array(draw(st.lists(values, max_size=4)), dtype).cast(right)


@given(columns_of_times(), st.integers(0, 3))
def test_oracle_rows_with_times_that_python_does_not_have(column: pa.Array, begin: int) -> None:
    def is_beyond(at: int) -> bool:
        try:
            decode_column(column.take(pa.array([at])))
        except OverflowError:
            return True
        return False

    expected = [is_beyond(at) for at in range(len(column))]
    table = pa.table({"n": pa.array([0] * len(column), pa.int64()), "x": column})
    assert beyond_python(table).tolist() == expected
    assert beyond_python(table.slice(begin)).tolist() == expected[begin:]
    assert beyond_python(pa.concat_tables([table, table])).tolist() == expected * 2
    good = table.filter(pa.array(~beyond_python(table)))
    assert len(decode_rows(good)) == good.num_rows


@given(st.lists(st.none() | st.datetimes(timezones=st.just(UTC))))
def test_a_timestamp_keeps_every_microsecond(values: list[datetime | None]) -> None:
    assert decode_column(pa.array(values, pa.timestamp("us", "UTC"))) == values


def test_a_long_row_is_cut_in_a_message() -> None:
    assert describe_row(("x" * 1000,)) == "('" + "x" * 498 + "… (1,005 characters)"


@pytest.mark.parametrize(
    ("text", "ddl", "value"),
    [
        ("2026-01-15T09:00", "timestamp", datetime(2026, 1, 15, 9, tzinfo=timezone.utc)),
        ("2026-01-15 09:00:00.5", "timestamp", datetime(2026, 1, 15, 9, 0, 0, 500_000, tzinfo=timezone.utc)),
        ("2026-01-15 09:00+02:00", "timestamp", datetime(2026, 1, 15, 7, tzinfo=timezone.utc)),
        ("2026-01-15 09:00", "timestamp_ntz", datetime(2026, 1, 15, 9)),  # noqa: DTZ001
        ("2026-01-15", "date", date(2026, 1, 15)),
        ("007", "bigint", 7),
        ("\udcffA", "string", "\udcffA"),
        ("A", "binary", b"A"),
    ],
)
def test_a_text_is_read_as_people_write_it(text: str, ddl: str, value: Any) -> None:
    assert value_of_text(text, parse_type(ddl)) == value


@pytest.mark.parametrize(
    ("text", "ddl", "error"),
    [
        ("128", "tinyint", ValueError),
        ("2.505", "decimal(10,2)", ValueError),
        ("2026-01-15", "timestamp", ValueError),
        ("0000-01-01 09:00", "timestamp", OverflowError),
        ("[1]", "array<int>", NotImplementedError),
    ],
)
def test_a_text_of_no_value_is_an_error(text: str, ddl: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        value_of_text(text, parse_type(ddl))
