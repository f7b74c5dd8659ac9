"""Other versions of what cojoin needs, each set in a folder that comes before this environment's own packages.

A folder is filled by pip when it is first asked for, and stays in the clone as ``.venv-NAME``. What it does not have is
taken from this environment, so that nothing has to be fetched twice.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from cojoin.storage.local_store import locked

__all__ = ["EVERY", "PROJECT", "PY4J", "WITHOUT_DELTA", "Environment", "at_least"]

PROJECT = Path(__file__).resolve().parents[2]
_LIST = "packages.txt"
_ALL = [Requirement(each) for each in requires("cojoin") or []]
_NEEDED = [each for each in _ALL if each.marker is None or each.marker.evaluate({"extra": "delta"})]
"""What queries on Spark need."""


@dataclass(frozen=True)
class Environment:
    """Packages that come before those of this environment.

    Attributes:
        name: What it is called.
        packages: What pip installs; for this Python without what they need themselves, which is here.
        interpreter: The Python that they are for; another one gets what they need, too, and nothing that is compiled
            here.
    """

    name: str
    packages: tuple[str, ...]
    interpreter: str = sys.executable

    def folder(self) -> Path:
        """Return the folder of the packages, which are installed where they are not there yet."""
        folder = PROJECT / f".venv-{self.name}"
        with locked(folder.with_name(f"{folder.name}.lock"), lambda: None):
            listed = folder / _LIST
            if not listed.exists() or listed.read_text() != "\n".join(self.packages):
                shutil.rmtree(folder, ignore_errors=True)
                pip = [sys.executable, "-m", "pip", "--python", self.interpreter, "install", "--quiet"]
                pip += ["--no-deps"] if self.interpreter == sys.executable else ["--only-binary=:all:"]
                pip += ["--target", str(folder)]
                # Few of the modules are imported, so it would take longer to compile all of them; and PySpark comes as
                # sources, of which pip makes a wheel, that need not be packed small.
                pip += ["--no-compile", "--config-settings=--build-option=--compression=stored"]
                subprocess.run([*pip, *self.packages], check=True)
                listed.write_text("\n".join(self.packages))
        return folder

    def run_tests(self, *arguments: str) -> tuple[str, int]:
        """Run tests there, in a process of their own.

        Args:
            arguments: What pytest is told.

        Returns:
            The versions that the tests had, as their first lines say, and how many tests passed.
        """
        output = self.run("pytest", "-p", "no:cacheprovider", *arguments)
        versions = re.findall(r"^versions: (.+)$", output, re.MULTILINE)
        passed = re.findall(r"(\d+) passed", output)
        return versions[0], int(passed[-1])

    def run(self, module: str, *arguments: str) -> str:
        """Run a module there, in a process of its own, and return its output; it must end with 0."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
        environment["PYTHONPATH"] = os.pathsep.join([str(self.folder()), str(PROJECT)])
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        return done.stdout


def at_least(name: str) -> str:
    """Return the oldest version of a package that cojoin allows."""
    needed = next(each for each in _NEEDED if each.name == name)
    return next(each.version for each in needed.specifier if each.operator in {">=", "=="})


PY4J = "py4j==0.10.9.9"
_LIBRARIES = [each for each in _NEEDED if each.name != "pyspark"]
EVERY = (
    Environment("spark-4-0", ("pyspark==4.0.*", PY4J)),
    Environment("spark-4-1", ("pyspark==4.1.*", PY4J)),
    Environment("spark-4-2", ("pyspark==4.2.*", PY4J)),
    Environment(
        "oldest",
        (f"pyspark=={at_least('pyspark')}", PY4J, *(f"{each.name}=={at_least(each.name)}" for each in _LIBRARIES)),
    ),
    Environment("newest", tuple(f"{each.name}{each.specifier}" for each in _LIBRARIES)),
)
"""The newest of each Spark that Delta has a build for, the oldest of each package, and the newest of each library."""

WITHOUT_DELTA = Environment("spark-4-3", ("pyspark==4.3.*", PY4J, "pandas==3.*"))
"""The newest Spark, of which Delta has no build, with the newest pandas; most tests read their outputs by Delta."""
