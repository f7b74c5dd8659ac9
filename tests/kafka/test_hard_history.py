"""Histories whose times or offsets mislead are replayed in slices: nothing is late, and the result is exact.

Transactional topics have commit markers, which carry the clock of today, and aborted records; compacted ones have
holes; some have records of the year 2100; in skewed ones a partition has a thousand times as many records as another,
and a millisecond more than a batch may hold.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from tests.kafka.hard_replay import offsets, replay_hard
from tests.kafka.hard_topics import KINDS, open_transaction
from tests.kafka.replayed import START, join, make, pairs, rejected, row, run, version, write
from tests.seeds import SEED, drawn

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.slow  # Several topics written by transactions and compacted; test_times shows the same on logs.
def test_all_that_misleads_at_once(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    found = replay_hard(spark, broker.bootstrap_servers, tmp_path, KINDS, seed=SEED, trades=1_000, limit=500)
    assert not found.faults, (SEED, found)
    assert found.largest <= 500


@pytest.mark.slow  # some minutes: each replay has twenty batches and more
@pytest.mark.parametrize("seed", [SEED, *(pytest.param(SEED + more, marks=pytest.mark.more) for more in (1, 2))])
@pytest.mark.parametrize("kind", drawn(KINDS, 1))
def test_each_alone(spark: SparkSession, broker: Broker, tmp_path: Path, kind: str, seed: int) -> None:
    found = replay_hard(spark, broker.bootstrap_servers, tmp_path, [kind], seed=seed, trades=20_000, limit=2_000)
    assert not found.faults, (seed, found)
    assert found.largest <= 2_000


@pytest.mark.slow  # Three runs.
def test_a_run_ends_before_a_transaction_that_is_open_and_what_it_brings_is_on_time(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The first commit's marker has the clock of today; what the second transaction brings is months older."""
    servers = make(broker, "open-l", "open-r")
    some, more = (
        [(json.dumps(each.value).encode(), each.time) for each in (row(at, at) for at in range(begin, begin + 10))]
        for begin in (0, 10)
    )
    open_transaction(servers, "open-l", some, "open-before").commit_transaction(30)
    write(servers, "open-r", [version(0, 0), version(5, 14.5)])
    producer = open_transaction(servers, "open-l", more, "open")
    write(servers, "open-l", [row(20, 20)])
    joined = join(servers, "open-l", "open-r", max_records=9)
    with pytest.warns(UserWarning, match="a transaction is open from offset 11 on"):
        query = run(joined, tmp_path)
    assert query.progress is not None
    assert [each.rows_in for each in query.progress.inputs] == [10, 2]
    assert query.batches <= 4
    with pytest.warns(UserWarning, match="leaves 11 offsets, up to 21, to the next run"):
        assert run(joined, tmp_path).batches == 0

    producer.commit_transaction(30)
    done = run(joined, tmp_path, drain=True)
    assert done.progress is not None
    assert [(each.rows_in, dict(each.rejected), each.late_applied) for each in done.progress.inputs] == [
        (21, {}, 0),
        (2, {}, 0),
    ]
    assert pairs(spark, tmp_path) == [(each, 5 if each > 14 else 0) for each in range(21)]


@pytest.mark.slow  # a run more than the others need: `test_times` has it over simulated logs
def test_without_a_bound_far_stamps_are_times(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    servers = make(broker, "far-l", "far-r")
    ahead = 39_000_000  # minutes: 74 years
    write(servers, "far-l", [row(0, 0), row(1, ahead), row(2, ahead + 20)])
    write(servers, "far-r", [version(0, 0), version(5, ahead - 1)])
    left, right = (
        cj.Input(
            cj.kafka.source(servers, topic, schema=schema),
            key="k",
            event_time="at",
            name=name,
            watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness("1 second"),
            max_ahead=None,
        )
        for topic, schema, name in (
            ("far-l", "id long, k long, at timestamp", "left"),
            ("far-r", "k long, at timestamp, v long", "right"),
        )
    )
    query = run(cj.connect(left, right, key_groups=2).asof_join(suffixes=("", "_right")), tmp_path, drain=True)
    assert pairs(spark, tmp_path) == [(0, 0), (1, 5), (2, 5)]
    assert query.progress is not None
    assert all(not each.rejected for each in query.progress.inputs)
    assert offsets(tmp_path)[-1][0]["time"] > START + ahead * 60_000
    assert (tmp_path / "checkpoint" / "rejected").exists() is False or rejected(spark, tmp_path) == []
