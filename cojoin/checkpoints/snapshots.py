"""The index of a checkpoint's snapshots: a small file for each snapshot, which makes the snapshot count.

The file is written after the snapshot's rows and before the manifest of the same batch. It has a copy of that manifest,
so the state, offsets and outputs of a batch stay together however long manifests are kept. All savepoints are kept,
the newest of the other snapshots, and the snapshot on which the next one builds.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cojoin.checkpoints.manifest import Manifest
from cojoin.errors import CheckpointError, QueryFailedError
from cojoin.storage.documents import (
    Form,
    damaged,
    from_text,
    numbered_name,
    numbers_in,
    read_document,
    read_tagged_text,
    replace_document,
    write_document,
    write_fenced,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cojoin.storage.store import Store

__all__ = ["Snapshot", "SnapshotKind", "Snapshots"]

SnapshotKind: TypeAlias = Literal["checkpoint", "savepoint", "restored", "removed"]
"""Why a snapshot was taken: it was due; a user asked for it; a restored query began with it. Or it is being removed."""

_BEING_REMOVED: SnapshotKind = "removed"
_TRIES = 5

_DIRECTORY, _REMOVED = "snapshots", "snapshots_removed"
_FORM = Form(
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
        content_batch_ids: The snapshots that have its content: for each batch the key groups.
        seal: The BLAKE2b of the seals of all its rows.
        remembered: Whether the query's own state points to it; the next snapshot builds on the newest of these.
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

    def __init__(self, files: Store) -> None:
        self._files = files

    def write(self, snapshot: Snapshot, check: Callable[[], None] = lambda: None) -> None:
        """Write a snapshot's index file, which makes the snapshot count.

        Args:
            snapshot: The snapshot.
            check: Raises an error where it must not count: another run may have taken over and deleted its rows.

        Raises:
            QueryFailedError: A later run of the query has already written the batch's snapshot.
        """
        check()
        name = numbered_name(_DIRECTORY, snapshot.batch_id)
        later = write_fenced(self._files, name, _FORM, asdict(snapshot), _epoch)
        if later is not None:
            msg = (
                f"checkpoint {self._files.root}: fenced off: another run, of epoch {later}, has taken the snapshot of "
                f"batch {snapshot.batch_id} meanwhile; this query held epoch {snapshot.manifest.epoch} and stops here"
            )
            raise QueryFailedError(msg)

    def promote(self, batch_id: int) -> bool:
        """Make a snapshot a savepoint, and return whether it is one; False where it is being removed meanwhile."""
        for _ in range(_TRIES):
            found = self._read_tagged(batch_id)
            if found is None:
                return False
            snapshot, tag = found
            if snapshot.kind == "savepoint" or self._replace(replace(snapshot, kind="savepoint"), tag):
                return True
        return False

    def read(self, batch_id: int) -> Snapshot | None:
        """Return the snapshot of a batch; None where there is none.

        Raises:
            CheckpointError: Its file is damaged, or its format is newer.
        """
        found = self._read_tagged(batch_id)
        return None if found is None else found[0]

    def _read_tagged(self, batch_id: int) -> tuple[Snapshot, str] | None:
        """Return a snapshot that counts, and the tag of its index file."""
        name = numbered_name(_DIRECTORY, batch_id)
        text, tag = read_tagged_text(self._files, name, _FORM)
        if tag is None:
            return None
        snapshot = from_text(self._files, name, _FORM, text, _parse)
        self._check_batch(snapshot, name, batch_id)
        return None if snapshot.kind == _BEING_REMOVED else (snapshot, tag)

    def _replace(self, snapshot: Snapshot, tag: str) -> bool:
        name = numbered_name(_DIRECTORY, snapshot.batch_id)
        return replace_document(self._files, name, _FORM, asdict(snapshot), tag)

    def _check_batch(self, snapshot: Snapshot, name: str, batch_id: int) -> None:
        if snapshot.batch_id != batch_id:
            raise damaged(self._files, name, _FORM, f"it is that of batch {snapshot.batch_id}")

    def _read_removed(self, batch_id: int) -> Snapshot | None:
        name = numbered_name(_REMOVED, batch_id)
        snapshot = read_document(self._files, name, _FORM, _parse)
        if snapshot is not None:
            self._check_batch(snapshot, name, batch_id)
        return snapshot

    def batch_ids(self) -> list[int]:
        """Return the batches that have a snapshot, oldest first."""
        return numbers_in(self._files, _DIRECTORY)

    def all(self) -> list[Snapshot]:
        """Return all snapshots, oldest first.

        Raises:
            CheckpointError: A file is damaged, or its format is newer.
        """
        return [snapshot for batch_id in self.batch_ids() if (snapshot := self.read(batch_id)) is not None]

    def holders(self) -> set[int]:
        """Return the batches whose rows have content of some snapshot."""
        return {int(batch_id) for snapshot in self.all() for batch_id in snapshot.content_batch_ids}

    def remove(self, batch_id: int, check: Callable[[], None] = lambda: None, *, savepoints_too: bool = True) -> None:
        """Remove a snapshot from those that count; ``removed`` returns it until ``forget``.

        Args:
            batch_id: The snapshot's batch.
            check: Called if there is such a snapshot; raises an error where it must stay.
            savepoints_too: Whether a savepoint is removed, too; another process may make the snapshot one meanwhile.
        """
        found = self._read_tagged(batch_id)
        while found is not None and (savepoints_too or found[0].kind != "savepoint"):
            check()
            snapshot, tag = found
            name = numbered_name(_REMOVED, batch_id)
            write_document(self._files, name, _FORM, asdict(snapshot))
            # From here on the snapshot can't become a savepoint.
            if self._replace(replace(snapshot, kind=_BEING_REMOVED), tag):
                self._files.delete(numbered_name(_DIRECTORY, batch_id))
                return
            self._files.delete(name)
            found = self._read_tagged(batch_id)

    def removed(self) -> list[Snapshot]:
        """Return the snapshots that no longer count and whose rows may still exist.

        A snapshot whose file is damaged is skipped: its rows stay, and do no harm.
        """
        found = []
        for batch_id in numbers_in(self._files, _REMOVED):
            with contextlib.suppress(CheckpointError):
                found.append(self._read_removed(batch_id))
        return [snapshot for snapshot in found if snapshot is not None]

    def forget(self, batch_id: int) -> None:
        """Delete the files of a removed snapshot, once its rows are deleted."""
        name = numbered_name(_DIRECTORY, batch_id)
        # A crash may have left the index; a batch that was run again has written it anew.
        if self._files.exists(name) and self.read(batch_id) is None:
            self._files.delete(name)
        self._files.delete(numbered_name(_REMOVED, batch_id))

    def obsolete(self, keep: int, *, savepoints_too: bool = False) -> list[int]:
        """Return the batches whose snapshots need not be kept.

        Args:
            keep: How many of the newest snapshots to keep, besides savepoints.
            savepoints_too: Whether savepoints are treated like the others.
        """
        found: Sequence[Snapshot] = self.all()
        mine = [each.batch_id for each in found if savepoints_too or each.kind != "savepoint"]
        base = self.base_of(found)
        return [batch_id for batch_id in mine[:-keep] if batch_id != base]

    @staticmethod
    def base_of(snapshots: Iterable[Snapshot]) -> int | None:
        """Return the batch of the snapshot on which the query's next snapshot builds; None where there is none."""
        return max((each.batch_id for each in snapshots if each.remembered), default=None)


def _parse(values: dict[str, Any]) -> Snapshot:
    manifest = {name: value for name, value in values["manifest"].items() if name != "format"}
    holders = {str(int(batch_id)): [*map(int, groups)] for batch_id, groups in values["content_batch_ids"].items()}
    return Snapshot(**{**values, "manifest": Manifest.from_dict(manifest), "content_batch_ids": holders})


def _epoch(content: Mapping[str, Any]) -> int:
    return int(content["manifest"].get("epoch", 0))
