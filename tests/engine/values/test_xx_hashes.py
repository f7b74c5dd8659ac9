"""Spark's hash of keys; ``tests/spark/batch/test_direct_reader.py`` compares it with Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from cojoin.engine.values.xx_hashes import is_hashed, spark_xx_hashes


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
