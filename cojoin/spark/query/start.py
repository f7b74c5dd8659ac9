"""The start of a query: all is checked, then the checkpoint is claimed, leased and restored, then the query runs.

A query that can't run is refused before anything is written. A start after a crash finishes what an earlier start has
begun: first a restoration (``restore``), then a drain (``query``). A planned batch is run as it was planned
(``planned_batch``), also where the query has changed since.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.errors import PySparkException

from cojoin.checkpoints.claimed_checkpoint import ClaimedCheckpoint, delete_abandoned_files, resumed_batches
from cojoin.checkpoints.control import drain_is_promised, open_control
from cojoin.checkpoints.identity import (
    check_description,
    claim_checkpoint,
    describe_query,
    known_sources,
    note_sources,
    read_query,
)
from cojoin.checkpoints.lease import Lease
from cojoin.checkpoints.manifest import Manifest, Manifests
from cojoin.checkpoints.progress_table import ProgressTable
from cojoin.checkpoints.query_changes import check_output_meaning, check_same_query
from cojoin.checkpoints.restoration import Restoration
from cojoin.checkpoints.segment_files import SegmentFolder, open_segments
from cojoin.checkpoints.snapshot_row import SnapshotCadence
from cojoin.engine.key_groups import group_labels
from cojoin.engine.operator import REJECTED
from cojoin.engine.plan import plan_settings
from cojoin.engine.values.types import schema_to_ddl
from cojoin.errors import CheckpointError, ConfigurationError, MissingRowsWarning, QueryFailedError
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import adapter_of, open_store, task_memory
from cojoin.session.spark_checkpoint import (
    OFFSETS,
    check_file_manager,
    check_offsets,
    check_source_logs,
    committed_batches,
)
from cojoin.session.spark_errors import explain, names_silent_python
from cojoin.session.workers import begun
from cojoin.spark.batch.packing import CONTROL_TAG, runs_python
from cojoin.spark.query.batch_writer import BatchWriter, RemoteWriter, setting_of
from cojoin.spark.query.input_checks import (
    check_feeds,
    check_present_validity,
    check_source_columns,
    check_whole_feeds,
    files_passed_over,
    tables_put_back,
)
from cojoin.spark.query.input_progress import HistoryHolds, InputStreams, RunEnd
from cojoin.spark.query.observers import Observers
from cojoin.spark.query.outputs import check_places, check_unchanged, open_outputs, shared_places
from cojoin.spark.query.planned_batch import Transition
from cojoin.spark.query.query import Query, Streams
from cojoin.spark.query.table_loads import StaticSide, TableLoads
from cojoin.spark.savepoints.restore import (
    NewQuery,
    check_restore,
    finish_restoration,
    unfinished,
    write_restoration,
)
from cojoin.spark.sources.delta_static import StaticTable
from cojoin.storage.documents import IDENTITY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

    from cojoin.checkpoints.identity import SourceDescription
    from cojoin.engine.plan import Plan
    from cojoin.session.workers import SharedPlaces
    from cojoin.spark.bound_input import BoundInput
    from cojoin.spark.query.batch_protocol import OpenOutput
    from cojoin.spark.query.query_options import QueryOptions
    from cojoin.spark.query.triggers import Phase, Trigger
    from cojoin.spark.sinks.sink import Sink
    from cojoin.spark.sources.source import Source
    from cojoin.storage.store import Store

Inputs: TypeAlias = "tuple[BoundInput, BoundInput]"
Emit: TypeAlias = (
    "Callable[[Plan, Inputs, DataFrame, frozenset[int], SnapshotCadence, SegmentFolder | None, str | None, Phase],"
    " DataFrame]"
)


def start_query(plan: Plan, inputs: Inputs, emit: Emit, options: QueryOptions) -> Query:
    """Check everything, claim the checkpoint, restore into it if requested, and start; see ``Joined.start``.

    ``emit`` returns the stream of what the calls emit (``SparkExecution``). A ConfigurationError means that the query
    can't run, as configured or with this checkpoint; a QueryFailedError that a restored query's first batch failed, or
    that another query has taken the checkpoint over meanwhile.
    """
    spark = inputs[0].frame.sparkSession
    files = _checked_place(spark, options.checkpoint)
    sinks = options.sinks(plan, files)
    description = _described(plan, files, options)
    _check_outputs(plan, files, sinks, inputs, evolve=options.evolve)
    places = shared_places(spark, files, sinks, inputs, is_client=not adapter_of(spark).runs_batches)
    with begun(places, spark):
        new = NewQuery(spark, files, plan, description, _sources(inputs), sinks, options.restore)
        restoration = seen = unfinished(spark, files, options.restore_from)
        if options.restore_from is not None and (restoration is None or restoration.stage == "begun"):
            restoration = check_restore(new, options.restore_from, restoration)
        is_new = not files.exists(OFFSETS)
        check_source_columns(inputs)
        check_whole_feeds(inputs)
        if restoration is None:
            new, inputs = _with_checked_sources(new, inputs, is_new=is_new)
        span, held_back = _looked_ahead(new.sources, options.trigger)
        # A query that has planned no batch has read nothing yet, so it may still change its sources.
        known = (None, None) if is_new else known_sources(files)
        described = [
            None if source is None else source.recognised(spark, f"input {spec.name!r}", of_old)
            for spec, source, of_old in zip(plan.inputs, new.sources, known, strict=True)
        ]
        adapter_of(spark).check_checkpoint(files)
        claim_checkpoint(files, description, described, settings=plan_settings(plan), evolve=options.evolve)
        lease = Lease.acquire(files)
        try:
            _check_unchanged(files, seen)
            # If two starts claimed it at the same moment, the one with the lease continues with what the other wrote.
            last = Manifests(files).last()
            stored = check_description(files, 0 if last is None else last.described)
            is_restoring = restoration is not None and restoration.stage != "ready"
            transition = Transition.of(
                files, plan, inputs, stored, description, options.trigger, is_restoring=is_restoring
            )
            new = replace(new, plan=transition.plan)
            query_id = note_sources(files, described, lease.epoch)
            restoration = None if restoration is None else _written(new, replace(restoration, epoch=lease.epoch), lease)
            checkpoint = _open_checkpoint(new, query_id, lease, restoration)
            streams = InputStreams.of(inputs)
            observers = Observers(
                options.name or query_id, plan, checkpoint, new.sources, streams.lines, options.on_progress
            )
            query = Query(
                spark,
                new.plan,
                options.trigger,
                checkpoint,
                span=span,
                observers=observers,
                resumes_clock=not transition.follows_clock,
            )
            with observers.ended_by_errors():
                start = _Start(query, new, inputs, streams, emit, options, checkpoint, places)
                _run(_after_planned(start, transition, described), restoration, held_back)
        except BaseException as error:
            cause = lease.explained(error) if isinstance(error, Exception) else error
            with contextlib.suppress(Exception):
                lease.release()
            if cause is not error:
                raise cause from error
            if isinstance(error, PySparkException):
                # A busy machine is not a matter of the query's configuration.
                kind = QueryFailedError if names_silent_python(error) else ConfigurationError
                raise kind(explain(error)) from error
            raise
    return query


def _sources(inputs: Inputs) -> list[Source | None]:
    return [each.source for each in inputs]


def _begun(files: Store, inputs: Inputs) -> tuple[Inputs, list[str]]:
    """Return the inputs as a query without a batch reads them, and warnings (``Source.begun_with``)."""
    if not any(each.source is not None and each.source.begins_with_snapshot for each in inputs):
        return inputs, []
    of_left, of_right = known_sources(files)
    (left, warned), (right, also) = inputs[0].begun_with(of_left), inputs[1].begun_with(of_right)
    return (left, right), warned + also


def _written(new: NewQuery, restoration: Restoration, lease: Lease) -> Restoration:
    """Return a restoration whose control rows are written; a *begun* one is written first."""
    if restoration.stage != "begun":
        return restoration
    restoration.write(new.files)
    restoration = write_restoration(new, restoration, lease.check)
    restoration.write(new.files)
    return restoration


def _checked_place(spark: SparkSession, checkpoint: str) -> Store:
    """Return the checkpoint's directory, after checking it and the session's settings for a query on it."""
    files = open_store(spark, checkpoint)
    files.check_place()
    files.check_conditional_writes()
    check_file_manager(spark, files)
    task_memory(spark)
    return files


def _described(plan: Plan, files: Store, options: QueryOptions) -> dict[str, Any]:
    """Return the query's description; one that may have evolved is compared before its outputs are."""
    described = describe_query(
        plan.operation.describe(), plan.inputs, plan.output, plan.key_groups, needs_clock=plan.needs_clock
    )
    if options.evolve and files.exists(IDENTITY):
        stored = read_query(files)["query"]
        check_same_query(stored, described, files.named, evolve=True)
        check_output_meaning(stored, plan, files.named)
    return described


def _check_outputs(
    plan: Plan, files: Store, sinks: Mapping[str, Sink], inputs: Sequence[BoundInput], *, evolve: bool
) -> None:
    """Raise a ConfigurationError unless each output has its own place, and its columns fit a table that exists."""
    spark = inputs[0].frame.sparkSession
    for name, sink in sinks.items():
        sink.check_place(spark, name)
    check_places(spark, files, sinks, inputs)
    for name, sink in sinks.items():
        sink.check_writer(spark, plan.outputs[name][1], name)
    _check_tables(spark, files, plan, sinks, evolve)


def _check_tables(spark: SparkSession, files: Store, plan: Plan, sinks: Mapping[str, Sink], evolve: bool) -> None:
    if not evolve and files.exists(IDENTITY) and read_query(files)["query"]["output"] != schema_to_ddl(plan.output):
        # The cause is that the inputs are not those of the checkpoint, which is refused when the checkpoint is claimed.
        return
    for name, sink in sinks.items():
        # The columns of rejected rows are cojoin's own, which makes them fit.
        if name != REJECTED:
            sink.check_table(spark, plan.outputs[name][1], name)


def _with_checked_sources(new: NewQuery, inputs: Inputs, *, is_new: bool) -> tuple[NewQuery, Inputs]:
    """Check the sources of a query that is not restored, and of one without a batch the rows that they have now.

    Return the query and its inputs as they are read: without a batch, as its first start has found them.
    """
    if is_new:
        inputs, warned = _begun(new.files, inputs)
        new = replace(new, sources=_sources(inputs))
        for warning in warned:
            warnings.warn(warning, MissingRowsWarning, stacklevel=5)
    for source in new.opened_sources:
        for warning in source.check(is_new=is_new):
            warnings.warn(warning, MissingRowsWarning, stacklevel=5)
    if is_new:
        check_present_validity(inputs)
    else:
        check_feeds(new.files, inputs)
    return new, inputs


def _looked_ahead(
    sources: Sequence[Source | None], trigger: Trigger
) -> tuple[tuple[int, int] | None, tuple[bool, ...]]:
    """Return the range that a bounded run will read, and for each source whether it leaves rows for the next run.

    The range is in epoch milliseconds of event time; None if no source knows it, and for a live run, which has no end.
    A warning names the rows that are left.
    """
    if not trigger.is_bounded:
        return None, (False, False)
    spans, held_back = zip(*((None, []) if each is None else each.look_ahead() for each in sources), strict=True)
    for warning in itertools.chain(*held_back):
        warnings.warn(warning, stacklevel=5)
    known = [span for span in spans if span is not None]
    span = (min(begin for begin, _ in known), max(end for _, end in known)) if known else None
    return span, tuple(map(bool, held_back))


def _check_unchanged(files: Store, seen: Restoration | None) -> None:
    if Restoration.read(files) != seen:
        msg = f"{files.named}: another start has restored into it meanwhile; start again"
        raise CheckpointError(msg)


def _open_checkpoint(new: NewQuery, query_id: str, lease: Lease, restoration: Restoration | None) -> ClaimedCheckpoint:
    """Return the checkpoint, with its progress table repaired; raise a CheckpointError if its query was drained."""
    files, manifests = new.files, Manifests(new.files)
    delete_abandoned_files(files)
    last = _last_counted(files, manifests, lease, restoration)
    progress = ProgressTable(new.spark, files, manifests)
    progress.recover()
    if last is not None and last.report.drained:
        progress.flush()
        msg = (
            f"{files.named}: its query was drained after batch {last.batch_id}: all inputs are finished, so "
            f"it is over; start a new query with its own checkpoint"
        )
        raise CheckpointError(msg)
    check_unchanged(new.spark, files, last, new.sinks)
    begins_at = None if restoration is None else restoration.offsets
    described = int(check_description(files, 0).get("epoch", 0))
    return ClaimedCheckpoint(files, query_id, lease, manifests, progress, last, begins_at, described)


def _last_counted(files: Store, manifests: Manifests, lease: Lease, restoration: Restoration | None) -> Manifest | None:
    """Return the manifest of the last batch that counts; None where there is none.

    A CheckpointError means that the manifests and Spark's logs belong to different moments.
    """
    last = manifests.last()
    try:
        manifests.check_counted(last, lease.counted)
        if last is not None and (restoration is None or restoration.stage == "ready"):
            check_offsets(files, last.batch_id, last.offsets)
            check_source_logs(files, last.logs)
    except CheckpointError:
        # A former run that stood still may have counted a batch between the looks at its manifest and at Spark's logs.
        if manifests.last() == last:
            raise
        return _last_counted(files, manifests, lease, restoration)
    return last


@dataclass(frozen=True)
class _Start:
    """A start that holds the lease; ``starts`` are the batches with which the last runs began."""

    query: Query
    new: NewQuery
    inputs: Inputs
    streams: InputStreams
    emit: Emit
    options: QueryOptions
    checkpoint: ClaimedCheckpoint
    places: SharedPlaces | None
    starts: frozenset[int] = frozenset()

    def static_side(self) -> StaticSide | None:
        """Return the right input as a static side; None where it is a stream."""
        source, plan = self.new.sources[1], self.new.plan
        if not isinstance(source, StaticTable):
            return None
        return StaticSide(source, plan.right, plan.key_groups, self.options.trigger.is_bounded)

    def control_input(self) -> DataFrame:
        """Return the control input of the query's key groups."""
        new = self.new
        has_loads = any(isinstance(each, StaticTable) for each in new.opened_sources)
        return open_control(new.spark, new.files, group_labels(new.plan.key_groups), CONTROL_TAG, has_loads=has_loads)

    def batch_writer(self, outputs: Mapping[str, OpenOutput], *, row_limit_only: bool) -> BatchWriter | None:
        """Return the writer by which this process writes batches; None where a process of the server does."""
        if not adapter_of(self.new.spark).runs_batches:
            return None
        take, retained = self.query._take_batch, self.options.retained_checkpoints  # noqa: SLF001 - its own layer
        cadence, plan = SnapshotCadence.of(self.options.checkpoint_interval), self.new.plan
        return BatchWriter(plan, self.checkpoint, outputs, take, retained, row_limit_only, cadence, self.places)

    def batch_function(self, writer: BatchWriter | None, side: StaticSide | None, loads: TableLoads | None) -> Any:
        """Return the function that writes a micro-batch, and then the next load of a static side where it is due."""
        if writer is None:
            return for_workers(self._remote(side))
        holds = HistoryHolds(self.streams, self.new.files, self.checkpoint.begins_at)
        return self.query._stoppable(holds.around(writer.and_then(loads)))  # noqa: SLF001 - its own layer

    def _remote(self, side: StaticSide | None) -> RemoteWriter:
        new, checkpoint = self.new, self.checkpoint
        writer = RemoteWriter(
            new.plan,
            new.sinks,
            new.files.root,
            checkpoint.query_id,
            checkpoint.lease.record,
            self.streams,
            self.options.retained_checkpoints,
            None if checkpoint.begins_at is None else tuple(checkpoint.begins_at),
            checkpoint.described,
            side,
        )
        writer.check()
        return writer

    def stream(self, batch: Any, control: DataFrame, phase: Phase = "main") -> DataStreamWriter:
        """Return the stream of a phase, without a trigger, whose micro-batches a function writes."""
        files, plan = self.new.files, self.new.plan
        memory = task_memory(self.new.spark)
        if memory is not None and plan.segments is not None:
            plan = replace(plan, segments=replace(plan.segments, memory_bytes=memory))
        setting = None if adapter_of(self.new.spark).runs_batches else setting_of(self.checkpoint.query_id)
        resumed = self.starts if plan.follows_clock else frozenset()
        cadence, last = SnapshotCadence.of(self.options.checkpoint_interval), self.checkpoint.last
        segments = open_segments(files, memory, names_files=last is not None and bool(last.segments))
        emitted = self.emit(plan, self.inputs, control, resumed, cadence, segments, setting, phase)
        return emitted.writeStream.foreachBatch(batch).option("checkpointLocation", files.path("spark"))


def _after_planned(start: _Start, transition: Transition, described: Sequence[SourceDescription]) -> _Start:
    """Run the batch that is planned as it was planned, where the query has changed since.

    The start that is returned has what that batch has changed.
    """
    new, checkpoint, files, planned = start.new, start.checkpoint, start.new.files, transition.planned
    starts: frozenset[int] = frozenset()
    # Also where only timers need the clock: another run's strategies may follow it.
    if new.plan.needs_clock or (planned is not None and planned.plan.needs_clock):
        counted = checkpoint.last.epoch if checkpoint.last is not None and transition.follows_clock else 0
        starts = resumed_batches(files, checkpoint.lease.epoch, counted)
    start = replace(start, starts=starts)
    if planned is not None:
        as_planned = replace(start, new=replace(new, plan=planned.plan), inputs=planned.inputs)
        if drain_is_promised(files):
            # Nothing comes after the batch that ends all inputs.
            return as_planned
        transition.begin(files, checkpoint.lease)
        _run_planned(as_planned)
        checkpoint = replace(checkpoint, last=checkpoint.manifests.last())
    side = start.static_side()
    if side is not None and transition.added[1]:
        TableLoads(side, files, checkpoint.lease.check).check_all_taken(checkpoint.last_report)
    # Only after the run's start was written: later runs conclude from the noted settings that it was.
    noted = transition.note(files, described, checkpoint.lease)
    return replace(start, checkpoint=checkpoint if noted is None else replace(checkpoint, described=noted))


def _run_planned(start: _Start) -> None:
    """Run the batch that is planned, and nothing else, with the plan and inputs of then."""
    outputs = open_outputs(start.new.spark, start.new.sinks, start.checkpoint, start.new.plan)
    control = start.control_input()
    writer = start.batch_writer(outputs, row_limit_only=False)
    stream = start.stream(start.batch_function(writer, start.static_side(), None), control)
    try:
        _run_alone(stream)
    finally:
        if writer is not None:
            writer.finish()


def _run(start: _Start, restoration: Restoration | None, held_back: Sequence[bool]) -> None:
    """Start the stream; a restored query first executes the batch that reads the old state."""
    new, inputs, options, checkpoint = start.new, start.inputs, start.options, start.checkpoint
    files = new.files
    outputs = open_outputs(new.spark, new.sinks, checkpoint, new.plan)
    _warn([note for each in outputs.values() for note in each.writer.notes()])
    _warn(files_passed_over(new.spark, files, inputs, start.streams.lines), MissingRowsWarning)
    _warn(tables_put_back(new.spark, files, inputs, start.streams), MissingRowsWarning)
    side = start.static_side()
    loads = None if side is None else TableLoads(side, files, checkpoint.lease.check)
    writer = start.batch_writer(outputs, row_limit_only=not any(runs_python(each.frame) for each in inputs))
    control = start.control_input()

    def written(phase: Phase = "main") -> DataStreamWriter:
        own, own_loads = side, loads
        if phase == "live" and side is not None:
            # A phase without an end refreshes the static side.
            own = replace(side, is_bounded=False)
            own_loads = TableLoads(own, files, checkpoint.lease.check)
        return start.stream(start.batch_function(writer, own, own_loads), control, phase)

    stream = written()
    # Spark copies users' functions when a stream is made. Their later changes must count in no batch.
    without_inputs = written("planned") if _plans_without_python(new, inputs, options.trigger) else stream
    live = None if options.trigger.then is None else written("live")
    if restoration is not None and restoration.stage == "written":
        if 0 not in committed_batches(files):
            _run_alone(stream)
        finish_restoration(files, restoration, checkpoint.lease.check).write(files)
    if loads is not None and not drain_is_promised(files):
        last = checkpoint.manifests.last()
        _warn(loads.at_start(new.spark, None if last is None else last.report))
    if writer is not None:
        writer.prepare()
    named = partial(_named, name=options.name)
    at_end: list[Callable[[], None]] = [] if writer is None else [writer.finish]
    if start.places is not None:
        at_end.append(partial(start.places.remove, of_workers=True))
    fixes_end = options.trigger.is_bounded and not options.trigger.drain
    run_end = RunEnd.fix(new.spark, inputs, start.streams, held_back) if fixes_end else None
    have_logs = any(each.is_streaming and not each.reads_by_python for each in inputs)
    streams = Streams(named(stream), named(without_inputs), None if live is None else named(live), have_logs)
    start.query._run(streams, run_end, at_end)  # noqa: SLF001 - its own layer


def _run_alone(stream: DataStreamWriter) -> None:
    """Run the batch that is planned, to its end; raise a QueryFailedError if it failed."""
    try:
        # Other triggers would plan a second batch, which reads all sources again.
        stream.trigger(once=True).start().awaitTermination()
    except PySparkException as error:
        raise QueryFailedError(explain(error)) from error


def _warn(notes: Iterable[str], category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's ``start``."""
    for note in notes:
        warnings.warn(note, category, stacklevel=6)


def _plans_without_python(new: NewQuery, inputs: Inputs, trigger: Trigger) -> bool:
    """Return whether a planned batch may come for which Spark would start Python processes that read nothing."""
    return any(each.reads_by_python for each in inputs) and (trigger.is_bounded or drain_is_promised(new.files))


def _named(stream: DataStreamWriter, name: str | None) -> DataStreamWriter:
    return stream.queryName(name) if name else stream
