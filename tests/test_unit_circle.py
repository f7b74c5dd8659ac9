"""The unit circle needs pytest, and what the engine itself needs: no Java, no Spark, no other package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import _OPTIONAL

PROJECT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_it_runs_where_nothing_else_is_installed(tmp_path: Path) -> None:
    # A package that is None can't be imported; conftest.py itself blocks Spark.
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({[*_OPTIONAL, 'xdist']}))\n"
        "import pytest; sys.exit(pytest.main(['-m', 'unit', '-q', '-p', 'no:cacheprovider']))"
    )
    # Neither Java nor a home to write to.
    env = {"PATH": str(tmp_path), "HOME": "/proc", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert any(line.endswith("hypothesis is not installed") for line in skipped)
    assert [line for line in skipped if "is not installed" not in line] == []
