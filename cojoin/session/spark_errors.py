"""The errors that calls of Spark raise, and the message of the one that stopped a query.

They are PySpark's own, and py4j's where PySpark has no class for one of Java's. The message comes without Spark's
wrapping, the JVM's stack and Python's traceback.
"""

from __future__ import annotations

import re

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from cojoin.delta.table_stream import columns_changed, rows_removed
from cojoin.engine.callbacks import is_user_file, user_line
from cojoin.errors import CojoinError
from cojoin.session.sealed import worker_trouble
from cojoin.storage.locations import without_login
from cojoin.storage.object_store_settings import SCHEMES
from cojoin.storage.store import cure_of

SPARK_ERRORS = (Py4JError, PySparkException)
"""The errors of a call of Spark, also where the JVM lacks the method or does not answer any more."""

JAVA_ERRORS = (Py4JJavaError, PySparkException)
"""The errors that Spark itself raises, in the JVM or in PySpark."""
TWO_RUNS = "another run of this query has written to Spark's log at the same moment"
"""The message where Spark itself finds two runs of one query: it has no epochs, and the first to write wins."""

_OURS = re.compile(r"^(?:.*[\s(])?cojoin(?:\.\w+)+\.\w+Error: ", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)
_AFTERWARDS = re.compile(
    r"\n\s+at [\w.$/<>]+\(|\n\s*(?:JVM stacktrace|=== Streaming Query ===|Driver stacktrace|SQLSTATE: |\n)"
)

_WRAPPING = re.compile(
    r"""^(?: \[STREAM_FAILED\]\ Query\ .*?\ terminated\ with\ exception:\s*
           | \[FOREACH_BATCH_USER_FUNCTION_ERROR\].*?\ Reason:\s*
           | An\ error\ occurred\ while\ calling\ \w+\.\w+\.?\s*:?\s*
           | Job\ aborted\ due\ to\ stage\ failure:\ .*?:\s(?=\S+(?:Exception|Error):)
           | (?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error):\s*
           | \[USER_RAISED_EXCEPTION\]\s*
           )""",
    re.VERBOSE | re.DOTALL,
)

_CAUSE = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_OF_SPARK = ("py4j.protocol.Py4JJavaError: ", "pyspark.errors.")
_FULL = "No space left on device"
_NO_PYTHON = "Python worker failed to connect back"
# Clients below Hadoop name a place by the store's own scheme, s3:// where the user wrote s3a://, or by none.
_OF_STORES = (
    *(f"{scheme}://" for scheme in SCHEMES),
    "S3Exception",
    "awssdk",
    "Unable to execute HTTP request",
    "No FileSystem for scheme",
    _FULL,
)

_CONNECTORS = ("org.apache.hadoop.fs.s3a.", "org.apache.hadoop.fs.azurebfs.", "com.google.cloud.hadoop.")
"""The beginnings of the frames of Hadoop's connectors, whose errors may lack the path."""

_SIGNS_OF_TWO = ("Multiple streaming queries are concurrently using", "Multiple streaming jobs detected for")
_CHANGED = re.compile(
    r"\[DELTA_SCHEMA_CHANGED\w*\] Detected schema change(?P<where> in version \d+)?|assertion failed: Invalid batch: "
)

_UPDATED = re.compile(
    r"\[DELTA_SOURCE_(?:TABLE_IGNORE_CHANGES|IGNORE_DELETE)\] Detected (?P<kind>deleted data|a data update) .*? at "
    r"version (?P<version>\d+)\. .*? at path (?P<path>.*?)\.?$",
    re.DOTALL,
)

_NO_TABLE = ("DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND", "SCHEMA_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND")
_NO_COLUMNS, _OTHER_COMMIT = "DELTA_SCHEMA_NOT_SET", "DELTA_CONCURRENT"
_SAME_TRANSACTION = ("ConcurrentTransactionException", "DELTA_CONCURRENT_TRANSACTION")
_CODES = re.compile(r"\s*\bSQLSTATE: \w{5}\b")


class BatchInterruptedError(Exception):
    """The error of a batch's function whose query is being stopped; Spark takes its text for an interruption.

    Spark finds the interruption in an error's text by a pattern that needs a stack frame for each further character. A
    text with the JVM's stack trace overflows the stack of the query's thread, and a thousand lines are printed.
    """

    def __init__(self) -> None:
        super().__init__(
            "the query is being stopped (py4j.protocol.Py4JJavaError: An error occurred while calling foreachBatch: "
            "java.lang.InterruptedException)"
        )


def has_own_class(error: BaseException) -> bool:
    """Return whether PySpark has a class for an error of Java's."""
    return isinstance(error, PySparkException)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return str(error).strip().partition("\n")[0]


def java_message(error: BaseException) -> str:
    """Return the text of an error with the class of Java's that was raised, without Python's stack."""
    return str(error.java_exception if isinstance(error, Py4JJavaError) else error)


def names_other_run(error: BaseException) -> bool:
    """Return whether an error means that another run has written to the same logs of Spark."""
    return "CONCURRENT_STREAM_LOG_UPDATE" in str(error)


def names_silent_python(error: BaseException) -> bool:
    """Return whether an error means that a Python process of Spark's did not answer in time."""
    return _NO_PYTHON in str(error)


def names_missing_file(error: BaseException) -> bool:
    """Return whether an error means that a file to read is gone."""
    return any(each in str(error) for each in ("FILE_NOT_EXIST", "FileNotFound", "does not exist"))


def names_missing_table(error: BaseException) -> bool:
    """Return whether an error means that no table has the name."""
    return any(each in str(error) for each in _NO_TABLE)


def names_table_without_columns(error: BaseException) -> bool:
    """Return whether an error means that a Delta table to read as a stream does not exist, or has no columns."""
    return _NO_COLUMNS in str(error)


def names_other_commit(error: BaseException) -> bool:
    """Return whether an error means that another writer's commit to a Delta table was first; a repetition may succeed.

    Where the other commit has written the same transaction id, none does (``names_same_transaction``).
    """
    return _OTHER_COMMIT in str(error)


def names_same_transaction(error: BaseException) -> bool:
    """Return whether an error means that another commit to a Delta table has written the same transaction id."""
    return any(each in str(error) for each in _SAME_TRANSACTION)


def explain(error: BaseException) -> str:
    """Return the message of an error of Spark or Python; its first line says what happened.

    It is that of cojoin's own error if the text contains one, and otherwise that of the original cause, with the user's
    line that raised it where that is known.
    """
    text = str(error)
    ours = list(_OURS.finditer(text))
    if ours:
        return _tidy(text[ours[-1].end() :])
    if isinstance(error, CojoinError):
        return text
    if (message := worker_trouble(text)) is not None:
        return message
    if _TRACEBACK in text:
        last = text.rpartition(_TRACEBACK)[2]
        users = [frame for frame in _FRAME.finditer(last) if is_user_file(frame["file"])]
        where = " ({file}:{line}, in {name})".format(**users[-1].groupdict()) if users else ""
        end = _end_of_traceback(last)
        message = _unwrapped(end) if end.startswith(_OF_SPARK) else end
        return _with_cure(_tidy(message) + where, text)
    if not type(error).__module__.startswith(("pyspark", "py4j")):
        return f"{type(error).__name__}{': ' if text else ''}{text}{user_line(error)}"
    return _with_cure(_tidy(_unwrapped(text)), text)


def _unwrapped(text: str) -> str:
    while (wrapping := _WRAPPING.match(text)) is not None:
        text = text[wrapping.end() :]
    return text


def _end_of_traceback(text: str) -> str:
    """Return the text after the last frame: the line that names the exception, and the other lines of its message."""
    lines = text.splitlines()
    frames = [position for position, line in enumerate(lines) if line.startswith("  File ")]
    rest = lines[frames[-1] + 1 :] if frames else lines
    while rest and rest[0].startswith("    "):
        del rest[0]
    return "\n".join(rest)


def _tidy(text: str) -> str:
    stack = _AFTERWARDS.search(text)
    tidied = _CODES.sub("", text[: stack.start()] if stack else text).strip()
    if (changed := _CHANGED.match(tidied)) is not None:
        return columns_changed(changed["where"] or "")
    if (updated := _UPDATED.match(tidied)) is not None:
        return rows_removed(updated["path"], updated["version"], only_deletes=updated["kind"] == "deleted data")
    if any(sign in tidied for sign in _SIGNS_OF_TWO):
        cure = "see that only one runs, and start it again, which continues where it stopped"
        return f"{tidied.rstrip('.')}: {TWO_RUNS}; {cure}"
    return tidied


def _with_cure(message: str, text: str) -> str:
    """Return a message of Spark's about a store with its remedy; ``text`` is all of Spark's text, with the causes."""
    if _FULL in text and _FULL not in message:
        message = f"{message.rstrip('.')}: {_FULL}"
    if not any(sign in message for sign in _OF_STORES):
        causes = map(_unwrapped, _CAUSE.findall(text))
        cause = next((each for each in causes if any(sign in each for sign in _OF_STORES)), None)
        message = message if cause is None else f"{message.rstrip('.')}: {cause}"
    if _NO_PYTHON in message:
        remedy = (
            "start the query again; if that does not help, see that the Python of spark.pyspark.python starts within "
            "ten seconds on all hosts"
        )
        return f"{message.rstrip('.')}: Spark has started a Python process, which gave no answer in time; {remedy}"
    is_of_store = any(sign in message for sign in _OF_STORES) or any(each in text for each in _CONNECTORS)
    cure = cure_of(message) if is_of_store else None
    return message if cure is None else f"{without_login(message).rstrip('.')}; {cure}"
