"""Every private name has a probe, and all probes work with the installed Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cojoin.session.probes import PROBES, Probe, run_probes
from tests.test_private_names import private_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEEDS_NO_PROBE = {"Py4JError", "Py4JJavaError", "connect", "py4j", "_1", "_2"}
"""Errors' classes, which every call has, and the names of Scala's pairs, in the probe of a plan's leaves."""


def test_every_private_name_has_a_probe() -> None:
    probed = " ".join(each.name for each in PROBES)
    assert sorted(name for name in private_names("session") - _NEEDS_NO_PROBE if name not in probed) == []
    assert len({each.name for each in PROBES}) == len(PROBES)


def test_a_name_that_is_missing_or_behaves_otherwise_is_told() -> None:
    sample: Any = object()
    missing = Probe("Spark.gone", "nothing", "4.0", "", lambda found: bool(found.gone))
    other = Probe("Spark.other", "nothing", "4.0", "", lambda _: False)
    assert missing.failure(sample) == "AttributeError: 'object' object has no attribute 'gone'"
    assert other.failure(sample) == "it exists, and does something else"


@pytest.mark.spark
def test_the_installed_spark_has_all_of_it(spark: SparkSession) -> None:
    assert {name: why for name, why in run_probes(spark).items() if why is not None} == {}
