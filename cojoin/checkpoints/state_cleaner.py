"""The cleaning of the ``state`` table: rows that no snapshot needs are deleted, file by file.

It first notes which files there are, then looks whether they still must go, and removes only those. However long it
stands still in between, it does not touch what a later snapshot of the same batch has written. Of a snapshot that is
being removed, the content to which others point stays, and that to which a savepoint may point that is being taken. A
savepoint that is taken for interrupted can't commit its rows any more (``state_claims``), nor can one of a batch whose
content is removed: it may write rows in the place of that content. Where one has, the cleaning looks again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from cojoin.checkpoints.snapshots import Snapshots, named
from cojoin.checkpoints.state_commits import StateCommits
from cojoin.checkpoints.state_files import STATE_TABLE, partition_folder
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.snapshot_record import Snapshot
    from cojoin.checkpoints.state_claims import Claim
    from cojoin.storage.store import Store

__all__ = ["STATE_LOCK", "StateCleaner"]

STATE_LOCK = threading.RLock()
"""Held in this process while a savepoint is taken or snapshots are cleaned: the two must not overlap."""

_TRIES = 5


class StateCleaner:
    """Deletes snapshots of one checkpoint with their rows."""

    def __init__(self, spark: SparkSession, files: Store) -> None:
        self._files, self._commits = files, StateCommits(spark, files)
        self._snapshots = Snapshots(files)

    def clean(
        self,
        batch_ids: Sequence[int],
        *,
        savepoints_too: bool = True,
        known: int | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> int:
        """Delete snapshots with their files, except content to which other snapshots point.

        Args:
            batch_ids: The snapshots' batches.
            savepoints_too: Whether one that has become a savepoint meanwhile is deleted, too.
            known: The batch of the newest snapshot that the caller has written; None where it has written none.
            check: Raises an error where the caller must not delete; called once it is known which files there are.

        Returns:
            The size of the deleted files, in bytes.

        Raises:
            CheckpointError: The listing of the snapshots is older than that snapshot, so it is not known what is still
                needed; nothing was deleted.
        """
        for batch_id in batch_ids:
            self._snapshots.remove(batch_id, savepoints_too=savepoints_too)
        removed = [each for each in self._snapshots.removed() if self._snapshots.bar(each)]
        if any(each.is_begun for each in removed):
            # From here on their rows are in the table already, or never will be.
            self._commits.end_savepoints()
        known = None if known in batch_ids else known
        promised, needed, freed = self._delete_unneeded(removed, known, check)
        # What savepoints that are being taken may not need in the end is looked at again.
        waiting = {batch_id for batch_id, _ in promised - needed}
        for snapshot in removed:
            if waiting.isdisjoint(_holders(snapshot)):
                self._snapshots.forget(snapshot.batch_id)
        return freed

    def _delete_unneeded(
        self, removed: Sequence[Snapshot], known: int | None, check: Callable[[], None]
    ) -> tuple[set[tuple[int, int]], set[tuple[int, int | None]], int]:
        """Delete what removed snapshots had or pointed to and no other needs.

        Returns:
            The partitions that savepoints may point to, those that snapshots need, and the size of the deleted files.
        """
        batch_ids = {each.batch_id for each in removed}
        promised, needed, gone = self._look(removed, known)
        if {batch_id for batch_id, _ in gone} <= batch_ids:
            return promised, needed, self._delete(gone, batch_ids, None, check) or 0
        for _ in range(_TRIES):
            # A savepoint of one of the other batches may be about to count, with rows in the place of this content.
            ended = self._commits.end_savepoints()
            promised, needed, gone = self._look(removed, known)
            freed = self._delete(gone, batch_ids, ended, check)
            if freed is not None:
                return promised, needed, freed
        msg = (
            f"checkpoint {self._files.root}: savepoints were taken all the time while old snapshots were removed, "
            f"{_TRIES} times; the next cleaning removes them"
        )
        raise CheckpointError(msg)

    def _delete(
        self,
        gone: Sequence[tuple[int, int | None]],
        removed: Collection[int],
        ended: Claim | None,
        check: Callable[[], None],
    ) -> int | None:
        """Delete the files of partitions, and return their size; None where a savepoint was written meanwhile.

        Args:
            gone: The partitions (batch and segment).
            removed: The batches whose snapshots are being removed.
            ended: The claim that has ended the savepoints of other batches; None where there are no others.
            check: Raises an error where nothing must be deleted.
        """
        if not gone:
            return 0
        partitions = {partition_folder(*each): each for each in gone}
        # Files without a commit, or of a commit that was replaced, are not in the log.
        listed = [f"{folder}/{name}" for folder in partitions for name in self._files.names(f"{STATE_TABLE}/{folder}")]
        logged = self._commits.files()
        check()
        finished = {each for each in removed if not self._snapshots.still_removed(each)}
        there = {folder: each for folder, each in partitions.items() if each[0] not in finished}
        paths = {path for path, partition in logged.items() if partition in there.values()}
        if not self._commits.remove(paths, [*there.values()], ended):
            return None
        freed = 0
        for name in sorted({*paths, *(each for each in listed if each.rpartition("/")[0] in there)}):
            freed += self._files.size(f"{STATE_TABLE}/{name}")
            self._files.delete(f"{STATE_TABLE}/{name}")
        for folder in there:
            self._files.delete_empty_directory(f"{STATE_TABLE}/{folder}")
        for batch_id in sorted({each[0] for each in there.values()}):
            self._files.delete_empty_directory(f"{STATE_TABLE}/batch_id={batch_id}")
        return freed

    def _look(
        self, removed: Sequence[Snapshot], known: int | None
    ) -> tuple[set[tuple[int, int]], set[tuple[int, int | None]], list[tuple[int, int | None]]]:
        """Return the partitions that savepoints may point to, those that snapshots need, and those that may go."""
        # First what savepoints may point to, and then what they point to: one may count meanwhile.
        promised = self._snapshots.promised({each.batch_id for each in removed})
        needed = self._needed(known)
        return promised, needed, self._unneeded(removed, needed | promised)

    def _needed(self, known: int | None) -> set[tuple[int, int | None]]:
        """Return the partitions (batch and segment) that snapshots have or point to.

        Args:
            known: The batch of a snapshot that must be listed; None where none is known.
        """
        kept = self._snapshots.all()
        alive = {snapshot.batch_id for snapshot in kept}
        if known is not None and known not in alive:
            msg = (
                f"checkpoint {self._files.root}: the listing of its snapshots lacks that of batch {known}, which was "
                f"written before; nothing was deleted, the next cleaning looks again"
            )
            raise CheckpointError(msg)
        return {*named(kept), *((batch_id, None) for batch_id in alive)}

    def _unneeded(
        self, removed: Sequence[Snapshot], needed: Collection[tuple[int, int | None]]
    ) -> list[tuple[int, int | None]]:
        """Return the partitions (batch and segment) that removed snapshots had or pointed to, and no other needs.

        Other partitions are left unchanged: they may belong to a snapshot that is being written.
        """
        found = [
            (batch_id, int(value) if (value := name.partition("=")[2]).isdigit() else None)
            for batch_id in sorted({holder for snapshot in removed for holder in _holders(snapshot)})
            for name in self._files.names(f"{STATE_TABLE}/batch_id={batch_id}")
        ]
        return [each for each in found if each not in needed]


def _holders(snapshot: Snapshot) -> set[int]:
    """Return the batches that have rows of a snapshot, or content to which it points."""
    return {snapshot.batch_id, *map(int, snapshot.content_batch_ids)}
