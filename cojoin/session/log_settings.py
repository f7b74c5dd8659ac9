"""What a session's JVM writes to standard error: warnings and errors, without the lines that come at every start.

The settings are those of ``log4j2.properties`` beside this module, in place of Spark's own defaults. They are given
when the JVM starts, since its first lines come before Spark has a session. They are not given where the user has a
configuration of Log4j, in any of the places where Spark looks for one. ``spark.log.level`` and ``setLogLevel`` work as
ever.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cojoin.session.submit_settings import find_spark_home

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["log_options"]

_FILE = Path(__file__).with_name("log4j2.properties")


def log_options(settings: Mapping[str, str], given: str) -> list[str]:
    """Return the JVM's options that keep its start quiet; none where the user decides about the log.

    Args:
        settings: The settings that Spark will see.
        given: The options that the user gives to the JVM.

    Example:
        ``log_options({}, "")``
    """
    if not _FILE.is_file():
        return []
    structured = settings.get("spark.log.structuredLogging.enabled", "false").lower() == "true"
    if structured or "LOG4J_CONFIGURATION_FILE" in os.environ or "log4j" in given:
        return []
    folder = os.environ.get("SPARK_CONF_DIR")
    if any((Path(folder) if folder else find_spark_home() / "conf").glob("log4j*")):
        return []
    # As a URI it has no blanks, at which the options would be split.
    return [f"-Dlog4j2.configurationFile={_FILE.as_uri()}"]
