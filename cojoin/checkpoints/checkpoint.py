"""A checkpoint as people name it: a directory and a moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from cojoin.checkpoints.files import CheckpointFiles
from cojoin.checkpoints.identity import read_query
from cojoin.checkpoints.snapshots import Snapshot, Snapshots
from cojoin.errors import CheckpointError, ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Checkpoint", "Moment", "find_snapshot", "open_files"]

Moment: TypeAlias = "int | datetime | None"
"""A batch's number; a datetime with a time zone, for the last at or before it; None for the newest."""


@dataclass(frozen=True)
class Checkpoint:
    """A moment of a query that can be read and restored.

    Attributes:
        path: The query's checkpoint directory.
        at: Which snapshot: a batch's number; a datetime with a time zone, for the last one taken at or before it; None
            for the newest.

    Raises:
        ConfigurationError: A path or a moment that is none.

    >>> Checkpoint("/lake/_cojoin/enriched", at=12)
    Checkpoint(path='/lake/_cojoin/enriched', at=12)
    """

    path: str
    at: Moment = None

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            msg = f"checkpoint: expected the path of a query's checkpoint directory, got {self.path!r}"
            raise ConfigurationError(msg)
        is_batch = isinstance(self.at, int) and not isinstance(self.at, bool) and self.at >= 0
        is_time = isinstance(self.at, datetime) and self.at.tzinfo is not None
        if self.at is not None and not is_batch and not is_time:
            msg = f"at: expected a batch's number, a datetime with a time zone, or None for the newest, got {self.at!r}"
            raise ConfigurationError(msg)


def open_files(spark: SparkSession, path: str) -> CheckpointFiles:
    """Open a directory that must be a checkpoint.

    Raises:
        CheckpointError: It is none.
    """
    files = CheckpointFiles(spark, path)
    read_query(files)
    return files


def find_snapshot(files: CheckpointFiles, at: Moment = None) -> Snapshot:
    """Give the snapshot of a moment.

    Raises:
        CheckpointError: There is none; the message says which there are.
    """
    snapshots = Snapshots(files)
    ids = snapshots.batch_ids()
    if isinstance(at, datetime):
        found = [each for each in snapshots.all() if each.taken_at <= at]
        if found:
            return found[-1]
    elif ids and (at is None or at in ids):
        snapshot = snapshots.read(ids[-1] if at is None else at)
        if snapshot is not None:
            return snapshot
    wanted = "" if at is None else f" of batch {at}" if isinstance(at, int) else f" at or before {at.isoformat()}"
    there = f"it has those of batches {', '.join(map(str, ids))}" if ids else "it has none"
    msg = (
        f"checkpoint {files.root}: there is no snapshot{wanted}; {there}. A snapshot is taken every "
        f"checkpoint_interval, by query.savepoint(), and by `cojoin checkpoints savepoint`"
    )
    raise CheckpointError(msg)
