"""The changes of a real Delta table as versions: equal to the table as of each trade, by DuckDB, whatever happens."""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.delta.table_log import TableLog
from cojoin.delta.table_stream import Limits, Position
from cojoin.spark.query import start
from cojoin.spark.sources import delta_changes
from cojoin.storage.local_store import LocalStore
from tests.delta.tables import PLAIN, by_hand, commit, features
from tests.delta.test_table_stream import ID, added, column, metadata_of, removed, stream_of
from tests.seeds import SEED, drawn
from tests.spark.refused import refused
from tests.spark.sources.changed_tables import A_DAY, FEED, HAS_LIMITS, MINUTE, READERS, ChangedTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COMMITTED = "_commit_timestamp"
RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
ROUNDS = 12


def moments(table: ChangedTable) -> list[int]:
    """Return times before, at and after each commit since the query began, those of the columns' times too."""
    found = {moment + step for _, moment in table.commits() for step in (-1_000, 0, 1_000)}
    return sorted(found | {table.begin + minute * MINUTE for minute in range(-6, 8)})


@pytest.mark.slow  # Three runs; test_table_histories has the same on the engine.
def test_a_snapshot_is_loaded_then_changes_are_joined_as_of_their_commits(spark: SparkSession, tmp_path: Path) -> None:
    """Killed inside the snapshot, changed, restored into other key groups, and drained."""
    table = ChangedTable(spark, tmp_path, random.Random(SEED))
    for key in range(3):
        table.insert(key)
    table.starts()
    table.trade(table.begin - 1_000 * MINUTE, table.begin - 999 * MINUTE)
    query = table.run(table.joined(COMMITTED, 2), "old", drain=False, dies_at=1)
    assert query.progress is not None
    # The trades of long ago wait until the snapshot is in the state.
    assert table.rows("old") == []
    assert query.progress.inputs[1].snapshot_rows == (1, 3)
    assert "customers: 1 of 3 rows of the snapshot read" in str(query.progress)
    query = table.run(table.joined(COMMITTED, 2), "old", drain=False)
    # The later ones wait for the trades' own watermark.
    assert len(table.rows("old")) == 4
    assert query.progress is not None
    assert query.progress.inputs[1].snapshot_rows is None
    savepoint = query.savepoint()
    kinds = [table.change() for _ in range(4)]
    table.trade(*moments(table))
    query = table.run(table.joined(COMMITTED, 3), "new", drain=True, restore_from=savepoint)
    assert table.rows("old", "new") == table.expected(COMMITTED), f"seed {SEED}, {kinds}"
    assert query.progress is not None
    assert query.progress.is_conserved
    assert sum(each.late_applied + each.rejected.get("late", 0) for each in query.progress.inputs) == 0


@pytest.mark.slow  # test_table_histories has random ones on the engine.
def test_a_row_that_is_updated_to_no_time_or_one_too_far_ahead_keeps_its_former_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = ChangedTable(spark, tmp_path, random.Random(SEED))
    for key in range(4):
        table.insert(key)
    table.starts()
    table.trade(table.begin - 1_000 * MINUTE)
    table.run(table.joined("since", 2), "kept", drain=False)
    wrong, change = "current_timestamp() + interval 3 days", f"update {table.customers} set tier = 'wrong', since ="
    spark.sql(f"{change} null where customer_id = 0")
    spark.sql(f"{change} {wrong} where customer_id < 3 and customer_id > 0")
    spark.sql(f"delete from {table.customers} where customer_id = 1")
    spark.sql(f"{change} current_timestamp() where customer_id = 2")
    # Neither MERGE nor an overwrite, whose changes are in the data files, is another matter.
    spark.sql(
        f"merge into {table.customers} t using (select 3L customer_id) s on t.customer_id = s.customer_id "
        f"when matched then update set tier = 'wrong', since = null"
    )
    table.run(table.joined("since", 2), "kept", drain=False)
    rows = "values (0L, 'wrong', null), (2L, 'new', current_timestamp()), (3L, 'wrong', null)"
    spark.sql(f"insert overwrite {table.customers} {rows}")
    table.trade(*moments(table))
    query = table.run(table.joined("since", 2), "kept", drain=True)
    assert table.rows("kept") == table.expected("since")
    assert query.progress is not None
    assert query.progress.is_conserved
    customers = query.progress.inputs[1]
    assert dict(customers.rejected) == {"null_event_time": 4, "too_far_ahead": 2}
    # Those of the overwrite replace rows that were rejected themselves.
    assert customers.unchanged == 6


@pytest.mark.slow
@HAS_LIMITS
def test_a_start_that_fails_before_its_first_batch_keeps_the_snapshot_of_its_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ChangedTable(spark, tmp_path, random.Random(SEED))
    for key in range(3):
        table.insert(key)
    table.trade(table.begin - 1_000 * MINUTE)
    table.starts()

    def fail(*arguments: object) -> None:
        raise OSError(len(arguments))

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(start, "_run", fail)
            with pytest.raises(OSError, match="3"):
                table.run(table.joined(COMMITTED, 2), "late", drain=False)
        table.change()
    table.trade(*moments(table))
    table.run(table.joined(COMMITTED, 2), "late", drain=True)
    assert table.rows("late") == table.expected(COMMITTED), f"seed {SEED}"


def test_a_snapshot_that_is_gone_before_the_first_batch_is_the_present_one_with_a_warning(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = ChangedTable(spark, tmp_path, random.Random(SEED))
    table.insert(0, 1)
    source = cj.sources.delta(f"{tmp_path}/customers", changes=True)
    begun, told = source.begun_with(spark, None, is_direct=True)
    assert told is None
    known = begun.recognised(spark, "input 'customers'", None)

    def again(*, is_direct: bool = True) -> tuple[int | None, str | None]:
        found, told = source.begun_with(spark, known, is_direct=is_direct)
        return found.snapshot_version, told

    assert again() == (1, None)
    spark.sql(f"optimize {table.customers}")
    assert again(is_direct=False)[1] is None
    table.insert(2)
    assert again() == (1, None)
    _, told = again(is_direct=False)
    assert str(told).startswith(
        "the first start of this query, which read nothing, found version 1 of changes of delta"
    )
    assert ", without the rows that were replaced or deleted between the two: Delta's own source" in str(told)
    spark.sql(f"delete from {table.customers}")
    for file in (tmp_path / "customers").glob("*.parquet"):
        file.unlink()
    version, told = again()
    assert version != 1
    assert str(told).endswith("files or commits of version 1, or of a later one, are gone")


def test_a_snapshot_from_before_deletion_vectors_is_not_begun_with(tmp_path: Path) -> None:
    by_hand(tmp_path, properties={"delta.enableChangeDataFeed": "true"})
    commit(tmp_path, 1, {"protocol": features("changeDataFeed", reader=["deletionVectors"])})
    commit(tmp_path, 2, {"protocol": PLAIN})
    log = TableLog(LocalStore(str(tmp_path)))
    table = log.at(2)
    why = [delta_changes._why_unreadable_since(log, first, table, is_direct=True) for first in range(3)]
    assert why == [*["in version 1 its feature 'deletionVectors' needs Delta's own source"] * 2, None]
    assert delta_changes._why_unreadable_since(log, 0, table) is None


def test_a_column_that_was_added_and_dropped_again_does_not_end_the_changes(tmp_path: Path) -> None:
    """Whether a table's columns fit is one rule for the check before the start and for the stream."""
    properties = {"delta.enableChangeDataFeed": "true"}
    by_hand(tmp_path, properties=properties)
    commit(tmp_path, 1, metadata_of(column("note"), properties=properties), added("a"))
    commit(tmp_path, 2, metadata_of(properties=properties), removed("a"), added("b"))
    log = TableLog(LocalStore(str(tmp_path)))
    assert delta_changes._why_unreadable_since(log, 1, log.at(2)) is None
    assert stream_of(tmp_path, None).next(Position(ID, 1), 2, Limits()) == Position(ID, 3)
    commit(tmp_path, 3, metadata_of(column("other"), properties=properties))
    told = "the column 'note' was dropped and 'other' was added, perhaps as its new name"
    assert delta_changes._why_unreadable_since(log, 1, log.at(3)) == f"since version 1 {told}"
    with pytest.raises(cj.QueryFailedError, match=f"since version 1, which the query reads, {told}; start a new query"):
        stream_of(tmp_path, None).next(Position(ID, 1), 3, Limits())


@pytest.mark.parametrize("layout", ["", ", 'delta.enableInCommitTimestamps' = 'true'"])
def test_times_of_changes_are_those_of_deltas_own_feed(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    folder, draws, hour_ago = tmp_path / "table", random.Random(SEED), int(time.time()) - 3_600
    spark.sql(f"create table delta.`{folder}` (id bigint) using delta {FEED.replace(')', layout + ')')}")
    for number in range(4):
        spark.sql(f"insert into delta.`{folder}` values ({number})")
    for file in sorted((folder / "_delta_log").glob("*.json")):
        os.utime(file, (hour_ago + draws.randrange(3),) * 2)
    # A copy, whose log Delta has not read before.
    shutil.copytree(folder, tmp_path / "copy")
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
    theirs = feed.load(f"{tmp_path}/copy").selectExpr("_commit_version", "unix_millis(_commit_timestamp)").collect()
    stream = stream_of(tmp_path / "copy", None)
    begin = Position(stream.first().table_id, 1)
    ours = stream.files(begin, stream.next(begin, 4, Limits()))
    assert {each.version: each.committed_at for each in ours} == dict(map(tuple, theirs)), f"seed {SEED}"
    assert (min(each.committed_at for each in ours) > 1_000 * (hour_ago + 60)) == bool(layout)


def test_a_table_without_its_feed_is_refused_with_the_statement(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(f"create table delta.`{tmp_path}/customers` (customer_id bigint, since timestamp) using delta")
    source = cj.sources.delta(f"{tmp_path}/customers", changes=True)
    with refused(f"ALTER TABLE delta.`{tmp_path}/customers` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"):
        source.open()
    with refused("leave the option startingVersion out"):
        cj.sources.delta(f"{tmp_path}/customers", changes=True, options={"startingVersion": 3})


@pytest.mark.slow  # Three runs; ``test_failures`` has both messages on every push.
@pytest.mark.parametrize("change", ["update {} set tier = 'new' where customer_id = 0", "delete from {}"])
def test_a_plain_stream_of_a_table_that_is_updated_ends_with_the_ways_to_read_it(
    spark: SparkSession, tmp_path: Path, change: str
) -> None:
    table = ChangedTable(spark, tmp_path, random.Random(SEED))
    table.insert(0, 1)
    table.trade(table.begin - 1_000 * MINUTE, table.begin + 1_000 * MINUTE)

    def run(source: cj.sources.Source, checkpoint: str, *, drain: bool) -> None:
        trades = cj.Input(cj.sources.delta(f"{tmp_path}/trades"), "customer_id", "event_time", "trades")
        pair = cj.connect(trades, cj.Input(source, "customer_id", "since", "customers", watermark=A_DAY), key_groups=2)
        out, trigger = cj.sinks.delta(f"{tmp_path}/out_{checkpoint}"), cj.Trigger.available_now(drain=drain)
        query = pair.temporal_join().start(output=out, checkpoint=f"{tmp_path}/{checkpoint}", trigger=trigger)
        query.await_termination()

    place = f"{tmp_path}/customers"
    run(cj.sources.delta(place), "plain", drain=False)
    spark.sql(change.format(table.customers))
    with pytest.raises(cj.QueryFailedError) as caught:
        run(cj.sources.delta(place), "plain", drain=False)
    message = str(caught.value)
    kind = "updated or deleted rows" if change.startswith("update") else "deleted rows"
    assert f"version 2 of the Delta table file:{place} has {kind}, and a stream of a table reads only what" in message
    found = re.search(r"cojoin\.sources\.delta\(.*?\)", message)
    assert found is not None
    run(eval(found[0], {"cojoin": cj}), "changes", drain=True)
    assert (4, "new") in table.rows("changes") or kind == "deleted rows"
    options = eval(message.rpartition("options=")[2])
    run(cj.sources.delta(place, options=options), "plain", drain=True)
    assert len(table.rows("plain")) == 8


@pytest.mark.slow  # A query of a dozen batches each time.
@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    ("event_time", "round_", "reader"),
    drawn(product([COMMITTED, "since", None], range(ROUNDS // 3), READERS), 1),
    indirect=["reader"],
)
def test_random_histories_give_what_duckdb_gives(
    spark: SparkSession, tmp_path: Path, event_time: str | None, round_: int
) -> None:
    seed = SEED * 1_000 + round_
    draw = random.Random(seed)
    table = ChangedTable(spark, tmp_path, draw, spans=event_time is None)
    for key in range(draw.randrange(4)):
        table.insert(key)
    table.starts()
    table.trade(table.begin - 10_000 * MINUTE)
    files = draw.randint(1, 2)
    query = table.run(table.joined(event_time, 2, files), "old", drain=False, dies_at=draw.choice([-1, 0, 1, 2]))
    kinds = [table.change() for _ in range(draw.randint(1, 4))]
    query = table.run(table.joined(event_time, 2, files), "old", drain=False, dies_at=draw.choice([-1, 1, 2, 3, 4]))
    query = table.run(table.joined(event_time, 2, files), "old", drain=False)
    kinds += [table.change() for _ in range(draw.randint(1, 3))]
    table.trade(*moments(table))
    table.run(table.joined(event_time, 3, files), "new", drain=True, restore_from=query.savepoint())
    assert table.rows("old", "new") == table.expected(event_time), f"seed {seed}, {kinds}"


@HAS_LIMITS
@pytest.mark.slow  # Five runs.
@pytest.mark.parametrize("layout", drawn(["", "partitioned by (customer_id)"], 1))
def test_a_query_of_changes_goes_on_with_either_reader(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    """Within the snapshot and within the feed; ``test_delta_stream`` has the same of tables."""
    table = ChangedTable(spark, tmp_path, random.Random(SEED), layout=layout)
    for key in range(3):
        table.insert(key)
    table.starts()
    table.trade(table.begin - 1_000 * MINUTE)
    read_by, kinds = list[set[str | None]](), list[str]()
    for dies_at, reader in zip((1, 3, 5, 7, -1), (*READERS, *READERS, "direct"), strict=True):
        is_last, reports = dies_at < 0, list[Any]()
        if is_last:
            table.trade(*moments(table))
        spark.conf.set("spark.cojoin.delta", reader)
        try:
            joined = table.joined(COMMITTED, 2)
        finally:
            spark.conf.unset("spark.cojoin.delta")
        table.run(joined, "turns", drain=is_last, dies_at=dies_at, on_progress=reports.append)
        # The first batch may have been planned by the reader before.
        read_by.append({each.reading for each in reports[-1].inputs})
        kinds += [] if is_last else [table.change(), table.change()]
    assert read_by == [{"direct"}, {"spark.cojoin.delta is spark"}] * 2 + [{"direct"}]
    assert table.rows("turns") == table.expected(COMMITTED), f"seed {SEED}, {kinds}"


DEATHS = {
    "the snapshot is half loaded": (1, -1, -1),
    "the snapshot's last rows are taken": (2, -1, -1),
    "between the snapshot and the feed": (-1, 3, -1),
    "in the feed": (-1, 4, -1),
    "in the first batch of a fork": (-1, -1, 1),
}
"""The batches at which runs die: while the snapshot is read, once there are changes, and in a fork."""


@pytest.mark.slow  # Six runs each.
@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(("point", "reader"), drawn(product(DEATHS, READERS), 1), indirect=["reader"])
def test_a_query_that_is_killed_anywhere_goes_on_and_forks_exactly(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    """With the static side's seven points these are twelve. What is loaded halfway is also restored elsewhere."""
    in_snapshot, in_feed, in_fork = DEATHS[point]
    table = ChangedTable(spark, tmp_path, random.Random(SEED))
    for key in range(3):
        table.insert(key)
    table.starts()
    table.trade(table.begin - 1_000 * MINUTE)
    table.run(table.joined(COMMITTED, 2), "old", drain=False, dies_at=in_snapshot)
    half = cj.savepoint(spark, tmp_path / "old")
    loaded_by_then = table.rows("old")
    kinds = [table.change(), table.change()]
    table.run(table.joined(COMMITTED, 2), "old", drain=False, dies_at=in_feed)
    savepoint = table.run(table.joined(COMMITTED, 2), "old", drain=False).savepoint()
    kinds.append(table.change())
    table.trade(*moments(table))
    expected, told = table.expected(COMMITTED), f"seed {SEED}, {kinds}"
    table.run(table.joined(COMMITTED, 3), "fork", drain=False, restore_from=savepoint, dies_at=in_fork)
    table.run(table.joined(COMMITTED, 3), "fork", drain=True, restore_from=savepoint)
    assert table.rows("old", "fork") == expected, told
    table.run(table.joined(COMMITTED, 5), "half", drain=True, restore_from=half)
    assert sorted([*loaded_by_then, *table.rows("half")]) == expected, told
    table.run(table.joined(COMMITTED, 2), "old", drain=True)
    assert table.rows("old") == expected, told


@pytest.fixture
def no_retention(spark: SparkSession) -> Iterator[None]:
    """Let VACUUM delete everything that the newest version does not have."""
    spark.conf.set(RETENTION_CHECK, "false")
    yield
    spark.conf.unset(RETENTION_CHECK)


def started(spark: SparkSession, folder: Path) -> ChangedTable:
    """Return a table with a query that has read two rows of it."""
    folder.mkdir()
    table = ChangedTable(spark, folder, random.Random(SEED))
    table.insert(1, 2)
    table.trade(table.begin)
    table.run(table.joined(COMMITTED, 2), "kept", drain=False)
    return table


def goes_on_not(table: ChangedTable, *told: str) -> None:
    """Check that the query is refused, and that nothing was written."""
    checkpoint = table.folder / "kept"
    before = {each: each.read_bytes() for each in checkpoint.rglob("*") if each.is_file()}
    with refused(*told, kind=cj.CheckpointError):
        table.run(table.joined(COMMITTED, 2), "kept", drain=False)
    assert {each: each.read_bytes() for each in checkpoint.rglob("*") if each.is_file()} == before


@pytest.mark.slow  # A query of its own.
@pytest.mark.usefixtures("no_retention")
def test_changes_that_were_vacuumed_are_named_before_the_start(spark: SparkSession, tmp_path: Path) -> None:
    table = started(spark, tmp_path / "vacuumed")
    # Only what is read later must be there.
    spark.sql(f"vacuum {table.customers} retain 0 hours")
    table.insert(3)
    table.insert(4)
    table.run(table.joined(COMMITTED, 2), "kept", drain=False)
    table.insert(5)
    spark.sql(f"update {table.customers} set tier = 'new' where customer_id = 1")
    spark.sql(f"optimize {table.customers}")
    table.insert(6)
    # The last one is live, and the optimised ones changed nothing.
    versions = [row[0] for row in spark.sql(f"describe history {table.customers}").collect()]
    spark.sql(f"vacuum {table.customers} retain 0 hours")
    newest = max(versions)
    goes_on_not(table, f"its changes of 2 versions ({newest - 3}, {newest - 2}) can't be read", "VACUUM", "start a new")


@pytest.mark.slow  # A query for each.
def test_a_table_whose_columns_change_is_told(spark: SparkSession, tmp_path: Path) -> None:
    def add_column(table: ChangedTable) -> None:
        spark.sql(f"alter table {table.customers} add column (more string)")
        spark.sql(f"insert into {table.customers} values (3, 'new', current_timestamp(), 'more')")

    def change_types(table: ChangedTable, *columns: str) -> None:
        frame = spark.sql(f"select {', '.join(columns)}, since from {table.customers}")
        writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.save(f"{table.folder}/customers")

    table = started(spark, tmp_path / "more")
    savepoint, built = cj.savepoint(spark, table.folder / "kept"), table.joined(COMMITTED, 2)
    add_column(table)
    with refused(
        "columns have changed since the query was built: more (missing then, string now)", "connect them again"
    ):
        table.run(built, "kept", drain=False)
    goes_on_not(table, "input 'customers' has the column 'more' more; start(..., evolve=True)", "drop it")
    table.trade(table.begin + 1_000 * MINUTE)
    table.run(table.joined(COMMITTED, 2), "fork", drain=True, restore_from=savepoint)
    assert table.rows("kept", "fork")[-1] == (7, "new")

    table = started(spark, tmp_path / "type")
    table.insert(3)
    change_types(table, "customer_id", "1 tier")
    goes_on_not(
        table, "its changes from version 2 on can't be read", "since version 2 the column 'tier' has another type"
    )
    change_types(table, "customer_id", "cast(tier as string) tier")
    goes_on_not(
        table, "its changes from version 2 on can't be read", "since version 3 the column 'tier'", "start a new query"
    )
    change_types(table, "cast(customer_id as string) customer_id", "tier")
    with refused("the key types differ", "'customer_id' of input 'customers' is string", kind=cj.SchemaError):
        table.joined(COMMITTED, 2)

    table = started(spark, tmp_path / "running")
    joined, trigger = table.joined(COMMITTED, 2), cj.Trigger.processing_time("0 seconds")
    query = joined.start(output=lambda *_: None, checkpoint=table.folder / "kept", trigger=trigger)
    add_column(table)
    # In the commit, or before it, where the stream begins again after it.
    with refused("columns", "have changed", "make the inputs and connect them again", kind=cj.QueryFailedError):
        query.await_termination(300)


@pytest.mark.slow  # A query for each table.
def test_a_query_goes_on_only_where_all_changes_are_there(spark: SparkSession, tmp_path: Path) -> None:
    table = started(spark, tmp_path / "switched off")
    spark.sql(f"alter table {table.customers} set tblproperties ('delta.enableChangeDataFeed' = 'false')")
    with refused("the table does not record its changes"):
        table.joined(COMMITTED, 2)
    table.insert(3)
    spark.sql(f"alter table {table.customers} set tblproperties ('delta.enableChangeDataFeed' = 'true')")
    goes_on_not(table, "input 'customers'", "its changes from version 2 on can't be read", "start a new query")

    table = started(spark, tmp_path / "log gone")
    for _ in range(3):
        table.insert(3)
    folder = f"{tmp_path}/log gone/customers"
    # Delta deletes old commits once there is a checkpoint of a later version.
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, folder).checkpoint()
    for version in range(4):
        for name in (f"{version:020}.json", f"{version:020}.crc"):
            Path(folder, "_delta_log", name).unlink(missing_ok=True)
            Path(folder, "_delta_log", f".{name}.crc").unlink(missing_ok=True)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    goes_on_not(table, "versions 2 to 3 are gone from the log", "rows that were changed or deleted would stay valid")

    table = started(spark, tmp_path / "replaced")
    shutil.rmtree(tmp_path / "replaced" / "customers")
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    columns = "customer_id bigint, tier string, since timestamp"
    spark.sql(f"create table {table.customers} ({columns}) using delta {FEED}")
    goes_on_not(table, "it was replaced by another", "start a new query")
