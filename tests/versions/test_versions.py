"""The tests that need Spark, with other versions of Spark and of the libraries than those of the lock file.

The run's seed draws one environment, and a sixth of the test files, so that over some weeks all are covered;
``.ci/run --slow --all`` runs that sixth in each environment, and ``python -m tests.versions.matrix`` each file in each.
"""

from __future__ import annotations

from operator import attrgetter

import pytest

from cojoin.session.probes import PROBES
from tests.seeds import drawn
from tests.versions.environments import EVERY, WITHOUT_DELTA, Environment
from tests.versions.matrix import run_all

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("environment", drawn(EVERY, 1), ids=attrgetter("name"))
def test_some_of_what_needs_spark_works_with_other_versions(environment: Environment) -> None:
    _, passed = run_all(environment, share=6)
    assert passed > 25


def test_a_query_runs_on_the_newest_spark_where_delta_has_no_build() -> None:
    output = WITHOUT_DELTA.run("cojoin", "demo")
    assert [*WITHOUT_DELTA.folder().glob("pyspark-4.3*.dist-info")]
    assert "equal, row for row, all 199,995" in output
    shown = WITHOUT_DELTA.run("tests.versions.without_delta")
    assert "Spark 4.3" in shown
    assert "all 8 orders, twice, and counted; Delta's classes refused" in shown


def test_all_that_is_not_public_holds_on_the_newest_spark() -> None:
    """The command ends with 1 where a probe fails, and its output names those."""
    shown = WITHOUT_DELTA.run("cojoin.session.probes")
    assert shown.startswith("PySpark 4.3")
    assert all(each.name in shown for each in PROBES)
