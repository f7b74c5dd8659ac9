"""How far inputs are read: nothing of a history is late, and a bounded run has a complete reading at its end."""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.spark.bound_input import BoundInput
from cojoin.spark.query import input_progress
from cojoin.storage.local_store import LocalStore
from tests.seeds import SEED, drawn
from tests.spark.data import asof, connect, enriched_rows, generate, table
from tests.spark.refused import refused

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
        self.columns_with_statistics, self.column_mapping = 32, "none"
        self.partition_by: list[str] = []

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
        frame = self.spark.createDataFrame(plain[names].to_numpy().tolist(), ddl)
        frame = frame.withColumn("event_time", F.timestamp_micros("event_time"))
        frame = frame.repartitionByRange(files, "file") if files > 1 else frame.coalesce(1)
        writer = frame.drop("file").write.format("delta").mode("append").partitionBy(*self.partition_by)
        if not (self.folder / name).exists():
            # A table that exists keeps its properties.
            writer.option("delta.columnMapping.mode", self.column_mapping)
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


def test_time_is_held_by_the_files_of_the_table_that_is_read_and_not_of_another_of_its_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    folders, at = [tmp_path / name for name in ("one", "other")], pa.timestamp("us", "UTC")
    for begin, folder in zip((1_000, 5_000), folders, strict=True):
        for number in range(3):
            time = pa.array([1_000 * (begin + number)]).cast(at)
            write_deltalake(str(folder), pa.table({"id": [1], "at": time}), mode="append")

    def named(folder: Path) -> None:
        spark.sql("drop table if exists swapped")
        spark.sql(f"create table swapped using delta location '{folder}'")

    files = LocalStore(str(tmp_path / "checkpoint"))
    position = {"sourceVersion": 1, "reservoirVersion": 2, "index": 0, "isStartingVersion": True}
    line = json.dumps({**position, "reservoirId": DeltaTable(str(folders[0])).metadata().id})
    files.write("spark/offsets/0", f"v1\n{{}}\n{line}\n{line}\n-")
    named(folders[0])
    try:
        inputs = [cj.Input(cj.sources.delta(each), "id", "at") for each in ("swapped", str(folders[0]))]
        bound = [BoundInput(each, name, tag) for each, name, tag in zip(inputs, ("left", "right"), (1, 2), strict=True)]
        streams = input_progress.InputStreams.of(bound)
        held = {1: 1_000, 2: 1_000}
        assert input_progress.HistoryHolds(streams, files).after(spark, 0)[0] == held
        named(folders[1])
        assert input_progress.HistoryHolds(streams, files).after(spark, 0)[0] == held
        # Those of another table in the folder hold nothing that is known.
        streams = input_progress.InputStreams.of(bound)
        unknown = {1: input_progress.NONE, 2: 1_000}
        assert input_progress.HistoryHolds(streams, files).after(spark, 0)[0] == unknown
    finally:
        spark.sql("drop table swapped")


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
@pytest.mark.parametrize("mapping", drawn(["none", "name"], 1))
def test_files_that_follow_each_other_in_time_wait_for_nothing(
    spark: SparkSession, tmp_path: Path, mapping: str
) -> None:
    lake = Lake(spark, generate(120, 40, keys=5, seconds=200, seed=SEED), tmp_path)
    lake.column_mapping = mapping
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
@pytest.mark.parametrize("round_", drawn(range(int(os.environ.get("COJOIN_HISTORY_ROUNDS", "8"))), 1))
def test_random_layouts_limits_and_stops(spark: SparkSession, tmp_path: Path, round_: int) -> None:
    """Slow: a query of a dozen batches each time. Any layout on both sides, limits of 1 to 3 files, a stop anywhere."""
    seed = SEED * 1000 + round_
    random = np.random.default_rng(seed)
    lake = Lake(spark, generate(200, 60, keys=8, seconds=300, seed=seed), tmp_path)
    lake.columns_with_statistics = int(random.choice([32, 1]))
    lake.column_mapping = str(random.choice(["none", "name"]))
    for name in TABLES:
        lake.write(name, int(random.integers(1, 7)), random, sliced=bool(random.integers(2)))
    limits = [int(random.integers(1, 4)) for _ in TABLES]
    given = lake.frames(limits[0]) if random.random() < 0.2 else lake.sources(*limits)
    lake.run(given, drain=False, stop_after=int(random.integers(1, 5)))
    query = lake.run(given)
    told = f"seed {seed}, limits {limits}"
    assert late(query) == {"trades": 0, "customers": 0}, told
    assert lake.rows() == lake.streams.enriched(), told


COMMITTED = "_commit_timestamp"
BEGIN, DAY, HOUR, MINUTE = 1_767_225_600_000, 86_400_000, 3_600_000, 60_000
"""2026-01-01 00:00 UTC, and spans, in milliseconds."""

TIME = pa.timestamp("us", "UTC")
ORDERS = pa.schema([("order_id", pa.int64()), ("customer_id", pa.int64()), ("event_time", TIME)])
CUSTOMERS = pa.schema([("customer_id", pa.int64()), ("tier", pa.string()), ("since", TIME)])
DDL = "order_id bigint, customer_id bigint, event_time timestamp", "customer_id bigint, tier string, since timestamp"


class Shop:
    """Orders as files; customers as a table, or as files; and the plainest job that joins them."""

    def __init__(self, spark: SparkSession, folder: Path, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark, self.folder, self.side, self.now = spark, folder, side, BEGIN
        self.orders: list[tuple[int, int, int]] = []
        self.versions: list[tuple[int, str, int]] = []
        self.out: dict[int, list[tuple[int, str | None]]] = defaultdict(list)
        self.rejected: list[tuple[str, str]] = []
        self.dies, self.goes_on = False, threading.Event()
        self.goes_on.set()
        for name in ("orders", "customers"):
            (folder / name).mkdir()
        if side != "files":
            feed = "tblproperties ('delta.enableChangeDataFeed' = 'true')"
            spark.sql(f"create table delta.`{folder}/customers` ({DDL[1]}) using delta {feed}")
            self.committed_at(BEGIN)
        monkeypatch.setattr(input_progress, "time", SimpleNamespace(time=lambda: self.now / 1_000))

    def committed_at(self, moment: int) -> None:
        """Set the time of the newest commit."""
        newest = max((self.folder / "customers/_delta_log").glob("*.json"))
        os.utime(newest, (moment / 1_000, moment / 1_000))

    def order(self, *times: int) -> None:
        """Write a file with an order of customer 1 at each time."""
        fresh = [(len(self.orders) + place, 1, time) for place, time in enumerate(times)]
        self.orders += fresh
        self._write("orders", ORDERS, fresh)

    def change(self, time: int) -> None:
        """Change customer 1, with a MERGE where it is a table."""
        row = 1, f"tier {len(self.versions)}", time
        self.versions.append(row)
        if self.side == "files":
            self._write("customers", CUSTOMERS, [row])
            return
        self.spark.sql(
            f"merge into delta.`{self.folder}/customers` t using (select {row[0]}L as customer_id, '{row[1]}' as tier, "
            f"timestamp_millis({time}) as since) s on t.customer_id = s.customer_id "
            f"when matched then update set * when not matched then insert *"
        )
        self.committed_at(time)

    def _write(self, name: str, schema: pa.Schema, rows: list[tuple[Any, ...]]) -> None:
        columns = [
            pa.array([value * 1_000 for value in column] if of.type == TIME else column, of.type)
            for column, of in zip(zip(*rows, strict=True), schema, strict=True)
        ]
        table = pa.Table.from_arrays(columns, schema=schema)
        pq.write_table(table, self.folder / f"{name}/{len(self.orders):04d}-{len(self.versions):04d}.parquet")

    def joined(self, watermark: Any = None, clock_skew: str | None = None) -> cj.Joined:
        place = f"{self.folder}/customers"
        orders = cj.sources.files(f"{self.folder}/orders", "parquet", schema=DDL[0])
        customers = {
            "commits": lambda: cj.sources.delta(place, changes=True, clock_skew=clock_skew),
            "column": lambda: cj.sources.delta(place, changes=True),
            "static": lambda: cj.sources.delta(place, refresh="1 ms"),
            "files": lambda: cj.sources.files(place, "parquet", schema=DDL[1]),
        }[self.side]()
        event_time = {"commits": COMMITTED, "static": None}.get(self.side, "since")
        strategy = {} if watermark is None else {"watermark": watermark}
        pair = cj.connect(
            cj.Input(orders, "customer_id", "event_time", "orders"),
            cj.Input(customers, "customer_id", event_time, "customers", **strategy),
            key_groups=1,
        )
        return pair.asof_join() if self.side in ("static", "files") else pair.temporal_join()

    def start(self, joined: cj.Joined | None = None, **options: Any) -> cj.Query:
        def write(frame: Any, batch_id: int) -> None:
            assert self.goes_on.wait(60)
            if self.dies:
                msg = "died on purpose"
                raise RuntimeError(msg)
            self.out[batch_id] = [(row.order_id, row.tier) for row in frame.select("order_id", "tier").collect()]

        def reject(frame: Any, _: int) -> None:
            self.rejected += [(row.input, row.reason) for row in frame.collect()]

        options = {"trigger": cj.Trigger.available_now(), "checkpoint_interval": None, "rejected": reject, **options}
        return (joined or self.joined()).start(output=write, checkpoint=f"{self.folder}/checkpoint", **options)

    def run(self, now: int, joined: cj.Joined | None = None) -> cj.BatchReport:
        """Run over what is there, at a time by the clock."""
        self.now = now
        query = self.start(joined)
        query.await_termination()
        assert query.progress is not None
        assert query.progress.is_conserved
        return query.progress

    def rows(self) -> dict[int, str | None]:
        """Return the tier of each order that came out; none came out twice."""
        found = [row for rows in self.out.values() for row in rows]
        assert len(found) == len({order for order, _ in found})
        return dict(found)

    def truth(self, orders: set[int]) -> dict[int, str | None]:
        """Return the tier of orders by pandas; of a feed of commits the first version holds from the beginning."""
        left = pd.DataFrame([each for each in self.orders if each[0] in orders], columns=["id", "key", "at"])
        right = pd.DataFrame(self.versions, columns=["key", "tier", "at"])
        right.loc[: 0 if self.side == "commits" else -1, "at"] = 0
        found = pd.merge_asof(left.sort_values("at"), right, on="at", by="key")
        return {int(row.id): row.tier if isinstance(row.tier, str) else None for row in found.itertuples()}


SIDES = ["commits", *(pytest.param(side, marks=pytest.mark.slow) for side in ("column", "static", "files"))]


@pytest.mark.parametrize("side", SIDES)
def test_five_days_of_the_plainest_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """No option is set: orders and a change, no change, late orders and none, a run that dies, one that is skipped."""
    shop = Shop(spark, tmp_path, side, monkeypatch)
    late: set[int] = set()
    begins = [BEGIN + day * DAY for day in range(6)]

    def check(until: int) -> None:
        """Check the rows: of tables with a column, what is promised is the newest row."""
        newest = {"commits": shop.now - MINUTE, "static": 1 << 60}.get(side, shop.versions[-1][2] - 1)
        out = {order for order, _, time in shop.orders if order not in late and time <= min(until, newest)}
        assert shop.rows() == (
            shop.truth(out) if side != "static" else {**loaded, **dict.fromkeys(out - set(loaded), tier)}
        )

    loaded: dict[int, str | None] = {}
    shop.change(begins[0] + HOUR)
    shop.order(begins[0] + 30 * MINUTE, begins[0] + 2 * HOUR, begins[0] + 20 * HOUR)
    tier: str | None = "tier 0"
    report = shop.run(begins[1])
    check(begins[0] + 20 * HOUR - 1)
    if side == "commits":
        promise = report.inputs[1].promise
        assert promise == {
            "asked_at": begins[1],
            "version": 1,
            "up_to": begins[1] - MINUTE,
            "watermark": begins[1] - MINUTE,
        }
    # Nothing changes; and an order that comes much too late.
    shop.order(begins[1] + HOUR, begins[1] + 20 * HOUR)
    shop.order(begins[0] + HOUR)
    late = {5} if side in ("commits", "static") else set()
    shop.run(begins[2])
    check(begins[1] + 20 * HOUR - 1)
    # No order; and then a run that dies after its changes were read.
    shop.change(begins[2] + HOUR)
    loaded, tier = shop.rows(), "tier 1"
    shop.run(begins[3])
    check(begins[1] + 20 * HOUR - 1)
    loaded, tier = shop.rows(), "tier 2"
    shop.change(begins[3] + 10 * HOUR)
    shop.order(begins[3] + 9 * HOUR, begins[3] + 11 * HOUR, begins[3] + 12 * HOUR)
    shop.dies = True
    with refused("died on purpose", kind=cj.QueryFailedError):
        shop.run(begins[4])
    # A run is skipped; then two are started at once, and the second is refused.
    shop.dies = False
    shop.now = begins[5]
    shop.goes_on.clear()
    query = shop.start()
    with refused("another query runs on it", kind=cj.CheckpointError):
        shop.start()
    shop.goes_on.set()
    query.await_termination()
    check(begins[3] + 12 * HOUR - 1)
    assert shop.rejected == [("orders", "late")] * len(late)
    if side == "commits":
        assert query.progress is not None
        assert query.progress.inputs[0].buffered == 1


@pytest.mark.slow
def test_quiet_days_of_files_end_in_idleness_and_a_month_is_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(spark, tmp_path, "files", monkeypatch)
    idle = cj.WatermarkStrategy.for_monotonous_timestamps().with_idleness("1 day")
    shop.change(BEGIN)
    shop.order(BEGIN + HOUR, BEGIN + 2 * HOUR)
    report = shop.run(BEGIN + DAY, shop.joined(idle))
    assert (shop.rows(), report.inputs[1].status) == ({}, "active")
    assert "or finds that 'customers' had no row for 1 d 0 h, and so is idle" in report.ending()
    report = shop.run(BEGIN + 31 * DAY, shop.joined(idle))
    assert (shop.rows(), report.inputs[1].status) == ({0: "tier 0"}, "idle")
    assert "without 'customers', which is idle: no row since 2026-01-02 00:00:00.000 UTC" in report.ending()
    shop.order(BEGIN + 31 * DAY)
    # The clock went back for a run.
    report = shop.run(BEGIN + 3 * DAY, shop.joined(idle))
    assert (shop.rows(), report.inputs[1].status) == ({0: "tier 0", 1: "tier 0"}, "idle")
    shop.change(BEGIN + 30 * DAY)
    report = shop.run(BEGIN + 32 * DAY, shop.joined(idle))
    assert report.inputs[1].status == "active"


@pytest.mark.slow
def test_a_batch_that_is_run_again_reads_the_moment_that_was_planned(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batch of a run dies once it is planned; the next run has another moment, and takes the stored one."""
    shop = Shop(spark, tmp_path, "commits", monkeypatch)
    shop.change(BEGIN + HOUR)
    shop.order(BEGIN + 2 * HOUR, BEGIN + 3 * HOUR)
    begun = cj.Query._begin_last_batch

    def dying(self: Any, at_rest: Any) -> bool:
        shop.dies = True
        return begun(self, at_rest)

    with monkeypatch.context() as patched:
        patched.setattr(cj.Query, "_begin_last_batch", dying)
        with refused("died on purpose", kind=cj.QueryFailedError):
            shop.run(BEGIN + 2 * HOUR + 5 * MINUTE)
    assert shop.rows() == {}
    planned = max(tmp_path.glob("checkpoint/spark/offsets/[0-9]*"), key=lambda path: int(path.name))
    messages = [pq.read_table(each) for each in tmp_path.glob("checkpoint/control/reading-*.parquet")]
    (message,) = (json.loads(each) for table in messages for each in table.column("payload").to_pylist())
    assert message["reading"]["asked_at"] == BEGIN + 2 * HOUR + 5 * MINUTE
    shop.dies = False
    began = input_progress.RunEnd.readings

    def none(self: Any, *arguments: Any) -> Any:
        assert began(self, *arguments)
        return {}

    with monkeypatch.context() as patched:
        patched.setattr(input_progress.RunEnd, "readings", none)
        report = shop.run(BEGIN + 9 * HOUR)
    assert (shop.rows(), report.batch_id) == ({0: "tier 0"}, int(planned.name))
    assert report.inputs[1].watermark == BEGIN + 2 * HOUR + 4 * MINUTE
    for day in range(1, 4):
        shop.run(BEGIN + day * DAY)
    assert len([*tmp_path.glob("checkpoint/control/reading-*.parquet")]) == 2, "former messages are removed"


@pytest.mark.slow
def test_slow_writers_are_counted_and_named_and_a_longer_clock_skew_waits_for_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = []
    for skew in (None, "5 minutes"):
        folder = tmp_path / str(skew)
        folder.mkdir()
        shop = Shop(spark, folder, "commits", monkeypatch)
        shop.change(BEGIN)
        shop.order(BEGIN + DAY - 90_000, BEGIN + DAY)
        shop.run(BEGIN + DAY, shop.joined(clock_skew=skew))
        shop.change(BEGIN + DAY - 2 * MINUTE)
        shop.order(BEGIN + DAY + HOUR)
        report = shop.run(BEGIN + 2 * DAY, shop.joined(clock_skew=skew))
        outcomes.append((shop.rows()[0], report.inputs[1].late_applied, report.inputs[1].late_commits))
        assert ("version 2 of 2026-01-01 23:58:00.000 UTC: set clock_skew=" in report.ending()) == (skew is None)
    assert outcomes == [("tier 0", 2, 2), ("tier 1", 0, 0)], "of an update the delete and the version"


@pytest.mark.slow
def test_a_version_ahead_of_the_clock_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(spark, tmp_path, "commits", monkeypatch)
    shop.change(BEGIN + HOUR)
    shop.order(BEGIN, BEGIN + 2 * HOUR)
    with pytest.warns(UserWarning, match="is 10 min 0 s ahead of this driver's clock.*clock_skew, which is 1 min 0 s"):
        report = shop.run(BEGIN + 50 * MINUTE)
    assert report.inputs[1].watermark == BEGIN + HOUR


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"changes": True, "clock_skew": "-1 second"}, "clock_skew: expected a duration of zero or more"),
        ({"changes": True, "clock_skew": 60}, "clock_skew: expected a duration such as"),
        ({"clock_skew": "1 minute"}, "clock_skew= is about the commits of a table whose changes are read"),
        ({"refresh": "1 hour", "clock_skew": "1 minute"}, "clock_skew= is about the commits of a table whose changes"),
    ],
)
def test_a_clock_skew_that_can_not_be_is_refused(given: dict[str, Any], said: str) -> None:
    with refused(said):
        cj.sources.delta("/lake/customers", **given)


def test_a_clock_skew_beside_a_column_of_event_time_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(spark, tmp_path, "commits", monkeypatch)
    customers = cj.sources.delta(f"{tmp_path}/customers", changes=True, clock_skew="1 minute")
    orders = cj.sources.files(f"{tmp_path}/orders", "parquet", schema=DDL[0])
    with refused("input 'customers': clock_skew= of sources.delta is about the times of commits", "'since'"):
        cj.connect(
            cj.Input(orders, "customer_id", "event_time", "orders"),
            cj.Input(customers, "customer_id", "since", "customers"),
        )
    assert shop.rows() == {}
