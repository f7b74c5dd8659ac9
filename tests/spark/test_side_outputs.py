"""Side outputs through Spark: each with its own columns to its own sink, from one run of the function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from tests.spark.data import Folders, customers, rows, table, trades
from tests.spark.functions import SEEN, SNAPSHOT, UNKNOWN, Customers, SplitTrades
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OTHER = cj.OutputTag("other", "trade_id bigint")


def split(pair: cj.ConnectedInputs) -> cj.Joined:
    return pair.process(SplitTrades(), "trade_id bigint, tier string", side_outputs=[UNKNOWN, SEEN])


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders(tmp_path)
    made.add_trades(trades([(1, 7, 10), (2, 8, 20), (3, 7, 30)]))
    made.add_customers(customers([(1, 7, 20)]))
    return made


@pytest.mark.slow
def test_each_output_has_its_own_sink_or_a_table_beside_the_checkpoint(
    spark: SparkSession, folders: Folders, tmp_path: Path
) -> None:
    query = split(folders.connect(spark, key_groups=2)).start(
        output=cj.sinks.delta(f"{tmp_path}/out"),
        side_outputs={UNKNOWN: cj.sinks.delta(f"{tmp_path}/unknown")},
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination()
    assert rows(table(spark, f"{tmp_path}/out")) == [(3, "gold")]
    assert rows(table(spark, f"{tmp_path}/unknown"), "trade_id") == [(1,), (2,)]
    assert rows(table(spark, f"{tmp_path}/checkpoint/side_outputs/seen")) == [(7,)]
    assert query.progress is not None
    assert query.progress.is_conserved


def test_a_side_output_and_a_part_of_a_batch_of_one_name_are_both_timed(
    spark: SparkSession, folders: Folders, tmp_path: Path
) -> None:
    query = (
        folders.connect(spark, key_groups=2)
        .process(Customers(), "trade_id bigint", side_outputs=[SNAPSHOT])
        .start(
            output=cj.sinks.delta(f"{tmp_path}/out"),
            checkpoint=f"{tmp_path}/checkpoint",
            trigger=cj.Trigger.available_now(drain=True),
            checkpoint_interval=1,
        )
    )
    query.await_termination()
    batches = cj.read_progress(spark, f"{tmp_path}/checkpoint").collect()
    assert {"_snapshot", "snapshot"} <= {name for batch in batches for name in batch.durations_ms}


def test_a_static_run_gives_each_as_a_frame(spark: SparkSession, folders: Folders) -> None:
    joined = split(folders.connect(spark, streaming=False))
    assert rows(joined.to_dataframe()) == [(3, "gold")]
    assert rows(joined.to_dataframe(UNKNOWN), "trade_id") == [(1,), (2,)]


def test_a_tag_that_was_not_declared_is_refused(spark: SparkSession, folders: Folders, tmp_path: Path) -> None:
    joined = split(folders.connect(spark))
    checkpoint = tmp_path / "checkpoint"

    def start(side_outputs: Any) -> Any:
        return joined.start(
            output=lambda frame, batch_id: None,
            side_outputs=side_outputs,
            checkpoint=str(checkpoint),
            trigger=cj.Trigger.available_now(),
        )

    with refused(
        "side_outputs: the query has no side output 'other' with these columns", "valid are 'unknown-customers', 'seen'"
    ):
        start({OTHER: lambda frame, batch_id: None})
    with refused("expected a dict from OutputTag to sink"):
        start([UNKNOWN])
    with refused(
        "output: expected 'output' or 'rejected', or the tag 'unknown-customers', or the tag 'seen', got OutputTag("
    ):
        joined.to_dataframe(OTHER)
    assert not checkpoint.exists()
