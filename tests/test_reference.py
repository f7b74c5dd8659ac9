"""The reference is built from the docstrings, and has every public name."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from tests.reference import MODULES

if TYPE_CHECKING:
    from pathlib import Path


def methods(member: object) -> list[str]:
    """Return the public methods and properties of a class of cojoin's, inherited ones too."""
    return [
        name
        for base in (member.__mro__ if isinstance(member, type) else ())
        if base.__module__.startswith("cojoin.")
        for name, value in vars(base).items()
        if isinstance(value, (FunctionType, property)) and not name.startswith("_")
    ]


def test_the_reference_is_built_without_a_warning(tmp_path: Path) -> None:
    # A process of its own: pdoc executes what is meant for type checkers alone.
    built = subprocess.run(
        [sys.executable, "-m", "tests.reference", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (built.returncode, built.stderr) == (0, "")
    for name in MODULES:
        page = (tmp_path / f"{name.replace('.', '/')}.html").read_text("utf-8")
        module = import_module(name)
        # A module has a page of its own.
        names = [each for each in module.__all__ if not isinstance(getattr(module, each), ModuleType)]
        names += [f"{each}.{method}" for each in names for method in methods(getattr(module, each))]
        missing = [each for each in names if f'id="{each}"' not in page]
        assert not missing, f"{name}: {missing}"
