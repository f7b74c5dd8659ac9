"""The driver of the job on a cluster: ``python driver.py MASTER FOLDER``.

Reads ``trades`` and ``customers`` in the folder, two files a batch, and joins them twice: by the ready join and by a
function of this very script, which no executor can import. The results go into Delta tables, and from there as plain
Parquet files to the test. Prints the names of the folders in which the function ran.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

import cojoin as cj
from tests.cluster.application import EXECUTORS, connect, start_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

OUTPUT_DDL = "trade_id long, customer_id string, event_time timestamp, amount double, tier string, folder string"


class EnrichTrades(cj.KeyedCoProcessFunction):
    """Gives each trade the tier in force, and the folder of the process that did it."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string"))

    def process_element1(self, trade: cj.Row, ctx: cj.Context) -> Iterator[Any]:
        yield trade.trade_id, trade.customer_id, trade.event_time, trade.amount, self.tier.value(), os.getcwd()  # noqa: PTH109

    def process_element2(self, customer: cj.Row, ctx: cj.Context) -> None:
        self.tier.update(customer.tier)


def main(master: str, folder: str) -> None:
    spark = start_session("cluster", master, {"spark.sql.shuffle.partitions": EXECUTORS})
    pair = connect(folder, key_groups=4)
    _run(spark, pair.asof_join(), folder, "asof")
    _run(spark, pair.process(EnrichTrades(), OUTPUT_DDL), folder, "function")
    spark.stop()


def _run(spark: SparkSession, joined: cj.Joined, folder: str, name: str) -> None:
    table = f"{folder}/{name}"
    query = joined.start(
        output=cj.sinks.delta(table), checkpoint=f"{table}-checkpoint", trigger=cj.Trigger.available_now(drain=True)
    )
    query.await_termination(progress=False)
    assert query.progress is not None
    assert query.progress.is_conserved
    assert query.progress.drained
    assert query.batches > 2
    pq.write_table(spark.read.format("delta").load(table).toArrow(), f"{table}.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
