"""What a source no longer has is told before a query goes on with it: as a loss with its size, or as an end."""

from __future__ import annotations

import json
import shutil
import uuid
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

import cojoin as cj
from cojoin.session.delta_tables import read_table
from cojoin.session.sessions import open_store
from cojoin.spark.sources.delta_changes import _vacuumed_versions
from cojoin.spark.sources.source import Source
from tests.delta.tables import by_hand, commit, data_file
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

WHAT = "input 'trades'"


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of the versions 0 to 3, a row each but for the last, which removes the row of the first."""
    folder = tmp_path_factory.mktemp("positions") / "trades"
    for trade_id in range(3):
        spark.range(trade_id, trade_id + 1, 1, 1).write.format("delta").mode("append").save(str(folder))
    spark.sql(f"DELETE FROM delta.`{folder}` WHERE id = 0")
    return folder


def at(spark: SparkSession, table: Path, version: int, *, in_snapshot: bool = False, table_id: str = "") -> str:
    found = read_table(spark, str(table))
    assert found is not None
    table_id = table_id or found.table_id
    position = {"sourceVersion": 1, "reservoirId": table_id, "reservoirVersion": version, "index": -1}
    return json.dumps(position | {"isStartingVersion": in_snapshot}, separators=(",", ":"))


@pytest.mark.slow
def test_commits_that_are_gone_from_a_log_are_a_loss(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    folder = copied(table, tmp_path)
    delta = Source("delta", str(folder))
    assert delta.lost_since(spark, WHAT, at(spark, folder, 0)) == []
    assert delta.lost_since(spark, WHAT, at(spark, folder, 4)) == [], "the version to come"
    assert delta.lost_since(spark, WHAT, at(spark, folder, 1, in_snapshot=True)) == []
    DeltaTable(folder).create_checkpoint()
    for version in range(2):
        (folder / "_delta_log" / f"{version:020d}.json").unlink()
    assert delta.lost_since(spark, WHAT, at(spark, folder, 1)) == [
        f"input 'trades': Delta table {folder}: version 1 is gone from the log"
    ]
    assert delta.lost_since(spark, WHAT, at(spark, folder, 0)) == [
        f"input 'trades': Delta table {folder}: versions 0 to 1 are gone from the log"
    ]
    assert delta.lost_since(spark, WHAT, at(spark, folder, 2)) == []
    with refused("has read a part of its version 0, and its commits are gone", kind=cj.CheckpointError):
        delta.lost_since(spark, WHAT, at(spark, folder, 0, in_snapshot=True))

    # Delta's own source takes the position: it goes on with what is there.
    moved = delta.with_losses_accepted(spark, WHAT, at(spark, folder, 0))
    assert moved == at(spark, folder, 2)
    files = open_store(spark, f"{tmp_path}/checkpoint")
    files.write("metadata", json.dumps({"id": str(uuid.uuid4())}))
    # Twice: at the start of a checkpoint's only batch, Delta's source would look for what came before it.
    for batch_id in range(2):
        files.write(f"offsets/{batch_id}", f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":5,"conf":{{}}}}\n{moved}')
        files.write(f"commits/{batch_id}", 'v1\n{"nextBatchWatermarkMs":0}')
    stream = spark.readStream.format("delta").option("skipChangeCommits", "true").load(str(folder))
    found: list[int] = []
    writer = stream.writeStream.foreachBatch(lambda frame, _: found.extend(row.id for row in frame.collect()))
    writer.option("checkpointLocation", files.root).trigger(availableNow=True).start().awaitTermination()
    assert found == [2]


def test_a_snapshot_whose_files_are_gone_can_not_be_finished(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    folder = copied(table, tmp_path)
    current = {file.rpartition("/")[2] for file in spark.read.format("delta").load(str(folder)).inputFiles()}
    for file in folder.glob("*.parquet"):
        if file.name not in current:
            file.unlink()
    with refused("has read a part of its version 1, and 1 of its 2 files are gone", kind=cj.CheckpointError):
        Source("delta", str(folder)).lost_since(spark, WHAT, at(spark, folder, 1, in_snapshot=True))
    assert Source("delta", str(folder)).lost_since(spark, WHAT, at(spark, folder, 3, in_snapshot=True)) == []


def test_a_table_that_is_another_is_refused(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    with refused("has read a table of the id 0b8e up to version 2", "replaced by another", kind=cj.CheckpointError):
        Source("delta", str(table)).lost_since(spark, WHAT, at(spark, table, 2, table_id="0b8e"))
    with refused("up to version 5; got id ", ", version 3: it was replaced", kind=cj.CheckpointError):
        Source("delta", str(table)).lost_since(spark, WHAT, at(spark, table, 5))
    with refused("the table does not exist", kind=cj.CheckpointError):
        Source("delta", f"{tmp_path}/none").lost_since(spark, WHAT, at(spark, table, 1))


@pytest.mark.parametrize("other", ["file:/another/0.parquet", "file:///another/0.parquet", "s3a://another/0.parquet"])
def test_files_of_a_shallow_clone_are_not_looked_for_in_its_folder(
    spark: SparkSession, tmp_path: Path, other: str
) -> None:
    own = data_file(tmp_path)
    named = [
        {"path": path, "size": 5, "modificationTime": 1, "partitionValues": {}, "dataChange": True}
        for path in (other, own.path)
    ]
    by_hand(tmp_path, actions=[{"add": each} for each in named])
    commit(tmp_path, 1, *({"remove": each} for each in named))
    delta = Source("delta", str(tmp_path))
    assert delta.lost_since(spark, WHAT, at(spark, tmp_path, 0, in_snapshot=True)) == []
    assert _vacuumed_versions(spark, f"{tmp_path}/", 0) == []
    (tmp_path / own.path).unlink()
    with refused("1 of its 2 files are gone", kind=cj.CheckpointError):
        delta.lost_since(spark, WHAT, at(spark, tmp_path, 0, in_snapshot=True))
    assert _vacuumed_versions(spark, f"{tmp_path}/", 0) == [0, 1]


def test_of_files_nothing_need_be_there(spark: SparkSession) -> None:
    assert Source("parquet", "/nowhere").lost_since(spark, WHAT, '{"logOffset":3}') == []
    assert Source("parquet", "/nowhere").with_losses_accepted(spark, WHAT, '{"logOffset":3}') == '{"logOffset":3}'


def copied(table: Path, tmp_path: Path) -> Path:
    return shutil.copytree(table, tmp_path / "trades")
