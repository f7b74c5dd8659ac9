"""A checkpoint as people name it: a directory and a moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from cojoin.checkpoints.identity import read_query
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.snapshots import Snapshot, Snapshots
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.storage.locations import as_location
from cojoin.storage.session_settings import check_session
from cojoin.storage.small_files import CheckpointFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Checkpoint", "Moment", "find_snapshot", "open_files"]

Moment: TypeAlias = "int | datetime | None"
"""A batch's number; a datetime with a time zone, for the last at or before it; None for the newest."""


@dataclass(frozen=True)
class Checkpoint:
    """A moment of a query that can be read and restored.

    Attributes:
        path: The query's checkpoint directory, a text or a ``pathlib.Path``; it is kept as a text.
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
        place = as_location(self.path, "checkpoint", expected="the path of a query's checkpoint directory")
        object.__setattr__(self, "path", place)
        is_batch = isinstance(self.at, int) and not isinstance(self.at, bool) and self.at >= 0
        is_time = isinstance(self.at, datetime) and self.at.tzinfo is not None
        if self.at is not None and not is_batch and not is_time:
            msg = f"at: expected a batch's number, a datetime with a time zone, or None for the newest, got {self.at!r}"
            raise ConfigurationError(msg)


def open_files(spark: SparkSession, path: str) -> CheckpointFiles:
    """Open a directory that must be a checkpoint.

    Raises:
        ConfigurationError: ``spark`` is no session that runs.
        CheckpointError: It is none.
    """
    check_session(spark, "spark")
    files = CheckpointFiles(spark, path)
    read_query(files)
    return files


def find_snapshot(files: CheckpointFiles, at: Moment = None) -> Snapshot:
    """Return the snapshot of a moment.

    Raises:
        CheckpointError: There is none, and the message says which there are; or its index is damaged.
    """
    snapshots = Snapshots(files)
    ids = snapshots.batch_ids()
    if isinstance(at, datetime):
        found = [each for each in snapshots.all() if each.taken_at <= at]
        if found:
            _compare(files, found[-1])
            return found[-1]
    elif ids and (at is None or at in ids):
        snapshot = snapshots.read(ids[-1] if at is None else at)
        if snapshot is not None:
            _compare(files, snapshot)
            return snapshot
    wanted = "" if at is None else f" of batch {at}" if isinstance(at, int) else f" at or before {at.isoformat()}"
    there = f"it has those of batches {', '.join(map(str, ids))}" if ids else "it has none"
    msg = (
        f"checkpoint {files.root}: there is no snapshot{wanted}; {there}. A snapshot is taken every "
        f"checkpoint_interval, by query.savepoint(), and by `cojoin checkpoints savepoint`"
    )
    raise CheckpointError(msg)


def _compare(files: CheckpointFiles, snapshot: Snapshot) -> None:
    """See that a snapshot has its sources stand where its batch's own manifest does: release 0.5.0 sealed neither."""
    try:
        manifest = Manifests(files).read(snapshot.batch_id)
    except CheckpointError:
        # It is needed no more, as one that was cleaned away.
        return
    if manifest is not None and list(manifest.offsets) != list(snapshot.manifest.offsets):
        msg = (
            f"checkpoint {files.root}: the index of the snapshot of batch {snapshot.batch_id} has its sources at "
            f"{list(snapshot.manifest.offsets)}, the manifest of the batch at {list(manifest.offsets)}: one of both "
            f"was changed (snapshots/ or manifest/{snapshot.batch_id:012d}.json); put it back from a backup of the "
            f"checkpoint, or restore another snapshot with at="
        )
        raise CheckpointError(msg)
