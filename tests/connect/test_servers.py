"""A Spark Connect server that cojoin can't use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
import pytest

import cojoin as cj

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect


def test_a_server_of_another_version_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = spark.range(1).selectExpr("id", "timestamp_micros(id) at")
    server = spark.version
    monkeypatch.setattr("cojoin.storage.session_settings._CHECKED", set())
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    with pytest.raises(cj.ConfigurationError) as refused:
        cj.connect(cj.Input(frame, key="id", event_time="at"), cj.Input(frame, key="id", event_time="at"))
    assert f"server is of version {server}, and PySpark in this process of version 4.0.5" in str(refused.value)
    assert f"install pyspark=={server} here" in str(refused.value)
