"""A Delta table as a static side of a stream: which version a row finds, whatever fails, and what is refused."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.checkpoints.manifest import Manifests
from cojoin.session.sessions import open_store
from cojoin.spark.query import table_loads
from cojoin.spark.query.batch_writer import BatchWriter
from tests.seeds import drawn
from tests.spark.functions import LookUp
from tests.spark.refused import refused
from tests.spark.saved import DRAIN
from tests.spark.shop import Shop, await_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOW = "1 millisecond"
"""A refresh that is due at each look."""

OLD = ((1, 5, "none"), (2, 5, "silver"), (2, 3, "gold"), (4, 90, "late"))
NEW = ((1, 5, "gold"), (3, 7, "silver"), (2, 6, None))


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path)


def table_of(query: cj.Query) -> Any:
    assert query.progress is not None
    return query.progress.inputs[1].table


@pytest.mark.slow
def test_rows_find_the_version_that_was_loaded_when_they_came_out(shop: Shop) -> None:
    shop.register(*OLD, (None, 1, "no key"))
    shop.sell((1, 10), (9, 11), (2, 12))
    with pytest.warns(UserWarning, match="1 key has several rows in version 0 of the table, such as käufer=2 with 2"):
        first = shop.run(shop.connect().asof_join())
    assert table_of(first)["version"] == 0
    report = first.progress
    assert report is not None
    # The last trade waits for the trades' watermark, and the table holds nothing.
    assert (report.inputs[1].status, report.holding_input) == ("finished", "trades")
    assert report.inputs[1].rejected == {"null_key": 1}
    assert "'customers' is version 0 of its table, loaded at 20" in report.ending()
    shop.register(*NEW)
    shop.sell((3, 13), (4, 14))
    last = shop.run(shop.connect(refresh=NOW).asof_join(), trigger=DRAIN)
    assert table_of(last)["version"] == 1
    assert shop.rows() == shop.found({0: 0, 1: 0, 2: 1, 3: 1, 4: 1})


@pytest.mark.slow  # A run that dies, and others that go on.
def test_a_refresh_that_died_halfway_is_written_anew_and_the_state_goes_on_elsewhere(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.register(*OLD[:2])
    shop.sell((1, 10), (2, 11))
    dies(monkeypatch, table_loads, "closing_messages")
    with pytest.raises(DiedError):
        shop.run(shop.connect(timed=True).temporal_join())
    assert len(shop.control()) == 1
    monkeypatch.undo()
    savepoint = shop.run(shop.connect(timed=True, refresh=NOW).temporal_join()).savepoint()
    # Written anew, with its closing messages, as the first; nothing is left of the half.
    assert [each.count("-") for each in shop.control()] == [2, 2]
    shop.register(*NEW)
    shop.sell((3, 13), (1, 15))
    # The state has version 0, and goes on with it in other key groups until a refresh is due.
    shop.run(shop.connect(5, timed=True).temporal_join(), "fork", restore_from=savepoint, trigger=DRAIN)
    expected = shop.found({0: 0, 1: 0, 2: 0, 3: 0}, timed=True)
    assert sorted([*shop.rows(), *shop.rows("fork")], key=str) == expected


def test_what_can_not_be_a_static_side_is_refused(shop: Shop) -> None:
    spark = shop.spark
    shop.register(*OLD)
    shop.sell((1, 10))
    trades, customers = shop.inputs()
    with refused("'customers' is a static side, and it is on the left", "make the stream the left input"):
        cj.connect(cj.Input(customers.source, "käufer", "since", "customers"), trades)
    bare = cj.Input(spark.read.format("delta").load(shop.customers), "käufer", "since", "customers")
    with refused("'customers' is static", "cojoin.sources.delta(..., static=True)"):
        cj.connect(trades, bare)
    spark.readStream.format("delta").load(shop.customers).createOrReplaceTempView("streamed_customers")
    with refused("static=True names a table, and this is a view of a stream"):
        cj.connect(trades, cj.Input(cj.sources.delta("streamed_customers", static=True), "käufer", None))
    spark.sql("select 1 id").createOrReplaceTempView("plain_customers")
    with refused("a view, and a table of another format, has no versions"):
        cj.connect(trades, cj.Input(cj.sources.delta("plain_customers", static=True), "käufer", None))
    with refused("there is none"):
        cj.connect(trades, cj.Input(cj.sources.delta(f"{shop.folder}/nowhere", static=True), "käufer", None))
    with refused("version 7 can't be read"):
        shop.connect(static=True, options={"versionAsOf": 7})
    pair, timed = shop.connect(refresh=NOW), shop.connect(refresh=NOW, timed=True)
    with refused("refresh: interval_join takes no refresh", "leave refresh= out"):
        timed.interval_join("-1 second", "1 second")
    with refused("refresh: process takes no refresh", "states can't be taken back"):
        pair.process(LookUp(), "trade_id long, tier string", order="arrival")
    with refused("tolerance: input 'customers' has no event time"):
        pair.asof_join(tolerance="1 hour")
    with refused("direction: input 'customers' has no event time"):
        pair.asof_join(direction="forward")
    with refused("retention: input 'customers' has no event time"):
        pair.temporal_join(retention="1 hour")
    with refused("has no event time, by which this join", kind=cj.SchemaError):
        shop.connect().interval_join("-1 second", "1 second")
    with refused("to_dataframe(): input 'customers' is a static side", "use start()"):
        pair.asof_join().to_dataframe()
    static = cj.Input(spark.read.parquet(f"{shop.folder}/trades"), "buyer.id", "event_time", "trades")
    with refused("refresh: input 'customers' is not joined with a stream"):
        cj.connect(static, cj.Input(cj.sources.delta(shop.customers, refresh=NOW), "käufer", None, "customers"))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"static": "yes"}, ("static: expected True or False",)),
        ({"refresh": "0 seconds"}, ("refresh: expected a time above zero",)),
        ({"refresh": 5}, ("refresh",)),
        ({"static": True, "options": {"maxFilesPerTrigger": 1}}, ("maxFilesPerTrigger", "for streams")),
        ({"static": True, "options": {"timestampAsOf": "2026-01-01"}}, ("timestampAsOf", "name the version")),
        ({"static": True, "options": {"versionAsOf": "new"}}, ("versionAsOf", "the number of a version")),
        ({"refresh": "1 hour", "options": {"versionAsOf": 3}}, ("versionAsOf pins one version",)),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], parts: tuple[str, ...]) -> None:
    with refused(*parts):
        cj.sources.delta("/lake/customers", **arguments)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:input 'customers'. 1 key has several rows")
@pytest.mark.parametrize("operation", drawn(["asof", "temporal", "interval", "by time", "by arrival"], 1))
def test_each_operation_gives_the_rows_of_duckdb(shop: Shop, operation: str) -> None:
    timed = operation in {"interval", "by time", "temporal"}
    shop.register(*OLD)
    for second in range(0, 12, 3):
        shop.sell(*((key, second + key) for key in (1, 2, 3)))
    pair = shop.connect(timed=timed)
    joined = {
        "asof": pair.asof_join,
        "temporal": pair.temporal_join,
        "interval": lambda: pair.interval_join("-1 minute", "0 seconds"),
        "by time": lambda: pair.process(LookUp(), "trade_id long, tier string"),
        "by arrival": lambda: pair.process(LookUp(), "trade_id long, tier string", order="arrival"),
    }[operation]()
    shop.run(joined, trigger=DRAIN)
    if operation == "interval":
        pairs = [
            (trade, tier)
            for trade, buyer, second in shop.trades
            for key, since, tier in OLD
            if key == buyer and since <= second
        ]
        assert shop.rows() == sorted(pairs, key=str)
    else:
        assert shop.rows() == shop.found({trade: 0 for trade, _, _ in shop.trades}, timed=timed)


@pytest.mark.slow
def test_a_live_query_refreshes_between_batches_and_keeps_no_old_files(shop: Shop) -> None:
    shop.register(*OLD[:2])
    shop.sell((1, 10))
    joined = shop.connect(refresh=NOW).asof_join()
    query = shop.start(joined, trigger=cj.Trigger.processing_time("0 seconds"))
    seen = []
    for number in range(1, 5):
        await_rows(query, number)
        shop.register((1, 0, f"tier {number}"))
        shop.sell((1, 10 + number))
        await_rows(query, number + 1)
        seen.append(table_of(query)["version"])
        assert len(shop.control()) <= 4
    query.stop()
    # Each look is after a batch, so a version is in force from the batch after it at the latest.
    assert seen == sorted(seen)
    assert seen[-1] >= 3
    tiers = [tier for _, tier in shop.rows()]
    assert tiers[0] == "none"
    assert tiers[1:] == sorted(tiers[1:])


@pytest.mark.slow
def test_another_version_than_that_of_the_state_is_refused(shop: Shop) -> None:
    for version in (OLD[:2], OLD[1:]):
        shop.register(*version)
    shop.sell((1, 10))
    zero, one = ({"static": True, "options": {"versionAsOf": version}} for version in (0, 1))
    shop.run(shop.connect(**zero).asof_join())
    with refused("versionAsOf is 1, and the state has version 0 of the table", kind=cj.CheckpointError):
        shop.run(shop.connect(**one).asof_join())
    shop.sell((1, 11))
    assert table_of(shop.run(shop.connect(**zero).asof_join()))["version"] == 0


@pytest.mark.slow
def test_a_table_that_is_not_what_it_was_is_told_and_the_state_goes_on(shop: Shop) -> None:
    spark = shop.spark
    shop.register(*OLD[:2])
    shop.sell((1, 10), (2, 20))
    shop.run(shop.connect().asof_join())
    # A column more is left out, one less is told; a version that nothing refreshes is not looked at.
    spark.sql(f"alter table delta.`{shop.customers}` add column (more string)")
    with refused("has the column 'more' more; start(..., evolve=True) takes it up", kind=cj.CheckpointError):
        shop.run(shop.connect(refresh=NOW).asof_join())
    spark.createDataFrame([(1, "gold")], "`käufer` bigint, tier string").write.format("delta").mode("overwrite").option(
        "overwriteSchema", "true"
    ).save(shop.customers)
    with pytest.raises(cj.CheckpointError, match="has lost column 'since'; add it again: to a table with ") as caught:
        shop.run(shop.connect().asof_join())
    code = str(caught.value).partition("to a table with ")[2].partition(", for files")[0]
    spark.sql(code.replace("...", f"delta.`{shop.customers}`"))
    shop.run(shop.connect().asof_join())
    shutil.rmtree(shop.customers)
    with refused("there is none"):
        shop.run(shop.connect().asof_join())
    shop.register(*NEW)
    with refused("is another table than the one that the query has read", kind=cj.CheckpointError):
        shop.run(shop.connect().asof_join())


POINTS: dict[str, tuple[Any, str, int]] = {
    "the first load is half written": (table_loads, "closing_messages", 1),
    "the first load is written": (table_loads.TableLoads, "_write", -1),
    "the batch of the first load counts": (BatchWriter, "run", -1),
    "a refresh is half written": (table_loads, "closing_messages", 2),
    "a refresh is written": (table_loads.TableLoads, "_write", -2),
    "the batch of the refresh runs": (BatchWriter, "run", 3),
    "the batch of the refresh counts": (BatchWriter, "run", -3),
}
"""Where a run dies: before (n) or after (-n) the n-th call."""


class DiedError(Exception):
    """What nothing in cojoin knows."""


def dies(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int = 1) -> None:
    """Have a call fail."""
    real, calls = getattr(owner, name), iter(range(1, 100))

    def mortal(*arguments: Any, **options: Any) -> Any:
        number = next(calls)
        if number == at:
            raise DiedError
        found = real(*arguments, **options)
        if number == -at:
            raise DiedError
        return found

    monkeypatch.setattr(owner, name, mortal)


@pytest.mark.slow
@pytest.mark.parametrize("point", drawn(POINTS, 1))
def test_a_run_that_dies_anywhere_is_exact(shop: Shop, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    shop.register(*OLD[:2])
    shop.sell((1, 10), (2, 11))
    shop.sell((1, 12), (3, 13))
    dies(monkeypatch, *POINTS[point])
    attempt(shop)
    shop.register(*NEW)
    shop.sell((1, 14), (3, 15))
    attempt(shop)
    monkeypatch.undo()
    shop.run(shop.connect(refresh=NOW).asof_join())
    shop.sell((1, 16))
    shop.run(shop.connect(refresh=NOW).asof_join(), trigger=DRAIN)
    versions = loaded_by(shop)
    assert shop.rows() == shop.found(versions)
    # A first load that no batch was planned with is not pinned yet: the next start takes the newest version.
    assert {*versions.values()} == ({1} if point.startswith("the first load") else {0, 1})


def attempt(shop: Shop) -> None:
    try:
        shop.run(shop.connect(refresh=NOW).asof_join())
    except (DiedError, cj.CojoinError):
        return


def loaded_by(shop: Shop) -> dict[int, int]:
    """Return the version with which each trade came out, by the batches' manifests and the output's transactions."""
    frame = shop.spark.read.format("delta")
    out = f"{shop.folder}/query/out [1]"
    manifests = Manifests(open_store(shop.spark, f"{shop.folder}/query/checkpoint [1]"))
    found: dict[int, int] = {}
    for batch_id in manifests.batch_ids():
        manifest = manifests.read(batch_id)
        assert manifest is not None
        written = manifest.outputs["output"]
        if written["batch_id"] != batch_id:
            continue
        rows = frame.option("versionAsOf", written["version"]).load(out).select("trade_id").collect()
        table = manifest.report.inputs[1].table
        assert table is not None
        for row in rows:
            found.setdefault(row.trade_id, table["version"])
    return found


@pytest.mark.slow
def test_a_driver_that_is_killed_in_a_refresh_loses_nothing(shop: Shop) -> None:
    shop.register(*OLD[:2])
    shop.sell((1, 10), (2, 11))
    shop.run(shop.connect(refresh=NOW).asof_join())
    shop.register(*NEW)
    shop.sell((1, 14), (3, 15))
    program = [sys.executable, "-m", "tests.spark.killed_refresh", str(shop.folder)]
    killed = subprocess.run(program, check=False, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert len(shop.control()) >= 1
    shop.run(shop.connect(refresh=NOW).asof_join(), trigger=DRAIN)
    assert shop.rows() == shop.found(loaded_by(shop))
