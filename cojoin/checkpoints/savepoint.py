"""Savepoints: snapshots of the last finished batch, taken while the query runs or while it is stopped.

A savepoint is read from Spark's own state store, so it does not wait for a batch or delay one. Its state is that after
the newest batch that Spark has committed. Batches after the last manifest had no content, and changed nothing that a
manifest records. Files that the state names are not copied; from the savepoint's note or index on they stay.
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from cojoin.checkpoints.checkpoint import Snapshot
from cojoin.checkpoints.identity import read_query
from cojoin.checkpoints.lease import read_lease
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.segment_files import may_be_deleted
from cojoin.checkpoints.snapshots import BeingRemovedError, Snapshots
from cojoin.checkpoints.state_commits import StateCommits
from cojoin.checkpoints.state_table import STATE_LOCK, StateCleaner, StateTable
from cojoin.checkpoints.stored_state import check_segments, snapshot_rows
from cojoin.errors import CheckpointError
from cojoin.session.spark_checkpoint import committed_batches
from cojoin.session.spark_errors import SPARK_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cojoin.checkpoints.manifest import Manifest
    from cojoin.storage.store import Store

_TRIES = 5


def take_savepoint(spark: SparkSession, files: Store) -> Snapshot:
    """Take a savepoint; where the last batch has a snapshot already, that becomes the savepoint.

    It is kept until a user removes it. Raises ``CheckpointError`` where no batch is finished yet; the query was
    drained, so that no query can continue from it; the state is damaged; or the savepoint took so long that its rows
    were removed, in each of five tries.
    """
    key_groups = int(read_query(files)["query"]["key_groups"])
    with STATE_LOCK:
        for _ in range(_TRIES):
            # The commits are listed first: a batch is committed after its manifest is written.
            committed = committed_batches(files)
            manifests = Manifests(files)
            counted = [batch_id for batch_id in manifests.batch_ids() if committed and batch_id <= committed[-1]]
            manifest = manifests.read(counted[-1]) if counted else None
            if manifest is None:
                msg = f"{files.named}: no batch is finished yet, so there is nothing to save"
                raise CheckpointError(msg)
            if manifest.report.drained:
                msg = f"{files.named}: its query was drained, so nothing can continue from it; read_state() reads it"
                raise CheckpointError(msg)
            snapshots = Snapshots(files)
            promoted = snapshots.promote(manifest.batch_id)
            try:
                if promoted is None:
                    is_taken = _write(spark, files, manifest, key_groups, committed[-1])
                else:
                    is_of_a_run = not promoted.claim and not snapshots.is_begun(manifest.batch_id)
                    is_taken = is_of_a_run or _make_final(spark, files, manifest.batch_id)
                if is_taken:
                    return Snapshot(files.root, manifest.batch_id)
            except (CheckpointError, *SPARK_ERRORS):
                # A running query cleans the state of former batches, also while this reads it.
                if committed_batches(files)[-1:] == committed[-1:]:
                    raise
    msg = (
        f"{files.named}: the savepoint took so long that the query removed what it had read or written, "
        f"{_TRIES} times; take it again while the query is stopped"
    )
    raise CheckpointError(msg)


def _write(spark: SparkSession, files: Store, manifest: Manifest, key_groups: int, committed: int) -> bool:
    """Write the state after a committed batch as a savepoint; return False where its rows were removed meanwhile."""
    batch_id, snapshots, table = manifest.batch_id, Snapshots(files), StateTable(spark, files)
    commits = StateCommits(spark, files)
    # First, so that what was begun long ago is not taken for interrupted now.
    if snapshots.is_begun(batch_id):
        snapshots.begin(manifest, key_groups, snapshots.holders())
    _finish_removal(spark, files, snapshots, batch_id)
    # A cleaning that takes this for interrupted needs a table, in whose log it can note that.
    commits.create()
    claim = commits.next_savepoint()
    if snapshots.read(batch_id) is not None:
        # Another one counts since. One that comes to count from here on lets this one write no rows.
        return False
    holders: set[tuple[int, int]] = set()
    # Rows of this batch without a savepoint may be those to which the query's own state points.
    is_noted = snapshots.is_begun(batch_id) or not table.has_rows_of(batch_id)
    if is_noted:
        # A failed attempt may have left rows of this batch, which are replaced: no row may point to them.
        holders = {each for each in snapshots.holders() if each[0] != batch_id}
        snapshots.begin(manifest, key_groups, holders)
        # From here on they stay. Some may be gone since they were listed.
        holders &= snapshots.holders()
        if may_be_deleted(Manifests(files), batch_id, unnamed=False):
            return False
    # Where Spark has computed the batch twice, the state may name other files than its manifest.
    unnamed = check_segments(spark, files, committed).difference(manifest.segments)
    if unnamed and is_noted:
        snapshots.begin(replace(manifest, segments=(*manifest.segments, *sorted(unnamed))), key_groups, holders)
        if may_be_deleted(Manifests(files), batch_id, unnamed=True):
            return False
    rows = snapshot_rows(spark, files, committed, batch_id, key_groups, holders)
    try:
        taken = table.write(rows, manifest, "savepoint", key_groups, remembered=False, claim=claim)
    except BeingRemovedError:
        # A cleaning has taken it for interrupted, or another savepoint was taken.
        return False
    if taken is not None and not is_noted and may_be_deleted(Manifests(files), batch_id, unnamed=bool(unnamed)):
        snapshots.remove(batch_id, written_by=taken)
        return False
    return taken is not None and _make_final(spark, files, batch_id)


def _make_final(spark: SparkSession, files: Store, batch_id: int) -> bool:
    """Let no other savepoint replace the rows of one that counts; return False where that has happened already.

    Its writer does this before it reports the savepoint as taken, and so does each later one that finds it: the writer
    may be suspended, or have ended.
    """
    snapshots, table = Snapshots(files), StateTable(spark, files)
    StateCommits(spark, files).end_savepoints()
    taken = snapshots.read(batch_id)
    if taken is None:
        return False
    if not table.has(taken):
        # Another savepoint has replaced the rows, or a cleaning has removed them.
        snapshots.remove(batch_id, written_by=taken)
        return False
    snapshots.finish(batch_id)
    return True


def _finish_removal(spark: SparkSession, files: Store, snapshots: Snapshots, batch_id: int) -> None:
    """Finish the removal of the batch's former snapshot, which would later delete the savepoint's rows, too.

    Raises ``CheckpointError`` where a query in another process was removing it and has not released its lease: however
    long that is suspended, it may continue.
    """
    if batch_id not in {each.batch_id for each in snapshots.removed()}:
        return
    holder = read_lease(files).record
    # Within this process nothing else cleans now, because this thread has the lock.
    is_this_process = holder is not None and (holder.host, holder.pid) == (socket.gethostname(), os.getpid())
    if holder is not None and not holder.released and not is_this_process:
        msg = (
            f"{files.named}: its query ({holder}) was removing the former snapshot of batch {batch_id}, and "
            f"would remove the savepoint's rows with it; take the savepoint again after the query's next batch, or "
            f"start the query where it was killed"
        )
        raise CheckpointError(msg)
    StateCleaner(spark, files).clean([])
