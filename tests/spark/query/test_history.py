"""A Delta table's history, read a few files a batch in the order of its files: nothing is late, whatever the layout."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from tests.seeds import SEED, drawn
from tests.spark.data import asof, connect, enriched_rows, generate, table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.data import Streams

pytestmark = pytest.mark.spark

TABLES = ("trades", "customers")


class Lake:
    """Two Delta tables with the rows of some streams, in files as they come."""

    def __init__(self, spark: SparkSession, streams: Streams, folder: Path) -> None:
        self.spark, self.streams, self.folder = spark, streams, folder
        self.columns_with_statistics = 32

    def write(self, name: str, files: int, random: np.random.Generator, *, sliced: bool = False) -> None:
        """Append a table's rows in one commit: scattered over files, or each file a slice of time, in any order."""
        rows = getattr(self.streams, name)
        number = np.argsort(np.argsort(rows.event_time, kind="stable")) * files // len(rows)
        number = random.permutation(files)[number] if sliced else random.integers(0, files, size=len(rows))
        self.append(name, rows.assign(file=number), files)

    def append(self, name: str, rows: Any, files: int = 1) -> None:
        """Append rows with the number of each one's file."""
        plain = rows.astype(object).where(rows.notna(), None)
        columns = {"trades": "amount double", "customers": "version bigint, tier string"}[name]
        ddl = f"customer_id bigint, event_time bigint, {columns}, position bigint, file int"
        ddl = f"trade_id bigint, {ddl}" if name == "trades" else ddl
        names = [each.split()[0] for each in ddl.split(", ")]
        frame = self.spark.createDataFrame(plain[names].values.tolist(), ddl)
        frame = frame.withColumn("event_time", F.timestamp_micros("event_time"))
        frame = frame.repartitionByRange(files, "file") if files > 1 else frame.coalesce(1)
        writer = frame.drop("file").write.format("delta").mode("append")
        writer.option("delta.dataSkippingNumIndexedCols", self.columns_with_statistics).save(f"{self.folder}/{name}")

    def files(self, name: str) -> int:
        return len(self.spark.read.format("delta").load(f"{self.folder}/{name}").inputFiles())

    def sources(self, *files_a_batch: int) -> list[Any]:
        return [
            cj.sources.delta(f"{self.folder}/{name}", options={"maxFilesPerTrigger": limit})
            for name, limit in zip(("trades", "customers"), files_a_batch, strict=True)
        ]

    def frames(self, files_a_batch: int) -> list[DataFrame]:
        return [
            self.spark.readStream.format("delta")
            .option("maxFilesPerTrigger", files_a_batch)
            .load(f"{self.folder}/{name}")
            for name in ("trades", "customers")
        ]

    def run(self, inputs: Sequence[Any], *, drain: bool = True, stop_after: int = 0, **options: Any) -> cj.Query:
        """Run the join, or only some of its batches."""
        query: list[cj.Query] = []

        def write(frame: DataFrame, batch_id: int) -> None:
            if stop_after and batch_id >= stop_after:
                msg = "stopped on purpose"
                raise RuntimeError(msg)
            frame.write.format("delta").mode("append").option("txnAppId", str(self.folder)).option(
                "txnVersion", batch_id
            ).save(f"{self.folder}/out")

        query.append(
            asof(connect(*inputs, key_groups=2)).start(
                output=write,
                checkpoint=f"{self.folder}/checkpoint",
                trigger=cj.Trigger.available_now(drain=drain),
                **options,
            )
        )
        try:
            query[0].await_termination()
        except cj.QueryFailedError as error:
            assert "stopped on purpose" in str(error), error  # noqa: PT017 - the rest is no accident of ours
        return query[0]

    def rows(self) -> list[tuple[Any, ...]]:
        return enriched_rows(table(self.spark, self.folder / "out"))


def late(query: cj.Query) -> dict[str, int]:
    assert query.progress is not None
    return {each.name: each.rejected.get("late", 0) + each.late_applied for each in query.progress.inputs}


@pytest.mark.slow
@pytest.mark.parametrize("sliced", [True, False], ids=["slices of time", "scattered"])
def test_nothing_of_a_history_in_many_files_is_late(spark: SparkSession, tmp_path: Path, *, sliced: bool) -> None:
    """Slow, as all here but one: two tables of several files are written, and read a file a batch."""
    random = np.random.default_rng(SEED)
    lake = Lake(spark, generate(120, 40, keys=5, seconds=200, seed=SEED), tmp_path)
    lake.write("trades", 3, random, sliced=sliced)
    lake.write("customers", 2, random, sliced=sliced)
    query = lake.run(lake.sources(1, 1))
    most = max(lake.files(name) for name in TABLES)
    assert most > 1
    assert query.batches == most + 1, f"seed {SEED}"
    assert late(query) == {"trades": 0, "customers": 0}, f"seed {SEED}"
    assert lake.rows() == lake.streams.enriched(), f"seed {SEED}"


@pytest.mark.slow
def test_what_is_unread_holds_time_over_a_stop_in_the_middle(spark: SparkSession, tmp_path: Path) -> None:
    """Slices of time come out as they are read, in whatever order; a new driver goes on in the middle."""
    random = np.random.default_rng(SEED)
    lake = Lake(spark, generate(120, 40, keys=5, seconds=200, seed=SEED), tmp_path)
    lake.write("trades", 4, random, sliced=True)
    lake.write("customers", 1, random)
    lake.run(lake.sources(1, 1), drain=False, stop_after=2)
    # A commit beside, in files that hold all times: none of them may pass another.
    rest = lake.streams.trades.iloc[:30].assign(trade_id=lambda rows: rows.trade_id + 1000)
    newest = int(max(lake.streams.trades.event_time.max(), lake.streams.customers.event_time.max()))
    rest = rest.assign(event_time=rest.event_time - rest.event_time.min() + newest, file=random.integers(0, 3, 30))
    lake.append("trades", rest, 3)
    query = lake.run(lake.sources(1, 1), drain=True)
    assert late(query) == {"trades": 0, "customers": 0}, f"seed {SEED}"
    joined = lake.streams.enriched()
    assert [row for row in lake.rows() if row[0] < 1000] == joined, f"seed {SEED}"
    assert len(lake.rows()) == len(joined) + 30, f"seed {SEED}"


@pytest.mark.slow
def test_files_that_follow_each_other_in_time_wait_for_nothing(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, generate(120, 40, keys=5, seconds=200, seed=SEED), tmp_path)
    for name in TABLES:
        rows = getattr(lake.streams, name).sort_values("event_time")
        for at in range(3):
            lake.append(name, rows.iloc[at * len(rows) // 3 : (at + 1) * len(rows) // 3].assign(file=0))
    buffered: list[int] = []
    query = asof(connect(*lake.sources(1, 1), key_groups=2)).start(
        output=lambda frame, batch_id: buffered.append(frame.count()),
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=cj.Trigger.available_now(),
    )
    query.await_termination()
    assert query.batches == 3
    assert len(buffered) == 3, "each batch has joined what its files held"


@pytest.mark.slow
def test_a_dataframe_of_the_users_own_waits_for_all_of_its_history(spark: SparkSession, tmp_path: Path) -> None:
    random = np.random.default_rng(SEED)
    lake = Lake(spark, generate(60, 20, keys=5, seconds=200, seed=SEED), tmp_path)
    lake.write("trades", 2, random, sliced=True)
    lake.write("customers", 1, random)
    query = lake.run(lake.frames(1))
    assert late(query) == {"trades": 0, "customers": 0}, f"seed {SEED}"
    assert lake.rows() == lake.streams.enriched(), f"seed {SEED}"


@pytest.mark.slow
def test_a_history_that_is_half_read_goes_on_in_a_restored_query(spark: SparkSession, tmp_path: Path) -> None:
    random = np.random.default_rng(SEED)
    lake = Lake(spark, generate(60, 20, keys=5, seconds=200, seed=SEED), tmp_path)
    lake.write("trades", 3, random)
    lake.write("customers", 2, random)
    lake.run(lake.sources(1, 1), drain=False, stop_after=1)
    kept = cj.savepoint(spark, f"{tmp_path}/checkpoint")
    query = asof(connect(*lake.sources(1, 1), key_groups=3)).start(
        output=lambda frame, batch_id: frame.write.format("delta").mode("append").save(f"{tmp_path}/out"),
        checkpoint=f"{tmp_path}/again",
        trigger=cj.Trigger.available_now(drain=True),
        restore_from=kept,
    )
    query.await_termination()
    assert late(query) == {"trades": 0, "customers": 0}, f"seed {SEED}"
    assert lake.rows() == lake.streams.enriched(), f"seed {SEED}"


@pytest.mark.slow
@pytest.mark.parametrize("round_", drawn(range(int(os.environ.get("COJOIN_HISTORY_ROUNDS", "8"))), 3))
def test_random_layouts_limits_and_stops(spark: SparkSession, tmp_path: Path, round_: int) -> None:
    """Slow: a query of a dozen batches each time. Any layout on both sides, limits of 1 to 3 files, a stop anywhere."""
    seed = SEED * 1000 + round_
    random = np.random.default_rng(seed)
    lake = Lake(spark, generate(200, 60, keys=8, seconds=300, seed=seed), tmp_path)
    lake.columns_with_statistics = int(random.choice([32, 1]))
    for name in TABLES:
        lake.write(name, int(random.integers(1, 7)), random, sliced=bool(random.integers(2)))
    limits = [int(random.integers(1, 4)) for _ in TABLES]
    given = lake.frames(limits[0]) if random.random() < 0.2 else lake.sources(*limits)
    lake.run(given, drain=False, stop_after=int(random.integers(1, 5)))
    query = lake.run(given)
    told = f"seed {seed}, limits {limits}"
    assert late(query) == {"trades": 0, "customers": 0}, told
    assert lake.rows() == lake.streams.enriched(), told
