"""Which batches a table has: whoever wrote in between, at the same moment, or in another table of that name."""

from __future__ import annotations

import shutil
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cojoin.delta_jvm.delta_files import WrittenFile, append_files, table_log
from cojoin.delta_jvm.newest_batch import NO_BATCH
from cojoin.delta_jvm.transactions import TableTransactions
from cojoin.errors import QueryFailedError
from tests.spark.data import rows, table
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA, APP = pa.schema([("id", pa.int64())]), "cojoin-0b8e-output"


def transactions(spark: SparkSession, folder: Path, epoch: int | None = None) -> TableTransactions:
    return TableTransactions(spark, f"{folder}/out", APP, epoch)


def append(
    found: TableTransactions, folder: Path, batch_id: int, *, is_done: Callable[[int], bool] | None = None
) -> int:
    """Append a batch of one row, the batch's number."""
    name = f"{uuid.uuid4()}.parquet"
    (folder / "out").mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": [batch_id]}, schema=SCHEMA), folder / "out" / name)
    size = (folder / "out" / name).stat().st_size
    file = WrittenFile(name, 1, size, 0, '{"numRecords": 1}')
    is_done = is_done or (lambda newest: newest >= batch_id)
    return found.append(SCHEMA, [file], batch_id, query_id="0b8e", metadata=f"batch {batch_id}", is_done=is_done)


def test_what_others_write_in_between_is_seen(spark: SparkSession, tmp_path: Path) -> None:
    ours = transactions(spark, tmp_path)
    assert ours.look() == (None, NO_BATCH)
    assert [append(ours, tmp_path, batch_id) for batch_id in (0, 1)] == [0, 1]
    spark.range(7, 8).write.format("delta").mode("append").save(f"{tmp_path}/out")
    assert ours.look()[1] == 1
    # Another driver of the same query: ours comes upon its commit, and upon what that says.
    append(transactions(spark, tmp_path), tmp_path, 2)
    assert append(ours, tmp_path, 2) == 3
    assert ours.metadata(2) == "batch 2"
    assert ours.metadata(1) is None
    assert rows(table(spark, tmp_path / "out")) == [(0,), (1,), (2,), (7,)]


def test_of_two_drivers_that_commit_a_batch_at_the_same_moment_one_looks_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    ours, theirs = transactions(spark, tmp_path), transactions(spark, tmp_path)
    append(ours, tmp_path, 0)
    asked: list[int] = []

    def is_done(newest: int) -> bool:
        # Our transaction has begun: the other driver commits before it ends.
        if not asked:
            append(theirs, tmp_path, 1)
        asked.append(newest)
        return newest >= 1

    append(ours, tmp_path, 1, is_done=is_done)
    assert asked == [0, 1]
    assert rows(table(spark, tmp_path / "out")) == [(0,), (1,)]


def test_a_run_that_another_has_taken_over_can_not_commit(spark: SparkSession, tmp_path: Path) -> None:
    ours, theirs = transactions(spark, tmp_path, 1), transactions(spark, tmp_path, 2)
    theirs.fence("0b8e")
    append(ours, tmp_path, 0)
    theirs.fence("0b8e")
    theirs.fence("0b8e")
    assert theirs.look()[1] == 0
    for use in (lambda: append(ours, tmp_path, 1), ours.look, lambda: ours.fence("0b8e")):
        with refused(
            "fenced off: another run of this query has taken over at epoch 2; this one held epoch 1",
            kind=QueryFailedError,
        ):
            use()
    append(theirs, tmp_path, 1)
    # Whoever holds no lease, such as a command that looks at the table, is not concerned.
    assert transactions(spark, tmp_path).look()[1] == 1
    assert rows(table(spark, tmp_path / "out")) == [(0,), (1,)]
    assert table(spark, tmp_path / "out").sparkSession.sql(f"DESCRIBE HISTORY '{tmp_path}/out'").count() == 3


def test_a_takeover_between_the_look_and_the_commit_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    ours, theirs = transactions(spark, tmp_path, 1), transactions(spark, tmp_path, 2)
    append(ours, tmp_path, 0)

    def is_done(newest: int) -> bool:
        theirs.fence("0b8e")
        return newest >= 1

    with refused("fenced off: another run of this query has taken over at epoch 2", kind=QueryFailedError):
        append(ours, tmp_path, 1, is_done=is_done)
    assert rows(table(spark, tmp_path / "out")) == [(0,)]


def test_a_table_that_does_not_exist_is_created_with_the_fence(spark: SparkSession, tmp_path: Path) -> None:
    ours, theirs = transactions(spark, tmp_path, 1), transactions(spark, tmp_path, 2)

    def create(transaction: Any, applications: Any) -> None:
        append_files(spark, transaction, SCHEMA, [], applications=applications, query_id="0b8e")

    def is_done(newest: int) -> bool:
        # Our transaction has begun, and would create the table.
        theirs.fence("0b8e", create)
        return newest >= 0

    with refused("fenced off: another run of this query has taken over at epoch 2", kind=QueryFailedError):
        append(ours, tmp_path, 0, is_done=is_done)
    assert theirs.look()[1] == NO_BATCH
    assert append(theirs, tmp_path, 0) == 1
    assert rows(table(spark, tmp_path / "out")) == [(0,)]


def test_a_table_that_is_created_at_the_same_moment_is_fenced(spark: SparkSession, tmp_path: Path) -> None:
    ours, theirs = transactions(spark, tmp_path, 1), transactions(spark, tmp_path, 2)

    def create(transaction: Any, applications: Any) -> None:
        append(ours, tmp_path, 0)
        append_files(spark, transaction, SCHEMA, [], applications=applications, query_id="0b8e")

    theirs.fence("0b8e", create)
    assert theirs.look()[1] == 0
    with refused("fenced off", kind=QueryFailedError):
        append(ours, tmp_path, 1)


def test_a_table_of_many_other_commits_still_knows_its_epoch(spark: SparkSession, tmp_path: Path) -> None:
    append(transactions(spark, tmp_path, 5), tmp_path, 0)
    for _ in range(22):
        spark.range(1).where("id < 0").write.format("delta").mode("append").save(f"{tmp_path}/out")
    with refused("fenced off", kind=QueryFailedError):
        transactions(spark, tmp_path, 4).look()
    assert transactions(spark, tmp_path, 5).look()[1] == 0


def test_another_table_of_that_name_is_another_table(spark: SparkSession, tmp_path: Path) -> None:
    ours = transactions(spark, tmp_path)
    append(ours, tmp_path, 0)
    append(ours, tmp_path, 1)
    before, newest = ours.look()
    assert newest == 1
    shutil.rmtree(tmp_path / "out")
    for number in range(3):
        spark.range(number, number + 1).write.format("delta").mode("append").save(f"{tmp_path}/out")
    after, newest = ours.look()
    assert newest == NO_BATCH
    assert after != before


def test_a_log_that_was_cleaned_is_asked_as_a_whole(spark: SparkSession, tmp_path: Path) -> None:
    ours = transactions(spark, tmp_path)
    append(ours, tmp_path, 0)
    append(transactions(spark, tmp_path), tmp_path, 1)
    table_log(spark, f"{tmp_path}/out").checkpoint()
    spark.range(7, 8).write.format("delta").mode("append").save(f"{tmp_path}/out")
    (tmp_path / "out" / "_delta_log" / f"{1:020d}.json").unlink()
    assert ours.look()[1] == 1
    assert ours.metadata(1) is None
