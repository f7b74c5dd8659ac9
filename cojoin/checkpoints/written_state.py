"""``written.json``: a note that a directory holds a state for queries to begin with, and that no query has made it.

``write_state`` and ``erase`` write this note first and the description of the query (``query.json``) last, so a
directory that has the one and not the other is unfinished: nothing can begin with it, and whoever writes again deletes
what is there. No query runs on such a directory itself. Where the state is that of another checkpoint, the note names
it: a query that begins with the state and goes on in the same outputs ends that one, too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError
from cojoin.storage.document_text import IDENTITY, Form
from cojoin.storage.documents import read_document, write_document

if TYPE_CHECKING:
    from cojoin.storage.store import Store

__all__ = ["WRITTEN", "WrittenState", "check_free", "delete_unfinished", "refuse_written"]

WRITTEN = "written.json"
_FORM = Form(
    "the note of who has written the state",
    1,
    "write the state again into an empty directory",
    {"by": str, "origin": (str, type(None)), "batch_id": int},
)
_LEASE_FILES = {"lease.json", "beats"}
"""What the lease has in a directory, whose epochs must go on."""


@dataclass(frozen=True)
class WrittenState:
    """Who has written a state, and from what.

    Attributes:
        by: ``"write_state"`` or ``"erase"``.
        origin: The checkpoint from which the state is; None where it is from DataFrames alone.
        batch_id: The batch after which the state is; 0 where it is of no batch.
    """

    by: str
    origin: str | None = None
    batch_id: int = 0

    @classmethod
    def read(cls, files: Store) -> WrittenState | None:
        """Return the note of a directory; None where there is none.

        Raises:
            CheckpointError: The file is damaged, or of a newer format.
        """
        return read_document(files, WRITTEN, _FORM, _parse)

    def write(self, files: Store) -> None:
        """Write the note."""
        write_document(files, WRITTEN, _FORM, asdict(self))


def _parse(content: dict[str, Any]) -> WrittenState:
    return WrittenState(**content)


def check_free(files: Store, what: str) -> None:
    """Check that a state can be written into a directory: it is empty, or an earlier attempt did not finish.

    Args:
        files: The directory.
        what: Who asks, for the message.

    Raises:
        CheckpointError: It holds something else.
    """
    found = files.names("") if files.exists() else []
    if not found or (WRITTEN in found and IDENTITY not in found) or {*found} <= _LEASE_FILES:
        return
    holds = "is a checkpoint already" if IDENTITY in found else f"holds {', '.join(map(repr, sorted(found)[:3]))}"
    msg = f"{what}: the directory {files.root} {holds}; choose an empty one, nothing was written"
    raise CheckpointError(msg)


def delete_unfinished(files: Store) -> None:
    """Delete what an attempt that did not finish has left; only the holder of the lease may call this."""
    for name in files.names(""):
        if name not in {*_LEASE_FILES, WRITTEN}:
            files.delete_directory(name)
            files.delete(name)


def refuse_written(files: Store) -> None:
    """Check that a query may run on a directory, rather than begin with the state that was written there.

    Raises:
        CheckpointError: The directory holds such a state, or is unfinished.
    """
    written = WrittenState.read(files)
    if written is not None:
        msg = (
            f"checkpoint {files.root}: it holds a state that {written.by} has written, and no query runs on it; give "
            f"the query an empty checkpoint=, and restore_from=cojoin.Checkpoint({files.root!r})"
        )
        raise CheckpointError(msg)
