"""Jars for the tests, in the folders that cojoin's own sessions have theirs in: fetched once, whoever comes first.

``python -m tests.servers.jars`` fetches all of them, before anything forks. It needs no more than cojoin itself does.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from cojoin.errors import EnvironmentSetupError
from cojoin.session.jars import IN_SPARK, cache_folder, fetch_jars
from cojoin.session.launch_settings import find_spark_home
from cojoin.session.versions import check_java, delta_package, kafka_package, spark_version

if TYPE_CHECKING:
    from collections.abc import Sequence

BROKER = ["org.apache.kafka:kafka_2.13:4.2.0", "org.slf4j:slf4j-simple:1.7.36"]  # without the latter its log is empty
_AWS = "2.35.4"
S3 = [
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(f"software.amazon.awssdk:{module}:{_AWS}" for module in ("s3", "s3-transfer-manager", "sts")),
]
"""Hadoop's S3A of the version that Spark 4.2 has inside, and the three parts of AWS's SDK that it needs: 13 MB.

hadoop-aws itself names all of the SDK in one jar, ``software.amazon.awssdk:bundle``, of 686 MB.
"""
NOT_FOR_S3 = [
    "software.amazon.awssdk:bundle",
    "org.wildfly.openssl:*",
    "io.netty:*",
    "org.apache.httpcomponents:*",
    "org.slf4j:*",
    "commons-codec:*",
    "commons-logging:*",
]
TOKEN_PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
STANDIN = f"{TOKEN_PROVIDER}:4.1.0-preview1"


def java() -> str:
    """Return the Java that Spark takes as well: the one of `JAVA_HOME`, or the first on the path.

    Raises:
        EnvironmentSetupError: There is none, or it is too old.
    """
    check_java()
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def delta_jars() -> list[Path]:
    """Return Delta's jars, in the folder of any session of cojoin's."""
    return fetch_jars([delta_package()], excludes=IN_SPARK)


def s3_jars() -> list[Path]:
    """Return the jars with which Spark reaches ``s3a://``; none with an older Spark, whose Hadoop is another."""
    return fetch_jars(S3, excludes=NOT_FOR_S3) if spark_version() == "4.2" else []


def kafka_settings() -> dict[str, str]:
    """Return the settings that give a session Delta and Spark's own Kafka source and sink.

    Not every Maven mirror has the connector of each patch release, nor its small companion for delegation tokens. What
    is missing is tried once; an earlier one stands in, and an empty file is the memory of that decision.

    With an older Spark, the tests do without Kafka.
    """
    if spark_version() != "4.2":
        return {"spark.jars": ",".join(map(str, delta_jars()))}
    without_token = [*IN_SPARK, TOKEN_PROVIDER]
    connector = kafka_package()
    jars = _fetched_if_there("token-provider", connector, IN_SPARK)
    if jars is None:
        jars = _fetched_if_there("connector", connector, without_token)
        if jars is None:
            earlier = f"{connector.rpartition(':')[0]}:4.2.0"
            jars = fetch_jars([delta_package(), earlier], excludes=without_token)
        jars += _standin()
    return {"spark.jars": ",".join(map(str, jars))}


def _fetched_if_there(title: str, connector: str, excludes: Sequence[str]) -> list[Path] | None:
    """Return Delta's and the connector's jars, or ``None`` where they have been asked for once and are not there."""
    missing = cache_folder() / f"no-{title}-{pyspark.__version__}"
    if missing.exists():
        return None
    try:
        return fetch_jars([delta_package(), connector], excludes=excludes)
    except EnvironmentSetupError:
        _standin()  # if this can't be fetched either, it is the network
        missing.touch()
        return None


def broker_class_path() -> str:
    """Return the class path of a Kafka broker; Scala's library, which Spark never fetches, is Spark's own."""
    library = (find_spark_home() / "jars").glob("scala-library-*.jar")
    # In a folder of their own, they need not wait for the others.
    apart = {"spark.jars.ivy": str(cache_folder() / "ivy-broker")}
    return os.pathsep.join(map(str, [*fetch_jars(BROKER, settings=apart), *library]))


def _standin() -> list[Path]:
    return fetch_jars([STANDIN], excludes=[*IN_SPARK, "org.apache.kafka:*", "org.apache.commons:*"])


def fetch_all() -> None:
    """Fetch all jars that are not there yet."""
    with ThreadPoolExecutor() as pool:
        broker = pool.submit(broker_class_path)
        delta_jars()
        kafka_settings()
        s3_jars()
        broker.result()


if __name__ == "__main__":
    try:
        fetch_all()
    except EnvironmentSetupError as error:
        sys.exit(str(error))
