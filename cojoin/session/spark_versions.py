"""The versions of Spark that cojoin works with, and the packages of Delta and Kafka that fit each.

Delta 4.4.0 has a build for each of Spark 4.0, 4.1 and 4.2. Its Python package excludes later versions of Spark, and so
does cojoin. ``cojoin.kafka`` needs what the Python data source has since Spark 4.2: a limit on each batch, and an end.
"""

from __future__ import annotations

import re

import pyspark

from cojoin.errors import EnvironmentSetupError

__all__ = ["DELTA_SETTINGS", "check_kafka", "delta_package", "kafka_package", "spark_version"]

DELTA_VERSION = "4.4.0"
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""The settings that a session needs for Delta's tables."""

_OLDEST, _NEWEST = (4, 0, 1), (4, 2, 0)
"""The versions that delta-spark's own metadata allows."""

_WITH_KAFKA = "4.2"


def spark_version(version: str | None = None) -> str:
    """Return the major and minor version of a PySpark that cojoin works with, such as ``"4.2"``.

    Args:
        version: The version; None is the one that is installed.

    Raises:
        EnvironmentSetupError: cojoin does not work with this version; the message says why and what to install.

    >>> spark_version("4.1.4")
    '4.1'
    """
    version = pyspark.__version__ if version is None else version
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    numbers = () if found is None else tuple(int(each or 0) for each in found.groups())
    if _OLDEST <= numbers <= _NEWEST:
        return f"{numbers[0]}.{numbers[1]}"
    why = (
        f"Delta {DELTA_VERSION} does not allow it yet"
        if numbers > _NEWEST
        else "it lacks what cojoin needs of applyInPandasWithState"
    )
    oldest, newest = (".".join(map(str, each)) for each in (_OLDEST, _NEWEST))
    msg = (
        f"cojoin works with PySpark {oldest} to {newest}, and this is {version}: {why}; install one of those, such as "
        f"pip install 'pyspark=={newest}'"
    )
    raise EnvironmentSetupError(msg)


def delta_package(version: str = pyspark.__version__) -> str:
    """Return the coordinates of the Delta package that fits a version of Spark.

    >>> delta_package("4.1.4")
    'io.delta:delta-spark_4.1_2.13:4.4.0'
    """
    return f"io.delta:delta-spark_{spark_version(version)}_2.13:{DELTA_VERSION}"


def kafka_package(version: str = pyspark.__version__) -> str:
    """Return the coordinates of Spark's own Kafka source for a version of Spark.

    >>> kafka_package("4.2.0")
    'org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0'
    """
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"


def check_kafka(version: str = pyspark.__version__) -> None:
    """Check that ``cojoin.kafka`` works with a version of PySpark.

    Raises:
        EnvironmentSetupError: It does not; the message says which version it needs.
    """
    if spark_version(version) != _WITH_KAFKA:
        msg = (
            f"cojoin.kafka needs PySpark {_WITH_KAFKA}, whose Python data source limits a batch and knows an end, and "
            f"this is {version}; install pyspark=={_WITH_KAFKA}.0, or read the topics by Spark's own source "
            f"(spark_session(kafka=True) and spark.readStream.format('kafka'))"
        )
        raise EnvironmentSetupError(msg)
