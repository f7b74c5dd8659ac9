"""The settings that Spark's launcher will see, read before it runs.

The command line in ``PYSPARK_SUBMIT_ARGS`` overrides the settings that the program gives, and both override a file of
settings such as ``spark-defaults.conf``.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections import ChainMap
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["find_spark_home", "settings_of", "submit_arguments", "without_jars"]

_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
_OPTIONS = {
    "--jars": "spark.jars",
    "--packages": "spark.jars.packages",
    "--exclude-packages": "spark.jars.excludes",
    "--repositories": "spark.jars.repositories",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--driver-class-path": "spark.driver.extraClassPath",
}
_OURS = ("spark.jars", "spark.jars.packages")
# A line of a Java properties file: a name, then "=", ":" or a space, then the value.
_PROPERTY = re.compile(r"\s*(?P<name>[^#!\s=:][^\s=:]*)(?:\s*[=:]\s*|\s+)(?P<value>.*?)\s*$")


def find_spark_home() -> Path:
    """Return the folder of the Spark that a session uses: ``SPARK_HOME``, or the installed PySpark's."""
    from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415 - so that --help is quick

    return Path(_find_spark_home())


def settings_of(conf: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the settings that Spark will see.

    Args:
        conf: The settings that the program gives.
    """
    given = {name: str(value) for name, value in conf.items()}
    typed, _, properties = submit_arguments()
    return ChainMap(typed, given, _read_properties(properties))


def submit_arguments() -> tuple[dict[str, str], list[str], Path | None]:
    """Return the settings in ``PYSPARK_SUBMIT_ARGS``, its words without those for jars, and its properties file."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option, name in _OPTIONS.items():
        parser.add_argument(option, dest=name)
    parser.add_argument("--conf", "-c", dest="conf", action="append", default=[])
    parser.add_argument("--properties-file")
    known, others = parser.parse_known_args(shlex.split(os.environ.get(_SUBMIT_ARGS, "pyspark-shell")))
    found = vars(known)
    settings = dict(each.partition("=")[::2] for each in found.pop("conf"))
    properties = found.pop("properties_file")
    settings.update({name: value for name, value in found.items() if value is not None})
    options = [word for name, value in settings.items() if name not in _OURS for word in ("--conf", f"{name}={value}")]
    if properties is not None:
        options += ["--properties-file", properties]
    return settings, [*options, *others], None if properties is None else Path(properties)


@contextmanager
def without_jars() -> Iterator[None]:
    """Remove jars and packages from ``PYSPARK_SUBMIT_ARGS`` during the block: they would override the session's."""
    before = os.environ.get(_SUBMIT_ARGS)
    settings, words, _ = submit_arguments()
    if before is None or not settings.keys() & set(_OURS):
        yield
        return
    os.environ[_SUBMIT_ARGS] = shlex.join(words)
    try:
        yield
    finally:
        os.environ[_SUBMIT_ARGS] = before


def _read_properties(path: Path | None) -> dict[str, str]:
    """Return the settings in a properties file, by default ``spark-defaults.conf``; none if it can't be read."""
    if path is None:
        folder = os.environ.get("SPARK_CONF_DIR")
        path = (Path(folder) if folder else find_spark_home() / "conf") / "spark-defaults.conf"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = re.sub(r"\\\n[ \t]*", "", text).splitlines()
    found = (_PROPERTY.match(line) for line in lines)
    return {each["name"]: each["value"] for each in found if each is not None}
