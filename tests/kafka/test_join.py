from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

import cojoin as cj
from tests.kafka.history import make_history
from tests.kafka.records import TRADES, VERSIONS, expected_join, values
from tests.kafka.topics import BATCHES, Topics, assert_conserved, assert_joined, fill

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tests.kafka.records import Records
    from tests.servers.broker import Broker

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


@pytest.mark.slow
def test_asof_join_equals_the_oracle(spark: SparkSession, topics: Topics, expected: pa.Table, tmp_path: Path) -> None:
    joined = topics.connect().asof_join(suffixes=("", "_customer"))
    _run_and_check(spark, joined, expected, tmp_path)


@pytest.mark.slow  # test_times has it over simulated logs.
def test_topics_whose_timestamps_say_nothing_make_no_row_late(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    history = make_history(3_000, 300, keys=50)
    names = ("copied-trades", "copied-customers")
    for name, rows in zip(names, (history.trades, history.customers), strict=True):
        broker.create_topic(name, 4)
        fill(spark, broker.bootstrap_servers, name, values(rows), rows["partition"].tolist())
    copied = Topics(broker.bootstrap_servers, *names, (3_000, 300))
    query = (
        copied.connect(batches=2)
        .asof_join(suffixes=("", "_customer"))
        .start(
            output=cj.sinks.delta(str(tmp_path / "enriched")),
            checkpoint=str(tmp_path / "checkpoint"),
            trigger=cj.Trigger.available_now(drain=True),
        )
    )
    query.await_termination(progress=False)
    assert_joined(spark, str(tmp_path / "enriched"), expected_join(history))
    assert query.progress is not None
    assert [(each.late_applied, each.rejected, each.source_agrees) for each in query.progress.inputs] == [
        (0, {}, False),
        (0, {}, False),
    ]


@pytest.mark.slow
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
