"""The jars of a session: ours beside the user's, wherever these are named."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from cojoin.errors import EnvironmentSetupError
from cojoin.session import jars
from cojoin.session.jars import IN_SPARK, jar_settings
from cojoin.session.versions import delta_package, kafka_package, spark_version

if TYPE_CHECKING:
    from pathlib import Path

DELTA_JAR = f"io.delta_delta-spark_{spark_version()}_2.13-4.4.0.jar"


@pytest.fixture(autouse=True)
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has Delta's jars, and settings of nobody's."""
    monkeypatch.setenv("COJOIN_JARS", str(tmp_path / "jars"))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    return fill([delta_package()], IN_SPARK, DELTA_JAR)


def fill(packages: list[str], excludes: tuple[str, ...], name: str) -> Path:
    folder = jars.cache_folder() / jars._name(packages, excludes)
    folder.mkdir(parents=True)
    (folder / name).write_bytes(b"jar")
    (folder / "jars.txt").write_text(f"3 {name}\n")
    return folder / name


def settings(conf: dict[str, str], *, kafka: bool = False) -> dict[str, str]:
    def say(text: str) -> None:
        pytest.fail(text)

    return jar_settings(conf, kafka=kafka, say=say)


def test_a_session_takes_them_from_the_folder(fetched: Path) -> None:
    assert settings({}) == {"spark.jars": str(fetched), "spark.jars.packages": ""}


def test_jars_of_the_user_stay(fetched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings({"spark.jars": "/my.jar, /your.jar"})["spark.jars"] == f"/my.jar,/your.jar,{fetched}"
    (tmp_path / "spark-defaults.conf").write_text("# mine\nspark.jars   /of/defaults.jar\nspark.other=x\n")
    assert settings({})["spark.jars"] == f"/of/defaults.jar,{fetched}"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars /typed.jar pyspark-shell")
    assert settings({"spark.jars": "/my.jar"})["spark.jars"] == f"/typed.jar,{fetched}"


def test_packages_of_the_user_are_fetched_with_ours(fetched: Path, tmp_path: Path) -> None:
    jar = fill([delta_package(), "my:thing:1.0"], (), "all.jar")
    expected = {"spark.jars": str(jar), "spark.jars.packages": ""}
    assert settings({"spark.jars.packages": "my:thing:1.0"}) == expected
    (tmp_path / "spark-defaults.conf").write_text("spark.jars.packages = my:thing:1.0\n")
    assert settings({}) == expected


def test_a_delta_of_the_user_is_the_one(fetched: Path) -> None:
    older = "io.delta:delta-spark_2.13:4.0.0"
    jar = fill([older], (), "older.jar")
    assert settings({"spark.jars.packages": older})["spark.jars"] == str(jar)
    for own in ("/lib/delta-spark_4.2_2.13-4.4.1.jar", f"hdfs:///lib/{DELTA_JAR}"):
        assert settings({"spark.jars": own})["spark.jars"] == own


def test_a_delta_in_sparks_own_folder_or_on_its_class_path_is_the_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "spark" / "jars"
    own.mkdir(parents=True)
    (own / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    assert settings({"spark.driver.extraClassPath": f"/x.jar:{own}/*"})["spark.jars"] == ""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    assert settings({})["spark.jars"] == ""


def test_an_empty_text_asks_for_none() -> None:
    assert settings({"spark.jars.packages": ""}, kafka=True)["spark.jars"] == ""


def test_kafka_is_fetched_with_delta() -> None:
    jar = fill([delta_package(), kafka_package()], IN_SPARK, "both.jar")
    assert settings({}, kafka=True)["spark.jars"] == str(jar)


def test_the_versions_are_those_of_the_packages_for_python() -> None:
    assert delta_package().endswith(f":{version('delta-spark')}")
    assert kafka_package().endswith(f":{version('pyspark')}")


@pytest.mark.parametrize(("mode", "reason"), [(0o644, "Permission denied"), (None, "No such file or directory")])
def test_a_launcher_that_can_not_be_started_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None, reason: str
) -> None:
    launcher = tmp_path / "spark" / "bin" / "spark-submit"
    launcher.parent.mkdir(parents=True)
    if mode is not None:
        launcher.touch(mode)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setattr("pathlib.Path.home", lambda: tmp_path)
    with pytest.raises(EnvironmentSetupError) as caught:
        jars.fetch_jars(["my:thing:1.0"], say=lambda _: None)
    assert str(caught.value).startswith(
        f"could not fetch my:thing:1.0: Spark's launcher {launcher} can't be started: {reason}; see that this file may"
    )


def test_under_spark_submit_its_command_line_has_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert settings({}) == {}
