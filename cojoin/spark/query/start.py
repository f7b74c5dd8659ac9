"""The start of a query: everything is checked, then the checkpoint is claimed and leased, then restored, then it runs.

What can't be is refused before anything is written. A start after a crash finishes what an earlier one began: a
restoration (``restore``), then a drain that was promised (``query``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from cojoin.checkpoints.checkpoint import Checkpoint
from cojoin.checkpoints.control import check_offsets, open_control, resumed_batches
from cojoin.checkpoints.identity import claim_checkpoint, describe_query, known_sources, note_sources
from cojoin.checkpoints.lease import Lease
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.progress_table import ProgressTable
from cojoin.checkpoints.segment_files import SegmentFolder, open_segments
from cojoin.checkpoints.snapshot_row import SnapshotCadence
from cojoin.checkpoints.spark_state_store import committed_batches
from cojoin.engine.key_groups import group_labels
from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.engine.side_outputs import OutputTag
from cojoin.errors import CheckpointError, ConfigurationError, QueryFailedError, did_you_mean
from cojoin.spark.batch.arrow_limits import runs_python
from cojoin.spark.batch.packing import CONTROL_TAG
from cojoin.spark.query.batch_writer import BatchWriter
from cojoin.spark.query.failures import explain
from cojoin.spark.query.history import HistoryHolds
from cojoin.spark.query.output_places import check_places, check_unchanged
from cojoin.spark.query.query import Query
from cojoin.spark.query.triggers import Trigger
from cojoin.spark.restore.restore import (
    Restoration,
    RestoreOptions,
    check_restore,
    finish_restoration,
    unfinished,
    write_restoration,
)
from cojoin.spark.sinks.sink import OutputId, Position
from cojoin.spark.sinks.sinks import Sink, as_sink, delta
from cojoin.storage.locations import as_location
from cojoin.storage.small_files import CheckpointFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.manifest import Manifest
    from cojoin.engine.time.durations import Duration
    from cojoin.spark.batch.call import Plan
    from cojoin.spark.input import BoundInput
    from cojoin.spark.sinks.sink import SinkWriter
    from cojoin.spark.sources.sources import Source

__all__ = ["QueryOptions", "start_query"]


@dataclass(frozen=True)
class QueryOptions:
    """How a query runs; see ``Joined.start``.

    Raises:
        ConfigurationError: A value that can't be right.
    """

    output: Any
    checkpoint: Any
    trigger: Trigger
    rejected: Any = None
    side_outputs: Mapping[OutputTag, Any] = field(default_factory=dict)
    name: str | None = None
    checkpoint_interval: Duration | int | None = None
    retained_checkpoints: int = 1
    restore_from: Checkpoint | None = None
    restore: RestoreOptions = field(default_factory=RestoreOptions)

    def __post_init__(self) -> None:
        if not isinstance(self.trigger, Trigger):
            msg = (
                f"trigger: expected Trigger.available_now() or Trigger.processing_time('10 seconds'), "
                f"got {self.trigger!r}"
            )
            raise ConfigurationError(msg)
        place = as_location(self.checkpoint, "checkpoint", expected="the path of a directory")
        object.__setattr__(self, "checkpoint", place)
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            msg = f"name: expected a text or None, got {self.name!r}"
            raise ConfigurationError(msg)
        SnapshotCadence.of(self.checkpoint_interval)
        kept = self.retained_checkpoints
        if isinstance(kept, bool) or not isinstance(kept, int) or kept < 1:
            msg = f"retained_checkpoints: expected a whole number of 1 or more, got {kept!r}"
            raise ConfigurationError(msg)
        if self.restore_from is not None and not isinstance(self.restore_from, Checkpoint):
            msg = f"restore_from: expected a cojoin.Checkpoint('/path/of/one', at=batch), got {self.restore_from!r}"
            raise ConfigurationError(msg)

    def sinks(self, plan: Plan, files: CheckpointFiles) -> dict[str, Sink]:
        """Return where each of the plan's outputs goes.

        Raises:
            ConfigurationError: Something is no sink, or there is no such side output.
        """
        rejected = delta(files.path("rejected")) if self.rejected is None else as_sink(self.rejected, "rejected")
        sinks = {OUTPUT: as_sink(self.output, "output"), REJECTED: rejected, **self._side_sinks(plan, files)}
        for name, sink in sinks.items():
            sink.check_columns(plan.outputs[name][1], name if name in (OUTPUT, REJECTED) else f"side output {name!r}")
        return sinks

    def _side_sinks(self, plan: Plan, files: CheckpointFiles) -> dict[str, Sink]:
        known, declared = [tag.tag_id for tag in plan.side_outputs], self.side_outputs
        if not isinstance(declared, Mapping):
            msg = f"side_outputs: expected a dict from OutputTag to sink, got {declared!r}"
            raise ConfigurationError(msg)
        for tag in declared:
            if tag not in plan.side_outputs:
                spelled = tag.tag_id if isinstance(tag, OutputTag) else str(tag)
                near = did_you_mean(spelled, known) if known else "; declare it with process(..., side_outputs=[tag])"
                msg = f"side_outputs: the query has no side output {spelled!r} with these columns{near}"
                raise ConfigurationError(msg)
        return {
            tag.tag_id: as_sink(declared[tag], f"side output {tag.tag_id!r}")
            if tag in declared
            else delta(files.path(f"side_outputs/{tag.tag_id}"))
            for tag in plan.side_outputs
        }


def start_query(
    plan: Plan,
    inputs: Sequence[BoundInput],
    emit: Callable[[DataFrame, frozenset[int], SnapshotCadence, SegmentFolder | None], DataFrame],
    options: QueryOptions,
) -> Query:
    """Check everything, claim the checkpoint, restore what is to be restored, and start; see ``Joined.start``.

    Args:
        plan: What the workers are told.
        inputs: The two inputs.
        emit: Gives what the calls emit, of a control input, the batches before which the query stood still, when a
            snapshot is due, and where segments lie.
        options: How it runs.
    """
    spark, sources = inputs[0].frame.sparkSession, [each.source for each in inputs]
    files = CheckpointFiles(spark, options.checkpoint)
    files.check_place()
    sinks = options.sinks(plan, files)
    for name, sink in sinks.items():
        sink.check_place(spark, name)
    check_places(spark, files, sinks, inputs)
    query = describe_query(
        plan.operation.describe(), plan.inputs, plan.output, plan.key_groups, needs_clock=plan.needs_clock
    )
    restoration = seen = unfinished(spark, files, options.restore_from)
    if options.restore_from is not None and (restoration is None or restoration.stage == "begun"):
        restoration = check_restore(
            spark, options.restore_from, plan, query, sources, sinks, options.restore, files, restoration
        )
    is_new = not files.exists("spark/offsets")
    for source in sources:
        if source is not None and restoration is None:
            source.check(is_new=is_new)
    # A live run has no end to come to.
    span = _span(sources) if options.trigger.is_bounded else None
    # Who has planned no batch has read nothing that could have become another's.
    known = (None, None) if is_new else known_sources(files)
    described = [
        None if source is None else source.recognised(spark, f"input {spec.name!r}", of_old)
        for spec, source, of_old in zip(plan.inputs, sources, known, strict=True)
    ]
    claim_checkpoint(files, query, described)
    lease = Lease.acquire(files)
    try:
        _check_unchanged(files, seen)
        # Of two that claimed at the same moment, the one with the lease goes on with what is there.
        query_id = note_sources(files, described)
        if restoration is not None and restoration.stage == "begun":
            restoration.write(files)
            opened = [each for each in sources if each is not None]
            restoration = write_restoration(spark, files, restoration, plan, opened, sinks, options.restore)
            restoration.write(files)
        return _run(inputs, plan, emit, options, files, sinks, query_id, lease, restoration, span)
    except BaseException as error:
        with contextlib.suppress(Exception):
            lease.release()
        if isinstance(error, PySparkException):
            raise ConfigurationError(explain(error)) from error
        raise


def _span(sources: Sequence[Source | None]) -> tuple[int, int] | None:
    """Return the times through which the query will go, where its sources can tell."""
    spans = [source.span() for source in sources if source is not None]
    known = [each for each in spans if each is not None]
    return (min(begin for begin, _ in known), max(end for _, end in known)) if known else None


def _check_unchanged(files: CheckpointFiles, seen: Restoration | None) -> None:
    if Restoration.read(files) != seen:
        msg = f"checkpoint {files.root}: another start has restored into it meanwhile; start again"
        raise CheckpointError(msg)


def _run(
    inputs: Sequence[BoundInput],
    plan: Plan,
    emit: Callable[[DataFrame, frozenset[int], SnapshotCadence, SegmentFolder | None], DataFrame],
    options: QueryOptions,
    files: CheckpointFiles,
    sinks: Mapping[str, Sink],
    query_id: str,
    lease: Lease,
    restoration: Restoration | None,
    span: tuple[int, int] | None,
) -> Query:
    spark = inputs[0].frame.sparkSession
    manifests = Manifests(files)
    last = manifests.last()
    if last is not None and (restoration is None or restoration.stage == "ready"):
        check_offsets(files, last.batch_id, last.offsets)
    progress = ProgressTable(spark, files, manifests)
    progress.recover()
    if last is not None and last.report.drained:
        progress.flush()
        msg = (
            f"checkpoint {files.root}: its query was drained after batch {last.batch_id}: "
            f"all inputs are finished, so it is over; "
            f"start a new query with a checkpoint of its own"
        )
        raise CheckpointError(msg)
    check_unchanged(spark, files, last, sinks)
    writers = _open_sinks(spark, files, sinks, query_id, last)
    begins_at = None if restoration is None else restoration.offsets
    query = Query(
        spark, plan, options.trigger, files, progress, None if last is None else last.report, lease, span=span
    )
    writer = BatchWriter(
        plan,
        query_id,
        sinks,
        writers,
        files,
        manifests,
        progress,
        query.take_report,
        last,
        lease,
        options.retained_checkpoints,
        begins_at,
        may_count=not any(runs_python(each.frame) for each in inputs),
    )
    resumed = resumed_batches(files) if plan.follows_clock else frozenset()
    control = open_control(spark, files, group_labels(plan.key_groups), CONTROL_TAG)
    emitted = emit(control, resumed, SnapshotCadence.of(options.checkpoint_interval), open_segments(files))
    held = HistoryHolds(inputs, files, begins_at).around(writer)
    stream = emitted.writeStream.foreachBatch(held).option("checkpointLocation", files.path("spark"))
    if restoration is not None and restoration.stage == "written":
        # Once: after it Spark would plan a second batch, from the sources' very beginning.
        if 0 not in committed_batches(files):
            try:
                stream.trigger(once=True).start().awaitTermination()
            except PySparkException as error:
                raise QueryFailedError(explain(error)) from error
        finish_restoration(files, restoration).write(files)
    writer.prepare()
    query.run(stream.queryName(options.name) if options.name else stream, writer.finish)
    return query


def _open_sinks(
    spark: SparkSession, files: CheckpointFiles, sinks: Mapping[str, Sink], query_id: str, last: Manifest | None
) -> dict[str, SinkWriter]:
    """Return what writes the outputs, each seen to be as the checkpoint left it."""
    next_batch = max(committed_batches(files), default=-1) + 1
    if last is not None and last.batch_id > next_batch:
        msg = (
            f"checkpoint {files.root}: its newest manifest is of batch {last.batch_id}, and Spark's own log ends with "
            f"batch {next_batch - 1}: parts of it are of other moments, as in a copy that was made while the query "
            f"ran; put back a copy of one moment, or restore one of its snapshots into a new checkpoint with "
            f"restore_from=cojoin.Checkpoint({files.root!r})"
        )
        raise CheckpointError(msg)
    writers = {}
    for output, sink in sinks.items():
        writers[output] = sink.open(spark, OutputId(query_id, output))
        written = {} if last is None else last.outputs.get(output, {})
        writers[output].check(Position(files.root, next_batch, written))
    return writers
