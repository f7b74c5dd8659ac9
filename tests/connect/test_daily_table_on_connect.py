"""A table that changes each day, with bounded runs in a session of Spark Connect: its log is read without the JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from tests.seeds import drawn
from tests.spark.sources.test_daily_tables import PARTS, DailyTable, insert, merge, position, update

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect


def run(table: DailyTable, joined: cj.Joined, checkpoint: str, **options: Any) -> cj.Query:
    query = joined.start(
        output=cj.sinks.delta(f"{table.folder}/out_{checkpoint}"),
        checkpoint=f"{table.folder}/{checkpoint}",
        trigger=cj.Trigger.available_now(),
        **options,
    )
    query.await_termination()
    return query


@pytest.mark.slow
@pytest.mark.parametrize("layout", drawn(["", PARTS], 1))
def test_each_days_rows_come_out_and_a_fork_goes_on(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    table = DailyTable(spark, tmp_path, layout)
    table.insert(0, 1)
    table.starts()
    days = [[], [merge("day 1", 1, 2)], [insert("day 2", 2), update("day 2", "customer_id < 2")]]
    for day, changes in enumerate(days):
        table.day(*changes)
        query = run(table, table.plainly(), "daily")
        assert table.rows("daily") == table.due(), f"day {day}, at {position(tmp_path / 'daily')}"
    assert position(tmp_path / "daily")[0] == table.commits()[-1][0]
    fork = query.savepoint()
    table.day(merge("day 3", 0, 3))
    run(table, table.plainly(3), "fork", restore_from=fork)
    assert table.rows("daily", "fork") == table.due()
