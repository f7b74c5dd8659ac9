"""Manifests: a small file a batch, written last of all; a batch counts once its manifest is there.

Keeps: the batch's report, its source offsets, the outputs' Delta versions and how long each part took, for the newest
batches and for all that are not yet in the progress table. Costs one small file a batch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cojoin.report import BatchReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.checkpoints.files import CheckpointFiles

__all__ = ["Manifest", "Manifests"]

_DIRECTORY = "manifest"


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

    def to_json(self) -> str:
        """Spell it as a JSON document."""
        return json.dumps({"format": 1, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read what ``to_json`` spelled."""
        values = json.loads(text)
        values.pop("format")
        return cls(**{**values, "report": BatchReport.from_dict(values["report"])})


class Manifests:
    """The manifests of one checkpoint."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files

    def write(self, manifest: Manifest) -> None:
        """Make a batch count."""
        self._files.write(self._name(manifest.batch_id), manifest.to_json())

    def read(self, batch_id: int) -> Manifest | None:
        """Give a batch's manifest, or None where it does not count or was cleaned away."""
        text = self._files.read(self._name(batch_id))
        return None if text is None else Manifest.from_json(text)

    def batch_ids(self) -> list[int]:
        """List the batches whose manifests are there, oldest first."""
        return sorted(int(name.removesuffix(".json")) for name in self._files.names(_DIRECTORY))

    def last(self) -> Manifest | None:
        """Give the newest manifest."""
        ids = self.batch_ids()
        return self.read(ids[-1]) if ids else None

    def clean(self, before: int) -> None:
        """Delete the manifests of batches before one."""
        for batch_id in self.batch_ids():
            if batch_id < before:
                self._files.delete(self._name(batch_id))

    def _name(self, batch_id: int) -> str:
        return f"{_DIRECTORY}/{batch_id:012d}.json"
