"""The jars of a session: Delta's, Kafka's and the user's own, from cached folders, so a start needs no network."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojoin.session.jar_folders import fetch_jars, tell
from cojoin.session.spark_versions import delta_package, has_delta, kafka_package
from cojoin.session.submit_settings import find_spark_home, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["IN_SPARK", "gets_delta", "jar_settings"]

IN_SPARK = (
    "com.fasterxml.jackson.core:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "io.airlift:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
"""Dependencies of Delta and Kafka that Spark contains itself and would load first; three quarters of the bytes."""


def jar_settings(conf: Mapping[str, Any], *, kafka: bool, say: Callable[[str], None] = tell) -> dict[str, str]:
    """Return the Spark settings that add a session's jars; jars that are not in the cache are fetched.

    They include the user's own jars and packages from ``conf``, ``PYSPARK_SUBMIT_ARGS`` and ``spark-defaults.conf``.
    They exclude Delta where it has no build for this Spark, and Delta and Kafka if Spark's own folder has them, if the
    user names them, or if ``conf`` sets ``spark.jars.packages`` to an empty string.

    Args:
        conf: The user's settings.
        kafka: Whether Spark's Kafka source is needed.
        say: Called with messages that this may take a while.

    Returns:
        ``spark.jars`` and ``spark.jars.packages``; nothing in a program that spark-submit started.

    Raises:
        EnvironmentSetupError: The jars can't be fetched.

    Example:
        ``jar_settings({}, kafka=False)["spark.jars"]``
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # started by spark-submit, whose command line determines the jars
        return {}
    settings = settings_of(conf)
    jars, packages = _parts(settings, "spark.jars"), _parts(settings, "spark.jars.packages")
    excludes = _parts(settings, "spark.jars.excludes")
    there = list(_names_there(jars, settings))
    ours = [*([delta_package()] if has_delta() else []), *([kafka_package()] if kafka else [])]
    if conf.get("spark.jars.packages") == "":
        ours = []
    ours = [each for each in ours if not _is_there(each, there, packages)]
    if not packages:
        excludes = [*excludes, *IN_SPARK]
    if wanted := [*ours, *packages]:
        jars += [str(jar) for jar in fetch_jars(wanted, excludes=excludes, settings=settings, say=say)]
    # An empty string keeps Spark from taking the packages in spark-defaults.conf again.
    return {"spark.jars": ",".join(dict.fromkeys(jars)), "spark.jars.packages": ""}


def gets_delta(conf: Mapping[str, Any]) -> bool:
    """Return whether a session has Delta: there is a build for this Spark, or the user names a jar or package of it.

    Args:
        conf: The user's settings; an empty ``spark.jars.packages`` leaves Delta out.
    """
    if has_delta() and conf.get("spark.jars.packages") != "":
        return True
    settings = settings_of(conf)
    names = _names_there(_parts(settings, "spark.jars"), settings)
    return _is_there("io.delta:delta-spark:", list(names), _parts(settings, "spark.jars.packages"))


def _parts(settings: Mapping[str, str], name: str) -> list[str]:
    return [part.strip() for part in settings.get(name, "").split(",") if part.strip()]


def _names_there(jars: Sequence[str], settings: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the jars that a session has without cojoin's."""
    yield from (jar.rsplit("/", 1)[-1] for jar in jars)
    yield from (jar.name for jar in (find_spark_home() / "jars").glob("*.jar"))
    for entry in settings.get("spark.driver.extraClassPath", "").split(os.pathsep):
        path = Path(entry)
        yield from (jar.name for jar in (path.parent.glob("*.jar") if path.name == "*" else [path]))


def _is_there(package: str, names: Sequence[str], packages: Sequence[str]) -> bool:
    """Return whether the user has a package in any version, which then takes precedence."""
    organisation, module, _ = package.split(":")
    plain = re.sub(r"(_[\d.]+)+$", "", module)  # without the versions of Spark and Scala
    jar = re.compile(rf"(?:^|_){re.escape(plain)}(?:_[\d.]+)*-\d")
    named = re.compile(rf"{re.escape(organisation)}:{re.escape(plain)}(?:_[\d.]+)*:")
    return any(jar.search(name) for name in names) or any(named.match(each) for each in packages)
