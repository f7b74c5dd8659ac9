"""Inputs are checked before the start: skipped files are counted, contradicting spans of validity refused."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.spark.query import input_checks
from cojoin.spark.query.input_checks import _by_times, _warned
from tests.spark.data import CUSTOMERS_DDL, TRADES_DDL, Folders, asof, connect, customers, rows, table, trades
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

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


@pytest.mark.slow
@pytest.mark.parametrize("option", ["ignoreMissingFiles", "ignoreCorruptFiles"])
def test_tables_of_which_spark_may_leave_out_files_are_told_and_their_changes_refused(
    spark: SparkSession, folders: Folders, option: str
) -> None:
    trades, customers = f"{folders.root}/table", f"{folders.root}/changed"
    for path, name in ((trades, "trades"), (customers, "customers")):
        frame = spark.read.parquet(f"{folders.root}/{name}")
        frame.write.format("delta").option("delta.enableChangeDataFeed", "true").save(path)

    def started(right: Any, join: str) -> list[str]:
        pair = connect(cj.sources.delta(trades), right)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            query = getattr(pair, join)(suffixes=("", "_customer")).start(
                output=cj.sinks.delta(f"{folders.root}/out"),
                checkpoint=f"{folders.root}/checkpoint",
                trigger=cj.Trigger.available_now(),
            )
        query.await_termination()
        return [str(each.message) for each in caught if "passes over" in str(each.message)]

    spark.conf.set(f"spark.sql.files.{option}", "true")
    try:
        with refused("input 'customers': changes of delta ", f": with spark.sql.files.{option} Spark leaves out files"):
            started(cj.sources.delta(customers, changes=True), "temporal_join")
        assert not (folders.root / "checkpoint").exists()
        one, two = started(cj.sources.delta(customers, static=True), "asof_join")
        assert one.startswith(f"input 'trades': with {option} Spark passes over files that ")
        assert two.startswith(f"input 'customers': with {option} ")
    finally:
        spark.conf.unset(f"spark.sql.files.{option}")


def test_of_a_planned_batch_the_missing_files_are_counted(folders: Folders) -> None:
    there, gone = folders.files[0], folders.root / "trades" / "gone 1.parquet"
    known = [{"path": path.as_uri(), "timestamp": 1, "batchId": at} for at, path in enumerate((gone, there, gone))]
    assert f"Of the batch that is planned 1 are gone, such as {gone};" in _warned(
        "input 'trades'", "ignoreMissingFiles", known, 1
    )
    assert "planned" not in _warned("input 'trades'", "ignoreMissingFiles", known, 3)


DAY = 86_400_000
KNOWN = {"path": "file:///lake/read.parquet", "timestamp": 20_000 * DAY, "batchId": 0}


def too_old(spark: Any, location: object, **options: str) -> str | None:
    """Return what is told of a folder of which one file was read, 20,000 days after the epoch."""
    source = cj.sources.files(str(location), "parquet", schema="a long")
    return next(_by_times(spark, source, "input 'trades'", [KNOWN], options), None)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with two files that are too old."""
    for name in ("one.parquet", "day=1/two.parquet", "other/three.parquet", "_hidden", ".hidden", "_tmp/four.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (86_400, 86_400))
    return tmp_path


def test_a_file_that_changed_after_it_was_read_is_named(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "read.parquet"
    path.touch()
    source = cj.sources.files(str(tmp_path), "parquet", schema="a long")
    known = [{"path": path.as_uri(), "timestamp": 20_000 * DAY + 999, "batchId": 0}]
    os.utime(path, (20_000 * DAY // 1_000,) * 2)
    assert list(_by_times(spark, source, "input 'trades'", known, {})) == []
    os.utime(path, (20_000 * DAY // 1_000 + 60,) * 2)
    (told,) = _by_times(spark, source, "input 'trades'", known, {})
    assert f"input 'trades': 1 file of {tmp_path} changed after Spark had read them, such as {path}, which was " in told
    assert "rows that were added since are left out" in told


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
    monkeypatch.setattr(input_checks, "_SECONDS", -1.0)
    assert "passes over at least 1 file of " in str(too_old(spark, old))


KEY, BEGIN, END = "a.b", "valid ä", "to`here"


def spans(spark: SparkSession, *rows: tuple[int, str, int, int | None]) -> DataFrame:
    frame = spark.createDataFrame(list(rows), "id bigint, tier string, begins bigint, ends bigint")
    times = ("timestamp_seconds(begins) begins", "timestamp_seconds(ends) ends")
    return frame.selectExpr("id", "tier", *times).toDF(KEY, "tier", BEGIN, END)


def joined(trades: object, customers: object) -> cj.Joined:
    valid = cj.Input(customers, KEY, valid_from=BEGIN, valid_to=END, name="customers")
    return cj.connect(cj.Input(trades, KEY, "time", "trades"), valid).temporal_join()


def test_rows_with_validity_give_on_spark_what_they_give_in_memory(spark: SparkSession) -> None:
    customers = spans(spark, (7, "silver", 20, 50), (7, "gold", 50, 80), (8, "never", 20, 20), (8, "late", 90, None))
    trades = spark.sql("select explode(array(7L, 8L)) id, timestamp_seconds(at) time from range(0, 100, 10) t(at)")
    trades = trades.toDF(KEY, "time")
    on_spark = joined(trades, customers).to_dataframe().orderBy(f"`{KEY}`", "time").toArrow()
    in_memory = (
        joined(trades.toArrow(), customers.toArrow()).to_arrow().sort_by([(KEY, "ascending"), ("time", "ascending")])
    )
    assert on_spark.column_names == [KEY, "time", "tier", BEGIN, END]
    assert on_spark.to_pylist() == in_memory.to_pylist()
    assert on_spark["tier"].to_pylist()[1:9] == [None, *["silver"] * 3, *["gold"] * 3, None]


def test_rows_that_contradict_are_refused_with_their_number_and_an_example(spark: SparkSession) -> None:
    trades = spark.sql("select 7L id, timestamp_seconds(1) time").toDF(KEY, "time")
    overlapping = spans(
        spark, (7, "a", 20, 60), (7, "b", 50, None), (8, "c", 10, None), (8, "d", 30, 40), (9, "e", 5, 5)
    )
    with refused("2 rows are valid while another row of the same a.b is", "as in Row(a.b='7'"):
        joined(trades, overlapping).to_dataframe()
    with refused("1 row ends before it begins", "Row(a.b='9'"):
        joined(trades, spans(spark, (9, "a", 60, 20), (9, "b", 70, None))).to_dataframe()


class Lake:
    """Tables of trades and of customers with a span of validity, and a query over them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.customers, self.checkpoint = f"{folder}/customers", folder / "checkpoint"
        feed = "tblproperties ('delta.enableChangeDataFeed' = 'true')"
        columns = "id bigint, tier string, begins timestamp, ends timestamp"
        spark.sql(f"create table delta.`{self.customers}` ({columns}) using delta {feed}")
        spark.sql(f"create table delta.`{folder}/trades` (id bigint, time timestamp) using delta")

    def write(self, *rows: tuple[int, str, int, int | None], mode: str = "append") -> None:
        frame = spans(self.spark, *rows).toDF("id", "tier", "begins", "ends")
        frame.write.format("delta").mode(mode).save(self.customers)

    def sell(self, *trades: tuple[int, int]) -> None:
        rows = ", ".join(f"({key}, timestamp_seconds({second}))" for key, second in trades)
        self.spark.sql(f"insert into delta.`{self.folder}/trades` values {rows}")

    def run(self, **table: Any) -> cj.Query:
        customers = cj.sources.delta(self.customers, **table)
        pair = cj.connect(
            cj.Input(cj.sources.delta(f"{self.folder}/trades"), "id", "time", "trades"),
            cj.Input(customers, "id", valid_from="begins", valid_to="ends", name="customers"),
            key_groups=2,
        )
        output = cj.sinks.delta(self.folder / "out")
        query = pair.temporal_join().start(
            output=output, checkpoint=self.checkpoint, trigger=cj.Trigger.available_now(), checkpoint_interval=1
        )
        query.await_termination(progress=False)
        assert query.progress is not None
        assert query.progress.is_conserved
        return query

    def rows(self) -> list[tuple[Any, ...]]:
        rows = self.spark.read.format("delta").load(f"{self.folder}/out")
        return sorted(tuple(row) for row in rows.selectExpr("id", "unix_seconds(time)", "tier").collect())


@pytest.mark.slow
@pytest.mark.parametrize("table", [{}, {"changes": True}, {"static": True}], ids=["rows", "changes", "static"])
def test_a_table_that_contradicts_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, table: dict[str, bool]
) -> None:
    lake = Lake(spark, tmp_path)
    lake.write((7, "a", 20, 60), (7, "b", 50, None), (8, "c", 10, 30))
    lake.sell((7, 55))
    with refused("1 row is valid while another row of the same id is", "as in Row(id='7'"):
        lake.run(**table)
    lake.write((7, "a", 20, 10), (8, "c", 10, 30), mode="overwrite")
    with refused("1 row ends before it begins", "Row(id='7'"):
        lake.run(**table)
    assert not lake.checkpoint.exists()


@pytest.mark.slow
def test_a_refresh_that_contradicts_is_refused_and_the_state_keeps_the_former_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, now = Lake(spark, tmp_path), "1 millisecond"
    lake.write((7, "a", 20, 40), (7, "b", 40, None))
    lake.sell((7, 30), (7, 50), (7, 60))
    lake.run(refresh=now)
    lake.write((7, "a", 20, 60), (7, "b", 40, None), (8, "c", 50, 20), mode="overwrite")
    lake.sell((7, 70))
    with refused("1 row ends before it begins", "Row(id='8'"):
        lake.run(refresh=now)
    lake.run(static=True)
    lake.write((7, "c", 20, 75), mode="overwrite")
    lake.sell((7, 80), (7, 90))
    query = lake.run(refresh=now)
    assert query.progress is not None
    table = query.progress.inputs[1].table
    assert table is not None
    # The version that contradicts was never taken.
    assert table["version"] == 3
    assert lake.rows()[:3] == [(7, 30, "a"), (7, 50, "b"), (7, 60, "b")]
    assert lake.rows()[3:] == [(7, 70, "c"), (7, 80, None)]


@pytest.mark.slow
def test_rows_that_come_later_and_contradict_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path)
    lake.write((7, "a", 20, None))
    lake.sell((7, 30))
    lake.run(changes=True)
    lake.write((8, "never", 50, 40), (7, "b", 40, None))
    lake.sell((7, 50), (8, 45))
    query = lake.run(changes=True)
    assert query.progress is not None
    assert query.progress.inputs[1].rejected == {"ends_before_it_begins": 1}
    # Of rows that overlap the one that begins last is valid.
    lake.write((9, "later", 1_000, None))
    lake.sell((7, 1_000))
    lake.run(changes=True)
    assert lake.rows()[:2] == [(7, 30, "a"), (7, 50, "b")]
