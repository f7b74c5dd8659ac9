"""The removal of snapshots and segment files that are no longer needed, in a thread beside the batches.

What can't be removed now is removed after the next snapshot, so an error is only logged, and the query continues.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from cojoin.checkpoints.segment_files import SegmentCleaner
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.checkpoints.state_cleaner import STATE_LOCK, StateCleaner
from cojoin.session.failures import explain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.claimed import ClaimedCheckpoint
    from cojoin.checkpoints.manifest import Manifest

__all__ = ["Cleaning"]

_LOG = logging.getLogger(__name__)

_LOOKED_EVERY = 100
"""A query that takes no snapshots looks for interrupted savepoints at its first and then at every so many batches."""


class Cleaning:
    """Removes what a checkpoint no longer needs.

    Args:
        checkpoint: The checkpoint.
        retained: How many snapshots are kept, not counting savepoints.
    """

    def __init__(self, checkpoint: ClaimedCheckpoint, retained: int) -> None:
        self._files, self._lease, self._retained = checkpoint.files, checkpoint.lease, retained
        self._segments = SegmentCleaner(checkpoint.files, checkpoint.manifests)
        self._thread: threading.Thread | None = None
        self._newest: int | None = None
        self._until_looked = 0

    def after(self, manifest: Manifest, session: SparkSession, *, has_snapshot: bool) -> None:
        """Start to remove what is no longer needed after a batch.

        Args:
            manifest: The batch's manifest, once it is written.
            session: The batch's session.
            has_snapshot: Whether the batch wrote a snapshot.
        """
        segments = self._segments.take(manifest)
        if segments or has_snapshot or not self._until_looked:
            self._until_looked = _LOOKED_EVERY
            self.finish()
            self._newest = manifest.batch_id if has_snapshot else self._newest
            self._thread = threading.Thread(target=self._remove, args=(session, segments), daemon=True)
            self._thread.start()
        self._until_looked -= 1

    def finish(self) -> None:
        """Wait until a removal that has started is finished."""
        if self._thread is not None:
            self._thread.join()

    def _remove(self, session: SparkSession, segments: Sequence[str]) -> None:
        try:
            with STATE_LOCK:
                # A run that was taken over would remove what its successor writes.
                self._lease.check()
                self._segments.remove(segments)
                snapshots = Snapshots(self._files)
                obsolete = snapshots.obsolete(self._retained)
                # A crash may have left removals unfinished.
                if obsolete or snapshots.removed():
                    known = self._known(snapshots)
                    cleaner = StateCleaner(session, self._files)
                    cleaner.clean(obsolete, savepoints_too=False, known=known, check=self._lease.check)
        except Exception as error:  # noqa: BLE001 - the next cleaning tries again
            _LOG.warning("checkpoint %s: old snapshots could not be removed: %s", self._files.root, explain(error))

    def _known(self, snapshots: Snapshots) -> int | None:
        """Return the newest snapshot that must be in every listing from now on; None where none is known."""
        listed = max(snapshots.batch_ids(), default=None)
        if self._newest is None or (listed is not None and listed > self._newest):
            return listed
        # A snapshot that lacked a key group's row has no index.
        return self._newest if snapshots.read(self._newest) is not None else listed
