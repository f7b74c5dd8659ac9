"""Manifests: one small file for each batch, written last; a batch counts once its manifest exists.

A manifest holds the batch's report, its source offsets, the outputs' Delta versions and how long each part of the batch
took. The manifests of the newest batches are kept, and all that are not yet in the progress table. Reading a manifest
that is damaged or has a newer format raises ``CheckpointError``.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from cojoin.engine.batch_report import BatchReport, parse_report
from cojoin.storage.documents import Form, damaged, numbered_name, numbers_in, read_document, write_fenced

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cojoin.storage.store import Store

_DIRECTORY = "manifest"
_FORM = Form(
    "the manifest of a batch",
    # Reports have fields that release 0.5.0, which reads up to 2, lacks.
    3,
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
    """The record of a batch that counts; ``offsets`` are lines of Spark's offset log, the control input's is the last.

    ``outputs`` has for each output its location, the batch in which it was written last, and a Delta table's version
    after that; null where nothing was written yet. ``durations_ms`` are the times of the batch's parts on the driver.
    ``epoch`` is that of the lease of the run that wrote the manifest. ``segments`` are those that the state after the
    batch names, next to Spark's own state (``segment_files``). ``described`` is the epoch of the run that last wrote
    ``query.json``; an older one in that file is a former version.

    ``logs`` has for each file source, by its number, the last id in Spark's log of the files that it has read, and a
    sum of the entries up to it (``spark_checkpoint.LogDigests``). ``previous`` is the batch and the epoch of the
    manifest before it; None before the first batch. ``called`` is the last batch, up to this one, that called the key
    groups: their state is at least of that batch; None where none did. Manifests of release 0.5.0 have neither of these
    two.
    """

    query_id: str
    report: BatchReport
    offsets: Sequence[str]
    outputs: Mapping[str, Mapping[str, Any]]
    durations_ms: Mapping[str, float]
    epoch: int = 0
    segments: Sequence[str] = ()
    described: int = 0
    called: int | None = None
    previous: Sequence[int] | None = None
    logs: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def batch_id(self) -> int:
        """The micro-batch."""
        return self.report.batch_id

    def as_dict(self) -> dict[str, Any]:
        """Return the manifest as JSON values."""
        return {**asdict(self), "report": self.report.as_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Manifest:
        """Return the manifest that ``as_dict`` was called on."""
        return cls(**{**values, "report": parse_report(values["report"])})


class Manifests:
    """The manifests of one checkpoint."""

    def __init__(self, files: Store) -> None:
        self._files = files

    def write(self, manifest: Manifest) -> None:
        """Write a batch's manifest, which makes the batch count; ``QueryFailedError`` where a later run has done so."""
        name = self._name(manifest.batch_id)
        write_fenced(self._files, name, _FORM, manifest.as_dict(), f"has finished batch {manifest.batch_id}")

    def read(self, batch_id: int) -> Manifest | None:
        """Return a batch's manifest; None where the batch does not count or its manifest was deleted."""
        name = self._name(batch_id)
        manifest = read_document(self._files, name, _FORM, Manifest.from_dict)
        if manifest is not None and manifest.batch_id != batch_id:
            raise damaged(self._files, name, _FORM, f"it is that of batch {manifest.batch_id}")
        return manifest

    def read_all(self, batch_ids: Iterable[int]) -> list[Manifest]:
        """Return the existing manifests of some batches, oldest first.

        Raises ``CheckpointError`` also for one that is a former version of itself by the next manifest.
        """
        manifests = [manifest for batch_id in batch_ids if (manifest := self.read(batch_id)) is not None]
        for one, two in itertools.pairwise(manifests):
            # Once the next batch counts, a batch is never run again.
            if two.previous is not None and one.batch_id == two.previous[0] and one.epoch != two.previous[1]:
                why = (
                    f"that of batch {two.batch_id} follows one of epoch {two.previous[1]}, and this is a former version"
                )
                raise damaged(self._files, self._name(one.batch_id), _FORM, f"{why}, of epoch {one.epoch}")
        return manifests

    def read_after(self, batch_id: int) -> list[Manifest]:
        """Return the manifests of the batches after one, oldest first; an error is that of ``read_all``."""
        return self.read_all(each for each in self.batch_ids() if each > batch_id)

    def batch_ids(self) -> list[int]:
        """Return the batches that have a manifest, oldest first."""
        return numbers_in(self._files, _DIRECTORY)

    def at_or_before(self, batch_id: int) -> Manifest | None:
        """Return the manifest of a batch, or of the last one before it that has one: those between had no content."""
        ids = [each for each in self.batch_ids() if each <= batch_id]
        return self.read(ids[-1]) if ids else None

    def last(self) -> Manifest | None:
        """Return the newest manifest; None without one."""
        ids = self.batch_ids()
        return self.read(ids[-1]) if ids else None

    def check_counted(self, last: Manifest | None, counted: Sequence[int] | None) -> None:
        """Check that the newest manifest is not older than the last one that is known to count (``Lease.counted``).

        ``counted`` has that batch, and the epoch of the run that wrote its manifest; None where it is not known.
        """
        if counted is None or (last is not None and (last.batch_id, last.epoch) >= tuple(counted)):
            return
        batch_id, epoch = counted
        why = f"the run of epoch {epoch} has counted batch {batch_id}, and "
        if last is None or last.batch_id < batch_id:
            raise damaged(self._files, self._name(batch_id), _FORM, f"{why}this file is gone")
        raise damaged(self._files, self._name(batch_id), _FORM, f"{why}this is a former version, of epoch {last.epoch}")

    def clean(self, before: int) -> None:
        """Delete the manifests of all batches before one."""
        for batch_id in self.batch_ids():
            if batch_id < before:
                self._files.delete(self._name(batch_id))

    def _name(self, batch_id: int) -> str:
        return numbered_name(_DIRECTORY, batch_id)
