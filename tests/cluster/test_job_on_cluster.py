from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from tests.cluster import driver
from tests.cluster.application import EXECUTORS
from tests.cluster.data import by_trade, make_rows, read, write
from tests.servers import ServerError
from tests.servers.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


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
    trades, customers = make_rows(rng, 4_000), make_rows(rng, 1_000)
    trades.insert(0, "trade_id", range(len(trades)))
    trades["amount"] = rng.integers(1, 1000, len(trades)) / 8
    customers["tier"] = rng.choice(["basic", "silver", "gold"], len(customers))
    write(tmp_path / "trades", trades)
    write(tmp_path / "customers", customers)

    cluster.run_driver(Path(driver.__file__), str(tmp_path))

    expected = pd.merge_asof(
        trades.sort_values("event_time"),
        customers.sort_values("event_time").assign(customers_event_time=lambda rows: rows["event_time"]),
        on="event_time",
        by="customer_id",
    )
    joined = read(tmp_path / "asof.parquet")
    pd.testing.assert_frame_equal(joined, by_trade(expected)[joined.columns])
    processed = read(tmp_path / "function.parquet")
    # Both executors had a part in it: each has a folder of its own.
    assert processed.pop("folder").nunique() == EXECUTORS
    pd.testing.assert_frame_equal(processed, by_trade(expected)[processed.columns])


def test_a_failed_driver_shows_why(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text("raise SystemExit('no such table')", encoding="utf-8")
    with pytest.raises(ServerError, match="no such table"):
        cluster.run_driver(script)
