"""The markers of the batches that a Delta table has, compared with that of a batch that is executed again.

A batch that the table already has is the same execution if its source offsets and the digest of its rows are those of
the stored marker (``batch_marker``). Otherwise the batch fails, and the error says what has changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.errors import QueryFailedError
from cojoin.spark.sinks.batch_marker import BatchMarker

if TYPE_CHECKING:
    from cojoin.checkpoints.table_transactions import TableTransactions

__all__ = ["StoredMarkers"]


class StoredMarkers:
    """The markers of one output of a query in a Delta table.

    Args:
        transactions: The output's commits to the table.

    Attributes:
        cure: What to do where a batch is from another execution, as the end of a sentence.
    """

    def __init__(self, transactions: TableTransactions) -> None:
        self._transactions = transactions
        self.cure = "start the query again"

    def is_there(self, newest: int, marker: BatchMarker) -> bool:
        """Return whether the table has a batch from the same execution.

        Raises:
            QueryFailedError: The table has the batch from a different execution, or later batches.
        """
        if newest < marker.batch_id:
            return False
        if newest > marker.batch_id:
            msg = (
                f"the table has the query's batches up to {newest} already, so another run has gone on meanwhile; "
                f"nothing was written"
            )
            raise QueryFailedError(msg)
        self.compare(marker)
        return True

    def compare(self, marker: BatchMarker) -> None:
        """Raise an error if the batch's rows in the table are not those of this execution."""
        stored = self._stored(marker.batch_id)
        if stored is None:
            msg = (
                f"the table has the query's batch {marker.batch_id} already, and its log no longer says with which "
                f"rows; nothing was written: {self.cure}"
            )
            raise QueryFailedError(msg)
        refusal = marker.refusal(stored, "the table", self.cure)
        if refusal is not None:
            raise QueryFailedError(refusal)

    def _stored(self, batch_id: int) -> BatchMarker | None:
        """Return the marker of a batch in the table; None if the table's log no longer has it."""
        commit = self._transactions.commit_of(batch_id)
        if commit is None:
            return None
        # Release 0.5.0 wrote no markers, but Delta counted the rows.
        legacy = None if commit.rows is None else BatchMarker(batch_id, commit.rows, None, None)
        return BatchMarker.from_json(commit.user_metadata) or legacy
