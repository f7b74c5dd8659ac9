"""What is recorded of a snapshot: the content of its file in the index of a checkpoint's snapshots.

It has a copy of the manifest of the snapshot's batch, and names the earlier snapshots that have a part of its content.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, TypeAlias

from cojoin.checkpoints.manifest import Manifest
from cojoin.storage.document_text import Form

__all__ = ["SNAPSHOT_FORM", "Snapshot", "SnapshotKind", "parse_snapshot"]


SnapshotKind: TypeAlias = Literal["checkpoint", "savepoint", "restored", "removed", "begun"]
"""Why a snapshot was taken: it was due; a user asked for it; a restored query began with it. Or it is being removed, or
is a savepoint whose rows are being written."""

SNAPSHOT_FORM = Form(
    "the index of a snapshot",
    2,
    "put it back from a backup of the checkpoint, or restore another snapshot with at= (`cojoin checkpoints list` "
    "shows them)",
    {
        "manifest": dict,
        "kind": str,
        "key_groups": int,
        "rows": int,
        "state_bytes": int,
        "written_bytes": int,
        "content_batch_ids": dict,
        "seal": str,
        "remembered": bool,
    },
    unsealed=1,
)


@dataclass(frozen=True)
class Snapshot:
    """A query's state, offsets and outputs after a batch, which can be restored.

    Attributes:
        manifest: The manifest of its batch.
        kind: Why it was taken.
        key_groups: The number of key groups of its state.
        rows: The number of rows of its state.
        state_bytes: The size of its state, in bytes.
        written_bytes: How much of that was written for it; the rest is in earlier snapshots.
        content_batch_ids: The snapshots that have its content: for each batch the key groups. A batch without key
            groups had some for an earlier attempt, and is looked at when the snapshot is removed.
        seal: The BLAKE2b of the seals of all its rows.
        remembered: Whether the query's own state points to it; the next snapshot builds on the newest of these.
        claim: The number of the savepoint's claim (``state_claims``); 0 for a run's snapshot.
    """

    manifest: Manifest
    kind: SnapshotKind
    key_groups: int
    rows: int
    state_bytes: int
    written_bytes: int
    content_batch_ids: dict[str, list[int]]
    seal: str
    remembered: bool
    claim: int = 0

    @property
    def batch_id(self) -> int:
        """The batch after which it was taken."""
        return self.manifest.batch_id

    @property
    def is_begun(self) -> bool:
        """Whether it is a savepoint whose rows are being written, or were when its process ended."""
        return self.kind == "begun"

    @property
    def taken_at(self) -> datetime:
        """The processing time of its batch, in UTC."""
        return datetime.fromtimestamp(self.manifest.report.processing_time / 1000, tz=timezone.utc)


def parse_snapshot(values: dict[str, Any]) -> Snapshot:
    """Return the snapshot that a document's content records."""
    manifest = {name: value for name, value in values["manifest"].items() if name != "format"}
    holders = {str(int(batch_id)): [*map(int, groups)] for batch_id, groups in values["content_batch_ids"].items()}
    return Snapshot(**{**values, "manifest": Manifest.from_dict(manifest), "content_batch_ids": holders})
