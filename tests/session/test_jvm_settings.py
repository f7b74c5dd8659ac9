"""The JVM starts with options of cojoin's, and those of the user win."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from cojoin.session.jvm_settings import jvm_settings

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS, EXTRA = "spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the machine that runs the tests."""
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


def test_the_users_own_options_come_after_ours() -> None:
    alone = jvm_settings({})[OPTIONS]
    assert jvm_settings({OPTIONS: "-Xss4m"}) == {OPTIONS: f"{alone} -Xss4m"}
    assert jvm_settings({EXTRA: "-Xss4m"}) == {OPTIONS: alone}


@pytest.mark.parametrize(
    "theirs", ["-XX:TieredStopAtLevel=1", "-XX:-TieredCompilation", "-XX:CompileThresholdScaling=2", "-Xint", "@mine"]
)
def test_who_decides_about_the_compiler_decides(monkeypatch: pytest.MonkeyPatch, theirs: str) -> None:
    assert "Tier4" not in jvm_settings({EXTRA: theirs})[OPTIONS]
    monkeypatch.setenv("JDK_JAVA_OPTIONS", theirs)
    assert "Tier4" not in jvm_settings({})[OPTIONS]


def test_java_takes_the_options() -> None:
    words = [each for each in jvm_settings({})[OPTIONS].split() if each.startswith("-XX:")]
    assert len(words) == 4
    subprocess.run(["java", *words, "-version"], check=True, capture_output=True)


def test_a_program_of_spark_submit_has_its_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert jvm_settings({}) == {}
