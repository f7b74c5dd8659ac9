from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.inputs import InputSpec, rejected_table
from cojoin.engine.ordering import OrderedPart, total_order
from cojoin.engine.values.encoding import encode_column, encode_rows
from cojoin.engine.values.entries import encode_entries
from cojoin.engine.values.rows import decode_column, decode_rows
from cojoin.engine.values.texts import decode_texts, dump_json, encode_texts, show_text, text_bytes
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
