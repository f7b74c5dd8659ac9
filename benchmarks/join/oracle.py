"""The right answers, by pandas and numpy: no code of cojoin's is in them.

Rows are compared in the order of their trades and versions, column after column, so that 20 million fit into a few
gigabytes. An answer is computed once for a folder of data and kept there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["INTERVAL_SECONDS", "Answer", "check", "find_faults", "prepare"]

Answer: TypeAlias = Literal["backward", "forward", "nearest", "interval"]
"""Which join: an as-of join by its direction, or each trade with all versions of the seconds before it."""

INTERVAL_SECONDS = 600
OWN = ("customer_id", "event_time", "amount", "symbol")
JOINED = ("customers_event_time", "tier", "credit")


def prepare(folder: Path, answer: Answer = "backward") -> Path:
    """Compute an answer for the data below a folder, unless it is there; return its file, sorted by trade and time."""
    kept = folder / f"expected-{answer}.parquet"
    if not kept.exists():
        pq.write_table(_interval(folder) if answer == "interval" else _as_of(folder, answer), kept)
    return kept


def find_faults(folder: Path, files: Sequence[Path], answer: Answer = "backward") -> dict[str, int]:
    """Compare a result's files with an answer: return what is wrong and in how many rows; nothing if all is right."""
    found = ds.dataset([str(path) for path in files], format="parquet") if files else None
    if found is None:
        return {"no rows": 1}
    if missing := {"trade_id", *OWN, *JOINED} - set(found.schema.names):
        return {f"no column {name}": 1 for name in sorted(missing)}
    own, joined = ds.dataset(folder / "trades", format="parquet"), ds.dataset(prepare(folder, answer), format="parquet")
    trades, ids = _column(joined, "trade_id").to_numpy(), _column(found, "trade_id").to_numpy()
    count = own.count_rows()
    known = ids[(ids >= 0) & (ids < count)]
    beyond = np.bincount(known, minlength=count) - np.bincount(trades, minlength=count)
    faults = {
        "invented": len(ids) - len(known),
        "missing": int(-beyond[beyond < 0].sum()),
        "there twice": int(beyond[beyond > 0].sum()),
    }
    if not any(faults.values()):
        versions = _column(found, "customers_event_time")
        order = pa.array(np.lexsort((versions.fill_null(0).to_numpy(), ids)))
        for source, names, rows in ((own, OWN, pa.array(trades)), (joined, JOINED, None)):
            for name in names:
                right = _column(source, name)
                right = right if rows is None else right.take(rows)
                faults[f"wrong {name}"] = _unequal(right, _column(found, name).take(order))
    return {what: rows for what, rows in faults.items() if rows}


def check(folder: Path, result: pd.DataFrame) -> None:
    """Compare a small result (``trade_id``, ``tier``, ``credit``) with the answer, row for row.

    Raises:
        AssertionError: They differ.
    """
    right = pq.read_table(prepare(folder), columns=["tier", "credit"]).to_pandas()
    got = result.set_index("trade_id").sort_index()[["tier", "credit"]]
    # Spark gives a missing tier as None, pandas as NaN.
    pd.testing.assert_frame_equal(
        got.fillna({"tier": ""}), right.fillna({"tier": ""}), check_index_type=False, check_names=False
    )


def _as_of(folder: Path, direction: Answer) -> pa.Table:
    left = _frame(folder / "trades", "trade_id")
    assert (np.diff(left["trade_id"].to_numpy()) == 1).all(), "trades stand in the order of their ids"
    right = _frame(folder / "customers")
    right["version"] = np.arange(len(right))
    joined = pd.merge_asof(
        left.sort_values("event_time", kind="stable"),
        right.sort_values("event_time", kind="stable"),
        on="event_time",
        by="customer_id",
        direction=direction,
    )
    version = np.full(len(left), -1)
    version[joined["trade_id"].to_numpy()] = joined["version"].fillna(-1).astype(np.int64).to_numpy()
    return _with_versions(folder, np.arange(len(left)), version)


def _interval(folder: Path) -> pa.Table:
    left, right = _frame(folder / "trades", "trade_id"), _frame(folder / "customers")
    first, micros = int(right["event_time"].min()), INTERVAL_SECONDS * 1_000_000
    # Times of a day and keys in one number, with room for the interval between the days of two keys.
    day = 86_400_000_000 + 2 * micros
    places = (each["customer_id"] * day + each["event_time"] - first + micros for each in (left, right))
    of_trades, of_versions = (each.to_numpy() for each in places)
    order = np.argsort(of_versions, kind="stable")
    begin = np.searchsorted(of_versions, of_trades - micros, "left", sorter=order)
    counts = np.searchsorted(of_versions, of_trades, "right", sorter=order) - begin
    trades = np.repeat(np.arange(len(left)), counts)
    within = np.arange(len(trades)) - np.repeat(np.cumsum(counts) - counts, counts)
    return _with_versions(folder, left["trade_id"].to_numpy()[trades], order[begin[trades] + within])


def _with_versions(folder: Path, trades: np.ndarray, versions: np.ndarray) -> pa.Table:
    """Return pairs of a trade's id and a version's row, -1 for none, as columns."""
    customers = pq.read_table(folder / "customers", columns=["event_time", "tier", "credit"])
    rows = customers.take(pa.array(versions, mask=versions < 0)).rename_columns(list(JOINED))
    return rows.append_column("trade_id", pa.array(trades))


def _frame(folder: Path, *columns: str) -> pd.DataFrame:
    table = pq.read_table(folder, columns=[*columns, "customer_id", "event_time"])
    times = table.column("event_time").cast(pa.int64())
    return table.set_column(table.schema.get_field_index("event_time"), "event_time", times).to_pandas()


def _column(source: ds.Dataset, name: str) -> pa.ChunkedArray:
    """Read a column; engines spell the same values in several types."""
    column = source.to_table(columns=[name]).column(name)
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    return column if pa.types.is_floating(column.type) else column.cast(pa.string())


def _unequal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> int:
    both_null = pc.and_(pc.is_null(one), pc.is_null(other))
    same = pc.or_(pc.fill_null(pc.equal(one, other), False), both_null)
    return len(one) - (pc.sum(same).as_py() or 0)
