"""Checks for a Spark Connect server before a query starts on it: it must see the same files as this process.

A process beside the server writes the batches. Without this check it would start from an empty directory of the
server's own. ``worker_check`` compares what the server's workers have.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from cojoin.errors import ConfigurationError
from cojoin.session.session_settings import is_connect
from cojoin.storage.locations import is_relative, literally

if TYPE_CHECKING:
    from cojoin.storage.store import Store

__all__ = ["check_full", "check_server"]


def check_server(session: Any, files: Store) -> None:
    """Check that a server can run a query with this checkpoint.

    Args:
        session: The session of Spark Connect.
        files: The directory of the checkpoint, as this process reaches it.

    Raises:
        ConfigurationError: The server does not see the checkpoint's files.
    """
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
