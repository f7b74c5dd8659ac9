"""Each version of Spark has its Delta, is warned of, or is refused with the reason."""

from __future__ import annotations

import warnings
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING

import pyspark
import pytest

import cojoin as cj
from cojoin.errors import EnvironmentSetupError
from cojoin.session import classic_session, sessions, versions
from cojoin.session.versions import check_kafka, delta_package, has_delta, java_fault, kafka_package, spark_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture
def installed_delta(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """What the test sets as delta-spark's version and needs is read anew, also after the test."""
    versions._delta.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    versions._delta.cache_clear()


def install(patch: pytest.MonkeyPatch, version: str, *needs: str) -> None:
    patch.setattr(versions, "installed_version", lambda _: version)
    patch.setattr(versions, "requires", lambda _: list(needs))


@pytest.mark.parametrize(
    ("version", "minor"),
    [("4.0.1", "4.0"), ("4.1.4", "4.1"), ("4.2.0", "4.2"), ("4.2.1", "4.2"), ("4.2.0.dev1", "4.2")],
)
def test_a_supported_version_has_its_packages(version: str, minor: str, installed_delta: pytest.MonkeyPatch) -> None:
    install(installed_delta, "4.4.0", "pyspark<=4.2.0,>=4.0.1", "importlib_metadata>=1.0.0")
    assert spark_version(version) == minor
    assert has_delta(version)
    assert delta_package(version) == f"io.delta:delta-spark_{minor}_2.13:4.4.0"
    assert kafka_package(version).endswith(f":{version}")


@pytest.mark.parametrize(
    ("installed", "needs", "spark", "package"),
    [
        ("4.4.1", "pyspark<=4.2.0,>=4.0.1", "4.2.1", "4.2_2.13:4.4.0"),
        ("4.5.0", "pyspark<4.4.0,>=4.0.1", "4.3.2", "4.3_2.13:4.5.0"),
        ("4.5.0", "pyspark<4.4.0,>=4.0.1", "4.4.0", None),
        ("4.5.0", "pyspark<=4.3.0,>=4.0.1", "4.3.0", "4.3_2.13:4.5.0"),
        ("4.4.0", "pyspark<=4.2.0,>=4.0.1", "4.3.0", None),
        ("4.5.0", "pyspark", "4.3.0", None),
        ("4.0.0", "pyspark>=4.0.0,<4.1.0", "4.2.0", "4.2_2.13:4.4.0"),
    ],
)
def test_the_installed_delta_says_for_which_spark_it_has_a_build(
    installed_delta: pytest.MonkeyPatch, installed: str, needs: str, spark: str, package: str | None
) -> None:
    install(installed_delta, installed, needs)
    installed_delta.setattr(versions, "_WARNED", {spark})
    assert has_delta(spark) == (package is not None)
    if package is not None:
        assert delta_package(spark) == f"io.delta:delta-spark_{package}"


@pytest.mark.parametrize("minor", ["4.0", "4.1", "4.2"])
def test_without_delta_spark_each_spark_has_its_jars(installed_delta: pytest.MonkeyPatch, minor: str) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    installed_delta.setattr(versions, "installed_version", missing)
    assert delta_package(f"{minor}.1") == f"io.delta:delta-spark_{minor}_2.13:4.4.0"
    assert not has_delta("4.3.0")


def test_a_spark_without_a_delta_is_refused_where_delta_is_used(installed_delta: pytest.MonkeyPatch) -> None:
    install(installed_delta, "4.4.0", "pyspark<=4.2.0,>=4.0.1")
    assert spark_version("4.3.0") == "4.3"
    with pytest.raises(EnvironmentSetupError) as caught:
        delta_package("4.3.0")
    assert str(caught.value) == (
        "Delta 4.4.0 has no build for Spark 4.3.0, only for those up to 4.2, so tables that only Delta's own "
        "classes read or write can't be used: install PySpark 4.2: pip install 'pyspark==4.2.*'; or a later Delta once "
        "there is one for this Spark: pip install 'pyspark==4.3.0' 'delta-spark>4.4.0'. Streams and static sides of "
        "plain Delta tables, files and topics, into plain Delta tables, need no Delta of Spark's"
    )


def test_a_jar_for_another_spark_is_refused_by_its_name(installed_delta: pytest.MonkeyPatch) -> None:
    install(installed_delta, "4.4.0", "pyspark<=4.2.0,>=4.0.1")
    check = classic_session._check_build
    check("4.2.1", "file:/jars/io.delta_delta-spark_4.2_2.13-4.4.0.jar")
    check("4.2.1", "file:/databricks/jars/delta.jar")
    check("4.2.1", "")
    with pytest.raises(EnvironmentSetupError, match=r"has no build for Spark 4\.3\.0"):
        check("4.3.0", "file:/jars/delta-spark_4.2_2.13-4.4.0.jar")
    with pytest.raises(EnvironmentSetupError, match=r"4\.1_2\.13-4\.4\.0\.jar is built for Spark 4\.1, and this"):
        check("4.2.0", "file:/jars/io.delta_delta-spark_4.1_2.13-4.4.0.jar")
    # Delta 4.0 and earlier have no version of Spark in the names of their jars.
    check("4.0.1", "file:/jars/io.delta_delta-spark_2.13-4.0.0.jar")
    for name, spark in (("delta-spark_2.13-4.0.1.jar", "4.0"), ("delta-spark_2.12-3.3.2.jar", "3.5")):
        with pytest.raises(EnvironmentSetupError, match=f"{name} is built for Spark {spark}, and this session is of"):
            check("4.2.0", f"file:/jars/{name}")


@pytest.mark.parametrize("version", ["4.0.0", "3.5.6", "odd"])
def test_a_version_that_is_too_old_is_refused(version: str) -> None:
    told = f"cojoin works with PySpark 4.0.1 and later, and this is {version}: .* pip install 'pyspark>=4.0.1'"
    with pytest.raises(EnvironmentSetupError, match=told):
        spark_version(version)


def test_a_newer_version_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_WARNED", set())
    with pytest.warns(
        UserWarning, match=r"tried with PySpark 4\.0\.1 to 4\.3, and this is 4\.4\.0: untested are"
    ) as seen:
        assert spark_version("4.4.0") == "4.4"
    assert "python -m cojoin.session.probes tries, in another session" in str(seen[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert spark_version("4.4.0") == "4.4"
        assert spark_version("4.3.7") == "4.3"


@pytest.mark.spark
def test_a_session_of_another_version_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own session needs no jars of cojoin's; its version is looked at before Spark's modules are imported."""
    frame = spark.range(1).selectExpr("id", "timestamp_micros(id) at")
    monkeypatch.setattr(pyspark, "__version__", "4.0.0")
    with pytest.raises(EnvironmentSetupError, match=r"^connect\(\): expected pyspark 4\.0\.1 or later, found 4\.0\.0"):
        cj.connect(cj.Input(frame, key="id", event_time="at"), cj.Input(frame, key="id", event_time="at"))
    with pytest.raises(EnvironmentSetupError, match=r"and this is 4\.0\.0: it lacks"):
        sessions.check_session(spark, "input 'trades'")


@pytest.mark.spark
def test_a_session_of_a_java_with_wrong_data_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = spark.range(1).selectExpr("id", "timestamp_micros(id) at")
    seen: list[str] = []

    def fault(version: str, java: str) -> str | None:
        seen.append(version)
        return java_fault("25.0.1", java)

    monkeypatch.setattr(classic_session, "java_fault", fault)
    monkeypatch.setattr(classic_session, "_CHECKED", set())
    with pytest.raises(EnvironmentSetupError, match=r"the Java of its Spark session is Java 25\.0\.1, whose garbage"):
        cj.connect(cj.Input(frame, key="id", event_time="at"), cj.Input(frame, key="id", event_time="at"))
    assert java_fault(seen[0], "") is None
    assert int(seen[0].split(".")[0]) >= 17


@pytest.mark.parametrize("version", ["4.2.0", "4.3.1"])
def test_topics_need_a_new_spark(version: str) -> None:
    check_kafka(version)
    with pytest.raises(EnvironmentSetupError, match=r"cojoin.kafka needs PySpark 4.2 or later, .* this is 4.1.4; inst"):
        check_kafka("4.1.4")
