"""The as-of join must not get slower beside plain Spark: a ratio within one run, as the benchmark has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.join.guard import Bound, measured_ratios

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_an_as_of_join_takes_no_more_times_the_floor_than_recorded(spark: SparkSession, tmp_path: Path) -> None:
    bound, ratios = Bound.recorded(), []
    for ratio in measured_ratios(spark, tmp_path):
        ratios.append(ratio)
        if ratio <= bound.at_most:
            return
    pytest.fail(f"{ratios} times the floor; it was {bound.measured} when the bound of {bound.at_most} was set")
