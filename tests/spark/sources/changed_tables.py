"""A real table of customers that changes at random, a query over its changes, and what DuckDB makes of the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import duckdb
import pyspark
import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.spark.query.batch_writer import BatchWriter
from tests.spark.data import table
from tests.table_histories import History, at_commits, at_since

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from pyspark.sql import SparkSession

READERS = ("direct", "spark")
"""Who reads a table: cojoin's source, or Delta's own."""

HAS_LIMITS = pytest.mark.skipif(
    tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2), reason="cojoin's own source needs Spark 4.2"
)
KEYS = 4
FEED = "tblproperties ('delta.enableChangeDataFeed' = 'true')"
A_DAY = cj.WatermarkStrategy.for_bounded_out_of_orderness("1 day")
MINUTE = 60_000_000


class ChangedTable:
    """A table ``customers`` with a feed, and a table ``trades``.

    Args:
        spark: The session.
        folder: Where both are.
        draw: What chooses the changes.
        spans: Whether the customers' rows have a span of validity instead of a time.
        layout: More of the statement that creates the customers, such as their partitions.
    """

    def __init__(
        self, spark: SparkSession, folder: Path, draw: random.Random, *, spans: bool = False, layout: str = ""
    ) -> None:
        self.spark, self.folder, self.draw, self.spans = spark, folder, draw, spans
        # With Spark's own 10,000 tasks a VACUUM takes minutes on a laden machine.
        spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", 2)
        self.customers, self.trades = f"delta.`{folder}/customers`", f"delta.`{folder}/trades`"
        times = "valid_from timestamp, valid_to timestamp" if spans else "since timestamp"
        columns = f"customer_id bigint, tier string, {times}"
        spark.sql(f"create table {self.customers} ({columns}) using delta {layout} {FEED}")
        spark.sql(f"create table {self.trades} (trade_id bigint, customer_id bigint, event_time timestamp) using delta")
        self.begin = int(spark.sql("select unix_micros(current_timestamp())").first()[0])  # type: ignore[index]
        self.traded: list[tuple[int, int, int]] = []
        self._contents: dict[int, dict[int, tuple[str, int]]] = {}
        self.first = 0

    def insert(self, *keys: int) -> None:
        """Insert customers in one file."""
        rows = ", ".join(f"({key}, '{self._tier()}', {self._times()})" for key in keys)
        self.spark.sql(f"insert into {self.customers} values {rows}")

    def _tier(self) -> str:
        return f"tier {self.draw.randrange(1_000)}"

    def _times(self) -> str:
        moment = f"timestamp_micros({self._moment()})"
        return f"{moment}, null" if self.spans else moment

    def _moment(self) -> int:
        return self.begin + self.draw.randrange(-5, 6) * MINUTE

    def change(self) -> str:
        """Make one commit, or two; return what it was."""
        sql, key, table_ = self.spark.sql, self.draw.randrange(KEYS), self.customers
        kinds = ["update", "delete", "merge", "overwrite", "optimize", "rename", "vacuum"]
        kind = self.draw.choice(kinds[:3] if self.spans else kinds)
        if self.spans:
            self._change_spans(kind, key)
        elif kind == "update":
            sql(f"update {table_} set tier = '{self._tier()}', since = {self._times()} where customer_id = {key}")
        elif kind == "delete":
            sql(f"delete from {table_} where customer_id = {key}")
        elif kind == "rename":
            free = [each for each in range(KEYS) if each not in self._keys()]
            if free:
                sql(f"update {table_} set customer_id = {free[0]} where customer_id = {key}")
        elif kind == "merge":
            other = (key + 1) % KEYS
            sql(
                f"merge into {table_} t using (values ({key}L, '{self._tier()}', {self._times()}), "
                f"({other}L, '{self._tier()}', {self._times()}) s(customer_id, tier, since)) "
                f"on t.customer_id = s.customer_id when matched and s.customer_id = {other} then delete "
                f"when matched then update set * when not matched then insert *"
            )
        elif kind == "overwrite":
            rows = ", ".join(f"({each}, '{self._tier()}', {self._times()})" for each in range(self.draw.randint(1, 3)))
            sql(f"insert overwrite {table_} values {rows}")
        else:
            sql(f"optimize {table_}")
            sql(f"vacuum {table_}")
        return kind

    def _change_spans(self, kind: str, key: int) -> None:
        sql, table_ = self.spark.sql, self.customers
        if kind == "delete":
            sql(f"delete from {table_} where customer_id = {key} and valid_to is null")
            return
        # The open row is closed, perhaps where it began, and its successor begins there or later.
        latest = f"(select max(greatest(valid_from, valid_to)) from {table_} where customer_id = {key})"
        found: Any = sql(f"select unix_micros(coalesce({latest}, timestamp_micros({self.begin})))").first()
        moment = int(found[0]) + self.draw.choice([0, 1, MINUTE])
        later = moment + self.draw.choice([0, MINUTE])
        sql(
            f"merge into {table_} t using (values ({key}L, '{self._tier()}', timestamp_micros({moment})) "
            f"s(customer_id, tier, moment)) on t.customer_id = s.customer_id and t.valid_to is null "
            f"when matched then update set valid_to = s.moment when not matched then insert "
            f"(customer_id, tier, valid_from) values (s.customer_id, s.tier, s.moment)"
        )
        if kind == "merge":
            open_ = f"select 1 from {table_} where customer_id = {key} and valid_to is null"
            if sql(open_).first() is None:
                sql(f"insert into {table_} values ({key}, '{self._tier()}', timestamp_micros({later}), null)")

    def _keys(self) -> set[int]:
        return {row[0] for row in self.spark.sql(f"select customer_id from {self.customers}").collect()}

    def trade(self, *moments: int) -> None:
        """Append a trade of each customer at each time, in one commit."""
        fresh = [(key, moment) for moment in moments for key in range(KEYS)]
        rows = [(len(self.traded) + number, *each) for number, each in enumerate(fresh)]
        self.traded += rows
        frame = self.spark.createDataFrame(rows, "trade_id bigint, customer_id bigint, event_time bigint")
        frame = frame.withColumn("event_time", F.timestamp_micros("event_time")).coalesce(1)
        frame.write.format("delta").mode("append").save(f"{self.folder}/trades")

    def commits(self) -> list[tuple[int, int]]:
        """Return the versions of the table and when they were committed."""
        found = self.spark.sql(f"describe history {self.customers}")
        return sorted((row[0], row[1]) for row in found.select("version", F.unix_micros("timestamp")).collect())

    def starts(self) -> None:
        """Remember that the query begins now: with the newest version as the snapshot."""
        self.first = self.commits()[-1][0]

    def history(self) -> History:
        """Return the table after each commit since the query began; those that were read before need no files."""
        kept = [each for each in self.commits() if each[0] >= self.first]
        for version, _ in kept:
            if version in self._contents:
                continue
            frame = self.spark.read.format("delta").option("versionAsOf", version).load(f"{self.folder}/customers")
            rows = frame.select("customer_id", "tier", F.unix_micros("since")).collect()
            self._contents[version] = {row[0]: (row[1], row[2]) for row in rows}
        contents = [self._contents[version] for version, _ in kept]
        # Rows may be a day ahead of the clock.
        return History(contents, [moment for _, moment in kept], trades=self.traded, far=self.begin + 2_000 * MINUTE)

    def joined(self, event_time: str | None, key_groups: int, files: int = 1) -> cj.Joined:
        """Return the join of the trades with the customers."""
        source = cj.sources.delta(f"{self.folder}/customers", changes=True, options={"maxFilesPerTrigger": files})
        times: dict[str, Any] = {"event_time": event_time}
        if event_time is None:
            times = {"valid_from": "valid_from", "valid_to": "valid_to"}
        # Of changes at their commits nothing is out of order; the columns' times are.
        bound = {} if event_time == "_commit_timestamp" else {"watermark": A_DAY}
        trades = cj.sources.delta(f"{self.folder}/trades")
        pair = cj.connect(
            cj.Input(trades, "customer_id", "event_time", "trades"),
            cj.Input(source, "customer_id", name="customers", **times, **bound),
            key_groups=key_groups,
        )
        return pair.temporal_join()

    def run(self, joined: cj.Joined, checkpoint: str, *, drain: bool, dies_at: int = -1, **options: Any) -> cj.Query:
        """Run what is there; a query that dies at a batch has executed it, and has counted nothing of it."""
        written = BatchWriter._write_outputs

        def dying(self: Any, batch: Any, *arguments: Any) -> Any:
            if batch.batch_id == dies_at:
                msg = "died on purpose"
                raise RuntimeError(msg)
            return written(self, batch, *arguments)

        def write(frame: Any, batch_id: int) -> None:
            writer = frame.write.format("delta").mode("append").option("txnAppId", checkpoint)
            writer.option("txnVersion", batch_id).save(f"{self.folder}/out_{checkpoint}")

        trigger = cj.Trigger.available_now(drain=drain)
        place = f"{self.folder}/{checkpoint}"
        # Spark has executed the batch then, and will run it again.
        with patch.object(BatchWriter, "_write_outputs", dying):
            query = joined.start(output=write, checkpoint=place, trigger=trigger, **options)
            try:
                query.await_termination()
            except cj.QueryFailedError as error:
                assert "died on purpose" in str(error), error  # noqa: PT017 - the rest is no accident of ours
        return query

    def rows(self, *checkpoints: str) -> list[tuple[int, str | None]]:
        """Return the joined rows: each trade with its tier."""
        found = []
        for each in checkpoints:
            if (self.folder / f"out_{each}").exists():
                frame = table(self.spark, self.folder / f"out_{each}")
                found += [(row[0], row[1]) for row in frame.select("trade_id", "tier").collect()]
        return sorted(found)

    def expected(self, event_time: str | None) -> list[tuple[int, str | None]]:
        """Return what they must be, by DuckDB."""
        if event_time is None:
            return self._valid()
        return at_commits(self.history()) if event_time == "_commit_timestamp" else at_since(self.history())

    def _valid(self) -> list[tuple[int, str | None]]:
        frame = table(self.spark, self.folder / "customers")
        rows = frame.select("customer_id", "tier", F.unix_micros("valid_from"), F.unix_micros("valid_to")).collect()
        with duckdb.connect() as connection:
            connection.execute("CREATE TABLE trades (trade BIGINT, customer BIGINT, moment BIGINT)")
            connection.execute("CREATE TABLE spans (customer BIGINT, tier VARCHAR, since BIGINT, until BIGINT)")
            connection.executemany("INSERT INTO trades VALUES (?, ?, ?)", self.traded)
            if rows:
                connection.executemany("INSERT INTO spans VALUES (?, ?, ?, ?)", [tuple(each) for each in rows])
            found = connection.sql(
                """SELECT t.trade, s.tier FROM trades t LEFT JOIN spans s ON s.customer = t.customer
                   AND t.moment >= s.since AND (s.until IS NULL OR t.moment < s.until)"""
            ).fetchall()
        return sorted(found)
