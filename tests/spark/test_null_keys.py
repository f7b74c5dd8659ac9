"""Rows with a null key that come out unmatched on Spark: whoever reads them, in any key groups, after any restore."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.spark.batch.packing import Grouping, key_group
from tests.seeds import SEED
from tests.spark.data import FIVE_SECONDS, Folders, Streams, asof, enriched_rows, generate
from tests.spark.saved import DRAIN, Saved

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def keyless(streams: Streams) -> Streams:
    """Return streams of which every fourth row has a null key."""
    sides = []
    for rows in (streams.trades, streams.customers):
        key = rows.customer_id.astype("Int64")
        key[np.arange(len(rows)) % 4 == 0] = pd.NA
        sides.append(rows.assign(customer_id=key))
    return Streams(*sides)


def expected(streams: Streams) -> list[tuple[Any, ...]]:
    """Return a left join's rows: of those with a key by pandas, which would let null keys match, and all others."""
    known = [rows[rows.customer_id.notna()].astype({"customer_id": "int64"}) for rows in vars(streams).values()]
    lonely = streams.trades[streams.trades.customer_id.isna()]
    columns = (lonely[name].tolist() for name in ("trade_id", "event_time", "amount"))
    alone = [tuple(None if pd.isna(value) else value for value in row) for row in zip(*columns, strict=True)]
    return sorted([*Streams(*known).enriched(), *((*row, None, None) for row in alone)])


def connected(folders: Folders, key_groups: int = 4, *, right: str = "reject") -> cj.ConnectedInputs:
    shared: Any = {"key": "customer_id", "event_time": "event_time", "watermark": FIVE_SECONDS, "sequence": "position"}
    trades, customers = folders.sources()
    return cj.connect(
        cj.Input(trades, name="trades", null_key="unmatched", **shared),
        cj.Input(customers, name="customers", null_key=right, **shared),
        key_groups=key_groups,
    )


@pytest.mark.slow
@pytest.mark.parametrize("reading", ["direct", "spark"])
def test_a_stream_emits_them_also_from_a_state_restored_into_other_key_groups(
    spark: SparkSession, tmp_path: Path, reading: str
) -> None:
    streams = keyless(generate(trades=200, customers=60))
    folders = streams.write(tmp_path, files=2)
    old, new = (Saved(spark, tmp_path / name, folders) for name in ("old", "new"))
    spark.conf.set("spark.cojoin.parquet", reading)
    try:
        first = old.run(asof(connected(folders)))
        assert first.progress is not None
        waiting = cj.read_state(spark, old.checkpoint).buffered["trades"]
        assert waiting.where("customer_id is null").count() > 0
        query = new.run(asof(connected(folders, 3)), DRAIN, restore_from=cj.Snapshot(old.checkpoint))
    finally:
        spark.conf.unset("spark.cojoin.parquet")
    assert sorted([*old.rows(), *new.rows()]) == expected(streams)
    new.assert_conserved()
    assert query.progress is not None
    left, right = query.progress.inputs
    assert (left.rejected.get("null_key", 0), right.rejected["null_key"]) == (
        0,
        streams.customers.customer_id.isna().sum(),
    )


def test_they_are_spread_by_their_content_alike_by_spark_and_by_the_workers(spark: SparkSession) -> None:
    rng = random.Random(SEED)
    count = 500
    rows = pa.table(
        {
            "id": pa.array([rng.choice([None, 1, 2]) for _ in range(count)], pa.int64()),
            "zone": pa.array([rng.choice([None, "a", "é"]) for _ in range(count)], pa.string()),
            "at": pa.array([rng.randrange(-(10**15), 10**15) for _ in range(count)], pa.timestamp("us", "UTC")),
            "price": pa.array([rng.random() for _ in range(count)], pa.float64()),
            "day": pa.array([rng.choice([None, 7, 8]) for _ in range(count)], pa.date32()),
        }
    )
    spreading, groups = ("id", "zone", "at", "day"), 7
    found = Grouping(rows.schema, ("id", "zone"), groups, spreading).groups(rows)
    frame = spark.createDataFrame(rows)
    keys, spread = [F.col("id"), F.col("zone")], [F.col(name) for name in spreading]
    assert found.tolist() == frame.select(key_group(keys, groups, spread)).toArrow().column(0).to_pylist()
    by_key = Grouping(rows.schema, ("id", "zone"), groups).groups(rows)
    is_null = (rows["id"].is_null().to_numpy()) | (rows["zone"].is_null().to_numpy())
    assert (found == by_key)[~is_null].all()
    assert len(np.unique(found[is_null])) == groups


@pytest.mark.slow
def test_a_full_interval_join_emits_those_of_both_sides_static_and_as_a_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    streams = keyless(generate(trades=120, customers=60))
    folders = streams.write(tmp_path, files=2)
    options: Any = {"lower": "-2 seconds", "upper": "1 second", "how": "full", "suffixes": ("", "_customer")}
    joined = connected(folders, right="unmatched").interval_join(**options)
    saved = Saved(spark, tmp_path / "query", folders)
    saved.run(joined, DRAIN)
    frames = folders.frames(spark, streaming=False)
    shared: Any = {"key": "customer_id", "event_time": "event_time", "sequence": "position", "null_key": "unmatched"}
    trades, customers = (cj.Input(each, name=name, **shared) for each, name in zip(frames, ("t", "c"), strict=True))
    static = cj.connect(trades, customers, key_groups=3).interval_join(**options).to_dataframe()
    left, right = (frame.alias(name) for frame, name in zip(frames, "lr", strict=True))
    apart = F.unix_micros("r.event_time") - F.unix_micros("l.event_time")
    on = (F.col("l.customer_id") == F.col("r.customer_id")) & apart.between(-2_000_000, 1_000_000)
    wanted = enriched_rows(
        left.join(right, on, "full").select("l.trade_id", "l.event_time", "l.amount", "version", "tier")
    )
    assert saved.rows() == wanted
    assert enriched_rows(static) == wanted
