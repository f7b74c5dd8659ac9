"""Starts a new query from another query's snapshot (Flink: start from a savepoint).

Batch 0 reads only the old state, redistributed over the new key groups, and is executed before the query starts. Then
batch 0's entry in Spark's offset log is rewritten with the old query's end offsets. So each source continues as after
an ordinary restart, at the exact offset, also in the middle of a Delta version or of a folder's files.

``restored.json`` (``restoration``) records the progress, and a start after a crash continues from there. The old
checkpoint is only read, with one exception: where an output continues in the old query's table, the old checkpoint is
retired (its lease is ended), so that the old query can't write there again. So is the one of which ``write_state`` or
``erase`` has made the old checkpoint. A restoration costs one read and one write of the whole state before batch 0.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints import outputs
from cojoin.checkpoints.checkpoint import Checkpoint, find_snapshot
from cojoin.checkpoints.control import register_messages
from cojoin.checkpoints.identity import described_at, read_query
from cojoin.checkpoints.lease import end
from cojoin.checkpoints.lease_liveness import is_live
from cojoin.checkpoints.lease_record import ended, holder
from cojoin.checkpoints.query_changes import check_evolution
from cojoin.checkpoints.state_table import StateTable
from cojoin.checkpoints.stored_state import StoredState
from cojoin.checkpoints.written_state import WrittenState
from cojoin.engine import rescaling
from cojoin.errors import CheckpointError, FunctionError
from cojoin.session import source_logs
from cojoin.session.offset_log import NOTHING_READ, begin_after, plan_first_batch
from cojoin.session.stores import open_store
from cojoin.spark.batch.restored_state import state_messages
from cojoin.spark.restore.restoration import Restoration
from cojoin.spark.sinks.sink import OutputId
from cojoin.spark.sinks.sinks import DeltaSink, ParquetSink
from cojoin.storage.document_text import IDENTITY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.snapshot_record import Snapshot
    from cojoin.engine.plan import Plan
    from cojoin.spark.restore.new_query import NewQuery
    from cojoin.storage.store import Store

__all__ = ["check_restore", "finish_restoration", "write_restoration"]

_FOLDER, _ROWS = "control", "_restored-"
"""The control input's folder, and the name of the folder in it with the old state's rows, up to the writer's epoch.

Spark reads the files in it that its log names, and finds no others: one that an earlier start has left, or writes after
it stood still, is no message.
"""

_FORMER_ROWS = "restored"
"""The name of that folder in release 0.5.0. Spark finds the files in it."""


def check_restore(new: NewQuery, checkpoint: Checkpoint, begun: Restoration | None) -> Restoration:
    """Check everything that a restoration depends on; nothing is written.

    Args:
        new: The query that begins with the old state.
        checkpoint: The checkpoint to restore.
        begun: The restoration that an earlier start has begun, whose outputs may be rolled back already; its snapshot
            is taken again where it still exists. None if there is none.

    Returns:
        The restoration, at the stage ``"begun"``.

    Raises:
        CheckpointError: The checkpoint can't be restored into this query; the message says why.
    """
    origin = open_store(new.spark, checkpoint.path)
    stored = read_query(origin)
    snapshot = _snapshot_of(origin, checkpoint, begun, new)
    check_evolution(described_at(stored, snapshot.batch_id), new.description, origin.root)
    offsets = _check_sources(new, stored["sources"], snapshot.manifest.offsets)
    logs = snapshot.manifest.logs
    # The last source is the control input, whose rows are in the state.
    control = len(snapshot.manifest.offsets) - 1
    source_logs.check_logs(origin, {n: each for n, each in logs.items() if int(n) != control})
    table = StateTable(new.spark, origin)
    table.check(snapshot)
    _check_states(new.plan, StoredState.of_snapshot(table, snapshot))
    # This is checked again after an earlier start, since other writers may have written to the tables.
    cut, shared_tables = _check_outputs(new, snapshot)
    cuts = [(each.location, each.version) for each in cut]
    for each in _former(new.spark, origin) if shared_tables else ():
        if (ended(each) or "") != _retirement_reason(snapshot.batch_id, new.files) and is_live(each):
            msg = (
                f"restore_from: a query runs on checkpoint {each.root} ({holder(each)}) and writes to "
                f"{shared_tables[0]}: stop it, or name a new table"
            )
            raise CheckpointError(msg)
    return Restoration(origin.root, snapshot.batch_id, offsets, cuts, takes_over=bool(shared_tables))


def _former(spark: SparkSession, origin: Store) -> list[Store]:
    """Return the old checkpoint, and those of which ``write_state`` or ``erase`` has made it, as far as they exist."""
    found = [origin]
    while (written := WrittenState.read(found[-1])) is not None and written.origin is not None:
        before = open_store(spark, written.origin)
        if not before.exists(IDENTITY) or before.root in {each.root for each in found}:
            break
        found.append(before)
    return found


def _snapshot_of(origin: Store, checkpoint: Checkpoint, begun: Restoration | None, new: NewQuery) -> Snapshot:
    """Return the snapshot to restore.

    An earlier start may have chosen one that the old query has removed since. As long as that start had not retired the
    old checkpoint, it had changed nothing outside of the new one, and another snapshot serves as well.

    Raises:
        CheckpointError: There is no such snapshot, or the outputs may be rolled back to one that was removed since.
    """
    if begun is None:
        return find_snapshot(origin, checkpoint.at)
    if not begun.is_void(new.spark, origin.root):
        return find_snapshot(origin, begun.batch_id)
    if ended(origin) == _retirement_reason(begun.batch_id, new.files):
        msg = (
            f"restore_from: an earlier start has begun to restore batch {begun.batch_id} of {origin.root}, and may "
            f"have rolled the outputs back to it; since then, the snapshot was removed. Put it back from a backup of "
            f"the checkpoint (snapshots/ and state/), or restore another snapshot into an empty directory, with new "
            f"outputs"
        )
        raise CheckpointError(msg)
    return find_snapshot(origin, checkpoint.at)


def _check_sources(new: NewQuery, stored: Sequence[Mapping[str, Any] | None], offsets: Sequence[str]) -> list[str]:
    """Return the offsets at which the sources continue.

    Args:
        new: The query.
        stored: The sources of the old query's inputs, from its ``query.json``; None for a bare DataFrame.
        offsets: The offsets that the old query's sources had reached.
    """
    spark = new.spark
    found: list[str] = []
    losses: list[str] = []
    for position, (spec, old, source) in enumerate(zip(new.plan.inputs, stored, new.sources, strict=True)):
        what = f"input {spec.name!r}"
        if source is None or old is None:
            whose = "is" if source is None else "was, in the query that wrote the checkpoint,"
            msg = (
                f"restore_from: {what} {whose} a DataFrame, so it is not known where it would continue; "
                f"give cojoin.Input a source: cojoin.kafka.source, cojoin.sources.delta or files"
            )
            raise CheckpointError(msg)
        own = source.identity(spark)
        if {name: old.get(name) for name in own} != own:
            msg = (
                f"restore_from: {what} read {_describe(old)} in the query that wrote the checkpoint, and reads "
                f"{_describe(own)} in this one; expected the same source"
            )
            raise CheckpointError(msg)
        # This applies also where losses are allowed: records of another topic do not continue those that were read.
        source.recognised(spark, what, old)
        if source not in new.streamed_sources:
            # A table's rows are in the state, with its version.
            continue
        offset = offsets[position]
        lost = source.lost_since(spark, what, offset)
        losses += lost
        if lost and new.allows.allow_data_loss:
            moved = source.with_losses_accepted(spark, what, offset)
            offset = offset if moved is None else moved
        found.append(offset)
    if losses and not new.allows.allow_data_loss:
        msg = (
            f"restore_from: records that should be read next no longer exist: {'; '.join(losses)}. "
            f"allow_data_loss=True continues without them"
        )
        raise CheckpointError(msg)
    return found


def _describe(source: Mapping[str, Any]) -> str:
    return f"{source['format']} {source['location']}"


def _check_states(plan: Plan, state: StoredState) -> None:
    """Check, on the driver, that the stored states fit those of the function.

    It loads empty states of the stored types, and runs the user's ``open`` and ``close``. Errors of the user's function
    are ignored here and raised on the workers.
    """
    operator = plan.create_operator()
    empty = {name: table.schema.empty_table() for name, table in state.tables.items()}
    operator.load_parts(rescaling.merged_header(state.headers), empty, keeps_counts=True)
    with contextlib.suppress(FunctionError):
        operator.check_states()
    with contextlib.suppress(FunctionError):
        operator.close()


def _check_outputs(new: NewQuery, snapshot: Snapshot, *, ends: bool = False) -> tuple[list[outputs.CutBack], list[str]]:
    """Check the outputs; return the tables to roll back, and all places that the old query wrote to as well.

    Args:
        new: The query.
        snapshot: The snapshot.
        ends: Whether the old query is ended by now, so that it is fenced off where that is possible.
    """
    cut: list[outputs.CutBack] = []
    shared_tables: list[str] = []
    manifest = snapshot.manifest
    for name, sink in new.sinks.items():
        written = manifest.outputs.get(name, {})
        if (
            isinstance(sink, ParquetSink)
            and "parquet" in written
            and _is_same(new.spark, written["parquet"], sink.path)
        ):
            msg = (
                f"restore_from: {name} goes to the folder {sink.path}, which has the old query's batches: "
                f"a parquet output must continue in a new folder"
            )
            raise CheckpointError(msg)
        if not isinstance(sink, DeltaSink):
            former = OutputId(manifest.query_id, name)
            if sink.goes_on_in(written, former, successor=new.files.root, ends=ends):
                shared_tables.append(sink.describe())
            continue
        is_same = "delta" in written and outputs.is_same_table(new.spark, written["delta"], sink.location)
        version = written["version"] if is_same else None
        # The old query may have written to the table even if the checkpoint does not name it.
        later = outputs.check_output(
            new.spark, sink.location, version, manifest.query_id, name, cut_back=new.allows.cut_back_output
        )
        if is_same or later is not None:
            shared_tables.append(sink.location)
        if later is not None:
            cut.append(later)
    return cut, shared_tables


def _is_same(spark: SparkSession, one: str, two: str) -> bool:
    return one == two or open_store(spark, one).root == open_store(spark, two).root


def _retirement_reason(batch_id: int, files: Store) -> str:
    """Return the reason for which the old checkpoint is retired, once an output continues in its query's table."""
    return f"its output goes on from batch {batch_id} as that of {files.root}"


def write_restoration(new: NewQuery, restoration: Restoration, check: Callable[[], None] = lambda: None) -> Restoration:
    """Write everything that the first batch needs into a new checkpoint, and roll the outputs back.

    Args:
        new: The query; its checkpoint is claimed already.
        restoration: The restoration that was checked.
        check: Raises an error where another start has taken over, which may restore another snapshot.

    Returns:
        The restoration, at the stage ``"written"``.

    Raises:
        CheckpointError: Another writer has changed an output since it was checked, or the snapshot was removed
            meanwhile.
    """
    spark, files, plan, sources = new.spark, new.files, new.plan, new.streamed_sources
    origin = open_store(spark, restoration.origin)
    snapshot = find_snapshot(origin, restoration.batch_id)
    check()
    table = StateTable(spark, origin)
    state = StoredState.of_snapshot(table, snapshot)
    messages = state_messages(spark, state, plan.inputs, plan.key_groups, read_query(files)["query_id"])
    _delete_former_rows(files, restoration.epoch)
    rows = f"{_FOLDER}/{_ROWS}{restoration.epoch}"
    try:
        messages.write.mode("overwrite").parquet(files.path(rows))
    finally:
        # Where the old query has removed what was read, that is the reason of an error, and Spark may have told none.
        table.check_unchanged(snapshot)
    names = [f"{rows}/{name}" for name in files.names(rows) if name.endswith(".parquet")]
    # The control input comes after the streams.
    register_messages(files, len(sources), names, 0, check)
    for number, (source, offset) in enumerate(zip(sources, restoration.offsets, strict=True)):
        if source.has_log:
            last = -1 if offset == NOTHING_READ else int(json.loads(offset)["logOffset"])
            entries = [] if offset == NOTHING_READ else source_logs.entries(origin, number)
            interval = source_logs.compact_interval(spark)
            source_logs.write_log(files, number, entries, last, interval=interval, check=check)
    plan_first_batch(spark, files, [NOTHING_READ] * len(sources), 0, check)
    # This comes last, since it can't be undone. Everything that is needed of the old query has been read.
    check()
    if restoration.takes_over:
        for former in _former(spark, origin):
            end(former, _retirement_reason(restoration.batch_id, files))
        # Commits of the old query since the first check are rolled back, too; now it is fenced off.
        cut, _ = _check_outputs(new, snapshot, ends=True)
        for each in cut:
            outputs.cut_back(spark, each)
    return restoration.at("written")


def _delete_former_rows(files: Store, epoch: int) -> None:
    """Delete the rows that earlier starts have written."""
    for name in files.names(_FOLDER):
        written_by = name.removeprefix(_ROWS)
        if name == _FORMER_ROWS or (name.startswith(_ROWS) and written_by.isdigit() and int(written_by) < epoch):
            files.delete_directory(f"{_FOLDER}/{name}")


def finish_restoration(files: Store, restoration: Restoration, check: Callable[[], None]) -> Restoration:
    """Set the sources to the old query's offsets, once the first batch is committed.

    Args:
        files: The new checkpoint.
        restoration: The restoration, at the stage ``"written"``.
        check: Raises an error where another start has taken over.
    """
    begin_after(files, restoration.offsets, check)
    return restoration.at("ready")
