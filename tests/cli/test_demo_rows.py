"""The demo's rows are as hard as it describes them, and the comparison with pandas finds every difference."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cojoin.cli.demo import FILES, admitted, compare, expected_rows, make_day
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.joins.asof import AsofJoin
from cojoin.engine.time.watermarks import END_OF_TIME, NONE


def micros(table: pa.Table) -> np.ndarray:
    return table["event_time"].drop_null().cast(pa.int64()).to_numpy()


def test_a_day_is_out_of_order_by_less_than_five_seconds():
    day = make_day(20_000, 1)
    for table in (day.trades, day.customers):
        behind = np.maximum.accumulate(micros(table)) - micros(table)
        assert 0 < behind.max() < 5_000_000
    assert (day.trades.num_rows, day.customers.num_rows, day.customer_count) == (20_000, 2_000, 100)


def test_a_day_has_ties_and_broken_rows():
    day = make_day(20_000, 1)
    assert np.intersect1d(micros(day.trades), micros(day.customers)).size >= 90
    assert len(np.unique(micros(day.trades) // 1_000)) < day.trades.num_rows
    assert [table["customer_id"].null_count for table in (day.trades, day.customers)] == [3, 1]
    assert [table["event_time"].null_count for table in (day.trades, day.customers)] == [2, 1]


def test_a_seed_gives_the_same_day():
    assert make_day(500, 3).trades.equals(make_day(500, 3).trades)
    assert not make_day(500, 3).trades.equals(make_day(500, 4).trades)


def test_a_tiny_day_is_possible():
    day = make_day(1, 1)
    assert (day.trades.num_rows, day.customers.num_rows) == (1, 1)


def test_files_ascend_in_time_and_hold_all_rows(tmp_path):
    day = make_day(1_000, 2)
    day.write(tmp_path)
    files = sorted((tmp_path / "trades").iterdir())
    assert len(files) == FILES
    assert len({file.stat().st_mtime for file in files}) == FILES
    assert files == sorted(files, key=lambda file: file.stat().st_mtime)
    assert pq.read_table(files[0]).equals(day.trades.slice(0, 1_000 // FILES))
    assert sum(pq.read_metadata(file).num_rows for file in files) == 1_000


TIME = pa.timestamp("us", "UTC")
TRADES = InputSpec(
    "trades",
    pa.schema([("customer_id", pa.int64()), ("event_time", TIME), ("trade_id", pa.int64())]),
    ("customer_id",),
    "event_time",
)
CUSTOMERS = InputSpec(
    "customers",
    pa.schema([("customer_id", pa.int64()), ("event_time", TIME), ("tier", pa.string())]),
    ("customer_id",),
    "event_time",
)
START = datetime(2026, 1, 15, tzinfo=timezone.utc)


def table(spec: InputSpec, *rows: tuple) -> pa.Table:
    """Return rows of (key, seconds, payload)."""
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    times = [None if second is None else START + timedelta(seconds=second) for second in columns[1]]
    return pa.table([pa.array(columns[0], pa.int64()), pa.array(times, TIME), list(columns[2])], schema=spec.schema)


def tiers(join: AsofJoin, trades: pa.Table, customers: pa.Table, watermark: int = END_OF_TIME) -> dict:
    expected = expected_rows(join, (TRADES, CUSTOMERS), (trades, customers), watermark)
    assert expected.schema == join.output_schema(TRADES, CUSTOMERS)
    return dict(zip(expected["trade_id"].to_pylist(), expected["tier"].to_pylist(), strict=True))


def test_expected_rows_follow_the_joins_configuration():
    trades = table(TRADES, (1, 5, 50), (1, 1, 10), (1, 2, 20), (2, 9, 90), (1, 100, 1000))
    customers = table(CUSTOMERS, (1, 3, "silver"), (1, 2, "bronze"), (1, 2, "brass"))
    every = {10: None, 20: "bronze", 50: "silver", 90: None, 1000: "silver"}
    assert tiers(AsofJoin(), trades, customers) == every
    assert tiers(AsofJoin("inner"), trades, customers) == {key: tier for key, tier in every.items() if tier}
    assert tiers(AsofJoin(tolerance="10 seconds"), trades, customers) == {**every, 1000: None}
    assert tiers(AsofJoin(allow_exact_matches=False), trades, customers) == {**every, 20: None}
    watermark = int((START + timedelta(seconds=5)).timestamp() * 1000)
    assert tiers(AsofJoin(), trades, customers, watermark) == {10: None, 20: "bronze", 50: "silver"}
    assert tiers(AsofJoin(), trades, customers, NONE) == {}
    assert set(tiers(AsofJoin(), trades, table(CUSTOMERS)).values()) == {None}


def test_rows_without_key_or_event_time_are_not_expected():
    trades = table(TRADES, (1, 5, 50), (None, 6, 60), (1, None, 70), (1, 5, 50))
    assert admitted(trades, TRADES)["trade_id"].to_pylist() == [50, 50]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 1]),
        pa.array([float("nan"), 0.0, None]),
        pa.array(["a", "", None]),
        pa.array([[1, None], [], None], pa.list_(pa.int64())),
        pa.array([{"x": 1}, {"x": None}, None], pa.struct([("x", pa.int64())])),
    ],
)
def test_rows_compare_as_a_multiset(column):
    whole = pa.table({"column": column, "other": ["x", "y", "x"]})
    verdict = compare(whole, whole.take([2, 0, 1]))
    assert verdict.is_equal
    assert (verdict.expected, verdict.got) == (3, 3)
    verdict = compare(whole, whole.take([0, 0, 2]))
    assert not verdict.is_equal
    assert verdict.missing.to_pylist() == whole.slice(1, 1).to_pylist()
    assert verdict.unexpected.num_rows == 1
    assert compare(whole.slice(0, 0), whole.slice(0, 0)).is_equal
