"""Key groups' labels: as Spark hashes them, they spread evenly."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cojoin.engine.key_groups import group_labels, spark_hash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
