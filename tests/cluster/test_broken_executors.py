"""Executors that die in the middle of a batch, shuffle files that are gone, tasks that run twice: each row once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from tests.cluster import breaking_driver
from tests.cluster.breaking import SLOW_SECONDS
from tests.cluster.data import by_trade, make_rows, read, write
from tests.seeds import drawn
from tests.servers.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

# Each starts an application on the cluster and waits for what breaks, a quarter of a minute and more.
pytestmark = [pytest.mark.cluster, pytest.mark.slow]

TRADES, CUSTOMERS, KEYLESS = 4_000, 1_000, 7
AT_TRADE = 2_200
"""A trade of the second batch."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two workers that take themselves for two machines: a second try of a task goes to another one."""
    with Cluster(hosts=("127.0.0.1", "127.0.0.2")) as running:
        yield running


@pytest.mark.parametrize(
    ("what", "sink"),
    drawn(
        [
            ("executor", "delta"),
            ("executor", "parquet"),
            ("fetch", "delta"),
            ("speculation", "delta"),
            ("speculation", "parquet"),
            ("between", "delta"),
        ],
        2,
    ),
)
def test_what_breaks_on_a_cluster_changes_no_row(cluster: Cluster, tmp_path: Path, what: str, sink: str) -> None:
    rng = np.random.default_rng(11)
    trades, customers = make_rows(rng, TRADES), make_rows(rng, CUSTOMERS)
    trades.insert(0, "trade_id", range(len(trades)))
    trades["amount"] = rng.integers(1, 1000, len(trades)) / 8
    keyless = sorted(rng.choice(TRADES, KEYLESS, replace=False).tolist())
    trades.loc[keyless, "customer_id"] = None
    customers["tier"] = rng.choice(["basic", "silver", "gold"], len(customers))
    write(tmp_path / "trades", trades)
    write(tmp_path / "customers", customers)
    started = time.monotonic()

    cluster.run_driver(Path(breaking_driver.__file__), str(tmp_path), what, sink, str(AT_TRADE))

    assert (tmp_path / "fuse").exists(), "nothing broke"
    told = json.loads((tmp_path / "told.json").read_text())
    if what == "speculation":
        assert time.monotonic() - started < SLOW_SECONDS, "the slow task was waited for"
    elif what == "fetch":
        assert told["attempts"] > 1, "no stage was run again"
    elif what == "executor":
        # Spark tells of a stage's last attempt; what the executor had kept for others is gone, too.
        assert told["failed_tasks"] or told["attempts"] > 1, "no task failed"
    expected = by_trade(
        pd.merge_asof(
            trades.drop(index=keyless), customers.sort_values("event_time"), on="event_time", by="customer_id"
        )
    )
    found = read(tmp_path / "out.parquet")[list(expected.columns)]
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    dead = pd.read_parquet(tmp_path / "rejected.parquet")["trade_id"].tolist()
    assert sorted(dead) == keyless
