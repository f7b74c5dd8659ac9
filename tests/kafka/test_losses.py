"""A checkpoint whose topics have lost what was to be read next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from tests.kafka.topics import delete_records, fill
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_records_that_are_gone_are_told_and_passed_over_only_if_asked(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    servers, names = broker.bootstrap_servers, ("aging-trades", "aging-customers")
    for name in names:
        broker.create_topic(name, 1)
        fill(spark, servers, name, [_record(second) for second in range(4)], [0] * 4)

    def join() -> cj.Joined:
        trades, customers = (
            cj.Input(
                cj.sources.kafka(servers, name, schema="id long, at timestamp"), key="id", event_time="at", name=name
            )
            for name in names
        )
        return cj.connect(trades, customers, key_groups=2).asof_join(suffixes=("", "_customer"))

    old = join().start(
        output=cj.sinks.delta(str(tmp_path / "old-out")),
        checkpoint=str(tmp_path / "old"),
        trigger=cj.Trigger.available_now(),
        checkpoint_interval=None,
    )
    old.await_termination(progress=False)
    saved = old.savepoint()
    assert saved.at == 0
    # Five more each, of which the broker gives up the first three trades.
    for name in names:
        fill(spark, servers, name, [_record(second) for second in range(4, 9)], [0] * 5)
    delete_records(spark, servers, names[0], 7)

    new = {
        "output": cj.sinks.delta(str(tmp_path / "new-out")),
        "checkpoint": str(tmp_path / "new"),
        "trigger": cj.Trigger.available_now(drain=True),
        "restore_from": saved,
    }
    with refused("aging-trades", "partition 0", "3 records are gone", "allow_data_loss=True", kind=cj.CheckpointError):
        join().start(**new)
    assert not (tmp_path / "new").exists()
    join().start(**new, allow_data_loss=True).await_termination(progress=False)
    # The old query has emitted seconds 0 to 2; the fourth waited; 4 to 6 are gone.
    found = spark.read.format("delta").load(str(tmp_path / "new-out")).selectExpr("unix_seconds(at) AS second")
    assert sorted(row.second for row in found.collect()) == [3, 7, 8]


def _record(second: int) -> str:
    return f'{{"id": 1, "at": "1970-01-01T00:00:0{second}Z"}}'
