"""An output goes on from its version at the checkpoint; what is not the query's own is never taken back."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from delta.tables import DeltaTable
from pyspark.errors import PySparkException

import cojoin as cj
from cojoin.checkpoints.delta_log import later_commits
from cojoin.checkpoints.outputs import CutBack, check_output, cut_back
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

QUERY, OUTPUT = "0b8e", "output"


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of which a query wrote the versions 0 to 2, a row each; the tests copy it."""
    location = str(tmp_path_factory.mktemp("outputs") / "enriched")
    for batch_id in range(3):
        write(spark, location, batch_id)
    return location


@pytest.fixture
def table(written: str, tmp_path: Path) -> str:
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


def test_without_later_commits_the_output_goes_on(spark: SparkSession, table: str) -> None:
    assert check(spark, table, 2) is None


@pytest.mark.slow
def test_the_query_s_own_later_commits_are_taken_back_if_asked(spark: SparkSession, table: str) -> None:
    with refused(
        f"output 'output', Delta table {table}: 2 commits (2 rows) after version 0 will be taken back; "
        f"say cut_back_output=True, or name a new table",
        kind=cj.CheckpointError,
    ):
        check(spark, table, 0)
    found = check(spark, table, 0, cut=True)
    assert found == CutBack(table, 0, 2, 2, newest=2)
    cut_back(spark, found)
    assert trades(spark, table) == [0]
    assert [each.operation for each in later_commits(spark, table, 2)] == ["RESTORE"]
    assert check(spark, table, 0) is None, "twice is once"
    # An older checkpoint of the same query, when the restored one has not written yet.
    assert check(spark, table, None, cut=True) == CutBack(table, None, 3, 3, newest=3)


@pytest.mark.slow
def test_a_table_at_a_relative_path_is_cut_back(spark: SparkSession, table: str) -> None:
    relative = os.path.relpath(table)
    found = check(spark, relative, 0, cut=True)
    assert found == CutBack(relative, 0, 2, 2, newest=2)
    cut_back(spark, found)
    assert trades(spark, table) == [0]


@pytest.mark.slow
def test_an_output_that_was_not_written_yet(spark: SparkSession, table: str, tmp_path: Path) -> None:
    assert check(spark, str(tmp_path / "nothing"), None) is None
    with refused("3 commits (3 rows) from version 0 on will be taken back", kind=cj.CheckpointError):
        check(spark, table, None)
    found = check(spark, table, None, cut=True)
    assert found == CutBack(table, None, 3, 3, newest=2)
    cut_back(spark, found)
    assert trades(spark, table) == []
    assert len(later_commits(spark, table, 2)) == 1
    assert check(spark, table, None) is None


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
def test_what_others_did_since_is_not_taken_back(spark: SparkSession, table: str, change: str) -> None:
    if change == "another query":
        write(spark, table, 9, query="77aa")
    elif change == "delete":
        DeltaTable.forPath(spark, table).delete("id = 1")
    else:
        DeltaTable.forPath(spark, table).optimize().executeCompaction()
    operation = {"delete": "DELETE", "optimize": "OPTIMIZE"}.get(change, "WRITE")
    before = trades(spark, table)
    with refused(f"changed by someone else: version 3 ({operation} of ", "name a new table", kind=cj.CheckpointError):
        check(spark, table, 1, cut=True)
    if change == "delete":
        with refused("at version 2, it was changed", kind=cj.CheckpointError):
            check(spark, table, 2, cut=True)
    else:
        # Nothing of the query's own is taken back, and nothing of it is gone.
        assert check(spark, table, 2) is None
    assert trades(spark, table) == before


@pytest.mark.slow  # A dozen of SQL's statements.
def test_rows_that_others_appended_stay_where_nothing_is_taken_back(spark: SparkSession, table: str) -> None:
    write(spark, table, 9, query=None)
    write(spark, table, 8, query="77aa")
    assert check(spark, table, 2) is None
    assert trades(spark, table) == [0, 1, 2, 8, 9]
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 3")
    assert check(spark, table, 2) is None, "what it took back was not the query's"
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 1")
    with refused("at version 2, it was changed by someone else", kind=cj.CheckpointError):
        check(spark, table, 2)


def test_what_somebody_writes_after_the_check_is_not_taken_back(spark: SparkSession, table: str) -> None:
    found = check(spark, table, 0, cut=True)
    assert found is not None
    write(spark, table, 9, query=None)
    with refused("somebody wrote to it at this moment", "version 2 and is at 3", kind=cj.CheckpointError):
        cut_back(spark, found)
    assert trades(spark, table) == [0, 1, 2, 9]


def test_a_table_that_was_replaced_is_refused(spark: SparkSession, table: str) -> None:
    assert check(spark, table, 2) is None
    shutil.rmtree(table)
    with refused("knows its version 2, and the table is gone", kind=cj.CheckpointError):
        check(spark, table, 2)
    write(spark, table, 0, query=None)
    with refused("knows its version 2, and the table has only version 0: it was replaced", kind=cj.CheckpointError):
        check(spark, table, 2)
    with refused("has no trace of the query that wrote the checkpoint", kind=cj.CheckpointError):
        check(spark, table, 0)


@pytest.mark.slow
def test_a_log_that_was_cleaned_up_can_not_say(spark: SparkSession, table: str, tmp_path: Path) -> None:
    deltalake.DeltaTable(table).create_checkpoint()
    for name in (f"{0:020d}", f"{1:020d}"):
        (tmp_path / "enriched" / "_delta_log" / f"{name}.json").unlink()
    with refused("from version 1 to 2 (version 1 was cleaned away)", "name a new table", kind=cj.CheckpointError):
        check(spark, table, 0, cut=True)
    with refused("from version 0 to 2 (version 0 was cleaned away)", kind=cj.CheckpointError):
        check(spark, table, None, cut=True)
    assert check(spark, table, 2) is None
    with refused("could not be cut back to version 0", "name a new table", kind=cj.CheckpointError):
        cut_back(spark, CutBack(table, 0, 2, 2, newest=2))


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
def test_an_old_version_is_cut_back_to_as_well(spark: SparkSession, table: str) -> None:
    spark.sql(
        f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES (delta.deletedFileRetentionDuration = 'interval 0 hours')"
    )
    with pytest.raises(PySparkException, match=r"(?i)retention"):
        DeltaTable.forPath(spark, table).restoreToVersion(0)
    cut_back(spark, CutBack(table, 0, 2, 2, newest=3))
    assert trades(spark, table) == [0]
