"""What is random has one seed, which stands at the top of a run and under each failure, and can be set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hypothesis.core
from hypothesis import settings

from tests.seeds import SEED, SEED_TEXT

PROJECT = Path(__file__).resolve().parents[1]
FAILING = """
from hypothesis import given, strategies

@given(strategies.integers())
def test_it(number):
    assert number != number
"""


def test_the_seed_that_was_set_is_told_with_each_failure(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "tests.conftest", str(tmp_path)]
    # Hypothesis takes CI for a wish to draw the same examples each time.
    env = os.environ | {"COJOIN_SEED": "17", "CI": "true", "PYTHONPATH": str(PROJECT)}
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "seed: COJOIN_SEED=17\n" in ended.stdout
    assert "COJOIN_SEED=17 draws the same again" in ended.stdout


def test_the_processes_of_a_run_have_its_seed() -> None:
    assert os.environ["COJOIN_SEED"] == str(SEED)
    assert f"COJOIN_SEED={SEED}" == SEED_TEXT


def test_hypothesis_draws_from_it() -> None:
    assert hypothesis.core.global_force_seed is not None
    assert not settings().derandomize
