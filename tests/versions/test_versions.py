"""The tests that need Spark, with other versions of Spark and of the libraries than those of the lock file."""

from __future__ import annotations

import pytest

from tests.versions.environments import EVERY, SPARK_4_1, Environment
from tests.versions.matrix import run_all

pytestmark = pytest.mark.spark

SHORT = [
    "tests/spark/test_joins.py::test_a_stream_equals_its_oracle[temporal]",
    "tests/spark/sinks/test_sinks.py::test_delta_by_name_partitioned",
]
"""A join of streams with its oracle, and a query with its checkpoint and its table."""


def test_joins_and_a_query_work_with_an_older_spark() -> None:
    versions, passed = SPARK_4_1.run_tests(*SHORT)
    assert "pyspark 4.1." in versions
    assert passed == len(SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("environment", EVERY, ids=lambda each: each.name)
def test_what_needs_spark_works_with_other_versions(environment: Environment) -> None:
    _, passed = run_all(environment)
    assert passed > 300
