"""The shapes of data that ``growth`` runs over, and their parquet files: seeded, two files an input and batch.

Every batch is an hour of event time, drawn anew in the same way, so batches of a shape differ in nothing but their
rows. A row stands up to ``DISORDER_SECONDS`` later in its batch than its time says. No two rows of an input have the
same time, so there is one right answer, which ``join.oracle`` knows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.join.generate import CUSTOMERS_DDL, DISORDER_SECONDS, START_MS, TRADES_DDL

__all__ = [
    "BASE",
    "DIMENSIONS",
    "FILES_PER_BATCH",
    "MILLION",
    "OWN_COLUMNS",
    "QUICK_BASE",
    "Dimension",
    "Shape",
    "generate",
]

FILES_PER_BATCH = 2
OWN_COLUMNS = 5
MILLION = 1e-6
_HOUR_US = 3_600_000_000
_TIMESTAMP = pa.timestamp("us", "UTC")
_SYMBOLS = pa.array([f"SYM{number:03d}" for number in range(200)])
_TIERS = pa.array(["bronze", "silver", "gold", "platinum"])
_WORDS = pa.array([f"a word of some length, {number:04d}" for number in range(1_000)])


@dataclass(frozen=True)
class Shape:
    """What a query has to do.

    Attributes:
        trades: Rows on the left in a batch; there are a fifth as many versions.
        keys: Distinct customers.
        key_groups: How many calls a batch has.
        columns: Columns of a trade.
        hottest: The share of both inputs' rows that one customer has; the others share the rest evenly.
        batches: How many batches with rows.
        filled: Whether the first batch has a version of every customer besides.
    """

    trades: int = 200_000
    keys: int = 10_000
    key_groups: int = 8
    columns: int = OWN_COLUMNS
    hottest: float = 0.0
    batches: int = 5
    filled: bool = False

    @property
    def versions(self) -> int:
        """Rows on the right in a batch, without those that fill the state."""
        return self.trades // 5

    @property
    def trades_ddl(self) -> str:
        """The left input's columns."""
        return ", ".join([TRADES_DDL, *(f"{name} {kind}" for name, kind in self.more_columns)])

    @property
    def customers_ddl(self) -> str:
        """The right input's columns."""
        return CUSTOMERS_DDL

    @property
    def more_columns(self) -> list[tuple[str, str]]:
        """The columns of a trade beyond its own, doubles and strings in turn."""
        return [
            (f"more_{number}", "string" if number % 2 else "double") for number in range(self.columns - OWN_COLUMNS)
        ]


BASE, QUICK_BASE = Shape(), Shape(trades=4_000, keys=500, batches=4)


@dataclass(frozen=True)
class Dimension:
    """What is varied.

    Attributes:
        field: The field of the shape.
        axis: What its values are.
        unit: What the law counts.
        values: Its values.
        quick: Its values in a quick run.
        scale: How many units a value is; None is the base's million trades.
        filled: Whether the state has all keys from the first batch on.
        trades: How many a batch, if not the base's.
    """

    field: str
    axis: str
    unit: str
    values: tuple[float, ...]
    quick: tuple[float, ...]
    scale: float | None = 1.0
    filled: bool = False
    trades: int | None = None

    def shape(self, base: Shape, value: float) -> Shape:
        """Return the base with a value of its own."""
        trades = min(base.trades, self.trades or base.trades)
        return replace(replace(base, trades=trades, filled=self.filled), **{self.field: value})

    def units(self, base: Shape) -> float:
        """Return how many units a value is."""
        return base.trades * MILLION if self.scale is None else self.scale


DIMENSIONS = {
    "rows": Dimension(
        "trades",
        "trades a batch, and a fifth as many versions",
        "million trades",
        (20_000, 60_000, 200_000, 700_000, 2_000_000, 4_000_000),
        (1_000, 4_000, 20_000),
        scale=MILLION,
    ),
    "keys": Dimension(
        "keys",
        "keys in the state",
        "million keys",
        (1_000, 10_000, 100_000, 1_000_000, 2_500_000, 5_000_000),
        (100, 20_000),
        scale=MILLION,
        filled=True,
    ),
    "groups": Dimension("key_groups", "key groups", "key groups", (1, 4, 8, 16, 64, 256, 512), (1, 8, 32)),
    "columns": Dimension(
        "columns", "columns of a trade", "columns · million trades", (5, 10, 20, 35, 50), (5, 10), scale=None
    ),
    "skew": Dimension("hottest", "the hottest key's share of the rows", "share", (0.0, 0.1, 0.5, 0.9), (0.0, 0.9)),
    # Few rows, so that what grows with the batches behind would show.
    "batches": Dimension("batches", "number of the batch", "batches", (5, 25, 50, 75, 100), (5, 8), trades=20_000),
}


def generate(shape: Shape, folder: Path, seed: int = 7) -> None:
    """Write ``trades`` and ``customers`` below a folder."""
    for name in ("trades", "customers"):
        (folder / name).mkdir(parents=True)
    for number in range(shape.batches):
        rng = np.random.default_rng([seed, number])
        _write(_trades(rng, shape, number), folder / "trades", number)
        _write(_customers(rng, shape, number), folder / "customers", number)


def _trades(rng: np.random.Generator, shape: Shape, number: int) -> pa.Table:
    count = shape.trades
    columns = {
        "trade_id": pa.array(np.arange(count) + number * count),
        "customer_id": pa.array(_keys(rng, shape, count)),
        "event_time": _times(rng, number, count),
        "amount": pa.array(np.round(rng.lognormal(4, 1, count), 2)),
        "symbol": _drawn(rng, _SYMBOLS, count),
    }
    for name, kind in shape.more_columns:
        columns[name] = _drawn(rng, _WORDS, count) if kind == "string" else pa.array(rng.random(count))
    return pa.table(columns)


def _customers(rng: np.random.Generator, shape: Shape, number: int) -> pa.Table:
    keys = _keys(rng, shape, shape.versions)
    if shape.filled and number == 0:
        keys = rng.permutation(np.concatenate([keys, np.arange(shape.keys)]))
    return pa.table(
        {
            "customer_id": pa.array(keys),
            "event_time": _times(rng, number, len(keys)),
            "tier": _drawn(rng, _TIERS, len(keys)),
            "credit": pa.array(np.round(rng.uniform(0, 1e6, len(keys)), 2)),
        }
    )


def _keys(rng: np.random.Generator, shape: Shape, count: int) -> np.ndarray:
    keys = rng.integers(0, shape.keys, count)
    if shape.hottest:
        keys[rng.random(count) < shape.hottest] = 0
    return keys


def _times(rng: np.random.Generator, number: int, count: int) -> pa.Array:
    """Return a batch's times in the order in which its rows stand: each in a slot of its own, none twice."""
    slot = _HOUR_US // count
    times = np.arange(count) * slot + rng.integers(0, slot, count)
    order = np.argsort(times + rng.integers(0, DISORDER_SECONDS * 1_000_000, count), kind="stable")
    return pa.array(START_MS * 1_000 + number * _HOUR_US + times[order], pa.int64()).cast(_TIMESTAMP)


def _drawn(rng: np.random.Generator, values: pa.Array, count: int) -> pa.Array:
    return values.take(pa.array(rng.integers(0, len(values), count)))


def _write(table: pa.Table, folder: Path, number: int) -> None:
    for part in range(FILES_PER_BATCH):
        first, stop = (table.num_rows * each // FILES_PER_BATCH for each in (part, part + 1))
        place = number * FILES_PER_BATCH + part
        path = folder / f"{place:04d}.parquet"
        pq.write_table(table.slice(first, stop - first), path)
        # A stream takes files by their age.
        os.utime(path, (START_MS / 1e3 + place, START_MS / 1e3 + place))
