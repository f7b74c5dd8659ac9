from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.joins.output_columns import JoinedColumns, joined_schema
from cojoin.engine.joins.search import SortedRows
from cojoin.engine.values.types import parse_schema, schema_to_ddl
from cojoin.errors import ConfigurationError, SchemaError


def spec(name: str, ddl: str, key: str, event_time: str = "event_time") -> InputSpec:
    return InputSpec(name, parse_schema(ddl), tuple(key.split()), event_time)


TRADES = spec("trades", "customer_id long NOT NULL, event_time timestamp NOT NULL, amount double", "customer_id")


def joined(ddl: str, key: str = "customer_id", suffixes: Any = None) -> str:
    return schema_to_ddl(joined_schema(TRADES, spec("customers", ddl, key), suffixes))


LEFT = "customer_id bigint NOT NULL, event_time timestamp NOT NULL, amount double"


def test_the_lefts_columns_come_first_then_the_rights_without_its_key() -> None:
    assert joined("id long, event_time timestamp, tier string", "id") == (
        f"{LEFT}, customers_event_time timestamp, tier string"
    )


def test_a_right_column_may_be_null_for_there_may_be_no_match() -> None:
    assert joined("customer_id long, event_time timestamp, tier string NOT NULL").endswith("tier string")


def test_only_a_name_that_is_taken_is_changed() -> None:
    right = spec("customers", "customer_id long, since timestamp, tier string", "customer_id", "since")
    assert schema_to_ddl(joined_schema(TRADES, right, ("_l", "_r"))) == f"{LEFT}, since timestamp, tier string"


def test_equal_names_need_suffixes_whatever_their_case() -> None:
    right = "customer_id long, event_time timestamp, Amount double"
    with pytest.raises(
        SchemaError, match=r"""both have 'Amount'; distinguish them with suffixes=\("", "_customers"\)"""
    ):
        joined(right)
    assert joined(right, suffixes=("", "_customer")).endswith(
        "amount double, customers_event_time timestamp, Amount_customer double"
    )
    assert " amount_trade double" in joined(right, suffixes=["_trade", ""])


def test_the_key_keeps_its_name_under_any_suffix() -> None:
    right = "id long, event_time timestamp, customer_id string"
    assert joined(right, "id", ("_l", "_r")) == (f"{LEFT}, customers_event_time timestamp, customer_id_r string")


@pytest.mark.parametrize("suffixes", ["ab", ("",), ("_a", "_a"), (1, 2), ("a", "b", "c")])
def test_suffixes_are_two_different_strings(suffixes: Any) -> None:
    with pytest.raises(ConfigurationError, match="suffixes: expected two different strings"):
        joined("customer_id long, event_time timestamp", suffixes=suffixes)


@pytest.mark.parametrize(
    ("right", "suffixes"),
    [
        ("customer_id long, event_time timestamp, customers_event_time int", None),
        ("customer_id long, event_time timestamp, amount int, amount_r int", ("", "_r")),
        ("id long, event_time timestamp, customer_id int", ("_l", "")),
    ],
)
def test_names_that_collide_all_the_same_are_refused(right: str, suffixes: Any) -> None:
    key = right.split(maxsplit=1)[0]
    with pytest.raises(SchemaError, match="would have two columns"):
        joined(right, key, suffixes)


def test_a_composite_key_comes_once() -> None:
    left = spec("l", "a int, b int, event_time timestamp", "a b")
    right = spec("r", "x int, y int, event_time timestamp, v int", "x y")
    assert joined_schema(left, right, None).names == ["a", "b", "event_time", "r_event_time", "v"]
    assert joined_schema(left, right, None).field("v").type == pa.int32()


def test_a_join_needs_the_event_time_of_both_inputs() -> None:
    right = spec("customers", "id long, tier string", "id")
    for one, two in [(TRADES, replace(right, event_time=None)), (replace(right, event_time=None), TRADES)]:
        with pytest.raises(SchemaError, match=r"input 'customers' has no event time.*name its event_time= column"):
            joined_schema(one, two, None)


@pytest.mark.parametrize("how", ["right", "full", "outer"])
def test_a_join_that_looks_up_right_rows_names_the_ways_to_keep_them(how: str) -> None:
    times = pd.to_datetime(["2026-01-15"], utc=True)
    left, right = (cj.Input(pd.DataFrame({"id": [id_], "t": times}), "id", "t", f"side{id_}") for id_ in (1, 2))
    pair = cj.connect(left, right)
    whole = how.replace("outer", "full")
    for join in (pair.asof_join, pair.temporal_join):
        with pytest.raises(ConfigurationError) as caught:
            join(how=how)
        assert str(caught.value) == (
            f"how: expected 'left' or 'inner', got {how!r}: this join looks up a right row for each left row, and has "
            f"no result for a right row alone; to keep the rows of the right input, make it the left one, or use "
            f"interval_join(..., how='{whole}')"
        )
    assert cj.connect(right, left).asof_join().to_arrow()["id"].to_pylist() == [2]
    assert 2 in pair.interval_join("0 s", "1 s", how=whole).to_arrow()["id"].to_pylist()


def test_a_column_that_is_left_out_collides_with_nothing() -> None:
    right = spec("customers", "id long, event_time timestamp, amount double, tier string", "id")
    assert schema_to_ddl(joined_schema(TRADES, right, None, deletes="amount")).endswith(
        "amount double, customers_event_time timestamp, tier string"
    )


def test_where_a_right_row_may_stand_alone_only_the_key_may_not_be_null() -> None:
    right = spec("customers", "id long, since timestamp", "id", "since")
    assert schema_to_ddl(joined_schema(TRADES, right, None, how="right")) == (
        "customer_id bigint NOT NULL, event_time timestamp, amount double, since timestamp"
    )


def in_order(table: pa.Table, order: list[int]) -> SortedRows:
    unused = np.zeros(len(order), dtype=np.int64)
    return SortedRows(table, np.array(order, dtype=np.int64), unused, unused)


def test_rows_are_put_together_from_places_in_sorted_rows_and_the_key_from_whichever_row_there_is() -> None:
    right = spec("r", "x int, y string, at timestamp, v int", "x y", "at")
    left = spec("l", "a int, at timestamp, b string", "a b", "at")
    columns = JoinedColumns(left, right, joined_schema(left, right, None, how="right"))
    rows = (
        pa.table([[1, 2], [0, 0], ["p", "q"]], schema=left.schema),
        pa.table([[3, 2], ["s", "q"], [0, 0], [7, 8]], schema=right.schema).slice(0, 2),
    )
    sides = (in_order(rows[0], [1, 0]), in_order(rows[1], [0, 1]))
    table = columns.take(sides, np.array([0, -1, 1]), np.array([1, 0, -1]))
    assert table.schema == columns.schema
    assert table.select(["a", "b", "v"]).to_pylist() == [
        {"a": 2, "b": "q", "v": 8},
        {"a": 3, "b": "s", "v": 7},
        {"a": 1, "b": "p", "v": None},
    ]
    again = columns.take(sides, np.array([0, -1, 1, 1]), np.array([1, 0, -1, 1]))
    assert again.slice(0, 3) == table
    assert again.slice(3).select(["a", "b", "v"]).to_pylist() == [{"a": 1, "b": "p", "v": 8}]
    nothing = (in_order(rows[0].slice(2), []), in_order(rows[1].slice(2), []))
    assert columns.take(nothing, np.array([], dtype=int), np.array([], dtype=int)).num_rows == 0
    assert columns.take((sides[0], nothing[1]), np.array([0]), np.array([-1])).column("v").to_pylist() == [None]
