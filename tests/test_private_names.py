"""What cojoin uses of PySpark, py4j and Spark's JVM that is not public, counted by folder: it may only become less.

The ceilings are the present numbers. Whoever lowers a number lowers its ceiling in the same commit.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING

from tests.test_layers import MODULES, ROOT, nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROOM = "session"
"""The folder that all of it moves to; nothing is counted there."""

_ATTRIBUTE = re.compile(r"_j(sparkSession|sc|vm|df|reader|writer|query|context|schema|map|c)?|_gateway\w*|_sc|_[12]")
_MODULE = re.compile(
    r"(py4j|pyspark\.(cloudpickle|daemon|worker|serializers|find_spark_home|java_gateway|sql\.(connect|pandas|classic)))"
    r"(\.\w+)*"
)
_JAVA = re.compile(r"(org\.apache\.(?!kafka)|io\.delta\.|scala\.|java\.)[\w.$]+")

PRIVATE: dict[str, int] = {}
"""Private attributes, and imports of modules that are not public, by top folder."""

MOST = 10
"""How many private names of PySpark and py4j the room may use."""

_OTHERS = {"Py4JError", "Py4JJavaError", "JavaClass", "py4j", "_1", "_2", "connect", "java_gateway", "session"}
"""Public names of py4j, the names of Scala's pairs, and modules' names, which are not counted among them."""

JAVA: dict[str, int] = {}
"""Texts that are the name of a class of the JVM."""

IS_CONNECT: dict[str, int] = {}
"""Questions for the kind of a session."""


LOGS: dict[str, int] = {}
"""Texts that are a folder or file of Spark's own logs."""

_LOG = re.compile(r"spark/(offsets|commits|sources|metadata)(/.*)?")


def _private(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and _ATTRIBUTE.fullmatch(node.attr) and not _is_self(node.value):
        yield node.attr
    elif isinstance(node, ast.Import):
        yield from (each.name for each in node.names if _MODULE.fullmatch(each.name))
    elif isinstance(node, ast.ImportFrom):
        inner = [f"{node.module}.{each.name}" for each in node.names]
        yield from (each for each in inner if _MODULE.fullmatch(each))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE.fullmatch(node.value):
        yield node.value


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def _java(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and _JAVA.fullmatch(node.value):
        yield node.value


def _logs(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and _LOG.fullmatch(node.value):
        yield node.value


def _is_connect(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "is_connect":
        yield "is_connect"


def private_names(folder: str) -> set[str]:
    """Return the private names in a folder, without those of modules: the last part of each."""
    inside = [path for path in MODULES.values() if _folder(path) == folder]
    return {name.rpartition(".")[2] for path in inside for node in nodes(path) for name in _private(node)}


def _counted(names: Callable[[ast.AST], Iterator[str]]) -> dict[str, int]:
    """Return how often a folder has such a name, for the folders outside of the room that have any."""
    found = Counter(_folder(path) for path in MODULES.values() for node in nodes(path) for _ in names(node))
    return {folder: count for folder, count in sorted(found.items()) if folder != ROOM}


def _folder(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def _ceiling(numbers: dict[str, int]) -> dict[str, int]:
    return {folder: count for folder, count in numbers.items() if count}


def test_private_names_become_fewer() -> None:
    assert _counted(_private) == _ceiling(PRIVATE)


def test_the_room_has_few_private_names() -> None:
    assert len(private_names(ROOM) - _OTHERS) <= MOST, sorted(private_names(ROOM) - _OTHERS)


def test_names_of_java_classes_become_fewer() -> None:
    assert _counted(_java) == _ceiling(JAVA)


def test_folders_of_sparks_logs_become_fewer() -> None:
    assert _counted(_logs) == _ceiling(LOGS)


def test_questions_for_the_kind_of_a_session_become_fewer() -> None:
    assert _counted(_is_connect) == _ceiling(IS_CONNECT)
