"""Times without a zone, dates and whole numbers on Spark: as they come in files and tables, and through restores."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cojoin as cj
from tests.seeds import SEED, SEED_TEXT, drawn
from tests.spark.refused import refused
from tests.spark.saved import DRAIN, PAUSE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BERLIN = "Europe/Berlin"
BEGIN = datetime(2026, 10, 24, 20, tzinfo=timezone.utc)
"""Five hours before Berlin's second hour from two o'clock ends."""

BOUND = cj.WatermarkStrategy.for_bounded_out_of_orderness("3 hours 10 minutes")


class Sides:
    """Trades with local times in parquet files, and customers with milliseconds in a Delta table."""

    def __init__(self, spark: SparkSession, folder: Path, draw: random.Random) -> None:
        self.spark, self.folder = spark, folder
        self.trades: list[tuple[int, int, datetime]] = []
        self.customers: list[tuple[int, datetime, str]] = []
        self._draw, self._files = draw, 0
        (folder / "trades").mkdir()

    def add(self, count: int, begin: int, end: int) -> None:
        """Add rows of both inputs, in a file and a commit, with times between two minutes."""

        def moment() -> datetime:
            return BEGIN + timedelta(minutes=self._draw.randrange(begin, end))

        trades = [(len(self.trades) + at, self._draw.randrange(3), moment()) for at in range(count)]
        customers = [(self._draw.randrange(3), moment(), f"tier {self._files}.{at}") for at in range(count)]
        self.trades += trades
        self.customers += customers
        local = [time.astimezone(ZoneInfo(BERLIN)).replace(tzinfo=None) for _, _, time in trades]
        columns = {"trade_id": [row[0] for row in trades], "id": [row[1] for row in trades]}
        table = pa.table({**columns, "at": pa.array(local, pa.timestamp("us"))})
        pq.write_table(table, self.folder / "trades" / f"{self._files}.parquet")
        rows = [(key, int(time.timestamp() * 1_000), tier) for key, time, tier in customers]
        frame = self.spark.createDataFrame(rows, "id long, since long, tier string")
        frame.write.format("delta").mode("append").save(f"{self.folder}/customers")
        self._files += 1

    def connected(self, key_groups: int = 2, **settings: Any) -> cj.ConnectedInputs:
        source = cj.sources.files(f"{self.folder}/trades", "parquet", schema="trade_id long, id long, at timestamp_ntz")
        trades = cj.Input(source, "id", "at", "trades", watermark=BOUND, **{"time_zone": BERLIN, **settings})
        table = cj.sources.delta(f"{self.folder}/customers")
        customers = cj.Input(table, "id", "since", "customers", watermark=BOUND, time_unit="ms")
        return cj.connect(trades, customers, key_groups=key_groups)

    def run(self, joined: cj.Joined, name: str, trigger: cj.Trigger = PAUSE, **options: Any) -> cj.Query:
        query = joined.start(
            output=cj.sinks.delta(f"{self.folder}/out_{name}"),
            checkpoint=f"{self.folder}/{name}",
            trigger=trigger,
            checkpoint_interval=1,
            **options,
        )
        query.await_termination()
        return query

    def rows(self, *names: str) -> list[tuple[int, str | None]]:
        tables = [self.spark.read.format("delta").load(f"{self.folder}/out_{name}") for name in names]
        return sorted((row.trade_id, row.tier) for table in tables for row in table.collect())

    def expected(self) -> list[tuple[int, str | None]]:
        """Return each trade with the tier before it, by pandas; of an hour that comes twice the time is the first."""

        def taken(time: datetime) -> datetime:
            return time.astimezone(ZoneInfo(BERLIN)).replace(fold=0).astimezone(timezone.utc)

        left = pd.DataFrame([(number, key, taken(time)) for number, key, time in self.trades], columns=["n", "id", "t"])
        right = pd.DataFrame(self.customers, columns=["id", "t", "tier"]).sort_values(["t", "tier"], kind="stable")
        joined = pd.merge_asof(left.sort_values("t", kind="stable"), right, on="t", by="id")
        return sorted((int(row.n), None if pd.isna(row.tier) else row.tier) for row in joined.itertuples())


@pytest.mark.slow
def test_a_stream_goes_on_elsewhere_and_its_columns_are_as_they_came(spark: SparkSession, tmp_path: Path) -> None:
    sides = Sides(spark, tmp_path, random.Random(SEED))
    sides.add(40, 0, 400)
    query = sides.run(sides.connected().asof_join(), "old")
    assert query.progress is not None
    assert query.progress.inputs[0].reading == "direct"
    sides.add(40, 210, 600)
    with refused("'trades': time_zone= is 'Europe/Berlin' in the checkpoint and 'UTC'", kind=cj.CheckpointError):
        sides.run(sides.connected(time_zone="UTC").asof_join(), "old")
    with refused("input 'trades': clock_change= is 'before' in the checkpoint and 'after'", kind=cj.CheckpointError):
        sides.run(sides.connected(clock_change="after").asof_join(), "old")
    waiting = cj.read_state(spark, f"{tmp_path}/old").buffered["trades"]
    assert dict(waiting.dtypes)["at"] == "timestamp_ntz"
    row = waiting.first()
    found = cj.explain(spark, f"{tmp_path}/old", input="trades", row={"trade_id": row["trade_id"]})
    assert found.findings[0].kind == "buffered", str(found)
    query = sides.run(sides.connected(3).asof_join(), "new", DRAIN, restore_from=cj.Snapshot(f"{tmp_path}/old"))
    assert sides.rows("old", "new") == sides.expected(), SEED_TEXT
    output = spark.read.format("delta").load(f"{tmp_path}/out_new")
    assert dict(output.dtypes) | {"at": "timestamp_ntz", "since": "bigint"} == dict(output.dtypes)
    assert query.progress is not None
    assert query.progress.is_conserved
    local = [time.astimezone(ZoneInfo(BERLIN)) for _, _, time in sides.trades]
    repeated = [time for time in local if time.replace(fold=0).utcoffset() != time.replace(fold=1).utcoffset()]
    assert query.progress.inputs[0].clock_changed == len(repeated), SEED_TEXT


@pytest.mark.slow  # A query for each.
@pytest.mark.parametrize(
    ("ddl", "settings", "values"),
    drawn(
        [
            ("date", {"time_zone": BERLIN}, ["date'2026-01-01'", "date'2026-03-29'"]),
            ("timestamp_ntz", {"time_zone": BERLIN}, ["timestamp_ntz'2026-01-01'", "timestamp_ntz'2026-03-29'"]),
            ("int", {"time_unit": "s"}, ["1767222000", "1774738800"]),
        ],
        2,
    ),
)
def test_a_span_of_validity_and_a_history_are_read_by_their_moments(
    spark: SparkSession, tmp_path: Path, ddl: str, settings: dict[str, Any], values: Sequence[str]
) -> None:
    """The same moments in three types; the first files that are read have the latest ones."""
    first, second = values
    spark.sql(f"create table delta.`{tmp_path}/tiers` (id long, begins {ddl}, ends {ddl}, tier string) using delta")
    spark.sql(f"insert into delta.`{tmp_path}/tiers` values (1, {first}, {second}, 'old'), (1, {second}, null, 'new')")
    times = ["2025-12-31T22:59:59Z", "2025-12-31T23:00:00Z", "2026-03-28T22:59:59Z", "2026-03-28T23:00:00Z"]
    texts = spark.createDataFrame([(1, text) for text in times], "id long, text string")
    left = texts.selectExpr("id", "timestamp(text) at")
    left.coalesce(1).write.format("delta").save(f"{tmp_path}/trades")
    valid = {"valid_from": "begins", "valid_to": "ends", **settings}
    span = cj.Input(cj.sources.delta(f"{tmp_path}/tiers"), "id", name="tiers", **valid)
    trades = cj.Input(cj.sources.delta(f"{tmp_path}/trades"), "id", "at", "trades")
    joined = cj.connect(trades, span, key_groups=2).temporal_join()
    joined.start(
        output=cj.sinks.delta(f"{tmp_path}/out"), checkpoint=f"{tmp_path}/c", trigger=DRAIN
    ).await_termination()
    rows = spark.read.format("delta").load(f"{tmp_path}/out").orderBy("at").collect()
    assert [row.tier for row in rows] == [None, "old", "old", "new"]
    # A history in files of which the first are the latest: nothing is late, since files are held back by their least.
    for value in (second, first):
        rows = spark.sql(f"select 1L id, cast({value} as {ddl}) since, '{value[-11:-1]}' name")
        rows.coalesce(1).write.format("delta").mode("append").save(f"{tmp_path}/history")
    table = cj.sources.delta(f"{tmp_path}/history", options={"maxFilesPerTrigger": 1})
    joined = cj.connect(trades, cj.Input(table, "id", "since", "history", **settings), key_groups=2).asof_join()
    query = joined.start(output=cj.sinks.delta(f"{tmp_path}/out2"), checkpoint=f"{tmp_path}/c2", trigger=DRAIN)
    query.await_termination()
    assert query.progress is not None
    assert [sum(each.rejected.values()) + each.late_applied for each in query.progress.inputs] == [0, 0]
    names = [row.name for row in spark.read.format("delta").load(f"{tmp_path}/out2").orderBy("at").collect()]
    assert names == [None, first[-11:-1], first[-11:-1], second[-11:-1]]


@pytest.mark.slow  # Static joins, each a job.
def test_frames_are_joined_in_one_line(spark: SparkSession) -> None:
    left = spark.sql("select * from values (1, timestamp_ntz'2026-10-25 02:30'), (2, null) t(n, at)")
    moments = "(timestamp'2026-10-25T00:10:00Z', 'a'), (timestamp'2026-10-25T01:10:00Z', 'b')"
    right = spark.sql(f"select * from values {moments} t(at, tier)")
    for change, tier in (("before", "a"), ("after", "b")):
        rows = cj.asof_join(left, right, on="at", time_zone=BERLIN, clock_change=change).orderBy("n").collect()
        assert [(row.n, row.tier) for row in rows] == [(1, tier), (2, None)]
    with refused("clock_change: expected 'before' or 'after' on Spark, got 'reject'"):
        cj.asof_join(left, right, on="at", time_zone=BERLIN, clock_change="reject")
    numbers = spark.sql("select * from values (1, 5L), (2, 1L << 60), (3, null) t(n, s)")
    others = spark.sql("select * from values (4L, 'a') t(s, tier)")
    rows = cj.asof_join(numbers, others, on="s", time_unit="s").orderBy("n").collect()
    assert [(row.n, row.tier) for row in rows] == [(1, "a"), (2, None), (3, None)]
    days = spark.sql("select date'2026-01-02' day"), spark.sql("select date'2026-01-01' day, 'a' tier")
    assert [row.tier for row in cj.asof_join(*days, on="day").collect()] == ["a"]
