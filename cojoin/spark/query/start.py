"""The start of a query: all is checked, then the checkpoint is claimed, leased and restored, then the query runs.

A query that can't run is refused before anything is written. A start after a crash finishes what an earlier start has
begun: first a restoration (``restore``), then a drain (``query``). A planned batch is run as it was planned
(``planned_batch``), also where the query has changed since.
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import replace
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
from cojoin.checkpoints.segment_files import SegmentFolder, open_segments
from cojoin.checkpoints.snapshot_row import SnapshotCadence
from cojoin.engine.key_groups import group_labels
from cojoin.engine.operator import REJECTED
from cojoin.engine.plan import plan_settings
from cojoin.engine.values.types import schema_to_ddl
from cojoin.errors import CheckpointError, ConfigurationError, MissingRowsWarning, QueryFailedError
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import adapter_of, open_store
from cojoin.session.spark_checkpoint import OFFSETS, check_offsets, check_source_logs, committed_batches
from cojoin.session.spark_errors import explain
from cojoin.session.workers import begun
from cojoin.spark.batch.packing import CONTROL_TAG, runs_python
from cojoin.spark.query.batch_writer import BatchWriter, RemoteWriter, setting_of
from cojoin.spark.query.input_checks import check_feeds, check_present_validity, check_source_columns, files_passed_over
from cojoin.spark.query.input_progress import HistoryHolds, InputStreams, RunEnd
from cojoin.spark.query.observers import Outside
from cojoin.spark.query.outputs import check_places, check_unchanged, open_outputs, shared_places
from cojoin.spark.query.planned_batch import Transition
from cojoin.spark.query.query import Query, Streams
from cojoin.spark.query.table_loads import StaticSide, TableLoads
from cojoin.spark.savepoints.restore import (
    NewQuery,
    Restoration,
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


def start_query(
    plan: Plan,
    inputs: Inputs,
    emit: Emit,
    options: QueryOptions,
) -> Query:
    """Check everything, claim the checkpoint, restore into it if requested, and start; see ``Joined.start``.

    Args:
        plan: What the workers execute.
        inputs: The two inputs.
        emit: A function that returns the stream of what the calls emit (``SparkExecution``).
        options: How the query runs.

    Returns:
        The running query.

    Raises:
        ConfigurationError: The query can't run, as configured or with this checkpoint.
        QueryFailedError: The first batch of a restored query failed, or another query has taken the checkpoint over
            since the start began.
    """
    spark, sources = inputs[0].frame.sparkSession, [each.source for each in inputs]
    files = open_store(spark, options.checkpoint)
    files.check_place()
    files.check_swaps()
    sinks = options.sinks(plan, files)
    description = _described(plan, files, options)
    _check_outputs(plan, files, sinks, inputs, evolve=options.evolve)
    places = shared_places(spark, files, sinks, inputs, is_client=not adapter_of(spark).runs_batches)
    with begun(places, spark):
        new = NewQuery(spark, files, plan, description, sources, sinks, options.restore)
        restoration = seen = unfinished(spark, files, options.restore_from)
        if options.restore_from is not None and (restoration is None or restoration.stage == "begun"):
            restoration = check_restore(new, options.restore_from, restoration)
        is_new = not files.exists(OFFSETS)
        check_source_columns(inputs)
        if restoration is None:
            _check_sources(new, inputs, is_new=is_new)
        span, held_back = _looked_ahead(sources, options.trigger)
        # A query that has planned no batch has read nothing yet, so it may still change its sources.
        known = (None, None) if is_new else known_sources(files)
        described = [
            None if source is None else source.recognised(spark, f"input {spec.name!r}", of_old)
            for spec, source, of_old in zip(plan.inputs, sources, known, strict=True)
        ]
        adapter_of(spark).check_checkpoint(files)
        claim_checkpoint(files, description, described, settings=plan_settings(plan), evolve=options.evolve)
        lease = Lease.acquire(files)
        try:
            _check_unchanged(files, seen)
            # If two starts claimed it at the same moment, the one with the lease continues with what is there.
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
            outside = Outside(options.name or query_id, plan, checkpoint, sources, streams.lines, options.on_progress)
            query = Query(
                spark,
                new.plan,
                options.trigger,
                checkpoint,
                span=span,
                outside=outside,
                resumes_clock=not transition.follows_clock,
            )
            with outside.ended_by_errors():
                new, inputs, checkpoint, starts = _after_planned(
                    query, new, streams, transition, inputs, emit, options, checkpoint, places, described
                )
                _run(query, new, streams, starts, inputs, emit, options, checkpoint, restoration, places, held_back)
        except BaseException as error:
            cause = lease.explained(error) if isinstance(error, Exception) else error
            with contextlib.suppress(Exception):
                lease.release()
            if cause is not error:
                raise cause from error
            if isinstance(error, PySparkException):
                raise ConfigurationError(explain(error)) from error
            raise
    return query


def _written(new: NewQuery, restoration: Restoration, lease: Lease) -> Restoration:
    """Write what a restored query's first batch needs, where that is not there yet."""
    if restoration.stage != "begun":
        return restoration
    restoration.write(new.files)
    restoration = write_restoration(new, restoration, lease.check)
    restoration.write(new.files)
    return restoration


def _described(plan: Plan, files: Store, options: QueryOptions) -> dict[str, Any]:
    """Return the query's description; one that may have evolved is compared before its outputs are.

    Raises:
        CheckpointError: It has changed in another way.
    """
    described = describe_query(
        plan.operation.describe(), plan.inputs, plan.output, plan.key_groups, needs_clock=plan.needs_clock
    )
    if options.evolve and files.exists(IDENTITY):
        stored = read_query(files)["query"]
        check_same_query(stored, described, files.root, evolve=True)
        check_output_meaning(stored, plan, files.root)
    return described


def _check_outputs(
    plan: Plan, files: Store, sinks: Mapping[str, Sink], inputs: Sequence[BoundInput], *, evolve: bool
) -> None:
    """Check that no two outputs share a place, and that their columns fit tables that exist.

    Raises:
        ConfigurationError: It does not, or they do not.
    """
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


def _check_sources(new: NewQuery, inputs: Sequence[BoundInput], *, is_new: bool) -> None:
    """Check the sources of a query that is not restored, and of a new one the rows that are there.

    Raises:
        ConfigurationError: The query can't start with a source.
        CheckpointError: It can't go on with one.
    """
    for source in new.opened_sources:
        source.check(is_new=is_new)
    if is_new:
        check_present_validity(inputs)
    else:
        check_feeds(new.files, inputs)


def _looked_ahead(
    sources: Sequence[Source | None], trigger: Trigger
) -> tuple[tuple[int, int] | None, tuple[bool, ...]]:
    """Return the range that a bounded run will read, and warn of rows that it leaves.

    Returns:
        The range of event time in epoch milliseconds; None if no source knows it, and for a live run, which has no end.
        And of each source whether it leaves something for the next run.
    """
    if not trigger.is_bounded:
        return None, (False, False)
    held_back = [[] if source is None else source.held_back() for source in sources]
    for told in [each for of_source in held_back for each in of_source]:
        warnings.warn(told, stacklevel=4)
    known = [span for source in sources if source is not None and (span := source.span()) is not None]
    span = (min(begin for begin, _ in known), max(end for _, end in known)) if known else None
    return span, tuple(map(bool, held_back))


def _check_unchanged(files: Store, seen: Restoration | None) -> None:
    if Restoration.read(files) != seen:
        msg = f"checkpoint {files.root}: another start has restored into it meanwhile; start again"
        raise CheckpointError(msg)


def _open_checkpoint(new: NewQuery, query_id: str, lease: Lease, restoration: Restoration | None) -> ClaimedCheckpoint:
    """Return the checkpoint, with its progress table repaired.

    Raises:
        CheckpointError: Its files belong to different moments, or its query was drained.
    """
    files, manifests = new.files, Manifests(new.files)
    delete_abandoned_files(files)
    last = _last_counted(files, manifests, lease, restoration)
    progress = ProgressTable(new.spark, files, manifests)
    progress.recover()
    if last is not None and last.report.drained:
        progress.flush()
        msg = (
            f"checkpoint {files.root}: its query was drained after batch {last.batch_id}: "
            f"all inputs are finished, so it is over; "
            f"start a new query with a checkpoint of its own"
        )
        raise CheckpointError(msg)
    check_unchanged(new.spark, files, last, new.sinks)
    begins_at = None if restoration is None else restoration.offsets
    described = int(check_description(files, 0).get("epoch", 0))
    return ClaimedCheckpoint(files, query_id, lease, manifests, progress, last, begins_at, described)


def _last_counted(files: Store, manifests: Manifests, lease: Lease, restoration: Restoration | None) -> Manifest | None:
    """Return the manifest of the last batch that counts; None where there is none.

    Raises:
        CheckpointError: The manifests and Spark's logs belong to different moments.
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


def _static_side(plan: Plan, source: Source | None, options: QueryOptions) -> StaticSide | None:
    """Return the right input as a static side; None where it is a stream."""
    if not isinstance(source, StaticTable):
        return None
    return StaticSide(source, plan.right, plan.key_groups, options.trigger.is_bounded)


def _remote(
    new: NewQuery,
    streams: InputStreams,
    options: QueryOptions,
    checkpoint: ClaimedCheckpoint,
    side: StaticSide | None,
) -> RemoteWriter:
    """Return the writer that the server executes and writes the batches with."""
    begins_at = None if checkpoint.begins_at is None else tuple(checkpoint.begins_at)
    writer = RemoteWriter(
        new.plan,
        new.sinks,
        new.files.root,
        checkpoint.query_id,
        checkpoint.lease.record,
        streams,
        options.retained_checkpoints,
        begins_at,
        checkpoint.described,
        side,
    )
    writer.check()
    return writer


def _after_planned(
    query: Query,
    new: NewQuery,
    streams: InputStreams,
    transition: Transition,
    inputs: Inputs,
    emit: Emit,
    options: QueryOptions,
    checkpoint: ClaimedCheckpoint,
    places: SharedPlaces | None,
    described: Sequence[SourceDescription],
) -> tuple[NewQuery, Inputs, ClaimedCheckpoint, frozenset[int]]:
    """Run the batch that is planned as it was planned, where the query has changed since.

    Returns:
        What comes next, and the batches with which the last runs began.
    """
    files, planned = new.files, transition.planned
    starts: frozenset[int] = frozenset()
    # Also where only timers need the clock: another run's strategies may follow it.
    if new.plan.needs_clock or (planned is not None and planned.plan.needs_clock):
        counted = checkpoint.last.epoch if checkpoint.last is not None and transition.follows_clock else 0
        starts = resumed_batches(files, checkpoint.lease.epoch, counted)
    if planned is not None and drain_is_promised(files):
        # Nothing comes after the batch that ends all inputs.
        return replace(new, plan=planned.plan), planned.inputs, checkpoint, starts
    if planned is not None:
        transition.begin(files, checkpoint.lease)
        as_planned = replace(new, plan=planned.plan)
        _run_planned(query, as_planned, streams, starts, planned.inputs, emit, options, checkpoint, places)
        checkpoint = replace(checkpoint, last=checkpoint.manifests.last())
    side = _static_side(new.plan, new.sources[1], options)
    if side is not None and transition.added[1]:
        TableLoads(side, files, checkpoint.lease.check).check_all_taken(checkpoint.last_report)
    # After the run's start was written: later runs take it from here that a run with the clock has written its own.
    noted = transition.note(files, described, checkpoint.lease)
    checkpoint = checkpoint if noted is None else replace(checkpoint, described=noted)
    return new, inputs, checkpoint, starts


def _control_input(new: NewQuery) -> DataFrame:
    """Return the control input of a query's key groups."""
    has_loads = any(isinstance(each, StaticTable) for each in new.opened_sources)
    return open_control(new.spark, new.files, group_labels(new.plan.key_groups), CONTROL_TAG, has_loads=has_loads)


def _run_planned(
    query: Query,
    new: NewQuery,
    streams: InputStreams,
    starts: frozenset[int],
    inputs: Inputs,
    emit: Emit,
    options: QueryOptions,
    checkpoint: ClaimedCheckpoint,
    places: SharedPlaces | None,
) -> None:
    """Run the batch that is planned, and nothing else; all are as they were when it was planned."""
    files, plan = new.files, new.plan
    outputs = open_outputs(new.spark, new.sinks, checkpoint, plan)
    cadence = SnapshotCadence.of(options.checkpoint_interval)
    control = _control_input(new)
    # The planned batch is the first of no run that starts now.
    resumed = starts if plan.follows_clock else frozenset()
    writer: BatchWriter | None = None
    facts_setting: str | None = None
    if not adapter_of(new.spark).runs_batches:
        side = _static_side(plan, new.sources[1], options)
        batch: Any = for_workers(_remote(new, streams, options, checkpoint, side))
        facts_setting = setting_of(checkpoint.query_id)
    else:
        retained, take = options.retained_checkpoints, query.take_batch
        writer = BatchWriter(
            plan, checkpoint, outputs, take, retained, row_limit_only=False, cadence=cadence, places=places
        )
        batch = HistoryHolds(streams, files, checkpoint.begins_at).around(writer.and_then(None))
    emitted = emit(plan, inputs, control, resumed, cadence, open_segments(files), facts_setting, "main")
    try:
        _run_alone(emitted.writeStream.foreachBatch(batch).option("checkpointLocation", files.path("spark")))
    finally:
        if writer is not None:
            writer.finish()


def _run(
    query: Query,
    new: NewQuery,
    streams: InputStreams,
    starts: frozenset[int],
    inputs: Inputs,
    emit: Emit,
    options: QueryOptions,
    checkpoint: ClaimedCheckpoint,
    restoration: Restoration | None,
    places: SharedPlaces | None,
    held_back: Sequence[bool],
) -> None:
    """Start the stream; a restored query first executes the batch that reads the old state."""
    files, plan = new.files, new.plan
    outputs = open_outputs(new.spark, new.sinks, checkpoint, plan)
    _tell([note for each in outputs.values() for note in each.writer.notes()])
    _tell(files_passed_over(new.spark, files, inputs, streams.lines), MissingRowsWarning)
    side = _static_side(plan, new.sources[1], options)
    loads = None if side is None else TableLoads(side, files, checkpoint.lease.check)
    cadence = SnapshotCadence.of(options.checkpoint_interval)
    writer: BatchWriter | None = None
    if adapter_of(new.spark).runs_batches:
        rows_only = not any(runs_python(each.frame) for each in inputs)
        retained = options.retained_checkpoints
        writer = BatchWriter(plan, checkpoint, outputs, query.take_batch, retained, rows_only, cadence, places)
    resumed = starts if plan.follows_clock else frozenset()
    control = _control_input(new)
    facts_setting = setting_of(checkpoint.query_id) if writer is None else None

    def written(phase: Phase = "main") -> DataStreamWriter:
        own, own_loads = side, loads
        if phase == "live" and side is not None:
            # A phase without an end refreshes the static side.
            own = replace(side, is_bounded=False)
            own_loads = TableLoads(own, files, checkpoint.lease.check)
        batch: Any = (
            for_workers(_remote(new, streams, options, checkpoint, own))
            if writer is None
            else HistoryHolds(streams, files, checkpoint.begins_at).around(writer.and_then(own_loads))
        )
        emitted = emit(plan, inputs, control, resumed, cadence, open_segments(files), facts_setting, phase)
        return emitted.writeStream.foreachBatch(batch).option("checkpointLocation", files.path("spark"))

    stream = written()
    # Spark copies users' functions when a stream is made. What they change while the query runs must count in no batch.
    at_rest = written("at rest") if _plans_without_python(new, options.trigger) else stream
    live = None if options.trigger.then is None else written("live")
    if restoration is not None and restoration.stage == "written":
        if 0 not in committed_batches(files):
            _run_alone(stream)
        finish_restoration(files, restoration, checkpoint.lease.check).write(files)
    if loads is not None and not drain_is_promised(files):
        last = checkpoint.manifests.last()
        _tell(loads.at_start(new.spark, None if last is None else last.report))
    if writer is not None:
        writer.prepare()
    named = partial(_named, name=options.name)
    at_end: list[Callable[[], None]] = [] if writer is None else [writer.finish]
    if places is not None:
        at_end.append(partial(places.remove, of_workers=True))
    fixes_end = options.trigger.is_bounded and not options.trigger.drain
    run_end = RunEnd.fix(new.spark, inputs, streams, held_back) if fixes_end else None
    query.run(Streams(named(stream), named(at_rest), None if live is None else named(live)), run_end, at_end)


def _run_alone(stream: DataStreamWriter) -> None:
    """Run the batch that is planned, to its end.

    Raises:
        QueryFailedError: It failed.
    """
    try:
        # Other triggers would plan a second batch, which reads all sources again.
        stream.trigger(once=True).start().awaitTermination()
    except PySparkException as error:
        raise QueryFailedError(explain(error)) from error


def _tell(notes: Iterable[str], category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's ``start``."""
    for note in notes:
        warnings.warn(note, category, stacklevel=6)


def _plans_without_python(new: NewQuery, trigger: Trigger) -> bool:
    """Return whether a planned batch may come for which Spark would start Python processes that read nothing."""
    reads_by_python = any(each.is_in_python for each in new.opened_sources)
    return reads_by_python and (trigger.is_bounded or drain_is_promised(new.files))


def _named(stream: DataStreamWriter, name: str | None) -> DataStreamWriter:
    return stream.queryName(name) if name else stream
