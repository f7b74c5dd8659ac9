"""Some of the cases of other libraries' tests, on Spark: the rows are those in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.peers.cases import joined, load, pairs_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.peers.cases import Case

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_AXES = [each for each in load() if each.axis and not each.says and each.verdict in ("holds", "differs")]
CASES = _AXES[::17]


@pytest.mark.parametrize("case", CASES, ids=[each.id for each in CASES])
def test_a_case_on_spark(spark: SparkSession, case: Case) -> None:
    rows = joined(case, spark.createDataFrame).to_dataframe().toArrow()
    expected = case.peer if case.ours is None else case.ours
    assert isinstance(expected, list)
    assert pairs_of(rows) == [pair for pair in expected if not isinstance(pair[1], str)]
