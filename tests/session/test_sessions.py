from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from cojoin.errors import ConfigurationError
from cojoin.session.sessions import adapter_of, is_frame, task_memory
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


class _OfAServer:
    """What has the interface of Spark Connect's session as far as it is asked here."""

    session_id, is_stopped, version = "one", False, "3.5.0"


_OfAServer.__module__ = "pyspark.sql.connect.session"


def test_what_a_session_can_do_is_known_without_asking_it() -> None:
    of_a_server = adapter_of(_OfAServer())  # type: ignore[arg-type]
    can = ("runs_batches", "has_local_properties", "has_listeners", "shares_paths")
    assert [getattr(of_a_server, name) for name in can] == [False] * 4
    assert [getattr(adapter_of(object()), name) for name in can] == [True] * 4  # type: ignore[arg-type]
    assert not of_a_server.has_child_workers
    assert of_a_server.executors() == frozenset()


def test_what_is_no_session_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^input 'trades': expected a SparkSession, got int$"):
        adapter_of(7).check("input 'trades'")  # type: ignore[arg-type]


def test_a_server_of_another_version_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"of version 3\.5\.0, and PySpark in this process of version"):
        adapter_of(_OfAServer()).check("input 'trades'")  # type: ignore[arg-type]


@pytest.mark.spark
def test_a_session_with_a_jvm_answers_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    adapter = adapter_of(spark)
    assert adapter.application_id == spark.sparkContext.applicationId
    assert not adapter.is_stopped
    assert adapter.workers == f"the workers of {spark.sparkContext.master}"
    assert adapter.has_child_workers
    assert adapter.parallel_tasks() == spark.sparkContext.defaultParallelism
    assert len(adapter.executors()) == 1, "the driver alone"
    assert adapter.is_set("spark.sql.shuffle.partitions")
    assert not adapter.is_set("spark.sql.autoBroadcastJoinThreshold"), "it has a default"
    assert "spark.sql.shuffle.partitions" in adapter.setting_names()
    assert adapter.hadoop_setting("no.such.setting") is None
    assert adapter.local_path(f"{tmp_path}/a b") == f"{tmp_path}/a b"
    assert adapter.local_path(f"file:{tmp_path}") == str(tmp_path)
    assert not adapter.encrypts_files()
    assert is_frame(spark.range(1))
    assert not is_frame("rows")


@pytest.mark.spark
def test_a_setting_lasts_as_long_as_its_block(spark: SparkSession) -> None:
    name = "spark.sql.caseSensitive"
    with adapter_of(spark).with_settings({name: "true"}) as session:
        assert session.conf.get(name) == "true"
        assert spark.conf.get(name) == "false"


@pytest.mark.spark
def test_a_plan_says_what_it_reads_and_what_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    adapter = adapter_of(spark)
    spark.range(9).write.parquet(f"{tmp_path}/rows")
    files = spark.readStream.schema("id long").option("maxFilesPerTrigger", 3).parquet(f"{tmp_path}/rows")
    rates = spark.readStream.format("rate").load().select(F.col("value").alias("id"))
    first, second = adapter.stream_sources(files.union(rates))
    assert first is not None
    assert (first.options["path"], first.options["maxfilespertrigger"]) == (f"{tmp_path}/rows", "3")
    assert second is None or "path" not in second.options
    assert adapter.stream_sources(spark.range(3)) == []
    assert 8 <= adapter.plan_bytes(spark.range(9)) <= 1000
    assert not adapter.runs_python(files)
    assert adapter.runs_python(files.mapInArrow(lambda batches: batches, "id long"))


@pytest.mark.spark
def test_a_table_has_a_folder_before_it_exists(spark: SparkSession) -> None:
    adapter = adapter_of(spark)
    assert adapter.table_location("/lake/trades") == "/lake/trades"
    assert str(adapter.table_location("no_such_table")).endswith("/no_such_table")
    assert adapter.table_location("not a name") is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"spark.cojoin.memory": "128m"}, 128 << 20),
        ({"spark.cojoin.memory": "2 GB"}, 2 << 30),
        ({"spark.executor.pyspark.memory": "2048", "spark.executor.cores": "4"}, 256 << 20),
        ({"spark.cojoin.memory": "3g", "spark.executor.pyspark.memory": "1g"}, 3 << 30),
    ],
)
def test_a_tasks_memory_is_a_setting_or_by_that_of_the_executors(
    settings: dict[str, str], expected: int | None
) -> None:
    session: Any = SimpleNamespace(conf=settings)
    assert task_memory(session) == expected


@pytest.mark.parametrize("value", ["much", "-1g", "1.5g", "100k", "0"])
def test_a_memory_that_is_no_size_is_refused(value: str) -> None:
    session: Any = SimpleNamespace(conf={"spark.cojoin.memory": value})
    with refused(f"spark.cojoin.memory is '{value}'; expected a size of at least 1m"):
        task_memory(session)
