from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from cojoin.spark.arrow_limits import counted_by_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIMITS = {"spark.sql.execution.arrow.maxBytesPerBatch": "4096", "spark.sql.execution.arrow.maxRecordsPerBatch": "9000"}


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session with limits of its own, as a stream's is."""
    own = spark.newSession()
    for name, value in LIMITS.items():
        own.conf.set(name, value)
    return own


def sizes(session: SparkSession) -> list[int]:
    """How many rows cross at once, of 3,000 rows of one number."""

    def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from (pa.RecordBatch.from_pydict({"rows": [batch.num_rows]}) for batch in batches)

    return [row.rows for row in session.range(0, 3000, 1, 1).mapInArrow(counted, "rows long").collect()]


@pytest.mark.parametrize("row_bytes", [1, 4096])
def test_small_rows_are_counted_and_nothing_else_is(session: SparkSession, row_bytes: int) -> None:
    with counted_by_rows(session, row_bytes):
        assert sizes(session) == [1024, 1024, 952]
    assert {name: session.conf.get(name) for name in LIMITS} == LIMITS


@pytest.mark.parametrize("row_bytes", [None, 4097])
def test_rows_that_are_large_or_unknown_keep_the_limit_of_bytes(session: SparkSession, row_bytes: int | None) -> None:
    with counted_by_rows(session, row_bytes):
        assert max(sizes(session)) < 1000


def test_the_limits_come_back_after_a_fault(session: SparkSession) -> None:
    with pytest.raises(ZeroDivisionError), counted_by_rows(session, 10):
        _ = 1 / 0
    assert {name: session.conf.get(name) for name in LIMITS} == LIMITS
