"""Which writers may still commit to the ``state`` table: transaction ids of Delta's, written with the rows.

Two applications are numbered in the table's log. The runs of the query write an epoch and a batch with every snapshot,
and a run that takes over writes its epoch first. Savepoints write a number that grows with each, and once more when
one counts or a cleaning takes one for interrupted. No two attempts draw the same number. A commit whose number is less
than the last is refused, at the very version on which it would be made (``state_commits``). So a run that stood still
does not write over what its successor has written. A savepoint that stood still does not bring files back that a
cleaning has deleted, nor does it replace the rows of one that counts.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SAVEPOINTS", "Claim", "ClaimGoneError"]

_RUNS, SAVEPOINTS = "cojoin-state-runs", "cojoin-state-savepoints"
_BATCHES = 1 << 32
_DRAWN = 1 << 31
"""From how many numbers above the last one a savepoint draws its own."""


class ClaimGoneError(CheckpointError):
    """A claim whose application has gone on: a later run, another savepoint or a cleaning has written to the table."""


class Claim(NamedTuple):
    """The transaction id of one commit: an application, and the version that it writes.

    >>> Claim.of_run(3, 7)
    Claim(app_id='cojoin-state-runs', version=12884901896)
    """

    app_id: str
    version: int

    @property
    def savepoint(self) -> int:
        """The number of the savepoint whose claim it is; 0 where it is a run's."""
        return self.version if self.app_id == SAVEPOINTS else 0

    @classmethod
    def of_run(cls, epoch: int, batch_id: int) -> Claim:
        """Return the claim of a run's snapshot; a later batch or run has a greater one."""
        return cls(_RUNS, epoch * _BATCHES + batch_id + 1)

    @classmethod
    def of_epoch(cls, epoch: int) -> Claim:
        """Return the claim of a run that has not written yet; that of epoch 0 is below all others."""
        return cls(_RUNS, epoch * _BATCHES)

    @classmethod
    def of_savepoint(cls, last: int) -> Claim:
        """Return the claim of a savepoint that begins now.

        Args:
            last: The last number that savepoints have written.
        """
        return cls(SAVEPOINTS, last + 1 + uuid.uuid4().int % _DRAWN)

    @classmethod
    def above_savepoints(cls, last: int) -> Claim:
        """Return the claim that ends all savepoints that have begun so far.

        Args:
            last: The last number that savepoints have written.
        """
        return cls(SAVEPOINTS, last + 1 + _DRAWN)

    def is_made(self, version: Callable[[str], int | None]) -> bool:
        """Return whether a version of the table has this claim as the newest of its application.

        Args:
            version: Returns the newest version of an application; None for none.

        Raises:
            ClaimGoneError: The application has gone on.
        """
        last = version(self.app_id)
        if last is not None and last > self.version:
            msg = f"the claim {self.version} of {self.app_id} is over: the table's is {last}"
            raise ClaimGoneError(msg)
        return last == self.version
