"""Orders, and prices with known times: drawn, connected, and joined by DuckDB.

The oracle filters by known time, then takes the greatest version by event time, known time, sequence and content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa

import cojoin as cj
from tests.seeds import SEED

if TYPE_CHECKING:
    from cojoin.api.connect import ConnectedInputs
    from cojoin.api.joined import Joined

__all__ = ["JOINS", "ORDERS", "PRICES", "STEP_US", "TIME", "by_duckdb", "connected", "drawn", "matched"]

TIME = pa.timestamp("us", "UTC")
STEP_US = 1_000_500
"""The distance of two drawn times: some share a millisecond only with themselves, and ties are frequent."""

ORDERS, PRICES = ("id", "at", "n"), ("id", "valid_at", "loaded_at", "seq", "price", "gone")


def times(draw: np.random.Generator, numbers: np.ndarray, *, nulls: bool) -> pa.Array:
    mask = draw.random(len(numbers)) < 0.05 if nulls else np.zeros(len(numbers), dtype=bool)
    return pa.array(numbers * STEP_US, pa.int64(), mask=mask).cast(TIME)


def drawn(seed: int, *, orders: int = 60, prices: int = 50, nulls: bool = True) -> tuple[pa.Table, pa.Table]:
    """Draw orders and prices, among them corrections, deletes that are known late, and prices that are known early."""
    draw = np.random.default_rng([SEED, seed])
    valid = draw.integers(0, 40, prices)
    loaded = valid + draw.choice([-5, 0, 0, 1, 3, 20], prices)
    left = [draw.integers(0, 3, orders), times(draw, draw.integers(0, 50, orders), nulls=nulls), np.arange(orders)]
    right = [
        pa.array(draw.integers(0, 3, prices), mask=draw.random(prices) < (0.05 if nulls else 0)),
        times(draw, valid, nulls=nulls),
        times(draw, loaded, nulls=nulls),
        draw.integers(0, 3, prices),
        draw.integers(0, 9, prices),
        draw.random(prices) < 0.2,
    ]
    return pa.table(left, names=ORDERS), pa.table(right, names=PRICES)


def connected(tables: tuple[pa.Table, pa.Table], *, sequence: str | tuple[()] = (), **known: Any) -> ConnectedInputs:
    bound = cj.WatermarkStrategy.for_bounded_out_of_orderness("20 seconds")
    right = {"event_time": "valid_at", "sequence": sequence, "watermark": bound, **(known or {"known_at": "loaded_at"})}
    return cj.connect(
        cj.Input(tables[0], "id", "at", "orders", watermark=bound), cj.Input(tables[1], "id", name="prices", **right)
    )


def matched(joined: Joined) -> dict[int, int | None]:
    rows = joined.to_arrow().select(["n", "price"]).to_pylist()
    assert len({row["n"] for row in rows}) == len(rows)
    return {row["n"]: row["price"] for row in rows}


def by_duckdb(
    tables: tuple[pa.Table, pa.Table], order: str, *, known: str = "loaded_at", exact: bool = True, limit_s: int = 0
) -> dict[int, int | None]:
    """Return the price of each order; ``order`` are the columns that break ties of event and known time."""
    with duckdb.connect() as connection:
        connection.register("orders", tables[0]).register("prices", tables[1])
        greatest = f"arg_max(p, (p.valid_at, {known}, {order}, p.price, p.gone)) FILTER (p.valid_at IS NOT NULL)"
        rows = connection.sql(
            f"""SELECT o.n, o.at, {greatest} AS p
                FROM orders o LEFT JOIN prices p ON o.id = p.id AND {known} <= o.at
                    AND p.valid_at {"<=" if exact else "<"} o.at
                WHERE o.at IS NOT NULL GROUP BY ALL"""
        ).fetchall()
    found = {}
    for number, at, price in rows:
        is_near = price is not None and (not limit_s or (at - price["valid_at"]).total_seconds() <= limit_s)
        found[number] = price["price"] if is_near else None
        if is_near and "p.gone" in order and price["gone"]:
            found[number] = None
    return found


JOINS = {
    "asof": lambda pair: pair.asof_join(),
    "near": lambda pair: pair.asof_join(tolerance="4 seconds", allow_exact_matches=False),
    "temporal": lambda pair: pair.temporal_join(deletes="gone"),
    "retained": lambda pair: pair.temporal_join("inner", deletes="gone", retention="4 seconds"),
}
