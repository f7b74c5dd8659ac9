"""How two inputs are cut into micro-batches, and the processing time of each."""

from __future__ import annotations

import decimal
import re
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.embedded.micro_batches import cut_batches, processing_times
from cojoin.engine.input_spec import InputSpec

UTC = timezone.utc
TIME = pa.timestamp("us", "UTC")
NINE = 1_768_467_600_000_000
MINUTE = 60_000_000


def spec(name: str, table: pa.Table, *, event_time: str | None = "at") -> InputSpec:
    return InputSpec(name, table.schema, ("id",), event_time)


def table(times: list[int | None], **columns: Any) -> pa.Table:
    """Return rows numbered from 0 on, with event times in minutes after nine."""
    at = pa.array([None if each is None else NINE + each * MINUTE for each in times], pa.int64()).cast(TIME)
    made = pa.table({"id": pa.array(range(len(times)), pa.int64()), "at": at})
    for name, values in columns.items():
        made = made.append_column(name, values if isinstance(values, pa.Array) else pa.array(values))
    return made


def cut(left: pa.Table, right: pa.Table, batches: Any = None, arrival: Any = None, every: Any = None) -> Any:
    return cut_batches((spec("trades", left), spec("customers", right)), (left, right), batches, arrival, every)


def ids(cuts: Any) -> list[tuple[list[int], list[int]]]:
    return [tuple(rows["id"].to_pylist() for rows in cuts.batch(number)) for number in range(len(cuts))]


LEFT, RIGHT = table([0, 4, 2, 9, 21]), table([1, 1, 8])


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        (None, [([0, 1, 2, 3, 4], [0, 1, 2])]),
        (1, [([0, 1, 2, 3, 4], [0, 1, 2])]),
        (2, [([0, 1, 2], [0, 1]), ([3, 4], [2])]),
        (4, [([0, 1], [0]), ([2], [1]), ([3], [2]), ([4], [])]),
        ([(2, 0), (0, 0), (3, 3)], [([0, 1], []), ([], []), ([2, 3, 4], [0, 1, 2])]),
        (iter([(5, 1), [0, 2]]), [([0, 1, 2, 3, 4], [0]), ([], [1, 2])]),
    ],
)
def test_rows_in_the_order_given_are_cut_by_number(batches: Any, expected: Any) -> None:
    assert ids(cut(LEFT, RIGHT, batches)) == expected


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 64])
@pytest.mark.parametrize("rows", [0, 1, 9, 10])
def test_even_parts_differ_by_one_row_at_most_and_lose_none(count: int, rows: int) -> None:
    cuts = cut(table([0] * rows), RIGHT, count)
    sizes = [len(left) for left, _ in ids(cuts)]
    assert len(sizes) == count
    assert max(sizes) - min(sizes) <= 1
    assert [each for left, _ in ids(cuts) for each in left] == list(range(rows))


@pytest.mark.parametrize(
    "values",
    [
        ([3, 1, 3, 2], [2, 9]),
        ([2.5, -1.0, 2.5, 0.0], [0.0, float("inf")]),
        (
            [date(2026, 1, 3), date(2026, 1, 1), date(2026, 1, 3), date(2026, 1, 2)],
            [date(2026, 1, 2), date(2026, 2, 1)],
        ),
        (list(map(decimal.Decimal, ["3.10", "1.00", "3.10", "2.00"])), list(map(decimal.Decimal, ["2.00", "9.00"]))),
        (
            [datetime(2026, 1, 1, minute=each, tzinfo=UTC) for each in (3, 1, 3, 2)],
            [datetime(2026, 1, 1, minute=each, tzinfo=UTC) for each in (2, 9)],
        ),
    ],
    ids=lambda values: type(values[0][0]).__name__,
)
def test_rows_arrive_in_the_order_of_a_column_and_those_of_one_value_together(values: Any) -> None:
    left, right = table([0] * 4, seen=values[0]), table([0] * 2, seen=values[1])
    assert ids(cut(left, right, arrival="seen")) == [([1], []), ([3], [0]), ([0, 2], []), ([], [1])]


def test_the_arrival_columns_of_both_inputs_may_have_different_names() -> None:
    left, right = table([0, 0], seen=[2, 1]), table([0], loaded=[1])
    assert ids(cut(left, right, arrival=("seen", "loaded"))) == [([1], [0]), ([0], [])]


def test_windows_of_arrival_hold_their_start_but_not_their_end_and_empty_ones_make_no_batch() -> None:
    left, right = table([0, 10, 9, 31]), table([12])
    cuts = cut(left, right, arrival="at", every="10 minutes")
    assert ids(cuts) == [([0, 2], []), ([1], [0]), ([3], [])]
    assert processing_times(cuts, None) == [(NINE + minute * MINUTE) // 1_000 for minute in (10, 20, 40)]


def test_windows_of_event_time_say_nothing_of_the_clock() -> None:
    cuts = cut(LEFT, RIGHT, every=timedelta(minutes=5))
    assert ids(cuts) == [([0, 1, 2], [0, 1]), ([3], [2]), ([4], [])]
    assert processing_times(cuts, None) == [0, 0, 0]


def test_a_row_without_event_time_comes_with_the_row_before_it() -> None:
    left = table([None, 0, 20, None, 0])
    assert ids(cut(left, RIGHT, every="10 minutes")) == [([0, 1, 4], [0, 1, 2]), ([2, 3], [])]
    assert ids(cut(table([None]), table([None]), every="10 minutes")) == [([0], [0])]


def test_windows_before_1970_are_aligned_as_those_after() -> None:
    moments = pa.array([-1, 0, -600_000_000, -600_000_001]).cast(TIME)
    left = pa.table({"id": [0, 1, 2, 3], "at": moments})
    assert ids(cut(left, RIGHT.slice(0, 0), every="10 minutes")) == [([3], []), ([0, 2], []), ([1], [])]


def test_inputs_without_rows() -> None:
    nothing = table([])
    assert ids(cut(nothing, nothing)) == [([], [])]
    for way in ({"arrival": "at"}, {"every": "1 hour"}, {"arrival": "at", "every": "1 hour"}):
        cuts = cut(nothing, nothing, **way)
        assert (ids(cuts), processing_times(cuts, None)) == ([], [])


def test_without_a_window_the_clock_is_the_arrival_rounded_up_to_milliseconds() -> None:
    left = pa.table({"id": [0, 1], "at": pa.array([1_000, 1_001]).cast(TIME)})
    assert processing_times(cut(left, RIGHT.slice(0, 0), arrival="at"), None) == [1, 2]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, [0, 0]),
        (1_500, [1_500, 1_500]),
        (datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=UTC), [1_000, 1_000]),
        (pd.Timestamp("1970-01-01 01:00:01", tz="Europe/Berlin"), [1_000, 1_000]),
        ([5, 5], [5, 5]),
        ((0, 7), [0, 7]),
        (pd.to_datetime([1, 2], unit="s", utc=True), [1_000, 2_000]),
        (pd.Series([3, 4]), [3, 4]),
    ],
)
def test_processing_time_is_one_time_or_one_for_each_batch(given: Any, expected: Any) -> None:
    assert processing_times(cut(LEFT, RIGHT, 2), given) == expected


REFUSED_TIMES = [
    ("09:00", "processing_time: expected a datetime with a time zone, or epoch milliseconds"),
    (True, "processing_time: expected a datetime with a time zone, or epoch milliseconds"),
    (1.5, "got 1.5 (float)"),
    (datetime(2026, 1, 1), "has no time zone"),  # noqa: DTZ001 - that is what is refused
    (-1, "expected a time from 1970 on"),
    (2**63 - 1, "below 9223372036854775807 epoch milliseconds, got 9223372036854775807"),
    ([1], "expected one time for each of the 2 batches, got 1; the drain after them uses the time of the last batch"),
    ([1, 2, 3], "expected one time for each of the 2 batches, got 3"),
    ([2_000, 1_000], "processing_time[1]: it goes back, from 1970-01-01 00:00:02.000 to 1970-01-01 00:00:01.000"),
    ([2_000, 0], "to unknown; give the times in order"),
    ([1, None], "processing_time[1]: expected a datetime"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED_TIMES)
def test_a_processing_time_that_is_none_is_refused(given: Any, message: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=re.escape(message)):
        processing_times(cut(LEFT, RIGHT, 2), given)


@pytest.mark.parametrize(("micros", "time"), [(-5_000, "1969-12-31 23:59:59.995"), (0, "1970-01-01 00:00:00.000")])
def test_arrivals_that_are_not_after_the_epoch_need_a_clock(micros: int, time: str) -> None:
    left = pa.table({"id": [0], "at": pa.array([micros]).cast(TIME)})
    cuts = cut(left, RIGHT, arrival="at")
    with pytest.raises(cj.ConfigurationError, match=f"rows arrive up to {time}, and processing times are after 1970"):
        processing_times(cuts, None)
    assert processing_times(cuts, 0) == [0] * len(cuts)


OTHERS = {"text": ["10", "9", "8", "7", "6"], "raw": [b"1"] * 5, "flag": [True] * 5}
NAIVE = pa.array([0] * 5).cast(pa.timestamp("us"))
REFUSED = [
    ({"batches": 0}, "batches: expected a whole number above zero, or pairs of row counts, got 0"),
    ({"batches": True}, "got True"),
    ({"batches": "at"}, "to cut by a column, use arrival= or every="),
    ({"batches": 2.0}, "got 2.0"),
    ({"batches": [3, 2]}, "batches[0]: expected the next rows of the left and of the right, such as (2, 1), got 3"),
    ({"batches": [(5, 3), (0, -1)]}, "batches[1]: expected the next rows"),
    ({"batches": [(5, 3, 1)]}, "batches[0]"),
    ({"batches": [(3, 3)]}, "take 3 rows of input 'trades', which has 5: 2 rows would be in no batch; let"),
    ({"batches": [(5, 2)]}, "take 2 rows of input 'customers', which has 3: 1 row would be in no batch"),
    ({"batches": [(5, 3), (1_001, 0)]}, "take 1,006 rows of input 'trades', which has 5: 1,001 too many"),
    ({"batches": []}, "take 0 rows of input 'trades'"),
    ({"batches": 2, "every": "1 hour"}, "batches, every: rows can be cut in one way only; leave out batches="),
    ({"batches": 2, "arrival": "at"}, "or arrival= to cut by numbers of rows"),
    ({"arrival": 5}, "arrival: expected a column's name, or a pair of names, left and right, got 5"),
    ({"arrival": ("at",)}, "got ('at',)"),
    ({"arrival": "att"}, "input 'trades' has no column 'att'; did you mean 'at'?"),
    ({"arrival": "seen"}, "input 'customers' has no column 'seen'"),
    ({"arrival": ("at", "id")}, "'at' of input 'trades' is timestamp, column 'id' of input 'customers' is bigint"),
    ({"arrival": "tags"}, "column 'tags' of input 'trades' is array<bigint>; expected numbers, timestamps or dates"),
    ({"arrival": "text"}, "column 'text' of input 'trades' is string; expected numbers, timestamps or dates, whose"),
    ({"arrival": "text"}, "whose order is that of arrival: convert it to one of these"),
    ({"arrival": "raw"}, "column 'raw' of input 'trades' is binary; expected numbers, timestamps or dates"),
    ({"arrival": "flag"}, "column 'flag' of input 'trades' is boolean; expected numbers, timestamps or dates"),
    ({"arrival": "naive"}, "is timestamp_ntz: it has no time zone"),
    ({"arrival": "gap"}, "column 'gap' of input 'trades' is null in row 2, so it never arrives"),
    ({"arrival": "id", "every": "1 hour"}, "every: expected an arrival column of times, got 'id', which is bigint"),
    ({"every": 600}, "every: expected a duration such as '5 seconds'"),
    ({"every": "0 s"}, "every: must be longer than zero, got '0 s'"),
    ({"every": "99999999999 days"}, "every: expected at most 9223372036854775807 microseconds, some 292,000 years"),
    ({"every": timedelta.max, "arrival": "at"}, "got datetime.timedelta(days=999999999"),
    ({"every": "-1 s"}, "every: expected a duration of zero or more"),
]  # fmt: skip


@pytest.mark.parametrize(("way", "message"), REFUSED, ids=lambda each: str(each)[:40])
def test_a_wrong_way_of_cutting_is_refused(way: Any, message: str) -> None:
    left = table([0] * 5, seen=[1] * 5, tags=[[1]] * 5, naive=NAIVE, gap=[1, 1, None, 1, 1], **OTHERS)
    right = table([0] * 3, tags=[[1]] * 3, naive=NAIVE[:3], gap=[1] * 3)
    with pytest.raises(cj.ConfigurationError, match=re.escape(message)):
        cut(left, right, **way)


def test_the_longest_window_is_one_batch() -> None:
    ((left, right),) = ids(cut(LEFT, RIGHT, every="9223372036854775807 us"))
    assert (len(left), len(right)) == (5, 3)


def test_windows_of_event_time_need_event_times() -> None:
    with pytest.raises(cj.ConfigurationError, match="input 'customers' has no event time; name the column by which"):
        cut_batches((spec("trades", LEFT), spec("customers", RIGHT, event_time=None)), (LEFT, RIGHT), None, None, "1 h")
