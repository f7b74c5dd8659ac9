"""With which batch each of a query's last runs began, in a small file of the checkpoint.

It is written down before a run plans its first batch. A batch that is executed again belongs to the run that planned
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.session.offset_log import OFFSETS, newest_id
from cojoin.storage.document_text import Form, damaged
from cojoin.storage.documents import read_document, write_document

if TYPE_CHECKING:
    from cojoin.storage.store import Store

__all__ = ["resumed_batches"]

_RUNS_FILE, _KEPT_RUNS = "runs.json", 5
_RUNS = Form(
    "the batches with which the last runs began",
    1,
    "put it back from a backup of the checkpoint, or delete it where the last run of the query has ended properly",
    {"starts": list},
    unsealed=0,
)


def resumed_batches(files: Store, epoch: int = 0, counted: int = 0) -> frozenset[int]:
    """Write down that a run starts, and return the first batch of each of the last five runs, this one included.

    A batch that an earlier run planned belongs to that run: executed again by this run, it is not its first batch.

    Args:
        files: The checkpoint.
        epoch: The lease epoch of this run.
        counted: The epoch of the run that wrote the last manifest; 0 where that run may not have written this file.

    Raises:
        CheckpointError: The file about the earlier runs is damaged, or a former version of itself.
    """
    found = read_document(
        files, _RUNS_FILE, _RUNS, lambda content: ([*map(int, content["starts"])], int(content.get("epoch", counted)))
    )
    earlier, written = found or ([], counted)
    if written < counted:
        why = f"the run of epoch {counted} has written it, and this is a former version, of epoch {written}"
        raise damaged(files, _RUNS_FILE, _RUNS, why)
    newest = newest_id(files, OFFSETS)
    begins_with = 0 if newest is None else newest + 1
    # Without repetitions: however often a run fails before it plans a batch, earlier runs' starts are kept.
    starts = [*dict.fromkeys([*earlier, begins_with])][-_KEPT_RUNS:]
    write_document(files, _RUNS_FILE, _RUNS, {"starts": starts, "epoch": epoch})
    return frozenset(starts)
