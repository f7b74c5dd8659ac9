"""Trades and customers as files for a driver on a cluster, and reading what it wrote."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

FILES = 4
START = int(np.datetime64("2025-11-02T05:30:00", "us").astype(np.int64))


def make_rows(rng: np.random.Generator, count: int) -> pd.DataFrame:
    """Rows in order of event time, which no two versions of a key share."""
    micros = START + np.sort(rng.choice(3_600_000_000, count, replace=False))
    keys = [f"customer {key}" for key in rng.integers(0, 100, count)]
    return pd.DataFrame({"customer_id": keys, "event_time": pd.to_datetime(micros, unit="us", utc=True).as_unit("us")})


def write(folder: Path, rows: pd.DataFrame, files: int = FILES) -> None:
    """Write files that a stream takes in order of time: by their age, which is given here."""
    folder.mkdir(parents=True)
    for number, part in enumerate(np.array_split(np.arange(len(rows)), files)):
        path = folder / f"part-{number:0{len(str(files - 1))}}.parquet"
        pq.write_table(pa.Table.from_pandas(rows.iloc[part], preserve_index=False), path)
        os.utime(path, (1_700_000_000 + number,) * 2)


def read(path: Path) -> pd.DataFrame:
    rows = pq.read_table(path).to_pandas()
    for column in rows.columns[rows.columns.str.endswith("event_time")]:
        rows[column] = rows[column].dt.tz_convert("UTC").dt.as_unit("us")
    return by_trade(rows)


def by_trade(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.fillna({"tier": "none in force"}).sort_values("trade_id").reset_index(drop=True)
