"""A host with another cojoin, none, or without the user's module: refused before a row is out, with what to do."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import cojoin
from cojoin.session.versions import delta_package
from tests.cluster import versions_driver
from tests.cluster.data import make_rows, write
from tests.seeds import drawn
from tests.servers.cluster import PROJECT, Cluster
from tests.servers.jars import delta_jars

if TYPE_CHECKING:
    from collections.abc import Iterator

# Each starts an application on the cluster.
pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PACKAGE = Path(cojoin.__file__).parent
TRADES = 400
WITHOUT_CACHES = shutil.ignore_patterns("__pycache__")
WITHOUT_COJOIN = """
import sys
from pathlib import Path

sys.path[:] = [each for each in sys.path if "environment" in each or not Path(each, "cojoin").exists()]
"""
MODULE = """
import cojoin as cj


class PassOn(cj.KeyedCoProcessFunction):
    def process_element1(self, trade, ctx):
        yield (trade.trade_id,)

    def process_element2(self, customer, ctx):
        pass
"""
# The Python of an environment in an archive: this one, with the archive's own packages first.
PYTHON = f"""#!/bin/sh
export PYTHONPATH="$(cd "$(dirname "$0")/../lib" && pwd):$PYTHONPATH"
exec {sys.executable} "$@"
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
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "passing.py").write_text(MODULE)
    return tmp_path


def install(site: Path, what: str) -> None:
    shutil.rmtree(site)
    site.mkdir()
    if what == "none":
        (site / "sitecustomize.py").write_text(WITHOUT_COJOIN)
        return
    if what == "same":
        return
    shutil.copytree(PACKAGE, site / "cojoin", ignore=WITHOUT_CACHES)
    version, rule = site / "cojoin" / "__init__.py", site / "cojoin" / "engine" / "joins" / "asof.py"
    if what == "old":
        # As the release that had neither this version nor this module.
        version.write_text(version.read_text().replace(cojoin.__version__, "0.5.0"))
        (site / "cojoin" / "spark" / "batch" / "written_files.py").unlink()
    else:
        rule.write_text(rule.read_text() + "\n# Another rule.\n")


def run(cluster: Cluster, folder: Path, what: str, *submit: str) -> tuple[str, int]:
    cluster.run_driver(Path(versions_driver.__file__), str(folder), what, submit=submit)
    told = json.loads((folder / f"{what}.json").read_text())
    return told["error"], told["rows"]


@pytest.mark.parametrize(
    ("what", "found"),
    drawn(
        [
            ("none", "expected cojoin {version}, found none (No module named 'cojoin')"),
            ("old", "expected cojoin {version}, found cojoin 0.5.0 in {site}/cojoin"),
            ("changed", "expected the sources of cojoin {version} in {driver} on the driver"),
        ],
        1,
    ),
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


def test_spark_submit_sends_an_environment_and_a_module(cluster: Cluster, site: Path, folder: Path) -> None:
    """As guide 06 shows it: the second host has no cojoin but that of the archive."""
    install(site, "none")
    environment = folder / "env"
    shutil.copytree(PACKAGE, environment / "lib" / "cojoin", ignore=WITHOUT_CACHES)
    (environment / "bin").mkdir()
    (environment / "bin" / "python").write_text(PYTHON)
    (environment / "bin" / "python").chmod(0o755)
    shutil.make_archive(str(environment), "gztar", environment)
    submit = ["--jars", ",".join(map(str, delta_jars())), "--py-files", f"{folder}/modules/passing.py"]
    submit += ["--archives", f"{environment}.tar.gz#environment"]
    submit += ["--conf", "spark.pyspark.python=./environment/bin/python"]
    submit += ["--conf", f"spark.pyspark.driver.python={sys.executable}"]
    assert run(cluster, folder, "submitted", *submit) == ("", TRADES)


def test_spark_submit_without_delta_says_which_package_is_missing(cluster: Cluster, folder: Path) -> None:
    error, _ = run(cluster, folder, "start", "--conf", "spark.ui.enabled=false")
    assert error.startswith("EnvironmentSetupError: this Spark ")
    assert f"spark-submit --packages {delta_package()}" in error
