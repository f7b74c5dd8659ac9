"""A savepoint: a snapshot of the last batch that is finished, taken beside the query or when it rests.

It is read from Spark's own state store, so it waits for no batch and disturbs none. The batch is the newest that Spark
has committed; where batches without content came after the last manifest, they changed nothing that counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cojoin.checkpoints.checkpoint import Checkpoint
from cojoin.checkpoints.identity import read_query
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.checkpoints.spark_state_store import check_segments, committed_batches, snapshot_rows
from cojoin.checkpoints.state_table import STATE_LOCK, StateTable
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cojoin.storage.small_files import CheckpointFiles

__all__ = ["take_savepoint"]


def take_savepoint(spark: SparkSession, files: CheckpointFiles) -> Checkpoint:
    """Take a savepoint; where the last batch has a snapshot already, it becomes one.

    Returns:
        The checkpoint at that batch. It is kept until somebody removes it.

    Raises:
        CheckpointError: No batch is finished yet, or the query was drained: then nothing can go on from it.
    """
    query = read_query(files)
    with STATE_LOCK:
        # In this order: a batch is committed after its manifest is written.
        committed = committed_batches(files)
        manifests = Manifests(files)
        counted = [batch_id for batch_id in manifests.batch_ids() if committed and batch_id <= committed[-1]]
        manifest = manifests.read(counted[-1]) if counted else None
        if manifest is None:
            msg = f"checkpoint {files.root}: no batch is finished yet, so there is nothing to save"
            raise CheckpointError(msg)
        if manifest.report.drained:
            msg = f"checkpoint {files.root}: its query was drained, so nothing can go on from it; read_state() reads it"
            raise CheckpointError(msg)
        snapshots = Snapshots(files)
        there = snapshots.read(manifest.batch_id)
        if there is not None:
            snapshots.write(replace(there, kind="savepoint"))
        else:
            key_groups, table = int(query["query"]["key_groups"]), StateTable(spark, files)
            # Of this batch a try that came to nothing may have left rows: they are replaced.
            holders = snapshots.holders() - {manifest.batch_id}
            check_segments(spark, files, committed[-1])
            rows = snapshot_rows(spark, files, committed[-1], manifest.batch_id, key_groups, holders)
            table.write(rows, manifest, "savepoint", key_groups, remembered=False)
            if not holders <= snapshots.holders():
                # Meanwhile another process has cleaned: what this one points to may be gone, so it gets all of its own.
                rows = snapshot_rows(spark, files, committed[-1], manifest.batch_id, key_groups, ())
                table.write(rows, manifest, "savepoint", key_groups, remembered=False)
    return Checkpoint(files.root, manifest.batch_id)
