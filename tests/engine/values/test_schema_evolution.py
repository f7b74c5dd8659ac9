from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.values.schema_evolution import differences, evolve, widest
from cojoin.engine.values.types import parse_schema, parse_type, type_to_ddl
from cojoin.errors import CheckpointError

WHOLE = ["tinyint", "smallint", "int", "bigint"]
NUMBERS = [*WHOLE, "float", "double", "decimal(10,2)", "decimal(12,2)", "decimal(12,4)", "decimal(12,1)", "string"]
WIDENS = {
    *((one, two) for place, one in enumerate(WHOLE) for two in WHOLE[place + 1 :]),
    *((one, "double") for one in [*WHOLE[:3], "float"]),
    ("decimal(10,2)", "decimal(12,2)"),
    ("decimal(10,2)", "decimal(12,4)"),
    ("decimal(12,1)", "decimal(12,1)"),
}
SHAPES = ["{}", "array<{}>", "map<string,{}>", "struct<a:{},b:string>", "array<struct<a:map<int,{}>>>"]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_type_may_be_widened_wherever_it_stands(shape: str) -> None:
    for one in NUMBERS:
        for two in NUMBERS:
            found = differences(parse_type(shape.format(one)), parse_type(shape.format(two)))
            assert (not found) is (one == two or (one, two) in WIDENS), (one, two)
            assert all(f" changes from {one} to {two}" in text for text in found)


@pytest.mark.parametrize(
    ("stored", "asked", "said"),
    [
        ("a int, b string", "b string, c date, a int", []),
        ("a int NOT NULL", "a int", []),
        ("a int", "a int NOT NULL", ["column 'a' may no longer be null"]),
        ("a int", "a int, b int NOT NULL", ["column 'b' is added and may not be null"]),
        ("a int, b int", "A int, b int", ["column 'a' is removed"]),
        ("t timestamp", "t timestamp_ntz", ["column 't' changes from timestamp to timestamp_ntz"]),
        ("b boolean", "b int", ["column 'b' changes from boolean to int"]),
        ("a array<int>", "a int", ["column 'a' changes from array<int> to int"]),
        ("m map<int,int>", "m map<bigint,bigint>", ["a key of column 'm' changes from int to bigint"]),
        ("m map<int,int>", "m map<int,string>", ["a value of column 'm' changes from int to string"]),
        (
            "s struct<x:int,y:array<struct<z:string>>>",
            "s struct<x:date,y:array<struct<w:int>>>",
            [
                "field 'x' of column 's' changes from int to date",
                "field 'z' of an element of field 'y' of column 's' is removed",
            ],
        ),
        ("s struct<x:int>", "s struct<y:string,x:bigint>", []),
        (
            "s struct<x:int>",
            "s struct<x:int,y:int NOT NULL>",
            ["field 'y' of column 's' is added and may not"],
        ),
    ],
)
def test_columns_may_be_added_where_they_may_be_null(stored: str, asked: str, said: list[str]) -> None:
    found = differences(parse_schema(stored), parse_schema(asked))
    assert len(found) == len(said)
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True))


def test_a_type_alone_is_spoken_of_as_it() -> None:
    assert differences(pa.int64(), pa.int32()) == ["it changes from bigint to int"]
    assert differences(pa.list_(pa.int64()), pa.list_(pa.int32())) == ["an element changes from bigint to int"]
    assert differences(pa.struct({"a": pa.int64()}), pa.struct({"b": pa.int64()})) == ["field 'a' is removed"]


def test_types_that_spark_spells_alike_or_not_at_all_are_spelled_as_arrow_does() -> None:
    assert differences(pa.timestamp("ns"), pa.timestamp("us")) == ["it changes from timestamp[ns] to timestamp[us]"]
    assert differences(pa.uint8(), pa.int16()) == ["it changes from uint8 to int16"]


def test_a_fixed_column_keeps_its_type() -> None:
    stored, asked = parse_schema("k int NOT NULL, v int"), parse_schema("v bigint, k bigint")
    said = "column 'k', which must keep its type, changes from int to bigint"
    assert differences(stored, asked, fixed=("k",)) == [said]
    assert differences(stored, parse_schema("v bigint, k int"), fixed=("k",)) == []
    with pytest.raises(CheckpointError) as caught:
        evolve(stored.empty_table(), asked, "input 'trades'", fixed=("k",))
    assert str(caught.value) == (
        f"input 'trades': the checkpoint's columns can't become the query's: {said}; keep them as they were, or start "
        f"with a new checkpoint"
    )


def test_names_of_the_parts_of_lists_and_maps_are_nobodys() -> None:
    stored = pa.schema([("l", pa.list_(pa.field("item", pa.int32()))), ("m", pa.map_(pa.string(), pa.int32()))])
    asked = pa.schema(
        [
            ("l", pa.list_(pa.field("element", pa.int64()))),
            ("m", pa.map_(pa.field("k", pa.string(), nullable=False), pa.field("v", pa.int64()))),
        ]
    )
    table = pa.Table.from_pylist([{"l": [1, None], "m": [("a", 2)]}], schema=stored)
    assert evolve(table, asked, "x").to_pylist() == [{"l": [1, None], "m": [("a", 2)]}]
    same = pa.schema([("l", pa.list_(pa.field("element", pa.int32()))), stored.field("m")])
    assert evolve(table, same, "x") is table


def test_an_instant_survives() -> None:
    moment = datetime(2024, 3, 31, 1, 30, tzinfo=timezone.utc)
    stored = pa.Table.from_pylist([{"s": {"at": moment, "n": 1}}], schema=parse_schema("s struct<at:timestamp,n:int>"))
    asked = parse_schema("s struct<n:bigint,at:timestamp,m:decimal(4,1)>, t timestamp")
    evolved = evolve(stored, asked, "x")
    assert evolved.schema == asked
    assert evolved.to_pylist() == [{"s": {"n": 1, "at": moment, "m": None}, "t": None}]


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "decimal(4,1)": st.integers(-9_999, 9_999).map(lambda number: Decimal(number) / 10),
    "string": st.text(max_size=2),
}
WIDER = {"int": ["int", "bigint", "double"], "float": ["float", "double"], "decimal(4,1)": ["decimal(38,3)"]}


@st.composite
def columns(draw: Any, depth: int = 3) -> tuple[pa.DataType, pa.DataType, st.SearchStrategy[Any], Any]:
    """Return a type, one that it may become, its values, and what becomes of such a value."""
    kind = draw(st.sampled_from([*VALUES, *(["list", "map", "struct"] if depth else [])]))
    if kind in VALUES:
        asked = parse_type(draw(st.sampled_from(WIDER.get(kind, [kind]))))
        return parse_type(kind), asked, st.none() | VALUES[kind], lambda value: value
    stored, asked, values, become = draw(columns(depth - 1))
    if kind == "list":
        lists = st.none() | st.lists(values, max_size=3)
        return pa.list_(stored), pa.list_(asked), lists, lambda each: each and [become(value) for value in each]
    if kind == "map":
        pairs = st.none() | st.lists(st.tuples(st.text(max_size=1), values), max_size=2)
        types = pa.map_(pa.string(), stored), pa.map_(pa.string(), asked)
        return *types, pairs, lambda each: each and [(key, become(value)) for key, value in each]
    new = [("new", pa.list_(pa.int32()))]
    types = pa.struct([("a", stored), ("b", pa.string())]), pa.struct([*new, ("b", pa.string()), ("a", asked)])
    rows = st.none() | st.fixed_dictionaries({"a": values, "b": st.none() | st.just("x")})
    return *types, rows, lambda row: row and {"new": None, "b": row["b"], "a": become(row["a"])}


@given(st.data(), columns())
def test_values_are_kept_whatever_holds_them(data: st.DataObject, column: Any) -> None:
    stored, asked, values, become = column
    drawn = data.draw(st.lists(values, max_size=6))
    start = data.draw(st.integers(0, len(drawn)))
    array = pa.array(drawn, stored)
    table = pa.table({"x": pa.chunked_array([array[:start], array[start:]])})
    assert type_to_ddl(asked)
    evolved = evolve(table, pa.schema([("x", asked)]), "x")
    evolved.validate(full=True)
    assert evolved.column("x").to_pylist() == [become(value) for value in drawn]


def test_the_widest_takes_in_all_others() -> None:
    one, two, three = (parse_schema(ddl) for ddl in ("a int", "b string, a int", "a bigint, b string"))
    assert widest([one], "x") is one
    assert widest([one, three, two, one], "x") is three
    with pytest.raises(CheckpointError) as caught:
        widest([two, one, parse_schema("a bigint")], "state 'total'")
    assert str(caught.value) == (
        "state 'total': the checkpoint's key groups hold it in forms that can't become one: column 'a' changes from "
        "bigint to int; restore a checkpoint that one query wrote, or start with a new one"
    )
