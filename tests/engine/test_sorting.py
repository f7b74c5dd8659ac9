from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.sorting import combine, is_sorted, stable_argsort

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


ROWS = st.lists(st.tuples(st.integers(0, 3), LIMITS))


@given(st.lists(ROWS, min_size=1, max_size=3))
def test_combined_columns_sort_and_tie_as_the_columns_do_also_with_the_other_parts(parts: list[Any]) -> None:
    combined = combine(*(tuple(columns(rows, 2)) for rows in parts))
    assert [len(each) for each in combined] == [len(rows) for rows in parts]
    folded, rows = np.concatenate(combined).tolist(), [row for part in parts for row in part]
    assert [[a < b for b in folded] for a in folded] == [[a < b for b in rows] for a in rows]


def test_what_is_equal_or_nothing_is_sorted() -> None:
    assert [is_sorted(np.array(each)) for each in ([], [1], [1, 1, 2], [2, 1])] == [True, True, True, False]
