"""The session's log is quiet unless the user decides about it, and errors remain."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cojoin.session.jvm_settings import jvm_settings

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS, OURS = "spark.driver.defaultJavaOptions", "cojoin/session/log4j2.properties"
FIRST_START = """
import cojoin as cj
spark = cj.spark_session(master="local[1]", conf={"spark.ui.enabled": "false"})
spark.range(1).write.format("delta").save("table")
log = spark._jvm.org.apache.logging.log4j.LogManager.getLogger("org.apache.spark.util.Utils")
log.info("an information"), log.warn("a warning"), log.error("an error")
spark.stop()
"""


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
def test_a_start_says_one_line_of_java_and_warnings_remain(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_START], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stderr.splitlines() if "Fetching" not in line]
    assert done.stdout == ""
    # The virtual machine itself says the first, before any setting.
    assert lines[0] == "WARNING: Using incubator modules: jdk.incubator.vector"
    assert [line.split(" ", 2)[2] for line in lines[1:]] == ["WARN Utils: a warning", "ERROR Utils: an error"]
