"""The benchmark's data: trades and customer versions as parquet files, seeded, with bounded disorder.

Trades come at a steady pace over a day of event time; a row may stand up to ``DISORDER_SECONDS`` later in its files
than its event time says. A few customers trade much more than the rest. Every file covers its own stretch of the day,
the same of both inputs, so files are batches. Event times are whole milliseconds and a customer has at most one version
in each: Flink's event time holds no more, and so all contenders have one right answer. A file at a time is in memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["CUSTOMERS_DDL", "DISORDER_SECONDS", "START_MS", "TRADES_DDL", "Size", "generate"]

DISORDER_SECONDS = 5
DAY_MS = 86_400_000
START_MS = 1_768_435_200_000  # 2026-01-15 00:00 UTC
FEWEST_FILES, TRADES_A_FILE = 10, 500_000

TRADES_DDL = "trade_id bigint, customer_id bigint, event_time timestamp, amount double, symbol string"
CUSTOMERS_DDL = "customer_id bigint, event_time timestamp, tier string, credit double"

_TIMESTAMP = pa.timestamp("us", "UTC")
_SYMBOLS = pa.array([f"SYM{number:03d}" for number in range(200)])
_TIERS = pa.array(["bronze", "silver", "gold", "platinum"])


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

    @classmethod
    def of(cls, trades: int, keys: int) -> Size:
        """Return the benchmark's shape: a fifth as many versions, ten files or as many as half a million each takes."""
        return cls(trades, trades // 5, keys, max(FEWEST_FILES, -(-trades // TRADES_A_FILE)))


def generate(size: Size, folder: Path, seed: int = 7) -> None:
    """Write ``trades`` and ``customers`` below a folder."""
    versions = _version_times_and_keys(size, seed)
    for name in ("trades", "customers"):
        (folder / name).mkdir(parents=True)
    for number in range(size.files):
        rng = np.random.default_rng([seed, 0, number])
        first, stop = _bounds(size.trades, size, number)
        _write(_trades(rng, size, number, first, stop), folder / "trades", number)
        rng = np.random.default_rng([seed, 1, number])
        _write(_customers(rng, *versions, _bounds(size.versions, size, number)), folder / "customers", number)


def _trades(rng: np.random.Generator, size: Size, number: int, first: int, stop: int) -> pa.Table:
    count = stop - first
    return pa.table(
        {
            "trade_id": pa.array(np.arange(first, stop)),
            "customer_id": pa.array(_skewed_keys(rng, count, size.keys)),
            "event_time": _timestamps(_times(rng, size, number, count)),
            "amount": pa.array(np.round(rng.lognormal(4, 1, count), 2)),
            "symbol": _SYMBOLS.take(pa.array(rng.integers(0, len(_SYMBOLS), count))),
        }
    )


def _customers(rng: np.random.Generator, times: np.ndarray, keys: np.ndarray, bounds: tuple[int, int]) -> pa.Table:
    here = slice(*bounds)
    count = bounds[1] - bounds[0]
    return pa.table(
        {
            "customer_id": pa.array(keys[here]),
            "event_time": _timestamps(times[here]),
            "tier": _TIERS.take(pa.array(rng.integers(0, len(_TIERS), count))),
            "credit": pa.array(np.round(rng.uniform(0, 1e6, count), 2)),
        }
    )


def _version_times_and_keys(size: Size, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw all versions' times and keys; one that falls into the millisecond of another gets another key."""
    rng = np.random.default_rng([seed, 2])
    counts = [stop - first for first, stop in (_bounds(size.versions, size, number) for number in range(size.files))]
    times = np.concatenate([_times(rng, size, number, count) for number, count in enumerate(counts)])
    keys = rng.integers(0, size.keys, size.versions)
    while True:
        _, firsts = np.unique(keys * DAY_MS + times, return_index=True)
        twins = np.setdiff1d(np.arange(size.versions), firsts)
        if not len(twins):
            return times, keys
        keys[twins] = rng.integers(0, size.keys, len(twins))


def _bounds(rows: int, size: Size, number: int) -> tuple[int, int]:
    return rows * number // size.files, rows * (number + 1) // size.files


def _times(rng: np.random.Generator, size: Size, number: int, count: int) -> np.ndarray:
    """Return the times of a file's rows in milliseconds of the day, in the order in which the rows stand in it."""
    arrival = np.sort(rng.integers(*_bounds(DAY_MS, size, number), count))
    return np.maximum(0, arrival - rng.integers(0, DISORDER_SECONDS * 1_000, count))


def _timestamps(times: np.ndarray) -> pa.Array:
    return pa.array((START_MS + times) * 1_000, pa.int64()).cast(_TIMESTAMP)


def _skewed_keys(rng: np.random.Generator, count: int, keys: int) -> np.ndarray:
    skewed = np.minimum(rng.pareto(1.2, count) * keys / 50, keys - 1).astype(np.int64)
    even = rng.integers(0, keys, count)
    return np.where(rng.random(count) < 0.3, skewed, even)


def _write(table: pa.Table, folder: Path, number: int) -> None:
    path = folder / f"{number:04d}.parquet"
    pq.write_table(table, path)
    # A stream takes files by their age.
    os.utime(path, (START_MS / 1e3 + number, START_MS / 1e3 + number))
