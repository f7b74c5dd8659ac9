"""The index of a checkpoint's snapshots: a small file for each snapshot, which makes the snapshot count.

The file is written after the snapshot's rows and before the manifest of the same batch. It has a copy of that manifest,
so the state, offsets and outputs of a batch stay together however long manifests are kept, and names the earlier
snapshots that have a part of its content. All savepoints are kept, the newest of the other snapshots, and the snapshot
on which the next one builds.

A second small file, in ``snapshots_removed``, names a snapshot whose rows must go: one that is being removed, and a
savepoint from before its first row is written until it counts, so that the rows of an interrupted one are found. The
index of a snapshot is marked as being removed until its rows are gone. A savepoint never overwrites that: of a
savepoint that is being taken and a cleaning that takes it for interrupted, one succeeds (``replace``), and the other
begins again. The file of a savepoint that has begun also names the earlier rows to which it may point, which stay until
it counts or is taken for interrupted: however it ends, an index never points to content that is gone.

Reading a file that is damaged or has a newer format raises ``CheckpointError``.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cojoin.checkpoints.manifest import Manifest
from cojoin.errors import CheckpointError, QueryFailedError
from cojoin.storage.documents import (
    SETTLE_SECONDS,
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
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from cojoin.storage.store import Store

SnapshotKind: TypeAlias = Literal["checkpoint", "savepoint", "restored", "removed", "begun"]
"""The reason of a snapshot: it was due; a user asked for it; a restored query began with it. Or it is being removed, or
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
_BEING_REMOVED: SnapshotKind = "removed"
_BEGUN: SnapshotKind = "begun"
_TRIES = 5
_SAFE_SECONDS = 24 * 3600.0
"""A savepoint that takes longer than this is taken for interrupted. If it is not, it begins again."""

_DIRECTORY, _REMOVED = "snapshots", "snapshots_removed"


@dataclass(frozen=True)
class SnapshotIndex:
    """A query's state, offsets and outputs after a batch, which can be restored.

    ``rows`` and ``state_bytes`` are of its whole state; ``written_bytes`` were written for it, the rest is in earlier
    snapshots and in segments. ``content_batch_ids`` has for each batch the key groups whose content its snapshot has; a
    batch without key groups had some for an earlier attempt, and is looked at when the snapshot is removed. ``seal`` is
    the BLAKE2b of the seals of all its rows. ``remembered``: the query's own state points to it; the next snapshot
    builds on the newest of these. ``claim`` is the number of the savepoint's claim (``state_commits.Claim``); 0 for a
    run's snapshot.
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


def parse_snapshot(values: dict[str, Any]) -> SnapshotIndex:
    """Return the snapshot that a document's content records."""
    manifest = {name: value for name, value in values["manifest"].items() if name != "format"}
    holders = {str(int(batch_id)): [*map(int, groups)] for batch_id, groups in values["content_batch_ids"].items()}
    return SnapshotIndex(**{**values, "manifest": Manifest.from_dict(manifest), "content_batch_ids": holders})


class BeingRemovedError(CheckpointError):
    """A savepoint's rows are being removed, since a cleaning has taken it for interrupted."""


class Snapshots:
    """The snapshots of one checkpoint."""

    def __init__(self, files: Store) -> None:
        self._files = files

    def write(self, snapshot: SnapshotIndex, check: Callable[[], None] = lambda: None) -> None:
        """Write a snapshot's index file, which makes the snapshot count.

        ``check`` raises an error where it must not count: another run may have taken over and deleted its rows, or
        another savepoint have replaced them. Raises ``BeingRemovedError`` for a savepoint whose rows are being removed,
        or are replaced, and ``QueryFailedError`` where a later run of the query has written the batch's snapshot, or
        has taken over.
        """
        check()
        name = numbered_name(_DIRECTORY, snapshot.batch_id)

        def epoch_of(content: Mapping[str, Any]) -> int:
            if snapshot.kind == "savepoint" and content["kind"] == _BEING_REMOVED:
                msg = f"{self._files.named}: the rows of batch {snapshot.batch_id} are being removed"
                raise BeingRemovedError(msg)
            if snapshot.kind == content["kind"] == "savepoint":
                # Another one of this batch counts; only one whose rows came later takes its place.
                check()
            return int(content["manifest"].get("epoch", 0))

        def over(content: Mapping[str, Any]) -> Mapping[str, Any]:
            # A savepoint stays one when its batch is run again.
            kind = "savepoint" if content["kind"] == "savepoint" else snapshot.kind
            # What the former index alone pointed to is cleaned together with this snapshot.
            holders = {**{each: [] for each in content["content_batch_ids"]}, **snapshot.content_batch_ids}
            return asdict(replace(snapshot, kind=kind, content_batch_ids=holders))

        action = f"has taken the snapshot of batch {snapshot.batch_id}"
        write_fenced(self._files, name, SNAPSHOT_FORM, asdict(snapshot), action, epoch_of=epoch_of, over=over)
        if snapshot.kind == "savepoint":
            if not self._stays(snapshot.batch_id, "savepoint"):
                msg = f"{self._files.named}: another has written the snapshot of batch {snapshot.batch_id}"
                raise BeingRemovedError(msg)
            # Its rows are looked at once no other savepoint can replace them any more (``savepoint``).
            return
        try:
            check()
        except QueryFailedError:
            # A run that has taken over may have removed the batch's snapshot, with its rows, before this was written.
            self.remove(snapshot.batch_id, savepoints_too=False, written_by=snapshot)
            raise

    def begin(self, manifest: Manifest, key_groups: int, holders: Iterable[tuple[int, int]] = ()) -> None:
        """Note that a savepoint's rows are about to be written; the call is idempotent.

        ``holders`` are the rows (batch and key group) whose content it may point to, which no cleaning removes from now
        on. One that has begun before may still do so.
        """
        groups_of: dict[str, list[int]] = {}
        for batch_id, group in sorted(holders):
            groups_of.setdefault(str(batch_id), []).append(group)
        snapshot = SnapshotIndex(manifest, _BEGUN, key_groups, 0, 0, 0, groups_of, "", remembered=False)
        write_document(self._files, numbered_name(_REMOVED, manifest.batch_id), SNAPSHOT_FORM, asdict(snapshot))

    def is_begun(self, batch_id: int) -> bool:
        """Return whether a savepoint of a batch was begun, and neither counts nor is being removed."""
        noted = self._read_removed(batch_id)
        return noted is not None and noted.is_begun

    def finish(self, batch_id: int) -> None:
        """Note that a savepoint that was begun counts."""
        if self.is_begun(batch_id):
            self._files.delete(numbered_name(_REMOVED, batch_id))

    def promote(self, batch_id: int) -> SnapshotIndex | None:
        """Make a snapshot a savepoint, and return it; None where it does not exist, or is being removed meanwhile."""
        for _ in range(_TRIES):
            stored = self._read_tagged(batch_id)
            if stored is None:
                return None
            snapshot, tag = stored
            savepoint = replace(snapshot, kind="savepoint")
            if snapshot.kind == "savepoint" or self._replace(savepoint, tag):
                return savepoint
        return None

    def read(self, batch_id: int) -> SnapshotIndex | None:
        """Return the snapshot of a batch; None without one."""
        stored = self._read_tagged(batch_id)
        return None if stored is None else stored[0]

    def _read_tagged(self, batch_id: int) -> tuple[SnapshotIndex, str] | None:
        """Return a snapshot that counts, and the tag of its index file."""
        name = numbered_name(_DIRECTORY, batch_id)
        text, tag = read_tagged_text(self._files, name, SNAPSHOT_FORM)
        if tag is None:
            return None
        snapshot = from_text(self._files, name, SNAPSHOT_FORM, text, parse_snapshot)
        self._check_batch(snapshot, name, batch_id)
        return None if snapshot.kind == _BEING_REMOVED else (snapshot, tag)

    def _replace(self, snapshot: SnapshotIndex, tag: str | None) -> bool:
        name = numbered_name(_DIRECTORY, snapshot.batch_id)
        written = replace_document(self._files, name, SNAPSHOT_FORM, asdict(snapshot), tag)
        return written and self._stays(snapshot.batch_id, snapshot.kind)

    def _stays(self, batch_id: int, kind: SnapshotKind) -> bool:
        """Return whether an index that was just written, or one of its kind, still exists.

        Without compare-and-swap, a savepoint and a cleaning that write it at the same moment both seem to succeed; the
        last one's content holds.
        """
        if self._files.has_conditional_writes:
            return True
        time.sleep(SETTLE_SECONDS)
        stored = read_document(self._files, numbered_name(_DIRECTORY, batch_id), SNAPSHOT_FORM, parse_snapshot)
        return stored is not None and stored.kind == kind

    def _check_batch(self, snapshot: SnapshotIndex, name: str, batch_id: int) -> None:
        if snapshot.batch_id != batch_id:
            raise damaged(self._files, name, SNAPSHOT_FORM, f"it is that of batch {snapshot.batch_id}")

    def _read_removed(self, batch_id: int) -> SnapshotIndex | None:
        name = numbered_name(_REMOVED, batch_id)
        snapshot = read_document(self._files, name, SNAPSHOT_FORM, parse_snapshot)
        if snapshot is not None:
            self._check_batch(snapshot, name, batch_id)
        return snapshot

    def batch_ids(self) -> list[int]:
        """Return the batches that have a snapshot, oldest first."""
        numbers, doubtful = numbers_in(self._files, _DIRECTORY), set(numbers_in(self._files, _REMOVED))
        return [each for each in numbers if each not in doubtful or self.read(each) is not None]

    def all(self) -> list[SnapshotIndex]:
        """Return all snapshots, oldest first."""
        numbers = numbers_in(self._files, _DIRECTORY)
        return [snapshot for batch_id in numbers if (snapshot := self.read(batch_id)) is not None]

    def holders(self) -> set[tuple[int, int]]:
        """Return the rows (batch and key group) that have content of some snapshot."""
        return named(self.all())

    def promised(self, barred: Collection[int] = ()) -> set[tuple[int, int]]:
        """Return the rows (batch and key group) to whose content savepoints that are being taken may point.

        The savepoints of ``barred`` batches can no longer begin to count (``bar``). However old another one is, it may
        still count.
        """
        return named(each for each in self._noted() if each.is_begun and each.batch_id not in barred)

    def listed(self, known: int | None) -> list[SnapshotIndex]:
        """Return all snapshots, oldest first; ``CheckpointError`` where the listing lacks that of a ``known`` batch."""
        snapshots = self.all()
        if known is not None and known not in {each.batch_id for each in snapshots}:
            msg = (
                f"{self._files.named}: the listing of its snapshots lacks that of batch {known}, which was "
                f"written before; nothing was deleted, the next cleaning looks again"
            )
            raise CheckpointError(msg)
        return snapshots

    def segments(self, newest: int | None) -> set[str]:
        """Return the names of the files with rows of snapshots, also of savepoints that are being taken.

        Raises ``CheckpointError`` where the snapshot of the ``newest`` batch exists and is not listed.
        """
        # The notes come first, as a savepoint's note is deleted once its index exists.
        begun, snapshots = [each for each in self._noted() if each.is_begun], self.all()
        if newest is not None and newest not in {each.batch_id for each in snapshots} and self.read(newest) is not None:
            snapshots = self.listed(newest)
        return {name for each in [*begun, *snapshots] for name in each.manifest.segments}

    def remove(
        self,
        batch_id: int,
        check: Callable[[], None] = lambda: None,
        *,
        savepoints_too: bool = True,
        written_by: SnapshotIndex | None = None,
    ) -> None:
        """Remove a snapshot from those that count; ``removed`` returns it until ``forget``.

        ``check`` is called if it exists, and raises an error where it must stay. With ``savepoints_too``, a savepoint
        is removed, too; another process may make the snapshot one meanwhile. With ``written_by``, the snapshot is
        removed only if the same run or savepoint has written it.
        """
        stored = self._read_tagged(batch_id)
        while stored is not None and (savepoints_too or stored[0].kind != "savepoint"):
            if written_by is not None and _writer(written_by) != _writer(stored[0]):
                return
            check()
            snapshot, tag = stored
            name = numbered_name(_REMOVED, batch_id)
            write_document(self._files, name, SNAPSHOT_FORM, asdict(snapshot))
            # From here on the snapshot can't become a savepoint. Its index stays until its rows are gone.
            if self._replace(replace(snapshot, kind=_BEING_REMOVED), tag):
                return
            self._files.delete(name)
            stored = self._read_tagged(batch_id)

    def removed(self) -> list[SnapshotIndex]:
        """Return the snapshots that no longer count and whose rows may still exist, and interrupted savepoints.

        A snapshot whose file is damaged is skipped: its rows stay, and do no harm.
        """
        return [each for each in self._noted() if not each.is_begun or self._is_interrupted(each)]

    def _noted(self) -> list[SnapshotIndex]:
        notes = []
        for batch_id in numbers_in(self._files, _REMOVED):
            with contextlib.suppress(CheckpointError):
                notes.append(self._read_removed(batch_id))
        return [each for each in notes if each is not None]

    def _is_interrupted(self, begun: SnapshotIndex) -> bool:
        """Return whether a savepoint that was begun is no longer being taken, as far as that is known."""
        try:
            modified = self._files.modified(numbered_name(_REMOVED, begun.batch_id))
        except (OSError, CheckpointError):
            # It counts meanwhile.
            return False
        if time.time() - modified / 1000 > _SAFE_SECONDS:
            return True
        return self._is_marked(begun.batch_id)

    def _is_marked(self, batch_id: int) -> bool:
        """Return whether the index of a batch's snapshot is marked as being removed."""
        return self._files.exists(numbered_name(_DIRECTORY, batch_id)) and self.read(batch_id) is None

    def bar(self, removed: SnapshotIndex) -> bool:
        """Keep a snapshot of ``removed`` from counting again; return False where it counts meanwhile."""
        name = numbered_name(_DIRECTORY, removed.batch_id)
        if self._files.exists(name):
            return True
        return self._replace(replace(removed, kind=_BEING_REMOVED), None)

    def still_removed(self, batch_id: int) -> bool:
        """Return whether a snapshot is still to be removed: no other cleaning has finished that, and it does not count.

        If it is not, a savepoint of that batch has written rows since at the earliest.
        """
        return self._files.exists(numbered_name(_REMOVED, batch_id)) and self.read(batch_id) is None

    def forget(self, batch_id: int) -> None:
        """Delete the files of a removed snapshot, once its rows are deleted."""
        # A batch that was run again has written the index again.
        if self._is_marked(batch_id):
            self._files.delete(numbered_name(_DIRECTORY, batch_id))
        self._files.delete(numbered_name(_REMOVED, batch_id))

    def obsolete(self, keep: int, *, savepoints_too: bool = False) -> list[int]:
        """Return the batches whose snapshots are not kept: all but savepoints and the newest ``keep`` others.

        With ``savepoints_too``, savepoints are treated like the others.
        """
        counted: Sequence[SnapshotIndex] = self.all()
        mine = [each.batch_id for each in counted if savepoints_too or each.kind != "savepoint"]
        base = self.base_of(counted)
        return [batch_id for batch_id in mine[:-keep] if batch_id != base]

    @staticmethod
    def base_of(snapshots: Iterable[SnapshotIndex]) -> int | None:
        """Return the batch of the snapshot on which the query's next snapshot builds; None without one."""
        return max((each.batch_id for each in snapshots if each.remembered), default=None)


def named(snapshots: Iterable[SnapshotIndex]) -> set[tuple[int, int]]:
    """Return the rows (batch and key group) that snapshots name for their content."""
    return {
        (int(batch_id), group)
        for snapshot in snapshots
        for batch_id, groups in snapshot.content_batch_ids.items()
        for group in groups
    }


def _writer(snapshot: SnapshotIndex) -> tuple[int, int]:
    return snapshot.manifest.epoch, snapshot.claim
