"""Starts a new query from another query's snapshot (Flink: start from a savepoint).

Batch 0 reads only the old state, redistributed over the new key groups, and is executed before the query starts. Then
batch 0's entry in Spark's offset log is rewritten with the old query's end offsets. So each source continues as after
an ordinary restart, at the exact offset, also in the middle of a Delta version or of a folder's files.

``restored.json`` (``Restoration``) records the progress: after a crash, a restoration that is ``"begun"`` is checked
and written again, one that is ``"written"`` executes its first batch, and one that is ``"ready"`` is over.

The old checkpoint is only read, with one exception: where an output continues in the old query's table, the old
checkpoint is retired (its lease is ended), so that the old query can't write to it again. So is the one of which
``write_state`` or ``erase`` has made the old checkpoint. A restoration costs one read and one write of the whole state.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints import output_tables
from cojoin.checkpoints.checkpoint import Snapshot, find_snapshot
from cojoin.checkpoints.control import register_messages
from cojoin.checkpoints.identity import WrittenState, described_at, read_query
from cojoin.checkpoints.lease import end, ended, holder, is_live
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.query_changes import check_evolution
from cojoin.checkpoints.restoration import Restoration
from cojoin.checkpoints.state_table import StateTable
from cojoin.checkpoints.stored_state import StoredState
from cojoin.engine import rescaling
from cojoin.engine.upsert import spelled_rule
from cojoin.engine.values.arguments import check_flag
from cojoin.errors import CheckpointError, FunctionError
from cojoin.session import spark_checkpoint
from cojoin.session.sessions import open_store
from cojoin.session.spark_checkpoint import NOTHING_READ, OFFSETS, begin_after, plan_first_batch
from cojoin.spark.batch.control_input import state_messages
from cojoin.spark.sinks.sink import OutputId
from cojoin.spark.sinks.sinks import DeltaSink, ParquetSink
from cojoin.spark.sources.delta_static import StaticTable
from cojoin.storage.documents import IDENTITY
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.snapshots import SnapshotIndex
    from cojoin.engine.plan import Plan
    from cojoin.spark.sinks.sink import Sink
    from cojoin.spark.sources.source import Source
    from cojoin.storage.store import Store


@dataclass(frozen=True)
class NewQuery:
    """A query that is about to start: its checkpoint's directory, and what it runs.

    ``description`` is that for ``query.json``, ``sources`` has None for a bare DataFrame, and ``allows`` are the
    changes that the user allows if a checkpoint is restored.
    """

    spark: SparkSession
    files: Store
    plan: Plan
    description: Mapping[str, Any]
    sources: Sequence[Source | None]
    sinks: Mapping[str, Sink]
    allows: RestoreOptions

    @property
    def streamed_sources(self) -> list[Source]:
        """Those of the opened sources that Spark reads as streams, each with a line in the offset log."""
        return [each for each in self.opened_sources if not isinstance(each, StaticTable)]

    @property
    def opened_sources(self) -> list[Source]:
        """The sources of those inputs that are not bare DataFrames."""
        return [each for each in self.sources if each is not None]


@dataclass(frozen=True)
class RestoreOptions:
    """The changes that a user allows when a checkpoint is restored.

    Attributes:
        cut_back_output: Whether outputs that continue in the old query's tables may be rolled back to the snapshot.
        allow_data_loss: Whether sources may continue at the first record that they still have. A topic that was
            deleted and created again, and another cluster, are refused in any case, since their records are different.
    """

    cut_back_output: bool = False
    allow_data_loss: bool = False

    def __post_init__(self) -> None:
        for name, allowed in vars(self).items():
            check_flag(name, allowed)


def unfinished(spark: SparkSession, files: Store, restore_from: Snapshot | None) -> Restoration | None:
    """Return the restoration with which a checkpoint's query began, finished or not; None if there is none.

    Raises:
        CheckpointError: The checkpoint's query began differently, or the start needs ``restore_from`` again.
    """
    # These are looked for first: a start at the same moment writes restored.json before them.
    last, is_planned = max(Manifests(files).batch_ids(), default=-1), files.exists(OFFSETS)
    restoration = Restoration.read(files)
    _check_stage(files, restoration, last)
    if restore_from is not None:
        origin = open_store(spark, restore_from.path).root
        if origin == files.root:
            msg = f"restore_from: {files.named} is restored into a new query; give it another checkpoint="
            raise CheckpointError(msg)
        # A query that has planned no batch has no state to lose; a start that was killed may have left it like this.
        if restoration is None and is_planned:
            msg = f"restore_from: {files.named} is already a query's own; choose an empty directory"
            raise CheckpointError(msg)
        wanted = restore_from.at if isinstance(restore_from.at, int) else None
        is_other = restoration is not None and (
            restoration.origin != origin or wanted not in (None, restoration.batch_id)
        )
        if restoration is not None and is_other and not restoration.is_void(spark, origin):
            msg = (
                f"restore_from: {files.named} began with batch {restoration.batch_id} of "
                f"{without_login(restoration.origin)}; choose an empty directory to begin with another"
            )
            raise CheckpointError(msg)
    elif restoration is not None and restoration.stage == "begun":
        named = without_login(restoration.origin)
        msg = (
            f"{files.named}: restoring batch {restoration.batch_id} of {named} into it was not finished; start it "
            f"again with restore_from=cojoin.Snapshot({named!r}, at={restoration.batch_id})"
        )
        raise CheckpointError(msg)
    return restoration


def _check_stage(files: Store, restoration: Restoration | None, last: int) -> None:
    """Raise a CheckpointError if batches count that a restoration of this stage can't have: its file is outdated.

    ``last`` is the newest batch that counted before the restoration was read.
    """
    if restoration is None or restoration.is_over:
        return
    # The first batch is executed at the stage "written".
    if last >= (1 if restoration.stage == "written" else 0):
        why = f"it is at the stage {restoration.stage!r}, and batch {last} counts already: it is a former version"
        raise restoration.damaged(files, why)


_FOLDER, _ROWS = "control", "_restored-"
"""The control input's folder, and the name of the folder in it with the old state's rows, up to the writer's epoch.

Spark reads only the files in it that its log names, and none that an earlier start has left, or writes after a pause.
"""

_FORMER_ROWS = "restored"
"""The name of that folder in release 0.5.0. Spark finds the files in it."""


def check_restore(new: NewQuery, checkpoint: Snapshot, begun: Restoration | None) -> Restoration:
    """Check everything that a restoration depends on, and return it at the stage ``"begun"``; nothing is written.

    ``begun`` is the restoration that an earlier start has begun, whose outputs may be rolled back already; its snapshot
    is taken again where it still exists. None if there is none.

    Raises:
        CheckpointError: The checkpoint can't be restored into this query; the message has the reason.
    """
    origin = open_store(new.spark, checkpoint.path)
    stored = read_query(origin)
    snapshot = _snapshot_of(origin, checkpoint, begun, new)
    check_evolution(described_at(stored, snapshot.batch_id), new.description, origin.named)
    offsets = _check_sources(new, stored["sources"], snapshot.manifest.offsets)
    logs = snapshot.manifest.logs
    # The last source is the control input, whose rows are in the state.
    control = len(snapshot.manifest.offsets) - 1
    spark_checkpoint.check_source_logs(origin, {n: each for n, each in logs.items() if int(n) != control})
    table = StateTable(new.spark, origin)
    table.check(snapshot)
    _check_states(new.plan, StoredState.of_snapshot(table, snapshot))
    # This is checked again after an earlier start, since other writers may have written to the tables.
    cut, shared_tables = _check_outputs(new, snapshot)
    cuts = [(each.location, each.version) for each in cut]
    for former in _former(new.spark, origin) if shared_tables else ():
        if not _is_retired(former, snapshot.batch_id, new.files) and is_live(former):
            msg = (
                f"restore_from: a query runs on {former.named} ({holder(former)}) and writes to "
                f"{shared_tables[0]}: stop it, or name a new table"
            )
            raise CheckpointError(msg)
    return Restoration(origin.root, snapshot.batch_id, offsets, cuts, takes_over=bool(shared_tables))


def _former(spark: SparkSession, origin: Store) -> list[Store]:
    """Return the old checkpoint, and those of which ``write_state`` or ``erase`` has made it, as far as they exist."""
    checkpoints = [origin]
    while (written := WrittenState.read(checkpoints[-1])) is not None and written.origin is not None:
        before = open_store(spark, written.origin)
        if not before.exists(IDENTITY) or before.root in {each.root for each in checkpoints}:
            break
        checkpoints.append(before)
    return checkpoints


def _snapshot_of(origin: Store, checkpoint: Snapshot, begun: Restoration | None, new: NewQuery) -> SnapshotIndex:
    """Return the snapshot to restore.

    An earlier start may have chosen one that the old query has removed since. As long as that start had not retired the
    old checkpoint, it had changed nothing outside of the new one, and another snapshot serves as well.

    Raises:
        CheckpointError: The snapshot does not exist, or the outputs may be rolled back to one that was removed since.
    """
    if begun is None:
        return find_snapshot(origin, checkpoint.at)
    if not begun.is_void(new.spark, origin.root):
        return find_snapshot(origin, begun.batch_id)
    if _is_retired(origin, begun.batch_id, new.files):
        msg = (
            f"restore_from: an earlier start has begun to restore batch {begun.batch_id} of {origin.named}, and "
            f"may have rolled the outputs back to it; since then, the snapshot was removed. Put it back from a backup "
            f"of the checkpoint (snapshots/, state/ and segments/), or restore another snapshot into an empty "
            f"directory, with new outputs"
        )
        raise CheckpointError(msg)
    return find_snapshot(origin, checkpoint.at)


def _check_sources(new: NewQuery, stored: Sequence[Mapping[str, Any] | None], offsets: Sequence[str]) -> list[str]:
    """Return the offsets at which the sources continue.

    ``stored`` has the sources of the old query's inputs, from its ``query.json``, None for a bare DataFrame;
    ``offsets`` those that they had reached.
    """
    spark = new.spark
    continued: list[str] = []
    losses: list[str] = []
    for position, (spec, old, source) in enumerate(zip(new.plan.inputs, stored, new.sources, strict=True)):
        label = f"input {spec.name!r}"
        if source is None or old is None:
            whose = "is" if source is None else "was, in the query that wrote the checkpoint,"
            msg = (
                f"restore_from: {label} {whose} a DataFrame, so it is not known where it would continue; "
                f"give cojoin.Input a source: cojoin.kafka.source, cojoin.sources.delta or files"
            )
            raise CheckpointError(msg)
        if not source.is_known_as(spark, old):
            msg = (
                f"restore_from: {label} read {_describe(old)} in the query that wrote the checkpoint, and reads "
                f"{_describe(source.identity(spark))} in this one; expected the same source"
            )
            raise CheckpointError(msg)
        # This applies also where losses are allowed: records of another topic do not continue those that were read.
        source.recognised(spark, label, old)
        if source not in new.streamed_sources:
            # A table's rows are in the state, with its version.
            continue
        offset = offsets[position]
        lost = source.lost_since(spark, label, offset)
        losses += lost
        if lost and new.allows.allow_data_loss:
            moved = source.with_losses_accepted(spark, label, offset)
            offset = offset if moved is None else moved
        continued.append(offset)
    if losses and not new.allows.allow_data_loss:
        msg = (
            f"restore_from: records that should be read next no longer exist: {'; '.join(losses)}. "
            f"allow_data_loss=True continues without them"
        )
        raise CheckpointError(msg)
    return continued


def _describe(source: Mapping[str, Any]) -> str:
    return f"{source['format']} {source['location']}"


def _check_states(plan: Plan, state: StoredState) -> None:
    """Check, on the driver, that the stored states fit those of the function.

    It loads empty states of the stored types, and runs the user's ``open`` and ``close``. Errors of the user's function
    are ignored, since the workers raise them.
    """
    operator = plan.create_operator()
    empty = {name: table.schema.empty_table() for name, table in state.tables.items()}
    try:
        operator.load_parts(rescaling.merged_header(state.headers), empty, keeps_counts=True)
        with contextlib.suppress(FunctionError):
            operator.check_states()
    finally:
        with contextlib.suppress(FunctionError):
            operator.close()


def _check_outputs(
    new: NewQuery, snapshot: SnapshotIndex, *, ends: bool = False
) -> tuple[list[output_tables.CutBack], list[str]]:
    """Check the outputs; return the tables to roll back, and all places that the old query wrote to as well.

    ``ends`` means that the old query is ended by now, so that it is fenced off where that is possible.
    """
    cut: list[output_tables.CutBack] = []
    shared_tables: list[str] = []
    manifest = snapshot.manifest
    for name, sink in new.sinks.items():
        written = manifest.outputs.get(name, {})
        folder = written.get("parquet")
        if isinstance(sink, ParquetSink) and folder is not None and _is_same(new.spark, folder, sink.path):
            msg = (
                f"restore_from: {name} goes to the folder {sink.path}, which has the old query's batches: "
                f"a parquet output must continue in a new folder"
            )
            raise CheckpointError(msg)
        if not isinstance(sink, DeltaSink):
            former = OutputId(manifest.query_id, name)
            if sink.continues_output_of(written, former, successor=new.files.root, ends=ends):
                shared_tables.append(sink.describe())
            continue
        is_same = "delta" in written and output_tables.is_same_table(new.spark, written["delta"], sink.location)
        if is_same and not sink.has_rule_of(written):
            msg = (
                f"restore_from: {name} goes to {sink.describe()}, which the old query has written "
                f"{spelled_rule(written.get('upsert'))}; give the same arguments, or name a new table"
            )
            raise CheckpointError(msg)
        version = written["version"] if is_same else None
        # The old query may have written to the table even if the checkpoint does not name it.
        later = output_tables.check_output(
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
    return f"its output continues {_successor(batch_id, files)}"


def _successor(batch_id: int, files: Store) -> str:
    return f"from batch {batch_id} as that of {without_login(files.root)}"


def _is_retired(former: Store, batch_id: int, files: Store) -> bool:
    """Return whether an old checkpoint is retired for a restoration; former releases worded the reason differently."""
    return (ended(former) or "").endswith(_successor(batch_id, files))


def write_restoration(new: NewQuery, restoration: Restoration, check: Callable[[], None] = lambda: None) -> Restoration:
    """Write everything that the first batch needs into a new checkpoint, and roll the outputs back.

    ``check`` raises an error where another start has taken over, which may restore another snapshot. The restoration is
    returned at the stage ``"written"``.

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
        # If the old query has removed what was read, that is the reason of an error, or Spark may have raised none.
        table.check_unchanged(snapshot)
    names = [f"{rows}/{name}" for name in files.names(rows) if name.endswith(".parquet")]
    # The control input comes after the streams.
    register_messages(files, len(sources), names, 0, check)
    for number, (source, offset) in enumerate(zip(sources, restoration.offsets, strict=True)):
        if source.has_log:
            last = -1 if offset == NOTHING_READ else int(json.loads(offset)["logOffset"])
            entries = [] if offset == NOTHING_READ else spark_checkpoint.source_entries(origin, number)
            interval = spark_checkpoint.compact_interval(spark)
            spark_checkpoint.write_source_log(files, number, entries, last, interval=interval, check=check)
    plan_first_batch(spark, files, [NOTHING_READ] * len(sources), 0, check)
    # This comes last, since it can't be undone. Everything that is needed of the old query has been read.
    check()
    if restoration.takes_over:
        for former in _former(spark, origin):
            end(former, _retirement_reason(restoration.batch_id, files))
        # Commits of the old query since the first check are rolled back, too; now it is fenced off.
        cut, _ = _check_outputs(new, snapshot, ends=True)
        for table_cut in cut:
            output_tables.cut_back(spark, table_cut)
    return restoration.at("written")


def _delete_former_rows(files: Store, epoch: int) -> None:
    for name in files.names(_FOLDER):
        written_by = name.removeprefix(_ROWS)
        if name == _FORMER_ROWS or (name.startswith(_ROWS) and written_by.isdigit() and int(written_by) < epoch):
            files.delete_directory(f"{_FOLDER}/{name}")


def finish_restoration(files: Store, restoration: Restoration, check: Callable[[], None]) -> Restoration:
    """Set the sources to the old query's offsets, once the first batch is committed; return the stage ``"ready"``."""
    begin_after(files, restoration.offsets, check)
    return restoration.at("ready")
