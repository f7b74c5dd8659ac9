"""Every join through Spark, static and as a stream, beside an oracle of its own: pandas' merge_asof and DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from tests.spark.data import FIVE_SECONDS, Folders, Streams, generate, repr_nulls_first, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAIRS = ("trade_id", "version")


@pytest.fixture(scope="module")
def streams() -> Streams:
    return generate(trades=400, customers=200, keys=12, seed=21)


@pytest.fixture(scope="module")
def folders(streams: Streams, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return streams.write(tmp_path_factory.mktemp("joins"), files=3)


def connected(spark: SparkSession, folders: Folders, *, streaming: bool) -> cj.ConnectedInputs:
    """Connect both; a version of the tier basic deletes its customer."""
    trades, customers = folders.frames(spark, streaming=streaming)
    shared: Any = {"key": "customer_id", "event_time": "event_time", "watermark": FIVE_SECONDS, "sequence": "position"}
    right = customers.withColumn("gone", F.col("tier") == "basic").drop("tier")
    return cj.connect(
        cj.Input(trades, name="trades", **shared), cj.Input(right, name="customers", **shared), key_groups=3
    )


def versions(streams: Streams) -> pd.DataFrame:
    """Return the customers with one row an instant: the last in the source's sequence."""
    ordered = streams.customers.sort_values(["event_time", "position"], kind="stable")
    last = ordered.drop_duplicates(["customer_id", "event_time"], keep="last")
    return last.drop(columns="position").astype({"version": "float64"})


def merged(streams: Streams, direction: Any) -> pd.DataFrame:
    left = streams.trades.sort_values("event_time", kind="stable")
    return pd.merge_asof(left, versions(streams), on="event_time", by="customer_id", direction=direction)


def pairs(trade_ids: Any, matched: Any) -> list[tuple[Any, ...]]:
    found = zip(trade_ids, matched, strict=True)
    return sorted(
        ((None if pd.isna(one) else int(one), None if pd.isna(two) else int(two)) for one, two in found),
        key=repr_nulls_first,
    )


def by_asof(streams: Streams, direction: str) -> list[tuple[Any, ...]]:
    frame = merged(streams, direction)
    return pairs(frame.trade_id, frame.version)


def by_time_travel(streams: Streams) -> list[tuple[Any, ...]]:
    frame = merged(streams, "backward")
    return pairs(frame.trade_id, frame.version.where(frame.tier != "basic"))


def by_interval(streams: Streams, how: str) -> list[tuple[Any, ...]]:
    trades, customers = streams.trades, streams.customers
    found = duckdb.sql(
        f"SELECT trade_id, version FROM trades {how} JOIN customers "
        f"ON trades.customer_id = customers.customer_id "
        f"AND customers.event_time - trades.event_time >= -2000000 "
        f"AND customers.event_time - trades.event_time < 1000000"
    ).fetchall()
    assert {*trades, *customers} >= {"trade_id", "version"}
    return sorted(found, key=repr_nulls_first)


def interval(pair: cj.ConnectedInputs, how: Any) -> cj.Joined:
    return pair.interval_join("-2 s", "1 s", how, upper_inclusive=False, suffixes=("", "_customer"))


NAMED = {"suffixes": ("", "_customer")}
JOINS: dict[str, tuple[Any, Any]] = {
    "forward": (lambda p: p.asof_join(direction="forward", **NAMED), lambda s: by_asof(s, "forward")),
    "nearest": (lambda p: p.asof_join(direction="nearest", **NAMED), lambda s: by_asof(s, "nearest")),
    "temporal": (lambda p: p.temporal_join(deletes="gone", **NAMED), by_time_travel),
    "interval-inner": (lambda p: interval(p, "inner"), lambda s: by_interval(s, "INNER")),
    "interval-full": (lambda p: interval(p, "full"), lambda s: by_interval(s, "FULL")),
}


@pytest.mark.parametrize("name", JOINS)
def test_a_static_join_equals_its_oracle(spark: SparkSession, streams: Streams, folders: Folders, name: str) -> None:
    join, oracle = JOINS[name]
    assert rows(join(connected(spark, folders, streaming=False)).to_dataframe(), *PAIRS) == oracle(streams)


@pytest.mark.parametrize("name", ["nearest", "temporal", "interval-full"])
def test_a_stream_equals_its_oracle(
    spark: SparkSession, streams: Streams, folders: Folders, tmp_path: Path, name: str
) -> None:
    join, oracle = JOINS[name]
    query = join(connected(spark, folders, streaming=True)).start(
        output=cj.sinks.parquet(f"{tmp_path}/out"),
        checkpoint=f"{tmp_path}/checkpoint",
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination()
    report = query.progress
    assert report is not None
    assert report.is_conserved
    assert not any(each.rejected for each in report.inputs)
    assert (report.batch_id, report.output_delay_ms == 2_000) == (3, name == "interval-full")
    found = rows(spark.read.parquet(f"{tmp_path}/out"), *PAIRS)
    assert sorted(found, key=repr_nulls_first) == oracle(streams)
