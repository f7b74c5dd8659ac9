"""Checks for a Spark Connect server before a query starts on it: it must have cojoin, and see the same files.

The server's workers execute cojoin's calls, and a process beside the server writes the batches. Without these checks
the first batch would fail with an error about a module, or start from an empty directory of the server's own.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException

from cojoin.errors import ConfigurationError
from cojoin.storage.locations import is_relative, literally
from cojoin.storage.session_settings import is_connect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cojoin.storage.store import Store

__all__ = ["check_full", "check_server"]

_WITH_COJOIN: set[str] = set()
_PYTHON_ERROR = re.compile(r"^\w+Error: .+$", re.MULTILINE)


def check_server(session: Any, files: Store) -> None:
    """Check that a server can run a query with this checkpoint.

    Args:
        session: The session of Spark Connect.
        files: The directory of the checkpoint, as this process reaches it.

    Raises:
        ConfigurationError: The server's workers have no cojoin, or another version; or the server does not see the
            checkpoint's files.
    """
    if session.session_id not in _WITH_COJOIN:
        _check_workers(session)
        _WITH_COJOIN.add(session.session_id)
    _check_files(session, files)


def check_full(session: Any, role: str, path: str | None) -> None:
    """Check that a path is not relative: to a server, that would be another folder than to this process.

    Args:
        session: The session; in one of another kind, any path is right.
        role: What the path belongs to, for the message.
        path: The path; None where there is none.

    Raises:
        ConfigurationError: It is relative.
    """
    if path is not None and is_connect(session) and is_relative(path):
        msg = (
            f"{role}: expected a full path, got {path!r}: with Spark Connect, a relative one is another folder for the "
            f"server than for this process, for which it is {str(Path(path).absolute())!r}"
        )
        raise ConfigurationError(msg)


def _check_workers(session: Any) -> None:
    from cojoin import __version__ as ours  # noqa: PLC0415 - the package is imported by now

    def asked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            try:
                from cojoin import __version__ as found  # noqa: PLC0415 - on the worker
            except ModuleNotFoundError as error:
                found = f"none ({error})"
            yield pa.RecordBatch.from_pydict({"version": [found]})

    try:
        theirs = str(session.range(1).mapInArrow(asked, "version string").first()[0])
    except PySparkException as error:
        raised = _PYTHON_ERROR.findall(str(error))
        reason = raised[-1] if raised else str(error).strip().partition("\n")[0]
        theirs = f"none that works ({reason})"
    if theirs != ours:
        msg = (
            f"Spark Connect: cojoin {ours} is installed in this process, and on the server's workers {theirs}; install "
            f"cojoin=={ours} in the Python of the server and its workers (spark.pyspark.python), since they execute it"
        )
        raise ConfigurationError(msg)


def _check_files(session: Any, files: Store) -> None:
    name, text = f"server-check-{uuid.uuid4().hex}", uuid.uuid4().hex
    files.write(name, text)
    try:
        seen: Any = session.read.text(literally(files.path(name))).first()
        reason = "it finds no such file"
    except PySparkException as error:
        seen, reason = None, str(error).strip().partition("\n")[0]
    finally:
        files.delete(name)
    if seen is None or seen[0] != text:
        msg = (
            f"checkpoint {files.root}: the Spark Connect server does not see the files that this process writes there: "
            f"{reason}. Choose a directory that both reach by the same path: on an object store, or on a file system "
            f"that they share"
        )
        raise ConfigurationError(msg)
