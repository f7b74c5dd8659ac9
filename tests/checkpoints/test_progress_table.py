"""The progress table has a row a batch, whatever crashes and runs again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from cojoin.checkpoints import progress_table
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.progress_table import ProgressTable
from cojoin.delta import table_batches
from cojoin.delta.table_log import TableLog
from cojoin.errors import EnvironmentSetupError
from cojoin.session.sessions import adapter_of, open_store
from cojoin.storage.local_store import LocalStore
from tests.checkpoints.reports import MOMENT, manifest
from tests.spark.data import table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def manifests(spark: SparkSession, tmp_path: Path) -> Manifests:
    return Manifests(open_store(spark, str(tmp_path)))


@pytest.fixture(params=["without the JVM", pytest.param("by Spark", marks=pytest.mark.slow)])
def start(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path: Path,
    manifests: Manifests,
    monkeypatch: pytest.MonkeyPatch,
) -> Started:
    if request.param == "by Spark":
        # As where only Hadoop reaches the store.
        monkeypatch.setattr(progress_table, "why_unreachable", lambda *_: "only Hadoop's file systems reach it")
        monkeypatch.setattr(table_batches, "why_unreachable", lambda *_: "only Hadoop's file systems reach it")
    return Started(spark, tmp_path, manifests)


class Started:
    """Starts the table's writer anew, as each run of a query does."""

    def __init__(self, spark: SparkSession, folder: Path, manifests: Manifests) -> None:
        self._spark, self._folder, self._manifests = spark, folder, manifests

    def __call__(self) -> ProgressTable:
        started = ProgressTable(self._spark, open_store(self._spark, str(self._folder)), self._manifests)
        started.recover()
        return started

    def batch(self, started: ProgressTable, batch_id: int) -> None:
        self._manifests.write(manifest(batch_id))
        started.add(manifest(batch_id))

    def batch_ids(self) -> list[int]:
        return sorted(row.batch_id for row in table(self._spark, self._folder / "progress").collect())


def test_a_row_says_what_its_manifest_says(spark: SparkSession, tmp_path: Path, start: Started) -> None:
    started = start()
    start.batch(started, 0)
    started.flush()
    started.flush()
    row = table(spark, tmp_path / "progress").selectExpr(
        "*", "unix_millis(processing_time) processed", "inputs[0] left", "unix_millis(inputs[0].watermark) reached"
    )
    ((values),) = row.collect()
    assert (values.batch_id, values.query_id, values.holding_input, values.drained) == (
        0,
        "a query",
        "customers",
        False,
    )
    assert values.watermark is None, "before every input has spoken there is none"
    assert (values.processed, values.reached) == (MOMENT + 10_000, MOMENT)
    assert (values.left.rows_in, values.left.done, values.left.rejected) == (4, 3, {"late": 1})
    assert (values.left.lag_ms, values.left.holding_partition) == (5_001, '["trades", 0]')
    assert sorted(values.left.partitions) == ['["trades", 0]', '["trades", 1]']
    assert (values.emitted, values.details) == ({"output": 3, "rejected": 1}, {"versions_in_force": 2})
    assert (values.offsets, values.outputs) == (['{"logOffset":1}', "-"], '{"output": {"delta": "/x", "version": 4}}')


def test_what_a_crash_kept_from_the_table_is_added_by_the_next_run(start: Started) -> None:
    started = start()
    start.batch(started, 0)
    started.flush()
    start.batch(started, 1)
    start.batch(started, 2)
    again = start()
    start.batch(again, 2)
    start.batch(again, 3)
    again.flush()
    assert start.batch_ids() == [0, 1, 2, 3]


def test_a_batch_that_was_added_and_runs_again_is_not_added_twice(start: Started) -> None:
    started = start()
    start.batch(started, 0)
    start.batch(started, 1)
    started.flush()
    again = start()
    start.batch(again, 1)
    start.batch(again, 2)
    again.flush()
    assert start.batch_ids() == [0, 1, 2]


def test_a_group_is_written_when_it_is_large_and_old_manifests_go(
    start: Started, manifests: Manifests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_table, "_GROUP_BATCHES", 3)
    monkeypatch.setattr(progress_table, "_KEPT_MANIFESTS", 1)
    started = start()
    for batch_id in range(4):
        start.batch(started, batch_id)
    assert start.batch_ids() == [0, 1, 2]
    assert manifests.batch_ids() == [1, 2, 3]


def test_a_former_run_that_creates_the_table_at_the_same_moment_adds_its_rows_once(start: Started) -> None:
    former, started = start(), start()
    start.batch(former, 0)
    start.batch(started, 0)
    start.batch(started, 1)
    former.flush()
    started.flush()
    assert start.batch_ids() == [0, 1]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_former_run_that_writes_between_the_look_and_the_commit_adds_its_rows_once(
    start: Started, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    if is_there:
        first = start()
        start.batch(first, 0)
        first.flush()
    former, started, looks = start(), start(), list[int]()
    start.batch(former, 1)
    start.batch(started, 1)
    start.batch(started, 2)
    look = progress_table.TableTransactions.look

    def look_before_the_former(self: Any) -> tuple[str | None, int]:
        looked = look(self)
        looks.append(looked[1])
        if len(looks) == 1:
            former.flush()
        return looked

    monkeypatch.setattr(progress_table.TableTransactions, "look", look_before_the_former)
    started.flush()
    assert looks[0] == (0 if is_there else -1)
    assert start.batch_ids() == ([0] if is_there else []) + [1, 2]


def test_a_group_waits_for_the_last_batch_where_it_is_written_in_a_moment(
    spark: SparkSession, tmp_path: Path, manifests: Manifests
) -> None:
    start = Started(spark, tmp_path, manifests)
    started = start()
    started.prepare()
    start.batch(started, 0)
    started.flush_early()
    assert not (tmp_path / "progress").exists()
    start.batch(started, 1)
    started.flush()
    start.batch(start(), 2)
    assert start.batch_ids() == [0, 1]


@pytest.mark.slow
def test_a_session_that_gives_new_tables_a_feature_has_spark_make_it(
    spark: SparkSession, tmp_path: Path, manifests: Manifests
) -> None:
    start = Started(spark, tmp_path, manifests)
    name = "spark.databricks.delta.properties.defaults.enableDeletionVectors"
    spark.conf.set(name, "true")
    try:
        started = start()
        start.batch(started, 0)
        started.flush()
    finally:
        spark.conf.unset(name)
    found = TableLog(LocalStore(str(tmp_path)), "progress").newest()
    assert found is not None
    assert "deletionVectors" in found.protocol.features
    again = start()
    start.batch(again, 1)
    again.flush()
    spark.sql(f"DELETE FROM delta.`{tmp_path}/progress` WHERE batch_id = 0")
    last = start()
    start.batch(last, 2)
    last.flush()
    assert start.batch_ids() == [1, 2]


def test_a_table_that_spark_has_written_goes_on(spark: SparkSession, tmp_path: Path, manifests: Manifests) -> None:
    start = Started(spark, tmp_path, manifests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress_table, "why_unreachable", lambda *_: "only Hadoop's file systems reach it")
        started = start()
        start.batch(started, 0)
        started.flush()
    again = start()
    start.batch(again, 0)
    start.batch(again, 1)
    again.flush()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress_table, "why_unreachable", lambda *_: "only Hadoop's file systems reach it")
        back = start()
        start.batch(back, 1)
        start.batch(back, 2)
        back.flush()
    assert start.batch_ids() == [0, 1, 2]


def test_without_delta_the_table_that_only_spark_writes_is_named(
    spark: SparkSession, tmp_path: Path, manifests: Manifests, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(self: Any) -> None:
        msg = "this Spark has no Delta"
        raise EnvironmentSetupError(msg)

    for module in (progress_table, table_batches):
        monkeypatch.setattr(module, "why_unreachable", lambda *_: "only Hadoop's file systems reach it")
    start = Started(spark, tmp_path, manifests)
    started = start()
    start.batch(started, 0)
    started.flush()
    monkeypatch.setattr(type(adapter_of(spark)), "check_delta", lacks)
    why = (
        "its table 'progress': only Spark writes it (only Hadoop's file systems reach it), and this Spark has no Delta"
    )
    with pytest.raises(EnvironmentSetupError, match=re.escape(why)):
        start()
    start.batch(started, 1)
    with pytest.raises(EnvironmentSetupError, match=re.escape(why)):
        started.flush()
