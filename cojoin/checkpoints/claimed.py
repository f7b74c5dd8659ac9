"""A checkpoint while its query runs: what the parts of the query share of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.checkpoints.lease import Lease
    from cojoin.checkpoints.manifest import Manifest, Manifests
    from cojoin.checkpoints.progress_table import ProgressTable
    from cojoin.engine.batch_report import BatchReport
    from cojoin.storage.store import Store

__all__ = ["ClaimedCheckpoint"]


@dataclass(frozen=True)
class ClaimedCheckpoint:
    """A checkpoint that a query has claimed and leased.

    Attributes:
        files: The checkpoint's directory.
        query_id: The id of the query that the checkpoint belongs to.
        lease: The lease that keeps other runs away.
        manifests: The manifests of its batches.
        progress: Its progress table.
        last: The manifest of the last batch when this run began; None before the first batch.
        begins_at: For a query that was restored: the source offsets after its first batch, one JSON line each.
        described: The epoch of the run that last wrote ``query.json``.
    """

    files: Store
    query_id: str
    lease: Lease
    manifests: Manifests
    progress: ProgressTable
    last: Manifest | None
    begins_at: Sequence[str] | None = None
    described: int = 0

    @property
    def last_report(self) -> BatchReport | None:
        """The report of the last batch when this run began; None before the first batch."""
        return None if self.last is None else self.last.report
