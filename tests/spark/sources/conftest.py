"""What the tests of tables share: the choice of who reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture
def reader(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Have the tables read by one of ``changed_tables.READERS``, the test's parameter."""
    spark.conf.set("spark.cojoin.delta", request.param)
    yield request.param
    spark.conf.unset("spark.cojoin.delta")
