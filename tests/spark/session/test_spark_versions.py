"""Each version of Spark has its Delta, or is refused with the reason."""

from __future__ import annotations

import pytest

from cojoin.errors import EnvironmentSetupError
from cojoin.spark.session.spark_versions import check_kafka, delta_package, kafka_package, spark_version


@pytest.mark.parametrize(
    ("version", "minor"), [("4.0.1", "4.0"), ("4.1.4", "4.1"), ("4.2.0", "4.2"), ("4.2.0.dev1", "4.2")]
)
def test_a_supported_version_has_its_packages(version: str, minor: str) -> None:
    assert spark_version(version) == minor
    assert delta_package(version) == f"io.delta:delta-spark_{minor}_2.13:4.4.0"
    assert kafka_package(version).endswith(f":{version}")


@pytest.mark.parametrize(
    ("version", "why"),
    [("4.3.0", "there is no Delta 4.4.0 for it yet"), ("3.5.6", "install one of those"), ("odd", "and this is odd")],
)
def test_another_version_is_refused_with_the_reason(version: str, why: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=why):
        delta_package(version)


def test_topics_need_the_newest() -> None:
    check_kafka("4.2.0")
    with pytest.raises(EnvironmentSetupError, match=r"cojoin.kafka needs PySpark 4.2, .* this is 4.1.4; install"):
        check_kafka("4.1.4")
