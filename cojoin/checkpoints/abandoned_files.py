"""The removal of temporary files that killed processes have left in a checkpoint.

A file is written under a temporary name and renamed, so a process that ends in between leaves the temporary file. Such
files do no harm, and are deleted at the next start that is a day later.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from cojoin.errors import CheckpointError
from cojoin.session.offset_log import COMMITS, OFFSETS, SOURCES

if TYPE_CHECKING:
    from cojoin.storage.store import Store

__all__ = ["delete_abandoned_files"]

_DIRECTORIES = (
    "",
    "beats",
    "control",
    "manifest",
    "progress",
    "segments",
    "snapshots",
    "snapshots_removed",
    "spark",
    COMMITS,
    OFFSETS,
)
"""The directories in which cojoin itself writes files."""


def delete_abandoned_files(files: Store) -> None:
    """Delete old temporary files of a checkpoint; where that fails, the next start tries again.

    Args:
        files: The checkpoint.
    """
    with contextlib.suppress(CheckpointError):
        sources = [f"{SOURCES}/{name}" for name in files.names(SOURCES)]
        for directory in (*_DIRECTORIES, *sources):
            files.delete_abandoned(directory)
