"""Flink: its Java KeyedCoProcessFunction, and its SQL temporal join, both by the Maven project in ``flink_java``."""

from __future__ import annotations

from pathlib import Path

from benchmarks.join.contender import Contender
from benchmarks.join.environments import Maven

PROJECT = Path(__file__).resolve().parents[2] / "flink_java"
FLINK = Maven("flink-java", ("flink 2.3.0", "flink-connector-kafka 5.0.0-2.2", "hadoop-client 3.4.1"), project=PROJECT)
HEAP = "4g"
# Flink's serializers and Hadoop's files look into Java's own classes.
OPENED = (
    "java.base/java.lang",
    "java.base/java.util",
    "java.base/java.time",
    "java.base/java.nio",
    "java.base/sun.nio.ch",
)


def flink_command(main: str, *arguments: str) -> list[str]:
    """Return the command that runs a class of the project."""
    opens = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
    return ["java", f"-Xmx{HEAP}", *opens, "-cp", FLINK.classes, main, *arguments]


def _command(contender: Contender, data: Path, work: Path) -> list[str]:
    return flink_command("join.Join", contender.name, str(data), str(work))


CONTENDERS = (
    Contender("flink-java", "Flink: KeyedCoProcessFunction in Java", __name__, environment=FLINK, command=_command),
    Contender("flink-sql", "Flink: SQL event-time temporal join", __name__, environment=FLINK, command=_command),
)
