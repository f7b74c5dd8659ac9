"""The unit circle needs pytest, pandas, and what the engine itself needs: no Java, no Spark, no other package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import _OPTIONAL

PROJECT = Path(__file__).resolve().parents[1]

NAMES = sorted({*_OPTIONAL, "xdist"} - {"pandas"})
MISSING = f"""
import importlib.util, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name in {NAMES} else None
    def create_module(self, spec):
        raise ModuleNotFoundError(f"No module named '{{spec.name}}'", name=spec.name)
    def exec_module(self, module):
        pass
sys.meta_path.insert(0, Missing())
import pytest
sys.exit(pytest.main(["-m", "unit", "-q", "-p", "no:cacheprovider"]))
"""


@pytest.mark.slow
def test_it_runs_where_nothing_else_is_installed(tmp_path: Path) -> None:
    # Neither Java nor a home to write to.
    env = {"PATH": str(tmp_path), "HOME": "/proc", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [sys.executable, "-c", MISSING], cwd=PROJECT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert any(line.endswith("hypothesis is not installed") for line in skipped)
    assert [line for line in skipped if "is not installed" not in line] == []
