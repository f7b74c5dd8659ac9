"""An output's commits take effect once; a restored query continues it, and takes back only what is its own."""

from __future__ import annotations

import os
import shutil
import uuid
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable
from pyspark.errors import PySparkException

import cojoin as cj
from cojoin.checkpoints.output_tables import CutBack, TableTransactions, check_output, cut_back
from cojoin.delta.table_batches import NO_BATCH
from cojoin.delta.table_writer import NewTable
from cojoin.errors import QueryFailedError
from cojoin.session.delta_tables import later_commits
from cojoin.storage.parquet_files import WrittenFile
from tests.spark.data import rows, table
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

QUERY, OUTPUT = "0b8e", "output"
SCHEMA, APP = pa.schema([("id", pa.int64())]), "cojoin-0b8e-output"


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of which a query wrote the versions 0 to 2, a row each; the tests copy it."""
    location = str(tmp_path_factory.mktemp("outputs") / "enriched")
    for batch_id in range(3):
        write(spark, location, batch_id)
    return location


@pytest.fixture
def output(written: str, tmp_path: Path) -> str:
    return shutil.copytree(written, str(tmp_path / "enriched"))


def write(spark: SparkSession, location: str, trade_id: int, *, query: str | None = QUERY) -> None:
    writer: Any = spark.range(trade_id, trade_id + 1, 1, 1).write.format("delta").mode("append")
    if query is not None:
        writer = writer.option("txnAppId", f"cojoin-{query}-{OUTPUT}").option("txnVersion", trade_id)
    (writer.save if "/" in location else writer.saveAsTable)(location)


def trades(spark: SparkSession, location: str) -> list[int]:
    frame = spark.read.format("delta").load(location) if "/" in location else spark.table(location)
    return sorted(row.id for row in frame.collect())


def check(spark: SparkSession, location: str, version: int | None, *, cut: bool = False) -> CutBack | None:
    return check_output(spark, location, version, QUERY, OUTPUT, cut_back=cut)


def test_without_later_commits_the_output_goes_on(spark: SparkSession, output: str) -> None:
    assert check(spark, output, 2) is None


@pytest.mark.slow
def test_the_query_s_own_later_commits_are_taken_back_if_asked(spark: SparkSession, output: str) -> None:
    with refused(
        f"output 'output', Delta table {output}: 2 commits (2 rows) after version 0 will be taken back; "
        f"pass cut_back_output=True, or name a new table",
        kind=cj.CheckpointError,
    ):
        check(spark, output, 0)
    found = check(spark, output, 0, cut=True)
    assert found == CutBack(output, 0, 2, 2, newest=2)
    cut_back(spark, found)
    assert trades(spark, output) == [0]
    assert [each.operation for each in later_commits(spark, output, 2)] == ["RESTORE"]
    assert check(spark, output, 0) is None, "twice is once"
    # An older checkpoint of the same query, when the restored one has not written yet.
    assert check(spark, output, None, cut=True) == CutBack(output, None, 3, 3, newest=3)


@pytest.mark.slow
def test_a_table_at_a_relative_path_is_cut_back(spark: SparkSession, output: str) -> None:
    relative = os.path.relpath(output)
    found = check(spark, relative, 0, cut=True)
    assert found == CutBack(relative, 0, 2, 2, newest=2)
    cut_back(spark, found)
    assert trades(spark, output) == [0]


@pytest.mark.slow
def test_an_output_that_was_not_written_yet(spark: SparkSession, output: str, tmp_path: Path) -> None:
    assert check(spark, str(tmp_path / "nothing"), None) is None
    with refused("3 commits (3 rows) from version 0 on will be taken back", kind=cj.CheckpointError):
        check(spark, output, None)
    found = check(spark, output, None, cut=True)
    assert found == CutBack(output, None, 3, 3, newest=2)
    cut_back(spark, found)
    assert trades(spark, output) == []
    assert len(later_commits(spark, output, 2)) == 1
    assert check(spark, output, None) is None


@pytest.mark.slow
def test_a_table_that_was_there_before_the_query(spark: SparkSession, tmp_path: Path) -> None:
    location = str(tmp_path / "shared")
    write(spark, location, 7, query=None)
    assert check(spark, location, None) is None
    write(spark, location, 8)
    found = check(spark, location, None, cut=True)
    assert found == CutBack(location, 0, 1, 1, newest=1)
    cut_back(spark, found)
    assert trades(spark, location) == [7]


@pytest.mark.parametrize(
    "change",
    ["another query", *(pytest.param(each, marks=pytest.mark.slow) for each in ("delete", "optimize"))],
)
def test_what_others_did_since_is_not_taken_back(spark: SparkSession, output: str, change: str) -> None:
    if change == "another query":
        write(spark, output, 9, query="77aa")
    elif change == "delete":
        DeltaTable.forPath(spark, output).delete("id = 1")
    else:
        DeltaTable.forPath(spark, output).optimize().executeCompaction()
    operation = {"delete": "DELETE", "optimize": "OPTIMIZE"}.get(change, "WRITE")
    before = trades(spark, output)
    with refused(f"changed by someone else: version 3 ({operation} of ", "name a new table", kind=cj.CheckpointError):
        check(spark, output, 1, cut=True)
    if change == "delete":
        with refused("at version 2, it was changed", kind=cj.CheckpointError):
            check(spark, output, 2, cut=True)
    else:
        # Nothing of the query's own is taken back, and nothing of it is gone.
        assert check(spark, output, 2) is None
    assert trades(spark, output) == before


@pytest.mark.slow  # A dozen of SQL's statements.
def test_rows_that_others_appended_stay_where_nothing_is_taken_back(spark: SparkSession, output: str) -> None:
    write(spark, output, 9, query=None)
    write(spark, output, 8, query="77aa")
    assert check(spark, output, 2) is None
    assert trades(spark, output) == [0, 1, 2, 8, 9]
    spark.sql(f"RESTORE TABLE delta.`{output}` TO VERSION AS OF 3")
    assert check(spark, output, 2) is None, "what it took back was not the query's"
    spark.sql(f"RESTORE TABLE delta.`{output}` TO VERSION AS OF 1")
    with refused("at version 2, it was changed by someone else", kind=cj.CheckpointError):
        check(spark, output, 2)


def test_what_somebody_writes_after_the_check_is_not_taken_back(spark: SparkSession, output: str) -> None:
    found = check(spark, output, 0, cut=True)
    assert found is not None
    write(spark, output, 9, query=None)
    with refused("another writer wrote to it at this moment", "version 2 and is at 3", kind=cj.CheckpointError):
        cut_back(spark, found)
    assert trades(spark, output) == [0, 1, 2, 9]


def test_a_table_that_was_replaced_is_refused(spark: SparkSession, output: str) -> None:
    assert check(spark, output, 2) is None
    shutil.rmtree(output)
    with refused("has its version 2, and the table is gone", kind=cj.CheckpointError):
        check(spark, output, 2)
    write(spark, output, 0, query=None)
    with refused("has its version 2, and the table has only version 0: it was replaced", kind=cj.CheckpointError):
        check(spark, output, 2)
    with refused("has no trace of the query that wrote the checkpoint", kind=cj.CheckpointError):
        check(spark, output, 0)


@pytest.mark.slow
def test_a_log_that_was_cleaned_up_can_not_say(spark: SparkSession, output: str, tmp_path: Path) -> None:
    deltalake.DeltaTable(output).create_checkpoint()
    for name in (f"{0:020d}", f"{1:020d}"):
        (tmp_path / "enriched" / "_delta_log" / f"{name}.json").unlink()
    with refused("from version 1 to 2 (version 1 was cleaned away)", "name a new table", kind=cj.CheckpointError):
        check(spark, output, 0, cut=True)
    with refused("from version 0 to 2 (version 0 was cleaned away)", kind=cj.CheckpointError):
        check(spark, output, None, cut=True)
    assert check(spark, output, 2) is None
    with refused("could not be cut back to version 0", "name a new table", kind=cj.CheckpointError):
        cut_back(spark, CutBack(output, 0, 2, 2, newest=2))


@pytest.fixture
def name(spark: SparkSession) -> Iterator[str]:
    yield "outputs_test"
    spark.sql("DROP TABLE IF EXISTS outputs_test")


@pytest.mark.slow
def test_a_table_by_name(spark: SparkSession, name: str) -> None:
    assert check(spark, name, None) is None
    for batch_id in range(2):
        write(spark, name, batch_id)
    assert [each.app_id for each in later_commits(spark, name, -1)] == ["cojoin-0b8e-output"] * 2
    found = check(spark, name, 0, cut=True)
    assert found == CutBack(name, 0, 1, 1, newest=1)
    cut_back(spark, found)
    assert trades(spark, name) == [0]
    assert check(spark, name, None, cut=True) == CutBack(name, None, 2, 2, newest=2)


@pytest.mark.slow
def test_an_old_version_is_cut_back_to_as_well(spark: SparkSession, output: str) -> None:
    spark.sql(
        f"ALTER TABLE delta.`{output}` SET TBLPROPERTIES (delta.deletedFileRetentionDuration = 'interval 0 hours')"
    )
    with pytest.raises(PySparkException, match=r"(?i)retention"):
        DeltaTable.forPath(spark, output).restoreToVersion(0)
    cut_back(spark, CutBack(output, 0, 2, 2, newest=3))
    assert trades(spark, output) == [0]


def append(transactions: TableTransactions, folder: Path, batch_id: int) -> int:
    """Append a batch of one row, the batch's number."""
    name = f"{uuid.uuid4()}.parquet"
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": [batch_id]}, schema=SCHEMA), folder / name)
    file = WrittenFile(name, 1, (folder / name).stat().st_size, 0, '{"numRecords": 1}')
    return (
        transactions.batches()
        .append(
            SCHEMA, [file], batch_id, query_id="0b8e", metadata=f"batch {batch_id}", is_done=lambda now: now >= batch_id
        )
        .version
    )


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
    assert ours.why_spark(SCHEMA) == "no table has that name"
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
