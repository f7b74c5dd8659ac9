"""Checks the Java that Spark would start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cojoin.errors import EnvironmentSetupError

__all__ = ["check_java"]

_OLDEST_JAVA = 17


def check_java() -> None:
    """Check that Java is installed and new enough, since Spark's own error does not say so.

    Raises:
        EnvironmentSetupError: Java is missing or too old; the message says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not (shutil.which(java) or Path(java).exists()):
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        msg = f"Spark needs Java {_OLDEST_JAVA} or later, and {where}: {_cure()}"
        raise EnvironmentSetupError(msg)
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is not None and int(found[1]) < _OLDEST_JAVA:
        msg = f"Spark needs Java {_OLDEST_JAVA} or later, and {java} is Java {found[1]}: {_cure()}"
        raise EnvironmentSetupError(msg)


def _cure() -> str:
    commands = {
        "darwin": "`brew install openjdk@17` installs it",
        "win32": "`winget install EclipseAdoptium.Temurin.17.JDK` installs it",
    }
    return commands.get(
        sys.platform, "`sudo apt-get install openjdk-17-jre-headless` (or your system's package) installs it"
    )
