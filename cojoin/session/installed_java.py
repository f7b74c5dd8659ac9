"""Checks the Java that Spark would start, by the file ``release`` beside it, or else by its own answer.

The file is in every JDK and JRE since Java 9, and is read in no time; a JVM that only answers takes 0.1 s.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cojoin.errors import EnvironmentSetupError
from cojoin.session.java_versions import OLDEST_JAVA, is_too_old, java_fault

__all__ = ["check_java"]

_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_ANSWER = re.compile(r'version "([^"]+)')


def check_java() -> None:
    """Check that Java is installed, is new enough, and gives no wrong data, of which Spark itself says nothing.

    Raises:
        EnvironmentSetupError: Java is missing, too old, or gives wrong data; the message says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not (shutil.which(java) or Path(java).exists()):
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        msg = f"Spark needs Java {OLDEST_JAVA} or later, and {where}: {_cure()}"
        raise EnvironmentSetupError(msg)
    version = _by_its_file(Path(java)) or _by_its_answer(java)
    fault = java_fault(version, java)
    if fault is not None:
        cure = f": {_cure()}" if is_too_old(version) else ""
        raise EnvironmentSetupError(fault + cure)


def _by_its_file(java: Path) -> str:
    """Return the version according to the file of the installation that a command belongs to; "" if there is none."""
    try:
        found = _RELEASE.search((java.resolve().parents[1] / "release").read_text("utf-8"))
    except (OSError, ValueError, IndexError):
        return ""
    return "" if found is None else found[1]


def _by_its_answer(java: str) -> str:
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    found = _ANSWER.search(answer.stderr + answer.stdout)
    return "" if found is None else found[1]


def _cure() -> str:
    commands = {
        "darwin": "`brew install openjdk@17` installs it",
        "win32": "`winget install EclipseAdoptium.Temurin.17.JDK` installs it",
    }
    return commands.get(
        sys.platform, "`sudo apt-get install openjdk-17-jre-headless` (or your system's package) installs it"
    )
