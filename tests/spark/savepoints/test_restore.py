"""A new query that begins with another's state: nothing missing, nothing double, whatever it was cut into."""

from __future__ import annotations

import json
import random
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from benchmarks.kills.kill_points import POINTS
from cojoin.checkpoints.lease import end
from cojoin.checkpoints.restoration import Restoration
from cojoin.spark.savepoints import restore
from cojoin.spark.savepoints.restore import _check_states, _retirement_reason
from tests.seeds import SEED, SEED_TEXT
from tests.spark.data import FIVE_SECONDS, Folders, Streams, asof, connect, cut, generate
from tests.spark.functions import EnrichTrades
from tests.spark.refused import refused
from tests.spark.saved import DRAIN, Saved

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BATCHES, LATER = 3, 2
"""How many files, so batches, the old query has seen; and how many come later."""


class Story:
    """An old query that has stopped, and files that came later."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.streams: Streams = generate(seed=41)
        self.folders = Folders(folder)
        pieces = list(
            zip(cut(self.streams.trades, BATCHES + LATER), cut(self.streams.customers, BATCHES + LATER), strict=True)
        )
        self._add(pieces[:BATCHES])
        self.join = Saved(spark, folder / "join", self.folders)
        self.join.run(retained_checkpoints=BATCHES)
        self.function = Saved(spark, folder / "function", self.folders)
        self.function.run(self.function.function(), retained_checkpoints=1, checkpoint_interval=2)
        self._add(pieces[BATCHES:])

    def _add(self, pieces: list[Any]) -> None:
        for trades, customers in pieces:
            self.folders.add_trades(trades)
            self.folders.add_customers(customers)

    def other(self, name: str, key_groups: int) -> Saved:
        return Saved(self.spark, self.folder / name, self.folders, key_groups)


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(spark, tmp_path_factory.mktemp("story"))


@pytest.mark.slow
def test_a_restored_query_goes_on_with_other_key_groups_and_partitions(story: Story) -> None:
    choice = random.Random(SEED)
    batch_id, key_groups, partitions = choice.randrange(BATCHES), choice.choice([1, 3, 16]), choice.choice([1, 3])
    print(f"{SEED_TEXT}: batch {batch_id}, {key_groups} key groups, {partitions} partitions")  # noqa: T201 - shown on failure
    new = story.other("rescaled", key_groups)
    before = story.spark.conf.get("spark.sql.shuffle.partitions")
    story.spark.conf.set("spark.sql.shuffle.partitions", partitions)
    try:
        new.run(restore_from=cj.Snapshot(story.join.checkpoint, at=batch_id))
    finally:
        story.spark.conf.set("spark.sql.shuffle.partitions", before)
    assert f'"spark.sql.shuffle.partitions":"{partitions}"' in (new.files.read("spark/offsets/2") or "")
    # The same command again, as a supervisor would: it goes on, and begins nothing anew.
    again = new.run(trigger=DRAIN, restore_from=cj.Snapshot(story.join.checkpoint, at=batch_id))
    assert sorted([*story.join.output_at(batch_id), *new.rows()], key=str) == sorted(story.streams.enriched(), key=str)
    new.assert_conserved()
    assert again.progress is not None
    assert again.progress.inputs[0].rows_in == len(story.streams.trades)
    # A row that the old query had taken is not called unread.
    (done, *_) = story.join.output_at(batch_id)
    told = str(cj.explain(story.spark, new.checkpoint, input="trades", row={"trade_id": done[0]}))
    assert f"had read it by its batch {batch_id}, after which this one began: explain(" in " ".join(told.split())


@pytest.mark.slow
def test_two_forks_of_one_checkpoint_know_nothing_of_each_other(story: Story) -> None:
    state, key_groups = cj.Snapshot(story.function.checkpoint), 4
    one, two = story.other("one", key_groups), story.other("two", key_groups)
    one.run(one.function(), restore_from=state, checkpoint_interval=None)
    # The function of the other has evolved; what is removed in the one is still there for it.
    assert one.snapshots.obsolete(1, savepoints_too=True) == []
    one.files.delete_directory("state")
    two.run(two.function(WithCounts()), trigger=DRAIN, restore_from=state, checkpoint_interval=None)
    one.run(one.function(), trigger=DRAIN, checkpoint_interval=None)
    before = story.function.output_at(story.function.snapshots.batch_ids()[-1])
    expected = sorted(story.streams.enriched(), key=str)
    for fork in (one, two):
        assert sorted([*before, *fork.rows()], key=str) == expected
        fork.assert_conserved()


class WithCounts(EnrichTrades):
    """The function a year later: a state more, and the state of before with a field more."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        fields = "version bigint, tier string, since timestamp"
        self.customer = ctx.get_state(cj.ValueStateDescriptor("customer", fields))
        self.trades = ctx.get_state(cj.ValueStateDescriptor("trades", "bigint"))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        self.trades.update((self.trades.value() or 0) + 1)
        version, tier, _ = self.customer.value() or (None, None, None)
        yield trade.trade_id, trade.event_time, trade.amount, version, tier

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        self.customer.update((customer.version, customer.tier, customer.event_time))


class Narrowed(EnrichTrades):
    """One that would lose what is stored."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.customer = ctx.get_state(cj.ValueStateDescriptor("customer", "version int, tier string"))


class Forgetful(EnrichTrades):
    """One that has given up the state."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        self.customer = ctx.get_state(cj.ValueStateDescriptor("client", "version bigint, tier string"))


@pytest.mark.slow
def test_in_the_same_table_what_came_after_is_taken_back_only_if_asked(story: Story) -> None:
    old = story.other("same", 4)
    old.run(asof(connect(*story.folders.sources(files_a_batch=2), key_groups=4)), retained_checkpoints=10)
    first = old.snapshots.batch_ids()[1]
    # Spark's own logs escape the blank.
    new = Saved(story.spark, story.folder / "same again", story.folders, 3)
    restore = {"restore_from": cj.Snapshot(old.checkpoint, at=first), "output": cj.sinks.delta(f"{old.folder}/out")}
    with refused("cut_back_output=True", "name a new table", kind=cj.CheckpointError):
        new.start(**restore)
    assert not new.folder.exists()
    new.run(trigger=DRAIN, cut_back_output=True, checkpoint_interval=None, **restore)
    assert old.rows() == story.streams.enriched()
    with refused("its output continues", kind=cj.CheckpointError):
        old.start()


@pytest.mark.slow
def test_positions_inside_a_delta_version_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    streams = generate(trades=200, customers=60, seed=43)
    folders = streams.write(tmp_path / "files", files=1)
    for name, frame in zip(("trades", "customers"), folders.frames(spark, streaming=False), strict=True):
        # Two files in one version, in no order of time: nothing is late within an hour.
        frame.repartition(2).write.format("delta").save(str(tmp_path / name))
    options, an_hour = {"maxFilesPerTrigger": 1}, cj.WatermarkStrategy.for_bounded_out_of_orderness("1 hour")
    trades, customers = (cj.sources.delta(str(tmp_path / name), options=options) for name in ("trades", "customers"))
    old, new = Saved(spark, tmp_path / "old", folders), Saved(spark, tmp_path / "new", folders)
    old.run(asof(connect(trades, customers, key_groups=2, watermark=an_hour)), checkpoint_interval=1)
    snapshot = old.snapshots.read(0)
    assert snapshot is not None
    assert [json.loads(line)["reservoirVersion"] for line in snapshot.manifest.offsets[:2]] == [0, 0]
    new.run(
        asof(connect(trades, customers, key_groups=3, watermark=an_hour)),
        trigger=DRAIN,
        restore_from=cj.Snapshot(old.checkpoint, at=0),
        checkpoint_interval=None,
    )
    assert new.rows() == streams.enriched()


def refusals(story: Story) -> list[tuple[cj.Joined | None, dict[str, Any], tuple[str, ...]]]:
    at, state = cj.Snapshot(story.join.checkpoint), cj.Snapshot(story.function.checkpoint)
    new = story.other("refused", 4)
    frames = asof(story.folders.connect(story.spark))
    trades, customers = story.folders.sources()
    text_keys = customers.open().selectExpr("CAST(customer_id AS string) customer_id", "event_time", "version")
    del text_keys
    other_order = asof(connect(trades, customers, watermark=FIVE_SECONDS, sequence=()))
    return [
        (None, {"restore_from": cj.Snapshot(str(story.folder / "trades"))}, ("is not a checkpoint of cojoin's",)),
        (None, {"restore_from": cj.Snapshot(str(story.folder / "nowhere"))}, ("the directory does not exist",)),
        (
            None,
            {"restore_from": cj.Snapshot(at.path, at=77)},
            ("no snapshot of batch 77", "it has those of batches 0, 1"),
        ),
        (frames, {"restore_from": at}, ("input 'trades' is a DataFrame", "cojoin.sources.delta or files")),
        (
            other_order,
            {"restore_from": at},
            ("input 'trades': sequence= is ['position'] in the checkpoint and [] in the query",),
        ),
        (None, {"restore_from": state}, ("the operation is 'process' in the checkpoint and 'asof_join' in the query",)),
        (new.function(Narrowed()), {"restore_from": state}, ("'customer'", "changes from bigint to int")),
        (new.function(Forgetful()), {"restore_from": state}, ("'customer'", "no longer declare")),
        (None, {"restore_from": cj.Snapshot(new.checkpoint)}, ("give it another checkpoint",)),
    ]


@pytest.mark.parametrize("number", range(9))
def test_what_can_not_be_restored_is_refused_and_nothing_is_written(story: Story, number: int) -> None:
    new = story.other("refused", 4)
    joined, options, parts = refusals(story)[number]
    with refused(*parts, kind=cj.ConfigurationError):
        new.start(joined, **options)
    assert not new.folder.exists()


@pytest.mark.slow
def test_a_start_that_was_interrupted_takes_back_nothing_of_others(spark: SparkSession, tmp_path: Path) -> None:
    streams = generate(trades=60, customers=20, seed=SEED)
    pieces = list(zip(cut(streams.trades, 2), cut(streams.customers, 2), strict=True))
    folders = Folders(tmp_path / "data")
    old, new = Saved(spark, tmp_path / "old", folders, 1), Saved(spark, tmp_path / "new", folders, 1)
    for trades, customers in pieces:
        folders.add_trades(trades)
        folders.add_customers(customers)
    old.run(trigger=DRAIN)

    def restore() -> None:
        state, out = cj.Snapshot(old.checkpoint, at=0), cj.sinks.delta(f"{old.folder}/out")
        new.start(trigger=DRAIN, restore_from=state, output=out, cut_back_output=True)

    def fail() -> None:
        msg = "the machine went down"
        raise OSError(msg)

    (begun,) = (point for point in POINTS if (point.phase, point.name) == ("a restoration", "begun"))
    with begun.armed(0, fail), pytest.raises(OSError, match="the machine went down"):
        restore()
    before = old.output().count()
    spark.sql(f"INSERT INTO delta.`{old.folder}/out` SELECT * FROM delta.`{old.folder}/out` LIMIT 1")
    with refused("it was changed by someone else", "can't be taken back", kind=cj.CheckpointError):
        restore()
    assert old.output().count() == before + 1


@pytest.mark.slow
def test_a_restoration_that_only_began_takes_another_snapshot_where_its_own_was_removed(
    story: Story, tmp_path: Path
) -> None:
    shutil.copytree(story.join.checkpoint, tmp_path / "old" / "checkpoint")
    old, new = Saved(story.spark, tmp_path / "old", story.folders), story.other("begun", 2)

    def restore(at: int | None) -> cj.Query:
        state = cj.Snapshot(old.checkpoint, at=at)
        return new.run(trigger=DRAIN, restore_from=state, checkpoint_interval=None)

    (begun,) = (point for point in POINTS if (point.phase, point.name) == ("a restoration", "begun"))
    with begun.armed(0, lambda: 1 / 0), pytest.raises(ZeroDivisionError):
        restore(1)
    with refused("began with batch 1 of", kind=cj.CheckpointError):
        restore(2)
    old.cleaner.clean([1])
    with refused("no snapshot of batch 1 exists; it has those of batches 0, 2", kind=cj.CheckpointError):
        restore(1)
    restore(None)
    restoration = Restoration.read(new.files)
    assert restoration is not None
    assert (restoration.batch_id, restoration.stage) == (2, "ready")
    written = [*story.join.output_at(2), *new.rows()]
    assert sorted(written, key=str) == sorted(story.streams.enriched(), key=str)


def test_a_restoration_that_may_have_rolled_its_outputs_back_needs_its_own_snapshot(
    story: Story, tmp_path: Path
) -> None:
    shutil.copytree(story.join.checkpoint, tmp_path / "old" / "checkpoint")
    old, new = Saved(story.spark, tmp_path / "old", story.folders), story.other("retired", 4)
    state = cj.Snapshot(old.checkpoint, at=1)
    (begun,) = (point for point in POINTS if (point.phase, point.name) == ("a restoration", "begun"))
    with begun.armed(0, lambda: 1 / 0), pytest.raises(ZeroDivisionError):
        new.run(trigger=DRAIN, restore_from=state)
    end(old.files, _retirement_reason(1, new.files))
    old.cleaner.clean([1])
    with refused("may have rolled the outputs back to it", "Put it back from a backup", kind=cj.CheckpointError):
        new.run(trigger=DRAIN, restore_from=cj.Snapshot(old.checkpoint))


def test_a_directory_in_use_is_not_restored_into(story: Story) -> None:
    with refused("is already a query's own", kind=cj.CheckpointError):
        story.function.start(story.function.function(), restore_from=cj.Snapshot(story.join.checkpoint))


@pytest.mark.parametrize(
    "damage",
    [
        "content",
        "index",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("header", "rows", "columns", "files")),
    ],
)
def test_a_snapshot_that_was_changed_is_refused(story: Story, tmp_path: Path, damage: str) -> None:
    from delta.tables import DeltaTable

    shutil.copytree(story.join.checkpoint, tmp_path / "checkpoint")
    path = str(tmp_path / "checkpoint" / "state")
    changes = {
        "content": {"content": "concat(substring(content, 1, length(content) - 1), X'01')"},
        "header": {"header": "replace(header, 'rows_in', 'rows_out')"},
        "rows": {
            "tables": "transform(tables, t -> named_struct('name', t.name, 'rows', 0L, 'bytes', t.bytes, "
            "'columns', t.columns))"
        },
        "columns": {
            "tables": "transform(tables, t -> named_struct('name', t.name, 'rows', t.rows, 'bytes', t.bytes, "
            "'columns', replace(t.columns, 'double', 'bigint')))"
        },
    }
    if damage in changes:
        DeltaTable.forPath(story.spark, path).update(set=changes[damage])
    elif damage == "files":
        for file in (tmp_path / "checkpoint" / "state").rglob("*.parquet"):
            if "_delta_log" not in str(file):
                file.unlink()
    else:
        newest = max((tmp_path / "checkpoint" / "snapshots").glob("*.json"))
        newest.write_text(newest.read_text().replace('"format": 2', '"format": 99', 1))
        (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    said = {
        "content": "truncated or damaged",
        "header": "are not those that were written",
        "rows": "are not those that were written",
        "columns": "are not those that were written",
        "files": "vacuumed or deleted",
        "index": "upgrade cojoin",
    }
    new = story.other("changed", 2)
    with refused(said[damage], "restore another" if damage != "index" else "newer", kind=cj.CheckpointError):
        new.start(restore_from=cj.Snapshot(str(tmp_path / "checkpoint")))
    assert not new.folder.exists()


def test_an_operator_that_does_not_take_the_state_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()

    def load_parts(*_: Any, keeps_counts: bool) -> None:
        assert keeps_counts
        seen.append("loaded")
        raise cj.CheckpointError

    operator = SimpleNamespace(load_parts=load_parts, close=lambda: seen.append("closed"))
    plan: Any = SimpleNamespace(create_operator=lambda: operator)
    state: Any = SimpleNamespace(tables={}, headers=[])
    monkeypatch.setattr(restore.rescaling, "merged_header", lambda _: {})
    with pytest.raises(cj.CheckpointError):
        _check_states(plan, state)
    assert seen == ["loaded", "closed"]
