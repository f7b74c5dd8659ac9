"""Queries on separate hosts: what they share passes, and what is each host's own is refused before a row is out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from tests.cluster import hosts_driver
from tests.cluster.data import by_trade, make_rows, read, write
from tests.servers.hosts import SHARED, HostsCluster, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
ROWS = 20_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[HostsCluster]:
    """A master, a driver's host and two workers' ones; the inputs are in the folder that they share."""
    if why_not():
        pytest.skip(str(why_not()))
    with HostsCluster() as running:
        make_inputs(running.shared / "inputs")
        yield running


def make_inputs(folder: Path) -> None:
    rng = np.random.default_rng(7)
    trades, customers = make_rows(rng, ROWS), make_rows(rng, ROWS // 4)
    trades.insert(0, "trade_id", range(ROWS))
    trades["amount"] = rng.integers(1, 1000, ROWS) / 8
    customers["tier"] = rng.choice(["basic", "silver", "gold"], len(customers))
    folder.mkdir()
    write(folder / "trades", trades)
    write(folder / "customers", customers)
    expected = pd.merge_asof(
        trades.sort_values("event_time"),
        customers.sort_values("event_time").assign(customers_event_time=lambda rows: rows["event_time"]),
        on="event_time",
        by="customer_id",
    )
    by_trade(expected).to_pickle(folder / "expected")


def run(cluster: HostsCluster, **job: Any) -> dict[str, Any]:
    """Run a query, with all places below the shared folder but those that are given; return what its driver says."""
    usual = {"inputs": f"{SHARED}/inputs", "checkpoint": f"{SHARED}/checkpoint", "output": f"delta:{SHARED}/out"}
    done = cluster.driver(Path(hosts_driver.__file__), json.dumps(usual | job))
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def check_rows(cluster: HostsCluster, folder: str) -> None:
    """Compare the rows of an output in the shared folder with those of pandas."""
    expected = pd.read_pickle(cluster.shared / "inputs" / "expected")
    found = read(cluster.shared / folder)
    pd.testing.assert_frame_equal(found, expected[found.columns])


def test_what_all_hosts_share_passes(cluster: HostsCluster) -> None:
    said = run(cluster, checkpoint=f"{SHARED}/shared/checkpoint", output=f"parquet:{SHARED}/shared/out")
    assert said.get("conserved"), said
    check_rows(cluster, "shared/out")
