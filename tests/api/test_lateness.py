"""Lateness against the engine: a join with that bound, step by step, has as many late rows; and against DuckDB."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cojoin as cj

if TYPE_CHECKING:
    from collections.abc import Callable

TIME = pa.timestamp("us", "UTC")
MINUTE = 60_000_000
# Within some minutes, with ties, and now and then an hour apart, a day ahead, or none.
MICROS = st.integers(0, 40 * MINUTE) | st.integers(0, 8).map(lambda each: each * MINUTE)
TIMES = st.none() | MICROS | MICROS.map(lambda each: each + 1441 * MINUTE)
ARRIVALS = st.integers(1, 40 * MINUTE) | st.integers(1, 8).map(lambda each: each * MINUTE)
ROWS = st.lists(st.tuples(TIMES, ARRIVALS, st.sampled_from("ab")), max_size=12)
BOUNDS = st.integers(0, 10).map(lambda each: timedelta(seconds=30 * each))


def orders(rows: list[tuple[int | None, int | None, Any]]) -> pa.Table:
    times, arrivals, partitions = ([each[place] for each in rows] for place in range(3))
    columns = {"at": pa.array(times, TIME), "came": pa.array(arrivals, TIME), "desk": pa.array(partitions, pa.string())}
    return pa.table({**columns, "id": pa.array([1] * len(rows), pa.int64())})


def late_in_a_join(rows: pa.Table, bound: timedelta, partition: Any = (), **cuts: Any) -> tuple[int, dict[str, int]]:
    """Return how many rows a join rejects as late, and for other reasons, if it follows these rows' time alone."""
    ahead = pa.table({"id": [1], "at": pa.array([10**15], TIME), "loaded": pa.array([1], TIME)})
    strategy = cj.WatermarkStrategy.for_bounded_out_of_orderness(bound)
    left = cj.Input(rows, key="id", event_time="at", name="orders", watermark=strategy, partition=partition)
    right = cj.Input(ahead, key="id", event_time="at", name="customers", max_ahead=None)
    steps = list(cj.connect(left, right).asof_join().steps(drain=False, **cuts))
    rejected = dict(steps[-1].report.inputs[0].rejected) if steps else {}
    return rejected.pop("late", 0), rejected


@given(ROWS, BOUNDS)
def test_as_many_rows_are_late_as_in_a_join(rows: list[tuple[int | None, int, str]], bound: timedelta) -> None:
    table = orders(rows)
    found = cj.lateness(table, event_time="at", arrival="came")
    late, others = late_in_a_join(table, bound, arrival=("came", "loaded"))
    assert found.late(bound) == late
    assert found.left_out == others
    assert found.rows == len(rows) == found.counted + sum(found.left_out.values())


@given(ROWS, BOUNDS, st.sampled_from(["1 minute", "10 minutes", "1 day"]))
def test_a_scheduled_job_has_as_many(rows: list[tuple[int | None, int, str]], bound: timedelta, every: str) -> None:
    table = orders(rows)
    late, others = late_in_a_join(table, bound, arrival=("came", "loaded"), every=every)
    found = cj.lateness(table, event_time="at", arrival="came", every=every)
    assert (found.late(bound), sum(found.left_out.values())) == (late, sum(others.values()))


@given(ROWS, BOUNDS)
def test_a_join_of_several_partitions_has_at_most_as_many(
    rows: list[tuple[int | None, int, str]], bound: timedelta
) -> None:
    # Of a table's partitions those that have not come yet are unknown, and do not hold time.
    table = orders([(0, 1, "a"), (0, 1, "b"), *[(at, came + 1, desk) for at, came, desk in rows]])
    found = cj.lateness(table, event_time="at", arrival="came", partition="desk")
    late, _ = late_in_a_join(table, bound, "desk", arrival=("came", "loaded"))
    assert late <= found.late(bound) <= cj.lateness(table, event_time="at", arrival="came").late(bound)
    apart = [
        cj.lateness(table.filter(pa.compute.equal(table["desk"], desk)), event_time="at", arrival="came")
        for desk in "ab"
    ]
    assert found.late(bound) == sum(each.late(bound) for each in apart)


@given(ROWS, BOUNDS)
def test_the_order_given_is_an_order_of_arrival(rows: list[tuple[int | None, int, str]], bound: timedelta) -> None:
    table = orders(rows)
    found = cj.lateness(table, event_time="at")
    late, _ = late_in_a_join(table, bound, batches=[(0, 1), *[(1, 0)] * len(rows)])
    assert found.late(bound) == late


@given(st.lists(st.tuples(TIMES, st.none() | ARRIVALS, st.sampled_from(["a", "b", None])), max_size=12))
def test_duckdb_says_the_same(rows: list[tuple[int | None, int | None, Any]]) -> None:
    duckdb = pytest.importorskip("duckdb")
    table = orders(rows)
    behind = (
        duckdb.from_arrow(table)
        .query(
            "orders",
            """
        SELECT greatest(epoch_us(max("at") OVER earlier) // 1000 - epoch_us("at") // 1000, 0)
        FROM orders WHERE "at" IS NOT NULL AND came IS NOT NULL
        WINDOW earlier AS (
            PARTITION BY desk ORDER BY came RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE GROUP
        )
    """,
        )
        .fetchall()
    )
    told = [each or 0 for (each,) in behind]
    found = cj.lateness(table, event_time="at", arrival="came", partition="desk", max_ahead=None)
    assert (found.counted, found.largest_ms) == (len(told), max(told, default=0))
    assert found.late("90 seconds") == sum(each > 90_000 for each in told)
    assert found.left_out.get("null_arrival", 0) == sum(at is not None and came is None for at, came, _ in rows)


JOINS: dict[str, tuple[Callable[[cj.ConnectedInputs], cj.Joined], timedelta]] = {
    "as-of": (lambda pair: pair.asof_join(), timedelta(0)),
    "temporal": (lambda pair: pair.temporal_join(), timedelta(0)),
    "interval": (lambda pair: pair.interval_join("-3 minutes", "5 minutes", "left"), timedelta(minutes=5)),
}


@pytest.mark.parametrize("join", JOINS)
@given(rows=ROWS, versions=ROWS, bounds=st.tuples(BOUNDS, BOUNDS), every=st.sampled_from([None, "5 minutes"]))
def test_the_output_of_a_join_is_an_input_that_needs_no_bound(
    join: str, rows: Any, versions: Any, bounds: tuple[timedelta, timedelta], every: str | None
) -> None:
    """That of an interval join needs its upper bound, since a pair comes out at the later of two times."""
    joined, needed = JOINS[join]
    strategies = [cj.WatermarkStrategy.for_bounded_out_of_orderness(each) for each in bounds]
    left = cj.Input(orders(rows), key="id", event_time="at", name="orders", watermark=strategies[0])
    right = orders(versions).select(["id", "at", "came"]).rename_columns(["id", "since", "loaded"])
    pair = cj.connect(left, cj.Input(right, key="id", event_time="since", name="customers", watermark=strategies[1]))
    outputs = [step.output for step in joined(pair).steps(arrival=("came", "loaded"), every=every)]
    batches = [each.append_column("batch", pa.array([at] * len(each), pa.int64())) for at, each in enumerate(outputs)]
    found = cj.lateness(pa.concat_tables(batches), event_time="at", arrival="batch") if batches else None
    assert found is None or found.largest_ms <= needed / timedelta(milliseconds=1)


def frames() -> dict[str, Any]:
    table = orders([(10 * MINUTE, 1, "a"), (2 * MINUTE, 2, "a"), (None, 3, "a"), (3 * MINUTE, None, "b")])
    found: dict[str, Any] = {"pandas": table.to_pandas(), "arrow": table, "reader": table.to_reader()}
    for name in ("polars", "duckdb"):
        try:
            module = __import__(name)
        except ImportError:
            continue
        found[name] = module.from_arrow(table)
    return found


@pytest.mark.parametrize("library", ["pandas", "arrow", "reader", "polars", "duckdb"])
def test_frames_of_every_library(library: str) -> None:
    if library not in frames():
        pytest.skip(f"no {library}")
    found = cj.lateness(frames()[library], event_time="at", arrival="came")
    assert (found.rows, found.counts, found.largest_ms) == (4, {0: 1, 480_000: 1}, 480_000)
    assert found.left_out == {"null_event_time": 1, "null_arrival": 1}


def test_dates_and_numbers_are_arrivals_and_have_no_clock() -> None:
    rows = orders([(10 * MINUTE, 1, "a"), (2 * MINUTE, 2, "a")])
    for arrivals in ([date(2026, 1, 1), date(2026, 1, 2)], [7, 8]):
        found = cj.lateness(rows.append_column("order", pa.array(arrivals)), event_time="at", arrival="order")
        assert found.largest_ms == 480_000
        assert found.order == "in the order of 'order'"


def test_the_clock_is_rounded_up_as_that_of_a_micro_batch_is() -> None:
    for event, left_out in ((2_999, {}), (3_000, {"too_far_ahead": 1})):
        found = cj.lateness(orders([(event, 1_001, "a")]), event_time="at", arrival="came", max_ahead="0 seconds")
        assert found.left_out == left_out
    found = cj.lateness(
        orders([(61_001_000, 1_001, "a")]), event_time="at", arrival="came", max_ahead="0 s", every="1 min"
    )
    assert found.left_out == {"too_far_ahead": 1}


def test_without_a_clock_the_present_moment_is_one() -> None:
    far = int(pd.Timestamp("2200-01-01").timestamp()) * 1_000_000
    rows = orders([(MINUTE, 1, "a"), (far, 2, "a"), (0, 3, "a")])
    assert cj.lateness(rows, event_time="at").left_out == {"too_far_ahead": 1}
    assert cj.lateness(rows, event_time="at").largest_ms == 60_000
    assert cj.lateness(rows, event_time="at", max_ahead=None).largest_ms == far // 1_000


def test_empty_frames() -> None:
    for empty in (orders([]), orders([]).to_pandas(), pd.DataFrame({"at": [], "came": []}, dtype=object)):
        found = cj.lateness(empty, event_time="at", arrival="came")
        assert (found.rows, found.counted, found.bound_for(1.0)) == (0, 0, timedelta(0))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"event_time": "att"}, "input 'source' has no event time column 'att'; did you mean 'at'"),
        ({"event_time": "id"}, "event time column 'id': expected a timestamp, got bigint"),
        ({"event_time": None}, "event_time: expected a column's name, got None"),
        ({"event_time": "at", "arrival": "cam"}, "no column 'cam'; did you mean 'came'"),
        ({"event_time": "at", "arrival": "desk"}, "'desk' is string"),
        ({"event_time": "at", "partition": "dsk"}, "no partition column 'dsk'; did you mean 'desk'"),
        ({"event_time": "at", "partition": [["desk"]]}, "expected a column's name"),
        ({"event_time": "at", "partition": 5}, "expected a column's name, or a list of names, got 5"),
        ({"event_time": ["at"]}, "event time: expected a column's name"),
        ({"event_time": "at", "every": "1 day"}, "got the order of the rows"),
    ],
)
def test_wrong_columns_are_named(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=told):
        cj.lateness(orders([(1, 1, "a")]), **arguments)
    with pytest.raises(cj.ConfigurationError, match=told):
        cj.lateness(orders([(1, 1, "a")]).to_pandas(), **arguments)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("/lake/orders", "did you mean cojoin.sources.delta"),
        (cj.Input(orders([]), key="id", event_time="at"), "got an Input; give its source"),
        ([{"at": 1}], "pyarrow.Table.from_pylist"),
    ],
)
def test_other_values_are_no_rows(source: Any, told: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=told):
        cj.lateness(source, event_time="at")
