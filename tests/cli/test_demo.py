"""``cojoin demo`` as a person runs it: a process of its own, without a terminal."""

from __future__ import annotations

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
