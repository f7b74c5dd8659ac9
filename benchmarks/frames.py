"""The one-line as-of join of two frames in memory, its rows in the left's order, beside pandas and Polars.

    python -m benchmarks.frames [--rows 300000 5000000] [--rounds 3]

Both frames are sorted by event time, as ``merge_asof`` and ``join_asof`` need them; a fifth as many rows are on the
right. Each line has the smallest CPU seconds of all rounds, in which the ways take turns. ``as a stream`` is the same
join without the left's order, as ``connect(...).to_arrow()`` gives it. The floor reads each column of both frames once,
and writes it as it is. Every result is compared with that of pandas.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

import cojoin as cj
from cojoin.engine.display import text_table

if TYPE_CHECKING:
    from collections.abc import Callable

FLOOR, PANDAS, ARROW = "each column read once", "pandas: merge_asof", "cojoin, Arrow tables"
START, DAY = np.datetime64("2026-01-15", "us"), 86_400_000_000


def frames(rows: int, seed: int = 7) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return trades and customers, sorted by event time."""
    draw = np.random.default_rng(seed)

    def times(count: int) -> pd.Series:
        return pd.Series(START + np.sort(draw.integers(0, DAY, count)), dtype="datetime64[us]").dt.tz_localize("UTC")

    trades = {"customer_id": draw.integers(0, 50_000, rows), "event_time": times(rows), "amount": draw.random(rows)}
    count = rows // 5
    customers = {
        "customer_id": draw.integers(0, 50_000, count),
        "event_time": times(count),
        "credit": draw.random(count),
    }
    return pd.DataFrame(trades), pd.DataFrame(customers)


def ways(left: pd.DataFrame, right: pd.DataFrame) -> dict[str, Callable[[], Any]]:
    """Return the ways of joining two frames."""
    arrow = [pa.Table.from_pandas(each, preserve_index=False) for each in (left, right)]
    names: dict[str, Any] = {"on": "event_time", "by": "customer_id"}

    def as_a_stream() -> pa.Table:
        inputs = (
            cj.Input(each, "customer_id", "event_time", name=name) for each, name in zip(arrow, "ab", strict=True)
        )
        return cj.connect(*inputs).asof_join(suffixes=("", "_right")).to_arrow()

    found: dict[str, Callable[[], Any]] = {
        FLOOR: lambda: (left.copy(), right.copy()),
        PANDAS: lambda: pd.merge_asof(left, right, **names),
        "cojoin, frames of pandas": lambda: cj.asof_join(left, right, **names),
        ARROW: lambda: cj.asof_join(*arrow, **names),
        "cojoin, Arrow tables, as a stream": as_a_stream,
    }
    try:
        import polars as pl  # noqa: PLC0415
    except ImportError:
        return found
    polars = [pl.from_arrow(each) for each in arrow]
    found["Polars: join_asof"] = lambda: polars[0].join_asof(polars[1], **names)  # type: ignore[union-attr, arg-type]
    found["cojoin, frames of Polars"] = lambda: cj.asof_join(*polars, **names)
    return found


def credits_of(result: Any) -> Any:
    """Return the joined column, in the result's order."""
    column = result["credit"]
    return np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column, dtype=float)


def least_seconds(left: pd.DataFrame, right: pd.DataFrame, rounds: int) -> dict[str, float]:
    """Return the smallest CPU seconds of each way; every result is compared with that of pandas."""
    every, least = ways(left, right), dict[str, float]()
    expected = credits_of(every[PANDAS]())
    for _ in range(rounds):
        for name, join in every.items():
            begin = time.process_time()
            result = join()
            least[name] = min(time.process_time() - begin, least.get(name, np.inf))
            if name == FLOOR:
                continue
            found = credits_of(result)
            if "stream" in name:
                assert len(found) == len(left)
            else:
                assert np.array_equal(found, expected, equal_nan=True), name
    return least


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[300_000, 5_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    for rows in chosen.rows:
        least = least_seconds(*frames(rows), chosen.rounds)
        merged, floor = least[PANDAS], least[FLOOR]
        lines = [
            ("way", "CPU s", "of merge_asof's", "of the floor's"),
            *((name, f"{s:.3f}", f"{s / merged:.2f}", f"{s / floor:.1f}") for name, s in least.items()),
        ]
        print(f"{rows:,} rows on the left\n{text_table(lines)}\n", flush=True)


if __name__ == "__main__":
    main()
