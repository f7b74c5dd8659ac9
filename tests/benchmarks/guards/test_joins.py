"""No way through files may get slower beside plain Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.guards.bounds import excess
from benchmarks.guards.joins import WAYS, JoinGuard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def guard(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> JoinGuard:
    return JoinGuard(spark, tmp_path_factory.mktemp("guard"))


@pytest.mark.parametrize("way", WAYS)
def test_a_way_takes_no_more_times_its_floor_than_recorded(guard: JoinGuard, way: str) -> None:
    assert not (said := excess(way, guard.ratios(way))), said
