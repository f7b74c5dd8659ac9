"""Processes that commit to one table at the same moment: every version is one commit, and none is lost."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from cojoin.delta.deltalake_table import LostCommitError, TableConflictError
from cojoin.delta.table_log import TableLog
from cojoin.delta.table_writer import Change
from cojoin.storage.local_store import LocalStore
from tests.delta.tables import SCHEMA, append, data_file, ids, writer
from tests.spark.data import rows, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.push

_COMMITS, _PROCESSES = 25, 3
_SIDES = pa.schema([*SCHEMA, pa.field("side", pa.string())])


def test_each_commit_of_each_process_is_there_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.delta.test_two_processes", str(tmp_path / "t")]
    running = [subprocess.Popen([*command, str(number)]) for number in range(_PROCESSES)]
    assert [each.wait(timeout=120) for each in running] == [0] * _PROCESSES
    expected = [1_000 * number + each for number in range(_PROCESSES) for each in range(_COMMITS)]
    assert ids(tmp_path / "t") == expected
    commits = list(TableLog(LocalStore(str(tmp_path / "t"))).commits(-1))
    assert len(commits) == len(expected)
    assert sorted(file.path for each in commits for file in each.added) == sorted(
        each.path for each in TableLog(LocalStore(str(tmp_path / "t"))).files(len(commits) - 1)
    )


@pytest.mark.slow
@pytest.mark.more  # Spark's commit, which takes longest, is seldom the first.
@pytest.mark.spark
def test_cojoin_deltalake_and_spark_write_at_once(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "t"
    name = f"delta.`{place}`"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, side STRING) USING delta PARTITIONED BY (side) "
        "TBLPROPERTIES ('delta.checkpointInterval' = '10')"
    )
    command = [sys.executable, "-m", "tests.delta.test_two_processes", str(place)]
    begins = {"cojoin": 10_000, "deltalake": 20_000}
    running = {
        each: subprocess.Popen([*command, str(begin), each], stdout=subprocess.PIPE, text=True)
        for each, begin in begins.items()
    }
    try:
        added = spark.range(4).selectExpr("id", "'spark' side").repartition(2)
        added.write.format("delta").mode("append").save(str(place))
        spark.sql(
            f"MERGE INTO {name} t USING (SELECT 0L id) s ON t.side = 'spark' AND t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET id = t.id + 1000"
        )
        spark.sql(f"DELETE FROM {name} WHERE side = 'spark' AND id = 1")
        spark.sql(f"VACUUM {name}")
        spark.sql(f"OPTIMIZE {name} WHERE side = 'spark'")
    finally:
        (tmp_path / "stop").touch()
        counts = {each: int(process.communicate(timeout=120)[0] or 0) for each, process in running.items()}
    assert [each.returncode for each in running.values()] == [0, 0]
    assert min(counts.values()) > 1
    expected = [2, 3, 1000]
    for each, begin in begins.items():
        expected += range(begin, begin + counts[each])
    assert [each for (each,) in rows(table(spark, place).select("id"))] == sorted(expected)
    assert ids(place) == sorted(expected)
    operations = {each.info["operation"] for each in TableLog(LocalStore(str(place))).commits(-1)}
    assert {"WRITE", "MERGE", "DELETE", "OPTIMIZE"} <= operations


def by_cojoin(folder: Path, number: int) -> None:
    """Append a row until it is there: the others may be first more often than one commit tries, or write over it."""
    change = Change({"cojoin": number}, _SIDES, [data_file(folder, [number], side="cojoin")])
    while True:
        try:
            ours = writer(folder, reads_back=True)
            ours.commit(change, lambda version: version("cojoin") == number)
        except (LostCommitError, TableConflictError):
            continue
        return


def by_deltalake(folder: Path, number: int) -> None:
    """Append a row until it is there: Spark may write over a commit on a local disk."""
    rows = pa.table({"id": [number], "side": ["deltalake"]}, schema=_SIDES)
    properties = CommitProperties(app_transactions=[Transaction("deltalake", number)])
    while DeltaTable(str(folder)).transaction_version("deltalake") != number:
        write_deltalake(str(folder), rows, mode="append", commit_properties=properties)


def until_stopped(folder: Path, number: int, append_to: Callable[[Path, int], None]) -> int:
    """Append rows with rising ids until a file says that it is enough; return how many."""
    begin = number
    while not (folder.parent / "stop").exists():
        append_to(folder, number)
        number += 1
        time.sleep(4)
    return number - begin


def main(folder: Path, number: int) -> None:
    """Append batches, each until it is there: the others may be first more often than one commit tries."""
    ours, often = writer(folder), {"delta.checkpointInterval": "20"}
    for batch_id in range(1_000 * number, 1_000 * number + _COMMITS):
        while True:
            try:
                append(ours, folder, batch_id, app_id=f"process {number}", properties=often)
            except TableConflictError:
                continue
            break


if __name__ == "__main__":
    if sys.argv[3:]:
        append_to = {"cojoin": by_cojoin, "deltalake": by_deltalake}[sys.argv[3]]
        sys.stdout.write(str(until_stopped(Path(sys.argv[1]), int(sys.argv[2]), append_to)))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]))
