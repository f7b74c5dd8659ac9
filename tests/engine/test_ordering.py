"""Rows are in the total order, whatever the order in which they arrived."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.ordering import (
    OrderedPart,
    arrival_order,
    combine,
    is_sorted,
    sort_keys,
    sort_part,
    stable_argsort,
    total_order,
)
from cojoin.engine.values.encoding import encode_column
from cojoin.engine.values.types import parse_type

FIRST, LAST = -(1 << 63), (1 << 63) - 1
LIMITS = st.integers(FIRST, LAST) | st.integers(-3, 3) | st.sampled_from([FIRST, LAST, 1 << 40, -(1 << 40)])


def columns(rows: list[Any], count: int) -> list[Any]:
    return [np.array([row[place] for row in rows], dtype=np.int64) for place in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3])
@given(st.data())
def test_rows_are_sorted_column_by_column_and_equal_ones_keep_their_order(count: int, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(*[LIMITS] * count), max_size=40))
    settled = data.draw(st.integers(0, len(rows)))
    rows[:settled] = data.draw(st.sampled_from([rows[:settled], sorted(rows[:settled])]))
    expected = sorted(range(len(rows)), key=rows.__getitem__)
    assert stable_argsort(*columns(rows, count)).tolist() == expected
    assert stable_argsort(*columns(rows, count), settled=settled).tolist() == expected


@pytest.mark.parametrize("span", [1, 3, 1 << 20, 1 << 44, 1 << 62])
@pytest.mark.parametrize("settled", [0, 1, 1_500, 3_000])
def test_many_rows_are_sorted_as_numpy_sorts_them_however_many_bits_they_need(span: int, settled: int) -> None:
    rng = np.random.default_rng(span)
    one, two = rng.integers(-span, span, 3_000), rng.integers(FIRST, LAST, 3_000, endpoint=True)
    one[: settled - 1].sort()
    assert stable_argsort(one, settled=settled).tolist() == np.argsort(one, kind="stable").tolist()
    assert stable_argsort(two, one, settled=settled).tolist() == np.lexsort((one, two)).tolist()
    assert stable_argsort(one, two, settled=settled).tolist() == np.lexsort((two, one)).tolist()


NUMBERS = st.lists(st.tuples(st.integers(0, 3), LIMITS))


@given(st.lists(NUMBERS, min_size=1, max_size=3))
def test_combined_columns_sort_and_tie_as_the_columns_do_also_with_the_other_parts(parts: list[Any]) -> None:
    combined = combine(*(tuple(columns(rows, 2)) for rows in parts))
    assert [len(each) for each in combined] == [len(rows) for rows in parts]
    folded, rows = np.concatenate(combined).tolist(), [row for part in parts for row in part]
    assert [[a < b for b in folded] for a in folded] == [[a < b for b in rows] for a in rows]


def test_what_is_equal_or_nothing_is_sorted() -> None:
    assert [is_sorted(np.array(each)) for each in ([], [1], [1, 1, 2], [2, 1])] == [True, True, True, False]


NAN = float("nan")
ASCENDING: dict[str, list[Any]] = {
    "boolean": [None, False, True],
    "tinyint": [None, -128, 0, 127],
    "bigint": [None, -(1 << 63), -1, 0, (1 << 63) - 1],
    "float": [None, -math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, NAN],
    "double": [None, -math.inf, -1.5, -5e-324, -0.0, 0.0, 5e-324, 1.5, math.inf, NAN],
    "decimal(38,2)": [None, Decimal("-1e30"), Decimal("-0.01"), Decimal(0), Decimal("9.99"), Decimal("10.00")],
    "string": [None, "", "A", "a", "aa", "ß", "\U0001f600"],
    "binary": [None, b"", b"\x00", b"a", b"\xff"],
    "date": [None, dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [
        None,
        dt.datetime(1969, 1, 1, tzinfo=dt.timezone.utc),
        dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc),
    ],
    "timestamp_ntz": [None, dt.datetime(1969, 1, 1), dt.datetime(2020, 1, 1)],  # noqa: DTZ001
    "time": [None, dt.time(0), dt.time(23, 59)],
    "interval second": [None, dt.timedelta(-1), dt.timedelta(1)],
    "void": [None],
    "array<double>": [None, [], [None], [-0.0], [0.0], [0.0, None], [NAN]],
    "struct<a:int,b:string>": [None, (None, None), (None, "a"), (1, None), (1, "a"), (2, None)],
    "array<struct<a:double>>": [None, [], [None], [(None,)], [(1.0,)], [(NAN,)]],
    "map<string,int>": [None, {}, {"a": None}, {"a": 1}, {"a": 1, "b": 0}, {"b": 0}],
}


@pytest.mark.parametrize("ddl", ASCENDING)
def test_content_has_one_order_nulls_first_and_nan_last(ddl: str) -> None:
    values = ASCENDING[ddl]
    shuffled = [7 * position % len(values) for position in range(len(values))]
    if len(set(shuffled)) < len(values):
        shuffled = list(reversed(range(len(values))))
    array = encode_column([None, *(values[position] for position in shuffled), None], parse_type(ddl))
    for column in (array.slice(1, len(values)), pa.chunked_array([array.slice(1, 1), array.slice(2, len(values) - 1)])):
        order = np.lexsort(list(reversed(sort_keys(column))))
        assert [shuffled[position] for position in order] == list(range(len(values)))


def test_a_map_is_ordered_by_its_pairs_not_by_their_order() -> None:
    array = pa.array([[("a", 1), ("b", 2)], [("b", 2), ("a", 1)]], pa.map_(pa.string(), pa.int64()))
    (keys,) = sort_keys(array)
    assert keys[0] == keys[1]


def test_all_nans_are_the_same() -> None:
    bits = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000], dtype=np.uint64)
    keys = sort_keys(pa.array(bits.view(np.float64)))[1]
    assert len(set(keys.tolist())) == 1


ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 2), st.integers(0, 1), st.sampled_from([None, NAN, 1.0])))


def part(rows: list[tuple[Any, ...]], rank: int, source_order: tuple[str, ...] = ("sequence",)) -> OrderedPart:
    codes, micros = (np.array([row[place] for row in rows], dtype=np.int64) for place in (0, 1))
    columns = {
        "content": pa.array([row[3] for row in rows], pa.float64()),
        "sequence": pa.array([row[2] for row in rows], pa.int64()),
    }
    return OrderedPart(codes, micros, rank, pa.table(columns), source_order)


def content(value: Any) -> tuple[bool, bool, float]:
    missing = value is None
    return (not missing, not missing and math.isnan(value), 0.0 if missing or math.isnan(value) else value)


@given(ROWS, ROWS)
def test_the_total_order_is_key_time_right_before_left_sequence_content(left: list[Any], right: list[Any]) -> None:
    order = total_order([part(left, 1), part(right, 0)])
    spelled = [(code, micros, rank, sequence, content(value)) for rank, rows in ((1, left), (0, right))
               for code, micros, sequence, value in rows]  # fmt: skip
    assert [spelled[position] for position in order] == sorted(spelled)


@given(ROWS, ROWS)
def test_the_order_of_arrival_is_key_input_sequence_content(left: list[Any], right: list[Any]) -> None:
    order = arrival_order([part(left, 1), part(right, 0)])
    spelled = [(code, rank, sequence, content(value), micros) for rank, rows in ((0, left), (1, right))
               for code, micros, sequence, value in rows]  # fmt: skip
    assert [spelled[position][:-1] for position in order] == sorted(each[:-1] for each in spelled)


@given(ROWS, ROWS, st.booleans())
def test_rows_that_were_kept_in_order_and_others_make_the_order_of_all(
    kept: list[Any], fresh: list[Any], by_key: bool
) -> None:
    """Also where others are earlier than the rows that were kept, and where these have another order of keys."""
    table = part(kept, 0)
    order = sort_part(table).order if by_key else np.lexsort((sort_part(table).order.argsort(), -table.codes))
    rows = [*(kept[position] for position in order), *fresh]
    whole = part(rows, 0)
    merged = sort_part(replace(whole, settled=len(kept)))
    expected = total_order([whole])
    spelled = [(*row[:3], content(row[3])) for row in rows]
    assert [spelled[position] for position in merged.order] == [spelled[position] for position in expected]
    assert merged.codes.tolist() == whole.codes[expected].tolist()
    assert merged.micros.tolist() == whole.micros[expected].tolist()


def test_settled_rows_are_not_compared_again_unless_another_row_ties_with_them() -> None:
    tied = [(0, 0, 1, 1.0), (0, 0, 0, 1.0)]
    assert sort_part(replace(part(tied, 0), settled=2)).order.tolist() == [0, 1]
    assert sort_part(replace(part([*tied, (0, 1, 0, 1.0)], 0), settled=2)).order.tolist() == [0, 1, 2]
    assert sort_part(replace(part([*tied, (0, 0, 2, 1.0)], 0), settled=2)).order.tolist() == [1, 0, 2]


def test_without_a_sequence_content_decides_column_by_column_as_declared() -> None:
    rows = [(0, 0, 1, 1.0), (0, 0, 0, 2.0), (0, 0, 0, 1.0)]
    assert total_order([part(rows, 0, ())]).tolist() == [2, 0, 1]


def test_moments_beyond_pythons_years_have_their_order_in_nested_columns_too() -> None:
    moments = [-(1 << 63), -62_135_596_800_000_000, 0, 253_402_300_800_000_000, (1 << 63) - 1]
    times = pa.array(moments).cast(pa.timestamp("us", "UTC"))
    offsets = pa.array(range(len(moments) + 1), pa.int32())
    days = pa.array([-(1 << 31), -1, 0, 1, (1 << 31) - 1], pa.int32()).cast(pa.date32())
    for column in (
        pa.ListArray.from_arrays(offsets, times),
        pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([days], names=["day"])),
        pa.MapArray.from_arrays(offsets, times, days),
    ):
        keys = sort_keys(column.take(pa.array([4, 0, 3, 1, 2])))
        assert np.lexsort(keys[::-1]).tolist() == [1, 3, 4, 2, 0]
