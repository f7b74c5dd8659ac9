"""The changes of a real Delta table as versions: equal to the table as of each trade, by DuckDB, whatever happens."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from tests.seeds import SEED
from tests.spark.refused import refused
from tests.spark.sources.changed_tables import FEED, MINUTE, ChangedTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COMMITTED = "_commit_timestamp"
ROUNDS = 30


def moments(table: ChangedTable) -> list[int]:
    """Return times before, at and after each commit since the query began, those of the columns' times too."""
    found = {moment + step for _, moment in table.commits() for step in (-1_000, 0, 1_000)}
    return sorted(found | {table.begin + minute * MINUTE for minute in range(-6, 8)})


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


def test_a_table_without_its_feed_is_refused_with_the_statement(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(f"create table delta.`{tmp_path}/customers` (customer_id bigint, since timestamp) using delta")
    source = cj.sources.delta(f"{tmp_path}/customers", changes=True)
    with refused(f"ALTER TABLE delta.`{tmp_path}/customers` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"):
        source.open()
    with refused("leave the option startingVersion out"):
        cj.sources.delta(f"{tmp_path}/customers", changes=True, options={"startingVersion": 3})


@pytest.mark.slow  # A query of a dozen batches each time.
@pytest.mark.parametrize("event_time", [COMMITTED, "since", None], ids=["commits", "column", "validity"])
@pytest.mark.parametrize("round_", range(ROUNDS // 3))
def test_random_histories_give_what_duckdb_gives(
    spark: SparkSession, tmp_path: Path, round_: int, event_time: str | None
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


@pytest.mark.slow  # A query for each table.
def test_a_query_goes_on_only_where_all_changes_are_there(spark: SparkSession, tmp_path: Path) -> None:
    def started(name: str) -> ChangedTable:
        (tmp_path / name).mkdir()
        table = ChangedTable(spark, tmp_path / name, random.Random(SEED))
        table.insert(1, 2)
        table.trade(table.begin)
        table.run(table.joined(COMMITTED, 2), "kept", drain=False)
        return table

    def goes_on(table: ChangedTable, *told: str) -> None:
        with refused(*told, kind=cj.CheckpointError):
            table.run(table.joined(COMMITTED, 2), "kept", drain=False)

    table = started("switched off")
    spark.sql(f"alter table {table.customers} set tblproperties ('delta.enableChangeDataFeed' = 'false')")
    with refused("the table does not record its changes"):
        table.joined(COMMITTED, 2)
    table.insert(3)
    spark.sql(f"alter table {table.customers} set tblproperties ('delta.enableChangeDataFeed' = 'true')")
    goes_on(table, "input 'customers'", "its changes from version 2 on can't be read", "start a new query")

    table = started("log gone")
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
    goes_on(table, "versions 2 to 3 are gone from the log", "rows would stay valid that were changed or deleted")

    table = started("replaced")
    shutil.rmtree(tmp_path / "replaced" / "customers")
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    columns = "customer_id bigint, tier string, since timestamp"
    spark.sql(f"create table {table.customers} ({columns}) using delta {FEED}")
    goes_on(table, "it was replaced by another", "start a new query")
