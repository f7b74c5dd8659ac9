"""Selects the test files that changed files can break: ``python -m tests.changed [COMMIT]`` prints them, nearest first.

A test file is selected if it is changed itself, or if it imports a changed module, directly or through others, anywhere
in its code. ``cj.NAME`` counts as an import of the module that defines the name. A package's ``__init__`` counts for
those who import from it, a folder's ``conftest.py`` for all tests below it. Data files count for the test folder that
they are in. What a test starts as another process is not seen, nor a path in a text.

A file that decides how all tests run selects all of them. It costs a second.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import deque
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
_FOR_ALL = ("pyproject.toml", "requirements.lock", "tests/conftest.py", "tests/seeds.py", ".ci/run")
_DOCUMENTS = {"README.md": "tests/test_readme.py", "CONTRIBUTING.md": "tests/test_readme.py"}


def changed_files(commit: str) -> list[str]:
    """Return the files that differ from a commit, committed or not, by their paths in the project."""
    listed = [["diff", "--name-only", commit], ["ls-files", "--others", "--exclude-standard"]]
    done = (subprocess.run(["git", *each], cwd=PROJECT, capture_output=True, text=True, check=True) for each in listed)
    return sorted({line for each in done for line in each.stdout.splitlines()})


def selected_tests(changed: list[str]) -> list[str]:
    """Return the test files that changed files can break, those with the shortest way of imports first."""
    importers = _importers()
    tests = sorted(name for name in importers if Path(name).name.startswith("test_"))
    if any(name in _FOR_ALL for name in changed):
        return tests
    distances = {begin: 0 for name in changed for begin in _begins(name, tests)}
    waiting = deque(distances)
    while waiting:
        name = waiting.popleft()
        for importer in importers.get(name, ()):
            if importer not in distances:
                distances[importer] = distances[name] + 1
                waiting.append(importer)
    mirrored = {f"test_{Path(name).stem}.py" for name in changed}
    return sorted((test for test in tests if test in distances), key=lambda test: _rank(test, distances, mirrored))


def _begins(name: str, tests: list[str]) -> list[str]:
    """Return the files of Python that a changed file stands for."""
    if name in _DOCUMENTS:
        return [_DOCUMENTS[name]]
    if name.startswith("notebooks/"):
        return ["tests/test_notebooks.py", "tests/test_site.py"]
    if name.startswith("tests/") and not name.endswith(".py"):
        folder = Path(name).parent
        while not (PROJECT / folder / "__init__.py").exists():
            folder = folder.parent
        return [test for test in tests if test.startswith(f"{folder.as_posix()}/")]
    return [name]


def _rank(test: str, distances: dict[str, int], mirrored: set[str]) -> tuple[bool, int, str]:
    return Path(test).name not in mirrored, distances[test], test


@cache
def _importers() -> dict[str, set[str]]:
    """Return the files that import each file of Python."""
    found = [path for folder in ("cojoin", "tests") for path in sorted((PROJECT / folder).rglob("*.py"))]
    importers: dict[str, set[str]] = {path.relative_to(PROJECT).as_posix(): set() for path in found}
    for name in importers:
        for imported in _imported(name):
            if imported in importers:
                importers[imported].add(name)
    return importers


def _imported(name: str) -> set[str]:
    """Return the files that a file imports, with the conftests of a test."""
    tree = ast.parse((PROJECT / name).read_text("utf-8"))
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
            if node.module == "cojoin":
                modules |= {_public_names().get(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("cj", "cojoin"):
            modules.add(_public_names().get(node.attr, ""))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("cojoin."):
            modules |= {node.value, node.value.partition(":")[0]}
    found = {path for module in modules - {"cojoin", "tests", ""} for path in _files_of(module)}
    if name.startswith("tests/"):
        found |= {f"{parent.as_posix()}/conftest.py" for parent in Path(name).parents if parent.parts}
    return found - {name}


def _files_of(module: str) -> list[str]:
    path = module.replace(".", "/")
    return [f"{path}.py", f"{path}/__init__.py"]


@cache
def _public_names() -> dict[str, str]:
    """Return the module of each public name of the package."""
    tree = ast.parse((PROJECT / "cojoin" / "__init__.py").read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LAZY":
            return dict(ast.literal_eval(node.value))
    return {}


if __name__ == "__main__":
    for test_file in selected_tests(changed_files(sys.argv[1] if len(sys.argv) > 1 else "HEAD")):
        sys.stdout.write(f"{test_file}\n")
