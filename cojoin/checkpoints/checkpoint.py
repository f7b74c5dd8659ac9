"""The public name of a snapshot: a checkpoint directory and one of its batches."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeAlias

from cojoin.checkpoints.identity import check_description, read_query
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.engine.display import Display, Shown
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session.sessions import check_session, open_store
from cojoin.storage.locations import as_location, without_login

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cojoin.checkpoints.snapshots import SnapshotIndex
    from cojoin.storage.store import Store

Moment: TypeAlias = int | datetime | None
"""A batch's number; a datetime with a time zone, for the last batch at or before it; None for the newest."""


@dataclass(frozen=True, repr=False)
class Snapshot(Shown):
    """A snapshot of a query: its checkpoint directory and a batch. It can be read, and restored.

    Attributes:
        path: The query's checkpoint directory, a string or a ``pathlib.Path``; it is stored as a string.
        at: Which snapshot: a batch's number; a datetime with a time zone, for the last one taken at or before it; None
            for the newest.

    Raises:
        ConfigurationError: The path or the moment is invalid.

    >>> Snapshot("/lake/_cojoin/enriched", at=12)
    Snapshot(path='/lake/_cojoin/enriched', at=12)
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

    def __repr__(self) -> str:
        return f"Snapshot(path={without_login(self.path)!r}, at={self.at!r})"

    def _display(self) -> Display:
        moment = "the newest snapshot" if self.at is None else f"batch {self.at}"
        if isinstance(self.at, datetime):
            moment = f"the last one at or before {self.at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S.%f} UTC"
        ways = "read_state and read_progress read it, restore_from= continues with it."
        return Display(f"Snapshot {without_login(self.path)}, {moment}", notes=[ways])


def open_files(spark: SparkSession, path: str) -> Store:
    """Return the files of a checkpoint directory.

    Raises ``ConfigurationError`` where ``spark`` is not a running session, ``CheckpointError`` where this is not a
    checkpoint.
    """
    check_session(spark, "spark")
    files = open_store(spark, path)
    read_query(files)
    return files


def find_snapshot(files: Store, at: Moment = None) -> SnapshotIndex:
    """Return the snapshot at a moment; ``CheckpointError`` lists those that exist, or that its index is damaged."""
    snapshots = Snapshots(files)
    ids = snapshots.batch_ids()
    if isinstance(at, datetime):
        earlier = [each for each in snapshots.all() if each.taken_at <= at]
        if earlier:
            _compare(files, earlier[-1])
            return earlier[-1]
    elif ids and (at is None or at in ids):
        snapshot = snapshots.read(ids[-1] if at is None else at)
        if snapshot is not None:
            _compare(files, snapshot)
            return snapshot
    wanted = "" if at is None else f" of batch {at}" if isinstance(at, int) else f" at or before {at.isoformat()}"
    has = f"it has those of batches {', '.join(map(str, ids))}" if ids else "it has none"
    hint = "A snapshot is taken every checkpoint_interval, by query.savepoint(), and by `cojoin checkpoints savepoint`"
    drained = _drained(files)
    if drained is not None:
        cure = (
            "take one of those, with at="
            if ids
            else (
                "to see states, run the query again with a new checkpoint and without drain=True, and call "
                "query.savepoint()"
            )
        )
        hint = (
            f"Its query was drained after batch {drained}, so no state is left, and no further snapshot can be taken: "
            f"{cure}"
        )
    msg = f"{files.named}: no snapshot{wanted} exists; {has}. {hint}"
    raise CheckpointError(msg)


def _drained(files: Store) -> int | None:
    """Return the batch with which a checkpoint's query was drained; None if it was not, or if that is unknown."""
    try:
        last = Manifests(files).last()
    except CheckpointError:
        return None
    return last.batch_id if last is not None and last.report.drained else None


def _compare(files: Store, snapshot: SnapshotIndex) -> None:
    """Check a snapshot against the files next to it: the description of the query, and its batch's manifest.

    In release 0.5.0 neither index nor manifest had a checksum, so their source offsets are compared.
    """
    check_description(files, snapshot.manifest.described)
    try:
        manifest = Manifests(files).read(snapshot.batch_id)
    except CheckpointError:
        # A damaged manifest is treated as a deleted one: the snapshot does not need it.
        return
    if manifest is not None and list(manifest.offsets) != list(snapshot.manifest.offsets):
        msg = (
            f"{files.named}: the index of the snapshot of batch {snapshot.batch_id} has its sources at "
            f"{list(snapshot.manifest.offsets)}, the manifest of the batch at {list(manifest.offsets)}: one of both "
            f"was changed (snapshots/ or manifest/{snapshot.batch_id:012d}.json); put it back from a backup of the "
            f"checkpoint, or restore another snapshot with at="
        )
        raise CheckpointError(msg)
