"""The log of a Delta table tells its commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cojoin.session.delta_tables import later_commits, read_table, table_path
from cojoin.session.sessions import adapter_of
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


def test_a_name_gives_the_folder_as_a_path_and_not_as_a_uri(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "a folder" / "of mïne" / "50%25"
    spark.range(3).write.format("delta").save(str(folder))
    spark.sql(f"create table named_customers using delta location '{folder}'")
    spark.sql(f"create database our_shop location '{tmp_path / 'a shop'}'")
    try:
        assert table_path(spark, "named_customers") == f"file:{folder}"
        table = read_table(spark, "named_customers")
        assert table is not None
        assert table.version == 0
        assert adapter_of(spark).table_location("our_shop.new_one") == f"file:{tmp_path / 'a shop' / 'new_one'}"
    finally:
        spark.sql("drop table named_customers")
        spark.sql("drop database our_shop")
