"""A Spark Connect server that cojoin can't use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyspark
import pytest
from pyspark.errors import PySparkException

import cojoin as cj
from cojoin.session.sealed import installed
from cojoin.session.workers import check_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect


def test_a_server_of_another_version_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = spark.range(1).selectExpr("id", "timestamp_micros(id) at")
    server = spark.version
    monkeypatch.setattr("cojoin.session.connect_session._CHECKED", set())
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    with pytest.raises(cj.ConfigurationError) as refused:
        cj.connect(cj.Input(frame, key="id", event_time="at"), cj.Input(frame, key="id", event_time="at"))
    assert f"server is of version {server}, and PySpark in this process of version 4.0.5" in str(refused.value)
    assert f"install pyspark=={server}, since" in str(refused.value)


def test_a_server_whose_workers_have_other_sources_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's are right here, and this process's are said to be others."""
    frame = spark.range(1).selectExpr("id", "timestamp_micros(id) at")
    there = installed()
    monkeypatch.setattr("cojoin.session.workers._CHECKED", {})
    check_workers(spark)
    monkeypatch.setattr(sys, "_cojoin_installed", there | {"sources": "0123456789abcdef"}, raising=False)
    monkeypatch.setattr("cojoin.session.workers._CHECKED", {})
    with pytest.raises(cj.EnvironmentSetupError) as refused:
        check_workers(spark)
    assert str(refused.value).startswith("the Spark Connect server's workers must have what this process has")
    expected = f"expected the sources of cojoin {cj.__version__} in {there['path']} on the driver"
    assert expected in str(refused.value)
    assert f"(digest 0123456789abcdef), found others in {there['path']} (digest {there['sources']})" in str(
        refused.value
    )
    # A plain DataFrame is refused by its first task.
    pair = cj.connect(cj.Input(frame, key="id", event_time="at"), cj.Input(frame, key="id", event_time="at"))
    with pytest.raises(PySparkException) as failed:
        pair.asof_join().to_dataframe().collect()
    assert expected in str(failed.value)
