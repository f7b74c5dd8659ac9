"""The versions of Spark that cojoin works with, and the packages of Delta and Kafka that fit each.

cojoin works with Spark 4.0.1 and later. A newer minor version than those that were tried is not refused: a warning says
so, once a process. Delta has builds for some minor versions alone: those up to the newest that the installed
delta-spark allows, or that Delta 4.4.0 allows where none is installed. ``cojoin.kafka`` needs what the Python data
source has since Spark 4.2: a limit on each batch, and an end.
"""

from __future__ import annotations

import re
import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as installed_version

import pyspark

from cojoin.errors import EnvironmentSetupError
from cojoin.installed_packages import release_of

__all__ = ["DELTA_SETTINGS", "check_kafka", "delta_package", "has_delta", "kafka_package", "no_delta", "spark_version"]

DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""The settings that a session needs for Delta's tables."""

_OLDEST, _NEWEST = (4, 0, 1), (4, 3)
"""The oldest version that cojoin works with, and the newest minor version that was tried."""

_DELTA, _WITH_DELTA = (4, 4, 0), (4, 2)
"""The oldest Delta that is named as its builds of today are, and the newest minor version of Spark that it has one for.

Delta 4.4.0 has builds for 4.0, 4.1 and 4.2.
"""

_WITH_KAFKA = (4, 2)

_LIMIT = re.compile(r"pyspark\b[^;]*(<=?)\s*(\d+)\.(\d+)")
"""The requirement in delta-spark's metadata, such as ``pyspark<=4.2.0`` or ``pyspark<4.3.0``."""

_WARNED: set[str] = set()
"""The versions of which a warning was given."""


def spark_version(version: str | None = None) -> str:
    """Return the major and minor version of a PySpark that cojoin works with, such as ``"4.2"``.

    Args:
        version: The version; None is the one that is installed.

    Raises:
        EnvironmentSetupError: cojoin does not work with this version; the message says why and what to install.

    Warns:
        UserWarning: cojoin was not tried with this version, which is newer; each version is named once a process.

    >>> spark_version("4.1.4")
    '4.1'
    """
    version = pyspark.__version__ if version is None else version
    numbers = release_of(version)
    if numbers < _OLDEST:
        oldest = _text(_OLDEST)
        msg = (
            f"cojoin works with PySpark {oldest} and later, and this is {version}: it lacks what cojoin needs of "
            f"applyInPandasWithState; install a later one: pip install 'pyspark>={oldest}'"
        )
        raise EnvironmentSetupError(msg)
    if numbers[:2] > _NEWEST and version not in _WARNED:
        _WARNED.add(version)
        msg = (
            f"cojoin was tried with PySpark {_text(_OLDEST)} to {_text(_NEWEST)}, and this is {version}: untested are "
            f"restarts, snapshots and what is read from Spark's plans, errors and logs, which may have other forms "
            f"now. Results are the same or an error is raised; a newer cojoin may know this version"
        )
        warnings.warn(msg, stacklevel=3)
    return _text(numbers[:2])


def has_delta(version: str | None = None) -> bool:
    """Return whether Delta has a build for a version of Spark, by default the installed one.

    >>> has_delta("4.2.1")
    True
    """
    minor = spark_version(version)
    return release_of(minor) <= _delta()[1]


def delta_package(version: str | None = None) -> str:
    """Return the coordinates of the Delta package that fits a version of Spark, by default the installed one.

    The builds of one minor version of Spark serve all its patch releases. It is Delta 4.4.0, with which cojoin is
    tested, where that has a build, else the version of the installed delta-spark.

    Raises:
        EnvironmentSetupError: Delta has no build for this version.

    >>> delta_package("4.1.4").partition("_2.13")[0]
    'io.delta:delta-spark_4.1'
    """
    if not has_delta(version):
        raise no_delta(pyspark.__version__ if version is None else version)
    minor = spark_version(version)
    number = _text(_DELTA) if release_of(minor) <= _WITH_DELTA else _delta()[0]
    return f"io.delta:delta-spark_{minor}_2.13:{number}"


def no_delta(version: str) -> EnvironmentSetupError:
    """Return the error for a use of Delta with a version of Spark for which it has no build."""
    number, newest = _delta()
    return EnvironmentSetupError(
        f"Delta {number} has no build for Spark {version}, only for those up to {_text(newest)}, so it can't "
        f"read Delta's sources, nor write tables that only Spark writes: install PySpark {_text(newest)}: "
        f"pip install 'pyspark=={_text(newest)}.*'; or a later delta-spark once there is one for this Spark: "
        f"pip install --upgrade delta-spark. Joins of files and topics into plain Delta tables need no Delta of Spark's"
    )


@cache
def _delta() -> tuple[str, tuple[int, ...]]:
    """Return the version of Delta, and the newest minor version of Spark for which it has a build."""
    try:
        installed, needed = installed_version("delta-spark"), requires("delta-spark") or []
    except PackageNotFoundError:
        return _text(_DELTA), _WITH_DELTA
    if release_of(installed) < _DELTA:
        return _text(_DELTA), _WITH_DELTA
    limits = [found for found in map(_LIMIT.match, needed) if found is not None]
    if not limits:
        return installed, _WITH_DELTA
    relation, major, minor = limits[0].groups()
    return installed, (int(major), int(minor) - (relation == "<"))


def kafka_package(version: str | None = None) -> str:
    """Return the coordinates of Spark's own Kafka source for a version of Spark, by default the installed one.

    >>> kafka_package("4.2.0")
    'org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0'
    """
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__ if version is None else version}"


def check_kafka(version: str | None = None) -> None:
    """Check that ``cojoin.kafka`` works with a version of PySpark, by default the installed one.

    Raises:
        EnvironmentSetupError: It does not; the message says which version it needs.
    """
    if release_of(spark_version(version)) < _WITH_KAFKA:
        needed = _text(_WITH_KAFKA)
        msg = (
            f"cojoin.kafka needs PySpark {needed} or later, whose Python data source limits a batch and knows an end, "
            f"and this is {pyspark.__version__ if version is None else version}; install a later one: "
            f"pip install 'pyspark>={needed}'; or read the topics by Spark's own source (spark_session(kafka=True) and "
            f"spark.readStream.format('kafka'))"
        )
        raise EnvironmentSetupError(msg)


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
