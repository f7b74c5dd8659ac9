"""The versions of Spark that cojoin works with, and the packages of Delta and Kafka that fit each.

Delta 4.4.0 has a build for each of Spark 4.0, 4.1 and 4.2. Its Python package excludes later versions of Spark, and so
does cojoin. ``cojoin.kafka`` needs what the Python data source has since Spark 4.2: a limit on each batch, and an end.
"""

from __future__ import annotations

import re

import pyspark

from cojoin.errors import EnvironmentSetupError

__all__ = ["check_kafka", "delta_package", "kafka_package", "spark_version"]

DELTA_VERSION = "4.4.0"
_SUPPORTED = ("4.0", "4.1", "4.2")
_WITH_KAFKA = "4.2"


def spark_version(version: str = pyspark.__version__) -> str:
    """Return the major and minor version of a PySpark that cojoin works with, such as ``"4.2"``.

    Raises:
        EnvironmentSetupError: cojoin does not work with this version; the message says why and what to install.

    >>> spark_version("4.1.4")
    '4.1'
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    minor = "" if found is None else f"{found[1]}.{found[2]}"
    if minor in _SUPPORTED:
        return minor
    is_later = found is not None and (int(found[1]), int(found[2])) > (4, 2)
    why = (
        f"there is no Delta {DELTA_VERSION} for it yet"
        if is_later
        else "it has no applyInPandasWithState of the kind that cojoin needs"
    )
    msg = (
        f"cojoin works with PySpark {', '.join(_SUPPORTED[:-1])} and {_SUPPORTED[-1]}, and this is {version}: {why}; "
        f"install one of those, such as pip install 'pyspark=={_SUPPORTED[-1]}.0'"
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
