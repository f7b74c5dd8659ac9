"""Spark and cojoin's own writer on the same tables, in turns: neither loses or doubles what the other has written."""

from __future__ import annotations

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from cojoin.delta.deltalake_table import TableRefusedError
from cojoin.delta.table_checks import nullable_schema, why_not_plain
from cojoin.delta.table_log import TableLog
from cojoin.delta.table_writer import Change, NewTable, why_not_creatable
from cojoin.session.arrow_types import spark_schema
from cojoin.session.delta_tables import default_properties
from cojoin.storage.local_store import LocalStore
from tests.delta.tables import APP, SCHEMA, append, commit, data_file, ids, writer
from tests.spark.data import rows, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.push]


def deltas_own(spark: SparkSession, folder: Path) -> Any:
    """Return the newest version of a table as Delta's own classes read it."""
    session: Any = spark
    log = session._jvm.org.apache.spark.sql.delta.DeltaLog
    log.clearCache()
    return log.forTable(session._jsparkSession, str(folder)).unsafeVolatileSnapshot()


def same(spark: SparkSession, folder: Path) -> list[int]:
    """Return a table's rows, which Spark and ``deltalake`` agree on, as on all else that the log says."""
    ours, theirs = TableLog(LocalStore(str(folder))).newest(), deltas_own(spark, folder)
    assert ours is not None
    metadata, versions = theirs.metadata(), theirs.transactions()
    assert (ours.version, ours.table_id) == (theirs.version(), metadata.id())
    assert ours.transaction(APP) == (versions.apply(APP) if versions.contains(APP) else None)
    assert json.loads(ours.schema_text) == json.loads(metadata.schemaString())
    found = [each for (each,) in rows(table(spark, folder).select("id"))]
    assert found == ids(folder)
    return found


def actions_of(spark: SparkSession, folder: Path) -> list[str]:
    """Return all actions that make up a table's newest version, removals among them, as Delta's own classes read it."""
    actions = [json.loads(each) for each in deltas_own(spark, folder).stateDS().toJSON().collectAsList()]
    for removed in (each["remove"] for each in actions if "remove" in each):
        # The log's checkpoints may leave out the rest, which only readers of the commit need.
        for name in removed.keys() - {"path", "deletionTimestamp", "deletionVector"}:
            del removed[name]
    return sorted(json.dumps(each, sort_keys=True) for each in actions)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made_with", "last"),
    [
        ("'delta.enableDeletionVectors' = 'true', 'delta.checkpointInterval' = '3'", 6),
        (
            "'delta.enableDeletionVectors' = 'true', 'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '3'",
            6,
        ),
        ("'delta.enableDeletionVectors' = 'true'", 10),
        ("'delta.enableChangeDataFeed' = 'true', 'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '3'", 6),
    ],
)
def test_a_checkpoint_of_the_log_has_all_that_its_commits_had(
    spark: SparkSession, tmp_path: Path, made_with: str, last: int
) -> None:
    place, commits = tmp_path / "t", tmp_path / "commits"
    name, log = f"delta.`{place}`", place / "_delta_log"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT COMMENT 'the row') USING delta COMMENT 'a table' "
        f"TBLPROPERTIES ({made_with}, 'ours' = 'yes')"
    )
    added = spark.range(100, 110).coalesce(1).write.format("delta").mode("append")
    added.option("txnAppId", "theirs").option("txnVersion", 4).save(str(place))
    # The second one gives the same file another vector; where an interval is set, Spark writes a checkpoint here.
    spark.sql(f"DELETE FROM {name} WHERE id = 103")
    spark.sql(f"DELETE FROM {name} WHERE id = 107")
    file = data_file(place, [200])
    tagged = {"path": file.path, "size": file.size, "partitionValues": {}, "modificationTime": 5, "dataChange": True}
    commit(place, 4, {"add": {**tagged, "stats": file.statistics, "tags": {"a": "b"}}})
    ours = writer(place)
    for version in range(5, last + 1):
        # The commits, before they are cleaned away as those of 1970.
        shutil.copytree(place, commits, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*checkpoint*", "_sidecars"))
        for each in log.glob("*.json"):
            os.utime(each, (1, 1))
        append(ours, place, version)
    shutil.copy(log / f"{last:020d}.json", commits / "_delta_log")
    for each in place.glob("*.parquet"):
        shutil.copy(each, commits)
    kept = sorted(int(each.name[:20]) for each in log.glob("*.json") if "checkpoint" not in each.name)
    assert 0 < kept[0] <= last
    assert (log / f"{last:020d}.checkpoint.parquet").exists()
    for each in kept[:-1]:
        (log / f"{each:020d}.json").unlink()
    for each in log.glob("*.crc"):
        each.unlink()

    expected, found = (TableLog(LocalStore(str(each), "table")) for each in (commits, place))
    assert len(expected.versions()) == last + 1
    assert found.versions() == (last,)
    before, after = expected.at(last), found.at(last)
    for name in ("protocol", "table_id", "schema_text", "partition_columns", "properties", "applications"):
        assert getattr(before, name) == getattr(after, name)
    assert after.applications == {"theirs": 4, APP: last}
    # A checkpoint of Spark's has no file as changed data.
    files, kept_files = ([replace(each, changes_data=True) for each in log.files(last)] for log in (expected, found))
    assert kept_files == files
    assert any(each.deletion_vector for each in found.files(last)) == ("DeletionVectors" in made_with)
    assert actions_of(spark, place) == actions_of(spark, commits)
    assert [each for (each,) in rows(table(spark, place).select("id"))] == [
        *range(5, last + 1),
        *(each for each in range(100, 110) if each not in {103, 107}),
        200,
    ]


@pytest.mark.slow
def test_files_that_were_vacuumed_before_the_commit_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    ours = writer(tmp_path / "t")
    append(ours, tmp_path / "t", 0)
    file = data_file(tmp_path / "t", [1])
    check = "spark.databricks.delta.retentionDurationCheck.enabled"
    spark.conf.set(check, "false")
    try:
        spark.sql(f"VACUUM delta.`{tmp_path}/t` RETAIN 0 HOURS")
    finally:
        spark.conf.unset(check)
    with pytest.raises(TableRefusedError, match=f"file {file.path}: expected {file.size} bytes, found no such file"):
        ours.commit(Change({APP: 1}, SCHEMA, [file]), lambda _: False)
    assert append(ours, tmp_path / "t", 1).version == 3  # VACUUM has commits of its own.
    assert same(spark, tmp_path / "t") == [0, 1]


@pytest.mark.slow
def test_a_table_made_here_is_sparks_too(spark: SparkSession, tmp_path: Path) -> None:
    ours, name = writer(tmp_path / "t"), f"delta.`{tmp_path}/t`"
    for number in range(3):
        append(ours, tmp_path / "t", number, properties={"delta.checkpointInterval": "4"})
    assert same(spark, tmp_path / "t") == [0, 1, 2]
    spark.range(10, 12).coalesce(1).write.format("delta").mode("append").save(f"{tmp_path}/t")
    append(ours, tmp_path / "t", 3)
    spark.sql(f"OPTIMIZE {name}")
    append(ours, tmp_path / "t", 4)
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT 10L id, 20L more) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET id = more"
    )
    append(ours, tmp_path / "t", 5)
    spark.sql(f"DELETE FROM {name} WHERE id = 1")
    for number in (6, 6, 7):
        append(ours, tmp_path / "t", number)
    files = TableLog(LocalStore(f"{tmp_path}/t"))
    newest = files.newest()
    assert newest is not None
    old = next(each for each in files.files(newest.version) if each.rows == 1)
    kept = table(spark, tmp_path / "t").where(f"_metadata.file_name = '{old.path}'").first()
    assert kept is not None
    new = data_file(tmp_path / "t", [kept.id])
    ours.commit(Change({"compaction": 0}, SCHEMA, [new], [old], changes_data=False), lambda _: False)
    assert same(spark, tmp_path / "t") == [0, 2, 3, 4, 5, 6, 7, 11, 20]
    history = spark.sql(f"DESCRIBE HISTORY {name}").orderBy("version").collect()
    first, last = history[1], history[-1]
    assert (first.operation, first.operationParameters["outputMode"], first.userMetadata) == (
        "WRITE",
        "Append",
        "batch 1",
    )
    assert first.operationMetrics["numOutputRows"] == "1"
    assert (first.isBlindAppend, last.isBlindAppend, first.readVersion) == (True, False, 0)
    checkpoints = [each for each in (tmp_path / "t" / "_delta_log").iterdir() if ".checkpoint" in each.name]
    assert len(checkpoints) >= 2


@pytest.mark.parametrize(
    ("made_with", "why"),
    [
        ("", None),
        pytest.param("'delta.enableChangeDataFeed' = 'true'", None, marks=pytest.mark.slow),
        pytest.param("'delta.appendOnly' = 'true'", None, marks=pytest.mark.slow),
        pytest.param("'delta.checkpointPolicy' = 'v2'", None, marks=pytest.mark.slow),
        pytest.param("'delta.enableDeletionVectors' = 'true'", None, marks=pytest.mark.slow),
        ("'delta.columnMapping.mode' = 'name'", "its column mapping (delta.columnMapping.mode = name)"),
        pytest.param("'delta.enableRowTracking' = 'true'", "its feature 'domainMetadata'", marks=pytest.mark.slow),
        pytest.param(
            "'delta.enableInCommitTimestamps' = 'true'", "its feature 'inCommitTimestamp'", marks=pytest.mark.slow
        ),
        ("'delta.enableTypeWidening' = 'true'", "its feature 'typeWidening'"),
    ],
)
def test_a_table_made_by_spark_takes_commits_or_says_why_not(
    spark: SparkSession, tmp_path: Path, made_with: str, why: str | None
) -> None:
    properties = f"TBLPROPERTIES ({made_with})" if made_with else ""
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/t` (id BIGINT) USING delta {properties}")
    spark.range(100, 102).coalesce(1).write.format("delta").mode("append").save(f"{tmp_path}/t")
    found = TableLog(LocalStore(f"{tmp_path}/t")).newest()
    assert found is not None
    assert why_not_plain(found.protocol, found.metadata) == why
    if why is not None:
        return
    for number in range(2):
        append(writer(tmp_path / "t"), tmp_path / "t", number)
    assert [each for (each,) in rows(table(spark, tmp_path / "t").select("id"))] == [0, 1, 100, 101]
    if "appendOnly" not in made_with:
        spark.sql(f"DELETE FROM delta.`{tmp_path}/t` WHERE id = 100")
        append(writer(tmp_path / "t"), tmp_path / "t", 2)
        assert [each for (each,) in rows(table(spark, tmp_path / "t").select("id"))] == [0, 1, 2, 101]
    if "ChangeDataFeed" in made_with:
        changes = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
        counted = {
            row._change_type: row["count"]
            for row in changes.load(f"{tmp_path}/t").groupBy("_change_type").count().collect()
        }
        assert counted == {"insert": 5, "delete": 1}


def test_partitions_and_names_that_are_escaped(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([*SCHEMA, pa.field("day", pa.date32()), pa.field("side", pa.string())])
    name = "day=2026-01-01/side=a%20%2B/x y%41.parquet"
    files = [
        data_file(tmp_path / "t", [3], name, day="2026-01-01", side="a +"),
        data_file(tmp_path / "t", [4], day=None, side="%"),
    ]
    writer(tmp_path / "t").commit(
        Change({APP: 0}, schema, files), lambda _: False, new=NewTable(schema, ["day", "side"])
    )
    found = table(spark, tmp_path / "t").selectExpr("id", "string(day)", "side").orderBy("id").collect()
    assert [tuple(each) for each in found] == [(3, "2026-01-01", "a +"), (4, None, "%")]


def test_a_new_tables_columns_are_those_that_spark_would_give_it() -> None:
    schema = pa.schema(
        [
            ("a", pa.int8()),
            ("b", pa.int16()),
            ("c", pa.int32()),
            ("d", pa.float32()),
            ("e", pa.float64()),
            ("f", pa.bool_()),
            ("g", pa.binary()),
            ("h", pa.date32()),
            ("i", pa.timestamp("us", "UTC")),
            ("j", pa.timestamp("us")),
            ("k", pa.decimal128(20, 4)),
            ("l", pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())])))),
        ]
    )

    def nullable(node: Any) -> Any:
        if isinstance(node, dict):
            flags = {"nullable", "containsNull", "valueContainsNull"}
            return {name: True if name in flags else nullable(value) for name, value in node.items()}
        return [nullable(each) for each in node] if isinstance(node, list) else node

    assert nullable_schema(schema) == nullable(spark_schema(schema).jsonValue())


def test_the_properties_that_a_session_gives_new_tables(spark: SparkSession) -> None:
    name = "spark.databricks.delta.properties.defaults.enableDeletionVectors"
    assert default_properties(spark) == {}
    spark.conf.set(name, "true")
    try:
        assert default_properties(spark) == {"delta.enableDeletionVectors": "true"}
        assert str(why_not_creatable(default_properties(spark))).endswith(
            "only Spark gives: delta.enableDeletionVectors"
        )
    finally:
        spark.conf.unset(name)


def _held(folder: str) -> bool:
    """Say that a statement has read its table, and wait until its commit may follow."""
    (Path(folder) / "read").touch()
    until = time.monotonic() + 120
    while not (Path(folder) / "appended").exists() and time.monotonic() < until:
        time.sleep(0.05)
    return True


def _outcome(spark: SparkSession, folder: Path, statement: str, append_to: Callable[[Path], Any]) -> list[int] | str:
    """Return a table's rows, or the name of the conflict, after a statement with an append before its commit."""
    place = folder / "t"
    spark.sql(f"CREATE TABLE delta.`{place}` (id BIGINT, side STRING) USING delta PARTITIONED BY (side)")
    spark.range(2).selectExpr("id", "'a' side").coalesce(1).write.format("delta").mode("append").save(str(place))
    spark.udf.register("meanwhile", lambda _, to=str(folder): _held(to), "boolean")
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(spark.sql, statement.format(table=f"delta.`{place}`"))
        while not (folder / "read").exists() and not running.done():
            time.sleep(0.05)
        append_to(place)
        (folder / "appended").touch()
        error = running.exception()
    commits = list(TableLog(LocalStore(str(place))).commits(1))
    assert commits[0].info["isBlindAppend"]
    if error is not None:
        assert len(commits) == 1
        return next(each for each in str(error).split() if "CONCURRENT" in each)
    assert [each.info["readVersion"] for each in commits] == [1, 1]
    return same(spark, place)


_MERGE = (
    "MERGE INTO {table} t USING (SELECT id FROM range(1, 3) WHERE meanwhile(id)) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET id = 21 WHEN NOT MATCHED THEN INSERT (id, side) VALUES (22, 'a')"
)
_CONFLICT = "[DELTA_CONCURRENT_APPEND.WITH_PARTITION_HINT]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("DELETE FROM {table} WHERE side = 'a' AND id = 1 AND meanwhile(id)", [0, 7]),
        ("UPDATE {table} SET id = 21 WHERE side = 'a' AND id = 1 AND meanwhile(id)", [0, 7, 21]),
        ("DELETE FROM {table} WHERE id = 1 AND meanwhile(id)", _CONFLICT),
        (_MERGE, _CONFLICT),
    ],
)
def test_an_append_between_a_statements_read_and_its_commit_is_as_sparks_own(
    spark: SparkSession, tmp_path: Path, statement: str, expected: list[int] | str
) -> None:
    schema = pa.schema([*SCHEMA, pa.field("side", pa.string())])

    def by_spark(place: Path) -> None:
        added = spark.range(7, 8).selectExpr("id", "'b' side").coalesce(1)
        added.write.format("delta").mode("append").save(str(place))

    def by_us(place: Path) -> None:
        writer(place).commit(Change({APP: 7}, schema, [data_file(place, [7], side="b")]), lambda _: False)

    for name, append_to in (("spark", by_spark), ("ours", by_us)):
        (tmp_path / name).mkdir()
        assert _outcome(spark, tmp_path / name, statement, append_to) == expected, name
