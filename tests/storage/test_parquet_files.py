"""What Delta's log says of a file, from what parquet keeps; no Spark."""

from __future__ import annotations

import io
import json
import math
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.storage.parquet_files import FloatBounds, columns_with_statistics, file_statistics


def statistics_of(table: pa.Table, row_group_size: int = 2) -> dict[str, Any]:
    file, floats = io.BytesIO(), FloatBounds(table.schema)
    for begin in range(0, table.num_rows, row_group_size):
        floats.add(table.slice(begin, row_group_size))
    kept = columns_with_statistics(table.schema)
    pq.write_table(table, file, row_group_size=row_group_size, store_schema=False, write_statistics=kept)
    told: dict[str, Any] = json.loads(file_statistics(pq.read_metadata(file), table.schema, floats))
    return told


def column(values: list[Any], dtype: pa.DataType) -> dict[str, Any]:
    told = statistics_of(pa.table({"a": pa.array(values, dtype)}))
    return {name: told[name].get("a") for name in ("minValues", "maxValues", "nullCount")}


@pytest.mark.parametrize(
    ("values", "dtype", "low", "high"),
    [
        ([3, -1, 2], pa.int64(), -1, 3),
        ([3, -1, 2], pa.int8(), -1, 3),
        ([0.5, -2.25, 1e300], pa.float64(), -2.25, 1e300),
        ([0.5, -2.25, 0.1], pa.float32(), -2.25, 0.5),
        (["b", "a", "ä"], pa.string(), "a", "ä"),
        ([date(2026, 1, 2), date(1969, 12, 31)], pa.date32(), "1969-12-31", "2026-01-02"),
        ([Decimal("1.10"), Decimal("-3.00")], pa.decimal128(10, 2), -3.0, 1.1),
    ],
)
def test_bounds_go_over_all_row_groups(values: list[Any], dtype: pa.DataType, low: Any, high: Any) -> None:
    assert column([*values, None], dtype) == {"minValues": low, "maxValues": high, "nullCount": 1}


def test_times_are_cut_to_milliseconds_and_of_their_zone() -> None:
    times = [datetime(2026, 1, 15, 1, 2, 3, 999_999, tzinfo=timezone.utc), datetime(1969, 1, 1, tzinfo=timezone.utc)]
    told = column(times, pa.timestamp("us", "UTC"))
    assert (told["minValues"], told["maxValues"]) == ("1969-01-01T00:00:00.000Z", "2026-01-15T01:02:03.999Z")
    told = column([each.replace(tzinfo=None) for each in times], pa.timestamp("us"))
    assert told["maxValues"] == "2026-01-15T01:02:03.999"


def test_a_time_without_four_digits_of_a_year_has_no_bound() -> None:
    table = pa.table({"a": pa.array([2**62, 0, -(2**62)], pa.int64()).cast(pa.timestamp("us", "UTC"))})
    told = statistics_of(table)
    assert (told["minValues"], told["maxValues"], told["nullCount"]) == ({}, {}, {"a": 0})


def test_what_is_not_a_number_has_no_bounds() -> None:
    nothing = {"minValues": None, "maxValues": None}
    assert column([1.0, float("nan")], pa.float64()) == nothing | {"nullCount": 0}
    assert column([1.0, float("inf")], pa.float32()) == {"minValues": 1.0, "maxValues": None, "nullCount": 0}
    assert column([None, None], pa.int64()) == nothing | {"nullCount": 2}
    assert column([None, 1.0, float("nan")], pa.float32()) == nothing | {"nullCount": 1}
    assert column([None, None], pa.float64()) == nothing | {"nullCount": 2}
    assert column([True, False], pa.bool_()) == nothing | {"nullCount": 0}
    assert column([b"x"], pa.binary()) == nothing | {"nullCount": 0}


@pytest.mark.parametrize("values", [[0.0], [-0.0], [0.0, -0.0], [-0.0, 0.0]])
def test_zero_as_a_bound_includes_both_zeros(values: list[float]) -> None:
    told = column(values, pa.float64())
    assert (math.copysign(1, told["minValues"]), math.copysign(1, told["maxValues"])) == (-1, 1)


def test_nothing_is_said_of_floats_that_were_not_counted() -> None:
    file, table = io.BytesIO(), pa.table({"a": [1.0], "b": [2]})
    pq.write_table(table, file)
    told = json.loads(file_statistics(pq.read_metadata(file), table.schema))
    assert told == {"numRecords": 1, "minValues": {"b": 2}, "maxValues": {"b": 2}, "nullCount": {"b": 0}}


def test_parquets_own_statistics_are_kept_of_all_but_floats() -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("rate", pa.float32()),
            ("place", pa.struct([("x", pa.int32()), ("y", pa.float64()), ("z", pa.list_(pa.float32()))])),
            ("counts", pa.map_(pa.string(), pa.float64())),
        ]
    )
    assert columns_with_statistics(schema) == ["id", "place.x", "counts.key_value.key"]


def test_long_texts_are_cut_so_that_the_bounds_hold() -> None:
    told = column(["a" * 40, "b" * 40], pa.string())
    assert told["minValues"] == "a" * 32
    assert told["maxValues"] == "b" * 32 + "\U0010ffff"
    assert column(["c" * 32 + "\U0010ffff" * 2], pa.string())["maxValues"] is None


def test_nested_columns_are_passed_over_and_those_after_them_found() -> None:
    pairs = pa.array([{"x": 1, "y": [1]}], pa.struct([("x", pa.int64()), ("y", pa.list_(pa.int64()))]))
    maps = pa.array([[("k", {"v": 1})]], pa.map_(pa.string(), pa.struct([("v", pa.int64())])))
    told = statistics_of(pa.table({"pairs": pairs, "maps": maps, "a.b": pa.array([7])}))
    assert told == {"numRecords": 1, "minValues": {"a.b": 7}, "maxValues": {"a.b": 7}, "nullCount": {"a.b": 0}}


def test_only_the_first_columns_are_told() -> None:
    told = statistics_of(pa.table({f"c{number}": [number] for number in range(40)}))
    assert list(told["nullCount"]) == [f"c{number}" for number in range(32)]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=8))
def test_every_text_lies_within_the_bounds_by_its_bytes(texts: list[str]) -> None:
    told = column(texts, pa.string())
    for text in texts:
        if told["minValues"] is not None:
            assert told["minValues"].encode() <= text.encode()
        if told["maxValues"] is not None:
            assert told["maxValues"].encode() >= text.encode()


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6))
def test_bounds_of_texts_that_are_not_utf8_are_right_or_left_out(values: list[bytes]) -> None:
    told = statistics_of(pa.table({"a": pa.array(values, pa.binary()).view(pa.string())}))
    assert told["nullCount"] == {"a": 0}
    assert told["minValues"].get("a", "").encode() <= min(values)
    assert "a" not in told["maxValues"] or told["maxValues"]["a"].encode() >= max(values)


def test_the_least_of_texts_is_told_up_to_what_is_not_utf8() -> None:
    told = statistics_of(pa.table({"a": pa.array([b"ab\xff", b"ac\xff"], pa.binary()).view(pa.string())}))
    assert (told["minValues"], told["maxValues"]) == ({"a": "ab"}, {})
