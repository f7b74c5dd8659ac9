"""Random rows in files that the workers write, beside the same rows in files of Spark's, which one setting asks for."""

from __future__ import annotations

import math
import random
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.engine.values.types import parse_schema
from cojoin.session.arrow_types import spark_schema
from cojoin.spark.batch.written_files import CallFiles
from cojoin.spark.sinks.batch_marker import BatchMarker
from cojoin.spark.sinks.sink import OutputId
from cojoin.storage.parquet_files import WrittenFile
from tests.seeds import SEED, drawn
from tests.spark.batch.test_written_files import written
from tests.spark.data import Folders, Streams, cut, table
from tests.spark.saved import DRAIN, Saved

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = parse_schema("""
    id bigint NOT NULL, tiny tinyint, whole int, amount double, rate float, ok boolean, name string, raw binary,
    day date, at timestamp, local timestamp_ntz, price decimal(38, 6), small decimal(5, 2), tags array<string>,
    counts map<string, double>, place struct<x: int, inner: struct<y: timestamp, z: array<float>>>
""")
IN_NO_CALENDAR = date(1582, 10, 10)
"""A day that the calendars left out. Spark takes a bound of it for 1582-10-15 where it passes over parts of a file."""

ORDERED = ("tiny", "whole", "amount", "rate", "name", "day", "at", "local", "price", "place.x", "place.inner.y")
"""The columns of which Delta keeps the least and the greatest value, by which readers pass over files."""

TEXTS = ("", "a", "ä" * 40, "\U0001f600" * 33, "z" * 31 + "\uffff", "\x00b", "x" * 5_000, "\U0010ffff" * 32 + "b")
FLOATS = (0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -3.25, 2.0**100)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
LEAST, GREATEST = (each.replace(tzinfo=timezone.utc) for each in (datetime.min, datetime.max))  # noqa: DTZ901
SETTING, OUTPUT = "spark.cojoin.output", OutputId("a query", "output")


def a_moment(rng: random.Random) -> datetime:
    """Return a moment: the least, the greatest, or one near a full millisecond before or after 1970."""
    near = EPOCH + timedelta(microseconds=rng.choice([-1_000, 0, 1_500_000]) + rng.randrange(1_000))
    return rng.choice([near, near, LEAST, GREATEST])


def a_row(rng: random.Random, number: int) -> dict[str, Any]:
    values = {
        "tiny": rng.choice([-128, 0, 127]),
        "whole": rng.choice([-(2**31), 2**31 - 1, rng.randrange(100)]),
        "amount": rng.choice(FLOATS),
        "rate": rng.choice(FLOATS),
        "ok": rng.random() < 0.5,
        "name": rng.choice(TEXTS),
        "raw": rng.randbytes(rng.randrange(40)),
        "day": rng.choice([date(1, 1, 1), IN_NO_CALENDAR, date(1969, 12, 31), date(9999, 12, 31)]),
        "at": a_moment(rng),
        "local": a_moment(rng).replace(tzinfo=None),
        "price": Decimal(f"{rng.randrange(-(10**38) + 1, 10**38)}e-6"),
        "small": Decimal(f"{rng.randrange(-99_999, 99_999)}e-2"),
        "tags": rng.choice([[], [None], list(TEXTS)]),
        "counts": [(text, rng.choice([None, *FLOATS])) for text in rng.sample(TEXTS, 2)],
        "place": {"x": rng.choice([None, 7]), "inner": rng.choice([None, {"y": a_moment(rng), "z": [1.5, None]}])},
    }
    kept = {name: value for name, value in values.items() if rng.random() < 0.85}
    return dict.fromkeys(SCHEMA.names) | kept | {"id": number}


def check(spark: SparkSession, folder: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    content = pa.Table.from_pylist([a_row(rng, at) for at in range(rng.randrange(1, 60))], schema=SCHEMA)
    in_memory = spark.createDataFrame(content, spark_schema(SCHEMA))
    in_memory.write.format("delta").save(f"{folder}/theirs")
    sink = cj.sinks.delta(f"{folder}/ours").open(spark, OUTPUT)
    target = sink.target(SCHEMA, 0)
    assert target is not None
    half = content.num_rows // 2
    monkeypatch.setattr("cojoin.spark.batch.written_files._OWN_FILE_ROWS", 1)
    call = CallFiles({1: target})
    call.take(1, content.slice(0, half))
    files = [WrittenFile.read(line) for _, line in call.complete()]
    call.keep()
    sink.commit(SCHEMA, [*files, *written(target, content.slice(half))], BatchMarker(0, content.num_rows, 0, "offsets"))
    ours, theirs = (table(spark, folder / name) for name in ("ours", "theirs"))
    assert ours.schema == theirs.schema
    # repr() tells -0.0 from 0.0, and has one text for NaN.
    assert repr(ours.orderBy("id").toArrow().to_pylist()) == repr(theirs.orderBy("id").toArrow().to_pylist())
    for column in rng.sample(ORDERED, 4):
        found = in_memory.select(F.col(column).alias("it")).dropna()
        texts = [row[0] for row in found.select(F.col("it").cast("string")).collect() if row[0] != str(IN_NO_CALENDAR)]
        bound = F.lit(rng.choice(texts) if texts else None).cast(found.schema["it"].dataType)
        for condition in (F.col(column) < bound, F.col(column) >= bound, F.col(column) == bound):
            # Readers pass over files by statistics, but not over rows.
            assert ours.where(condition).count() == in_memory.where(condition).count(), condition


@pytest.mark.slow  # ``test_written_files`` reads each type back on every push.
def test_random_rows_are_read_back_as_from_files_of_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(spark, tmp_path, random.Random(SEED), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("part", drawn(range(10), 2))
def test_more_random_rows_are_read_back_as_from_files_of_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    check(spark, tmp_path, random.Random(f"{SEED} {part}"), monkeypatch)


@pytest.mark.slow  # Two queries.
def test_a_setting_leaves_all_rows_to_spark_and_checkpoints_go_on_either_way(
    spark: SparkSession, streams: Streams, tmp_path: Path
) -> None:
    saved = Saved(spark, tmp_path, Folders(tmp_path / "in"))
    targets = []
    pairs = zip(cut(streams.trades, 2), cut(streams.customers, 2), strict=True)
    for number, (trades, customers) in enumerate(pairs):
        saved.folders.add_trades(trades)
        saved.folders.add_customers(customers)
        spark.conf.set(SETTING, "Spark" if number == 0 else "direct")
        try:
            sink = cj.sinks.delta(f"{tmp_path}/other").open(spark, OUTPUT)
            targets.append(sink.target(SCHEMA, number) is None)
            saved.run(trigger=cj.Trigger.available_now() if number == 0 else DRAIN)
        finally:
            spark.conf.unset(SETTING)
    assert targets == [True, False]
    assert saved.rows() == streams.enriched()
    saved.assert_conserved()
