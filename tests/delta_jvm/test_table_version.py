"""A Delta table's log read as files says what Delta's own classes say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cojoin.delta_jvm.delta_files import table_log
from cojoin.delta_jvm.table_version import quoted_table, read_log, read_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def write(spark: SparkSession, path: str, app_id: str, version: int) -> None:
    rows = spark.sql(f"select {version}L id, 'a' side")
    writer = rows.write.format("delta").mode("append").partitionBy("side")
    writer.option("txnAppId", app_id).option("txnVersion", version).save(path)


def same(spark: SparkSession, path: str) -> bool:
    read, told = read_log(spark, path), read_table(spark, path)
    assert read is not None
    assert told is not None
    shared = (told.version, told.table_id, told.partition_columns(), *(told.transaction(each) for each in "abc"))
    return shared == (
        read.version,
        read.table_id,
        read.partition_columns(),
        *(read.transaction(each) for each in "abc"),
    )


@pytest.mark.slow  # Five commits and two checkpoints each.
@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_with_and_without_a_checkpoint_of_the_log(spark: SparkSession, tmp_path: Path, policy: str) -> None:
    path = f"{tmp_path}/t[a]"
    write(spark, path, "a", 3)
    assert same(spark, path)
    spark.sql(f"alter table {quoted_table(path)} set tblproperties ('delta.checkpointPolicy' = '{policy}')")
    write(spark, path, "b", 1)
    table_log(spark, path).checkpoint()
    assert same(spark, path)
    write(spark, path, "a", 4)
    table_log(spark, path).checkpoint()
    write(spark, path, "b", 2)
    assert same(spark, path)


def test_no_table_and_a_table_that_was_made_again(spark: SparkSession, tmp_path: Path) -> None:
    path = f"{tmp_path}/t"
    assert read_log(spark, path) is None
    assert read_table(spark, path) is None
    write(spark, path, "a", 3)
    spark.sql("select 1 id").write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
    assert same(spark, path)
