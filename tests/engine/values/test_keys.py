from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.values.keys import KEYABLE, checked_key, encode_keys, is_keyable, key_shape, key_values
from cojoin.engine.values.rows import row_class
from cojoin.engine.values.types import parse_schema, parse_type
from cojoin.errors import FunctionError

DAY, LATER = dt.datetime(1969, 1, 1), dt.datetime(2020, 1, 1)  # noqa: DTZ001 - timestamp_ntz has no zone

VALUES: dict[str, list[Any]] = {
    "boolean": [True, False, True],
    "tinyint": [1, -1, 1],
    "smallint": [1, -1, 1],
    "int": [1, -1, 1],
    "bigint": [1 << 62, -1, 1 << 62],
    "string": ["a", "", "a"],
    "binary": [b"a", b"", b"a"],
    "date": [dt.date(1969, 1, 1), dt.date(2020, 1, 1), dt.date(1969, 1, 1)],
    "timestamp": [DAY, LATER, DAY],
    "timestamp_ntz": [DAY, LATER, DAY],
    "decimal": [Decimal(1), Decimal(2), Decimal(1)],
}


@pytest.mark.parametrize("ddl", KEYABLE.split(", "))
def test_equal_keys_have_equal_codes_whatever_their_type(ddl: str) -> None:
    dtype = parse_type(ddl)
    assert is_keyable(dtype)
    (codes,), count = encode_keys([pa.table({"k": pa.array(VALUES[ddl], dtype)})])
    assert (codes.tolist(), count) == ([0, 1, 0], 2)


@pytest.mark.parametrize("ddl", ["double", "float", "array<int>", "struct<a:int>", "map<int,int>", "void"])
def test_what_has_several_spellings_or_parts_is_no_key(ddl: str) -> None:
    assert not is_keyable(parse_type(ddl))


KEYS = st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(-1, 1), st.booleans()), max_size=6)


@given(st.lists(KEYS, min_size=1, max_size=4), st.integers(1, 3))
def test_rows_of_several_tables_have_equal_codes_exactly_if_their_keys_are_equal(
    tables: list[list[tuple[Any, ...]]], width: int
) -> None:
    """Also over empty tables, chunked ones, and columns of other names."""
    schema = [pa.string(), pa.int32(), pa.bool_()][:width]
    given = []
    for number, keys in enumerate(tables):
        chunks = [keys[:2], keys[2:]]
        columns = [
            pa.chunked_array([pa.array([key[place] for key in chunk], each) for chunk in chunks])
            for place, each in enumerate(schema)
        ]
        given.append(pa.table(dict(zip([f"{number}_{place}" for place in range(width)], columns, strict=True))))
    codes, count = encode_keys(given)
    by_code = {}
    for keys, mine in zip(tables, codes, strict=True):
        assert len(keys) == len(mine)
        for key, code in zip(keys, mine.tolist(), strict=True):
            assert by_code.setdefault(code, key[:width]) == key[:width]
    assert sorted(by_code) == list(range(count))
    assert len(set(by_code.values())) == count


NUMBERS = st.lists(st.integers(-3, 3) | st.sampled_from([-128, 127]), max_size=9)


@pytest.mark.parametrize("dtype", [pa.int8(), pa.int32(), pa.int64()])
@pytest.mark.parametrize("offset", [0, (1 << 62) - 1, -(1 << 62)])
@given(st.lists(NUMBERS, min_size=1, max_size=3))
def test_the_keys_of_a_column_are_numbered_as_they_first_come_whether_close_together_or_not(
    dtype: pa.DataType, offset: int, numbers: list[list[int]]
) -> None:
    moved = offset if dtype == pa.int64() else 0
    codes, count = encode_keys([pa.table({"k": pa.array([each + moved for each in some], dtype)}) for some in numbers])
    whole = [each for some in numbers for each in some]
    order = list(dict.fromkeys(whole))
    assert [code for some in codes for code in some.tolist()] == [order.index(each) for each in whole]
    assert count == len(order)


@pytest.mark.parametrize("spread", [1, 1_000])
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_a_key_of_several_columns_is_numbered_by_the_numbers_of_its_columns(
    spread: int, keys: list[tuple[int, int]]
) -> None:
    table = pa.table({name: [key[place] * spread for key in keys] for place, name in enumerate("ab")})
    parts = [encode_keys([table.select([name])])[0][0].tolist() for name in "ab"]
    ranks = {pair: rank for rank, pair in enumerate(sorted(set(zip(*parts, strict=True))))}
    (codes,), count = encode_keys([table])
    assert codes.tolist() == [ranks[pair] for pair in zip(*parts, strict=True)]
    assert count == len(ranks)


def test_tables_without_chunks_have_no_codes() -> None:
    empty = pa.schema([("k", pa.string())]).empty_table()
    without_chunks = pa.Table.from_arrays([pa.chunked_array([], pa.string())], ["k"])
    (first, second), count = encode_keys([empty, without_chunks])
    assert (len(first), len(second), count) == (0, 0, 0)


@pytest.mark.parametrize(
    ("key", "names", "values"),
    [
        (7, ["id"], (7,)),
        (None, ["id"], (None,)),
        ((7,), ["id"], ((7,),)),
        (row_class(("id",))((7,)), ["id"], (7,)),
        ({"id": 7}, ["id"], (7,)),
        ({"di": 7}, ["id"], None),
        ((7, "mon"), ["id", "day"], (7, "mon")),
        ([7, "mon"], ["id", "day"], (7, "mon")),
        ({"day": "mon", "id": 7}, ["id", "day"], (7, "mon")),
        ("ab", ["id", "day"], None),
        ((7,), ["id", "day"], None),
        ((), [], ()),
        (7, [], None),
    ],
)
def test_a_users_key_is_a_value_a_tuple_or_a_dict(key: Any, names: list[str], values: tuple[Any, ...] | None) -> None:
    assert key_values(key, names) == values


def test_a_users_key_of_another_shape_or_type_is_refused() -> None:
    assert [key_shape(names) for names in ([], ["id"], ["id", "day"])] == [
        "()",
        "a value of 'id'",
        "a tuple of id, day",
    ]
    schema = parse_schema("id int, at timestamp")
    now = dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    assert checked_key((7, now), schema, "key") == (7, now)
    for key, message in (
        (7, "key: expected a tuple of id, at, got 7"),
        ((1 << 31, now), "key column 'id': expected int, got 2147483648 (int)"),
        ((7, None), "key column 'at': expected timestamp, got None (NoneType)"),
        (
            (7, exact := pd.Timestamp(now) + pd.Timedelta(1, "ns")),
            f"key column 'at': expected whole microseconds, got {exact!r}",
        ),
    ):
        with pytest.raises(FunctionError) as caught:
            checked_key(key, schema, "key")
        assert str(caught.value) == message
