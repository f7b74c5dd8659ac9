"""Sources that an input opens itself: files and Delta tables. Kafka's tests are in ``tests/kafka``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from tests.spark.data import (
    CUSTOMERS_DDL,
    FIVE_SECONDS,
    TRADES_DDL,
    Folders,
    asof,
    enriched_rows,
    table,
)
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.data import Streams

pytestmark = pytest.mark.spark

SHARED = {"key": "customer_id", "event_time": "event_time"}


def test_files_and_a_delta_table_join_as_any_stream(
    spark: SparkSession, streams: Streams, folders: Folders, tmp_path: Path
) -> None:
    folders.frames(spark, streaming=False)[1].repartition(2).write.format("delta").save(f"{tmp_path}/customers")
    trades = cj.sources.files(
        str(folders.root / "trades"), "parquet", schema=TRADES_DDL, options={"maxFilesPerTrigger": 1}
    )
    customers = cj.sources.delta(f"{tmp_path}/customers")
    pair = cj.connect(
        cj.Input(trades, name="trades", watermark=FIVE_SECONDS, sequence="position", **SHARED),
        cj.Input(customers, name="customers", watermark=FIVE_SECONDS, sequence="position", **SHARED),
        key_groups=2,
    )
    query = asof(pair).start(
        output=cj.sinks.delta(f"{tmp_path}/out"),
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination()
    assert enriched_rows(table(spark, tmp_path / "out")) == streams.enriched()
    assert query.batches == 3


def test_a_delta_table_may_be_named(spark: SparkSession, folders: Folders) -> None:
    folders.frames(spark, streaming=False)[1].write.format("delta").saveAsTable("customers_by_name")
    frame = cj.sources.delta("customers_by_name").open()
    assert frame.isStreaming
    assert frame.columns == ["customer_id", "event_time", "version", "tier", "position"]
    assert cj.sources.delta("customers_by_name").open(streaming=False).count() == 150
    spark.sql("drop table customers_by_name")


def test_what_cannot_be_opened_is_told_with_the_inputs_name(spark: SparkSession, tmp_path: Path) -> None:
    def connect(source: object) -> None:
        cj.connect(
            cj.Input(source, name="trades", **SHARED),  # type: ignore[arg-type]
            cj.Input(spark.readStream.schema(CUSTOMERS_DDL).parquet(str(tmp_path)), name="customers", **SHARED),
        )

    missing = f"{tmp_path}/missing"
    with refused(f"input 'trades': parquet {missing} can't be read: [PATH_NOT_FOUND] Path does not exist: "):
        connect(cj.sources.files(missing, "parquet", schema=TRADES_DDL))
    with refused(f"input 'trades': avro {tmp_path} can't be read: ", "Avro is built-in but external"):
        connect(cj.sources.files(tmp_path, "avro", schema=TRADES_DDL))
    with refused(f"input 'trades': delta {missing} can't be read: the Delta table does not exist"):
        connect(cj.sources.delta(missing))
    with refused("input 'trades': delta no_such_table can't be read: ", "`no_such_table` cannot be found"):
        connect(cj.sources.delta("no_such_table"))
    for source in (cj.sources.delta("s3://lake/trades"), cj.sources.files("s3://lake/x", "parquet", schema=TRADES_DDL)):
        with refused(
            "input 'trades': ", "No FileSystem for scheme", "; write the scheme that a connector", "s3a:// for"
        ):
            connect(source)
    for source in (
        cj.sources.delta("no_catalog.db.trades"),
        cj.sources.delta("no_catalog.db.trades", changes=True),
        cj.sources.delta("no_catalog.db.trades", static=True),
    ):
        with refused("no_catalog.db.trades", "the session's catalog can't look it up: ", "correct the name"):
            connect(source)


def test_files_need_a_schema() -> None:
    with refused("files '/x': expected schema=, such as 'customer_id long, event_time timestamp'"):
        cj.sources.files("/x", "parquet")
    with refused("schema=\"a lng\": unknown type 'lng' at character 2; did you mean 'long'?"):
        cj.sources.files("/x", "parquet", schema="a lng")


def test_a_format_is_the_same_in_any_case() -> None:
    assert cj.sources.files("/x", "Parquet", schema="a long") == cj.sources.files("/x", "parquet", schema="a long")
    with refused("got 'Delta': use cojoin.sources.delta('/x')"):
        cj.sources.files("/x", "Delta", schema="a long")


def test_a_checkpoint_of_0_5_0_may_have_a_format_in_capitals(spark: SparkSession, tmp_path: Path) -> None:
    source = cj.sources.files(tmp_path, "Parquet", schema="a long")
    assert source.is_known_as(spark, {**source.identity(spark), "format": "Parquet"})
    assert not source.is_known_as(spark, {**source.identity(spark), "format": "ORC"})


def test_options_may_hold_secrets_and_are_never_shown() -> None:
    source = cj.sources.delta("/lake/trades", options={"fs.s3a.secret.key": "hush", "maxFilesPerTrigger": 3})
    assert source.options["maxFilesPerTrigger"] == "3"
    assert "hush" not in repr(source)
