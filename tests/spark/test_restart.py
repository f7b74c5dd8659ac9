"""Exactly once, whatever moment the driver is killed at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.data import generate

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.spark

PROJECT = Path(__file__).parents[2]
DRIVER = (sys.executable, "-m", "tests.spark.killed_driver")


def kill_once(folder: Path, reached: Callable[[], bool]) -> None:
    """Run the driver and kill it, with the JVM that it started, as soon as something is reached."""
    command = [*DRIVER, str(folder)]
    log = folder / "driver.log"
    with log.open("ab") as output:
        driver = subprocess.Popen(command, cwd=PROJECT, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not reached():
            assert driver.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.001)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def test_a_driver_that_is_killed_gives_each_row_once(tmp_path: Path) -> None:
    streams = generate(seed=23)
    streams.write(tmp_path, files=6)
    manifest = tmp_path / "checkpoint" / "manifest"
    # Just after a manifest, before Spark's own commit; tests/kafka kills one between the output and the manifest.
    kill_once(tmp_path, (manifest / "000000000002.json").exists)
    killed_after = max(int(path.stem) for path in manifest.glob("*.json"))
    assert 2 <= killed_after < 5, "the driver must be killed in the middle"
    result = tmp_path / "result.json"
    ended = subprocess.run(
        [*DRIVER, str(tmp_path), str(result)], cwd=PROJECT, capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(result.read_text())
    assert [tuple(row) for row in found["rows"]] == streams.enriched()
    assert (found["manifests"], found["progress"]) == ([*range(7)], [*range(7)])
    assert found["conserved"]
