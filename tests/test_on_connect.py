"""Tests in a session of Spark Connect, at a server of their own.

They run in a process of their own: a process that has used a session of one kind can't use one of the other.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeds import drawn

pytestmark = pytest.mark.spark

PROJECT = Path(__file__).parents[1]

MORE = [
    "tests/spark/test_joins.py",
    "tests/spark/test_side_outputs.py",
    "tests/spark/savepoints/test_restore.py",
    "tests/checkpoints/inspect",
]
"""Tests of ordinary sessions that must pass there, too."""

OWN = [
    ["tests/connect/test_queries.py"],
    ["tests/connect/test_object_store_on_connect.py"],
]
OWN.append(["tests/connect", *(f"--ignore={path}" for (path,) in OWN)])
"""Tests of sessions of Connect alone, in parts of some three minutes each.

The object store's has a server of its own, and the first session that a process makes stays the active one.
"""

NOT_THERE = [
    # It changes a table with Delta's own package, which needs an extension of the server.
    "tests/spark/savepoints/test_restore.py::test_a_snapshot_that_was_changed_is_refused",
]


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "--connect", "-p", "no:cacheprovider", "-q", *arguments]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("files", drawn(MORE, 1))
def test_what_ordinary_sessions_do_runs_on_connect(files: str) -> None:
    left_out = [f"--deselect={each}" for each in NOT_THERE]
    assert "passed" in run("-m", "spark and not slow", files, *left_out)


@pytest.mark.slow
@pytest.mark.parametrize("part", drawn(OWN, 1), ids=lambda part: part[0].rpartition("/")[2])
def test_queries_and_pipelines_run_on_connect(part: list[str]) -> None:
    assert "passed" in run("-m", "connect and not more", *part)
