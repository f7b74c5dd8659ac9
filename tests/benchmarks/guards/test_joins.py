"""Each way through files whose speed is guarded gives the rows of the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.guards.joins import WAYS, JoinGuard
from benchmarks.join.generate import Size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def guard(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> JoinGuard:
    return JoinGuard(spark, tmp_path_factory.mktemp("guard"), Size(20_000, 4_000, 500, 4))


@pytest.mark.slow  # Other tests of the push compare these joins with oracles; this one is of the guards of speed.
@pytest.mark.parametrize("way", WAYS)
def test_a_way_gives_the_rows_of_the_oracle(guard: JoinGuard, way: str) -> None:
    guard.seconds(way)
