"""Exactly once, whatever moment the driver is killed at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.checkpoints.files import CheckpointFiles
from cojoin.checkpoints.manifest import Manifests
from tests.spark.data import asof, enriched_rows, generate, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def kill_once(folder: Path, reached: Callable[[], bool]) -> None:
    """Run the driver and kill it, with the JVM that it started, as soon as something is reached."""
    command = [sys.executable, "-m", "tests.spark.killed_driver", str(folder)]
    log = folder / "driver.log"
    with log.open("ab") as output:
        driver = subprocess.Popen(
            command, cwd=Path(__file__).parents[2], stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while not reached():
            assert driver.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.001)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def test_a_driver_that_is_killed_gives_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    streams = generate(seed=23)
    folders = streams.write(tmp_path, files=6)
    manifest = tmp_path / "checkpoint" / "manifest"
    # Just after a manifest, before Spark's own commit; tests/kafka kills one between the output and the manifest.
    kill_once(tmp_path, (manifest / "000000000002.json").exists)
    killed_after = max(int(path.stem) for path in manifest.glob("*.json"))
    assert 2 <= killed_after < 5, "the driver must be killed in the middle"
    query = asof(folders.connect(spark, key_groups=2)).start(
        output=cj.sinks.delta(f"{tmp_path}/out"),
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination()
    assert enriched_rows(table(spark, tmp_path / "out")) == streams.enriched()
    manifests = Manifests(CheckpointFiles(spark, f"{tmp_path}/checkpoint"))
    assert manifests.batch_ids() == list(range(7))
    assert all((each := manifests.read(batch_id)) and each.report.is_conserved for batch_id in manifests.batch_ids())
    progress = table(spark, tmp_path / "checkpoint" / "progress")
    assert sorted(row.batch_id for row in progress.select("batch_id").collect()) == list(range(7))
