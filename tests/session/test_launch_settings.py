"""The JVM starts with the user's settings, a quiet log and options of cojoin's, of which the user's win."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cojoin.session.launch_settings import jvm_settings, settings_of, without_jars

if TYPE_CHECKING:
    from pathlib import Path
OPTIONS, OURS = "spark.driver.defaultJavaOptions", "cojoin/session/log4j2.properties"
FIRST_START = """
import cojoin as cj
spark = cj.spark_session(master="local[1]", conf={"spark.ui.enabled": "false"})
spark.sql("select id, timestamp_seconds(id) as at from range(3)").write.format("delta").save("table")
left, right = (cj.Input(cj.sources.delta("./table"), "id", "at", name=name) for name in ("left", "right"))
joined = cj.connect(left, right, key_groups=1).asof_join(suffixes=("", "_right"))
for drain in (False, True):
    trigger = cj.Trigger.available_now(drain=drain)
    query = joined.start(output=cj.sinks.delta("./out"), checkpoint="./checkpoint", trigger=trigger)
    query.await_termination(progress=False)
log = spark._jvm.org.apache.logging.log4j.LogManager.getLogger("org.apache.spark.util.Utils")
log.info("an information"), log.warn("a warning"), log.error("an error")
spark.stop()
"""

DEFAULTS, EXTRA = "spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions"


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


def test_a_file_of_defaults_in_any_encoding_is_read(defaults: Path) -> None:
    defaults.write_bytes("# Größe\nspark.a 1\nspark.b x\N{NEXT LINE}y\n".encode("latin-1"))
    assert dict(settings_of({})) == {"spark.a": "1", "spark.b": "x\N{REPLACEMENT CHARACTER}y"}
    defaults.write_text("spark.b x\N{NEXT LINE}y\n", "utf-8")
    assert dict(settings_of({})) == {"spark.b": "x\N{NEXT LINE}y"}


def test_an_option_has_the_next_word_as_its_value_whatever_it_begins_with(monkeypatch: pytest.MonkeyPatch) -> None:
    for typed in (
        "--driver-java-options -Dx=y",
        "--driver-java-options=-Dx=y",
        "--conf spark.driver.extraJavaOptions=-Dx=y",
    ):
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{typed} --jars -x.jar -c a=-1 pyspark-shell")
        assert dict(settings_of({})) == {"spark.driver.extraJavaOptions": "-Dx=y", "spark.jars": "-x.jar", "a": "-1"}
        with without_jars():
            assert sorted(shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])) == [
                "--conf",
                "--conf",
                "a=-1",
                "pyspark-shell",
                "spark.driver.extraJavaOptions=-Dx=y",
            ]


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


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the machine that runs the tests."""
    for name in (
        "PYSPARK_GATEWAY_PORT",
        "PYSPARK_SUBMIT_ARGS",
        "SPARK_SUBMIT_OPTS",
        "LOG4J_CONFIGURATION_FILE",
        "JDK_JAVA_OPTIONS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


def test_the_log_is_quiet_unless_the_user_decides_about_it() -> None:
    assert jvm_settings({})[OPTIONS].startswith("-Dlog4j2.configurationFile=file:///")


@pytest.mark.parametrize(
    "conf",
    [
        {OPTIONS: "-Dlog4j2.configurationFile=/etc/log4j2.xml"},
        {"spark.driver.extraJavaOptions": "-Dlog4j.configurationFile=/etc/log4j2.xml"},
        {"spark.log.structuredLogging.enabled": True},
    ],
)
def test_the_users_own_log_settings_win(conf: dict[str, object]) -> None:
    assert OURS not in jvm_settings(conf)[OPTIONS]


@pytest.mark.parametrize("name", ["LOG4J_CONFIGURATION_FILE", "JAVA_TOOL_OPTIONS"])
def test_so_do_those_of_the_environment(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "-Dlog4j2.configurationFile=/etc/log4j2.xml")
    assert OURS not in jvm_settings({})[OPTIONS]


def test_so_does_a_file_in_sparks_folder_of_settings(tmp_path: Path) -> None:
    (tmp_path / "log4j2.properties").write_text("rootLogger.level = info\n", "utf-8")
    assert OURS not in jvm_settings({})[OPTIONS]


@pytest.mark.slow
@pytest.mark.spark
def test_starts_of_sessions_and_queries_say_one_line_of_java_and_warnings_remain(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_START], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stderr.splitlines() if "Fetching" not in line]
    assert done.stdout == ""
    # The virtual machine itself says the first, before any setting.
    assert lines[0] == "WARNING: Using incubator modules: jdk.incubator.vector"
    assert [line.split(" ", 2)[2] for line in lines[1:]] == ["WARN Utils: a warning", "ERROR Utils: an error"]


def test_the_users_own_options_come_after_ours() -> None:
    alone = jvm_settings({})[DEFAULTS]
    assert jvm_settings({DEFAULTS: "-Xss4m"}) == {DEFAULTS: f"{alone} -Xss4m"}
    assert jvm_settings({EXTRA: "-Xss4m"}) == {DEFAULTS: alone}


@pytest.mark.parametrize(
    "theirs", ["-XX:TieredStopAtLevel=1", "-XX:-TieredCompilation", "-XX:CompileThresholdScaling=2", "-Xint", "@mine"]
)
def test_who_decides_about_the_compiler_decides(monkeypatch: pytest.MonkeyPatch, theirs: str) -> None:
    assert "Tier4" not in jvm_settings({EXTRA: theirs})[DEFAULTS]
    monkeypatch.setenv("JDK_JAVA_OPTIONS", theirs)
    assert "Tier4" not in jvm_settings({})[DEFAULTS]


def test_java_takes_the_options() -> None:
    words = [each for each in jvm_settings({})[DEFAULTS].split() if each.startswith("-XX:")]
    assert len(words) == 4
    subprocess.run(["java", *words, "-version"], check=True, capture_output=True)


def test_a_program_of_spark_submit_has_its_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert jvm_settings({}) == {}
