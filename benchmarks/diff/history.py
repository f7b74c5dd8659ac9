"""A history with ties: trades, and versions of customers of which some have the event time of another one.

Which trades a changed tie rule affects is worked out with pandas' ``merge_asof``, customers' part by part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["FILES", "affected_trades", "write_history"]

FILES = 16
_TRADES_A_CUSTOMER, _VERSIONS_A_TRADE, _TIED = 40, 0.2, 0.05
_SPAN_US, _START_US = 30 * 86_400_000_000, 1_767_225_600_000_000
_PARTS = 16
_TIERS = np.array(["bronze", "silver", "gold", "platinum"])


def write_history(folder: Path, trades: int, seed: int) -> None:
    """Write the Parquet files of both inputs.

    Args:
        folder: Where ``trades`` and ``customers`` go.
        trades: How many trades.
        seed: The seed of the random rows.
    """
    rng = np.random.default_rng(seed)
    customers = max(1, trades // _TRADES_A_CUSTOMER)
    for number in range(FILES):
        count = trades // FILES + (number < trades % FILES)
        ids = np.arange(count) * FILES + number
        _write(
            folder / "trades",
            number,
            {
                "trade_id": ids,
                "customer_id": rng.integers(0, customers, count),
                "event_time": _times(rng, count),
                "amount": rng.integers(1, 100_000, count) / 100,
                "symbol": pa.array(rng.integers(0, 500, count).astype(str)),
            },
        )
        count = int(count * _VERSIONS_A_TRADE)
        keys, times = rng.integers(0, customers, count), _START_US + rng.integers(0, _SPAN_US, count)
        tied = np.flatnonzero(rng.random(count) < _TIED)
        # A tied version repeats the key and the time of another one.
        others = rng.integers(0, count, len(tied)) if count else tied
        keys[tied], times[tied] = keys[others], times[others]
        order = rng.permutation(count)
        _write(
            folder / "customers",
            number,
            {
                "customer_id": keys,
                "event_time": pa.array(times, pa.timestamp("us", "UTC")),
                "tier": pa.array(_TIERS[rng.integers(0, 4, count)]),
                "first": order,
                "last": count - order,
            },
        )


def _times(rng: np.random.Generator, count: int) -> pa.Array:
    return pa.array(_START_US + rng.integers(0, _SPAN_US, count), pa.timestamp("us", "UTC"))


def _write(folder: Path, number: int, columns: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"part-{number:02}.parquet")


def affected_trades(folder: Path) -> np.ndarray:
    """Return the ids of the trades whose version is another one if ``last`` breaks ties instead of ``first``."""
    found = [np.zeros(0, dtype=np.int64), *_affected(folder)]
    return np.sort(np.concatenate(found))


def _affected(folder: Path) -> Iterator[np.ndarray]:
    trades = pq.read_table(folder / "trades", columns=["trade_id", "customer_id", "event_time"])
    versions = pq.read_table(folder / "customers")
    for part in range(_PARTS):
        left, right = (_part(table, part).to_pandas().sort_values("event_time") for table in (trades, versions))
        matched = []
        for rule in ("first", "last"):
            ordered = right.sort_values(["event_time", rule, "tier"], kind="stable")
            made = pd.merge_asof(left, ordered, on="event_time", by="customer_id")
            matched.append(made[["tier", "first", "last"]].astype(object).where(lambda frame: frame.notna(), None))
        differs = (matched[0].fillna("") != matched[1].fillna("")).any(axis=1).to_numpy()
        yield left["trade_id"].to_numpy()[differs]


def _part(table: pa.Table, part: int) -> pa.Table:
    keys = table.column("customer_id")
    rest = pc.subtract(keys, pc.multiply(pc.divide(keys, _PARTS), _PARTS))
    return table.filter(pc.equal(rest, part))
