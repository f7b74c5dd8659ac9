"""Where processing time matters: its timers, idleness, and runs that end although batches without rows go on."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from tests.spark.data import Folders, customers, rows, table, trades
from tests.spark.functions import Reminder

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

REMINDERS = "trade_id bigint, domain string, overdue boolean"


def collecting(found: list[Any]) -> Any:
    """Return a sink that keeps the first column of each batch's rows."""
    return lambda frame, _: found.extend(sorted(row[0] for row in frame.collect()))


def wait_for(query: cj.Query, reached: Any, seconds: float = 60.0) -> None:
    started = time.monotonic()
    while not reached():
        assert query.is_active, query.exception()
        assert time.monotonic() - started < seconds, query.progress
        time.sleep(0.05)


@pytest.mark.slow
def test_a_bounded_run_ends_with_a_look_at_the_clock_and_a_drain_fires_what_waits(
    spark: SparkSession, tmp_path: Path
) -> None:
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 7, 0), (2, 8, 0)]))
    folders.add_customers(customers([(1, 7, 0)]))
    out, checkpoint = tmp_path / "out", f"{tmp_path}/checkpoint"

    def run(*, drain: bool = False) -> Any:
        joined = folders.connect(spark, key_groups=4).process(Reminder(), REMINDERS, order="arrival")
        query = joined.start(
            output=cj.sinks.delta(str(out)), checkpoint=checkpoint, trigger=cj.Trigger.available_now(drain=drain)
        )
        query.await_termination()
        return query.progress

    # Nothing but the clock moves after the only rows: the first reminders come in the batch that looks at it.
    report = run()
    assert rows(table(spark, out)) == [(1, "processing_time", True), (2, "processing_time", True)]
    assert (report.batch_id, report.details["timers"]) == (1, 2)
    assert (report.inputs[0].rows_in, report.inputs[1].rows_in, len(report.state_bytes_by_key_group)) == (2, 1, 4)
    assert run() == report, "a run in which nothing happens leaves no trace"
    report = run(drain=True)
    assert rows(table(spark, out), "trade_id", "overdue") == [(1, False), (1, True), (2, False), (2, True)]
    assert report.drained
    assert report.details["timers"] == 0


@pytest.mark.slow
def test_a_silent_input_goes_idle_and_no_longer_holds_time(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.add_customers(customers([(1, 7, 0)]))
    folders.add_trades(trades([(1, 7, 1), (2, 7, 60)]))
    idle = cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_idleness("500 ms")
    found: list[int] = []
    joined = folders.connect(spark, key_groups=2, watermark=idle).asof_join(suffixes=("", "_customer"))
    query = joined.start(
        output=collecting(found), checkpoint=f"{tmp_path}/checkpoint", trigger=cj.Trigger.processing_time()
    )
    try:
        wait_for(query, lambda: query.progress is not None and query.progress.inputs[1].status == "idle")
        # Both are silent now: time holds where the last that spoke has left it.
        wait_for(query, lambda: query.progress.inputs[0].status == "idle")
        folders.add_trades(trades([(3, 7, 90)]))
        wait_for(query, lambda: 2 in found)
        assert query.progress.inputs[1].idle_partitions == ("[]",)
        batches = query.batches
        time.sleep(2)
        assert query.batches <= batches + 2, "batches that the clock asks for leave no trace"
    finally:
        query.stop()
    assert found == [1, 2]


@pytest.mark.slow
def test_the_left_may_wait_for_the_rights_first_load(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 7, 10), (2, 7, 20), (3, 7, 90)]))
    folders.add_customers(customers([(1, 7, 0), (2, 8, 30)]))
    left, right = (
        cj.Input(frame, key="customer_id", event_time="event_time", name=name)
        for frame, name in zip(folders.frames(spark), ("trades", "customers"), strict=True)
    )
    loaded = datetime(2024, 3, 1, 7, 1, tzinfo=timezone.utc)
    joined = cj.connect(left, right, key_groups=2, hold_left_until=loaded).asof_join(suffixes=("", "_customer"))
    found: list[int] = []

    def run() -> Any:
        query = joined.start(
            output=collecting(found), checkpoint=f"{tmp_path}/checkpoint", trigger=cj.Trigger.available_now()
        )
        query.await_termination()
        return query.progress

    report = run()
    assert (found, report.holding_input, report.inputs[0].buffered) == ([], "customers", 3)
    folders.add_customers(customers([(3, 8, 61)]))
    run()
    assert found == [1, 2]
