from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster import driver
from tests.servers import ServerError
from tests.servers.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster

FILES = 4
START = int(np.datetime64("2025-11-02T05:30:00", "us").astype(np.int64))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A master and two workers; when they are stopped, nothing of them is left."""
    with Cluster() as running:
        pids = running.pids
        yield running
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_job_gives_the_rows_of_pandas(cluster: Cluster, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    trades, customers = _rows(rng, 4_000), _rows(rng, 1_000)
    trades.insert(0, "trade_id", range(len(trades)))
    trades["amount"] = rng.integers(1, 1000, len(trades)) / 8
    customers["tier"] = rng.choice(["basic", "silver", "gold"], len(customers))
    _write(tmp_path / "trades", trades)
    _write(tmp_path / "customers", customers)

    cluster.run_driver(Path(driver.__file__), str(tmp_path))

    expected = pd.merge_asof(
        trades.sort_values("event_time"),
        customers.sort_values("event_time").assign(customers_event_time=lambda rows: rows["event_time"]),
        on="event_time",
        by="customer_id",
    )
    joined = _read(tmp_path / "asof.parquet")
    pd.testing.assert_frame_equal(joined, _sorted(expected)[joined.columns])
    processed = _read(tmp_path / "function.parquet")
    # Both executors had a part in it: each has a folder of its own.
    assert processed.pop("folder").nunique() == driver.EXECUTORS
    pd.testing.assert_frame_equal(processed, _sorted(expected)[processed.columns])


def test_a_failed_driver_shows_why(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text("raise SystemExit('no such table')", encoding="utf-8")
    with pytest.raises(ServerError, match="no such table"):
        cluster.run_driver(script)


def _rows(rng: np.random.Generator, count: int) -> pd.DataFrame:
    """Rows in order of event time, which no two versions of a key share."""
    micros = START + np.sort(rng.choice(3_600_000_000, count, replace=False))
    keys = [f"customer {key}" for key in rng.integers(0, 100, count)]
    return pd.DataFrame({"customer_id": keys, "event_time": pd.to_datetime(micros, unit="us", utc=True).as_unit("us")})


def _write(folder: Path, rows: pd.DataFrame) -> None:
    """Write files that a stream takes in order of time: by their age, which is given here."""
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(rows)), FILES)):
        path = folder / f"part-{number}.parquet"
        pq.write_table(pa.Table.from_pandas(rows.iloc[part], preserve_index=False), path)
        os.utime(path, (1_700_000_000 + number,) * 2)


def _read(path: Path) -> pd.DataFrame:
    rows = pq.read_table(path).to_pandas()
    for column in rows.columns[rows.columns.str.endswith("event_time")]:
        rows[column] = rows[column].dt.tz_convert("UTC").dt.as_unit("us")
    return _sorted(rows)


def _sorted(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.fillna({"tier": "none in force"}).sort_values("trade_id").reset_index(drop=True)
