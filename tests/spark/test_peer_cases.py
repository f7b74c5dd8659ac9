"""Some of the cases of other libraries' tests, on Spark: the rows are those in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.peers.cases import joined, load, pairs_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.peers.cases import Case

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def is_of_spark(case: Case) -> bool:
    """Return whether Spark has the types of a case's columns."""
    kinds = [kind for side in (case.left, case.right) for kind, _ in side.values()]
    return not any(kind.startswith("uint") for kind in kinds)


_RUN = [each for each in load() if not each.says and each.verdict in ("holds", "differs")]
CASES = [each for each in _RUN if each.axis and is_of_spark(each)][::17]


@pytest.mark.parametrize("case", CASES, ids=[each.id for each in CASES])
def test_a_case_on_spark(spark: SparkSession, case: Case) -> None:
    rows = joined(case, spark.createDataFrame).to_dataframe().toArrow()
    expected = case.peer if case.ours is None else case.ours
    assert isinstance(expected, list)
    assert pairs_of(rows) == [pair for pair in expected if not isinstance(pair[1], str)]
