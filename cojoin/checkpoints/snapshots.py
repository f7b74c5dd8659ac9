"""The index of a checkpoint's snapshots: a small file each, which makes the snapshot count.

Written after the snapshot's rows and before the manifest of the same batch, whose copy it holds: so state, offsets and
outputs of one batch stay together however long manifests are kept. Kept are all savepoints and the newest of those that
were taken by the clock; what the newest of them needs is never removed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cojoin.checkpoints.manifest import Manifest
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cojoin.checkpoints.files import CheckpointFiles

__all__ = ["Snapshot", "SnapshotKind", "Snapshots"]

SnapshotKind: TypeAlias = Literal["checkpoint", "savepoint", "restored"]
"""Why a snapshot was taken: its time had come; somebody asked for it; the query began with it."""

_DIRECTORY, _REMOVED = "snapshots", "snapshots_removed"
_FORMAT = 1


@dataclass(frozen=True)
class Snapshot:
    """A moment that can be restored.

    Attributes:
        manifest: What was true after its batch.
        kind: Why it was taken.
        key_groups: How many key groups its state has.
        rows: The rows of its state.
        state_bytes: The size of its state.
        written_bytes: How much of that was written for it; the rest is in snapshots before.
        content_batch_ids: The snapshots that hold its content: each batch with its key groups.
        seal: The BLAKE2b of the seals of all its rows.
        remembered: Whether the query's own state points to it: the next snapshot builds on the newest of these.
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

    @property
    def batch_id(self) -> int:
        """The batch after which it was taken."""
        return self.manifest.batch_id

    @property
    def taken_at(self) -> datetime:
        """The processing time of its batch, in UTC."""
        return datetime.fromtimestamp(self.manifest.report.processing_time / 1000, tz=timezone.utc)


class Snapshots:
    """The snapshots of one checkpoint."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files

    def write(self, snapshot: Snapshot) -> None:
        """Make a snapshot count."""
        values = {name: value for name, value in asdict(snapshot).items() if name != "manifest"}
        document = {"format": _FORMAT, **values, "manifest": json.loads(snapshot.manifest.to_json())}
        self._files.write(self._name(snapshot.batch_id), json.dumps(document, indent=1))

    def read(self, batch_id: int) -> Snapshot | None:
        """Give the snapshot of a batch, or None.

        Raises:
            CheckpointError: Its file is of a newer format, or damaged.
        """
        return self._read(batch_id, _DIRECTORY)

    def _read(self, batch_id: int, directory: str) -> Snapshot | None:
        text = self._files.read(self._name(batch_id, directory))
        if text is None:
            return None
        what = f"checkpoint {self._files.root}: snapshot of batch {batch_id}"
        try:
            values: dict[str, Any] = json.loads(text)
            if values["format"] > _FORMAT:
                msg = f"{what}: its format {values['format']} is newer than {_FORMAT}; upgrade cojoin"
                raise CheckpointError(msg)
            del values["format"]
            return Snapshot(**{**values, "manifest": Manifest.from_json(json.dumps(values["manifest"]))})
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, CheckpointError):
                raise
            msg = f"{what}: its file {self._name(batch_id)} is damaged ({error}); restore another snapshot"
            raise CheckpointError(msg) from error

    def batch_ids(self) -> list[int]:
        """List the batches that have one, oldest first."""
        return sorted(int(name.removesuffix(".json")) for name in self._files.names(_DIRECTORY))

    def all(self) -> list[Snapshot]:
        """Give all, oldest first."""
        return [snapshot for batch_id in self.batch_ids() if (snapshot := self.read(batch_id)) is not None]

    def holders(self) -> set[int]:
        """Give the batches whose rows have content that a snapshot has or points to."""
        return {int(batch_id) for snapshot in self.all() for batch_id in snapshot.content_batch_ids}

    def remove(self, batch_id: int) -> None:
        """Have a snapshot count no longer; ``removed`` remembers it until its rows are gone."""
        text = self._files.read(self._name(batch_id))
        if text is not None:
            self._files.write(self._name(batch_id, _REMOVED), text)
            self._files.delete(self._name(batch_id))

    def removed(self) -> list[Snapshot]:
        """Give the snapshots that count no longer and whose rows may still be there."""
        names = self._files.names(_REMOVED)
        found = [self._read(int(name.removesuffix(".json")), _REMOVED) for name in names]
        return [snapshot for snapshot in found if snapshot is not None]

    def forget(self, batch_id: int) -> None:
        """Forget a removed snapshot: its rows are gone."""
        self._files.delete(self._name(batch_id, _REMOVED))

    def superfluous(self, keep: int, *, savepoints_too: bool = False) -> list[int]:
        """List the batches whose snapshots are not to be kept.

        Args:
            keep: How many are kept of those that nobody asked for: the newest.
            savepoints_too: Whether savepoints count as the others do.
        """
        found: Sequence[Snapshot] = self.all()
        mine = [each.batch_id for each in found if savepoints_too or each.kind != "savepoint"]
        base = self.base_of(found)
        return [batch_id for batch_id in mine[:-keep] if batch_id != base]

    @staticmethod
    def base_of(snapshots: Iterable[Snapshot]) -> int | None:
        """Give the batch of the snapshot on which the query's next one builds; None where there is none."""
        return max((each.batch_id for each in snapshots if each.remembered), default=None)

    def _name(self, batch_id: int, directory: str = _DIRECTORY) -> str:
        return f"{directory}/{batch_id:012d}.json"
