"""The tests that need Spark, with other versions of Spark and of the libraries than those of the lock file.

The run's seed draws one environment, so that over some days all are covered; ``.ci/run --slow --all`` takes each.
"""

from __future__ import annotations

import random

import pytest

from tests.seeds import SEED
from tests.versions.environments import EVERY, Environment
from tests.versions.matrix import run_all

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DRAWN = random.Random(SEED).choice(EVERY)


@pytest.mark.parametrize(
    "environment",
    [pytest.param(each, id=each.name, marks=() if each is DRAWN else pytest.mark.more) for each in EVERY],
)
def test_what_needs_spark_works_with_other_versions(environment: Environment) -> None:
    _, passed = run_all(environment)
    assert passed > 300
