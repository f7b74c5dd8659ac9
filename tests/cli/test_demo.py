"""``cojoin demo`` as a person runs it: a process of its own, without a terminal."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cojoin.__main__ import main


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_ends_equal_with_its_table(tmp_path):
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "cojoin", "demo", "--rows", "3000", "--directory", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    out, err = ended.stdout, ended.stderr
    assert "\r" not in out + err
    assert "equal, row for row, all 2,995." in out
    assert "Nothing is lost" in out
    assert "Paused: " in out
    assert "Drained: all inputs are finished." in out
    assert "customers_event_time" in out
    assert f"the Delta table {folder / 'enriched'}" in out
    assert "100%" in err
    # Nothing of Spark's or Java's stands between our lines.
    assert not [line for line in (out + err).splitlines() if "WARN" in line or "log4j" in line or "ivy" in line.lower()]
    assert (folder / "enriched" / "_delta_log").is_dir()
    assert (folder / "spark.log").exists()


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_needs_neither_jars_nor_a_network(tmp_path):
    """Nor what an earlier start has left: its folder of jars is a new one, and so is the home where Ivy would look."""
    jars, home, closed = tmp_path / "none", tmp_path / "home", "127.0.0.1:9"
    host, port = closed.split(":")
    proxies = [f"-D{kind}.proxyHost={host} -D{kind}.proxyPort={port}" for kind in ("http", "https")]
    java = " ".join([os.environ.get("JDK_JAVA_OPTIONS", ""), f"-Duser.home={home}", *proxies])
    variables = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), f"http://{closed}")
    away = {**os.environ, **variables, "COJOIN_JARS": str(jars), "HOME": str(home), "JDK_JAVA_OPTIONS": java}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=away, capture_output=True, text=True, check=False, timeout=300)

    ended = run("-m", "cojoin", "demo", "--rows", "3000", "--directory", str(tmp_path / "demo"))
    assert ended.returncode == 0, ended.stderr
    assert "equal, row for row, all 2,995." in ended.stdout
    assert (tmp_path / "demo" / "enriched" / "_delta_log").is_dir()
    assert not jars.exists()
    # A session with Delta's jars would look for them there, and could not fetch them.
    refused = run("-c", "import cojoin as cj; cj.spark_session()")
    assert refused.returncode == 1
    assert "could not fetch io.delta:delta-spark_" in refused.stderr
    assert jars.is_dir()


def test_the_demo_does_not_empty_a_folder_that_is_not_its_own(tmp_path, capsys):
    (tmp_path / "precious.txt").touch()
    assert main(["demo", "--directory", str(tmp_path)]) == 2
    assert "it is neither empty nor an earlier demo's" in capsys.readouterr().err
    assert (tmp_path / "precious.txt").exists()


def test_the_local_demo_needs_no_spark(capsys):
    before = set(sys.modules)
    assert main(["demo", "--local", "--rows", "3000"]) == 0
    said = capsys.readouterr().out
    assert "equal, row for row, all 2,995." in said
    assert "Nothing is lost" in said
    assert "customers_event_time" in said
    assert not [name for name in set(sys.modules) - before if name.startswith(("pyspark", "py4j"))]


def test_the_local_demo_refuses_what_is_about_files(capsys):
    assert main(["demo", "--local", "--keep"]) == 2
    assert "--local writes no files; leave out --directory, --keep and --log" in capsys.readouterr().err
