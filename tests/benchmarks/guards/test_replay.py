"""A replay of Kafka topics may not get slower beside plain Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.guards.bounds import excess
from cojoin.storage.spark_versions import spark_version

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.skipif(spark_version() != "4.2", reason="cojoin.kafka needs PySpark 4.2")
def test_a_replay_takes_no_more_times_its_floor_than_recorded(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    from benchmarks.guards.replay import ReplayGuard

    assert not (said := excess("replay", ReplayGuard(spark, broker, tmp_path).ratios())), said
