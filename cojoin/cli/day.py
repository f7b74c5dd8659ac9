"""The demo's rows: a day of trades and of changes to the customers' records, in the order in which they arrive.

The rows are made from a seed, so they are the same each time. They arrive out of order by up to 5 seconds. Event times
have microseconds, and several rows share a millisecond. Some trades happen in the same microsecond as a change, and
some before their customer's first record. A few rows have a null key or a null event time. The files' modification
times ascend, since Spark reads files in that order.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["CUSTOMERS_DDL", "DAY", "FILES", "OUT_OF_ORDERNESS", "TRADES_DDL", "Day", "make_day"]

DAY = datetime(2026, 1, 15, tzinfo=timezone.utc)
OUT_OF_ORDERNESS = "5 seconds"
FILES = 5
TRADES_DDL = "trade_id long, customer_id long, event_time timestamp, amount double"
CUSTOMERS_DDL = "customer_id long, event_time timestamp, tier string, credit_limit double"

_DAY_MICROS = 86_400_000_000
_LATEST_MICROS = 5_000_000
_TRADES_A_VERSION = 10
_VERSIONS_A_CUSTOMER = 20
_TIERS = ("bronze", "silver", "gold", "platinum")
_TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Day:
    """The demo's rows, in the order of their arrival.

    Attributes:
        trades: The trades.
        customers: The versions of the customers' records.
        customer_count: The number of customers.
    """

    trades: pa.Table
    customers: pa.Table
    customer_count: int

    def write(self, folder: Path) -> None:
        """Write both tables as folders of Parquet files."""
        _write(self.trades, folder / "trades")
        _write(self.customers, folder / "customers")


def make_day(trade_count: int, seed: int) -> Day:
    """Return a day with a number of trades, made from a seed."""
    rng = np.random.default_rng(seed)
    version_count = max(1, trade_count // _TRADES_A_VERSION)
    customer_count = max(1, version_count // _VERSIONS_A_CUSTOMER)
    start = int(DAY.timestamp()) * 1_000_000

    version_times = start + rng.integers(0, _DAY_MICROS, version_count)
    version_keys = rng.integers(1, customer_count + 1, version_count)
    # A few customers trade far more than the others.
    trade_keys = 1 + np.floor(customer_count * rng.random(trade_count) ** 2).astype(np.int64)
    trade_times = start + rng.integers(0, _DAY_MICROS, trade_count)
    same = rng.integers(0, version_count, max(1, trade_count // 200))
    trade_times[: len(same)], trade_keys[: len(same)] = version_times[same], version_keys[same]

    trades = pa.table(
        {
            "trade_id": pa.array(np.arange(1, trade_count + 1)),
            "customer_id": _with_nulls(trade_keys, pa.int64(), _some(rng, trade_count, 3)),
            "event_time": _with_nulls(trade_times, _TIME, _some(rng, trade_count, 2)),
            "amount": pa.array(np.round(rng.lognormal(5, 1, trade_count), 2)),
        }
    )
    customers = pa.table(
        {
            "customer_id": _with_nulls(version_keys, pa.int64(), _some(rng, version_count, 1)),
            "event_time": _with_nulls(version_times, _TIME, _some(rng, version_count, 1)),
            "tier": pa.array(np.array(_TIERS)[rng.integers(0, len(_TIERS), version_count)]),
            "credit_limit": pa.array(rng.integers(1, 100, version_count) * 1_000.0),
        }
    )
    return Day(_arrived(trades, trade_times, rng), _arrived(customers, version_times, rng), customer_count)


def _some(rng: np.random.Generator, count: int, broken: int) -> NDArray[np.bool_]:
    """Return a mask of the rows that get a null; a tiny day has none."""
    chosen = np.zeros(count, dtype=bool)
    if count >= 100 * broken:
        chosen[rng.choice(count, broken, replace=False)] = True
    return chosen


def _with_nulls(values: NDArray[np.int64], dtype: pa.DataType, mask: NDArray[np.bool_]) -> pa.Array:
    return pa.array(values, mask=mask).cast(dtype)


def _arrived(table: pa.Table, times: NDArray[np.int64], rng: np.random.Generator) -> pa.Table:
    """Return the rows sorted by their time of arrival, which is less than 5 seconds after the event."""
    return table.take(pa.array(np.argsort(times + rng.integers(0, _LATEST_MICROS, len(times)), kind="stable")))


def _write(table: pa.Table, folder: Path) -> None:
    folder.mkdir(parents=True)
    bounds = np.linspace(0, table.num_rows, FILES + 1).astype(int)
    now = time.time()
    for number, (begin, end) in enumerate(pairwise(bounds.tolist())):
        path = folder / f"part-{number:02d}.parquet"
        pq.write_table(table.slice(begin, end - begin), path)
        os.utime(path, (now - FILES + number, now - FILES + number))
