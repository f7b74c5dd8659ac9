"""A key that is taken out: no byte of its rows is left, every other key goes on, and every row is accounted for."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cojoin as cj
from cojoin.__main__ import main
from cojoin.checkpoints.lease import Lease
from cojoin.engine.state.segments import SegmentOptions
from cojoin.session.sessions import open_store
from cojoin.spark.savepoints import new_savepoint
from cojoin.spark.savepoints.erase import sql_literal
from tests.spark.refused import refused
from tests.spark.saved import DRAIN, PAUSE
from tests.spark.savepoints.decompressed import places_with

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PERSON, OTHER = "Ada Ürsula-77", "Bob`s o'key"
TRADES = "person string, event_time timestamp, trade_id bigint, note string"
CUSTOMERS = "person string, event_time timestamp, tier string"
SECRET = "in-confidence-4711"
PATTERNS = (PERSON.encode(), SECRET.encode(), json.dumps(PERSON).encode()[1:-1])
"""The key, as text and as JSON writes it, and what the person's rows alone have."""

MINUTE = 60_000_000
TIME = pa.timestamp("us", "UTC")


class Remember(cj.KeyedCoProcessFunction):
    """Keeps what it was told of a person, as a value, a list, and a timer; emits it with each trade."""

    def open(self, ctx: cj.RuntimeContext) -> None:
        week = cj.StateTtlConfig("7 days", time_domain="event_time")
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string"))
        self.notes = ctx.get_list_state(cj.ListStateDescriptor("notes", "string", ttl=week))

    def process_element1(self, trade: Any, ctx: cj.Context) -> Any:
        self.notes.add(trade.note)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 3_600_000)
        yield trade.person, trade.trade_id, f"{self.tier.value()} {len(self.notes.get())}"

    def process_element2(self, customer: Any, ctx: cj.Context) -> None:
        self.tier.update(customer.tier)

    def on_timer(self, timestamp: int, ctx: cj.Context) -> Any:
        yield ctx.get_current_key(), None, f"timer {len(self.notes.get())}"


@dataclass
class Shop:
    """Trades and versions of people, as files, and queries on them."""

    spark: SparkSession
    root: Path
    files: int = 0
    segments: SegmentOptions = field(default_factory=SegmentOptions)

    def add(self, trades: list[tuple[Any, ...]], customers: list[tuple[Any, ...]]) -> None:
        """Add a file of each; times are minutes."""
        for name, rows, ddl in (("trades", trades, TRADES), ("customers", customers, CUSTOMERS)):
            names = [each.split()[0] for each in ddl.split(", ")]
            columns = dict(zip(names, zip(*rows, strict=True), strict=True))
            columns["event_time"] = pa.array([each * MINUTE for each in columns["event_time"]], pa.int64()).cast(TIME)
            (self.root / name).mkdir(parents=True, exist_ok=True)
            pq.write_table(
                pa.table({key: [*value] if isinstance(value, tuple) else value for key, value in columns.items()}),
                self.root / name / f"{self.files:05d}.parquet",
            )
        self.files += 1

    def joined(self, kind: str, **settings: Any) -> cj.Joined:
        inputs = [
            cj.Input(
                cj.sources.files(self.root / name, "parquet", schema=ddl, options={"maxFilesPerTrigger": 1}),
                key="person",
                event_time="event_time",
                name=name,
                max_ahead=None,
                watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness("5 minutes"),
                **settings,
            )
            for name, ddl in (("trades", TRADES), ("customers", CUSTOMERS))
        ]
        pair = cj.connect(*inputs, key_groups=2)
        if kind == "asof":
            joined = pair.asof_join(suffixes=("", "_customer"))
        else:
            joined = pair.process(Remember(), "person string, trade_id bigint, told string")
        joined._plan = replace(joined.plan, segments=self.segments)
        return joined

    def run(self, kind: str, checkpoint: str, trigger: cj.Trigger = PAUSE, **options: Any) -> cj.Query:
        settings = options.pop("settings", {})
        query = self.joined(kind, **settings).start(
            output=cj.sinks.delta(self.root / "out"), checkpoint=self.root / checkpoint, trigger=trigger, **options
        )
        query.await_termination(progress=False)
        return query

    def people(self, where: str = "true") -> list[tuple[Any, ...]]:
        found = self.spark.read.format("delta").load(str(self.root / "out")).where(where)
        return sorted(tuple(row) for row in found.select("person", "trade_id").collect())


def begun(spark: SparkSession, root: Path, kind: str, segments: SegmentOptions | None = None, **options: Any) -> Shop:
    """Run a query over two files: both people have a version in force, buffered rows, and a rejected row."""
    shop = Shop(spark, root, segments=segments or SegmentOptions())
    shop.add(
        [(PERSON, 10, 1, SECRET), (OTHER, 11, 2, "x"), (PERSON, 30, 3, SECRET)],
        [(PERSON, 0, SECRET), (OTHER, 1, "gold"), (OTHER, 30, "silver")],
    )
    shop.add(
        [(PERSON, 4, 4, SECRET), (PERSON, 40, 5, SECRET), (OTHER, 41, 6, "y")],
        [(PERSON, 40, f"{SECRET}!"), (OTHER, 42, "bronze")],
    )
    shop.run(kind, "old", **options)
    return shop


@pytest.mark.slow
def test_a_person_is_in_the_old_checkpoint_and_not_in_the_new_one(spark: SparkSession, tmp_path: Path) -> None:
    begun(spark, tmp_path, "asof", SegmentOptions(0, memory_bytes=16), checkpoint_interval=1)
    assert places_with(tmp_path / "old", *PATTERNS), "the search finds it where it is"
    report = cj.read_state(spark, tmp_path / "old").report
    assert report is not None
    assert report.large_key is not None
    assert report.large_key["key"] == f"person={PERSON}"
    done = cj.erase(spark, tmp_path / "old", [PERSON], tmp_path / "without")
    assert places_with(tmp_path / "without", *PATTERNS) == []
    assert sum(done.removed.values()) == 3
    state = cj.read_state(spark, tmp_path / "without")
    assert not state.key(PERSON)
    assert state.key(OTHER)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["asof", "function"])
def test_nothing_of_a_person_is_left_and_everyone_else_goes_on(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    # Partitioned by the person, so that the names of the watermarks say the key, too.
    settings = {"partition": "person"} if kind == "function" else {}
    shop = begun(spark, tmp_path, kind, checkpoint_interval=1 if kind == "asof" else None, settings=settings)
    assert places_with(tmp_path / "old", *PATTERNS), "the search finds it where it is"
    done = cj.erase(spark, tmp_path / "old", [PERSON], tmp_path / "without")
    assert places_with(tmp_path / "without", *PATTERNS) == []
    before, after = (cj.read_state(spark, tmp_path / name) for name in ("old", "without"))
    assert after.batch_id == before.batch_id == done.batch_id
    assert after.watermark == before.watermark
    assert before.key(PERSON)
    assert not after.key(PERSON)
    assert after.key(OTHER).as_dict() == before.key(OTHER).as_dict()
    assert after.report is not None
    assert after.report.is_conserved
    assert [each.rejected.get("erased", 0) for each in after.report.inputs] == [1, 1]
    assert sum(done.removed.values()) == (3 if kind == "asof" else 7)
    found = {each.kind: each for each in done.remains}
    count = len(shop.people(f"person = '{PERSON}'"))
    assert count > 0
    assert found["output"].rows == count
    assert "keeps their paths, in the new checkpoint, too" in found["the source of 'trades'"].note
    assert str(done).startswith(f"Erased 1 key from the state of {tmp_path}/old after batch 1")
    # The query goes on with the new checkpoint, in the same output; the old one is over.
    shop.add([(OTHER, 90, 7, "z"), ("Cy", 91, 8, "w")], [("Cy", 90, "new"), (OTHER, 91, "late")])
    shop.run(kind, "new", DRAIN, restore_from=done.snapshot, checkpoint_interval=1, settings=settings)
    assert places_with(tmp_path / "new", *PATTERNS) == []
    others = [row[1] for row in shop.people("trade_id IS NOT NULL") if row[0] != PERSON]
    assert sorted(others) == [2, 6, 7, 8]
    assert len(shop.people(f"person = '{PERSON}'")) == count
    with refused("was ended for good", kind=cj.CheckpointError):
        shop.run(kind, "old", settings=settings)
    # The statements do what they say.
    for name in ("output", "rejected") if kind == "asof" else ("output",):
        assert found[name].rows == (count if name == "output" else 1)
        assert f"WHERE {'`person` = ' if name == 'output' else '(input = '}" in found[name].statements[0]
        spark.sql(found[name].statements[0])
    assert shop.people(f"person = '{PERSON}'") == []
    assert kind != "asof" or spark.read.format("delta").load(f"{tmp_path}/old/rejected").count() == 0


@pytest.mark.slow
def test_what_is_in_the_way_is_told_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = begun(spark, tmp_path, "asof", checkpoint_interval=None)
    old, into = tmp_path / "old", tmp_path / "without"
    with refused("keys: expected a list of keys", "'Bob'"):
        cj.erase(spark, old, "Bob", into)
    with pytest.raises(cj.FunctionError, match="key: column 'person': expected string, got 7"):
        cj.erase(spark, old, [7], into)
    lease = Lease.acquire(open_store(spark, str(old)))
    with refused("a query runs on checkpoint", "stop it", kind=cj.CheckpointError):
        cj.erase(spark, old, [PERSON], into)
    lease.release()
    with refused("is a checkpoint already", kind=cj.CheckpointError):
        cj.erase(spark, old, [PERSON], old)
    assert not into.exists()

    def killed(*_: Any) -> None:
        msg = "the machine went down"
        raise OSError(msg)

    with mock.patch.object(new_savepoint, "describe_written", killed), suppress(OSError):
        cj.erase(spark, old, [PERSON], into)
    with refused("was begun and not finished; write it again", kind=cj.CheckpointError):
        cj.read_state(spark, into)
    # On the command line, with two keys, one of which nobody has heard of; into the directory that was begun.
    capsys.readouterr()
    words = ["checkpoints", "erase", str(old), "--key", PERSON, "--key", "Nobody", "--into", str(into), "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["removed"] == {
        "trades, waiting for the watermark": 1,
        "customers, waiting for the watermark": 1,
        "customers, versions in force": 1,
    }
    assert [each["kind"] for each in told["remains"]][:2] == ["the old checkpoint", "output"]
    # Erased once more, of what was erased: there is nothing, which is told, and its outputs all the same.
    again = cj.erase(spark, into, [PERSON], tmp_path / "again", counts=False)
    assert not again.removed
    assert "the state had nothing of it" in str(again)
    assert [each.rows for each in again.remains if each.kind == "output"] == [None]
    assert f"{old}" in next(each.place for each in again.remains if each.kind.startswith("an earlier checkpoint"))
    assert "<p>" in again._repr_html_()
    shop.run("asof", "old", DRAIN)
    with refused("was drained", "delete the whole directory", kind=cj.CheckpointError):
        cj.erase(spark, old, [PERSON], tmp_path / "third")


def test_literals_of_keys() -> None:
    assert sql_literal("a'b\\", pa.string()) == "'a\\'b\\\\'"
    assert sql_literal(b"\x01\xff", pa.binary()) == "X'01FF'"
    assert sql_literal(True, pa.bool_()) == "true"
