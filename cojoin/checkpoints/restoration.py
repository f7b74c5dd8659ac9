"""The progress of a restoration of a snapshot into a new checkpoint, as ``restored.json`` describes it.

A start writes it before the old state, and after each stage; a later start continues by it. Where the old snapshot was
removed before anything but this file was written, the restoration is void.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints.snapshots import Snapshots
from cojoin.session.sessions import open_store
from cojoin.storage import documents
from cojoin.storage.documents import Form, read_document, write_fenced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from cojoin.errors import CheckpointError
    from cojoin.storage.store import Store

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
        """Return the restoration of a checkpoint; None if its query began without one."""
        return read_document(files, _FILE, _FORM, cls._parse)

    @classmethod
    def _parse(cls, content: dict[str, Any]) -> Restoration:
        restoration = cls(**content)
        if restoration.stage not in _STAGES:
            msg = f"expected a stage of {', '.join(_STAGES)}, got {restoration.stage!r}"
            raise ValueError(msg)
        return restoration

    def write(self, files: Store) -> None:
        """Write the restoration to ``restored.json``; raise a QueryFailedError if a later run has written it."""
        write_fenced(files, _FILE, _FORM, asdict(self), "has continued the restoration")

    def is_void(self, spark: SparkSession, origin: str) -> bool:
        """Return whether an earlier start only recorded what it would restore, and that snapshot was removed since.

        ``origin`` is the old checkpoint's directory, as the present start names it.
        """
        if self.stage != "begun" or self.origin != origin:
            return False
        return Snapshots(open_store(spark, origin)).read(self.batch_id) is None

    def at(self, stage: str) -> Restoration:
        """Return this restoration at a later stage."""
        return replace(self, stage=stage)

    @property
    def is_over(self) -> bool:
        """Whether the new query has its first batch."""
        return self.stage == _STAGES[-1]

    def damaged(self, files: Store, why: str) -> CheckpointError:
        """Return the error for a restoration that does not fit its checkpoint."""
        return documents.damaged(files, _FILE, _FORM, why)
