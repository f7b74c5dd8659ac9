from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.joins.search import Neighbours, SortedRows, ranges, shift

FIRST, LAST = -(1 << 63), (1 << 63) - 1


def side(*rows: tuple[int, int]) -> SortedRows:
    """Rows as key codes and microseconds."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 2)
    table: Any = None
    return SortedRows(table, np.arange(len(rows)), columns[:, 0].copy(), columns[:, 1].copy())


def near(left: SortedRows, right: SortedRows, tolerance: int | None = None, *, exact: bool = True) -> list[Any]:
    found = Neighbours(left, right, tolerance, exact=exact)
    return [found.behind().tolist(), found.ahead().tolist()]


VERSIONS = side((0, 5), (0, 5), (0, 9), (1, 5))


def test_the_versions_next_to_a_row_are_its_keys_own() -> None:
    rows = side((0, 4), (0, 5), (0, 7), (0, 10), (1, 4), (1, 6), (2, 5))
    assert near(rows, VERSIONS) == [[-1, 1, 1, 2, -1, 3, -1], [1, 1, 2, -1, 3, -1, -1]]


def test_a_version_of_the_rows_own_microsecond_is_passed_over_where_that_is_asked_for() -> None:
    assert near(side((0, 5), (0, 9)), VERSIONS, exact=False) == [[-1, 1], [2, -1]]


def test_the_tolerance_itself_is_within() -> None:
    assert near(side((0, 3), (0, 7)), VERSIONS, 2) == [[-1, 1], [1, 2]]
    assert near(side((0, 3), (0, 7)), VERSIONS, 1) == [[-1, -1], [-1, -1]]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), max_size=12), st.integers(0, 12), st.booleans())
def test_neighbours_are_the_same_whichever_side_has_fewer_rows(
    rows: list[tuple[int, int]], cut: int, exact: bool
) -> None:
    left, right = sorted(rows[:cut]), sorted(rows[cut:])
    behind, ahead = near(side(*left), side(*right), exact=exact)
    for (code, micros), before, after in zip(left, behind, ahead, strict=True):
        times = [each if key == code and (exact or each != micros) else None for key, each in right]
        old = [(each, place) for place, each in enumerate(times) if each is not None and each <= micros]
        new = [(each, -place) for place, each in enumerate(times) if each is not None and each >= micros]
        assert before == (max(old)[1] if old else -1)
        assert after == (-min(new)[1] if new else -1)


def test_nothing_is_next_to_nothing() -> None:
    assert near(side(), VERSIONS) == [[], []]
    assert near(side((0, 5)), side()) == [[-1], [-1]]
    assert near(side(), side()) == [[], []]


def test_times_as_far_apart_as_64_bits_allow_are_not_near() -> None:
    rows, versions = side((0, LAST)), side((0, FIRST))
    assert near(rows, versions, (1 << 64) - 2) == [[-1], [-1]]
    assert near(rows, versions, (1 << 64) - 1) == [[0], [-1]]
    assert near(versions, rows, 1 << 90) == [[-1], [0]]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-2, 2, [0, 2]), (-2, 1, [0, 2]), (-1, 1, [2, 2]), (0, 2, [2, 3]), (2, 3, [2, 3]), (3, 9, [3, 3])],
)
def test_a_range_holds_the_rows_of_a_key_between_two_distances(low: int, high: int, expected: list[int]) -> None:
    starts, stops = ranges(side((0, 7)), VERSIONS, low, high)
    count = sum(low <= micros - 7 <= high for micros in (5, 5, 9))
    assert stops[0] - starts[0] == count
    assert (starts[0] == expected[0]) or count == 0


def test_a_range_past_the_end_of_64_bits_is_cut_there_or_empty() -> None:
    far = side((0, FIRST), (0, LAST))
    for low, high, counts in [
        (-(1 << 64), 1 << 64, [2, 2]),
        (0, 5, [1, 1]),
        (1, 5, [0, 0]),
        (-5, -1, [0, 0]),
        (1, 1 << 64, [1, 0]),
        (-(1 << 64), -1, [0, 1]),
        ((1 << 64) - 1, (1 << 64) - 1, [1, 0]),
    ]:
        starts, stops = ranges(far, far, low, high)
        assert (stops - starts).tolist() == counts


def test_no_range_of_nothing() -> None:
    for probe, built in [(side(), VERSIONS), (side((0, 5)), side()), (side(), side())]:
        starts, stops = ranges(probe, built, -1, 1)
        assert (stops - starts).tolist() == [0] * len(probe)


def test_a_shift_stops_at_the_end_of_64_bits() -> None:
    times = np.array([FIRST, -1, 0, LAST])
    for by in (0, 1, -1, LAST, FIRST, 1 << 64, -(1 << 64)):
        assert shift(times, by).tolist() == [max(FIRST, min(LAST, int(each) + by)) for each in times]
