from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

import cojoin as cj
from cojoin.checkpoints.checkpoint import find_snapshot
from cojoin.checkpoints.files import CheckpointFiles
from tests.kafka.records import TRADES, VERSIONS
from tests.kafka.topics import BATCHES, assert_conserved, assert_joined

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tests.kafka.records import Records
    from tests.kafka.topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


class EnrichTrades(cj.KeyedCoProcessFunction):
    """The as-of join, written by hand: each trade with the customer record in force at its event time."""

    OUTPUT = (
        "trade_id long, customer_id long, event_time timestamp, amount double, partition int, offset long, "
        "version_id long, customers_event_time timestamp, tier string, partition_customer int, offset_customer long"
    )

    def open(self, ctx: cj.RuntimeContext) -> None:
        customer = "version_id long, event_time timestamp, tier string, partition int, offset long"
        trade = "trade_id long, event_time timestamp, amount double, partition int, offset long"
        self.customer = ctx.get_state(cj.ValueStateDescriptor("customer", customer))
        self.waiting = ctx.get_list_state(
            cj.ListStateDescriptor("waiting", f"trade struct<{_struct(trade)}>, customer struct<{_struct(customer)}>")
        )

    def process_element1(self, trade: cj.Row, ctx: cj.Context) -> None:
        kept = (trade.trade_id, trade.event_time, trade.amount, trade.partition, trade.offset)
        self.waiting.add((kept, self.customer.value()))
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def process_element2(self, customer: cj.Row, ctx: cj.Context) -> None:
        names = ("version_id", "event_time", "tier", "partition", "offset")
        self.customer.update({name: customer[name] for name in names})

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Iterator[Any]:
        for trade, customer in self.waiting.get():
            trade_id, event_time, *rest = trade
            found = (None,) * 5 if customer is None else customer
            yield trade_id, ctx.get_current_key(), event_time, *rest, *found
        self.waiting.clear()


def _struct(columns: str) -> str:
    return ", ".join(": ".join(column.split()) for column in columns.split(","))


def test_the_topics_hold_what_makes_a_join_hard(records: Records, expected: pa.Table) -> None:
    trades, customers = records.trades, records.customers
    instant, moment = ["customer_id", "micros"], [trades["customer_id"], trades["micros"] // 1000]
    assert trades.groupby(moment).size().gt(1).sum() > 10_000
    assert trades.merge(customers, on=instant).shape[0] > 1_000
    assert customers.duplicated([*instant, "partition"]).sum() > 400
    assert customers.duplicated(instant).sum() > 900
    for topic in (trades, customers):
        late_by = topic.groupby("partition")["micros"].cummax() - topic["micros"]
        assert 4_900_000 < late_by.max() <= 5_000_000
        assert topic["customer_id"].value_counts().iloc[0] > 20 * len(topic) / 1_000
    without_match = pc.sum(pc.is_null(expected.column("version_id"))).as_py()
    assert 100 < without_match < TRADES / 10


def test_asof_join_equals_the_oracle_and_so_does_a_query_restored_from_it(
    spark: SparkSession, topics: Topics, expected: pa.Table, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    joined = topics.connect().asof_join(suffixes=("", "_customer"))
    _run_and_check(spark, joined, expected, old, checkpoint_interval=1, retained_checkpoints=4 * BATCHES)

    seed = random.randrange(1_000)
    batch_id, key_groups = random.Random(seed).randrange(BATCHES), random.Random(seed).choice([1, 3, 9])
    print(f"seed {seed}: batch {batch_id}, {key_groups} key groups")  # noqa: T201 - shown on failure
    restored = topics.connect(batches=1, key_groups=key_groups).asof_join(suffixes=("", "_customer"))
    restored.start(
        output=cj.sinks.delta(str(new / "enriched")),
        checkpoint=str(new / "checkpoint"),
        trigger=cj.Trigger.available_now(drain=True),
        restore_from=cj.Checkpoint(str(old / "checkpoint"), at=batch_id),
    ).await_termination(progress=False)
    snapshot = find_snapshot(CheckpointFiles(spark, str(old / "checkpoint")), batch_id)
    version = snapshot.manifest.outputs["output"]["version"]
    after = spark.read.format("delta").load(str(new / "enriched"))
    if version is not None:
        after = after.unionByName(spark.read.format("delta").option("versionAsOf", version).load(str(old / "enriched")))
    assert_joined(spark, after, expected)


def test_a_function_equals_the_oracle(spark: SparkSession, topics: Topics, expected: pa.Table, tmp_path: Path) -> None:
    joined = topics.connect_frames(spark).process(EnrichTrades(), EnrichTrades.OUTPUT, order="event_time")
    _run_and_check(spark, joined, expected, tmp_path)


def _run_and_check(spark: SparkSession, joined: cj.Joined, expected: pa.Table, folder: Path, **options: Any) -> None:
    table, checkpoint = str(folder / "enriched"), str(folder / "checkpoint")
    query = joined.start(
        output=cj.sinks.delta(table), checkpoint=checkpoint, trigger=cj.Trigger.available_now(drain=True), **options
    )
    query.await_termination(progress=False)

    assert_joined(spark, table, expected)
    assert query.progress is not None
    assert query.progress.is_conserved
    assert query.progress.drained
    assert [(each.rows_in, each.done, each.late_applied) for each in query.progress.inputs] == [
        (TRADES, TRADES, 0),
        (VERSIONS, VERSIONS, 0),
    ]
    reports = assert_conserved(spark, checkpoint)
    assert len(reports) > BATCHES  # the drain is one of its own
    # Rows come out as the watermark passes them, not all at the end.
    assert reports[BATCHES // 2].rows_out > TRADES / 4
    assert reports[-1].emitted["output"] < TRADES / 4
    for each in reports[0].inputs:
        assert len(each.partitions) == 4
