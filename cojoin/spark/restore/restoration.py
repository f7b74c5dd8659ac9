"""``restored.json``: the progress of the restoration with which a checkpoint's query began.

A start after a crash reads this file and continues: a restoration that is ``"begun"`` is checked and written again, one
that is ``"written"`` executes its first batch, and one that is ``"ready"`` is over.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.engine.values.arguments import check_flag
from cojoin.errors import CheckpointError, QueryFailedError
from cojoin.session.offset_log import OFFSETS
from cojoin.session.stores import open_store
from cojoin.storage.document_text import Form, damaged
from cojoin.storage.documents import read_document, write_fenced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.checkpoint import Checkpoint
    from cojoin.storage.store import Store

__all__ = ["Restoration", "RestoreOptions", "unfinished"]

_FILE = "restored.json"
_FORM = Form(
    "how far the checkpoint's own restoration has come",
    1,
    "put it back from a backup of the checkpoint, or restore once more with restore_from= into an empty directory",
    {"origin": str, "batch_id": int, "offsets": list, "cut_back": list, "takes_over": bool, "stage": str},
    unsealed=0,
)
_STAGES = ("begun", "written", "ready")


@dataclass(frozen=True)
class RestoreOptions:
    """What a user allows when a checkpoint is restored.

    Attributes:
        cut_back_output: Whether outputs that continue in the old query's tables may be rolled back to the snapshot.
        allow_data_loss: Whether sources may continue at the first record that they still have. A topic that was
            deleted and created again, and another cluster, are refused in any case, since their records are different.
    """

    cut_back_output: bool = False
    allow_data_loss: bool = False

    def __post_init__(self) -> None:
        for name, allowed in vars(self).items():
            check_flag(name, allowed)


@dataclass(frozen=True)
class Restoration:
    """A restoration, as ``restored.json`` describes it.

    Attributes:
        origin: The old checkpoint's directory.
        batch_id: The batch after which the old state is taken.
        offsets: The offsets at which the sources continue, one JSON line each.
        cut_back: The Delta tables to roll back, each with the version to return to, according to the first check. It is
            only for people who read the file: the tables are checked again before they are rolled back.
        takes_over: Whether an output continues in a table of the old query, which ends the old query.
        stage: ``"begun"``, ``"written"`` (the new checkpoint has all it needs), ``"ready"``.
        epoch: The lease epoch of the run that has come so far.
    """

    origin: str
    batch_id: int
    offsets: Sequence[str]
    cut_back: Sequence[Sequence[Any]] = ()
    takes_over: bool = False
    stage: str = "begun"
    epoch: int = 0

    @classmethod
    def read(cls, files: Store) -> Restoration | None:
        """Return the restoration of a checkpoint; None if its query began without one.

        Raises:
            CheckpointError: The file is damaged, or of a newer format.
        """
        return read_document(files, _FILE, _FORM, cls._parse)

    @classmethod
    def _parse(cls, content: dict[str, Any]) -> Restoration:
        found = cls(**content)
        if found.stage not in _STAGES:
            msg = f"expected a stage of {', '.join(_STAGES)}, got {found.stage!r}"
            raise ValueError(msg)
        return found

    def write(self, files: Store) -> None:
        """Write the restoration to ``restored.json``.

        Raises:
            QueryFailedError: A later run has written it.
        """
        later = write_fenced(files, _FILE, _FORM, asdict(self), lambda content: int(content.get("epoch", 0)))
        if later is not None:
            msg = (
                f"checkpoint {files.root}: fenced off: another run, of epoch {later}, goes on with the restoration; "
                f"this query held epoch {self.epoch} and stops here"
            )
            raise QueryFailedError(msg)

    def is_void(self, spark: SparkSession, origin: str) -> bool:
        """Return whether nothing was done but to note what is to be restored, and that snapshot was removed since.

        Args:
            spark: The session.
            origin: The old checkpoint's directory, as the start names it.
        """
        if self.stage != "begun" or self.origin != origin:
            return False
        return Snapshots(open_store(spark, origin)).read(self.batch_id) is None

    def at(self, stage: str) -> Restoration:
        """Return this restoration at a later stage."""
        return replace(self, stage=stage)


def unfinished(spark: SparkSession, files: Store, restore_from: Checkpoint | None) -> Restoration | None:
    """Return the restoration with which a checkpoint's query began, finished or not; None if there is none.

    Raises:
        CheckpointError: The checkpoint's query began differently, or the start needs ``restore_from`` again.
    """
    # These are looked for first: a start at the same moment writes restored.json before them.
    last, is_planned = max(Manifests(files).batch_ids(), default=-1), files.exists(OFFSETS)
    found = Restoration.read(files)
    _check_stage(files, found, last)
    if restore_from is not None:
        origin = open_store(spark, restore_from.path).root
        if origin == files.root:
            msg = f"restore_from: the checkpoint {origin} is restored into a new query; give it another checkpoint="
            raise CheckpointError(msg)
        # A query that has planned no batch has no state to lose; a start that was killed may have left it like this.
        if found is None and is_planned:
            msg = f"restore_from: checkpoint {files.root} is already a query's own; choose an empty directory"
            raise CheckpointError(msg)
        wanted = restore_from.at if isinstance(restore_from.at, int) else None
        is_other = found is not None and (found.origin != origin or wanted not in (None, found.batch_id))
        if found is not None and is_other and not found.is_void(spark, origin):
            msg = (
                f"restore_from: checkpoint {files.root} began with batch {found.batch_id} of {found.origin}; "
                f"choose an empty directory to begin with another"
            )
            raise CheckpointError(msg)
    elif found is not None and found.stage == "begun":
        msg = (
            f"checkpoint {files.root}: restoring batch {found.batch_id} of {found.origin} into it was not finished; "
            f"start it again with restore_from=cojoin.Checkpoint({found.origin!r}, at={found.batch_id})"
        )
        raise CheckpointError(msg)
    return found


def _check_stage(files: Store, found: Restoration | None, last: int) -> None:
    """Check that a restoration is as far as the batches that count: only a former version of the file is behind them.

    Args:
        files: The checkpoint.
        found: The restoration.
        last: The newest batch that counted before the restoration was read.

    Raises:
        CheckpointError: It is behind them.
    """
    if found is None or found.stage == _STAGES[-1]:
        return
    # The first batch is executed at the stage "written".
    if last >= (1 if found.stage == "written" else 0):
        why = f"it is at the stage {found.stage!r}, and batch {last} counts already: it is a former version"
        raise damaged(files, _FILE, _FORM, why)
