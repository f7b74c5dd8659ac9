"""A key of a checkpoint over topics, stepped by their offsets: what the real run wrote comes out again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from tests.kafka.history import make_history
from tests.kafka.records import values
from tests.kafka.topics import Topics, delete_records, fill

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

NAMES = ("debugged-trades", "debugged-customers")


@pytest.mark.slow
def test_steps_write_what_the_real_run_wrote(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    history = make_history(2_000, 200, keys=20)
    for name, rows in zip(NAMES, (history.trades, history.customers), strict=True):
        broker.create_topic(name, 4)
        fill(spark, broker.bootstrap_servers, name, values(rows), rows["partition"].tolist())
    topics = Topics(broker.bootstrap_servers, *NAMES, (2_000, 200))
    joined = topics.connect(batches=4).asof_join(suffixes=("", "_customer"))
    checkpoint, written = str(tmp_path / "checkpoint"), dict[int, list[Any]]()

    def keep(rows: DataFrame, batch_id: int) -> None:
        written[batch_id] = rows.select("customer_id", "trade_id", "version_id").collect()

    joined.start(
        output=keep,
        checkpoint=checkpoint,
        trigger=cj.Trigger.available_now(drain=True),
        checkpoint_interval=1,
        retained_checkpoints=10,
    ).await_termination(progress=False)
    snapshot = int(min(path.stem for path in (tmp_path / "checkpoint" / "snapshots").glob("*.json")))
    later = [row for batch, rows in written.items() for row in rows if batch > snapshot]
    key = max(range(20), key=lambda each: sum(row.customer_id == each for row in later))
    debugger = cj.debug(checkpoint, joined, key=key, at=snapshot)
    stepped = {
        step.batch_id: sorted((row["trade_id"], row["version_id"]) for row in step.output.to_pylist())
        for step in debugger.steps()
    }
    real = {
        batch: sorted((row.trade_id, row.version_id) for row in rows if row.customer_id == key)
        for batch, rows in written.items()
        if batch > snapshot
    }
    assert {batch: rows for batch, rows in stepped.items() if rows} == {
        each: rows for each, rows in real.items() if rows
    }
    assert sum(map(bool, real.values())) > 1
    assert sum(map(len, stepped.values())) > 10
    delete_records(spark, broker.bootstrap_servers, NAMES[0], -1)
    with pytest.raises(
        cj.CheckpointError, match=r"no longer exist: input 'trades': topic debugged-trades partition \d"
    ):
        _ = cj.debug(checkpoint, joined, key=key, at=snapshot).upcoming
