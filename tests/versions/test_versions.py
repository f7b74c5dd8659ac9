"""The tests that need Spark, with other versions of Spark and of the libraries than those of the lock file."""

from __future__ import annotations

import pytest

from tests.versions.environments import EVERY, Environment
from tests.versions.matrix import run_all

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("environment", EVERY, ids=lambda each: each.name)
def test_what_needs_spark_works_with_other_versions(environment: Environment) -> None:
    _, passed = run_all(environment)
    assert passed > 300
