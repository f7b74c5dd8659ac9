from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.values.coercion import coercer
from cojoin.engine.values.entries import encode_entries
from cojoin.engine.values.rows import decode_column
from cojoin.engine.values.types import parse_type

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
