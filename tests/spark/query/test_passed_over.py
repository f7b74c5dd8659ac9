"""What Spark's source of files passes over without a word is told at the start, and counted where it can be."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.spark.query import passed_over
from cojoin.spark.query.passed_over import _missing, _too_old
from tests.spark.data import CUSTOMERS_DDL, TRADES_DDL, Folders, asof, connect, customers, rows, table, trades

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MONTH = 30 * 86_400


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    folders = Folders(tmp_path)
    folders.add_trades(trades([(1, 1, 10)]))
    folders.add_customers(customers([(1, 1, 5)]))
    return folders


def run(folders: Folders, options: dict[str, Any] | None = None) -> list[str]:
    """Run a query over what is there, and return what its start has told."""
    options = {"maxFilesPerTrigger": 1} | (options or {})
    inputs = [
        cj.sources.files(folders.root / name, "parquet", schema=ddl, options=options)
        for name, ddl in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        query = asof(connect(*inputs)).start(
            output=cj.sinks.delta(f"{folders.root}/out"),
            checkpoint=f"{folders.root}/checkpoint",
            trigger=cj.Trigger.available_now(),
        )
    query.await_termination()
    told = [each for each in caught if "passes over" in str(each.message)]
    assert {each.filename for each in told} <= {__file__}
    return [str(each.message) for each in told]


@pytest.mark.slow
def test_files_that_came_too_old_are_counted_and_the_cure_reads_them(spark: SparkSession, folders: Folders) -> None:
    assert run(folders) == []
    folders.add_trades(trades([(2, 1, 20), (9, 1, 60)]))
    folders.add_customers(customers([(2, 1, 60)]))
    # One comes in time, and one as a copy that keeps its time, which Spark never reads.
    os.utime(folders.files[-2], (1_700_000_000 - MONTH,) * 2)
    (folders.root / "trades" / "_hidden").write_text("")
    os.utime(folders.root / "trades" / "_hidden", (1_700_000_000 - MONTH,) * 2)
    (told,) = run(folders)
    assert "input 'trades': Spark passes over 1 file of " in told
    assert f"such as {folders.files[-2]} of 2023-10-15 22:13:20" in told
    assert "maxFileAge, which is 7d" in told
    assert run(folders, {"maxFileAge": "3650d"}) == []
    assert rows(table(spark, folders.root / "out"), "trade_id") == [(1,), (2,)]


@pytest.mark.slow
def test_files_that_may_go_missing_are_told(spark: SparkSession, folders: Folders) -> None:
    (one, two) = run(folders, {"ignoreMissingFiles": True})
    assert "input 'trades': with ignoreMissingFiles Spark passes over files that are gone" in one
    assert two.startswith("input 'customers'")
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        assert len(run(folders)) == 2
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_of_a_planned_batch_the_missing_files_are_counted(folders: Folders) -> None:
    there, gone = folders.files[0], folders.root / "trades" / "gone 1.parquet"
    known = [{"path": path.as_uri(), "timestamp": 1, "batchId": at} for at, path in enumerate((gone, there, gone))]
    assert f"Of the batch that is planned 1 are gone, such as {gone};" in _missing("input 'trades'", known, 1)
    assert "planned" not in _missing("input 'trades'", known, 3)


DAY = 86_400_000
KNOWN = {"path": "file:///lake/read.parquet", "timestamp": 20_000 * DAY, "batchId": 0}


def too_old(spark: Any, location: object, **options: str) -> str | None:
    """Return what is told of a folder of which one file was read, 20,000 days after the epoch."""
    return _too_old(
        spark, cj.sources.files(str(location), "parquet", schema="a long"), "input 'trades'", [KNOWN], options
    )


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with two files that are too old."""
    for name in ("one.parquet", "day=1/two.parquet", "other/three.parquet", "_hidden", ".hidden", "_tmp/four.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (86_400, 86_400))
    return tmp_path


def test_what_spark_lists_is_counted_however_the_path_is_written(
    spark: SparkSession, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for written in (old, f"{old}/other/..", f"file://{old}", f"file:{old}/./"):
        told = too_old(spark, written)
        assert told is not None
        assert f"Spark passes over 2 files of {written}, such as {old}/" in told
    assert "passes over 3 files" in str(too_old(spark, old, recursivefilelookup="true")), "of other/, and not of _tmp/"
    # Patterns are Spark's own.
    assert too_old(spark, f"{old}/*") is None
    assert too_old(spark, old, pathglobfilter="*.parquet") is None
    # A path without a scheme is on Hadoop's default file system.
    hadoop = spark._jsc.hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "nowhere://cluster")
    try:
        assert too_old(spark, old) is None
        assert too_old(spark, f"file:{old}") is not None
    finally:
        hadoop.set("fs.defaultFS", before)
    monkeypatch.setattr(passed_over, "_SECONDS", -1.0)
    assert "passes over at least 1 file of " in str(too_old(spark, old))
