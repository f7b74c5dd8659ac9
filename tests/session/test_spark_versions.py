"""Each version of Spark has its Delta, or is refused with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
import pytest

import cojoin as cj
from cojoin.errors import EnvironmentSetupError
from cojoin.session.spark_versions import check_kafka, delta_package, kafka_package, spark_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("version", "minor"), [("4.0.1", "4.0"), ("4.1.4", "4.1"), ("4.2.0", "4.2"), ("4.2.0.dev1", "4.2")]
)
def test_a_supported_version_has_its_packages(version: str, minor: str) -> None:
    assert spark_version(version) == minor
    assert delta_package(version) == f"io.delta:delta-spark_{minor}_2.13:4.4.0"
    assert kafka_package(version).endswith(f":{version}")


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("4.3.0", "Delta 4.4.0 does not allow it yet"),
        ("4.2.1", "works with PySpark 4.0.1 to 4.2.0, and this is 4.2.1: Delta 4.4.0 does not allow it yet"),
        ("4.0.0", "it lacks what cojoin needs"),
        ("3.5.6", "install one of those, such as pip install 'pyspark==4.2.0'"),
        ("odd", "and this is odd"),
    ],
)
def test_another_version_is_refused_with_the_reason(version: str, why: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=why):
        delta_package(version)


@pytest.mark.spark
def test_a_session_of_another_version_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own session needs no jars of cojoin's, so this is where its version is looked at."""
    frame = spark.range(1).selectExpr("id", "timestamp_micros(id) at")
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    with pytest.raises(EnvironmentSetupError, match=r"and this is 4\.3\.0: Delta"):
        cj.connect(cj.Input(frame, key="id", event_time="at"), cj.Input(frame, key="id", event_time="at"))


def test_topics_need_the_newest() -> None:
    check_kafka("4.2.0")
    with pytest.raises(EnvironmentSetupError, match=r"cojoin.kafka needs PySpark 4.2, .* this is 4.1.4; install"):
        check_kafka("4.1.4")
