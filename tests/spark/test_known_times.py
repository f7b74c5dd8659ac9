"""Versions with known times on Spark: a daily job with corrections, random cuts with restores, static joins, tools."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import cojoin as cj
from tests.embedded.known_times import JOINS, STEP_US, TIME, by_duckdb, connected, drawn, matched
from tests.seeds import SEED, SEED_TEXT
from tests.seeds import drawn as drawn_parameters
from tests.spark.refused import refused
from tests.spark.saved import DRAIN, PAUSE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ORDERS_DDL = "id long, at timestamp, n long"
PRICES_DDL = "id long, valid_at timestamp, loaded_at timestamp, seq long, price long, gone boolean"


class Job:
    """A query over orders in files and prices in a Delta table, which grow from run to run."""

    def __init__(self, spark: SparkSession, folder: Path, join: str = "temporal") -> None:
        self.spark, self.folder, self._join = spark, folder, join
        (folder / "orders").mkdir()

    def add(self, number: int, orders: pa.Table, prices: pa.Table) -> None:
        pq.write_table(orders, self.folder / "orders" / f"{number}.parquet")
        path = self.folder / f"{number}.parquet"
        pq.write_table(prices, path)
        frame = self.spark.read.schema(PRICES_DDL).parquet(str(path))
        frame.write.format("delta").mode("append").save(f"{self.folder}/prices")

    def joined(self, key_groups: int = 2, **known: Any) -> cj.Joined:
        bound = cj.WatermarkStrategy.for_bounded_out_of_orderness("20 seconds")
        files = cj.sources.files(f"{self.folder}/orders", "parquet", schema=ORDERS_DDL)
        orders = cj.Input(files, "id", "at", "orders", watermark=bound)
        table = cj.sources.delta(f"{self.folder}/prices")
        known = known or {"known_at": "loaded_at"}
        prices = cj.Input(table, "id", "valid_at", "prices", sequence="seq", watermark=bound, **known)
        return JOINS[self._join](cj.connect(orders, prices, key_groups=key_groups))

    def run(
        self, name: str, trigger: cj.Trigger = PAUSE, *, joined: cj.Joined | None = None, **options: Any
    ) -> cj.Query:
        query = (joined or self.joined()).start(
            output=cj.sinks.delta(f"{self.folder}/out_{name}"),
            checkpoint=f"{self.folder}/{name}",
            trigger=trigger,
            checkpoint_interval=1,
            **options,
        )
        query.await_termination()
        assert query.progress is not None
        assert query.progress.is_conserved
        return query

    def rows(self, *names: str) -> dict[int, int | None]:
        # A run that let no row out has made no table.
        made = [path for name in names if (path := self.folder / f"out_{name}").exists()]
        tables = [self.spark.read.format("delta").load(str(path)) for path in made]
        rows = [row for table in tables for row in table.collect()]
        assert len({row.n for row in rows}) == len(rows)
        return {row.n: row.price for row in rows}


def pieces(seed: int, parts: int) -> tuple[tuple[pa.Table, pa.Table], list[tuple[pa.Table, pa.Table]]]:
    """Return drawn orders and prices, and both cut by the times at which they come to be there."""
    orders, prices = drawn(seed, nulls=False)
    cuts = sorted(random.Random(f"{SEED} {seed}").sample(range(5, 55), parts - 1))
    bounds = [-100, *(cut * STEP_US for cut in cuts), 1 << 60]
    cut = []
    for first, last in pairwise(bounds):
        both = []
        for table, column in ((orders, "at"), (prices, "loaded_at")):
            micros = table.column(column).cast(pa.int64())
            # What is before the first bound comes first, too.
            late = pc.and_(pc.less(micros, last), pc.greater_equal(micros, first if first >= 0 else -(1 << 60)))
            both.append(table.filter(late))
        cut.append((both[0], both[1]))
    return (orders, prices), cut


def expected(tables: tuple[pa.Table, pa.Table]) -> dict[int, int | None]:
    return by_duckdb(tables, "p.seq, p.gone")


def test_a_job_goes_on_with_corrections_and_other_key_groups(spark: SparkSession, tmp_path: Path) -> None:
    tables, cut = pieces(SEED, 3)
    job = Job(spark, tmp_path)
    for number, piece in enumerate(cut[:2]):
        job.add(number, *piece)
        query = job.run("old")
        assert query.progress is not None
        assert [each.late_applied for each in query.progress.inputs] == [0, 0]
        assert [dict(each.rejected) for each in query.progress.inputs] == [{}, {}]
    with refused("input 'prices': known_at= is 'loaded_at' in the checkpoint and None", kind=cj.CheckpointError):
        job.run("old", joined=job.joined(delay="1 hour"))
    state = cj.read_state(spark, f"{tmp_path}/old")
    assert state.versions is not None
    held = state.buffered["prices"].select(*state.versions.columns).union(state.versions)
    assert held.where("loaded_at > valid_at").count()
    job.add(2, *cut[2])
    job.run("new", DRAIN, joined=job.joined(3), restore_from=cj.Snapshot(f"{tmp_path}/old"))
    assert job.rows("old", "new") == expected(tables), SEED_TEXT
    shown = cj.explain(spark, f"{tmp_path}/new", key=0)
    texts = [each.text for each in shown.findings if each.kind == "version"]
    assert texts, str(shown)
    assert all(", known at " in text for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("seed", drawn_parameters(range(30), 4))
def test_random_cuts_restores_and_static_joins_are_as_in_memory(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    draw = random.Random(f"{SEED} {seed} ways")
    name = draw.choice([*JOINS])
    tables, cut = pieces(seed, draw.randint(2, 4))
    in_memory = matched(JOINS[name](connected(tables, sequence="seq")))
    if name == "temporal":
        assert in_memory == expected(tables), SEED_TEXT
    frames = [spark.createDataFrame(table.to_pandas()) for table in tables]
    static = JOINS[name](
        cj.connect(
            cj.Input(frames[0], "id", "at", "orders"),
            cj.Input(frames[1], "id", "valid_at", "prices", sequence="seq", known_at="loaded_at"),
        )
    )
    assert {row.n: row.price for row in static.to_dataframe().collect()} == in_memory, SEED_TEXT
    job, names, groups = Job(spark, tmp_path, name), ["run0"], draw.randint(1, 4)
    for number, piece in enumerate(cut):
        job.add(number, *piece)
        options: dict[str, Any] = {}
        if number and draw.random() < 0.5:
            options["restore_from"] = cj.Snapshot(f"{tmp_path}/{names[-1]}")
            names.append(f"run{number}")
            groups = draw.randint(1, 4)
        job.run(names[-1], DRAIN if number == len(cut) - 1 else PAUSE, joined=job.joined(groups), **options)
    assert job.rows(*names) == in_memory, (SEED_TEXT, name, names)


@pytest.mark.slow
def test_changes_of_a_table_are_known_at_their_commits(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    begin, place = datetime.now(timezone.utc).replace(microsecond=0), f"delta.`{tmp_path}/prices`"
    ago = lambda minutes: begin - timedelta(minutes=minutes)  # noqa: E731
    spark.sql(
        f"create table {place} (id long, valid_at timestamp, price long) using delta "
        f"tblproperties (delta.enableChangeDataFeed = true)"
    )

    def sell(*orders: tuple[int, int, datetime]) -> None:
        rows = pa.table([list(column) for column in zip(*orders, strict=True)], names=["n", "id", "at"])
        pq.write_table(rows.set_column(2, "at", rows["at"].cast(TIME)), tmp_path / "orders" / f"{orders[0][0]}.parquet")

    def commit(statement: str) -> datetime:
        spark.sql(statement.replace("prices", place))
        newest = spark.sql(f"describe history {place} limit 1").select("timestamp").toArrow()["timestamp"][0]
        return newest.cast(TIME).as_py()

    def run(trigger: cj.Trigger) -> cj.Query:
        bound = cj.WatermarkStrategy.for_bounded_out_of_orderness("2 hours")
        files = cj.sources.files(f"{tmp_path}/orders", "parquet", schema="n long, id long, at timestamp")
        changes = cj.sources.delta(f"{tmp_path}/prices", changes=True)
        prices = cj.Input(changes, "id", "valid_at", "prices", known_at="_commit_timestamp")
        pair = cj.connect(cj.Input(files, "id", "at", "orders", watermark=bound), prices, key_groups=2)
        query = pair.temporal_join().start(
            output=cj.sinks.delta(f"{tmp_path}/out"), checkpoint=f"{tmp_path}/checkpoint", trigger=trigger
        )
        query.await_termination()
        return query

    at = "timestamp'{:%Y-%m-%d %H:%M:%S}Z'".format
    commit(f"insert into prices values (1, {at(ago(120))}, 10), (2, {at(ago(120))}, 20)")
    sell((0, 1, ago(60)))
    run(PAUSE)
    first = commit(f"update prices set price = 11, valid_at = {at(ago(90))} where id = 1")
    commit(f"update prices set price = 9, valid_at = {at(ago(180))} where id = 1")
    run(PAUSE)
    last = commit("delete from prices where id = 2")
    second = timedelta(seconds=1)
    sell((1, 1, ago(30)), (2, 1, first), (3, 1, last + second), (4, 2, ago(30)), (5, 2, last))
    query = run(DRAIN)
    output = spark.read.format("delta").load(f"{tmp_path}/out")
    assert {row.n: row.price for row in output.collect()} == {0: 10, 1: 10, 2: 11, 3: 11, 4: 20, 5: None}
    assert query.progress is not None
    assert query.progress.inputs[1].rejected == {"moved_back": 1}
    assert query.progress.is_conserved
