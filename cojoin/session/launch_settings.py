"""The settings and JVM options with which Spark's launcher will start a session's JVM, computed before it starts.

The command line in ``PYSPARK_SUBMIT_ARGS`` overrides the settings that the program gives, and both override a file of
settings such as ``spark-defaults.conf``.

The JVM logs warnings and errors, but not the lines that Spark logs at every start. ``log4j2.properties`` next to this
module configures that. It is passed as a JVM option, since the first lines are logged before Spark has a session. It is
not passed where the user has a Log4j configuration, in any of the places where Spark looks for one. ``spark.log.level``
and ``setLogLevel`` work as usual.

Java's second compiler (C2) takes a fifth of the CPU of a short run on few cores: by default it compiles code
of the planner and of the startup that hardly runs again. With thresholds ten times as high it takes a tenth. That saved
1 to 2 seconds in runs of 12 to 20 seconds, with and without cojoin, and did not measurably slow later batches. Code
that runs for long is still compiled. The user's own options come later on the command line, and win. (HotSpot's tiered
compilation policy.)
"""

from __future__ import annotations

import os
import re
import shlex
from collections import ChainMap
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
_OPTIONS = {
    "--jars": "spark.jars",
    "--packages": "spark.jars.packages",
    "--exclude-packages": "spark.jars.excludes",
    "--repositories": "spark.jars.repositories",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--driver-class-path": "spark.driver.extraClassPath",
}
_CONF, _PROPERTIES = ("--conf", "-c"), "--properties-file"
_OURS = ("spark.jars", "spark.jars.packages")
# A line of a Java properties file: a name, then "=", ":" or a space, then the value.
_PROPERTY = re.compile(r"\s*(?P<name>[^#!\s=:][^\s=:]*)(?:\s*[=:]\s*|\s+)(?P<value>.*?)\s*$")
_FILE = Path(__file__).with_name("log4j2.properties")
_DEFAULTS, _EXTRA = "spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions"
_VARIABLES = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_THRESHOLDS = {"Invocation": 50_000, "MinInvocation": 6_000, "Compile": 150_000, "BackEdge": 400_000}
"""Ten times HotSpot's defaults."""

_OF_THE_COMPILER = ("-XX:Tier", "TieredCompilation", "-XX:Compile", "-XX:Flags", "-Xint", "@")
"""Parts of the user's options that configure the compiler, or that name a file of further options."""


def find_spark_home() -> Path:
    """Return the folder of the Spark that a session uses: ``SPARK_HOME``, or the installed PySpark's."""
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home)
    # PySpark is not imported, so that --help is quick.
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        msg = "pyspark is not installed"
        raise ModuleNotFoundError(msg, name="pyspark")
    folder = Path(package.origin).parent
    # A distribution that pip downloaded with PySpark, PySpark itself, and Spark's own tree.
    places = folder / "spark-distribution", folder, folder.parents[1]
    return next((each for each in places if (each / "bin" / "spark-submit").is_file()), folder)


def _conf_folder() -> Path:
    folder = os.environ.get("SPARK_CONF_DIR")
    return Path(folder) if folder else find_spark_home() / "conf"


def settings_of(conf: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the settings that Spark will see if the program sets those of ``conf``."""
    typed, _, properties = submit_arguments()
    return ChainMap(typed, {name: str(value) for name, value in conf.items()}, _read_properties(properties))


def submit_arguments() -> tuple[dict[str, str], list[str], Path | None]:
    """Return the settings in ``PYSPARK_SUBMIT_ARGS``, its arguments without those for jars, and its properties file."""
    conf: dict[str, str] = {}
    named: dict[str, str] = {}
    others: list[str] = []
    properties = None
    words = iter(shlex.split(os.environ.get(_SUBMIT_ARGS, "pyspark-shell")))
    for word in words:
        option, equals, rest = word.partition("=")
        if option not in {*_OPTIONS, *_CONF, _PROPERTIES}:
            others.append(word)
            continue
        # As in Spark's launcher, the next word is the value, whatever it begins with.
        value = rest if equals else next(words, "")
        if option in _CONF:
            name, _, conf[name] = value.partition("=")
        elif option == _PROPERTIES:
            properties = value
        else:
            named[_OPTIONS[option]] = value
    settings = conf | named
    options = [word for name, value in settings.items() if name not in _OURS for word in ("--conf", f"{name}={value}")]
    if properties is not None:
        options += [_PROPERTIES, properties]
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
    try:
        # As Spark's launcher reads it, whatever its encoding.
        text = (path or _conf_folder() / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = re.sub(r"\\\n[ \t]*", "", text).split("\n")
    matches = (_PROPERTY.match(line) for line in lines)
    return {each["name"]: each["value"] for each in matches if each is not None}


def log_options(settings: Mapping[str, str], options: str) -> list[str]:
    """Return the JVM's options that keep its start quiet; none where the user configures the log.

    ``settings`` are those that Spark will see, ``options`` those that the user gives to the JVM.
    """
    if not _FILE.is_file():
        return []
    structured = settings.get("spark.log.structuredLogging.enabled", "false").lower() == "true"
    if structured or "LOG4J_CONFIGURATION_FILE" in os.environ or "log4j" in options:
        return []
    if any(_conf_folder().glob("log4j*")):
        return []
    # As a URI it has no blanks, at which the options would be split.
    return [f"-Dlog4j2.configurationFile={_FILE.as_uri()}"]


def jvm_settings(conf: Mapping[str, Any]) -> dict[str, str]:
    """Return the driver's default JVM options as a Spark setting, including the user's own.

    Empty in a program that spark-submit started, since its JVM is already running.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return {}
    settings = settings_of(conf)
    defaults = settings.get(_DEFAULTS, "")
    users = " ".join([defaults, settings.get(_EXTRA, ""), *(os.environ.get(name, "") for name in _VARIABLES)])
    options = [*log_options(settings, users), *_compiler_options(users)]
    return {_DEFAULTS: " ".join([*options, defaults]).rstrip()} if options else {}


def _compiler_options(options: str) -> list[str]:
    """Return the compiler's thresholds; none where the user configures the compiler."""
    if any(each in options for each in _OF_THE_COMPILER):
        return []
    return [f"-XX:Tier4{name}Threshold={count}" for name, count in _THRESHOLDS.items()]
