from __future__ import annotations

import json
import os
import sys
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.servers import ServerError
from tests.servers.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.cluster

DRIVER = """
    import sys, time
    from pyspark.sql import SparkSession

    def describe(batches):
        import json, os, time
        import pyarrow as pa
        import tests.servers  # the project is importable wherever an executor runs
        rows = sum(batch.num_rows for batch in batches)
        time.sleep(3)  # long enough that the other partition goes to the other executor
        text = json.dumps([os.getppid(), os.getcwd(), sys.executable, rows])
        yield pa.RecordBatch.from_pydict({"text": [text]})

    spark = SparkSession.builder.master(sys.argv[1]).config("spark.executor.memory", "512m").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 3:  # the driver counts
        time.sleep(0.1)
    for row in spark.range(0, 1000, 1, 2).mapInArrow(describe, "text string").collect():
        print(row.text)
    spark.stop()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def test_a_python_function_runs_in_both_executors(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(dedent(DRIVER), encoding="utf-8")

    tasks = [json.loads(line) for line in cluster.run_driver(script).splitlines()]

    processes, folders, interpreters, rows = zip(*tasks, strict=True)
    assert len(set(processes)) == 2
    assert len(set(folders)) == 2
    assert set(interpreters) == {sys.executable}
    assert sum(rows) == 1000


def test_a_failed_driver_shows_why(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text("raise SystemExit('no such table')", encoding="utf-8")
    with pytest.raises(ServerError, match="no such table"):
        cluster.run_driver(script)


def test_stopping_ends_all_processes(cluster: Cluster) -> None:
    with Cluster(workers=1) as other:
        pids = other.pids
        assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    for pid in cluster.pids:
        os.kill(pid, 0)  # raises if there is none
