"""Topics that are read once a day: a partition without a record from one run to the next was quiet, and goes idle."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.spark.query import input_progress
from tests.kafka.replayed import join, pairs, row, run, start, version, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

DAY = 86_400_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still, from which the moments of runs are read."""
    clock = SimpleNamespace(now=1_800_000_000_000)
    monkeypatch.setattr(input_progress, "time", SimpleNamespace(time=lambda: clock.now / 1_000))
    return clock


def test_a_partition_without_a_record_for_a_day_is_left_out(
    spark: SparkSession, broker: Broker, tmp_path: Path, clock: SimpleNamespace
) -> None:
    servers, topics = broker.bootstrap_servers, ("quiet-l", "quiet-r")
    for topic in topics:
        broker.create_topic(topic, 2)
    write(servers, topics[0], [row(0, 1)])
    write(servers, topics[1], [version(0, 0), version(1, 0, partition=1)])
    # Without a drift that is long enough, timestamps say nothing of silent partitions.
    joined = join(servers, *topics, idle="1 day", max_drift="1 day")
    reports = []
    for day in range(3):
        reports.append(run(joined, tmp_path).progress)
        clock.now += DAY
        write(servers, topics[0], [row(1 + day, 10 + day)])
        if day != 1:
            write(servers, topics[1], [version(10 + day, 9 + day)])
    assert [each.inputs[1].idle_partitions for each in reports] == [
        (),
        ('["quiet-r", 1]',),
        ('["quiet-r", 0]', '["quiet-r", 1]'),
    ]
    assert pairs(spark, tmp_path) == [(0, 1), (1, 10)]
    assert reports[2].inputs[1].status == "idle"


def test_topics_with_an_end_that_was_set_are_not_read_to_their_ends(
    spark: SparkSession, broker: Broker, tmp_path: Path, clock: SimpleNamespace
) -> None:
    servers, topics = broker.bootstrap_servers, ("ended-l", "ended-r")
    for topic in topics:
        broker.create_topic(topic, 1)
    write(servers, topics[0], [row(0, 1), row(1, 30)])
    write(servers, topics[1], [version(0, 0), version(1, 29)])
    joined = join(servers, *topics, idle="1 day", to="2026-01-05 00:10:00Z")
    for _ in range(3):
        report = run(joined, tmp_path).progress
        clock.now += DAY
    assert report is not None
    assert [each.status for each in report.inputs] == ["active", "active"]
    # Going on live, the query reads past the end.
    live = cj.Trigger.available_now(then=cj.Trigger.processing_time())
    query = start(joined, tmp_path, live)
    try:
        assert query.await_history(120, progress=False)
        assert query.history is not None
        assert [each.rows_in for each in query.history.inputs] == [1, 1]
        query.await_termination(1, progress=False)
        while query.is_active and sum(each.rows_in for each in query.progress.inputs) < 4:  # type: ignore[union-attr]
            query.await_termination(0.1, progress=False)
    finally:
        query.stop()
    assert query.exception() is None
