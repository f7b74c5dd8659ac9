"""Commits to a table by path or name: without the JVM where the table is plain, by Spark's writer where it is not."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cojoin.checkpoints.table_transactions import TableTransactions
from cojoin.delta.table_batches import NO_BATCH
from cojoin.delta.table_writer import NewTable
from cojoin.errors import QueryFailedError
from cojoin.storage.written_file import WrittenFile
from tests.spark.data import rows, table
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA, APP = pa.schema([("id", pa.int64())]), "cojoin-0b8e-output"


def append(transactions: TableTransactions, folder: Path, batch_id: int) -> int:
    """Append a batch of one row, the batch's number."""
    name = f"{uuid.uuid4()}.parquet"
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": [batch_id]}, schema=SCHEMA), folder / name)
    file = WrittenFile(name, 1, (folder / name).stat().st_size, 0, '{"numRecords": 1}')
    return transactions.append(
        SCHEMA, [file], batch_id, query_id="0b8e", metadata=f"batch {batch_id}", is_done=lambda now: now >= batch_id
    ).version


@pytest.fixture
def named(spark: SparkSession) -> Iterator[str]:
    name = f"t{uuid.uuid4().hex}"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def folder_of(spark: SparkSession, name: str) -> Path:
    from pathlib import Path

    return Path(spark.sql(f"DESCRIBE DETAIL {name}").head()["location"].removeprefix("file:"))


def test_batches_of_two_drivers_beside_another_writer_of_the_table(spark: SparkSession, tmp_path: Path) -> None:
    location = f"{tmp_path}/out"
    ours, theirs = (TableTransactions(spark, location, APP, epoch) for epoch in (1, 2))
    assert ours.look() == (None, NO_BATCH)
    assert ours.why_spark(SCHEMA) is None
    assert [append(ours, tmp_path / "out", batch_id) for batch_id in (0, 1)] == [0, 1]
    spark.range(7, 8).write.format("delta").mode("append").save(location)
    assert append(ours, tmp_path / "out", 1) == 2
    theirs.fence("0b8e")
    with refused("fenced off: another run of this query has taken over at epoch 2", kind=QueryFailedError):
        append(ours, tmp_path / "out", 2)
    append(theirs, tmp_path / "out", 2)
    commit = theirs.commit_of(1)
    assert commit is not None
    assert (commit.version, commit.user_metadata, commit.rows) == (1, "batch 1", 1)
    assert theirs.commit_of(9) is None
    assert rows(table(spark, location)) == [(0,), (1,), (2,), (7,)]


def test_a_table_by_name_is_found_by_its_folder(spark: SparkSession, named: str) -> None:
    ours = TableTransactions(spark, named, APP, 1)
    assert ours.look() == (None, NO_BATCH)
    assert ours.why_spark(SCHEMA) == "there is no table of that name"
    # A folder where the table would be made is no table of that name.
    ours.fence("0b8e", NewTable(SCHEMA))
    assert not spark.catalog.tableExists(named)
    spark.range(7, 8).write.format("delta").saveAsTable(named)
    assert ours.why_spark(SCHEMA) is None
    append(ours, folder_of(spark, named), 0)
    assert rows(spark.table(named)) == [(0,), (7,)]
    spark.sql(f"DROP TABLE {named}")
    assert ours.look() == (None, NO_BATCH)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ("(id BIGINT) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", "its column mapping"),
        ("(id BIGINT, kind STRING) USING delta", "in the table alone: kind string"),
        ("(id BIGINT, day DATE) USING delta PARTITIONED BY (day)", "it is partitioned by day"),
        ("(id INT) USING delta", "in the table alone: id integer, in the files alone: id long"),
    ],
)
def test_why_spark_writes_is_named_and_its_commits_are_fenced(
    spark: SparkSession, named: str, made: str, why: str
) -> None:
    spark.sql(f"CREATE TABLE {named} {made}")
    ours, theirs = (TableTransactions(spark, named, APP, epoch) for epoch in (1, 2))
    assert why in str(ours.why_spark(SCHEMA))
    ours.fence("0b8e")
    theirs.fence("0b8e")
    theirs.fence("0b8e")
    for use in (ours.look, lambda: ours.fence("0b8e")):
        with refused("fenced off: another run of this query has taken over at epoch 2", kind=QueryFailedError):
            use()
    assert theirs.look()[1] == NO_BATCH
    # One commit for each epoch.
    assert spark.sql(f"DESCRIBE HISTORY {named}").count() == 3


def test_a_table_that_only_spark_may_make_is_made_with_the_fence(spark: SparkSession, tmp_path: Path) -> None:
    name = "spark.databricks.delta.properties.defaults.enableDeletionVectors"
    made: list[dict[str, int]] = []

    def create(applications: Any) -> None:
        made.append(dict(applications))
        spark.range(0).write.format("delta").option("txnAppId", next(iter(applications))).option(
            "txnVersion", "4"
        ).save(f"{tmp_path}/out")

    spark.conf.set(name, "true")
    try:
        ours = TableTransactions(spark, f"{tmp_path}/out", APP, 4)
        assert ours.why_spark() == "new tables have properties that only Spark gives: delta.enableDeletionVectors"
        ours.fence("0b8e", None, create)
    finally:
        spark.conf.unset(name)
    assert made == [{f"epoch-of-{APP}": 4}]
    with refused("fenced off", kind=QueryFailedError):
        TableTransactions(spark, f"{tmp_path}/out", APP, 3).look()
    # Deletion vectors do not matter to an added file, but its statistics have to count the rows.
    append(ours, tmp_path / "out", 0)
    assert rows(table(spark, tmp_path / "out")) == [(0,)]
