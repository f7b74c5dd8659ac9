"""A host with another cojoin, none, or without the user's module: refused before a row is out, with what to do."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import cojoin
from tests.cluster import versions_driver
from tests.cluster.data import make_rows, write
from tests.servers.cluster import PROJECT, Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

# Each starts an application on the cluster.
pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PACKAGE = Path(cojoin.__file__).parent
TRADES = 400
WITHOUT_COJOIN = """
import sys
from pathlib import Path

sys.path[:] = [each for each in sys.path if not Path(each, "cojoin").exists()]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the second host has installed before all else."""
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="module")
def cluster(site: Path) -> Iterator[Cluster]:
    with Cluster(paths=(str(PROJECT), os.pathsep.join([str(site), str(PROJECT)]))) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    trades, customers = make_rows(rng, TRADES), make_rows(rng, 100)
    trades.insert(0, "trade_id", range(TRADES))
    trades["amount"] = 1.0
    customers["tier"] = "gold"
    write(tmp_path / "trades", trades)
    write(tmp_path / "customers", customers)
    return tmp_path


def install(site: Path, what: str) -> None:
    shutil.rmtree(site)
    site.mkdir()
    if what == "none":
        (site / "sitecustomize.py").write_text(WITHOUT_COJOIN)
        return
    if what == "same":
        return
    shutil.copytree(PACKAGE, site / "cojoin", ignore=shutil.ignore_patterns("__pycache__"))
    version, rule = site / "cojoin" / "__init__.py", site / "cojoin" / "engine" / "joins" / "asof.py"
    if what == "old":
        # As the release that had neither this version nor this module.
        version.write_text(version.read_text().replace(cojoin.__version__, "0.5.0"))
        (site / "cojoin" / "spark" / "batch" / "written_files.py").unlink()
    else:
        rule.write_text(rule.read_text() + "\n# Another rule.\n")


def run(cluster: Cluster, folder: Path, what: str) -> tuple[str, int]:
    cluster.run_driver(Path(versions_driver.__file__), str(folder), what)
    told = json.loads((folder / f"{what}.json").read_text())
    return told["error"], told["rows"]


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("none", "expected cojoin {version}, found none (No module named 'cojoin')"),
        ("old", "expected cojoin {version}, found cojoin 0.5.0 in {site}/cojoin"),
        ("changed", "expected the sources of cojoin {version} in {driver} on the driver"),
    ],
)
def test_a_host_with_another_cojoin_is_refused(
    cluster: Cluster, site: Path, folder: Path, what: str, found: str
) -> None:
    install(site, what)
    expected = found.format(version=cojoin.__version__, site=site, driver=PACKAGE)
    error, _ = run(cluster, folder, "start")
    assert error.startswith(
        f"EnvironmentSetupError: the workers of {cluster.master_url} must have what this process has"
    )
    assert f"the Python worker on host {socket.gethostname()} (" in error
    assert expected in error
    assert "install the same in the Python of every host" in error
    # Nothing was written: neither the output nor the checkpoint has a row.
    assert not (folder / "start-out").exists()
    assert not (folder / "start-checkpoint" / "spark").exists()
    # Where nobody asks before the start, as in a plain DataFrame, a task does.
    error, rows = run(cluster, folder, "later")
    assert rows == 0
    assert expected in error


def test_a_module_of_the_users_that_hosts_lack_is_named_and_can_be_sent(
    cluster: Cluster, site: Path, folder: Path
) -> None:
    install(site, "same")
    error, _ = run(cluster, folder, "lacking")
    assert error.startswith(f"QueryFailedError: the Python worker on host {socket.gethostname()} (")
    assert "lacks a module of the query's functions: No module named 'passing'" in error
    assert "spark.sparkContext.addPyFile(...)" in error
    assert "spark.submit.pyFiles" in error
    assert "Traceback" not in error
    assert run(cluster, folder, "sent") == ("", TRADES)
