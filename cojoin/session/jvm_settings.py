"""The options with which a session's JVM starts: a quiet log (``log_settings``), and a compiler that waits longer.

Java's second compiler (C2) takes a fifth of the CPU of a short run on few cores: by its defaults it compiles code of
the planner and of the start that then hardly runs again. With thresholds ten times as high it takes a tenth. That
spared 1 to 2 of 12 to 20 seconds of runs with and without cojoin, and cost later batches nothing that could be
measured. What runs long is compiled all the same.

Options of the user's own come later on the command line, and win. (HotSpot's tiered compilation policy.)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from cojoin.session.log_settings import log_options
from cojoin.session.submit_settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["jvm_settings"]

_DEFAULTS, _EXTRA = "spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions"
_VARIABLES = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_THRESHOLDS = {"Invocation": 50_000, "MinInvocation": 6_000, "Compile": 150_000, "BackEdge": 400_000}
"""Ten times HotSpot's defaults."""

_OF_THE_COMPILER = ("-XX:Tier", "TieredCompilation", "-XX:Compile", "-XX:Flags", "-Xint", "@")
"""What the user's options have where they decide about the compiler, or where a file has options that are not seen."""


def jvm_settings(conf: Mapping[str, Any]) -> dict[str, str]:
    """Return the Spark settings with the options of the driver's JVM.

    Args:
        conf: The user's settings of Spark.

    Returns:
        The driver's default JVM options, the user's own included; nothing in a program that spark-submit started, whose
        JVM runs already.

    Example:
        ``jvm_settings({})["spark.driver.defaultJavaOptions"]``
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return {}
    settings = settings_of(conf)
    defaults = settings.get(_DEFAULTS, "")
    given = " ".join([defaults, settings.get(_EXTRA, ""), *(os.environ.get(name, "") for name in _VARIABLES)])
    options = [*log_options(settings, given), *_compiler_options(given)]
    return {_DEFAULTS: " ".join([*options, defaults]).rstrip()} if options else {}


def _compiler_options(given: str) -> list[str]:
    """Return the compiler's thresholds; none where the user decides about the compiler."""
    if any(each in given for each in _OF_THE_COMPILER):
        return []
    return [f"-XX:Tier4{name}Threshold={count}" for name, count in _THRESHOLDS.items()]
