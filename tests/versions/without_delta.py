"""A daily job over Delta tables in a session without Delta: ``python -m tests.versions.without_delta``.

Orders are a table to which rows are appended, customers one whose changes are read; a day's orders are between its
changes and the next ones. Then the orders are joined with a static table of prices, and counted by a function whose
query begins with another one's state. What Delta's own classes would read or write is refused. Another writer makes the
tables.
"""

from __future__ import annotations

import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import cojoin as cj
from cojoin.delta.table_log import TableLog
from cojoin.errors import EnvironmentSetupError
from cojoin.storage.local_store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIME = pa.timestamp("us", "UTC")


def run(root: str, *, drain: bool) -> cj.Query:
    """Run the job once."""
    orders = cj.Input(cj.sources.delta(f"{root}/orders"), "customer_id", "event_time", name="orders")
    source = cj.sources.delta(f"{root}/customers", changes=True)
    customers = cj.Input(source, "customer_id", "_commit_timestamp", name="customers")
    query = (
        cj.connect(orders, customers, key_groups=2)
        .temporal_join()
        .start(
            output=cj.sinks.delta(f"{root}/out"),
            checkpoint=f"{root}/checkpoint",
            trigger=cj.Trigger.available_now(drain=drain),
        )
    )
    query.await_termination(progress=False)
    return query


def with_static(root: str, begin: datetime) -> None:
    """Join all orders with the present prices, and compare what came out."""
    since = pa.array([begin, begin + timedelta(days=9), begin], _TIME)
    prices = {"customer_id": [1, 1, 2], "since": since, "price": [1.5, 2.5, 3.5], "region": ["a b", "c", None]}
    write_deltalake(f"{root}/prices", pa.table(prices | {"tags": [["x"], [], None]}), partition_by=["region"])
    orders = cj.Input(cj.sources.delta(f"{root}/orders"), "customer_id", "event_time", name="orders")
    source = cj.sources.delta(f"{root}/prices", static=True)
    joined = cj.connect(orders, cj.Input(source, "customer_id", "since", name="prices"), key_groups=2).asof_join()
    query = joined.start(
        output=cj.sinks.delta(f"{root}/priced"),
        checkpoint=f"{root}/of-prices",
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination(progress=False)
    rows = DeltaTable(f"{root}/priced").to_pyarrow_table().to_pylist()
    found = {(row["customer_id"], row["price"], row["region"], str(row["tags"])) for row in rows}
    assert len(rows) == 8, rows
    assert found == {(1, 1.5, "a b", "['x']"), (2, 3.5, None, "None")}, found


class Counts(cj.KeyedCoProcessFunction):
    """Emits for each order how many its customer has had."""

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(cj.ValueStateDescriptor("count", "long"))

    def process_element1(self, order: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        self.count.update((self.count.value() or 0) + 1)
        yield order.order_id, self.count.value()


def counted(root: str, name: str, key_groups: int, begin: cj.Snapshot | None = None) -> dict[int, int]:
    """Count the orders by a function, from a snapshot if one is given; return the counts by order."""
    orders = cj.Input(cj.sources.delta(f"{root}/orders"), "customer_id", "event_time", name="orders")
    source = cj.sources.delta(f"{root}/customers", changes=True)
    customers = cj.Input(source, "customer_id", "_commit_timestamp", name="customers")
    query = (
        cj.connect(orders, customers, key_groups=key_groups)
        .process(Counts(), "order_id long, orders long", order="arrival")
        .start(
            output=cj.sinks.delta(f"{root}/{name}"),
            checkpoint=f"{root}/of-{name}",
            trigger=cj.Trigger.available_now(),
            restore_from=begin,
        )
    )
    query.await_termination(progress=False)
    return {row["order_id"]: row["orders"] for row in DeltaTable(f"{root}/{name}").to_pyarrow_table().to_pylist()}


def with_a_function(root: str, begin: datetime) -> None:
    """Count the orders, add one of each customer, and count on from the first query's state in another query."""
    assert sorted(counted(root, "counts", 2).values()) == [1, 1, 2, 2, 3, 3, 4, 4]
    orders = {"order_id": [8, 9], "customer_id": [1, 2], "event_time": pa.array([begin, begin], _TIME)}
    write_deltalake(f"{root}/orders", pa.table(orders), mode="append")
    cj.savepoint(cj.spark_session(), f"{root}/of-counts")
    more = counted(root, "more", 4, cj.Snapshot(f"{root}/of-counts"))
    assert more == {8: 5, 9: 5}, more


def with_deltas_classes(root: str) -> None:
    """Have Delta's own source read a table, and its writer write one: both are refused, with the versions."""
    spark = cj.spark_session()
    for setting, who in (
        ("spark.cojoin.delta", "Delta's own source is to read it"),
        ("spark.cojoin.output", r"only Spark writes it \(spark.cojoin.output is spark\)"),
    ):
        spark.conf.set(setting, "spark")
        try:
            with pytest.raises(EnvironmentSetupError, match=rf"{who}.*has no build for Spark {spark.version}, only"):
                counted(root, f"refused-by-{setting}", 2)
        finally:
            spark.conf.unset(setting)


def main() -> None:
    """Run four days, and compare what came out."""
    root, due, begin = tempfile.mkdtemp(), list[tuple[int, str | None]](), datetime.now(timezone.utc)
    spark = cj.spark_session("without Delta", master="local[2]", conf={"spark.ui.enabled": "false"})
    customers = pa.table({"customer_id": [1, 2], "tier": ["gold", "tin"]})
    write_deltalake(f"{root}/customers", customers, configuration={"delta.enableChangeDataFeed": "true"})
    tiers: dict[int, str | None] = {1: "gold", 2: "tin"}
    for day in range(4):
        table = DeltaTable(f"{root}/customers")
        if day in (1, 2):
            table.update(new_values={"tier": f"day {day}"}, predicate="customer_id = 1")
            tiers[1] = f"day {day}"
        elif day == 3:
            table.delete("customer_id = 2")
            tiers[2] = None
        log = TableLog(LocalStore(f"{root}/customers"))
        newest = log.committed_at(log.commit(DeltaTable(f"{root}/customers").version()))
        at = datetime.fromtimestamp(newest / 1000, tz=timezone.utc) + timedelta(milliseconds=1)
        orders = {"order_id": [2 * day, 2 * day + 1], "customer_id": [1, 2], "event_time": pa.array([at, at], _TIME)}
        write_deltalake(f"{root}/orders", pa.table(orders), mode="append")
        due += [(2 * day, tiers[1]), (2 * day + 1, tiers[2])]
        time.sleep(0.05)
        query = run(root, drain=day == 3)
        assert query.progress is not None
        assert [each.reading for each in query.progress.inputs] == ["direct", "direct"]
    out = DeltaTable(f"{root}/out").to_pyarrow_table().sort_by("order_id").select(["order_id", "tier"]).to_pylist()
    assert [tuple(each.values()) for each in out] == due, (out, due)
    with_static(root, begin)
    with_deltas_classes(root)
    with_a_function(root, begin)
    sys.stdout.write(f"Spark {spark.version}: all {len(due)} orders, twice, and counted; Delta's classes refused\n")


if __name__ == "__main__":
    main()
