"""A driver that is killed at a point of ``benchmarks/kills.py``, which holds the full set, and started again."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from benchmarks.kill_points import POINTS
from benchmarks.killing import Killing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_a_driver_that_is_killed_anywhere_loses_nothing(
    spark: SparkSession, shuffle_partitions: Callable[[int], None], tmp_path: Path
) -> None:
    seed = random.randrange(10_000)
    # Those that take over another query's table need one of their own each, which takes as long as the rest.
    chosen = random.Random(seed).sample([each for each in POINTS if each.job != "same table"], 1)
    print(f"seed {seed}: {[(each.phase, each.name) for each in chosen]}")  # noqa: T201 - shown on failure
    shuffle_partitions(2)
    for verdict in Killing(spark, tmp_path, seed).run(chosen, forks=False):
        assert not verdict.faults, "\n".join([*verdict.cells(), *verdict.faults])
