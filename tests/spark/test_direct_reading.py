"""Which inputs the workers read themselves, what the progress says of it, and checkpoints that go on either way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.engine.input_spec import DIRECT
from cojoin.spark.bound_input import BoundInput
from tests.spark.data import Folders, Streams, cut
from tests.spark.refused import refused
from tests.spark.saved import DRAIN, Saved

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

UTC = pa.timestamp("us", "UTC")
ROWS = pa.table({"id": [1], "at": pa.array([5], UTC), "day": ["monday"]})
DDL = "id bigint, at timestamp, day string"
BY_SPARK = "spark.cojoin.parquet is spark"


def reading(folder: Path, ddl: str = DDL, format: str = "parquet", **settings: Any) -> str | None:  # noqa: A002
    """Return how an input of a folder's files is read."""
    options = settings.pop("options", None)
    source = cj.sources.files(folder, format, schema=ddl, options=options)
    declared = cj.Input(source, **({"key": "id", "event_time": "at"} | settings))
    return BoundInput(declared, "left", 1).spec.reading


@pytest.fixture
def folder(tmp_path: Path, spark: SparkSession) -> Path:
    del spark
    (tmp_path / "in").mkdir()
    pq.write_table(ROWS, tmp_path / "in" / "0.parquet")
    return tmp_path / "in"


def test_ordinary_files_are_read_directly(folder: Path) -> None:
    assert reading(folder) == DIRECT
    assert reading(folder, format="PARQUET", options={"maxFilesPerTrigger": 1, "latestFirst": True}) == DIRECT
    assert reading(folder, format="json") is None


def test_what_is_unusual_is_read_by_spark_and_why_is_told(folder: Path, spark: SparkSession) -> None:
    assert reading(folder, options={"mergeSchema": True}) == "it has the option mergeSchema"
    assert reading(folder, event_time=F.col("at").alias("t")) == "its event time is an expression"
    assert reading(folder, f"{DDL}, tags array<string>") == "its column 'tags' is of the type array<string>"
    assert reading(folder, f"{DDL}, `a.b` int") == "its column is named 'a.b'"
    assert (
        reading(folder, f"{DDL}, price decimal(38, 2)", key="price") == "its key 'price' is of the type decimal(38,2)"
    )
    assert str(reading(folder / "*.parquet")).startswith("its files are on no disk")
    for name, value in (
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.files.ignoreCorruptFiles", "true"),
        ("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY"),
        ("spark.sql.parquet.int96AsTimestamp", "false"),
        ("spark.cojoin.parquet", "Spark"),
    ):
        before = spark.conf.get(name, None)
        spark.conf.set(name, value)
        try:
            assert reading(folder) == f"{name} is {value.lower() if 'cojoin' in name else value}"
        finally:
            spark.conf.unset(name) if before is None else spark.conf.set(name, before)


@pytest.mark.parametrize("name", ["spark.cojoin.parquet", "spark.cojoin.output"])
def test_a_setting_that_says_something_else_is_refused_before_the_start(
    folder: Path, spark: SparkSession, streams: Streams, tmp_path: Path, name: str
) -> None:
    saved = Saved(spark, tmp_path / "query", streams.write(tmp_path, files=1))
    spark.conf.set(name, "off")
    try:
        with refused(f"setting {name} is 'off'; expected 'spark', which leaves the work to Spark, or 'direct'"):
            _ = reading(folder) if name.endswith("parquet") else saved.start()
    finally:
        spark.conf.unset(name)
    assert not (tmp_path / "query" / "checkpoint").exists()


def test_the_files_that_are_there_are_looked_at(folder: Path) -> None:
    pq.write_table(ROWS, folder / "1.parquet", use_deprecated_int96_timestamps=True)
    assert str(reading(folder)).endswith("its column 'at' is INT96, and the file was not written by Spark")
    pq.write_table(ROWS.set_column(0, "id", [["1"]]), folder / "1.parquet")
    assert reading(folder) == "of its file 1.parquet: its column 'id' is BYTE_ARRAY (String), and bigint is expected"
    (folder / "1.parquet").write_bytes(b"PAR1")
    assert str(reading(folder)).startswith("of its file 1.parquet: it can't be opened: ")
    (folder / "1.parquet").rename(folder / "_1.parquet")
    assert reading(folder) == DIRECT
    (folder / "day=monday").mkdir()
    pq.write_table(ROWS.drop_columns("day"), folder / "day=monday" / "1.parquet")
    assert reading(folder) == "its folder 'day=monday' has a column's value"


def test_old_calendars_are_read_by_spark(tmp_path: Path, spark: SparkSession) -> None:
    name = "spark.sql.parquet.datetimeRebaseModeInWrite"
    before = spark.conf.get(name)
    spark.conf.set(name, "LEGACY")
    try:
        spark.sql("select 1L id, timestamp'1500-01-01 00:00:00' at").write.parquet(f"{tmp_path}/in")
    finally:
        spark.conf.set(name, str(before))
    assert str(reading(tmp_path / "in", "id bigint, at timestamp")).endswith("with dates of the Julian calendar")


@pytest.mark.parametrize("first", [DIRECT, pytest.param(BY_SPARK, marks=pytest.mark.slow)])
def test_a_checkpoint_goes_on_either_way(spark: SparkSession, streams: Streams, tmp_path: Path, first: str) -> None:
    saved = Saved(spark, tmp_path, Folders(tmp_path / "in"))
    trades, customers = list(cut(streams.trades, 3)), list(cut(streams.customers, 3))
    found = []
    for number, pair in enumerate(zip(trades, customers, strict=True)):
        saved.folders.add_trades(pair[0])
        saved.folders.add_customers(pair[1])
        if (number % 2 == 0) == (first == BY_SPARK):
            spark.conf.set("spark.cojoin.parquet", "spark")
        try:
            query = saved.run(trigger=DRAIN if number == 2 else cj.Trigger.available_now())
        finally:
            spark.conf.unset("spark.cojoin.parquet")
        assert query.progress is not None
        found.append(query.progress.inputs[0].reading)
    assert found == [first, BY_SPARK if first == DIRECT else DIRECT, first]
    assert "the rows of 'trades' are read by " in repr(query.progress)
    assert saved.rows() == streams.enriched()
    saved.assert_conserved()


@pytest.mark.slow
def test_one_input_may_be_read_directly_and_the_other_not(
    spark: SparkSession, streams: Streams, tmp_path: Path
) -> None:
    folders = streams.write(tmp_path / "in", files=2)
    saved = Saved(spark, tmp_path, folders)
    old = {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}
    for path in folders.files:
        if path.parent.name == "customers":
            written_at = path.stat().st_mtime
            pq.write_table(pq.read_table(path).replace_schema_metadata(old), path)
            os.utime(path, (written_at, written_at))
    query = saved.run(trigger=DRAIN)
    assert query.progress is not None
    trades, customers = query.progress.inputs
    assert trades.reading == DIRECT
    assert str(customers.reading).endswith("it was written by Spark with dates of the Julian calendar")
    assert saved.rows() == streams.enriched()


@pytest.mark.slow  # Two queries.
def test_a_restored_query_may_read_the_other_way(spark: SparkSession, streams: Streams, tmp_path: Path) -> None:
    folders = Folders(tmp_path / "in")
    old, new = (Saved(spark, tmp_path / name, folders) for name in ("old", "new"))
    halves = zip(cut(streams.trades, 2), cut(streams.customers, 2), strict=True)
    for saved, setting, (trades, customers) in zip((old, new), ("spark", "direct"), halves, strict=True):
        folders.add_trades(trades)
        folders.add_customers(customers)
        spark.conf.set("spark.cojoin.parquet", setting)
        try:
            if saved is old:
                saved.run()
            else:
                saved.run(trigger=DRAIN, restore_from=cj.Checkpoint(old.checkpoint))
        finally:
            spark.conf.unset("spark.cojoin.parquet")
    assert sorted(old.rows() + new.rows()) == streams.enriched()
