"""Queries that upsert: a daily job, by the driver and by Spark's MERGE, with each rule, and what is refused before."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.engine.upsert import Upsert
from cojoin.spark.sinks import delta_merge
from tests.seeds import SEED, drawn
from tests.spark.data import Folders, asof, connect, customers, cut, generate, table, trades
from tests.spark.saved import DRAIN, PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.servers.s3 import S3Server
    from tests.spark.data import Streams

pytestmark = pytest.mark.spark

KEYS = 40
COLUMNS = ["trade_id", "customer_id", "event_time", "amount", "position", "version", "tier"]


def corrected(seed: int) -> Streams:
    """Return streams in which each trade comes several times."""
    streams = generate(trades=240, customers=60, seed=seed)
    streams.trades["trade_id"] = streams.trades["trade_id"] % KEYS
    return streams


def expected(streams: Streams, keep: str = "last") -> list[tuple[Any, ...]]:
    """Return the join's row of each trade that stays, by pandas."""
    left = streams.trades.sort_values(["event_time", "position"], kind="stable")
    right = streams.customers.sort_values(["event_time", "position"], kind="stable").drop(columns="position")
    joined = pd.merge_asof(
        left, right.assign(version=right.version.astype("float64")), on="event_time", by="customer_id"
    )
    return spelled(joined.drop_duplicates("trade_id", keep=keep)[COLUMNS])  # type: ignore[call-overload]


def spelled(rows: pd.DataFrame) -> list[tuple[Any, ...]]:
    return sorted(
        tuple(None if pd.isna(value) else float(value) if isinstance(value, (int, float)) else value for value in row)
        for row in rows.itertuples(index=False)
    )


def rows_of(spark: SparkSession, place: str) -> list[tuple[Any, ...]]:
    frame = table(spark, place) if "/" in place else spark.read.table(place)
    return spelled(frame.withColumn("event_time", F.unix_micros("event_time")).select(*COLUMNS).toPandas())


class Job:
    """A daily job over files that grow."""

    def __init__(self, spark: SparkSession, folder: Path, streams: Streams, days: int) -> None:
        self.spark, self.folder, self.streams = spark, folder, streams
        self.folders = Folders(folder / "data")
        self._days = list(zip(cut(streams.trades, days), cut(streams.customers, days), strict=True))

    def joined(self, **settings: Any) -> cj.Joined:
        return asof(connect(*self.folders.sources(), key_groups=3, **settings))

    def day(self, number: int, output: cj.sinks.SinkLike, **options: Any) -> cj.Query:
        """Add a day's rows and run the job; the last day is drained."""
        if number >= len(self.folders.files) // 2:
            self.folders.add_trades(self._days[number][0])
            self.folders.add_customers(self._days[number][1])
        is_last = number == len(self._days) - 1
        options = {"checkpoint": f"{self.folder}/checkpoint", "trigger": DRAIN if is_last else PAUSE} | options
        query = self.joined().start(output=output, **options)
        query.await_termination()
        return query


def places(spark: SparkSession, folder: Path, way: str) -> tuple[str, dict[str, Any]]:
    """Return where a table is, made so that it is written in some way, and the sink's arguments."""
    out = f"{folder}/out"
    if way == "feed":
        ddl = "trade_id bigint, customer_id bigint, event_time timestamp, amount double, position bigint"
        more = "customers_event_time timestamp, version bigint, tier string, position_customer bigint"
        spark.sql(
            f"CREATE TABLE delta.`{out}` ({ddl}, {more}) USING delta "
            "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
        )
    if way == "named":
        return f"upserts_{abs(hash(str(folder)))}", {}
    return out, {"partition_by": "tier"} if way == "partitioned" else {}


@pytest.mark.parametrize(
    "way", ["plain", *(pytest.param(way, marks=pytest.mark.slow) for way in ("partitioned", "feed", "named"))]
)
def test_a_daily_job_keeps_the_last_row_of_each_key(
    spark: SparkSession, shuffle_partitions: Callable[[int], None], tmp_path: Path, way: str
) -> None:
    shuffle_partitions(2)
    job = Job(spark, tmp_path, corrected(SEED), 3)
    place, options = places(spark, tmp_path, way)
    output = cj.sinks.delta(place, upsert="trade_id", **options)
    counted: dict[str, int] = dict.fromkeys(("inserted", "updated", "superseded"), 0)

    def count(report: cj.BatchReport) -> None:
        assert report.is_conserved
        for name, rows in report.upserts.get("output", {}).items():
            counted[name] = counted.get(name, 0) + rows

    for day in range(3):
        query = job.day(day, output, on_progress=count)
        # A day without due rows makes no table.
        is_there = Path(place).exists() if "/" in place else spark.catalog.tableExists(place)
        stored = rows_of(spark, place) if is_there else []
        assert len({row[0] for row in stored}) == len(stored)
    assert query.progress is not None
    assert ("output" in query.progress.written_by_spark) == (way in {"partitioned", "feed"})
    assert stored == expected(job.streams)
    assert counted["inserted"] == len(stored)
    assert sum(counted.values()) == len(job.streams.trades)
    assert f"of the rows of 'output' {query.progress.upserts['output']['inserted']} w" in repr(query.progress)


@pytest.mark.slow
def test_the_table_may_be_on_an_object_store(spark: SparkSession, bucket: S3Server, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, corrected(SEED + 7), 2)
    place = f"s3a://{bucket.bucket}/out"
    for day in range(2):
        query = job.day(day, cj.sinks.delta(place, upsert="trade_id"))
    assert query.progress is not None
    assert not query.progress.written_by_spark
    assert rows_of(spark, place) == expected(job.streams)


@pytest.mark.slow
@pytest.mark.parametrize("way", drawn(["plain", "partitioned"], 1))
def test_the_first_row_of_each_key_stays_where_that_is_the_rule(spark: SparkSession, tmp_path: Path, way: str) -> None:
    job = Job(spark, tmp_path, corrected(SEED + 1), 2)
    place, options = places(spark, tmp_path, way)
    for day in range(2):
        job.day(day, cj.sinks.delta(place, upsert=["trade_id"], conflict="first", **options))
    assert rows_of(spark, place) == expected(job.streams, "first")


class Largest(cj.KeyedCoProcessFunction):
    """Emits each trade as it comes."""

    def process_element1(self, trade: Any, ctx: Any) -> Any:
        yield trade.trade_id, trade.amount, trade.position

    def process_element2(self, customer: Any, ctx: Any) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "partitioned"])
def test_a_function_keeps_the_greatest_row_by_order_by_in_whatever_batch_it_comes(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    streams = corrected(SEED + 2)
    job = Job(spark, tmp_path, streams, 3)
    options = {"partition_by": "amount"} if way == "partitioned" else {}
    output = cj.sinks.delta(f"{tmp_path}/out", upsert="trade_id", order_by=["amount"], **options)
    for number in range(3):
        job.folders.add_trades(job._days[number][0])
        job.folders.add_customers(job._days[number][1])
        pair = connect(*job.folders.sources(), key_groups=3)
        ddl = "trade_id bigint, amount double, position bigint"
        query = pair.process(Largest(), ddl, order="arrival").start(
            output=output, checkpoint=f"{tmp_path}/checkpoint", trigger=DRAIN if number == 2 else PAUSE
        )
        query.await_termination()
    trades_in = streams.trades.astype({"amount": "float64"}).sort_values(["amount", "position"], na_position="first")
    wanted = spelled(trades_in.drop_duplicates("trade_id", keep="last")[["trade_id", "amount", "position"]])
    found = table(spark, tmp_path / "out").select("trade_id", "amount", "position").toPandas()
    assert spelled(found) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "partitioned"])
def test_rows_are_removed_by_a_column_and_null_keys_are_left_out_and_told(
    spark: SparkSession, tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "trades"
    ddl = "trade_id bigint, customer_id bigint, event_time timestamp, cancelled boolean"
    days = [
        [(1, 1, 10, False), (2, 1, 11, False), (None, 1, 12, False), (3, 2, 12, None)],
        [(2, 1, 20, True), (3, 2, 21, True), (3, 2, 22, False), (4, 2, 23, True)],
    ]
    folders = Folders(tmp_path / "data")
    folders.add_customers(customers([(1, 1, 5)]))
    options = {"partition_by": "customer_id"} if way == "partitioned" else {}
    output = cj.sinks.delta(f"{tmp_path}/out", upsert="trade_id", deletes="cancelled", **options)
    for number, day in enumerate(days):
        frame = spark.createDataFrame([(i, c, s, d) for i, c, s, d in day], "i bigint, c bigint, s bigint, d boolean")
        frame = frame.selectExpr(
            "i trade_id", "c customer_id", "timestamp_seconds(1709276400 + s) event_time", "d cancelled"
        )
        frame.coalesce(1).write.mode("append").parquet(str(folder))
        source = cj.sources.files(str(folder), "parquet", schema=ddl)
        left = cj.Input(source, key="customer_id", event_time="event_time", name="trades")
        right = cj.Input(folders.sources()[1], key="customer_id", event_time="event_time", name="customers")
        query = (
            cj.connect(left, right, key_groups=2)
            .asof_join()
            .start(output=output, checkpoint=f"{tmp_path}/checkpoint", trigger=DRAIN if number else PAUSE)
        )
        with caplog.at_level(logging.WARNING, "cojoin"):
            query.await_termination()
    found = table(spark, tmp_path / "out")
    assert "cancelled" not in found.columns
    assert sorted((row.trade_id, row.event_time.second) for row in found.collect()) == [(1, 10), (3, 22)]
    assert "1 of " in caplog.text
    assert "rows have a null in their key (trade_id), so they are left out" in caplog.text


def test_what_no_rule_can_decide_is_refused_before_the_start(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(tmp_path / "data")
    folders.add_trades(trades([(1, 1, 10), (2, 1, 11), (2, 1, 30), (3, 1, 90)]))
    folders.add_customers(customers([(1, 1, 5), (1, 2, 80)]))
    pair = connect(*folders.sources())
    checkpoint = f"{tmp_path}/checkpoint"

    def refused(joined: cj.Joined, output: cj.sinks.Sink) -> str:
        with pytest.raises(cj.ConfigurationError) as caught:
            joined.start(output=output, checkpoint=checkpoint, trigger=DRAIN)
        assert not (tmp_path / "checkpoint" / "query.json").exists()
        return str(caught.value)

    upsert = cj.sinks.delta(f"{tmp_path}/out", upsert="trade_id")
    need = "output: order_by: expected the columns by which rows of one key are compared"
    for joined in (
        asof(pair, direction="forward"),
        pair.interval_join(lower="-1 hour", upper="0 seconds", suffixes=("", "_customer")),
        pair.process(Largest(), "trade_id bigint, amount double, position bigint"),
        asof(connect(*folders.sources(), late="apply")),
    ):
        assert need in refused(joined, upsert)
    missing = refused(asof(pair), cj.sinks.delta(f"{tmp_path}/out", upsert="tradeid"))
    assert "output: upsert: the output has no column 'tradeid'; did you mean 'trade_id'?" in missing
    several = refused(
        asof(pair), cj.sinks.delta(f"{tmp_path}/out", upsert="trade_id", options={"overwriteSchema": "true"})
    )
    assert "upserts take mergeSchema and userMetadata, got overwriteSchema" in several
    query = asof(pair).start(output=upsert, checkpoint=checkpoint, trigger=PAUSE)
    query.await_termination()
    for output, was in (
        (cj.sinks.delta(f"{tmp_path}/out"), "would now write it without upsert="),
        (cj.sinks.delta(f"{tmp_path}/out", upsert="position"), "would now write it with upsert=['position']"),
    ):
        with pytest.raises(cj.CheckpointError, match=r"has written it with upsert=\['trade_id'\]") as caught:
            asof(pair).start(output=output, checkpoint=checkpoint, trigger=DRAIN)
        assert was in str(caught.value)
    asof(pair).start(output=upsert, checkpoint=checkpoint, trigger=DRAIN).await_termination()
    assert table(spark, tmp_path / "out").count() == 3

    # A timestamp that becomes a date may be one key with others in the table, and equals none of them in the join.
    spark.sql("CREATE TABLE days_of_trades (trade_id bigint, event_time date) USING delta")
    try:
        days = cj.sinks.delta("days_of_trades", upsert="event_time", options={"mergeSchema": "true"})
        with pytest.raises(cj.ConfigurationError, match=r"'event_time' is date in the table"):
            asof(pair).start(output=days, checkpoint=f"{tmp_path}/third", trigger=DRAIN)
    finally:
        spark.sql("DROP TABLE days_of_trades")

    out = f"{tmp_path}/appended"
    spark.sql(f"CREATE TABLE delta.`{out}` (a int) USING delta TBLPROPERTIES ('delta.appendOnly' = 'true')")
    message = "output: Delta .*: it takes no upserts, by its property delta.appendOnly"
    with pytest.raises(cj.ConfigurationError, match=message):
        asof(pair).start(output=cj.sinks.delta(out, upsert="trade_id"), checkpoint=f"{tmp_path}/second", trigger=DRAIN)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "partitioned"])
def test_a_key_that_comes_twice_ends_the_query_and_nothing_is_written(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    folders = Folders(tmp_path / "data")
    folders.add_trades(trades([(1, 1, 10), (2, 1, 11)]))
    folders.add_customers(customers([(1, 1, 5)]))
    joined = asof(connect(*folders.sources()))
    options = {"partition_by": "tier"} if way == "partitioned" else {}
    output = cj.sinks.delta(f"{tmp_path}/out", upsert="trade_id", conflict="error", **options)

    def run(trigger: cj.Trigger) -> None:
        joined.start(output=output, checkpoint=f"{tmp_path}/checkpoint", trigger=trigger).await_termination()

    folders.add_customers(customers([(1, 2, 40)]))
    folders.add_trades(trades([(3, 1, 40)]))
    run(PAUSE)
    folders.add_trades(trades([(2, 1, 50), (4, 1, 90)]))
    with pytest.raises(cj.QueryFailedError, match=r"a key must not come twice, by conflict='error', and the table has"):
        run(DRAIN)
    assert sorted(row.trade_id for row in table(spark, tmp_path / "out").collect()) == [1, 2]


@pytest.mark.slow
def test_a_key_that_another_writer_commits_after_the_look_is_not_dropped_in_silence(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.sql("SELECT 1L id, 'a''b' note UNION ALL SELECT 2L, 'c'")
    rows.limit(1).write.format("delta").save(f"{tmp_path}/t")
    monkeypatch.setattr(delta_merge, "_check_unique", lambda *_: None)
    with pytest.raises(cj.QueryFailedError, match="has a key of the batch that another writer has committed meanwhile"):
        delta_merge.merge(rows, f"{tmp_path}/t", Upsert(("id",), "error"), (), ("app", 1), "metadata")
    assert table(spark, tmp_path / "t").count() == 1
    new = spark.sql("SELECT 3L id, 'd' note")
    delta_merge.merge(new, f"{tmp_path}/t", Upsert(("id",), "error"), (), ("app", 1), "metadata")
    assert table(spark, tmp_path / "t").count() == 2


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "partitioned"])
def test_a_table_gets_columns_where_it_lacks_some(spark: SparkSession, tmp_path: Path, way: str) -> None:
    folder, ddl = tmp_path / "trades", "trade_id bigint, customer_id bigint, event_time timestamp, stored boolean"
    folders = Folders(tmp_path / "data")
    folders.add_customers(customers([(1, 1, 5)]))
    partition = {"partition_by": "customer_id"} if way == "partitioned" else {}
    for number, more in enumerate(("", ", note string")):
        frame = spark.createDataFrame(
            [(i, 1, 20 * number + i) for i in range(1, 4 + number)], "i bigint, c bigint, s bigint"
        )
        frame = frame.selectExpr(
            "i trade_id", "c customer_id", "timestamp_seconds(1709276400 + s) event_time", "true stored", "'n' note"
        )
        frame.coalesce(1).write.mode("append").parquet(str(folder))
        source = cj.sources.files(str(folder), "parquet", schema=ddl + more)
        left = cj.Input(source, key="customer_id", event_time="event_time", name="trades")
        right = cj.Input(folders.sources()[1], key="customer_id", event_time="event_time", name="customers")
        options = {"mergeSchema": "true"}
        query = (
            cj.connect(left, right, key_groups=1)
            .asof_join()
            .start(
                output=cj.sinks.delta(
                    f"{tmp_path}/out", upsert="customer_id", order_by=["event_time"], options=options, **partition
                ),
                checkpoint=f"{tmp_path}/checkpoint",
                trigger=DRAIN if number else PAUSE,
                evolve=bool(number),
            )
        )
        query.await_termination()
    (row,) = table(spark, tmp_path / "out").collect()
    assert (row.note, row.event_time.second) == ("n", 24)
