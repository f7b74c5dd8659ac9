"""The benchmark's data: trades and customer versions as parquet files, seeded, with bounded disorder.

Trades come at a steady pace over a day of event time; a row may stand up to ``DISORDER_SECONDS`` later in its files
than its event time says. A few customers trade much more than the rest. Every file covers its own stretch of the day,
so files are batches.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DISORDER_SECONDS = 5
DAY_US = 86_400_000_000
START_US = 1_768_435_200_000_000  # 2026-01-15 00:00 UTC

TRADES_DDL = "trade_id bigint, customer_id bigint, event_time timestamp, amount double, symbol string"
CUSTOMERS_DDL = "customer_id bigint, event_time timestamp, tier string, credit double"

_TIMESTAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Size:
    """How much data there is.

    Attributes:
        trades: Rows on the left.
        versions: Rows on the right.
        keys: Distinct customers.
        files: Files an input.
    """

    trades: int
    versions: int
    keys: int
    files: int

    def fifth(self) -> Size:
        """The same shape with a fifth of the rows."""
        return Size(self.trades // 5, self.versions // 5, self.keys, self.files)


def generate(size: Size, folder: Path, seed: int = 7) -> None:
    """Write ``trades`` and ``customers`` below a folder."""
    rng = np.random.default_rng(seed)
    trades = _times(rng, size.trades)
    keys = _skewed_keys(rng, size.trades, size.keys)
    symbols = np.array([f"SYM{number:03d}" for number in range(200)])
    table = pa.table(
        {
            "trade_id": pa.array(np.arange(size.trades)),
            "customer_id": pa.array(keys),
            "event_time": pa.array(trades, pa.int64()).cast(_TIMESTAMP),
            "amount": pa.array(np.round(rng.lognormal(4, 1, size.trades), 2)),
            "symbol": pa.array(symbols[rng.integers(0, len(symbols), size.trades)]),
        }
    )
    _write(table, folder / "trades", size.files)
    versions = _times(rng, size.versions)
    tiers = np.array(["bronze", "silver", "gold", "platinum"])
    table = pa.table(
        {
            "customer_id": pa.array(rng.integers(0, size.keys, size.versions)),
            "event_time": pa.array(versions, pa.int64()).cast(_TIMESTAMP),
            "tier": pa.array(tiers[rng.integers(0, len(tiers), size.versions)]),
            "credit": pa.array(np.round(rng.uniform(0, 1e6, size.versions), 2)),
        }
    )
    _write(table, folder / "customers", size.files)


def _times(rng: np.random.Generator, count: int) -> np.ndarray:
    """Give event times in the order in which the rows stand in the files."""
    arrival = np.sort(rng.integers(0, DAY_US, count))
    return START_US + np.maximum(0, arrival - rng.integers(0, DISORDER_SECONDS * 1_000_000, count))


def _skewed_keys(rng: np.random.Generator, count: int, keys: int) -> np.ndarray:
    skewed = np.minimum(rng.pareto(1.2, count) * keys / 50, keys - 1).astype(np.int64)
    even = rng.integers(0, keys, count)
    return np.where(rng.random(count) < 0.3, skewed, even)


def _write(table: pa.Table, folder: Path, files: int) -> None:
    folder.mkdir(parents=True)
    bounds = np.linspace(0, table.num_rows, files + 1).astype(int)
    for number, (start, stop) in enumerate(pairwise(bounds)):
        path = folder / f"{number:04d}.parquet"
        pq.write_table(table.slice(start, stop - start), path)
        # A stream takes files by their age.
        os.utime(path, (START_US / 1e6 + number, START_US / 1e6 + number))
