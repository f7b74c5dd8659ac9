"""What Spark's launcher will take from a user's settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cojoin.session.submit_settings import settings_of, without_jars

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    return tmp_path / "spark-defaults.conf"


def test_the_file_of_defaults_is_one_of_javas_properties(defaults: Path) -> None:
    defaults.write_text(
        "# a comment\n! another\n\nspark.jars.ivySettings /etc/ivy.xml \nspark.jars.repositories=https://a/b?c=d\n"
        "spark.driver.extraJavaOptions : -Dhttps.proxyHost=proxy \\\n   -Dhttps.proxyPort=3128\n"
    )
    found = settings_of({})
    assert dict(found) == {
        "spark.jars.ivySettings": "/etc/ivy.xml",
        "spark.jars.repositories": "https://a/b?c=d",
        "spark.driver.extraJavaOptions": "-Dhttps.proxyHost=proxy -Dhttps.proxyPort=3128",
    }


def test_the_command_line_wins_over_the_program_and_both_over_the_defaults(
    defaults: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults.write_text("a 1\nb 1\nc 1\n")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf a=3 --repositories https://mirror pyspark-shell")
    found = settings_of({"a": 2, "b": 2})
    assert [found[name] for name in "abc"] == ["3", "2", "1"]
    assert found["spark.jars.repositories"] == "https://mirror"


def test_a_file_that_the_command_line_names_takes_the_defaults_place(
    defaults: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults.write_text("a 1\nb 1\n")
    (tmp_path / "mine.conf").write_text("a 2\n")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {tmp_path}/mine.conf pyspark-shell")
    assert dict(settings_of({})) == {"a": "2"}


def test_jars_and_packages_leave_the_command_line_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = "--name 'my job' --packages a:b:1 --jars /x.jar --conf a=b --conf spark.jars.packages=c:d:2 pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", typed)
    with without_jars():
        assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--conf a=b --name 'my job' pyspark-shell"
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == typed
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf a=b pyspark-shell")
    with without_jars():
        assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--conf a=b pyspark-shell"
