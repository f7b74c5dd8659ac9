"""Reads a query's checkpoint while the query runs or is stopped: its state after a batch, and its progress.

Reading writes nothing and waits for nothing. The state is that after a finished batch, from a snapshot or from Spark's
own state store. The progress is read from its table, and from the manifests that are not in the table yet. Only
``savepoint`` writes something: one snapshot.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.checkpoint import Checkpoint, Moment, open_files
from cojoin.checkpoints.identity import described_at, read_query
from cojoin.checkpoints.inspect.query_state import QueryState
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.progress_rows import PROGRESS_SCHEMA, has_progress_table, progress_row
from cojoin.checkpoints.savepoint import take_savepoint
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.checkpoints.spark_state_store import open_batch
from cojoin.checkpoints.state_table import StateTable
from cojoin.checkpoints.stored_state import StoredState
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.row_changes import RowChanges
from cojoin.engine.values.encoding import encode_rows
from cojoin.engine.values.types import parse_schema
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session.arrow_types import spark_schema
from cojoin.session.offset_log import committed_batches
from cojoin.storage.locations import as_location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.manifest import Manifest
    from cojoin.storage.locations import Location
    from cojoin.storage.store import Store

__all__ = ["as_checkpoint", "read_progress", "read_state", "savepoint", "state_manifest", "stored_inputs"]

_EXPECTED = "the path of a query's checkpoint directory"


def read_state(spark: SparkSession, checkpoint: Location | Checkpoint, at: Moment = None) -> QueryState:
    """Read a query's state after a batch.

    Args:
        spark: The session.
        checkpoint: The query's checkpoint directory, or a ``Checkpoint``.
        at: A batch's number; a datetime with a time zone, for the last batch at or before it; None for the newest.

    Raises:
        ConfigurationError: The path or the moment is invalid.
        CheckpointError: The directory is not a checkpoint, or no longer has the state at that moment; the message lists
            the batches that it has.

    Example:
        ``read_state(spark, "/lake/_cojoin/enriched").buffered["trades"].show()``
    """
    checkpoint = as_checkpoint(checkpoint, at)
    files = open_files(spark, checkpoint.path)
    snapshots = Snapshots(files)
    saved, committed = snapshots.batch_ids(), committed_batches(files)
    wanted = checkpoint.at
    if isinstance(wanted, datetime):
        batch_id = _last_before(files, snapshots, wanted)
    elif wanted is None:
        batch_id = max([*committed[-1:], *saved[-1:]], default=None)
    else:
        batch_id = wanted if wanted in {*committed, *saved} else None
    if batch_id is None:
        raise _unknown(files, wanted)
    if batch_id in saved:
        return _of_snapshot(spark, files, checkpoint.path, batch_id)
    try:
        return _of_store(spark, files, checkpoint.path, batch_id)
    except CheckpointError:
        # The newest state was asked for, rather than this batch; a snapshot is kept for longer.
        if wanted is None and saved:
            return _of_snapshot(spark, files, checkpoint.path, saved[-1])
        raise


def read_progress(spark: SparkSession, checkpoint: Location | Checkpoint) -> DataFrame:
    """Read a query's progress: counts, watermarks and sizes, one row for each batch, the newest last.

    Args:
        spark: The session.
        checkpoint: The query's checkpoint directory, or a ``Checkpoint``, whose ``at`` leaves out later batches.

    Raises:
        CheckpointError: The directory is not a checkpoint.

    Example:
        ``read_progress(spark, path).select("batch_id", "watermark", "holding_input").show()``
    """
    checkpoint = as_checkpoint(checkpoint, None)
    files = open_files(spark, checkpoint.path)
    path, written, table = files.path("progress"), -1, None
    # The table is opened before the manifests are listed, so a batch that is moved meanwhile is read from these.
    if has_progress_table(files):
        table = spark.read.format("delta").load(path)
        newest = table.agg(F.max("batch_id")).first()
        written = -1 if newest is None or newest[0] is None else int(newest[0])
    manifests = Manifests(files)
    waiting = manifests.read_all(batch_id for batch_id in manifests.batch_ids() if batch_id > written)
    rows = [progress_row(manifest) for manifest in waiting]
    # With Spark Connect, a table without rows needs its schema said.
    frame = spark.createDataFrame(encode_rows(rows, PROGRESS_SCHEMA, "progress"), spark_schema(PROGRESS_SCHEMA))
    both = frame if table is None else table.unionByName(frame, allowMissingColumns=True)
    if isinstance(checkpoint.at, datetime):
        both = both.where(F.col("processing_time") <= F.lit(checkpoint.at))
    elif checkpoint.at is not None:
        both = both.where(F.col("batch_id") <= checkpoint.at)
    return both.orderBy("batch_id")


def savepoint(spark: SparkSession, checkpoint: Location | Checkpoint) -> Checkpoint:
    """Write a savepoint of the state after a query's last finished batch, while the query runs or is stopped.

    Args:
        spark: The session.
        checkpoint: The query's checkpoint directory.

    Returns:
        The checkpoint at that batch, for ``read_state`` and ``start(restore_from=...)``; it is kept until a user
        removes it.

    Raises:
        ConfigurationError: A ``Checkpoint`` with a moment is given.
        CheckpointError: The directory is not a checkpoint, no batch is finished yet, or the query was drained.
    """
    checkpoint = as_checkpoint(checkpoint, None)
    if checkpoint.at is not None:
        msg = f"savepoint: expected a path, since it is taken of the last batch; got at={checkpoint.at!r}"
        raise ConfigurationError(msg)
    return take_savepoint(spark, open_files(spark, checkpoint.path))


def as_checkpoint(checkpoint: Location | Checkpoint, at: Moment) -> Checkpoint:
    """Return the checkpoint of a path or a ``Checkpoint``, and a moment.

    Raises:
        ConfigurationError: The first is neither, or two moments are given.
    """
    if not isinstance(checkpoint, Checkpoint):
        return Checkpoint(as_location(checkpoint, "checkpoint", expected=_EXPECTED), at)
    if at is None:
        return checkpoint
    if checkpoint.at is not None:
        msg = f"at: expected one moment, got at={at!r} for {checkpoint!r}; leave one of them out"
        raise ConfigurationError(msg)
    return Checkpoint(checkpoint.path, at)


def stored_inputs(query: Mapping[str, Any]) -> tuple[InputSpec, InputSpec]:
    """Return the inputs as a checkpoint describes them; watermark strategies are not stored."""
    left, right = (
        InputSpec(
            each["name"],
            parse_schema(each["columns"], what=f"input {each['name']!r}"),
            tuple(each["key"]),
            each["event_time"],
            tuple(each["partition"]),
            tuple(each["sequence"]),
            static=bool(each.get("static")),
            changes=RowChanges.read(each.get("changes"), each["event_time"]),
        )
        for each in query["inputs"]
    )
    return left, right


def state_manifest(files: Store, state: QueryState) -> Manifest:
    """Return the manifest of the batch after which a state is: its source offsets and its outputs.

    Raises:
        CheckpointError: It is not there any more.
    """
    if state.origin == "snapshot":
        snapshot = Snapshots(files).read(state.batch_id)
        found = None if snapshot is None else snapshot.manifest
    else:
        found = _manifest_before(files, state.batch_id)
    if found is None:
        msg = f"checkpoint {files.root}: the manifest of batch {state.batch_id} was removed; read a newer state"
        raise CheckpointError(msg)
    return found


def _of_snapshot(spark: SparkSession, files: Store, path: str, batch_id: int) -> QueryState:
    snapshot = Snapshots(files).read(batch_id)
    if snapshot is None:
        raise _unknown(files, batch_id)
    # Its rows are read when a user asks for them, and the query may remove the snapshot until then.
    stored = StoredState.of_snapshot(StateTable(spark, files).pinned(snapshot), snapshot)
    query = described_at(read_query(files), batch_id)
    return QueryState(path, batch_id, "snapshot", stored_inputs(query), query, snapshot.manifest.report, stored)


def _of_store(spark: SparkSession, files: Store, path: str, batch_id: int) -> QueryState:
    stored, query = open_batch(spark, files, batch_id), described_at(read_query(files), batch_id)
    last = _manifest_before(files, batch_id)
    report = None if last is None else last.report
    return QueryState(path, batch_id, "state store", stored_inputs(query), query, report, stored)


def _manifest_before(files: Store, batch_id: int) -> Manifest | None:
    """Return the manifest of a batch, or of the last batch before it that has one: those between had no content."""
    manifests = Manifests(files)
    ids = [each for each in manifests.batch_ids() if each <= batch_id]
    return manifests.read(ids[-1]) if ids else None


def _last_before(files: Store, snapshots: Snapshots, moment: datetime) -> int | None:
    found = [each.batch_id for each in snapshots.all() if each.taken_at <= moment]
    committed, manifests = {*committed_batches(files)}, Manifests(files)
    # Newest first, because most requests are for a recent moment.
    for batch_id in reversed([each for each in manifests.batch_ids() if each in committed]):
        manifest = manifests.read(batch_id)
        if manifest is not None and manifest.report.processing_time <= 1000 * moment.timestamp():
            return max([batch_id, *found])
    return max(found, default=None)


def _unknown(files: Store, wanted: Moment) -> CheckpointError:
    saved, committed = Snapshots(files).batch_ids(), committed_batches(files)
    if not saved and not committed:
        msg = f"checkpoint {files.root}: no batch is finished yet, so there is no state to read"
        return CheckpointError(msg)
    there = [f"snapshots of batches {', '.join(map(str, saved))}"] if saved else []
    if committed:
        there.append(f"in Spark's own state store batches {committed[0]} to {committed[-1]} at the most")
    asked = f"at or before {wanted.isoformat()}" if isinstance(wanted, datetime) else f"of batch {wanted}"
    msg = f"checkpoint {files.root}: there is no state {asked}; it has {' and '.join(there)}"
    return CheckpointError(msg)
