"""The check, before a query goes on, that the changes of its tables can still be read from where it stopped.

Another query's positions are checked when it is restored (``spark.restore``). It costs a look into each table's log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.session.offset_log import COMMITS, newest_id, source_offsets
from cojoin.spark.query.history import InputStreams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.spark.bound_input import BoundInput
    from cojoin.storage.store import Store

__all__ = ["check_feeds"]


def check_feeds(files: Store, inputs: Sequence[BoundInput]) -> None:
    """Check that each change feed has what comes after the last micro-batch that Spark has committed.

    Args:
        files: The query's checkpoint.
        inputs: Both inputs.

    Raises:
        CheckpointError: Changes are gone, were not recorded, or are those of another table.
    """
    newest = newest_id(files, COMMITS)
    if newest is None or not any(each.source is not None and each.source.begins_with_snapshot for each in inputs):
        return
    lines, counts = source_offsets(files, newest)[:-1], InputStreams.of(inputs).lines
    if len(lines) != sum(counts):
        return
    for bound, count in zip(inputs, counts, strict=True):
        own, lines = lines[:count], lines[count:]
        if bound.source is not None and bound.source.begins_with_snapshot:
            bound.source.lost_since(bound.frame.sparkSession, f"input {bound.spec.name!r}", own[0])
