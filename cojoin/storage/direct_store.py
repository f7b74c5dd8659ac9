"""Opens a directory that this process reaches by itself, without a session and its JVM: local files, object stores."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from cojoin.storage.local_store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

__all__ = ["FILE", "direct_store"]

FILE = "file:"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def direct_store(root: str, settings: Callable[[str], Settings | None], what: str = "checkpoint") -> Store | None:
    """Return the files below a directory; None where only Hadoop reaches it.

    Args:
        root: The directory; a path without a scheme is a local one.
        settings: Returns how to reach the object store of a root; None where that is not known.
        what: What the directory is, for messages.

    Raises:
        CheckpointError: A setting is invalid.
    """
    if root.startswith(FILE):
        return LocalStore("/" + root.removeprefix(FILE).lstrip("/"), what)
    if _SCHEME.match(root) is None:
        return LocalStore(str(Path(root).absolute()), what)
    found = settings(root)
    if found is None:
        return None
    from cojoin.storage.object_store import ObjectStore  # noqa: PLC0415 - queries on local files do not load obstore

    return ObjectStore.of(found, root, what)
