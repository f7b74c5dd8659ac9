"""What cojoin uses of PySpark, py4j and Spark's JVM that is not public, counted by folder: it may only become less.

The ceilings are the present numbers. Whoever lowers a number lowers its ceiling in the same commit.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

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
"""Questions for the kind of a session, and names of the classes of the two kinds."""

_KINDS = {"ClassicSession", "ConnectSession", "is_connect", "is_remote"}

ERRORS: dict[str, int] = {}
"""Texts that have the name of an error of Spark's or Delta's, or of an exception of Java's."""

_ERROR = re.compile(r"\b(?:[A-Z]+_[A-Z_]*[A-Z]|[A-Z]\w+Exception)\b")
_NO_ERROR = re.compile(
    r"APPLICATION_DEFAULT|COMPUTE_ENGINE|SERVICE_ACCOUNT_JSON_KEYFILE"  # kinds of Google's logins
    r"|BYTE_ARRAY|DELTA_BINARY_PACKED"  # types and encodings of parquet's
    r"|CURRENT_DEFAULT|TIMESTAMP_NTZ|TRY_CAST"  # a column's default in its metadata, and SQL
    r"|HADOOP_CONF_DIR|SPARK_LOCAL_DIRS|YARN_CONF_DIR|SC_PAGE_SIZE|SC_PHYS_PAGES"  # settings of the environment
    r"|HOW_OFTEN|KAFKA_PASSWORD|SASL_SSL"  # names in texts of the command line
    r"|UnknownHostException"  # of all that is reached by a network
)
_HAS_OWN_ERRORS = "kafka"
"""The folder with the names of the brokers' errors, which are public."""

ACTION_FILES = {"delta/actions.py", "delta/table_log.py"}
"""The modules that read the actions of a Delta table's log: of a file, and of the versions."""

LOG_FILE, WRITER = "delta/table_log.py", "delta/deltalake_table.py"
"""The module that has the name of the log's folder, and the one that commits, by ``deltalake``."""

_ACTIONS = {"commitInfo", "metaData", "txn"}
"""Kinds of actions that are no other words of cojoin's."""

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
    if isinstance(node, (ast.Name, ast.Attribute)):
        yield from {node.id if isinstance(node, ast.Name) else node.attr} & _KINDS
    elif isinstance(node, ast.ImportFrom):
        yield from (each.name for each in node.names if each.name in _KINDS)
    elif isinstance(node, (ast.Compare, ast.Call)):
        inner = list(ast.walk(node))
        has_module = any(isinstance(each, ast.Attribute) and each.attr == "__module__" for each in inner)
        texts = (each.value for each in inner if isinstance(each, ast.Constant) and isinstance(each.value, str))
        if has_module and any("connect" in each for each in texts):
            yield "__module__"


def _errors(node: ast.AST) -> Iterator[str]:
    for text in _texts(node):
        yield from (name for name in _ERROR.findall(text) if _NO_ERROR.fullmatch(name) is None)


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts right below a node, without docstrings."""
    if not isinstance(node, ast.Expr):
        constants = (each.value for each in ast.iter_child_nodes(node) if isinstance(each, ast.Constant))
        yield from (each for each in constants if isinstance(each, str))


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


def test_names_of_errors_become_fewer() -> None:
    found = {folder: count for folder, count in _counted(_errors).items() if folder != _HAS_OWN_ERRORS}
    assert found == _ceiling(ERRORS)


def test_one_room_reads_the_log_of_a_table() -> None:
    files = {path.relative_to(ROOT).as_posix(): list(nodes(path)) for path in MODULES.values()}
    texts = {name: {text for each in inside for text in _texts(each)} for name, inside in files.items()}
    writes = {
        name: [each for each in inside if isinstance(each, ast.Attribute) and each.attr == "create_write_transaction"]
        for name, inside in files.items()
    }
    assert {name for name, found in texts.items() if found & _ACTIONS} == ACTION_FILES
    assert {name for name, found in texts.items() if any("_delta_log" in each for each in found)} == {LOG_FILE}
    assert {name for name, found in writes.items() if found} == {WRITER}


@pytest.mark.parametrize(
    ("names", "code", "expected"),
    [
        (_is_connect, "isinstance(adapter_of(spark), ConnectSession)", 1),
        (_is_connect, "isinstance(each, (classic_session.ClassicSession, int))", 1),
        (_is_connect, "from cojoin.session.connect_session import ConnectSession", 1),
        (_is_connect, "is_remote()", 1),
        (_is_connect, "if 'connect' in type(spark).__module__: pass", 1),
        (_is_connect, "type(spark).__module__.startswith('pyspark.sql.connect')", 1),
        (_is_connect, "type(spark).__module__ == 'numpy'", 0),
        (_errors, "if 'TABLE_OR_VIEW_NOT_FOUND' in str(error): pass", 1),
        (_errors, "names = f'[DELTA_CONCURRENT_APPEND] {x}', 'ConcurrentTransactionException'", 2),
        (_errors, "error = '[UNRESOLVED_COLUMN.WITH_SUGGESTION]'", 2),
        (_errors, "def f():\n    'Return SOME_CONSTANT.'\n    return 'TIMESTAMP_NTZ'", 0),
    ],
)
def test_a_new_one_is_seen(names: Callable[[ast.AST], Iterator[str]], code: str, expected: int) -> None:
    assert len([each for node in ast.walk(ast.parse(code)) for each in names(node)]) == expected
