"""Each row once, or a refusal that says what to do: checkpoints put back, settings changed, drivers that come back."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.checkpoints.output_tables import TableTransactions
from cojoin.spark.sinks.batch_marker import BatchMarker
from cojoin.spark.sinks.sink import OutputId
from tests.spark.data import Folders, asof, connect, customers, rows, table, trades
from tests.spark.refused import refused
from tests.spark.saved import DRAIN, PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MINUTE = cj.WatermarkStrategy.for_bounded_out_of_orderness("1 minute")


@dataclass
class Life:
    """A query over its runs; each batch of input has a trade, and a customer's version that lets it out."""

    spark: SparkSession
    folder: Path
    sink: Callable[[str], Any] = cj.sinks.delta
    batches: int = 0

    def __post_init__(self) -> None:
        self.folders = Folders(self.folder)
        self.checkpoint, self.out = self.folder / "checkpoint", self.folder / "out"

    def feed(self, count: int = 1) -> None:
        for _ in range(count):
            self.batches += 1
            number = self.batches
            self.folders.add_trades(trades([(number, 1, 10 * number), (100 + number, None, 1)]))
            self.folders.add_customers(customers([(number, 1, 10 * number + 8)]))

    def start(self, trigger: cj.Trigger = PAUSE, *, output: Any = None, rejected: Any = None, **settings: Any) -> Any:
        # All files there are in one batch: whoever reads later reads more.
        pair = connect(*self.folders.sources(files_a_batch=100), key_groups=2, **settings)
        return asof(pair).start(
            output=self.sink(str(self.out)) if output is None else output,
            rejected=rejected,
            checkpoint=str(self.checkpoint),
            trigger=trigger,
            checkpoint_interval=None,
        )

    def run(self, trigger: cj.Trigger = PAUSE, **options: Any) -> None:
        self.start(trigger, **options).await_termination()

    def copy(self) -> Path:
        return Path(shutil.copytree(self.checkpoint, self.folder / f"copy {self.batches}"))

    def copied_before(self, later: int) -> Path:
        """Run a first batch, copy the checkpoint, and run some more; return the copy."""
        self.feed(2)
        self.run()
        copy = self.copy()
        for _ in range(later):
            self.feed()
            self.run()
        return copy

    def put_back(self, copy: Path) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(copy, self.checkpoint)

    def emitted(self) -> list[int]:
        frame = self.spark.read.parquet(str(self.out)) if self.sink is cj.sinks.parquet else table(self.spark, self.out)
        return [row[0] for row in rows(frame, "trade_id")]


@pytest.mark.slow  # Four runs; `test_put_back` has a seeded one, and the words are in `test_sink_writers`.
def test_a_checkpoint_that_was_put_back_goes_on_only_where_the_batch_is_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    life = Life(spark, tmp_path)
    copy = life.copied_before(1)
    before = life.emitted()
    life.put_back(copy)
    # The same input: the batch is passed over, and all goes on.
    life.run()
    assert life.emitted() == before == [1, 2]
    life.put_back(copy)
    life.feed()
    with refused(
        "batch 1: output to Delta",
        "the table has the query's batch 1 already, from another execution: it ended at other source offsets then",
        "Nothing was written: restore it into a new checkpoint, with restore_from=cojoin.Snapshot(",
        kind=cj.QueryFailedError,
    ):
        life.run()
    assert life.emitted() == before


@pytest.mark.slow  # Five runs, to see through Spark what the writer's own test shows.
def test_a_checkpoint_that_is_older_than_its_output_is_refused_at_the_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    life = Life(spark, tmp_path)
    copy = life.copied_before(3)
    before = life.emitted()
    assert before == [1, 2, 3, 4]
    life.put_back(copy)
    with refused(
        f"output 'output', Delta table {life.out}: it has the query's batches up to 3, and the checkpoint continues "
        f"with batch 1: the checkpoint is older than its output",
        "cut_back_output=True",
        kind=cj.CheckpointError,
    ):
        life.run()
    assert life.emitted() == before


@pytest.mark.slow  # Two runs, to see through Spark what the lease's own test shows.
def test_a_checkpoint_that_knows_older_epochs_than_its_output_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    life = Life(spark, tmp_path)
    life.feed(2)
    life.run()
    query_id = json.loads((life.checkpoint / "query.json").read_text())["content"]["query_id"]
    output = OutputId(query_id, "output")
    TableTransactions(spark, str(life.out), output.app_id, 9).fence(query_id)
    life.feed()
    life.run()
    assert life.emitted() == [1, 2]
    assert json.loads((life.checkpoint / "lease.json").read_text())["content"]["epoch"] == 10


@pytest.mark.slow  # Four runs, to see through Spark what the writer's own test shows.
def test_a_table_that_is_older_than_the_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    life = Life(spark, tmp_path)
    life.feed(2)
    life.run()
    shutil.copytree(life.out, tmp_path / "old")
    life.feed()
    life.run()
    shutil.rmtree(life.out)
    shutil.copytree(tmp_path / "old", life.out)
    with refused(
        "records that batch 1 was written to it, and it has the query's batches up to 0", kind=cj.CheckpointError
    ):
        life.run()
    shutil.rmtree(life.out)
    with refused("records that batch 1 was written to it, and the table does not exist", kind=cj.CheckpointError):
        life.run()


@pytest.mark.slow  # Three runs; `test_put_back` has a seeded one, and the words are in `test_sink_writers`.
def test_a_batch_that_was_written_in_part_is_run_again_as_it_was_planned(spark: SparkSession, tmp_path: Path) -> None:
    failures: list[int] = []

    def fail_once(frame: DataFrame, batch_id: int) -> None:
        failures.append(batch_id)
        if len(failures) == 1:
            msg = "the disk is full"
            raise OSError(msg)

    life = Life(spark, tmp_path)
    life.feed(3)
    with refused("the disk is full", kind=cj.QueryFailedError):
        life.run(rejected=fail_once)
    assert life.emitted() == [1, 2]
    # With a later watermark no trade of the batch would come out: it would come out again in a later batch.
    life.run(rejected=fail_once, watermark=MINUTE)
    assert life.emitted() == [1, 2]
    life.feed()
    life.run(DRAIN, rejected=fail_once, watermark=MINUTE)
    assert life.emitted() == [1, 2, 3, 4]


@pytest.mark.slow  # Three runs; the digest sees a function's body as it sees settings.
def test_another_function_body_in_between_is_seen_by_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    class Numbered(cj.KeyedCoProcessFunction):
        def __init__(self, step: int) -> None:
            self._step = step

        def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
            yield (trade.trade_id * self._step,)

        def process_element2(self, customer: Any, ctx: cj.Context) -> None:
            pass

    def fail(frame: DataFrame, batch_id: int) -> None:
        raise OSError("the disk is full")  # noqa: EM101, TRY003

    life = Life(spark, tmp_path)
    life.feed(3)

    def run(step: int, rejected: Any) -> None:
        pair = connect(*life.folders.sources(files_a_batch=100), key_groups=2)
        query = pair.process(Numbered(step), "trade_id bigint").start(
            output=cj.sinks.delta(str(life.out)), rejected=rejected, checkpoint=str(life.checkpoint), trigger=PAUSE
        )
        query.await_termination()

    with refused("the disk is full", kind=cj.QueryFailedError):
        run(1, fail)
    with refused("from another execution: its 2 rows are different now", kind=cj.QueryFailedError):
        run(-1, lambda frame, batch_id: None)
    run(1, lambda frame, batch_id: None)
    assert life.emitted() == [1, 2]


@pytest.mark.slow  # Six runs, to see through Spark what the writer's own test shows.
def test_parquet_folders_of_others_and_of_later_batches_are_not_replaced(spark: SparkSession, tmp_path: Path) -> None:
    life = Life(spark, tmp_path, cj.sinks.parquet)
    copy = life.copied_before(2)
    before = life.emitted()
    assert before == [1, 2, 3]
    life.put_back(copy)
    with refused(
        f"parquet folder {life.out}: it has the query's batches up to 2, and the checkpoint continues with batch 1",
        "delete the folders from batch_id=1 on and start again",
        kind=cj.CheckpointError,
    ):
        life.run()
    for batch_id in (1, 2):
        shutil.rmtree(life.out / f"batch_id={batch_id}")
    life.run()
    assert life.emitted() == before
    shutil.rmtree(life.checkpoint)
    with refused(
        "it has folders of batches, such as batch_id=0, that this query did not write", kind=cj.CheckpointError
    ):
        life.run()
    assert life.emitted() == before


@pytest.mark.slow  # Two runs more of what a batch that is run again shows.
def test_a_parquet_folder_of_an_earlier_try_goes_where_the_batch_has_no_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    def fail(frame: DataFrame, batch_id: int) -> None:
        raise OSError("the disk is full")  # noqa: EM101, TRY003

    life = Life(spark, tmp_path, cj.sinks.parquet)
    life.feed(3)
    with refused("the disk is full", kind=cj.QueryFailedError):
        life.run(rejected=fail)
    assert life.emitted() == [1, 2]
    life.run(DRAIN, rejected=lambda frame, batch_id: None, watermark=MINUTE)
    assert life.emitted() == [1, 2, 3]


def test_a_column_that_the_folders_would_hide_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    life = Life(spark, tmp_path)
    life.feed()
    pair = connect(*life.folders.sources(), key_groups=2)
    with refused("output: it has a column 'Batch_ID', and cojoin.sinks.parquet(", "call the column something else"):
        pair.process(cj.KeyedCoProcessFunction(), "Batch_ID bigint").start(
            output=cj.sinks.parquet(str(life.out)), checkpoint=str(life.checkpoint), trigger=PAUSE
        )
    assert not life.checkpoint.exists()


def test_the_commits_say_which_batch_they_are(spark: SparkSession, tmp_path: Path) -> None:
    life = Life(spark, tmp_path)
    life.feed(3)
    spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", "nightly")
    try:
        life.run(rejected=cj.sinks.delta(str(tmp_path / "rejected"), partition_by="reason"))
    finally:
        spark.conf.unset("spark.databricks.delta.commitInfo.userMetadata")
    for name, count in (("out", 2), ("rejected", 3)):
        (commit,) = spark.sql(f"describe history delta.`{tmp_path}/{name}`").collect()
        marker = BatchMarker.from_json(commit.userMetadata)
        assert marker is not None
        assert (marker.batch_id, marker.rows) == (0, count)
        assert marker.rows_digest
        assert '"user_metadata": "nightly"' in commit.userMetadata
