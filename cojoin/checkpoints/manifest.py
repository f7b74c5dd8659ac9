"""Manifests: a small file a batch, written last of all; a batch counts once its manifest is there.

Keeps: the batch's report, its source offsets, the outputs' Delta versions and how long each part took, for the newest
batches and for all that are not yet in the progress table. Costs one small file a batch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cojoin.engine.batch_report import BatchReport
from cojoin.errors import QueryFailedError
from cojoin.storage.documents import (
    Form,
    damaged,
    numbered_name,
    numbers_in,
    read_document,
    write_document,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.storage.small_files import CheckpointFiles

__all__ = ["Manifest", "Manifests"]

_DIRECTORY = "manifest"
_FORM = Form(
    "the manifest of a batch",
    2,
    "put it back from a backup of the checkpoint, or restore a snapshot into a new checkpoint with restore_from= "
    "(`cojoin checkpoints list` shows them)",
    {
        "query_id": str,
        "report": dict,
        "offsets": list,
        "outputs": dict,
        "durations_ms": dict,
        "epoch": int,
        "segments": list,
    },
    unsealed=1,
)


@dataclass(frozen=True)
class Manifest:
    """What is true once a batch counts.

    Attributes:
        query_id: The query's own id.
        report: The counts and watermarks after the batch.
        offsets: Where each source stood at the batch's end, as Spark's offset log has it; the control input is the
            last.
        outputs: For each output where it goes, in which batch it was written last, and a Delta table's version after;
            null where nothing was written yet.
        durations_ms: How long each part of the batch took on the driver.
        epoch: Which of the query's runs wrote it: each start takes the checkpoint with a higher number.
        segments: The files, beside Spark's own state, that the state after the batch names (``segment_files``).
    """

    query_id: str
    report: BatchReport
    offsets: Sequence[str]
    outputs: Mapping[str, Mapping[str, Any]]
    durations_ms: Mapping[str, float]
    epoch: int = 0
    segments: Sequence[str] = ()

    @property
    def batch_id(self) -> int:
        """The micro-batch."""
        return self.report.batch_id

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Manifest:
        """Read what ``as_dict`` returned."""
        return cls(**{**values, "report": BatchReport.from_dict(values["report"])})


class Manifests:
    """The manifests of one checkpoint."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files

    def write(self, manifest: Manifest) -> None:
        """Make a batch count.

        Raises:
            QueryFailedError: A later run of the query has made it count already.
        """
        there = self.read(manifest.batch_id)
        if there is not None and there.epoch > manifest.epoch:
            msg = (
                f"checkpoint {self._files.root}: fenced off: another run, of epoch {there.epoch}, has finished batch "
                f"{manifest.batch_id} meanwhile; this query held epoch {manifest.epoch} and stops here"
            )
            raise QueryFailedError(msg)
        write_document(self._files, self._name(manifest.batch_id), _FORM, manifest.as_dict())

    def read(self, batch_id: int) -> Manifest | None:
        """Return a batch's manifest, or None where it does not count or was cleaned away.

        Raises:
            CheckpointError: Its file is damaged, or of a newer format.
        """
        name = self._name(batch_id)
        manifest = read_document(self._files, name, _FORM, Manifest.from_dict)
        if manifest is not None and manifest.batch_id != batch_id:
            raise damaged(self._files, name, _FORM, f"it is that of batch {manifest.batch_id}")
        return manifest

    def batch_ids(self) -> list[int]:
        """List the batches whose manifests are there, oldest first."""
        return numbers_in(self._files, _DIRECTORY)

    def last(self) -> Manifest | None:
        """Return the newest manifest.

        Raises:
            CheckpointError: Its file is damaged, or of a newer format.
        """
        ids = self.batch_ids()
        return self.read(ids[-1]) if ids else None

    def clean(self, before: int) -> None:
        """Delete the manifests of batches before one."""
        for batch_id in self.batch_ids():
            if batch_id < before:
                self._files.delete(self._name(batch_id))

    def _name(self, batch_id: int) -> str:
        return numbered_name(_DIRECTORY, batch_id)
