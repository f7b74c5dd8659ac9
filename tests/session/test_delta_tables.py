"""The log of a Delta table tells its commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cojoin.session.delta_tables import later_commits
from tests.checkpoints.test_output_tables import write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_the_commits_after_a_version_are_listed(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "enriched")
    for batch_id in range(3):
        write(spark, table, batch_id)
    commits = later_commits(spark, table, 0)
    assert [(each.version, each.app_id, each.operation, each.rows) for each in commits] == [
        (1, "cojoin-0b8e-output", "WRITE", 1),
        (2, "cojoin-0b8e-output", "WRITE", 1),
    ]
    assert all(each.timestamp is not None for each in commits)
    assert later_commits(spark, table, 2) == []
