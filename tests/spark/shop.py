"""A shop with trades as files and customers as a Delta table, of which one version is a static side."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import cojoin as cj
from tests.spark.saved import PAUSE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

TRADES_DDL = "trade_id bigint, `buyer.id` bigint, event_time timestamp"
CUSTOMERS_DDL = "`käufer` bigint, since timestamp, tier string"
TIME = pa.timestamp("us", "UTC")

Rows = list[tuple[Any, ...]]


def moment(second: int) -> datetime:
    return datetime.fromtimestamp(1_700_000_000 + second, tz=timezone.utc)


@dataclass
class Shop:
    """The trades, and each version of the customers, as they were written."""

    spark: SparkSession
    folder: Path
    trades: Rows = field(default_factory=list)
    versions: list[Rows] = field(default_factory=list)

    @property
    def customers(self) -> str:
        return f"{self.folder}/customers"

    def sell(self, *trades: tuple[int | None, int]) -> None:
        """Add a file of trades, each a buyer and a second."""
        rows = [(len(self.trades) + at, buyer, second) for at, (buyer, second) in enumerate(trades)]
        self.trades += rows
        columns = [[row[at] for row in rows] for at in range(3)]
        columns[2] = [moment(second) for second in columns[2]]
        place = self.folder / "trades"
        place.mkdir(parents=True, exist_ok=True)
        schema = pa.schema([("trade_id", pa.int64()), ("buyer.id", pa.int64()), ("event_time", TIME)])
        arrays = [pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)]
        path = place / f"{len(self.trades):04}.parquet"
        hidden = path.with_name(f".{path.name}")
        pq.write_table(pa.table(arrays, schema=schema), hidden)
        # Spark reads files in the order of these times. A live query that saw one of today would pass over the next.
        os.utime(hidden, (1_700_000_000 + len(self.trades),) * 2)
        hidden.rename(path)

    def register(self, *customers: tuple[int | None, int, str | None]) -> None:
        """Write a version of the customers, each with a second and a tier, over the former one."""
        self.versions.append([*customers])
        rows = [(key, moment(second), tier) for key, second, tier in customers]
        frame = self.spark.createDataFrame(rows, CUSTOMERS_DDL)
        frame.write.format("delta").mode("overwrite").save(self.customers)

    def inputs(self, *, timed: bool = False, **table: Any) -> tuple[cj.Input, cj.Input]:
        source = cj.sources.files(
            f"{self.folder}/trades", "parquet", schema=TRADES_DDL, options={"maxFilesPerTrigger": 1}
        )
        right = cj.sources.delta(self.customers, **(table or {"static": True}))
        return (
            cj.Input(source, "buyer.id", "event_time", "trades"),
            cj.Input(right, "käufer", "since" if timed else None, "customers"),
        )

    def connect(self, key_groups: int = 3, **table: Any) -> cj.ConnectedInputs:
        return cj.connect(*self.inputs(**table), key_groups=key_groups)

    def start(self, joined: cj.Joined, name: str = "query", trigger: cj.Trigger = PAUSE, **options: Any) -> cj.Query:
        options = {"output": cj.sinks.delta(f"{self.folder}/{name}/out [1]"), "checkpoint_interval": 1, **options}
        return joined.start(checkpoint=f"{self.folder}/{name}/checkpoint [1]", trigger=trigger, **options)

    def run(self, joined: cj.Joined, name: str = "query", **options: Any) -> cj.Query:
        query = self.start(joined, name, **options)
        query.await_termination()
        report = query.progress
        assert report is not None
        assert report.is_conserved
        return query

    def rows(self, name: str = "query") -> list[tuple[int, str | None]]:
        """Return each trade with its tier as it came out."""
        frame = self.spark.read.format("delta").load(f"{self.folder}/{name}/out [1]")
        return sorted(((row.trade_id, row.tier) for row in frame.select("trade_id", "tier").collect()), key=str)

    def control(self, name: str = "query") -> list[str]:
        """Return the loads that lie in the control folder."""
        place = self.folder / name / "checkpoint [1]" / "control"
        return sorted(each.name for each in place.iterdir() if each.name.startswith("load"))

    def found(self, at: dict[int, int], *, timed: bool = False) -> list[tuple[int, str | None]]:
        """Return what DuckDB finds for trades, each in the version that was loaded when it came out.

        Args:
            at: The version of each trade.
            timed: Whether a customer is one from its second on.
        """
        trades = [(at[trade], trade, buyer, second) for trade, buyer, second in self.trades if trade in at]
        customers = [(number, *row) for number, rows in enumerate(self.versions) for row in rows]
        with duckdb.connect(config={"threads": 1}) as db:
            db.execute("create table trades (version int, id int, buyer int, second int)")
            db.execute("create table customers (version int, id int, second int, tier text)")
            db.executemany("insert into trades values (?, ?, ?, ?)", trades)
            db.executemany("insert into customers values (?, ?, ?, ?)", customers)
            inside = "c.second <= t.second" if timed else "true"
            found = db.execute(
                f"""
                select t.id, (select c.tier from customers c where c.version = t.version and c.id = t.buyer and {inside}
                              order by c.second desc, c.tier desc nulls last limit 1) from trades t
                """
            ).fetchall()
        return sorted(found, key=str)


def await_rows(query: cj.Query, count: int, seconds: float = 400.0) -> None:
    """Wait until a query has taken so many trades."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and query.is_active:
        if query.progress is not None and query.progress.inputs[0].rows_in >= count:
            return
        time.sleep(0.1)
    raise AssertionError(query.exception())
