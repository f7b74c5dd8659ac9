"""A table that is created without Delta is, for Delta, the one that it would have created itself."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cojoin.delta_jvm import delta_files
from cojoin.delta_jvm.delta_files import WrittenFile, is_loaded, table_log
from cojoin.delta_jvm.first_commit import create_table, is_worth_it
from cojoin.delta_jvm.transactions import TableTransactions
from cojoin.session.stores import open_store
from tests.spark.data import rows, table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string())), ("at", pa.timestamp("us", "UTC"))])
APP = "cojoin-0b8e-progress"
CHANGING = ("id", "createdTime", "timestamp", "txnId", "engineInfo", "lastUpdated", "path", "tags")


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this session have used Delta already."""
    monkeypatch.setattr(delta_files, "_LOADED", set())


def written(folder: Path, number: int) -> WrittenFile:
    folder.mkdir(exist_ok=True)
    name = f"part {number}%41-{uuid.uuid4()}.parquet" if number else f"part-{uuid.uuid4()}.parquet"
    pq.write_table(pa.table({"id": [number], "tags": [["a", None]], "at": [0]}, schema=SCHEMA), folder / name)
    return WrittenFile(name, 1, (folder / name).stat().st_size, 1_700_000_000_000, '{"numRecords": 1}')


def create(spark: SparkSession, folder: Path, name: str) -> bool:
    file = written(folder / name, 0)
    return create_table(spark, open_store(spark, str(folder)), name, SCHEMA, [file], {APP: 4}, "0b8e")


def append(spark: SparkSession, place: Path, batch_id: int) -> int:
    transactions = TableTransactions(spark, str(place), APP)
    file = written(place, 0)
    return transactions.append(SCHEMA, [file], batch_id, query_id="0b8e", is_done=lambda newest: newest >= batch_id)


def actions(place: Path) -> dict[str, Any]:
    """Return the actions of a table's first commit, by their kinds, without what differs from table to table."""

    def without(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: without(value) for name, value in node.items() if name not in CHANGING}
        return json.loads(node) if isinstance(node, str) and node.startswith("{") else node

    text = (place / "_delta_log" / f"{0:020d}.json").read_text()
    return {kind: without(value) for line in text.splitlines() for kind, value in json.loads(line).items()}


def test_its_commit_says_what_deltas_own_says(spark: SparkSession, tmp_path: Path) -> None:
    assert create(spark, tmp_path, "ours")
    append(spark, tmp_path / "theirs", 4)
    ours, theirs = actions(tmp_path / "ours"), actions(tmp_path / "theirs")
    assert ours.keys() == theirs.keys() == {"commitInfo", "protocol", "metaData", "txn", "add"}
    assert ours == theirs


def test_delta_reads_it_and_goes_on_with_it(spark: SparkSession, tmp_path: Path) -> None:
    assert create(spark, tmp_path, "ours")
    transactions = TableTransactions(spark, f"{tmp_path}/ours", APP)
    assert transactions.look()[1] == 4
    assert append(spark, tmp_path / "ours", 4) == 0, "the batch is there"
    assert append(spark, tmp_path / "ours", 5) == 1
    assert rows(table(spark, tmp_path / "ours").select("id")) == [(0,), (0,)]
    history = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}/ours`").orderBy("version").collect()
    assert [(each.operation, each.operationParameters["epochId"]) for each in history] == [
        ("STREAMING UPDATE", "4"),
        ("STREAMING UPDATE", "5"),
    ]
    assert history[0].operationMetrics["numOutputRows"] == "1"


def test_of_two_that_create_it_one_does(spark: SparkSession, tmp_path: Path) -> None:
    assert create(spark, tmp_path, "ours")
    before = (tmp_path / "ours" / "_delta_log" / f"{0:020d}.json").read_bytes()
    assert not create(spark, tmp_path, "ours")
    append(spark, tmp_path / "theirs", 4)
    assert not create(spark, tmp_path, "theirs")
    assert (tmp_path / "ours" / "_delta_log" / f"{0:020d}.json").read_bytes() == before


@pytest.mark.usefixtures("unloaded")
def test_it_is_left_to_delta_where_that_is_loaded_or_may_do_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    store = open_store(spark, str(tmp_path))
    assert is_worth_it(spark, store)
    name = "spark.databricks.delta.properties.defaults.enableDeletionVectors"
    spark.conf.set(name, "true")
    try:
        assert not is_worth_it(spark, store)
    finally:
        spark.conf.unset(name)
    table_log(spark, f"{tmp_path}/any")
    assert is_loaded(spark)
    assert not is_worth_it(spark, store)


@pytest.mark.usefixtures("unloaded")
def test_a_look_for_a_table_that_is_not_there_does_not_load_delta(spark: SparkSession, tmp_path: Path) -> None:
    transactions = TableTransactions(spark, f"{tmp_path}/ours", APP)
    assert transactions.look() == (None, -1)
    assert not is_loaded(spark)
    create(spark, tmp_path, "ours")
    assert transactions.look()[1] == 4
    assert is_loaded(spark)
