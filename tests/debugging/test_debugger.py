"""A key of a real checkpoint, stepped through the batches that came next: what the real run wrote comes out again."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.testing import Harness, HarnessInput
from tests.debugging.shop import BATCHES, DDL, OUTPUT, FailingTiers, Forgetful, LoudTiers, Shop, Tiers, at, millis

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A function over Delta tables: three commits are read as the tables' first snapshots, the others as they came."""
    made = Shop(spark, tmp_path_factory.mktemp("delta"))
    made.append(range(3), delta=True)
    made.run(tiers(made))
    made.append(range(3, len(BATCHES)), delta=True)
    made.run(tiers(made), drain=True)
    return made


@pytest.fixture(scope="module")
def joined_shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """An as-of join over folders."""
    made = Shop(spark, tmp_path_factory.mktemp("files"))
    made.append(range(len(BATCHES)), delta=False)
    made.run(asof(made), drain=True)
    return made


def tiers(shop: Shop, function: cj.KeyedCoProcessFunction | None = None) -> cj.Joined:
    return shop.pair(delta=True).process(function or Tiers(), OUTPUT)


def asof(shop: Shop, **settings: Any) -> cj.Joined:
    return shop.pair(delta=False).asof_join(**settings)


def debug(shop: Shop, joined: cj.Joined | None, at: int, key: Any = 7) -> Any:
    return cj.debug(shop.checkpoint, joined, key=key, at=at)


def written(shop: Shop, key: int, column: int, after: int) -> dict[int, list[tuple[Any, ...]]]:
    rows = {batch: [row for row in found if row[column] == key] for batch, found in shop.written.items()}
    return {batch: found for batch, found in sorted(rows.items()) if batch > after and found}


def stepped(debugger: Any) -> dict[int, list[tuple[Any, ...]]]:
    found = {step.batch_id: [tuple(row.values()) for row in step.output.to_pylist()] for step in debugger.steps()}
    return {batch: rows for batch, rows in found.items() if rows}


def saved(shop: Shop) -> list[int]:
    return sorted(int(each.stem) for each in (shop.root / "checkpoint" / "snapshots").glob("*.json"))


@pytest.mark.slow
def test_state_is_what_the_harness_says(shop: Shop) -> None:
    snapshot = saved(shop)[0]
    debugger = debug(shop, tiers(shop), snapshot)
    harness = Harness(
        Tiers(),
        OUTPUT,
        input1=HarnessInput(DDL["trades"], key="customer_id", event_time="event_time"),
        input2=HarnessInput(DDL["customers"], key="customer_id", event_time="event_time"),
    )
    for trades, customers in BATCHES[: snapshot + 1]:
        for trade, key, second in trades:
            harness.process_element1({"trade_id": trade, "customer_id": key, "event_time": at(second)})
        for key, second, tier in customers:
            harness.process_element2({"customer_id": key, "event_time": at(second), "tier": tier})
    harness.process_watermark(debugger.watermark)
    assert debugger.values.states == harness.state(7)
    assert [each["timestamp"].timestamp() * 1000 for each in debugger.timers.to_pylist()] == [
        timer.timestamp for timer in harness.timers(7)
    ]
    assert [row["trade_id"] for row in debugger.waiting[0].to_pylist()] == [
        row.trade_id for row in harness.buffered(1) if row.customer_id == 7
    ]
    assert harness.state(7)
    assert harness.timers(7)


@pytest.fixture(scope="module")
def debugger(shop: Shop) -> Any:
    """Customer 7 after the first snapshot, which was taken before the tables' first snapshots were read to the end."""
    return debug(shop, tiers(shop), saved(shop)[0])


@pytest.mark.slow
def test_steps_write_what_the_real_run_wrote(shop: Shop, debugger: Any) -> None:
    first, second, third, *_ = saved(shop)
    assert stepped(debugger) == written(shop, 7, 1, first)
    assert stepped(debug(shop, tiers(shop), second, 8)) == written(shop, 8, 1, second)
    with pytest.warns(UserWarning, match="has nothing of key 9"):
        assert stepped(debug(shop, tiers(shop), second, 9)) == written(shop, 9, 1, second)
    assert stepped(debug(shop, tiers(shop), third)) == written(shop, 7, 1, third)
    assert all(written(shop, key, 1, second) for key in (7, 8, 9))
    assert [step.batch_id for step in debugger.steps()] == debugger.batches
    assert [step.watermark for step in debugger.steps()][-2:] == [millis(320) - 1, (1 << 63) - 1]


@pytest.mark.slow
def test_the_late_row_is_rejected_as_it_was(shop: Shop, debugger: Any) -> None:
    rejected = [row for step in debugger.steps() for row in step.rejected.to_pylist()]
    table = shop.spark.read.format("delta").load(f"{shop.checkpoint}/rejected")
    real = table.where(F.get_json_object("row", "$.customer_id") == "7").select("reason", "watermark", "row").collect()
    assert [(each["reason"], each["watermark"], each["row"]) for each in rejected] == [tuple(row) for row in real]
    assert rejected


@pytest.mark.slow
def test_upcoming_has_the_rows_batch_by_batch(debugger: Any) -> None:
    found = {
        number: ([row["trade_id"] for row in left.to_pylist()], [row["tier"] for row in right.to_pylist()])
        for number, (left, right) in debugger.upcoming.items()
    }
    wanted = {
        number: ([trade for trade, key, _ in trades if key == 7], [tier for key, _, tier in customers if key == 7])
        for number, (trades, customers) in enumerate(BATCHES)
    }
    assert found == {number: each for number, each in wanted.items() if number > debugger.batch_id and any(each)}


@pytest.mark.slow
def test_each_row_and_timer_is_looked_at(shop: Shop, debugger: Any) -> None:
    steps = list(debugger.steps("row"))
    assert [each.row.trade_id for each in steps if each.kind == "rejected"] == [9]
    fired = next(each for each in steps if each.kind == "timer")
    assert (fired.timestamp, [tuple(row) for row in fired.output]) == (millis(60), [(1, 7, None)])
    assert fired.state == {"open_trades": {3: millis(80)}}
    assert [timer.timestamp for timer in fired.timers] == [millis(80)]
    assert "timer at 2026-01-15 09:01:00.000" in repr(fired)
    by_batch: dict[int, list[Any]] = {}
    for each in steps:
        by_batch.setdefault(each.batch_id, []).extend(map(tuple, each.output))
    assert {batch: rows for batch, rows in by_batch.items() if rows} == written(shop, 7, 1, debugger.batch_id)


@pytest.mark.slow
def test_a_function_that_fails_shows_what_came_before(debugger: Any) -> None:
    seen: deque[Any] = deque()
    with pytest.raises(cj.FunctionError, match=r"FailingTiers.process_element1 raised LookupError: no trade 7"):
        seen.extend(debugger.with_function(FailingTiers()).steps("row"))
    assert [each.row.trade_id for each in seen if each.input == "trades"] == [6]
    assert seen[-1].timestamp == millis(80)


@pytest.mark.slow
def test_a_changed_function_gives_changed_rows(shop: Shop) -> None:
    debugger = debug(shop, tiers(shop), saved(shop)[1])
    real = stepped(debugger)
    loud = stepped(debugger.with_function(LoudTiers()))
    assert loud != real
    given = {trade for trades, _ in BATCHES for trade, key, second in trades if key == 7 and 65 < second < 305}
    assert loud == {
        batch: [(trade, key, tier.upper() if tier and trade in given else tier) for trade, key, tier in rows]
        for batch, rows in real.items()
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:debug. the snapshot of batch 1 has nothing of key 7")
def test_a_join_steps_as_it_ran(joined_shop: Shop) -> None:
    first, second, *_ = saved(joined_shop)
    for snapshot, key in ((first, 7), (second, 8)):
        debugger = debug(joined_shop, asof(joined_shop), snapshot, key)
        real = written(joined_shop, key, 1, snapshot)
        told = {batch: [(row[0], row[4]) for row in rows] for batch, rows in real.items()}
        assert {batch: [(row[0], row[4]) for row in rows] for batch, rows in stepped(debugger).items()} == told
        by_row: dict[int, list[Any]] = {}
        for step in debugger.steps("row"):
            by_row.setdefault(step.batch_id, []).extend((row[0], row[4]) for row in step.output)
        assert {batch: rows for batch, rows in by_row.items() if rows} == told


@pytest.mark.slow
def test_without_the_join_it_only_shows(shop: Shop) -> None:
    debugger = debug(shop, None, saved(shop)[0])
    assert debugger.state.num_rows
    assert "open_trades" in repr(debugger)
    assert "<table" in debugger._repr_html_()
    with pytest.raises(cj.ConfigurationError, match=r"steps\(\) needs the join or function that the query ran"):
        debugger.steps()


@pytest.mark.slow
def test_bad_input_is_told(shop: Shop, joined_shop: Shop, tmp_path: Path) -> None:
    snapshot = saved(shop)[0]
    with pytest.raises(
        cj.CheckpointError, match=rf"no snapshot of batch 99 exists; it has those of batches {snapshot}, "
    ):
        debug(shop, tiers(shop), 99)
    with pytest.raises(cj.FunctionError, match="key: column 'customer_id'"):
        debug(shop, tiers(shop), snapshot, "seven")
    with pytest.raises(cj.ConfigurationError, match="key: expected a value of 'customer_id'"):
        debug(shop, tiers(shop), snapshot, None)
    with pytest.warns(UserWarning, match=r"has nothing of key 99; keys that it has are, for example, [78]"):
        debug(shop, tiers(shop), snapshot, 99)
    with pytest.raises(
        cj.CheckpointError, match="the operation is 'process' in the checkpoint and 'asof_join' in the query"
    ):
        debug(shop, shop.pair(delta=True).asof_join(), snapshot)
    folder = joined_shop.source("customers", delta=False)
    with pytest.raises(cj.CheckpointError, match=r"input 'customers' read delta .* and this one reads parquet"):
        debug(shop, shop.pair(delta=True, customers=folder).process(Tiers(), OUTPUT), snapshot)
    frame = shop.spark.readStream.format("delta").load(str(shop.root / "customers"))
    bare = debug(shop, shop.pair(delta=True, customers=frame).process(Tiers(), OUTPUT), snapshot)
    with pytest.raises(cj.ConfigurationError, match="input 'customers' is a DataFrame, whose rows can't be read again"):
        bare.steps()
    with pytest.raises(
        cj.CheckpointError, match="the checkpoint holds the states 'open_trades', 'tier', which open no longer"
    ):
        debug(shop, tiers(shop), snapshot).with_function(Forgetful())
    with pytest.raises(cj.ConfigurationError, match="by: expected 'batch' or 'row'"):
        debug(shop, tiers(shop), snapshot).steps("line")
    with pytest.raises(cj.CheckpointError, match="is not a checkpoint"):
        cj.debug(tmp_path, key=7)
