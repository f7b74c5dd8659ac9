"""What a query has of settings that hold only while it starts; those of the session and of the user stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.spark.query.start_settings import start_settings
from cojoin.storage.stores import open_store
from tests.spark.data import connect, generate, rows, table
from tests.spark.saved import DRAIN

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EMPTY, MANAGER = "spark.sql.streaming.noDataMicroBatches.enabled", "spark.sql.streaming.checkpointFileManagerClass"


def test_they_hold_in_the_block_alone(spark: SparkSession, tmp_path: Path) -> None:
    before, files = spark.conf.get(EMPTY), open_store(spark, str(tmp_path))
    with start_settings(spark, files, empty_batches=False):
        assert spark.conf.get(EMPTY) == "false"
        assert str(spark.conf.get(MANAGER)).endswith(".FileSystemBasedCheckpointFileManager")
    assert (spark.conf.get(EMPTY), spark.conf.get(MANAGER, None)) == (before, None)
    spark.conf.set(MANAGER, "theirs")
    try:
        with start_settings(spark, files, empty_batches=None):
            assert (spark.conf.get(EMPTY), spark.conf.get(MANAGER)) == (before, "theirs")
        assert spark.conf.get(MANAGER) == "theirs"
    finally:
        spark.conf.unset(MANAGER)


def test_a_checkpoint_goes_on_whichever_way_its_files_are_written(spark: SparkSession, tmp_path: Path) -> None:
    by_context = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    history = generate(trades=60, customers=20)
    sources = history.write(tmp_path, 3).sources()
    for manager in (by_context, None):
        if manager is not None:
            spark.conf.set(MANAGER, manager)
        try:
            query = (
                connect(*sources)
                .asof_join(suffixes=("", "_c"))
                .start(
                    output=cj.sinks.delta(f"{tmp_path}/out"),
                    checkpoint=f"{tmp_path}/cp",
                    trigger=DRAIN if manager is None else cj.Trigger.available_now(),
                )
            )
            query.await_termination(progress=False)
        finally:
            spark.conf.unset(MANAGER)
    assert len(rows(table(spark, tmp_path / "out"))) == 60
