"""Tests captured from inputs of Spark and from a checkpoint: they run without Spark, and expect what Spark wrote."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.testing import capture
from tests.debugging.shop import BATCHES, OUTPUT, Shop, Tiers, at, tables

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A function over Delta tables, whose query has run to the end in two starts."""
    made = Shop(spark, tmp_path_factory.mktemp("delta"))
    made.append(range(3), delta=True)
    made.run(tiers(made))
    made.append(range(3, len(BATCHES)), delta=True)
    made.run(tiers(made), drain=True)
    return made


def tiers(shop: Shop) -> cj.Joined:
    return shop.pair(delta=True).process(Tiers(), OUTPUT)


def snapshots(shop: Shop) -> list[int]:
    return sorted(int(each.stem) for each in (shop.root / "checkpoint" / "snapshots").glob("*.json"))


def run(test: Path) -> Any:
    """Run all keys of a captured test, and return its module."""
    spec = importlib.util.spec_from_file_location("captured_on_spark", test)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for key in module.CAPTURED.keys:
        module.test_captured_key(key)
    return module


def rows(module: Any, key: str) -> list[tuple[Any, ...]]:
    return [tuple(each.row.values()) for each in module.CAPTURED.by_key[key].expected.output]


@pytest.mark.parametrize("at_first", [True, False])
def test_a_checkpoint_gives_what_the_query_wrote_after_the_snapshot(shop: Shop, tmp_path: Path, at_first: bool) -> None:
    snapshot = snapshots(shop)[0 if at_first else 1]
    source = cj.Snapshot(shop.checkpoint, at=snapshot)
    captured = capture(source, tmp_path / "test_checkpoint.py", joined=tiers(shop), keys=[7, 8])
    module = run(captured.path)
    for key in (7, 8):
        real = [row for batch, found in sorted(shop.written.items()) if batch > snapshot for row in found]
        assert rows(module, str(key)) == [row for row in real if row[1] == key]
    assert "late" in captured.keys["7"]
    assert [each.row["trade_id"] for each in module.CAPTURED.by_key["7"].expected.rejected] == [9]
    assert f"batches {snapshot + 1} to " in captured.path.read_text("utf-8")
    assert str(shop.root) not in captured.path.read_text("utf-8")


def test_a_join_from_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path)
    shop.append(range(len(BATCHES)), delta=False)
    joined = shop.pair(delta=False).asof_join()
    shop.run(joined, drain=True)
    snapshot = snapshots(shop)[0]
    captured = capture(cj.Snapshot(shop.checkpoint, at=snapshot), tmp_path / "test_join.py", joined=joined, keys=[7])
    module = run(captured.path)
    real = [row for batch, found in sorted(shop.written.items()) if batch > snapshot for row in found]
    assert [row[0] for row in rows(module, "7")] == [row[0] for row in real if row[1] == 7]


def test_static_frames_sources_and_memory_give_the_same_test(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"key": "customer_id", "event_time": "event_time"}
    whole = [pa.concat_tables(each) for each in zip(*map(tables, range(len(BATCHES))), strict=True)]
    frames = [[spark.createDataFrame(each).coalesce(1) for each in whole], whole]
    joined = [tiers(shop)]
    for left, right in frames:
        pair = cj.connect(cj.Input(left, **settings, name="trades"), cj.Input(right, **settings, name="customers"))
        joined.append(pair.process(Tiers(), OUTPUT))
    found = []
    for number, each in enumerate(joined):
        captured = capture(each, tmp_path / f"test_{number}.py", keys=[7], span=(at(0), at(200)))
        found.append(rows(run(captured.path), "7"))
        assert captured.sizes == {"7": 7}
    assert found[0] == found[1] == found[2]
    chosen = [capture(each, tmp_path / f"test_chosen_{number}.py").keys.keys() for number, each in enumerate(joined)]
    assert chosen[0] == chosen[1] == chosen[2]


def test_what_a_checkpoint_can_not_give_is_refused(shop: Shop, tmp_path: Path) -> None:
    source, path = cj.Snapshot(shop.checkpoint, at=snapshots(shop)[0]), tmp_path / "test_bad.py"
    for arguments, told in (
        ({"keys": [7]}, "joined: a checkpoint does not keep its join"),
        (
            {"keys": [70], "joined": tiers(shop)},
            "has nothing of key 70.*and the batches that followed have no row",
        ),
        ({"joined": tiers(shop)}, "name them"),
        ({"joined": tiers(shop), "keys": [7], "mask": ["tier"]}, "holds whole rows"),
    ):
        with pytest.raises(cj.ConfigurationError, match=told):
            capture(source, path, **arguments)  # type: ignore[arg-type]
    with pytest.raises(cj.ConfigurationError, match="have no rows of key 70; they have no rows at all"):
        capture(tiers(shop), path, keys=[70])
    streams = [shop.source(name, delta=True).open() for name in ("trades", "customers")]
    with pytest.raises(cj.ConfigurationError, match="is a streaming DataFrame, whose rows can't be read again"):
        capture(shop.pair(delta=True, trades=streams[0], customers=streams[1]).asof_join(), path, keys=[7])
    assert not list(tmp_path.iterdir())
