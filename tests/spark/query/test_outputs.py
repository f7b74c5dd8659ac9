"""Each output has a place of its own, and keeps it: what is refused before anything is written, and what is not."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.checkpoints.manifest import Manifest
from cojoin.engine.batch_report import BatchReport
from cojoin.session.sessions import open_store
from cojoin.spark.query.outputs import check_unchanged
from cojoin.spark.sinks.sinks import as_sink
from tests.spark.data import Folders, asof, connect, customers, rows, table, trades
from tests.spark.functions import SEEN, UNKNOWN, SplitTrades
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAUSE = cj.Trigger.available_now()


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders(tmp_path)
    made.add_trades(trades([(1, 7, 10), (2, 8, 20)]))
    made.add_customers(customers([(1, 7, 5), (2, 8, 30)]))
    return made


def test_places_that_are_not_an_outputs_own_are_refused_before_anything_is_written(
    spark: SparkSession, folders: Folders, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    (tmp_path / "lake").symlink_to(tmp_path, target_is_directory=True)
    joined = asof(connect(*folders.sources()))
    bare = asof(folders.connect(spark))

    def start(joined: cj.Joined = joined, **places: Any) -> None:
        joined.start(
            **{"output": cj.sinks.delta(f"{tmp_path}/out"), **places}, checkpoint=str(checkpoint), trigger=PAUSE
        )

    for sink in (cj.sinks.delta, cj.sinks.parquet):
        for spelled in (f"{checkpoint}", f"{checkpoint}/", f"file:{checkpoint}", f"{tmp_path}/lake/checkpoint"):
            with refused("output: ", spelled, "is the checkpoint", "give it its own place"):
                start(output=sink(spelled))
        with refused("output: ", "lies within the checkpoint"):
            start(output=sink(f"{checkpoint}/out"))
        with refused("output: ", "lies within the checkpoint"):
            start(output=sink(f"{checkpoint}/_out"))
        with refused("output: ", "lies within the checkpoint"):
            start(output=sink(f"{checkpoint}/rejected"))
        with refused("rejected: ", "lies within the checkpoint"):
            start(rejected=sink(f"{checkpoint}/side_outputs/rejected"))
        with refused("output: ", "holds the checkpoint"):
            start(output=sink(str(tmp_path)))
        with refused("rejected: ", "is output"):
            start(rejected=sink(f"file://{tmp_path}/lake/out/"))
        with refused("rejected: ", "lies within output"):
            start(rejected=sink(f"{tmp_path}/out/rejected"))
        for each in (joined, bare):
            with refused("output: ", "is input 'trades'"):
                start(each, output=sink(f"{tmp_path}/lake/trades/"))
            with refused("rejected: ", "lies within input 'customers'"):
                start(each, rejected=sink(f"{tmp_path}/customers/rejected"))
    split = folders.connect(spark).process(SplitTrades(), "trade_id bigint, tier string", side_outputs=[UNKNOWN, SEEN])
    with refused("side output 'seen': ", "is side output 'unknown-customers'"):
        start(split, side_outputs={tag: cj.sinks.delta(f"{tmp_path}/beside") for tag in (UNKNOWN, SEEN)})
    assert not checkpoint.exists()
    assert not (tmp_path / "out").exists()


def test_a_delta_table_by_name_and_by_path_is_one(spark: SparkSession, folders: Folders, tmp_path: Path) -> None:
    spark.sql(f"create table places (customer_id bigint) using delta location '{tmp_path}/named'")
    try:
        joined = asof(connect(*folders.sources()))
        for one, other in (("places", f"{tmp_path}/named"), (f"{tmp_path}/named", "default.places")):
            with refused("rejected: ", "is output"):
                joined.start(
                    output=cj.sinks.delta(one),
                    rejected=cj.sinks.delta(other),
                    checkpoint=f"{tmp_path}/checkpoint",
                    trigger=PAUSE,
                )
        # A table that is still to be made has its place, too.
        warehouse = spark.conf.get("spark.sql.warehouse.dir")
        with refused("rejected: ", "is output"):
            joined.start(
                output=cj.sinks.delta("not_there_yet"),
                rejected=cj.sinks.delta(f"{warehouse}/not_there_yet"),
                checkpoint=f"{tmp_path}/checkpoint",
                trigger=PAUSE,
            )
    finally:
        spark.sql("drop table places")


@pytest.mark.slow
def test_an_output_keeps_its_place_from_run_to_run(spark: SparkSession, folders: Folders, tmp_path: Path) -> None:
    checkpoint = f"{tmp_path}/checkpoint"

    def start(output: Any, **more: Any) -> cj.Query:
        return asof(connect(*folders.sources())).start(output=output, checkpoint=checkpoint, trigger=PAUSE, **more)

    start(cj.sinks.delta(f"{tmp_path}/out")).await_termination()
    stays = "restore_from=cojoin.Snapshot('file:"
    with refused(
        "output went to delta ", f"/out and would now go to Delta {tmp_path}/other", stays, kind=cj.CheckpointError
    ):
        start(cj.sinks.delta(f"{tmp_path}/other"))
    with refused("output went to delta ", "would now go to parquet ", kind=cj.CheckpointError):
        start(cj.sinks.parquet(f"{tmp_path}/out_as_parquet"))
    with refused("output went to delta ", "would now go to ", kind=cj.CheckpointError):
        start(lambda frame, batch_id: None)
    # What nothing was written to yet may still go elsewhere; and a table that was moved is the same.
    shutil.move(tmp_path / "out", tmp_path / "moved")
    folders.add_trades(trades([(3, 7, 40)]))
    folders.add_customers(customers([(3, 7, 60)]))
    start(cj.sinks.delta(f"{tmp_path}/moved/"), rejected=cj.sinks.delta(f"{tmp_path}/rejected")).await_termination()
    assert [row[0] for row in rows(table(spark, f"{tmp_path}/moved"), "trade_id")] == [1, 2]


def test_what_manifests_say_of_other_sinks(spark: SparkSession, tmp_path: Path) -> None:
    """A callable can't be compared with another; a parquet folder that was moved has the query's batches."""
    files = open_store(spark, f"{tmp_path}/checkpoint")
    report = BatchReport.before_the_first(("trades", "customers"))

    def check(stored: Any, sink: Any) -> None:
        manifest = Manifest("a query", report, [], {"output": stored}, {})
        check_unchanged(spark, files, manifest, {"output": as_sink(sink, "output")})

    def write(frame: Any, batch_id: int) -> None:
        del frame, batch_id

    check({"callable": "one", "batch_id": 3}, write)
    with refused("output went to callable one and would now go to Delta", kind=cj.CheckpointError):
        check({"callable": "one", "batch_id": 3}, cj.sinks.delta(f"{tmp_path}/out"))
    check({"batch_id": None}, cj.sinks.delta(f"{tmp_path}/out"))
    (tmp_path / "moved" / "batch_id=3").mkdir(parents=True)
    (tmp_path / "moved" / "batch_id=3" / "part.parquet").touch()
    check({"parquet": f"{tmp_path}/before", "batch_id": 3}, cj.sinks.parquet(f"{tmp_path}/moved"))
    check({"parquet": f"{tmp_path}/before", "batch_id": None}, cj.sinks.parquet(f"{tmp_path}/after"))
    with refused("output went to parquet ", "would now go to parquet ", kind=cj.CheckpointError):
        check({"parquet": f"{tmp_path}/before", "batch_id": 4}, cj.sinks.parquet(f"{tmp_path}/moved"))
