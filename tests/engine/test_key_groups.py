"""Hashes are Spark's own, and labels spread key groups evenly over Spark's partitions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from cojoin.engine.key_groups import group_labels, is_hashed, spark_hash, spark_xx_hashes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_slices_and_nulls_have_the_hashes_of_their_rows() -> None:
    texts = pa.array(["a", None, "", "ß" * 40, "a"])
    numbers = pa.array([1, 2, None, -4, 1], pa.int32())
    whole = spark_xx_hashes(pa.table({"k": texts, "n": numbers}))
    assert len(set(whole.tolist())) == 4
    for begin in range(5):
        part = pa.table({"k": texts.slice(begin), "n": numbers.slice(begin)})
        assert np.array_equal(spark_xx_hashes(part), whole[begin:])
    assert spark_xx_hashes(pa.table({"k": pa.nulls(2, pa.string())})).tolist() == [42, 42]


def test_no_rows_have_no_hashes() -> None:
    for dtype in (pa.int64(), pa.string(), pa.bool_(), pa.decimal128(9, 2)):
        assert len(spark_xx_hashes(pa.table({"k": pa.array([], dtype)}))) == 0


@pytest.mark.parametrize("dtype", [pa.float64(), pa.decimal128(19, 0), pa.list_(pa.int8()), pa.uint8()])
def test_other_types_are_not_hashed(dtype: pa.DataType) -> None:
    assert not is_hashed(dtype)


@pytest.mark.spark
def test_the_hash_is_sparks(spark: SparkSession) -> None:
    values = [*range(50), *group_labels(64), 2**31 - 1]
    frame = spark.createDataFrame([(value,) for value in values], "value int").selectExpr("hash(value) h")
    assert [row.h for row in frame.collect()] == spark_hash(np.array(values)).tolist()


@pytest.mark.parametrize("key_groups", [1, 3, 8, 32, 100, 32_768])
@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 5, 6, 8, 10, 16, 32])
def test_groups_spread_evenly_over_shuffle_partitions(key_groups: int, partitions: int) -> None:
    load = Counter((spark_hash(np.array(group_labels(key_groups))) % partitions).tolist())
    assert max(load.values()) == -(-key_groups // partitions)


@pytest.mark.parametrize("key_groups", [1, 7, 10_080, 10_081, 32_768])
def test_every_group_has_a_label_of_its_own(key_groups: int) -> None:
    labels = group_labels(key_groups)
    assert len(set(labels)) == len(labels) == key_groups
    assert min(labels) >= 0
    assert max(labels) < 2**31
