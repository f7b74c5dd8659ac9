"""The smoke test of combinations passes with what is installed here, and a failure is in the table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from tests.versions import smoke
from tests.versions.smoke import PASSES, Combination, last_of, result, version_of

PROGRAM = Path(smoke.__file__).with_name("plain_pyspark.py")


@pytest.fixture
def combination(monkeypatch: pytest.MonkeyPatch) -> Combination:
    """The packages of this environment, so that nothing is fetched."""
    monkeypatch.setattr(Combination, "folders", lambda _: [])
    return Combination(sys.executable, "3", "4", "3", "26")


@pytest.mark.slow
@pytest.mark.spark
def test_plain_pyspark_passes_with_what_is_installed(combination: Combination) -> None:
    assert result(combination, join=False) == PASSES


@pytest.mark.push
def test_the_last_line_of_a_failure_is_the_result(combination: Combination, monkeypatch: pytest.MonkeyPatch) -> None:
    assert combination.failure("-c", "import sys; print('first'); sys.exit('no pyarrow')") == "no pyarrow"
    assert combination.failure("-c", "import os; os._exit(3)") == "it ends with 3"
    assert combination.failure("-c", "pass") is None

    def refused(_: Combination) -> list[Path]:
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(Combination, "folders", refused)
    assert result(combination, join=True) == "not allowed: pip ends with 1"


@pytest.mark.push
def test_a_command_that_is_not_a_python_has_no_version() -> None:
    assert version_of(sys.executable) == ".".join(map(str, sys.version_info[:2]))
    assert version_of("false") is None
    assert list(smoke.combinations(["python3.99-that-is-not-installed", "false"], [])) == []


def test_the_last_patch_of_each_minor_version_is_taken() -> None:
    versions = [Version(each) for each in ("2.2.3", "3.0.1", "2.2.0", "2.3.1", "3.0.0")]
    assert list(map(str, last_of(versions, 2))) == ["2.2.3", "2.3.1", "3.0.1"]
    assert list(map(str, last_of(versions, 1))) == ["2.3.1", "3.0.1"]
    assert PROGRAM.is_file()
