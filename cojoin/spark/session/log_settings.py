"""What a session's JVM writes to standard error: warnings and errors, without the lines that come at every start.

The settings are those of ``log4j2.properties`` beside this module, in place of Spark's own defaults. They are given
when the JVM starts, since its first lines come before Spark has a session. They are not given where the user has a
configuration of Log4j, in any of the places where Spark looks for one. ``spark.log.level`` and ``setLogLevel`` work as
ever.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojoin.spark.session.submit_settings import find_spark_home, settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["log_settings"]

_DEFAULTS, _EXTRA = "spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions"
_VARIABLES = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_FILE = Path(__file__).with_name("log4j2.properties")


def log_settings(conf: Mapping[str, Any]) -> dict[str, str]:
    """Return the Spark settings that keep the JVM's start quiet; nothing where the user decides about the log.

    Args:
        conf: The user's settings of Spark.

    Returns:
        The driver's JVM options, the user's own included; nothing in a program that spark-submit started.

    Example:
        ``log_settings({})["spark.driver.defaultJavaOptions"]``
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ or not _FILE.is_file():
        return {}
    settings = settings_of(conf)
    options = [settings.get(_DEFAULTS, ""), settings.get(_EXTRA, "")]
    options += [os.environ.get(name, "") for name in _VARIABLES]
    structured = settings.get("spark.log.structuredLogging.enabled", "false").lower() == "true"
    if structured or "LOG4J_CONFIGURATION_FILE" in os.environ or any("log4j" in each for each in options):
        return {}
    folder = os.environ.get("SPARK_CONF_DIR")
    if any((Path(folder) if folder else find_spark_home() / "conf").glob("log4j*")):
        return {}
    # As a URI it has no blanks, at which the options would be split.
    return {_DEFAULTS: f"-Dlog4j2.configurationFile={_FILE.as_uri()} {options[0]}".rstrip()}
