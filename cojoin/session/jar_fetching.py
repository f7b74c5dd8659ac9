"""Resolves Maven packages to jars with Spark's launcher and the Ivy library that PySpark contains.

Spark has no command that only resolves packages. Its launcher resolves them before it runs a program, and its own
``--version`` is a program that ends at once. So the same repositories, credentials and proxies apply as for a session.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from cojoin.errors import EnvironmentSetupError
from cojoin.session.submit_settings import find_spark_home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["find_jars"]

_SECONDS = 1_800  # a hundred megabytes over a slow line
_HONOURED = (
    "spark.jars.ivySettings",
    "spark.jars.repositories",
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraJavaOptions",
)
_OPTIONS = "SPARK_SUBMIT_OPTS"
_LIST = "Classpath elements:"
_TELLING = re.compile(
    r"(?:not found: |UNRESOLVED|unresolved dependency|download failed|Server access error|Exception)[^\n]*",
    re.IGNORECASE,
)
_SHOWN = 3
_LOGIN = re.compile(r"//[^/@\s]+@")


def find_jars(
    packages: Sequence[str],
    excludes: Sequence[str],
    settings: Mapping[str, str],
    home: Path,
    work: Path,
    held: Sequence[int] = (),
    *,
    is_apart: bool = False,
) -> list[Path]:
    """Return the jars of packages and of their dependencies, in the folder where Ivy has put them.

    Args:
        packages: The packages, as ``organisation:module:version``.
        excludes: The dependencies to leave out, as ``organisation:module``, where ``*`` stands for any.
        settings: The user's settings of Spark: repositories, Ivy's settings, options of the JVM.
        home: Ivy's folder, with its cache and its jars.
        work: A folder for the log.
        held: File descriptors that the launcher inherits, so that it keeps their locks if this process is killed.
        is_apart: Whether the user's local Maven repository is left out. Ivy takes a package of which it finds a
            description there, and fails if the jar is missing, as Maven often leaves it.

    Raises:
        EnvironmentSetupError: A package was not found or is damaged; the message contains Ivy's error.
    """
    log, nothing = work / "spark.log", work / "no-defaults.conf"
    nothing.touch()
    script = find_spark_home() / "bin" / ("spark-submit.cmd" if sys.platform == "win32" else "spark-submit")
    conf = {name: settings[name] for name in _HONOURED if settings.get(name)}
    conf |= {"spark.jars.packages": ",".join(packages), "spark.jars.ivy": str(home)}
    if excludes:
        conf["spark.jars.excludes"] = ",".join(excludes)
    command = [str(script), "--verbose", "--master", "local", "--driver-memory", "512m"]
    command += ["--properties-file", str(nothing)]
    command += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.deploy.SparkSubmit", "spark-internal", "--version"]
    apart = {_OPTIONS: f'{os.environ.get(_OPTIONS, "")} -Duser.home="{work}"'} if is_apart else {}
    code = _run(command, log, held, apart)
    said = log.read_text(encoding="utf-8", errors="replace")
    jars = _listed(said)
    if code != 0 or not jars:
        raise EnvironmentSetupError(_reason(said) or f"Spark's launcher ended with exit code {code}")
    for jar in jars:
        _check(jar)
    return jars


def _run(command: Sequence[str], log: Path, held: Sequence[int], more: dict[str, str]) -> int:
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - Spark's own launcher
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"SPARK_CONNECT_MODE": "0"} | more,
            pass_fds=() if sys.platform == "win32" else tuple(held),
        )
        try:
            return process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            msg = f"there was no end after {_SECONDS / 60:g} minutes"
            raise EnvironmentSetupError(msg) from None
        finally:
            process.kill()
            process.wait()


def _listed(said: str) -> list[Path]:
    lines = said.partition(f"\n{_LIST}\n")[2].partition("\n\n")[0].splitlines()
    return [Path(url2pathname(urlsplit(line).path)) for line in lines if line.startswith("file:")]


def _check(jar: Path) -> None:
    """Check that a jar is not damaged, since other programs may write into the same folder."""
    try:
        with zipfile.ZipFile(jar) as archive:
            damaged = archive.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        damaged = str(error)
    if damaged is not None:
        msg = f"{jar} is damaged: {damaged}"
        raise EnvironmentSetupError(msg)


def _reason(said: str) -> str:
    """Return the first error lines of the launcher's log, without the logins in repository addresses."""
    lines = [_LOGIN.sub("//***@", found[0].strip()) for found in _TELLING.finditer(said)]
    return "; ".join([*dict.fromkeys(lines)][:_SHOWN])
