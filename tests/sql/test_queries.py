"""Queries that write to a database: a daily job, what is refused before the start, and a database that goes away."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.sql import sql_sink
from tests.seeds import SEED
from tests.spark.data import Folders, asof, connect, customers, table, trades
from tests.spark.saved import DRAIN, PAUSE
from tests.spark.sinks.test_upserts import COLUMNS, Job, corrected, expected, spelled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.spark


def rows_of(server: PostgresServer, url: str, name: str = "enriched") -> list[tuple[Any, ...]]:
    import pandas as pd

    time = "(extract(epoch from event_time) * 1000000)::bigint"
    columns = ", ".join(time if name == "event_time" else f'"{name}"' for name in COLUMNS)
    return spelled(pd.DataFrame(server.run(f'SELECT {columns} FROM "{name}"', url), columns=COLUMNS))


def test_a_daily_job_keeps_the_last_row_of_each_key_in_postgresql(
    spark: SparkSession, shuffle_partitions: Callable[[int], None], tmp_path: Path, postgres: PostgresServer
) -> None:
    shuffle_partitions(2)
    url = postgres.database()
    job = Job(spark, tmp_path, corrected(SEED + 3), 2)
    output = cj.sinks.sql(url, "enriched", upsert="trade_id")
    for day in range(2):
        query = job.day(day, output)
        stored = rows_of(postgres, url)
        assert len({row[0] for row in stored}) == len(stored)
    assert stored == expected(job.streams)
    assert query.progress is not None
    assert sum(query.progress.upserts["output"].values()) == query.progress.emitted["output"]
    assert not any((tmp_path / "checkpoint" / "staged" / "output").rglob("*.parquet"))
    fences = postgres.run("SELECT output, target, batch_id FROM cojoin_fence", url)
    assert [row[:2] for row in fences] == [("output", "enriched")]


@pytest.mark.slow
def test_the_first_minute_needs_no_server(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, corrected(SEED + 4), 2)
    spark.conf.set("spark.cojoin.output", "spark")
    try:
        for day in range(2):
            job.day(day, cj.sinks.sql(f"sqlite:///{tmp_path}/shop.db", "enriched", upsert="trade_id"))
    finally:
        spark.conf.unset("spark.cojoin.output")
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        found = connection.execute("SELECT trade_id, amount, version, tier FROM enriched").fetchall()
    wanted = [(int(row[0]), row[3], row[5], row[6]) for row in expected(job.streams)]
    assert sorted(found, key=str) == sorted(wanted, key=str)


@pytest.mark.slow
def test_a_database_that_is_put_back_while_the_query_runs_is_not_written_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, place = Job(spark, tmp_path, corrected(SEED + 4), 1), tmp_path / "shop.db"

    commit = sql_sink.SqlWriter.commit

    def put_back(self: Any, schema: Any, files: Any, marker: Any) -> Any:
        written = commit(self, schema, files, marker)
        if marker.batch_id == 0:
            with sqlite3.connect(place) as connection:
                connection.execute("UPDATE cojoin_fence SET batch_id = -1")
        return written

    monkeypatch.setattr(sql_sink.SqlWriter, "commit", put_back)
    with pytest.raises(cj.QueryFailedError, match="the table has none of the query's batches, and had them up to 0"):
        job.day(0, cj.sinks.sql(f"sqlite:///{place}", "enriched", upsert="trade_id"))


@pytest.mark.slow
def test_rows_are_inserted_once_without_a_key(spark: SparkSession, tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.database()
    folders = Folders(tmp_path / "data")
    folders.add_trades(trades([(1, 1, 10), (2, None, 11), (3, 1, 12)]))
    folders.add_customers(customers([(1, 1, 5)]))
    folders.add_trades(trades([(4, 1, 90)]))
    folders.add_customers(customers([(1, 2, 80)]))
    options = {"output": cj.sinks.sql(url, "enriched"), "checkpoint_interval": 1}
    query = asof(connect(*folders.sources())).start(checkpoint=f"{tmp_path}/checkpoint", trigger=PAUSE, **options)
    query.await_termination()
    assert sorted(postgres.run("SELECT trade_id FROM enriched", url)) == [(1,), (3,)]
    assert table(spark, tmp_path / "checkpoint" / "rejected").count() == 1
    saved = cj.Snapshot(f"{tmp_path}/checkpoint")
    with pytest.raises(cj.CheckpointError, match="the table would have them twice; name a new table"):
        asof(connect(*folders.sources())).start(
            checkpoint=f"{tmp_path}/fork", trigger=DRAIN, restore_from=saved, **options
        )


def test_what_does_not_fit_is_told_before_the_start(
    spark: SparkSession, tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.database()
    folders = Folders(tmp_path / "data")
    folders.add_trades(trades([(1, 1, 10)]))
    folders.add_customers(customers([(1, 1, 5)]))
    joined = asof(connect(*folders.sources()))

    def refused(output: Any) -> str:
        with pytest.raises(cj.ConfigurationError) as caught:
            joined.start(output=output, checkpoint=f"{tmp_path}/checkpoint", trigger=DRAIN)
        assert not (tmp_path / "checkpoint" / "query.json").exists()
        return str(caught.value)

    columns = "trade_id bigint, customer_id bigint, amount text, position bigint, version bigint, tier text"
    more = "position_customer bigint, event_time timestamptz, customers_event_time timestamptz"
    postgres.run(f"CREATE TABLE other ({columns}, {more}, owner text NOT NULL)", url)
    message = refused(cj.sinks.sql(url, "other", upsert="trade_id"))
    assert message.startswith("output: PostgreSQL postgresql://")
    assert "column 'amount' is text in the table, and the output's double precision does not fit" in message
    assert "column 'owner' of the table is NOT NULL, and the output has none of the name" in message
    cure = message.rpartition("it has no unique index on upsert=['trade_id']: ")[2]
    for statement in (
        cure,
        "ALTER TABLE other DROP COLUMN owner",
        "ALTER TABLE other ALTER amount TYPE double precision USING NULL",
    ):
        postgres.run(statement, url)
    joined.start(
        output=cj.sinks.sql(url, "other", upsert="trade_id"), checkpoint=f"{tmp_path}/checkpoint", trigger=DRAIN
    ).await_termination()
    assert postgres.run("SELECT trade_id FROM other", url) == [(1,)]

    postgres.run("CREATE ROLE reader LOGIN", url)
    reader = url.replace("postgres:@", "reader:@")
    joined = asof(connect(*folders.sources(), key_groups=1))
    with pytest.raises(cj.CojoinError, match=r"permission denied.*give the user the rights") as caught:
        joined.start(
            output=cj.sinks.sql(reader, "newest", upsert="trade_id"), checkpoint=f"{tmp_path}/third", trigger=DRAIN
        )
    assert "reader" not in str(caught.value).replace("CREATE", "")


@pytest.mark.slow
def test_a_database_that_goes_away_in_the_middle_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_sink, "_PAUSE_SECONDS", 0.1)
    url = postgres.database()
    job = Job(spark, tmp_path, corrected(SEED + 5), 3)
    output = cj.sinks.sql(url, "enriched", upsert="trade_id")
    job.day(0, output)
    original, cuts = sql_sink.SqlWriter._upsert, [1, 3]

    def cut_off(self: Any, session: Any, batch: Any) -> Any:
        """Write the rows, and lose the connection before the commit as often as the first number says."""
        counts = original(self, session, batch)
        if cuts[0]:
            cuts[0] -= 1
            postgres.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'cojoin-%'", url
            )
        return counts

    monkeypatch.setattr(sql_sink.SqlWriter, "_upsert", cut_off)
    # One is bridged.
    job.day(1, output)
    assert not cuts.pop(0)
    # Three are as many as the tries.
    with pytest.raises(cj.QueryFailedError, match=r"PostgreSQL .*then start the query again, which continues"):
        job.day(2, output)
    job.day(2, output)
    assert rows_of(postgres, url) == expected(job.streams)


@pytest.mark.slow
def test_a_checkpoint_that_is_put_back_writes_nothing_twice(
    spark: SparkSession, tmp_path: Path, postgres: PostgresServer
) -> None:
    import shutil

    url = postgres.database()
    job = Job(spark, tmp_path, corrected(SEED + 6), 3)
    output = cj.sinks.sql(url, "enriched", upsert="trade_id")
    job.day(0, output)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    job.day(1, output)
    later = rows_of(postgres, url)
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "copy", tmp_path / "checkpoint")
    job.day(1, output)
    assert rows_of(postgres, url) == later
    job.day(2, output)
    assert rows_of(postgres, url) == expected(job.streams)
