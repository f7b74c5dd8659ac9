"""Queries over the filled topics that are stopped, or killed, on their way and started anew."""

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
from tests.kafka import killed_driver
from tests.kafka.topics import BATCHES, assert_conserved, assert_joined

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tests.kafka.topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

PATIENCE_SECONDS = 240


def test_stopped_after_three_different_batches(
    spark: SparkSession, topics: Topics, expected: pa.Table, tmp_path: Path
) -> None:
    table, checkpoint = str(tmp_path / "enriched"), str(tmp_path / "checkpoint")
    stopped_after = []
    for batch_id in range(3):
        query = _start(topics, table, checkpoint)
        _wait_until(lambda query=query, batch_id=batch_id: _has_come_to(query, batch_id))
        query.stop()
        assert query.exception() is None
        assert query.progress is not None
        assert query.progress.is_conserved
        stopped_after.append(query.progress.batch_id)
    query = _start(topics, table, checkpoint)
    query.await_termination(progress=False)

    assert len(set(stopped_after)) == 3
    assert stopped_after[-1] < BATCHES  # something was left to do
    _check(spark, query, table, checkpoint, expected)


def test_killed_between_the_output_and_the_manifest(
    spark: SparkSession, topics: Topics, expected: pa.Table, tmp_path: Path
) -> None:
    table, checkpoint = str(tmp_path / "enriched"), str(tmp_path / "checkpoint")
    _run_until_killed(topics, table, checkpoint, tmp_path)

    # The batch of the kill is in the table, and does not count.
    manifests = Manifests(CheckpointFiles(spark, checkpoint))
    assert manifests.batch_ids() == list(range(killed_driver.LAST_BATCH))
    assert (Path(table) / "_delta_log" / f"{killed_driver.LAST_BATCH:020d}.json").exists()
    query = _start(topics, table, checkpoint)
    query.await_termination(progress=False)

    _check(spark, query, table, checkpoint, expected)


def _start(topics: Topics, table: str, checkpoint: str) -> cj.Query:
    joined = topics.connect().asof_join(suffixes=("", "_customer"))
    return joined.start(
        output=cj.sinks.delta(table), checkpoint=checkpoint, trigger=cj.Trigger.available_now(drain=True)
    )


def _has_come_to(query: cj.Query, batch_id: int) -> bool:
    return not query.is_active or (query.progress is not None and query.progress.batch_id >= batch_id)


def _check(spark: SparkSession, query: cj.Query, table: str, checkpoint: str, expected: pa.Table) -> None:
    assert_joined(spark, table, expected)
    assert query.progress is not None
    assert query.progress.is_conserved
    assert query.progress.drained
    assert len(assert_conserved(spark, checkpoint)) == BATCHES + 1


def _run_until_killed(topics: Topics, table: str, checkpoint: str, folder: Path) -> None:
    """Run the query in a process of its own, and kill it, its Java process and all, where it says that it is."""
    reached, log = folder / "reached", folder / "driver.log"
    arguments = [
        table,
        checkpoint,
        str(reached),
        topics.servers,
        topics.trades,
        topics.customers,
        *map(str, topics.sizes),
    ]
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [sys.executable, "-m", killed_driver.__name__, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a process group of its own, which Python workers leave but do not outlive
        )
    try:
        _wait_until(lambda: reached.exists() or driver.poll() is not None)
        assert reached.exists(), log.read_text()[-4000:]
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def _wait_until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"nothing happened within {PATIENCE_SECONDS} s"
        time.sleep(0.01)
