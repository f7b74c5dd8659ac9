"""Whether a batch may end with a snapshot, as far as the driver knows before the calls run.

The calls decide it, each from its key group's state (``SnapshotCadence``), and tell of which batch and time the group's
last snapshot is. A batch may have one until every key group has told that in this run, and then where one of them is
due. The answer "no" can be wrong where a clock was set back; who relies on it must do without it then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cojoin.checkpoints.snapshot_row import SnapshotCadence

__all__ = ["DueSnapshots"]


class DueSnapshots:
    """What the calls of one run told of their last snapshots.

    Args:
        cadence: When a snapshot is due.
        key_groups: The number of key groups.
        is_new: Whether no key group has a state yet.
    """

    def __init__(self, cadence: SnapshotCadence, key_groups: int, *, is_new: bool) -> None:
        self._cadence, self._key_groups = cadence, key_groups
        self._last: dict[int, Mapping[str, Any] | None] = dict.fromkeys(range(key_groups)) if is_new else {}

    def may_have(self, batch_id: int, now: int) -> bool:
        """Return whether a batch may end with a snapshot.

        Args:
            batch_id: The batch.
            now: The time, in epoch milliseconds; that of the batch is earlier.
        """
        if len(self._last) < self._key_groups:
            return True
        return any(self._cadence.is_due(last, batch_id, now) for last in self._last.values())

    def observe(self, statistics: Iterable[Mapping[str, Any]]) -> None:
        """Take in what a batch's calls told."""
        self._last.update((each["key_group"], each["saved"]) for each in statistics)
