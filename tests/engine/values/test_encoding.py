from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from cojoin.engine.values.encoding import encode_rows
from cojoin.engine.values.rows import row_class
from cojoin.engine.values.types import parse_schema, type_to_ddl
from cojoin.errors import FunctionError

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
        FunctionError, match=r"F: expected a row of .*, got None, which is no row \(yield nothing where"
    ):
        encode_rows([None], parse_schema(columns), "F")
