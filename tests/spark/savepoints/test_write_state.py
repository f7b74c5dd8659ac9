"""States that are written from DataFrames: they go on like those that they were read from, or like none was there."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from cojoin.engine import rescaling
from cojoin.spark.savepoints import new_savepoint
from tests.seeds import drawn
from tests.spark.data import MORNING, Folders, asof, connect, cut, generate, rows
from tests.spark.functions import EnrichTrades
from tests.spark.refused import refused
from tests.spark.saved import DRAIN, Saved
from tests.spark.savepoints.functions_kept import OUTPUT, KeepAll

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

EVERY: dict[str, Callable[[Any], cj.Joined]] = {
    "function": lambda pair: pair.process(KeepAll(), OUTPUT),
    "arrival": lambda pair: pair.process(KeepAll(), OUTPUT, order="arrival"),
    "asof": asof,
    "nearest": lambda pair: asof(pair, direction="nearest", tolerance="3 seconds"),
    "temporal": lambda pair: pair.temporal_join(suffixes=("", "_customer"), retention="20 seconds"),
    "interval": lambda pair: pair.interval_join("-4 seconds", "2 seconds", how="full", suffixes=("", "_customer")),
}


def joined(kind: str, folders: Folders, key_groups: int) -> cj.Joined:
    return EVERY[kind](connect(*folders.sources(), key_groups=key_groups))


def stored(state: Any) -> dict[str, tuple[str, list[str]]]:
    """Return a state's tables: their columns and their rows, in any order."""
    return {
        name: (str(each.schema), sorted(map(repr, state.stored.rows(name).toArrow().to_pylist())))
        for name, each in state.stored.tables.items()
    }


def parts(state: Any) -> dict[str, Any]:
    """Return all that ``read_state`` shows of a state."""
    shown = {"versions": state.versions, "buffered": state.buffered, "states": state.states, "timers": state.timers}
    return {name: part for name, part in shown.items() if part is not None}


def everything(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(rows(frame))


@pytest.mark.slow  # The tests below write states in less time.
@pytest.mark.parametrize("kind", drawn(EVERY, 1))
def test_a_state_that_is_read_and_written_goes_on_like_the_original(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    streams, folders = generate(160, 60, keys=9, seed=3), Folders(tmp_path)
    pieces = list(zip(cut(streams.trades, 3), cut(streams.customers, 3), strict=True))
    for trades, customers in pieces[:2]:
        folders.add_trades(trades)
        folders.add_customers(customers)
    old = Saved(spark, tmp_path / "old", folders, 3)
    old.run(joined(kind, folders, 3), checkpoint_interval=None)
    before = everything(old.output())
    state = cj.read_state(spark, old.checkpoint)
    taken = cj.write_state(spark, tmp_path / "written", joined(kind, folders, 5), from_existing=state, **parts(state))
    again = cj.read_state(spark, taken)
    assert stored(again) == stored(state)
    headers = [rescaling.merged_header(each.stored.headers) for each in (state, again)]
    assert headers[0] == headers[1]
    assert state.report is not None
    assert again.report is not None
    assert again.report.is_conserved
    assert [each.partitions for each in again.report.inputs] == [each.partitions for each in state.report.inputs]
    trades, customers = pieces[2]
    folders.add_trades(trades)
    folders.add_customers(customers)
    new = Saved(spark, tmp_path / "new", folders, 5)
    new.run(joined(kind, folders, 5), trigger=DRAIN, restore_from=taken, checkpoint_interval=None)
    old.run(joined(kind, folders, 3), trigger=DRAIN, checkpoint_interval=None)
    assert everything(new.output()) == everything(old.output()) - before
    assert sum(everything(new.output()).values()) > 30
    new.assert_conserved()
    last = new.manifests.last()
    assert last is not None
    assert [each.rows_in for each in last.report.inputs] == [len(streams.trades), len(streams.customers)]


@pytest.mark.slow
def test_versions_brought_along_are_in_force_from_the_first_row_on(spark: SparkSession, tmp_path: Path) -> None:
    streams, folders = generate(200, 80, keys=9, seed=5), Folders(tmp_path)
    customers = streams.customers.sort_values("event_time", kind="stable")
    # The watermark is in the middle of the versions that are brought: those after it wait, as if they had just come.
    brought, later = customers.iloc[:60], customers.iloc[60:]
    known_until = int(brought.event_time.iloc[30]) // 1_000
    bringing = Folders(tmp_path / "brought")
    bringing.add_customers(brought)
    frame = bringing.frames(spark, streaming=False)[1]
    begin = cj.write_state(
        spark, tmp_path / "begin", joined("asof", folders, 4), versions=frame, watermark={"customers": known_until}
    )
    state = cj.read_state(spark, begin)
    assert (state.watermark, state.report.is_conserved) == (-(1 << 63), True)
    for trades, versions in zip(cut(streams.trades, 2), cut(later, 2), strict=True):
        folders.add_trades(trades)
        folders.add_customers(versions)
    new = Saved(spark, tmp_path / "new", folders, 3)
    new.run(joined("asof", folders, 3), trigger=DRAIN, restore_from=begin)
    assert new.rows() == streams.enriched()
    new.assert_conserved()


@pytest.mark.slow
def test_a_state_may_be_changed_renamed_and_left_out_on_its_way(spark: SparkSession, tmp_path: Path) -> None:
    folders, streams = Folders(tmp_path), generate(60, 40, keys=5, seed=1)
    folders.add_trades(streams.trades)
    folders.add_customers(streams.customers)
    old = Saved(spark, tmp_path / "old", folders, 2)
    old.run(old.function(), checkpoint_interval=None)
    state = cj.read_state(spark, old.checkpoint)
    customer = state.states["customer"]
    renamed = customer.withColumn("value", F.upper("value.tier")).where("value IS NOT NULL")
    function = old.function(Renamed())
    with refused("holds the state 'customer'", kind=cj.CheckpointError):
        cj.write_state(spark, tmp_path / "half", function, from_existing=state, states={"tier": renamed})
    assert not (tmp_path / "half").exists()
    changed = {"tier": renamed, "customer": None}
    taken = cj.write_state(spark, tmp_path / "changed", function, from_existing=old.checkpoint, states=changed)
    again = cj.read_state(spark, taken)
    assert rows(again.states["tier"]) == rows(renamed)
    assert [*again.states] == ["tier"]
    assert stored(again)["held1"] == stored(state)["held1"]


class Renamed(EnrichTrades):
    """The function with its state under another name and of another type."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.customer = ctx.get_state(cj.ValueStateDescriptor("tier", "string"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("nothing"))


def test_what_does_not_fit_is_refused_before_anything_is_written(
    spark: SparkSession, folders: Folders, tmp_path: Path
) -> None:
    into = tmp_path / "written"
    join, function = joined("asof", folders, 2), joined("function", folders, 2)
    arrivals = connect(*folders.sources(), key_groups=2).process(
        EnrichTrades(), "trade_id bigint, event_time timestamp, amount double, version bigint, tier string"
    )
    customers = folders.frames(spark, streaming=False)[1]
    entry = "1L customer_id, named_struct('version', 1L, 'tier', 'gold') value"
    cases: list[tuple[cj.Joined, dict[str, Any], tuple[str, ...]]] = [
        (function, {"versions": customers}, ("versions", "function KeepAll", "states=")),
        (join, {"states": {"tier": customers}}, ("declares no state 'tier'",)),
        (join, {"timers": spark.sql("select 1L customer_id, 'event_time' domain, 1L timestamp_ms")}, ("no timers",)),
        (join, {"versions": customers.drop("tier")}, ("versions", "no column 'tier'")),
        (join, {"versions": customers.withColumn("x", F.lit(1))}, ("a column 'x'",)),
        (
            join,
            {"versions": customers.withColumn("customer_id", F.col("customer_id").cast("string"))},
            ("column 'customer_id', which must keep its type, changes from string to bigint",),
        ),
        (join, {"versions": folders.frames(spark)[1]}, ("got a stream",)),
        (join, {"buffered": {"trade": customers}}, ("no input 'trade'", "did you mean 'trades'")),
        (join, {"watermark": datetime(2024, 3, 1)}, ("a datetime with a time zone",)),  # noqa: DTZ001
        (join, {"watermark": {"x": 5}}, ("no input 'x'",)),
        (arrivals, {"states": {"customers": customers}}, ("no state 'customers'", "did you mean 'customer'")),
        (
            arrivals,
            {"states": {"customer": spark.sql("select 1L customer_id, array('gold') value")}},
            ("state 'customer' (a value state)", "column 'value' changes from array<string> to struct"),
        ),
        (arrivals, {"states": {"customer": spark.sql(f"select '1' customer_id, {entry[16:]}")}}, ("'customer_id'",)),
        (function, {"states": {"tier": spark.sql(f"select {entry}")}}, ("no column 'last_access'",)),
    ]
    for query, given, told in cases:
        with refused(*told):
            cj.write_state(spark, into, query, **given)
    assert not into.exists()
    twice = spark.sql(f"select {entry} union all select {entry} union all select 2L, null union all select null, null")
    timers = spark.sql("select 1L customer_id, 'wall_time' domain, 1L timestamp_ms")
    with refused(
        "'customer': a row has a null key",
        "a null value",
        "another domain",
        "wall_time",
        "Nothing was",
        kind=cj.CheckpointError,
    ):
        cj.write_state(spark, into, arrivals, states={"customer": twice}, timers=timers)
    # The function sets no timers by processing time.
    by_clock = spark.sql("select 1L customer_id, 'processing_time' domain, 1L timestamp_ms")
    with refused("another domain than the query has ('event_time')", "processing_time", kind=cj.CheckpointError):
        cj.write_state(spark, into, arrivals, timers=by_clock)
    with refused("state 'customer': a key occurs more than once, such as customer_id=1", kind=cj.CheckpointError):
        cj.write_state(spark, into, arrivals, states={"customer": twice.where("customer_id = 1")})
    assert not into.exists()
    into.mkdir()
    (into / "mine.txt").write_text("mine")
    with refused("holds 'mine.txt'; choose an empty one", kind=cj.CheckpointError):
        cj.write_state(spark, into, join)


@pytest.mark.slow
def test_a_writer_that_was_killed_leaves_nothing_to_begin_with(
    spark: SparkSession, folders: Folders, tmp_path: Path
) -> None:
    into, join = tmp_path / "written", joined("asof", folders, 2)
    at = f"timestamp_micros({MORNING})"
    versions = spark.sql(f"select 7L customer_id, {at} event_time, 3L version, 'gold' tier, 1L position")

    def killed(*_: Any) -> None:
        msg = "the machine went down"
        raise OSError(msg)

    for place in ("describe_written", "snapshot_row"):
        with mock.patch.object(new_savepoint, place, killed), suppress(Exception):
            cj.write_state(spark, into, join, versions=versions)
        assert not (into / "query.json").exists()
    with refused("was begun and not finished; write it again", kind=cj.CheckpointError):
        cj.read_state(spark, into)
    saved = Saved(spark, into.parent / "new", folders, 2)
    with refused("was begun and not finished; write it again", kind=cj.CheckpointError):
        saved.start(join, restore_from=cj.Snapshot(into))
    until = datetime.fromtimestamp(MORNING / 1e6, timezone.utc) + timedelta(seconds=1)
    begin = cj.write_state(spark, into, join, versions=versions, watermark=until)
    state = cj.read_state(spark, begin)
    assert state.versions is not None
    assert rows(state.versions, "customer_id", "version") == [(7, 3)]
    assert state.watermark == MORNING // 1000 + 1000
    assert state.report is not None
    assert [(each.rows_in, each.done) for each in state.report.inputs] == [(0, 0), (1, 1)]
    with refused("is a checkpoint already", kind=cj.CheckpointError):
        cj.write_state(spark, into, join, versions=versions)
    with refused("it holds a state that write_state has written", "restore_from=", kind=cj.CheckpointError):
        join.start(output=cj.sinks.delta(f"{tmp_path}/out"), checkpoint=into, trigger=DRAIN)
