"""Which combinations of Python, PySpark, pandas and pyarrow work: the table in guide 06.

    python -m tests.versions.smoke [--python PATH ...] [--spark VERSION ...] [--every] [--join]

A combination is *allowed* if the packages' own metadata allow it and each has a build for that Python, as pip finds
them in its index. What plain PySpark itself can't do with one (``plain_pyspark.py``), cojoin can't either; with
``--join`` a join of cojoin's runs where that has passed, and the command fails where the join does.

Each Python and each patch release of PySpark is run with the oldest pandas and pyarrow that there are for that Python,
and with the newest; with ``--every`` with each minor version of pandas and each major one of pyarrow.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from tests.versions.environments import PROJECT, PY4J, Environment, at_least

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["PASSES", "Combination", "combinations", "result"]

PASSES = "passes"
_JOIN = ("-m", "cojoin", "demo")
_OF_JOINS = ("numpy", "tqdm", "deltalake", "obstore")
"""What cojoin's join needs besides."""

_SECONDS = 600


@dataclass(frozen=True)
class Combination:
    """A Python, by the path of its interpreter and its version, and versions of the packages."""

    interpreter: str
    python: str
    spark: str
    pandas: str
    pyarrow: str

    def folders(self) -> list[Path]:
        """Return the folders of its packages, installed where they are not there yet."""
        spark = Environment(f"pyspark-{self.spark}", (f"pyspark=={self.spark}", PY4J))
        wanted = (f"pandas=={self.pandas}", f"pyarrow=={self.pyarrow}", *_OF_JOINS)
        libraries = f"python-{self.python}-pandas-{self.pandas}-pyarrow-{self.pyarrow}"
        return [spark.folder(), Environment(libraries, wanted, self.interpreter).folder()]

    def failure(self, *command: str) -> str | None:
        """Return the last line of what a command of its Python says where it fails; None if it does not."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        environment["PYTHONPATH"] = os.pathsep.join([*map(str, self.folders()), str(PROJECT)])
        command = (self.interpreter, *command)
        try:
            done = subprocess.run(
                command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False, timeout=_SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"it did not end within {_SECONDS} seconds"
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        return None if done.returncode == 0 else (lines or [f"it ends with {done.returncode}"])[-1]


def version_of(interpreter: str) -> str | None:
    """Return the minor version of a Python such as ``"3.12"``; None where the command does not run one."""
    code = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def releases(interpreter: str, package: str, *options: str) -> list[Version]:
    """Return the releases of a package that a Python may have, oldest first, from those that cojoin takes."""
    pip = [sys.executable, "-m", "pip", "--python", interpreter, "index", "versions", package, "--json", *options]
    done = subprocess.run(pip, capture_output=True, text=True, check=True)
    oldest = Version(at_least(package))
    return sorted(each for each in map(Version, json.loads(done.stdout)["versions"]) if each >= oldest)


def last_of(versions: Iterable[Version], numbers: int) -> list[Version]:
    """Return the last of those versions that begin with the same numbers.

    >>> [str(each) for each in last_of(map(Version, ["2.2.0", "2.2.3", "3.0.1"]), 2)]
    ['2.2.3', '3.0.1']
    """
    return list({each.release[:numbers]: each for each in sorted(versions)}.values())


def combinations(interpreters: Iterable[str], sparks: Iterable[str], *, every: bool = False) -> Iterator[Combination]:
    """Yield those that are allowed, of these Pythons and these releases of PySpark (none: all of them)."""
    for interpreter in filter(None, map(shutil.which, interpreters)):
        python = version_of(interpreter)
        if python is None:
            continue
        wheels = "--only-binary=:all:"
        pandas, pyarrow = (releases(interpreter, name, wheels) for name in ("pandas", "pyarrow"))
        pairs = [(pandas[0], pyarrow[0]), (pandas[-1], pyarrow[-1])]
        if every:
            pairs = [(one, other) for one in last_of(pandas, 2) for other in last_of(pyarrow, 1)]
        of_spark = [str(each) for each in releases(interpreter, "pyspark")]
        for spark in [each for each in of_spark if not sparks or each in sparks]:
            for one, other in pairs:
                yield Combination(interpreter, python, spark, str(one), str(other))


def result(combination: Combination, *, join: bool) -> str:
    """Return ``PASSES``, or what fails: plain PySpark, or a join of cojoin's."""
    try:
        combination.folders()
    except subprocess.CalledProcessError as error:
        return f"not allowed: pip ends with {error.returncode}"
    failure = combination.failure("tests/versions/plain_pyspark.py")
    if failure is not None:
        return f"plain PySpark: {failure}"
    failure = combination.failure(*_JOIN) if join else None
    return PASSES if failure is None else f"cojoin: {failure}"


def main() -> int:
    """Print a row for each combination; return 1 where none passes, or where plain PySpark does and cojoin does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [f"python3.{minor}" for minor in range(10, 15)]
    parser.add_argument("--python", nargs="+", default=names, metavar="PATH", help=f"default: {names}, of the PATH")
    parser.add_argument("--spark", nargs="+", default=[], metavar="VERSION", help="default: each patch release")
    parser.add_argument("--every", action="store_true", help="with each pandas and pyarrow, not the oldest and newest")
    parser.add_argument("--join", action="store_true", help="run a join of cojoin's, too")
    chosen = parser.parse_args()
    failed = passed = 0
    print("| Python | PySpark | pandas | pyarrow | result |\n|---|---|---|---|---|")  # noqa: T201
    for each in combinations(chosen.python, chosen.spark, every=chosen.every):
        outcome = result(each, join=chosen.join)
        failed += outcome.startswith("cojoin")
        passed += outcome == PASSES
        print(f"| {each.python} | {each.spark} | {each.pandas} | {each.pyarrow} | {outcome} |", flush=True)  # noqa: T201
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
