"""Rows as JSON come back as they were, and anything else is refused."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.values.encoding import encode_rows
from cojoin.engine.values.json_values import row_from_json, row_to_json
from cojoin.engine.values.rows import decode_column, decode_rows, dump_json
from cojoin.engine.values.types import parse_schema
from cojoin.errors import SchemaError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

SCHEMA = parse_schema(
    "flag boolean, small tinyint, number bigint, single float, double double, price decimal(20,4), text string, "
    "raw binary, day date, moment timestamp, local timestamp_ntz, clock time, span interval day to second, "
    "list array<struct<at:timestamp,raw:binary>>, pairs map<struct<id:int,price:decimal(5,2)>,array<double>>, "
    "nested struct<inner:struct<text:string>,days:array<date>>"
)


SPAN = timedelta(days=100_000)


def values(dtype: pa.DataType) -> SearchStrategy[Any]:  # noqa: PLR0911 - one a type
    types = pa.types
    if types.is_struct(dtype):
        return st.none() | st.fixed_dictionaries({field.name: values(field.type) for field in dtype})
    if types.is_map(dtype):
        parts = [field.name for field in dtype.key_type]
        key = st.tuples(*(values(dtype.key_type.field(name).type) for name in parts))
        return st.none() | st.dictionaries(key, values(dtype.item_type), max_size=3)
    if types.is_list(dtype):
        return st.none() | st.lists(values(dtype.value_type), max_size=3)
    if types.is_integer(dtype):
        most = 1 << (dtype.bit_width - 1)
        return st.none() | st.integers(-most, most - 1)
    if types.is_floating(dtype):
        return st.none() | st.floats(width=dtype.bit_width)
    if types.is_decimal(dtype):
        most = 10 ** (dtype.precision - dtype.scale) - 1
        return st.none() | st.decimals(-most, most, places=dtype.scale)
    if types.is_timestamp(dtype):
        return st.none() | st.datetimes(timezones=st.timezones() if dtype.tz else st.none()).filter(
            lambda moment: 1 < moment.year < 9999
        )
    plain: dict[pa.DataType, SearchStrategy[Any]] = {
        pa.bool_(): st.booleans(),
        pa.string(): st.text() | st.binary(max_size=4).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
        pa.binary(): st.binary(max_size=8),
        pa.date32(): st.dates(),
        pa.time64("ns"): st.times(),
        pa.duration("us"): st.timedeltas(-SPAN, SPAN),
    }
    return st.none() | plain[dtype]


@given(st.lists(st.fixed_dictionaries({field.name: values(field.type) for field in SCHEMA}), max_size=4))
def test_rows_come_back(rows: list[dict[str, Any]]) -> None:
    table = encode_rows(rows, SCHEMA, "test")
    written = [dump_json(row_to_json(row, SCHEMA)) for row in decode_rows(table)]
    again = encode_rows([row_from_json(json.loads(row), SCHEMA, "test") for row in written], SCHEMA, "test")
    # Texts tell -0.0 from 0.0, and NaN equals NaN.
    assert written == [dump_json(row_to_json(row, SCHEMA)) for row in decode_rows(again)]
    for name in SCHEMA.names:
        first, second = (decode_column(each.column(name)) for each in (table, again))
        assert "nan" in repr(first) or first == second, name


def test_maps_are_sorted_on_demand() -> None:
    schema = parse_schema("pairs map<string,int>")
    one, other = ({"b": 1, "a": 2},), ({"a": 2, "b": 1},)
    assert row_to_json(one, schema) != row_to_json(other, schema)
    assert row_to_json(one, schema, sort_maps=True) == row_to_json(other, schema, sort_maps=True)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"day": 3}, "column 'day': 3 is not of the type date32"),
        ({"number": True}, "column 'number': True is not of the type int64"),
        ({"number": "1"}, "is not of the type int64"),
        ({"moment": "2026-01-15T09:00:00"}, "column 'moment'"),
        ({"local": "2026-01-15T09:00:00Z"}, "column 'local'"),
        ({"double": "nan"}, "column 'double'"),
        ({"price": 1.5}, "column 'price'"),
        ({"nested": {"outer": 1}}, "column 'nested'"),
        ({"list": "ab"}, "column 'list'"),
        ({"prize": 1}, "has a column 'prize', but the columns are flag"),
        ([], "expected a row as a JSON object"),
    ],
)
def test_other_values_are_refused(found: Any, told: str) -> None:
    with pytest.raises(SchemaError, match=f"row 7: .*{told}"):
        row_from_json(found, SCHEMA, "row 7")
