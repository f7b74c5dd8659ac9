"""Queries on separate hosts: what they share passes, and what is each host's own is refused before a row is out."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from tests.cluster import hosts_driver
from tests.cluster.data import by_trade, make_rows, read, write
from tests.servers.hosts import PRIVATE, SHARED, Hosts, HostsCluster, why_not
from tests.servers.s3 import BUCKET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Server

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
ROWS = 20_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[HostsCluster]:
    """A master, a driver's host and two workers' ones; the inputs are in the folder that they share."""
    if why_not():
        pytest.skip(str(why_not()))
    with HostsCluster(workers=3, start=2) as running:
        make_inputs(running.shared / "inputs")
        yield running


def make_inputs(folder: Path, *, coming: int = 0) -> None:
    """Make files of trades and customers, of which so many files of trades are still to come."""
    rng = np.random.default_rng(7)
    trades, customers = make_rows(rng, ROWS), make_rows(rng, ROWS // 4)
    trades.insert(0, "trade_id", range(ROWS))
    trades["amount"] = rng.integers(1, 1000, ROWS) / 8
    customers["tier"] = rng.choice(["basic", "silver", "gold"], len(customers))
    folder.mkdir(parents=True)
    if coming:
        write(folder / "coming", trades, coming)
        (folder / "trades").mkdir()
    else:
        write(folder / "trades", trades)
    write(folder / "customers", customers)
    expected = pd.merge_asof(
        trades.sort_values("event_time"),
        customers.sort_values("event_time").assign(customers_event_time=lambda rows: rows["event_time"]),
        on="event_time",
        by="customer_id",
    )
    by_trade(expected).to_pickle(folder / "expected")


def job(**places: Any) -> dict[str, Any]:
    """Return a job with all places below the shared folder but those that are given."""
    return {
        "inputs": f"{SHARED}/inputs",
        "checkpoint": f"{SHARED}/checkpoint",
        "output": f"delta:{SHARED}/out",
    } | places


def run(cluster: HostsCluster, *jobs: dict[str, Any], host: str = "driver") -> list[dict[str, Any]]:
    """Run queries one after the other, and return what the driver says of each."""
    done = cluster.driver(Path(hosts_driver.__file__), json.dumps(jobs), host=host, seconds=900)
    return [json.loads(line) for line in done.stdout.splitlines()[-len(jobs) :]]


def start_live(cluster: HostsCluster, place: str, *, coming: int) -> Server:
    """Start a query of which files come one by one, and wait for its first batch."""
    make_inputs(cluster.shared / place / "inputs", coming=coming)
    jobs = [live(place)]
    command = [sys.executable, hosts_driver.__file__, cluster.master_url, json.dumps(jobs)]
    driver = cluster.server("driver", f"driver-{place}", command)
    driver.wait_until(lambda: "running\n" in cluster.log(driver.name), 300)
    return driver


def live(place: str) -> dict[str, Any]:
    folder = f"{SHARED}/{place}"
    output = f"parquet:{folder}/written/out"
    return {"inputs": f"{folder}/inputs", "checkpoint": f"{folder}/written/checkpoint", "output": output, "live": True}


def ended(cluster: HostsCluster, driver: Server, seconds: float) -> dict[str, Any]:
    """Wait for a driver to end, and return what it says."""
    deadline = time.monotonic() + seconds
    while not (lines := [line for line in cluster.log(driver.name).splitlines() if line.startswith("{")]):
        assert time.monotonic() < deadline, driver.report("goes on")
        time.sleep(0.5)
    said: dict[str, Any] = json.loads(lines[-1])
    driver.stop()
    return said


def check_rows(cluster: HostsCluster, folder: str, inputs: str = "inputs") -> None:
    """Compare the rows of an output in the shared folder with those of pandas."""
    expected = pd.read_pickle(cluster.shared / inputs / "expected")
    found = read(cluster.shared / folder).drop(columns="batch_id", errors="ignore")
    pd.testing.assert_frame_equal(found, expected[found.columns])


OWN = f"{PRIVATE}/own"
NO_FOLDER = "on host worker-1 (user root) and host worker-2 (user root) it does not exist; the driver runs on host d"
MOUNTED = "a file system that every host mounts at this path"
REFUSED = {
    "delta": (job(output=f"delta:{OWN}/out"), f"output file:{OWN}/out: ", NO_FOLDER, MOUNTED),
    "delta by Spark": (job(output=f"delta:{OWN}/out", by_spark=True), f"output file:{OWN}/out: ", NO_FOLDER, MOUNTED),
    "parquet": (job(output=f"parquet:{OWN}/out"), f"output file:{OWN}/out: ", NO_FOLDER, MOUNTED),
    "parquet by Spark": (job(output=f"parquet:{OWN}/out", by_spark=True), f"file:{OWN}/out: ", NO_FOLDER, MOUNTED),
    "checkpoint": (job(checkpoint=f"{OWN}/checkpoint"), f"checkpoint file:{OWN}/checkpoint: ", NO_FOLDER, MOUNTED),
    "rejected": (job(others={"rejected": f"{OWN}/rejected"}), f"rejected file:{OWN}/rejected: ", NO_FOLDER, MOUNTED),
    "another folder": (job(output="delta:/tmp/out"), "output file:/tmp/out: ", "there is another folder", MOUNTED),
    "read-only": (
        job(output=f"delta:{SHARED}/guarded"),
        f"output file:{SHARED}/guarded: on host worker-2 (user root) it can't be written: Read-only file system;",
    ),
    "files": (
        job(inputs=f"{OWN}/inputs"),
        f"input 'trades' file:{OWN}/inputs/trades: ",
        "file /srv/own/inputs/trades/part-",
        "expected files that the driver and all workers reach by the same path",
    ),
    "delta table": (
        job(inputs=f"{OWN}/tables", kind="delta"),
        f"input 'trades' file:{OWN}/tables/trades: ",
        "host worker-1 (user root)",
        "file /srv/own/tables/trades/part-",
    ),
}
"""What is refused, and the words with which it is."""


@pytest.fixture(scope="module")
def refusals(cluster: HostsCluster) -> dict[str, dict[str, Any]]:
    for host in ("worker-1", "worker-2"):
        cluster.run(host, "mkdir", "/tmp/out")
    (cluster.shared / "guarded").mkdir()
    cluster.mount("worker-2", f"{SHARED}/guarded", f"{SHARED}/guarded", read_only=True)
    cluster.run("driver", "mkdir", OWN)
    cluster.run("driver", "cp", "-a", f"{SHARED}/inputs", OWN)
    return dict(zip(REFUSED, run(cluster, *(each[0] for each in REFUSED.values())), strict=True))


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_each_hosts_own_is_refused(refusals: dict[str, dict[str, Any]], case: str) -> None:
    told = refusals[case].get("message", str(refusals[case]))
    for part in REFUSED[case][1:]:
        assert part in told
    assert "\n" not in told
    assert told.startswith(REFUSED[case][1]) or "by Spark" in case
    assert refusals[case]["error"] == ("CheckpointError" if case == "checkpoint" else "ConfigurationError")


def test_nothing_was_written_where_it_was_refused(cluster: HostsCluster, refusals: dict[str, Any]) -> None:
    assert refusals
    for host in ("driver", "worker-1", "worker-2"):
        folders = [PRIVATE, "/tmp/out", "-path", f"{PRIVATE}/spark"]
        found = cluster.run(host, "find", *folders, "-prune", "-o", "-print", check=False)
        left = {each for each in found.stdout.split() if "inputs" not in each and "tables" not in each}
        assert left <= {PRIVATE, OWN, "/tmp/out"}, host
    assert {each.name for each in cluster.shared.iterdir()} <= {"inputs", "guarded", "shared"}
    assert not list((cluster.shared / "guarded").iterdir())


def test_what_all_hosts_share_passes(cluster: HostsCluster) -> None:
    places = [f"{SHARED}/shared/{number}" for number in range(3)]
    jobs = [
        job(checkpoint=f"{places[0]}/checkpoint", output=f"parquet:{places[0]}/out"),
        job(checkpoint=f"{places[1]}/checkpoint", output=f"parquet:{places[1]}/out", by_spark=True),
        job(checkpoint=f"{places[2]}/checkpoint", output=f"delta:{places[2]}/out", copy_to=f"{places[2]}/copy"),
    ]
    said = run(cluster, *jobs)
    assert all(each.get("conserved") for each in said), said
    for folder in ("shared/0/out", "shared/1/out", "shared/2/copy"):
        check_rows(cluster, folder)
    assert not list(cluster.shared.rglob(".cojoin-place*"))


def test_an_executor_on_another_host_that_comes_later_is_refused(cluster: HostsCluster) -> None:
    driver = start_live(cluster, "later", coming=60)
    cluster.run("worker-3", "mount", "-t", "tmpfs", "tmpfs", f"{SHARED}/later/written")
    cluster.start_worker("worker-3")
    said = ended(cluster, driver, 200)
    assert said["error"] == "QueryFailedError"
    assert f"{SHARED}/later/written/checkpoint: on host worker-3 (user root) it does not exist" in said["message"]
    assert f"output file:{SHARED}/later/written/out: on host worker-3 (user root) it does not exist" in said["message"]
    assert MOUNTED in said["message"]
    assert not cluster.run("worker-3", "find", f"{SHARED}/later/written", "-type", "f").stdout
    # With the right folder there, the query goes on, with its driver on another host; no row is lost or doubled.
    cluster.run("worker-3", "umount", f"{SHARED}/later/written")
    (said,) = run(cluster, live("later"), host="master")
    assert said.get("drained"), said
    check_rows(cluster, "later/written/out", "later/inputs")
    assert not list(cluster.shared.rglob(".cojoin-place*"))


def test_killed_executors_and_workers_and_a_host_cut_off_change_no_row(cluster: HostsCluster) -> None:
    driver = start_live(cluster, "kills", coming=100)
    cluster.kill("worker-1", of="CoarseGrainedExecutorBackend")
    time.sleep(8)
    cluster.kill("worker-2")
    time.sleep(8)
    cluster.start_worker("worker-2")
    time.sleep(5)
    cluster.cut("worker-1")
    time.sleep(40)
    cluster.join("worker-1")
    said = ended(cluster, driver, 400)
    assert said.get("drained"), said
    check_rows(cluster, "kills/written/out", "kills/inputs")


_COPY = """
import sys
import deltalake, pyarrow.parquet
from tests.servers.s3 import SETTINGS
names = {"access.key": "access_key_id", "secret.key": "secret_access_key", "endpoint.region": "region"}
options = {f"aws_{name}": SETTINGS[f"fs.s3a.{key}"] for key, name in names.items()}
options |= {"aws_endpoint": sys.argv[2], "aws_allow_http": "true"}
table = deltalake.DeltaTable(sys.argv[1], storage_options=options).to_pyarrow_table()
pyarrow.parquet.write_table(table, sys.argv[3])
"""


def test_a_driver_that_was_cut_off_from_its_store_writes_nothing_after_another_has_taken_over() -> None:
    if why_not():
        pytest.skip(str(why_not()))
    with Hosts("store", "first", "second") as hosts:
        make_inputs(hosts.shared / "inputs", coming=40)
        (hosts.shared / "inputs" / "trades").rmdir()
        (hosts.shared / "inputs" / "coming").rename(hosts.shared / "inputs" / "trades")
        file = hosts.shared / "endpoint"
        serving = [sys.executable, "-m", "tests.servers.s3", f"{SHARED}/{file.name}", hosts.address("store")]
        store = hosts.server("store", "store", serving)
        store.wait_until(file.exists, 60)
        endpoint = file.read_text()
        job = {
            "inputs": f"{SHARED}/inputs",
            "checkpoint": f"s3a://{BUCKET}/checkpoint",
            "output": f"delta:s3a://{BUCKET}/out",
        }
        command = [sys.executable, hosts_driver.__file__, "local[1]"]
        live_job = json.dumps([job | {"live": True, "seconds": 600}])
        first = hosts.server("first", "first", [*command, live_job, endpoint])
        log = hosts.folder / "first.log"
        first.wait_until(lambda: "running\n" in log.read_text(), 300)
        hosts.cut("first")
        done = hosts.run("second", *command, json.dumps([job]), endpoint, seconds=600)
        said = json.loads(done.stdout.splitlines()[-1])
        assert said.get("drained"), said
        hosts.join("first")
        deadline = time.monotonic() + 300
        while not (lines := [line for line in log.read_text().splitlines() if line.startswith("{")]):
            assert time.monotonic() < deadline, first.report("goes on")
            time.sleep(0.5)
        first.stop()
        copy = [sys.executable, "-c", _COPY, f"s3://{BUCKET}/out", endpoint, f"{SHARED}/copy.parquet"]
        hosts.run("second", *copy)
        store.stop()
        expected = pd.read_pickle(hosts.shared / "inputs" / "expected")
        found = read(hosts.shared / "copy.parquet")
    pd.testing.assert_frame_equal(found[expected.columns], expected)
    # It has ended by itself since its store did not answer, or after another has taken over.
    cut_off = json.loads(lines[-1])
    assert cut_off["error"] in {"QueryFailedError", "CheckpointError"}, cut_off
