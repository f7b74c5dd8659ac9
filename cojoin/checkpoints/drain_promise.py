"""``drain.json``: whether a drain was promised, and the newest run that knows of it.

A drain is promised in this file before its message is written, and a run that begins writes its epoch into it, both by
compare-and-swap. So every run either finds the promise when it begins, and finishes the drain first, or keeps earlier
runs from promising one: a drain that stood still never ends the inputs of its successor.

Checkpoints of release 0.5.0 have no such file. There, the message alone is the promise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.errors import QueryFailedError
from cojoin.storage.document_text import Form
from cojoin.storage.documents import read_document, write_fenced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.storage.store import Store

__all__ = ["keep_former_runs_from_draining", "promise_drain", "was_promised"]

_FILE = "drain.json"
_FORM = Form(
    "the promise of a drain",
    1,
    "put it back from a backup of the checkpoint, or, if no run was started with drain=True, delete it",
    {"epoch": int, "promised": bool},
)


def was_promised(files: Store) -> bool:
    """Return whether a run has promised a drain.

    Raises:
        CheckpointError: The file is damaged, or its format is newer.
    """
    found = read_document(files, _FILE, _FORM, dict)
    return found is not None and bool(found["promised"])


def promise_drain(files: Store, epoch: int) -> None:
    """Promise a drain; the call is idempotent.

    Args:
        files: The checkpoint.
        epoch: The epoch of the run's lease.

    Raises:
        QueryFailedError: A later run has begun.
        CheckpointError: The file is damaged, or its format is newer.
    """
    _write(files, epoch, lambda _: {"epoch": epoch, "promised": True})


def keep_former_runs_from_draining(files: Store, epoch: int) -> None:
    """Note that a run begins: from here on, no earlier one can promise a drain.

    Args:
        files: The checkpoint.
        epoch: The epoch of the run's lease; the first run has none before it.

    Raises:
        QueryFailedError: A later run has begun.
        CheckpointError: The file is damaged, or its format is newer.
    """
    if epoch > 1:
        _write(files, epoch, lambda found: {"epoch": epoch, "promised": bool(found.get("promised"))})


def _write(files: Store, epoch: int, over: Any) -> None:
    later = write_fenced(files, _FILE, _FORM, over({"epoch": epoch}), _epoch, over)
    if later is not None:
        msg = (
            f"checkpoint {files.root}: fenced off: another run, of epoch {later}, has begun meanwhile; this query held "
            f"epoch {epoch} and stops here"
        )
        raise QueryFailedError(msg)


def _epoch(content: Mapping[str, Any]) -> int:
    return int(content["epoch"])
