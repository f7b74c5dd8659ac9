"""The demo's rows have the troubles that the demo is about."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cojoin.cli.day import FILES, make_day


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
