"""The counter against a loop in Python, in whatever pieces the rows come; shares and bounds against all the rows."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cojoin.engine.lateness import Lateness, LatenessCounter, arrival_order, round_up
from cojoin.errors import ConfigurationError, SchemaError

PARTITIONS, ARRIVALS, TIMES = (st.integers(0, most) for most in (1, 3, 6))
# Few values each, so that pieces end within a partition, and within what arrives together.
ROWS = st.lists(st.tuples(PARTITIONS, ARRIVALS, TIMES.map(lambda each: each * 2_503), st.booleans()), max_size=24)
BOUNDS = st.tuples(st.integers(0, 9_999), st.integers(0, 8)).map(lambda each: each[0] * 10 ** each[1])


def latenesses(rows: list[tuple[int, int, int, bool]]) -> list[int]:
    """Return the lateness of each counted row, by its definition."""
    found = []
    for partition, arrival, timestamp, counted in rows:
        earlier = [t for p, a, t, _ in rows if p == partition and a < arrival]
        if counted:
            found.append(max(0, max(earlier, default=timestamp) - timestamp))
    return found


def lateness_of(rows: list[int]) -> Lateness:
    counts = Counter(round_up(np.array(rows, np.int64)).tolist())
    return Lateness("", len(rows), dict(sorted(counts.items())), max(rows, default=0))


@given(ROWS, st.lists(st.integers(0, 24), max_size=6))
@example([(0, 1, 9, True), (0, 2, 5, True), (0, 2, 2, True), (0, 2, 1, True)], [2, 3])
@example([(0, 1, 9, True), (0, 1, 5, True), (0, 1, 2, True)], [1, 2])
def test_rows_that_come_in_pieces_are_counted_as_by_a_loop(
    rows: list[tuple[int, int, int, bool]], cuts: list[int]
) -> None:
    rows = sorted(rows, key=lambda each: each[:2])
    counter = LatenessCounter()
    columns = np.array([each[:3] for each in rows], np.int64).reshape(-1, 3)
    counted = np.array([each[3] for each in rows], bool)
    for piece in np.split(np.arange(len(rows)), sorted(min(each, len(rows)) for each in cuts)):
        counter.add(*columns[piece].T, counted[piece])
    expected = latenesses(rows)
    assert counter.largest_ms == max(expected, default=0)
    assert counter.counts == Counter(round_up(np.array(expected, np.int64)).tolist())


@given(BOUNDS, st.lists(st.integers(-2, 2) | st.integers(-(10**9), 10**9), max_size=8))
def test_a_bound_of_four_digits_is_exact(bound: int, apart: list[int]) -> None:
    rows = [max(0, bound + each) for each in apart]
    assert lateness_of(rows).late(timedelta(milliseconds=bound)) == sum(each > bound for each in rows)


@given(st.lists(st.integers(0, 1 << 41), min_size=1, max_size=20), st.integers(0, 1 << 41))
def test_other_bounds_count_at_most_the_next_digit_as_late(rows: list[int], bound: int) -> None:
    late = lateness_of(rows).late(timedelta(milliseconds=bound))
    assert sum(each > bound for each in rows) <= late <= sum(1.001 * each > bound for each in rows)


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=50), st.floats(0, 1))
def test_the_bound_for_a_share_is_the_smallest(rows: list[int], share: float) -> None:
    found, rounded = lateness_of(rows), sorted(round_up(np.array(rows, np.int64)).tolist())
    bound = found.bound_for(share)
    assert sum(each <= bound / timedelta(milliseconds=1) for each in rows) >= share * len(rows)
    smallest = next(each for place, each in enumerate(rounded, 1) if place / len(rows) >= share)
    assert bound == timedelta(milliseconds=min(smallest, max(rows)))
    assert found.late(bound) <= (1 - share) * len(rows) + 1e-9
    assert found.late(found.bound_for(1.0)) == 0


def test_the_table_ends_with_the_first_bound_that_is_enough() -> None:
    pytest.importorskip("pandas")
    assert lateness_of([0, 0, 60_000]).to_pandas().to_dict("list") == {
        "bound": [timedelta(seconds=each) for each in (0, 1, 10, 60)],
        "late": [1, 1, 1, 0],
        "share_late": [1 / 3, 1 / 3, 1 / 3, 0],
    }
    assert lateness_of([0]).to_pandas()["late"].tolist() == [0]
    assert lateness_of([]).to_pandas()["share_late"].tolist() == [0]
    years = lateness_of([0, 10**12]).to_pandas()
    assert (years["bound"].iloc[-1], years["late"].iloc[-1]) == (timedelta(days=30), 1)


def test_it_shows_no_bound_that_is_too_small() -> None:
    found = Lateness("in the order given", 1_002, {0: 999, 90_010: 1}, 90_001, {"null_arrival": 2})
    assert repr(found).splitlines() == [
        "Lateness of 1,000 rows in the order given",
        "bound       late rows  share late",
        "----------  ---------  ----------",
        "0 s                 1  0.1 %",
        "1 s                 1  0.1 %",
        "10 s                1  0.1 %",
        "1 min 0 s           1  0.1 %",
        "10 min 0 s          0  0 %",
        "Bound for rows on time: 99 % 0 s, 99.9 % 0 s, all 1 min 31 s.",
        "Rows left out: 2 null_arrival.",
    ]
    assert "<td" in found._repr_html_()
    assert found.bound_for(1) == timedelta(milliseconds=90_001)
    assert found.share_late("1 minute") == 0.001


@pytest.mark.parametrize("share", [-0.1, 1.1, True, "99 %", None, float("nan")])
def test_a_share_is_a_number_from_0_to_1(share: object) -> None:
    with pytest.raises(ConfigurationError, match="share: expected a number from 0 to 1"):
        lateness_of([0]).bound_for(share)  # type: ignore[arg-type]


TYPES = {"at": "timestamp", "day": "date", "offset": "bigint", "text": "string", "local": "timestamp_ntz", "x": "void"}


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        (("ofset", None, None), SchemaError, "the rows have no column 'ofset'; did you mean 'offset'"),
        (("text", None, None), SchemaError, "'text' is string; expected a timestamp, a date or whole numbers"),
        (("local", None, None), SchemaError, "no time zone"),
        ((3, None, None), SchemaError, "expected a column's name, got 3"),
        (("day", "1 day", None), SchemaError, "every: expected an arrival column of times, got 'day', which is date"),
        ((None, "1 day", None), SchemaError, "got the order of the rows; leave every= out"),
        (("at", "0 s", None), ConfigurationError, "every: expected a duration above zero"),
        (("at", 5, None), ConfigurationError, "every: expected a duration such as"),
        (("at", None, "soon"), ConfigurationError, "max_ahead: expected a duration such as"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[object, ...], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        arrival_order(TYPES, *arguments, 0)  # type: ignore[arg-type]


def test_columns_are_found_as_sparks_are() -> None:
    assert arrival_order(TYPES, "AT", None, None, 0).column == "at"
    assert arrival_order(TYPES, "x", "1 day", None, 0).kind == "timestamp"
