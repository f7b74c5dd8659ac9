"""One call: the history in large batches, then live, until the query is stopped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from tests.spark.data import Folders, customers, trades

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

THEN = cj.Trigger.available_now(then=cj.Trigger.processing_time())


def wait_for(query: cj.Query, reached: Any, seconds: float = 120.0) -> None:
    started = time.monotonic()
    while not reached():
        assert query.is_active, query.exception()
        assert time.monotonic() - started < seconds, query.progress
        time.sleep(0.05)


@pytest.mark.slow
def test_history_then_live_is_one_query_with_one_lease(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that wait at the end of the history come out live; a start after the stop does the same again."""
    folders, found = Folders(tmp_path), dict[int, list[int]]()
    folders.add_customers(customers([(1, 7, 0), (2, 7, 100)]))
    folders.add_trades(trades([(1, 7, 1), (2, 7, 60)]))
    joined = folders.connect(spark, key_groups=1).asof_join(suffixes=("", "_customer"))

    def collect(frame: Any, batch_id: int) -> None:
        # A batch that the stop interrupts comes again.
        found[batch_id] = sorted(row[0] for row in frame.collect())

    def out() -> list[int]:
        return [row for batch_id in sorted(found) for row in found[batch_id]]

    def start() -> cj.Query:
        return joined.start(output=collect, checkpoint=f"{tmp_path}/checkpoint", trigger=THEN)

    query = start()
    try:
        assert query.await_history(120, progress=False)
        history = query.history
        assert history is not None
        assert (out(), history.inputs[0].rows_in, query.is_active) == ([1], 2, True)
        folders.add_trades(trades([(3, 7, 90)]))
        wait_for(query, lambda: out() == [1, 2])
        assert query.history == history
    finally:
        query.stop()
    assert not query.is_active
    # It was stopped; the next start reads what has come in between, and is stopped before it goes on.
    folders.add_trades(trades([(4, 7, 96)]))
    query = start()
    try:
        wait_for(query, lambda: 3 in out())
    finally:
        query.stop()
    assert query.exception() is None
    assert out() == [1, 2, 3]


@pytest.mark.slow
def test_a_query_that_does_not_go_on_has_ended_when_its_history_is_read(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.add_customers(customers([(1, 7, 0)]))
    folders.add_trades(trades([(1, 7, 1)]))
    joined = folders.connect(spark, key_groups=1).asof_join(suffixes=("", "_customer"))
    query = joined.start(
        output=lambda frame, _: frame.collect(),
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=cj.Trigger.available_now(),
    )
    assert query.await_history(progress=False)
    assert query.await_termination(60)
    assert query.history is None
