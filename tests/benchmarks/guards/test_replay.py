"""The replay whose speed is guarded gives the rows of the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cojoin.session.versions import spark_version

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

# What it gives is in the push by the replays of tests/kafka; this is the one that is measured.
pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.skipif(spark_version() != "4.2", reason="cojoin.kafka needs PySpark 4.2")
def test_a_replay_gives_the_rows_of_the_oracle(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    from benchmarks.guards.replay import ReplayGuard

    ReplayGuard(spark, broker, tmp_path, trades=20_000).seconds("aligned")
