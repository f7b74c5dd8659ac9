"""A table that changes each day, and a bounded run a day without a drain: a commit that was read holds no time back."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from tests.seeds import SEED, drawn
from tests.spark.refused import refused
from tests.spark.sources.changed_tables import KEYS, MINUTE, READERS, ChangedTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COMMITTED = "_commit_timestamp"
RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
ORDERS = pa.schema([("trade_id", pa.int64()), ("customer_id", pa.int64()), ("event_time", pa.timestamp("us", "UTC"))])
DDL = "trade_id bigint, customer_id bigint, event_time timestamp"


class DailyTable(ChangedTable):
    """A table of customers, and orders as files."""

    def __init__(self, spark: SparkSession, folder: Path, layout: str = "") -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(spark, folder, random.Random(SEED), layout=layout)
        self.through = self.promised = 0
        (folder / "orders").mkdir()

    def trade(self, *moments: int) -> None:
        """Write a file with an order of each customer at each time."""
        pairs = [(key, moment) for moment in moments for key in range(KEYS)]
        fresh = [(len(self.traded) + place, *pair) for place, pair in enumerate(pairs)]
        self.traded += fresh
        columns = [
            pa.array(each, pa.int64()).cast(field.type)
            for each, field in zip(zip(*fresh, strict=True), ORDERS, strict=True)
        ]
        pq.write_table(
            pa.Table.from_arrays(columns, schema=ORDERS), self.folder / f"orders/{len(self.traded):05d}.parquet"
        )

    def day(self, *changes: str) -> None:
        """Make commits; then write orders around all commits since the last day, and some of an hour later."""
        for change in changes:
            self.spark.sql(change.format(self.customers))
        commits = [moment for _, moment in self.commits()]
        moments = {moment + step for moment in commits for step in (-1_000, 0, 1_000)}
        self.trade(*sorted(moment for moment in moments if moment > self.through))
        self.through = commits[-1]
        self.trade(self.begin + 60 * MINUTE)

    def plainly(self, key_groups: int = 2, location: str = "", **options: Any) -> cj.Joined:
        """Return the join as its plainest user builds it: nothing is set that has to do with time."""
        customers = cj.sources.delta(location or f"{self.folder}/customers", changes=True, options=options)
        orders = cj.sources.files(f"{self.folder}/orders", "parquet", schema=DDL)
        pair = cj.connect(
            cj.Input(orders, "customer_id", "event_time", "orders"),
            cj.Input(customers, "customer_id", COMMITTED, "customers"),
            key_groups=key_groups,
        )
        return pair.temporal_join()

    def run(self, joined: cj.Joined, checkpoint: str, *, drain: bool, dies_at: int = -1, **options: Any) -> cj.Query:
        """Run what is there, and remember how far the table's promise reached: further, where a run starts late."""
        query = super().run(joined, checkpoint, drain=drain, dies_at=dies_at, **options)
        promise = query.progress.inputs[1].promise if query.progress is not None else None
        self.promised = 0 if promise is None else promise["watermark"]
        return query

    def due(self, *, is_promised: bool = True) -> list[tuple[int, str | None]]:
        """Return the joined rows that a run lets out, by DuckDB.

        Args:
            is_promised: Whether a run knows that no commit comes up to the newest version's time, whatever that did;
                else it only goes by the rows that it has read.
        """
        history = self.spark.sql(f"describe history {self.customers}")
        history = history if is_promised else history.where("operation != 'OPTIMIZE'")
        newest = max(row[0] for row in history.select(F.unix_micros("timestamp")).collect()) // 1_000
        expected, until = dict(self.expected(COMMITTED)), max(newest, self.promised) if is_promised else newest - 1
        return [(order, expected[order]) for order, _, moment in self.traded if moment // 1_000 <= until]

    def files(self) -> Counter[str]:
        """Return how many files of each kind the newest commit names."""
        log = max(Path(self.folder, "customers/_delta_log").glob("*.json"))
        return Counter(name for line in log.read_text().splitlines() for name in json.loads(line)) & _MANY


_MANY = Counter({"add": 1_000, "remove": 1_000, "cdc": 1_000})


def rows_of(tier: str, *keys: int) -> str:
    """Return customers as SQL's values."""
    listed = ", ".join(f"({key}L, '{tier}', current_timestamp())" for key in keys)
    return f"values {listed} s(customer_id, tier, since)"


def merge(tier: str, *keys: int) -> str:
    """Return a MERGE that changes customers, or inserts them."""
    return (
        f"merge into {{}} t using ({rows_of(tier, *keys)}) on t.customer_id = s.customer_id "
        f"when matched then update set * when not matched then insert *"
    )


def insert(tier: str, files: int, keys: int = 40) -> str:
    """Return an INSERT of customers that the table does not have, in several files."""
    fresh = f"range({KEYS - 1}, {KEYS - 1 + keys})"
    return f"insert into {{}} select /*+ repartition({files}) */ id, '{tier}', current_timestamp() from {fresh}"


def update(tier: str, condition: str = "true") -> str:
    """Return an UPDATE."""
    return f"update {{}} set tier = '{tier}' where {condition}"


def position(checkpoint: Path) -> tuple[int, int]:
    """Return where the query stands in the table: the version and the index."""
    newest = max(checkpoint.glob("spark/offsets/[0-9]*"), key=lambda path: int(path.name))
    found = json.loads(newest.read_text().splitlines()[3])
    assert not found["isStartingVersion"]
    return found["reservoirVersion"], found["index"]


@pytest.mark.slow  # The five days of ``tests/spark/query/test_input_progress.py`` have a MERGE on every push.
@pytest.mark.parametrize("reader", drawn(READERS, 1), indirect=True)
def test_a_table_with_a_merge_each_day_lets_each_days_rows_out(
    spark: SparkSession, tmp_path: Path, reader: str
) -> None:
    """The plainest job there is."""
    table = DailyTable(spark, tmp_path)
    table.insert(0, 1)
    table.starts()
    for day in range(3):
        table.day(*([merge(f"day {day}", 1, 2)] if day else []))
        table.run(table.plainly(), "daily", drain=False)
        assert table.rows("daily") == table.due(), f"day {day}, at {position(tmp_path / 'daily')}"
    newest = table.commits()[-1][0]
    # Delta's own source stays at the last file of a commit with change files.
    assert position(tmp_path / "daily") == ((newest, 0) if reader == "spark" else (newest + 1, -1))


PARTS = "partitioned by (customer_id)"
COMMITS: dict[str, tuple[str, list[str], dict[str, int]]] = {
    "insert": ("", [insert("new", 1)], {"add": 1}),
    "insert of three files": ("", [insert("new", 3)], {"add": 3}),
    "update": ("", [update("new", "customer_id = 1")], {"add": 1, "remove": 1, "cdc": 1}),
    "delete": ("", ["delete from {} where customer_id = 1"], {"add": 1, "remove": 1, "cdc": 1}),
    "delete of files": (PARTS, ["delete from {} where customer_id < 2"], {"remove": 2}),
    "merge": ("", [merge("new", 1, 3)], {"add": 1, "remove": 1, "cdc": 1}),
    "overwrite": (PARTS, [f"insert overwrite {{}} {rows_of('new', 0, 3)}"], {"add": 2, "remove": 3}),
    "two change files": (PARTS, [update("new", "customer_id < 2")], {"add": 2, "remove": 2, "cdc": 2}),
    "fifty change files": (
        PARTS,
        ["insert into {} select id, 'more', current_timestamp() from range(3, 50)", update("new")],
        {"add": 50, "remove": 50, "cdc": 50},
    ),
    "two commits": ("", [update("one"), update("two", "customer_id = 2")], {"add": 1, "remove": 1, "cdc": 1}),
    "changes, then an insert": ("", [update("one"), insert("two", 2)], {"add": 2}),
    "changes, then a rewrite": ("", [insert("one", 2), update("two"), "optimize {}"], {"add": 1, "remove": 2}),
}
"""How the customers are laid out, what is committed on a day, and which files the last of these commits names."""


@pytest.mark.slow  # Two runs each.
@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    ("kind", "limit", "reader"), drawn(product(COMMITS, (1, 1_000), READERS), 1), indirect=["reader"]
)
def test_what_was_read_to_its_end_holds_nothing_whatever_the_commit(
    spark: SparkSession, tmp_path: Path, kind: str, limit: int
) -> None:
    layout, changes, files = COMMITS[kind]
    table = DailyTable(spark, tmp_path, layout)
    table.insert(0, 1, 2)
    table.starts()
    table.day()
    table.run(table.plainly(maxFilesPerTrigger=limit), "daily", drain=False)
    table.day(*changes)
    assert table.files() == files
    query = table.run(table.plainly(maxFilesPerTrigger=limit), "daily", drain=False)
    assert table.rows("daily") == table.due(), f"at {position(tmp_path / 'daily')}"
    assert query.progress is not None
    assert sum(each.late_applied + each.rejected.get("late", 0) for each in query.progress.inputs) == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["a stream", "options"])
def test_a_feed_that_the_user_opens_holds_nothing_either(spark: SparkSession, tmp_path: Path, way: str) -> None:
    table = DailyTable(spark, tmp_path)
    options = {"readChangeFeed": "true", "startingVersion": "0"}
    place = f"{tmp_path}/customers"
    table.insert(0, 1)
    for day in range(2):
        table.day(*([merge(f"day {day}", 1, 2)] if day else []))
        frame = spark.readStream.format("delta").options(**options).load(place).where("_change_type != 'delete'")
        customers = frame if way == "a stream" else cj.sources.delta(place, options=options)
        orders = cj.sources.files(f"{tmp_path}/orders", "parquet", schema=DDL)
        pair = cj.connect(
            cj.Input(orders, "customer_id", "event_time", "orders"),
            cj.Input(customers, "customer_id", COMMITTED, "customers"),
            key_groups=2,
        )
        table.run(pair.asof_join(), "daily", drain=False)
        assert [row[0] for row in table.rows("daily")] == [row[0] for row in table.due(is_promised=False)], f"day {day}"


@pytest.mark.slow
def test_a_table_by_name_with_mapped_columns_holds_nothing_either(spark: SparkSession, tmp_path: Path) -> None:
    table = DailyTable(spark, tmp_path / "a folder of mine")
    spark.sql(f"alter table {table.customers} set tblproperties ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"create table daily_customers using delta location '{table.folder}/customers'")
    try:
        table.insert(0, 1)
        table.starts()
        for day in range(2):
            table.day(*([merge(f"day {day}", 1, 2)] if day else []))
            table.run(table.plainly(location="daily_customers"), "daily", drain=False)
            assert table.rows("daily") == table.due(), f"day {day}"
    finally:
        spark.sql("drop table daily_customers")


@pytest.mark.slow
@pytest.mark.parametrize("kind", drawn(["insert of three files", "overwrite"], 1))
def test_a_commit_that_is_half_read_holds_time(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    layout, changes, _ = COMMITS[kind]
    table = DailyTable(spark, tmp_path, layout)
    table.insert(0, 1, 2)
    table.starts()
    table.day()
    query = table.run(table.plainly(), "daily", drain=False)
    before = table.due()
    assert table.rows("daily") == before
    version = table.commits()[-1][0]
    table.day(*changes)
    dies_at = query.batches + 1
    table.run(table.plainly(maxFilesPerTrigger=1), "daily", drain=False, dies_at=dies_at)
    half = json.loads((tmp_path / f"daily/spark/offsets/{dies_at - 1}").read_text().splitlines()[3])
    assert (half["reservoirVersion"], half["index"]) == (version + 1, 0)
    assert table.rows("daily") == before
    table.run(table.plainly(maxFilesPerTrigger=1), "daily", drain=False)
    assert table.rows("daily") == table.due()


@pytest.fixture
def no_retention(spark: SparkSession) -> Iterator[None]:
    """Let VACUUM delete everything that the newest version does not have."""
    spark.conf.set(RETENTION_CHECK, "false")
    yield
    spark.conf.unset(RETENTION_CHECK)


@pytest.mark.slow
@pytest.mark.usefixtures("no_retention")
@pytest.mark.parametrize("reader", drawn(READERS, 1), indirect=True)
def test_change_files_that_were_read_need_not_be_there_any_more(
    spark: SparkSession, tmp_path: Path, reader: str
) -> None:
    """After VACUUM the query goes on, and so do one from its savepoint, an erased one and a written one."""
    table = DailyTable(spark, tmp_path, PARTS)
    table.insert(0, 1, 2)
    table.starts()
    table.day()
    table.run(table.plainly(), "daily", drain=False)
    table.day(merge("old", 1, 2))
    query = table.run(table.plainly(), "daily", drain=False)
    savepoint = query.savepoint()
    newest = table.commits()[-1][0]
    assert position(tmp_path / "daily") == ((newest, 1) if reader == "spark" else (newest + 1, -1))
    forks = {
        "restored": savepoint,
        "erased": cj.erase(spark, tmp_path / "daily", [3], tmp_path / "without").snapshot,
        "written": cj.write_state(spark, tmp_path / "like", table.plainly(3), from_existing=savepoint),
    }
    table.due()  # VACUUM deletes the files of the versions so far
    spark.sql(f"vacuum {table.customers} retain 0 hours")
    assert not list(tmp_path.glob("customers/_change_data/**/*.parquet"))
    before, written = table.rows("daily"), len(table.traded)
    table.day(update("new", "customer_id = 1"))
    for name, fork in forks.items():
        table.run(table.plainly(3), name, drain=False, restore_from=fork)
        expected = table.due()
        if name == "erased":
            waited = {order for order, key, _ in table.traded[:written] if key == 3} - {row[0] for row in before}
            expected = [row for row in expected if row[0] not in waited]
        assert sorted([*before, *table.rows(name)]) == expected, name
    table.run(table.plainly(), "daily", drain=False)
    assert table.rows("daily") == table.due()
    # Its newest snapshot is at the position whose change files are gone.
    steps = list(cj.debug(tmp_path / "daily", table.plainly(), key=1).steps())
    assert {row["trade_id"] for step in steps for row in step.output.to_pylist()} <= {row[0] for row in table.due()}


@pytest.mark.slow
@pytest.mark.usefixtures("no_retention")
def test_a_half_read_commit_whose_files_are_gone_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = DailyTable(spark, tmp_path)
    table.insert(0, 1, 2)
    table.starts()
    table.day()
    query = table.run(table.plainly(), "daily", drain=False)
    table.day(insert("three files", 3))
    version = table.commits()[-1][0]
    table.run(table.plainly(maxFilesPerTrigger=1), "daily", drain=False, dies_at=query.batches + 1)
    spark.sql(f"optimize {table.customers}")
    spark.sql(f"vacuum {table.customers} retain 0 hours")
    before = {each: each.read_bytes() for each in tmp_path.glob("daily/**/*") if each.is_file()}
    with refused(f"its changes of version {version} can't be read", "VACUUM", kind=cj.CheckpointError):
        table.run(table.plainly(maxFilesPerTrigger=1), "daily", drain=False)
    assert {each: each.read_bytes() for each in tmp_path.glob("daily/**/*") if each.is_file()} == before
