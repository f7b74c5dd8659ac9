"""What the contenders run in: environments below ``benchmarks/.environments``, each made by one command, all pinned.

An environment is a virtual environment; or packages that are added to the Python that runs the benchmark; or a Maven
project that is built with all it needs. It counts as there once it was made whole, for the very versions asked for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Added", "Environment", "InstallError", "Maven", "Virtual"]

FOLDER = Path(__file__).resolve().parents[1] / ".environments"
INSTALL_SECONDS = 1_800


class InstallError(RuntimeError):
    """An environment could not be made; the message holds the end of what the installer said."""


@dataclass(frozen=True)
class Environment(ABC):
    """One environment.

    Attributes:
        name: Its folder's name.
        pins: What is installed.
        needs: Environments that must be there too.
    """

    name: str
    pins: tuple[str, ...]
    needs: tuple[Environment, ...] = ()

    @property
    def folder(self) -> Path:
        """Where it is."""
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        """The Python that runs in it."""
        return Path(sys.executable)

    @property
    def variables(self) -> dict[str, str]:
        """What its processes find in their environment."""
        return {}

    def missing(self) -> str | None:
        """Say why it is not there; None if it is."""
        for each in self.needs:
            if missing := each.missing():
                return missing
        if not self._mark.exists():
            refusal = self._refusal.read_text() if self._refusal.exists() else ""
            return f"could not be installed: {refusal}" if refusal else f"not installed: --install {self.name}"
        if json.loads(self._mark.read_text()) != list(self.pins):
            return f"installed in other versions: --install {self.name}"
        return None

    def install(self) -> None:
        """Make it anew.

        Raises:
            InstallError: Something is not to be had.
        """
        for each in self.needs:
            if each.missing():
                each.install()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        try:
            self._make()
        except InstallError as error:
            self._refusal.write_text(str(error).strip().splitlines()[-1][:300])
            raise
        self._mark.write_text(json.dumps(list(self.pins)))

    @abstractmethod
    def _make(self) -> None:
        """Fill the folder."""

    @property
    def _mark(self) -> Path:
        return self.folder / "installed.json"

    @property
    def _refusal(self) -> Path:
        return self.folder / "refused.txt"


@dataclass(frozen=True)
class Virtual(Environment):
    """A virtual environment of its own."""

    @property
    def python(self) -> Path:
        """The Python that runs in it."""
        return self.folder / "bin" / "python"

    def _make(self) -> None:
        venv.create(self.folder, with_pip=True)
        _run([str(self.python), "-m", "pip", "install", "--quiet", *self.pins], self.folder)


@dataclass(frozen=True)
class Added(Environment):
    """Packages beside those of the Python that runs the benchmark."""

    @property
    def variables(self) -> dict[str, str]:
        """What its processes find in their environment."""
        return {"PYTHONPATH": str(self.folder / "packages")}

    def _make(self) -> None:
        target = str(self.folder / "packages")
        _run([sys.executable, "-m", "pip", "install", "--quiet", "--target", target, *self.pins], self.folder)


@dataclass(frozen=True)
class Maven(Environment):
    """A Maven project, built, with the jars that it needs in ``lib``; its file holds the versions.

    Attributes:
        project: The folder of its ``pom.xml``.
    """

    project: Path = Path()

    @property
    def classes(self) -> str:
        """What ``java -cp`` takes."""
        return os.pathsep.join([str(self.folder / "build" / "classes"), str(self.folder / "lib" / "*")])

    def _make(self) -> None:
        if shutil.which("mvn") is None:
            msg = "there is no mvn on the PATH"
            raise InstallError(msg)
        places = [f"-Dbuild.folder={self.folder / 'build'}", f"-DoutputDirectory={self.folder / 'lib'}"]
        goals = ["compile", "dependency:copy-dependencies"]
        _run(["mvn", "--batch-mode", "--quiet", *places, "-DincludeScope=runtime", *goals], self.project)


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired as error:
        msg = f"{command[0]} did not end within {INSTALL_SECONDS} s"
        raise InstallError(msg) from error
    if done.returncode:
        said = (done.stdout + done.stderr)[-4000:]
        raise InstallError(said or f"{command[0]} ended with exit code {done.returncode}")
