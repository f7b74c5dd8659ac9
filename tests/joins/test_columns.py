from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cojoin.errors import ConfigurationError, SchemaError
from cojoin.inputs import InputSpec
from cojoin.joins.columns import joined_schema
from cojoin.types import parse_schema, schema_to_ddl


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
        SchemaError, match=r"""both have 'Amount'; tell them apart with suffixes=\("", "_customers"\)"""
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
