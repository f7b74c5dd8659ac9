"""A missing or too old Java is told in one sentence."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.session.versions import check_java

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of the PATH, without a JAVA_HOME."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2021-01-19' >&2\n")
    java.chmod(0o755)
    return java


def test_a_missing_java_is_told_in_one_sentence_with_the_cure(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(cj.EnvironmentSetupError) as caught:
        check_java()
    assert str(caught.value) == (
        "Spark needs Java 17 or later, and the PATH has no java: "
        "`sudo apt-get install openjdk-17-jre-headless` (or your system's package) installs it"
    )
    monkeypatch.setenv("JAVA_HOME", f"{nowhere}/jdk")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(cj.EnvironmentSetupError) as caught:
        check_java()
    assert str(caught.value) == (
        f"Spark needs Java 17 or later, and JAVA_HOME={nowhere}/jdk has no bin/java: "
        "`brew install openjdk@17` installs it"
    )


@pytest.mark.parametrize(("version", "major"), [("1.8.0_275", 8), ("11.0.20", 11)])
def test_a_java_that_is_too_old_is_told(nowhere: Path, version: str, major: int) -> None:
    java = fake_java(nowhere, version)
    with pytest.raises(cj.EnvironmentSetupError) as caught:
        check_java()
    assert str(caught.value).startswith(f"Spark needs Java 17 or later, and {java} is Java {major}: `")


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.3", "26-ea"])
def test_a_java_that_is_new_enough_is_taken_from_java_home_first(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    fake_java(nowhere, "1.8.0_275")
    fake_java(nowhere / "jdk" / "bin", version)
    monkeypatch.setenv("JAVA_HOME", f"{nowhere}/jdk")
    check_java()


@pytest.mark.parametrize("version", ["25", "25-ea", "25.0.1", "25.0.2"])
def test_a_java_that_gives_wrong_data_is_refused_by_name(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Also by the file beside it, without a start of it, and through a link on the PATH."""
    java = fake_java(nowhere, version)
    told = f"{java} is Java {version}, whose garbage collector gives wrong data (SPARK-55852); install Java 25.0.3 or "
    with pytest.raises(cj.EnvironmentSetupError) as caught:
        check_java()
    assert str(caught.value) == f"{told}later, or Java 17 or 21"
    java.unlink()
    fake_java(nowhere / "jdk" / "bin", "17.0.15")
    java.symlink_to(nowhere / "jdk" / "bin" / "java")
    (nowhere / "jdk" / "release").write_text(f'IMPLEMENTOR="Ours"\nJAVA_VERSION="{version}"\n')
    with pytest.raises(cj.EnvironmentSetupError) as caught:
        check_java()
    assert str(caught.value) == f"{told}later, or Java 17 or 21"
    (nowhere / "jdk" / "release").write_text('JAVA_VERSION="25.0.3"\n')
    monkeypatch.setenv("JAVA_HOME", f"{nowhere}/jdk")
    check_java()


def test_a_session_is_not_tried_without_java(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(cj.EnvironmentSetupError):
        cj.spark_session()
