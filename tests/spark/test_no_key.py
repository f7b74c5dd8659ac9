"""Joins by time alone on Spark: one key group has all rows, through pauses, savepoints and restores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

import cojoin as cj
from tests.spark.data import FIVE_SECONDS, Folders, Streams, asof, generate
from tests.spark.refused import refused
from tests.spark.saved import DRAIN, Saved

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def connected(folders: Folders) -> cj.ConnectedInputs:
    trades, customers = folders.sources()
    shared: Any = {"key": (), "event_time": "event_time", "watermark": FIVE_SECONDS, "sequence": "position"}
    return cj.connect(cj.Input(trades, name="trades", **shared), cj.Input(customers, name="customers", **shared))


def by_time(pair: cj.ConnectedInputs) -> cj.Joined:
    return pair.asof_join(suffixes=("", "_customer"))


def expected(streams: Streams) -> list[tuple[int, int | None]]:
    """Return each trade with the version before it, by pandas."""
    left = streams.trades.sort_values("event_time", kind="stable")[["trade_id", "event_time"]]
    right = streams.customers.sort_values(["event_time", "position"], kind="stable")[["event_time", "version"]]
    joined = pd.merge_asof(left, right.assign(version=right.version.astype("Int64")), on="event_time")
    versions = [None if pd.isna(version) else int(version) for version in joined.version]
    return sorted(zip(joined.trade_id, versions, strict=True))


@pytest.mark.slow
def test_a_stream_pauses_and_goes_on_in_another_query(spark: SparkSession, tmp_path: Path) -> None:
    streams = generate(trades=200, customers=60)
    folders = streams.write(tmp_path, files=2)
    old, new = (Saved(spark, tmp_path / name, folders, 1) for name in ("old", "new"))
    old.run(by_time(connected(folders)))
    state = cj.read_state(spark, old.checkpoint)
    waiting = state.buffered["trades"]
    assert len(state.key(()).buffered["trades"]) == waiting.count() > 0
    assert [row["rows"] for row in state.largest_keys().collect()] == [
        sum(each.rows for each in state.stored.tables.values())
    ]
    assert str(state.key(())).startswith("key () after batch ")
    with refused("key: expected (), got 7"):
        state.key(7)
    trade_id = waiting.first()["trade_id"]
    found = cj.explain(spark, old.checkpoint, input="trades", row={"trade_id": trade_id})
    assert [each.kind for each in found.findings] == ["buffered"], str(found)
    assert cj.explain(spark, old.checkpoint, key=()).question == "key ()"
    with refused("erase: the query's inputs have no key (key=())"):
        cj.erase(spark, old.checkpoint, [()], str(tmp_path / "without"))
    new.run(by_time(connected(folders)), DRAIN, restore_from=cj.Snapshot(old.checkpoint))
    rows = [(row.trade_id, row.version) for each in (old, new) for row in each.output().collect()]
    assert sorted(rows) == expected(streams)
    new.assert_conserved()


@pytest.mark.slow  # A stream with a static side, and a static join.
def test_a_tables_version_is_looked_up_by_time_alone(spark: SparkSession, tmp_path: Path) -> None:
    folders = generate(trades=60, customers=20).write(tmp_path, files=1)
    spark.sql("select 'gold' tier").write.format("delta").save(f"{tmp_path}/tiers")
    trades = cj.Input(folders.sources()[0], (), "event_time", "trades")
    table = cj.Input(cj.sources.delta(f"{tmp_path}/tiers", static=True), (), None, "tiers")
    saved = Saved(spark, tmp_path / "query", folders, 1)
    saved.run(cj.connect(trades, table).asof_join(), DRAIN)
    assert [row.tier for row in saved.output().collect()] == ["gold"] * 60
    spark.sql("select 'silver' tier").write.format("delta").mode("append").save(f"{tmp_path}/tiers")
    other = Saved(spark, tmp_path / "other", folders, 1)
    with pytest.warns(UserWarning, match=r"version 1 of the table has 2 rows, all of one key \(key=\(\)\)"):
        other.run(cj.connect(trades, table).asof_join(), DRAIN)
    assert {row.tier for row in other.output().collect()} == {"silver"}
    frames = folders.frames(spark, streaming=False)
    sides = (cj.Input(frame, (), "event_time", name) for frame, name in zip(frames, "lr", strict=True))
    assert by_time(cj.connect(*sides)).to_dataframe().count() == 60


def test_a_query_with_a_key_does_not_go_on_without(spark: SparkSession, tmp_path: Path) -> None:
    folders = generate(trades=20, customers=10).write(tmp_path, files=1)
    saved = Saved(spark, tmp_path / "query", folders, 1)
    saved.run(asof(connected_by_customer(folders)))
    with refused("key= is ['customer_id'] in the checkpoint and [] in the query", kind=cj.CheckpointError):
        saved.run(by_time(connected(folders)))


def connected_by_customer(folders: Folders) -> cj.ConnectedInputs:
    trades, customers = folders.sources()
    shared: Any = {"key": "customer_id", "event_time": "event_time", "watermark": FIVE_SECONDS, "sequence": "position"}
    return cj.connect(
        cj.Input(trades, name="trades", **shared), cj.Input(customers, name="customers", **shared), key_groups=1
    )
