"""A new query that begins with another's state: what is checked, what is written, and how Spark is told.

Its first batch reads the old state alone, cut into the new key groups, and is run before the query starts. Then Spark's
offset log is made to say that this batch ended where the old one's sources stood: so every source goes on as after an
ordinary restart, at the exact offset, inside a Delta version or a folder too. ``restored.json`` says how far that came;
a start after a crash goes on from there. The old checkpoint is only read, but for one case: where an output goes on in
its table, it is ended, so its query can't write there again.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints import outputs
from cojoin.checkpoints.checkpoint import Checkpoint, find_snapshot
from cojoin.checkpoints.control import NOTHING_READ, begin_after, plan_first_batch, register_messages
from cojoin.checkpoints.identity import check_evolution, read_query
from cojoin.checkpoints.lease import end, ended, holder, is_live
from cojoin.checkpoints.state_table import StateTable
from cojoin.checkpoints.stored_state import StoredState
from cojoin.engine import rescaling
from cojoin.engine.values.choices import check_flag
from cojoin.errors import CheckpointError, FunctionError
from cojoin.spark.batch.restored_state import state_messages
from cojoin.spark.restore import source_logs
from cojoin.spark.sinks.sinks import DeltaSink, ParquetSink, Sink
from cojoin.storage.documents import Form, read_document, write_document
from cojoin.storage.small_files import CheckpointFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.snapshots import Snapshot
    from cojoin.spark.batch.call import Plan
    from cojoin.spark.sources.sources import Source

__all__ = [
    "Restoration",
    "RestoreOptions",
    "check_restore",
    "finish_restoration",
    "unfinished",
    "write_restoration",
]

_FILE = "restored.json"
_FORM = Form(
    "how far the checkpoint's own restoration has come",
    1,
    "put it back from a backup of the checkpoint, or restore once more with restore_from= into an empty directory",
    {"origin": str, "batch_id": int, "offsets": list, "cut_back": list, "takes_over": bool, "stage": str},
    unsealed=0,
)
_STAGES = ("begun", "written", "ready")
_ROWS, _CONTROL_SOURCE = "control/restored", 2
"""Where the old state's rows lie, and the number of the input that reads them: after the left and the right."""


@dataclass(frozen=True)
class RestoreOptions:
    """What a user allows when a checkpoint is restored.

    Attributes:
        cut_back_output: Outputs that go on in the old query's tables may be taken back to that moment.
        allow_data_loss: Sources may go on at the first record that they still have. A topic that was deleted and made
            anew, and another cluster, are refused all the same: their records are other ones.
    """

    cut_back_output: bool = False
    allow_data_loss: bool = False

    def __post_init__(self) -> None:
        for name, allowed in vars(self).items():
            check_flag(name, allowed)


@dataclass(frozen=True)
class Restoration:
    """A restoration under way, as ``restored.json`` has it.

    Attributes:
        origin: The old checkpoint's directory.
        batch_id: The batch after which its state is taken.
        offsets: Where the sources go on.
        cut_back: Delta tables to take back, each with its version.
        takes_over: Whether an output goes on in a table of the old query, which is then over.
        stage: ``"begun"``, ``"written"`` (the new checkpoint has all it needs), ``"ready"``.
    """

    origin: str
    batch_id: int
    offsets: Sequence[str]
    cut_back: Sequence[Sequence[Any]] = ()
    takes_over: bool = False
    stage: str = "begun"

    @classmethod
    def read(cls, files: CheckpointFiles) -> Restoration | None:
        """Return that of a checkpoint, or None where its query began anew.

        Raises:
            CheckpointError: Its file is damaged, or of a newer format.
        """
        return read_document(files, _FILE, _FORM, cls._parse)

    @classmethod
    def _parse(cls, content: dict[str, Any]) -> Restoration:
        found = cls(**content)
        if found.stage not in _STAGES:
            msg = f"expected a stage of {', '.join(_STAGES)}, got {found.stage!r}"
            raise ValueError(msg)
        return found

    def write(self, files: CheckpointFiles) -> None:
        """Note how far it has come."""
        write_document(files, _FILE, _FORM, asdict(self))

    def at(self, stage: str) -> Restoration:
        """Return it at a later stage."""
        return replace(self, stage=stage)


def unfinished(spark: SparkSession, files: CheckpointFiles, restore_from: Checkpoint | None) -> Restoration | None:
    """Return the restoration with which a checkpoint's query began or is to go on beginning.

    Raises:
        CheckpointError: The checkpoint is in use by a query that began otherwise, or needs ``restore_from`` again.
    """
    found = Restoration.read(files)
    if restore_from is not None:
        origin = CheckpointFiles(spark, restore_from.path).root
        if origin == files.root:
            msg = f"restore_from: the checkpoint {origin} is restored into a new query; give it another checkpoint="
            raise CheckpointError(msg)
        # A query that has planned no batch has no state to lose; so far a start may have come that was killed.
        if found is None and files.exists("spark/offsets"):
            msg = f"restore_from: checkpoint {files.root} is already a query's own; choose an empty directory"
            raise CheckpointError(msg)
        wanted = restore_from.at if isinstance(restore_from.at, int) else None
        if found is not None and (found.origin != origin or wanted not in (None, found.batch_id)):
            msg = (
                f"restore_from: checkpoint {files.root} began with batch {found.batch_id} of {found.origin}; "
                f"choose an empty directory to begin with another"
            )
            raise CheckpointError(msg)
    elif found is not None and found.stage == "begun":
        msg = (
            f"checkpoint {files.root}: restoring batch {found.batch_id} of {found.origin} into it was not finished; "
            f"start it again with restore_from=cojoin.Checkpoint({found.origin!r}, at={found.batch_id})"
        )
        raise CheckpointError(msg)
    return found


def check_restore(
    spark: SparkSession,
    checkpoint: Checkpoint,
    plan: Plan,
    query: Mapping[str, Any],
    sources: Sequence[Source | None],
    sinks: Mapping[str, Sink],
    options: RestoreOptions,
    files: CheckpointFiles,
    begun: Restoration | None,
) -> Restoration:
    """Check all that can be known of a restoration; nothing is written.

    Args:
        spark: The session.
        checkpoint: What is restored.
        plan: The new query.
        query: Its description.
        sources: What its inputs read; None for a bare DataFrame.
        sinks: Where its outputs go.
        options: What the user allows.
        files: The new checkpoint.
        begun: What an earlier start had checked and begun: its outputs may be cut back already.

    Raises:
        CheckpointError: What can't be, with its reason.
    """
    origin = CheckpointFiles(spark, checkpoint.path)
    stored = read_query(origin)
    snapshot = find_snapshot(origin, checkpoint.at if begun is None else begun.batch_id)
    check_evolution(stored["query"], query, origin.root)
    offsets = _check_sources(spark, plan, stored["sources"], sources, snapshot.manifest.offsets, options)
    table = StateTable(spark, origin)
    table.check(snapshot)
    _check_states(plan, StoredState.of_snapshot(table, snapshot))
    # What an earlier start has checked is checked again: others may have written to the tables since.
    cut, shared = _check_outputs(spark, sinks, snapshot, options)
    cuts = [(each.location, each.version) for each in cut]
    if shared and (ended(origin) or "") != _reason(snapshot.batch_id, files) and is_live(origin):
        msg = (
            f"restore_from: a query runs on checkpoint {origin.root} ({holder(origin)}) and writes to {shared[0]}: "
            f"stop it, or name a new table"
        )
        raise CheckpointError(msg)
    return Restoration(origin.root, snapshot.batch_id, offsets, cuts, takes_over=bool(shared))


def _check_sources(
    spark: SparkSession,
    plan: Plan,
    stored: Sequence[Mapping[str, Any] | None],
    sources: Sequence[Source | None],
    offsets: Sequence[str],
    options: RestoreOptions,
) -> list[str]:
    found: list[str] = []
    losses: list[str] = []
    for position, (spec, old, source) in enumerate(zip(plan.inputs, stored, sources, strict=True)):
        what = f"input {spec.name!r}"
        if source is None or old is None:
            whose = "is" if source is None else "was, in the query that wrote the checkpoint,"
            msg = (
                f"restore_from: {what} {whose} a DataFrame, of which nobody can tell where it would go on; "
                f"give cojoin.Input cojoin.kafka.source, cojoin.sources.delta or files"
            )
            raise CheckpointError(msg)
        own = source.identity(spark)
        if {name: old.get(name) for name in own} != own:
            msg = f"restore_from: {what} read {_spell(old)} there and reads {_spell(own)} here"
            raise CheckpointError(msg)
        # Whatever loss is allowed: what is there now would not be the rest of what was read.
        source.recognised(spark, what, old)
        line = offsets[position]
        lost = source.lost_since(spark, what, line)
        losses += lost
        if lost and options.allow_data_loss:
            moved = source.with_losses_accepted(spark, what, line)
            line = line if moved is None else moved
        found.append(line)
    if losses and not options.allow_data_loss:
        msg = (
            f"restore_from: records that were to be read next are gone: {'; '.join(losses)}. "
            f"allow_data_loss=True goes on without them"
        )
        raise CheckpointError(msg)
    return found


def _spell(source: Mapping[str, Any]) -> str:
    return f"{source['format']} {source['location']}"


def _check_states(plan: Plan, state: StoredState) -> None:
    """Open the function on empty states of the stored types; what only works on a worker is checked there."""
    operator = plan.create_operator()
    empty = {name: table.schema.empty_table() for name, table in state.tables.items()}
    operator.load_parts(rescaling.merged_header(state.headers), empty, keeps_counts=True)
    with contextlib.suppress(FunctionError):
        operator.check_states()
    with contextlib.suppress(FunctionError):
        operator.close()


def _check_outputs(
    spark: SparkSession, sinks: Mapping[str, Sink], snapshot: Snapshot, options: RestoreOptions
) -> tuple[list[outputs.CutBack], list[str]]:
    """Return the tables to cut back, and those that the old query wrote to as well."""
    cut: list[outputs.CutBack] = []
    shared: list[str] = []
    manifest = snapshot.manifest
    for name, sink in sinks.items():
        written = manifest.outputs.get(name, {})
        if isinstance(sink, ParquetSink) and "parquet" in written and _is_same(spark, written["parquet"], sink.path):
            msg = (
                f"restore_from: {name} goes to the folder {sink.path}, which has the old query's batches: "
                f"a parquet output goes on in a new folder"
            )
            raise CheckpointError(msg)
        if not isinstance(sink, DeltaSink):
            continue
        is_same = "delta" in written and outputs.is_same_table(spark, written["delta"], sink.location)
        version = written["version"] if is_same else None
        # A table of which the checkpoint says nothing may still have what the old query wrote there.
        later = outputs.check_output(
            spark, sink.location, version, manifest.query_id, name, cut_back=options.cut_back_output
        )
        if is_same or later is not None:
            shared.append(sink.location)
        if later is not None:
            cut.append(later)
    return cut, shared


def _is_same(spark: SparkSession, one: str, two: str) -> bool:
    return one == two or CheckpointFiles(spark, one).root == CheckpointFiles(spark, two).root


def _reason(batch_id: int, files: CheckpointFiles) -> str:
    """Return why the old query is over, once an output goes on in its table."""
    return f"its output goes on from batch {batch_id} as that of {files.root}"


def write_restoration(
    spark: SparkSession,
    files: CheckpointFiles,
    restoration: Restoration,
    plan: Plan,
    sources: Sequence[Source],
    sinks: Mapping[str, Sink],
    options: RestoreOptions,
) -> Restoration:
    """Write all that the first batch needs into a new checkpoint, and cut the outputs back.

    Args:
        spark: The session.
        files: The new checkpoint, already the query's own.
        restoration: What was checked.
        plan: The new query.
        sources: What its inputs read.
        sinks: Where its outputs go.
        options: What the user allows.

    Raises:
        CheckpointError: Somebody else has changed an output since it was checked.
    """
    origin = CheckpointFiles(spark, restoration.origin)
    snapshot = find_snapshot(origin, restoration.batch_id)
    state = StoredState.of_snapshot(StateTable(spark, origin), snapshot)
    state_messages(spark, state, plan.inputs, plan.key_groups).write.mode("overwrite").parquet(files.path(_ROWS))
    names = [f"{_ROWS}/{name}" for name in files.names(_ROWS) if name.endswith(".parquet")]
    register_messages(files, _CONTROL_SOURCE, names, 0)
    for number, (source, line) in enumerate(zip(sources, restoration.offsets, strict=True)):
        if source.has_log and line != NOTHING_READ:
            last = int(json.loads(line)["logOffset"])
            entries = source_logs.entries(origin, number)
            source_logs.write_log(files, number, entries, last, interval=source_logs.compact_interval(spark))
    plan_first_batch(spark, files, [NOTHING_READ] * len(sources), 0)
    # Last, since it can't be taken back: all that was to be read of the old query has been read.
    if restoration.takes_over:
        end(origin, _reason(restoration.batch_id, files))
        # Now that the old query writes no more, and right before it is done: whatever came since the check is seen.
        cut, _ = _check_outputs(spark, sinks, snapshot, options)
        for each in cut:
            outputs.cut_back(spark, each)
    return restoration.at("written")


def finish_restoration(files: CheckpointFiles, restoration: Restoration) -> Restoration:
    """After the first batch: have the sources go on where the old query's stood."""
    begin_after(files, restoration.offsets)
    return restoration.at("ready")
