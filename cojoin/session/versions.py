"""The versions of Spark and Java that cojoin works with, and the packages of Delta and Kafka that fit each Spark.

cojoin works with Spark 4.0.1 and later. A newer minor version than those that were tried is accepted with a warning,
once a process. Delta has builds for some minor versions alone: those of Delta 4.4.0, and those up to the newest that
the delta-spark of a user allows, which cojoin itself does not need. ``cojoin.kafka`` needs what the Python data source
has since Spark 4.2: a limit on each batch, and an end.

Some versions of Java are too old for Spark, and some give wrong data. The version of the Java that Spark would start is
in the file ``release`` next to it, which every JDK and JRE has since Java 9; running ``java -version`` would take 0.1
s.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as installed_version
from pathlib import Path

import pyspark

from cojoin.errors import EnvironmentSetupError
from cojoin.installed_packages import release_of

OLDEST_JAVA = 17
_WRONG, _RIGHT = (25,), (25, 0, 3)
"""The first version whose garbage collector (G1) moves memory that native code writes to, and the first mended one.

SPARK-55852, JDK-8377811: compressed files are damaged, or rows are changed in silence.
"""
_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_ANSWER = re.compile(r'version "([^"]+)')
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
"""The versions that were warned of."""


def java_fault(version: str, java: str) -> str | None:
    """Return the fault of a version as Java itself writes it, or None; ``java`` is that Java for the message.

    >>> java_fault("25.0.2", "java")
    'java is Java 25.0.2, whose garbage collector gives wrong data (SPARK-55852); install Java 25.0.3 or later, \
or Java 17 or 21'
    """
    if is_too_old(version):
        return f"Spark needs Java {OLDEST_JAVA} or later, and {java} is Java {_feature(version)}"
    if not _WRONG <= release_of(version) < _RIGHT:
        return None
    right = ".".join(map(str, _RIGHT))
    return (
        f"{java} is Java {version}, whose garbage collector gives wrong data (SPARK-55852); install Java {right} or "
        f"later, or Java 17 or 21"
    )


def is_too_old(version: str) -> bool:
    """Return whether a version of Java is too old for Spark; an unknown one is not.

    >>> is_too_old("1.8.0_275"), is_too_old("17.0.15"), is_too_old("")
    (True, False, False)
    """
    return 0 < _feature(version) < OLDEST_JAVA


def _feature(version: str) -> int:
    """Return the version's common number: 8 for 1.8.0."""
    numbers = [*release_of(version), 0, 0]
    return numbers[1] if numbers[0] == 1 else numbers[0]


def check_java() -> None:
    """Check that Java is installed, is new enough, and gives no wrong data, of which Spark itself does not warn.

    Raises ``EnvironmentSetupError`` with what to install.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not (shutil.which(java) or Path(java).exists()):
        where = f"JAVA_HOME={home} has no bin/java" if home else "the PATH has no java"
        msg = f"Spark needs Java {OLDEST_JAVA} or later, and {where}: {_cure()}"
        raise EnvironmentSetupError(msg)
    version = _by_its_file(Path(java)) or _by_its_answer(java)
    fault = java_fault(version, java)
    if fault is not None:
        cure = f": {_cure()}" if is_too_old(version) else ""
        raise EnvironmentSetupError(fault + cure)


def _by_its_file(java: Path) -> str:
    """Return the version in the file of the installation that a command belongs to; "" without one."""
    try:
        version = _RELEASE.search((java.resolve().parents[1] / "release").read_text("utf-8"))
    except (OSError, ValueError, IndexError):
        return ""
    return "" if version is None else version[1]


def _by_its_answer(java: str) -> str:
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    version = _ANSWER.search(answer.stderr + answer.stdout)
    return "" if version is None else version[1]


def _cure() -> str:
    commands = {
        "darwin": "`brew install openjdk@17` installs it",
        "win32": "`winget install EclipseAdoptium.Temurin.17.JDK` installs it",
    }
    return commands.get(
        sys.platform, "`sudo apt-get install openjdk-17-jre-headless` (or your system's package) installs it"
    )


def spark_version(version: str | None = None) -> str:
    """Return the major and minor version of a PySpark (None: the installed one), such as ``"4.2"``.

    Raises ``EnvironmentSetupError`` for a version that cojoin does not work with; warns, once a process, of a newer one
    with which it was not tried. The warning names the command that runs the probes instead of running them: they start
    queries and take 7 to 30 seconds.

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
            f"now. Results are the same or an error is raised; python -m cojoin.session.probes tries, in "
            f"another session, each part of Spark that is not public and that cojoin needs, and names those that are "
            f"missing. A newer cojoin may support it"
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
    tested, where that has a build, else the version of the installed delta-spark. ``EnvironmentSetupError`` where Delta
    has none.

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
        f"Delta {number} has no build for Spark {version}, only for those up to {_text(newest)}, so tables that only "
        f"Delta's own classes read or write can't be used: install PySpark {_text(newest)}: pip install "
        f"'pyspark=={_text(newest)}.*'; or a later Delta once there is one for this Spark: pip install "
        f"'pyspark=={version}' 'delta-spark>{number}'. Streams and static sides of plain Delta tables, files and "
        f"topics, into plain Delta tables, need no Delta of Spark's"
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
    limits = list(filter(None, map(_LIMIT.match, needed)))
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
    """Raise ``EnvironmentSetupError`` if a PySpark (None: the installed one) is too old for ``cojoin.kafka``."""
    if release_of(spark_version(version)) < _WITH_KAFKA:
        needed = _text(_WITH_KAFKA)
        msg = (
            f"cojoin.kafka needs PySpark {needed} or later, whose Python data source limits a batch and has an end, "
            f"and this is {pyspark.__version__ if version is None else version}; install a later one: "
            f"pip install 'pyspark>={needed}'; or read the topics by Spark's own source (spark_session(kafka=True) and "
            f"spark.readStream.format('kafka'))"
        )
        raise EnvironmentSetupError(msg)


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
