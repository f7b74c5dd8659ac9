"""What the driver does with each micro-batch: execute it once, write its outputs, and make it count.

One action executes the calls: the workers write the outputs whose sinks let them into files that count for nothing yet,
the others stay packed and persisted, and their sinks read what that action kept. Output, rejected rows and side outputs
become visible each by a transaction of its own, only where there are any; the manifest comes last. A batch that is run
again after a crash is executed again, since Spark's state needs it, and writes what a transaction id does not already
cover. One that only the clock asked for, and that changed nothing, leaves no trace. Where the calls say that a snapshot
is due, its rows are written before the manifest. A run whose checkpoint another run has taken over stops before it
writes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.control import source_offsets
from cojoin.checkpoints.delta_files import WrittenFile
from cojoin.checkpoints.manifest import Manifest
from cojoin.checkpoints.segment_files import SegmentCleaner
from cojoin.checkpoints.snapshot_row import STATE_SCHEMA
from cojoin.checkpoints.snapshots import SnapshotKind, Snapshots
from cojoin.checkpoints.state_table import STATE_LOCK, StateTable
from cojoin.errors import QueryFailedError
from cojoin.operator import OUTPUT
from cojoin.report import BatchReport
from cojoin.spark.arrow_limits import RowSizes, counted_by_rows
from cojoin.spark.call import SNAPSHOT, STATISTICS, Plan
from cojoin.spark.failures import explain
from cojoin.spark.sink import Sink, WriteContext
from cojoin.spark.unpacking import unpack
from cojoin.spark.written_files import write_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.files import CheckpointFiles
    from cojoin.checkpoints.lease import Lease
    from cojoin.checkpoints.manifest import Manifests
    from cojoin.checkpoints.progress import ProgressTable
    from cojoin.spark.written_files import FileTarget

__all__ = ["BatchWriter"]

_LOG = logging.getLogger(__name__)


class BatchWriter:
    """Takes each micro-batch of one query.

    Args:
        plan: What the workers were told.
        query_id: The query's own id.
        sinks: Where each of the plan's outputs goes.
        files: The checkpoint.
        manifests: Its manifests.
        progress: Its progress table.
        on_batch: Called with each batch's report once it counts.
        last: The manifest of the checkpoint's last batch; None before the first.
        lease: What keeps other runs away from the checkpoint.
        retention: How many snapshots are kept of those that nobody asked for.
        begins_at: Of a query that was restored, where its sources go on after its first batch.
        may_count: Whether rows that are small may cross to Python by their number alone.
    """

    def __init__(
        self,
        plan: Plan,
        query_id: str,
        sinks: Mapping[str, Sink],
        files: CheckpointFiles,
        manifests: Manifests,
        progress: ProgressTable,
        on_batch: Callable[[BatchReport], None],
        last: Manifest | None,
        lease: Lease,
        retention: int,
        begins_at: Sequence[str] | None = None,
        *,
        may_count: bool = False,
    ) -> None:
        self._plan = plan
        self._query_id = query_id
        self._sinks = sinks
        self._files, self._manifests, self._progress = files, manifests, progress
        self._on_batch = on_batch
        self._last = None if last is None else last.report
        self._preparing: threading.Thread | None = None
        self._offsets = [] if last is None else list(last.offsets)
        # Also those that nothing was written to yet: another query must not take them for its own.
        declared = {output: {**sink.place(), "batch_id": None} for output, sink in sinks.items()}
        self._written: dict[str, Any] = declared | ({} if last is None else dict(last.outputs))
        self._lease, self._retention, self._begins_at = lease, retention, begins_at
        self._cleaning: threading.Thread | None = None
        self._segments, self._cleaner = () if last is None else tuple(last.segments), SegmentCleaner(files, manifests)
        self._is_first = True
        self._row_sizes, self._may_count = RowSizes(), may_count

    def __call__(self, emitted: DataFrame, batch_id: int) -> None:
        """Write a micro-batch; Spark commits it afterwards."""
        durations: dict[str, float] = {}
        self._lease.check()
        targets = self._targets(emitted.sparkSession, batch_id)
        if targets:
            emitted = write_files(emitted, targets)
        emitted.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            statistics, files = self._execute(emitted, targets, durations)
            # It may have taken long: whoever was taken over meanwhile writes nothing.
            self._lease.check()
            report = self._report(batch_id, statistics)
            if self._preparing is not None:
                self._preparing.join()
            written = self._write_outputs(emitted, report, files, durations)
            offsets = self._offsets_after(batch_id)
            saved = {each["content_batch_id"] for each in statistics} - {None}
            segments = tuple(sorted({name for each in statistics for name in each["segments"]}))
            segments = segments if statistics else self._segments
            is_still = (offsets, segments) == (self._offsets, self._segments) and _is_the_same(report, self._last)
            # A snapshot of what the last one has already is none.
            if not written and batch_id not in saved and is_still:
                return
            self._written.update(written)
            outputs = dict(self._written)
            manifest = Manifest(self._query_id, report, offsets, outputs, durations, self._lease.epoch, segments)
            if saved:
                started = time.perf_counter()
                self._snapshot(emitted, manifest)
                durations["snapshot"] = _since(started)
            elif self._is_first:
                # An earlier try of the batch may have taken one that the state does not remember.
                Snapshots(self._files).remove(batch_id)
        finally:
            emitted.unpersist()
        self._lease.check()
        self._manifests.write(manifest)
        self._is_first = False
        self._offsets, self._segments = offsets, segments
        self._progress.add(manifest)
        self._last = report
        self._on_batch(report)
        if not targets:
            # Beside Spark's own commit and planning, when the cores are idle.
            self.prepare(emitted.sparkSession)
        outlived = self._cleaner.take(manifest)
        if saved or outlived:
            self._clean(emitted.sparkSession, outlived)

    def _offsets_after(self, batch_id: int) -> list[str]:
        offsets = source_offsets(self._files, batch_id)
        if batch_id or self._begins_at is None:
            return offsets
        return [*self._begins_at, offsets[-1]]

    def _snapshot(self, emitted: DataFrame, manifest: Manifest) -> None:
        is_first = self._begins_at is not None and manifest.batch_id == 0
        rows = unpack(emitted, SNAPSHOT, STATE_SCHEMA)
        table = StateTable(emitted.sparkSession, self._files)
        kind: SnapshotKind = "restored" if is_first else "checkpoint"
        table.write(rows, manifest, kind, self._plan.key_groups, remembered=True)

    def _clean(self, session: SparkSession, outlived: Sequence[str]) -> None:
        """Remove the snapshots that are too many, and segments, in a thread of its own."""
        if self._cleaning is not None:
            self._cleaning.join()
        self._cleaning = threading.Thread(target=self._remove_superfluous, args=(session, outlived), daemon=True)
        self._cleaning.start()

    def _remove_superfluous(self, session: SparkSession, outlived: Sequence[str]) -> None:
        try:
            with STATE_LOCK:
                self._cleaner.remove(outlived)
                superfluous = Snapshots(self._files).superfluous(self._retention)
                if superfluous:
                    StateTable(session, self._files).clean(superfluous)
        except Exception as error:  # noqa: BLE001 - what is not removed now is removed after the next snapshot
            _LOG.warning("checkpoint %s: old snapshots could not be removed: %s", self._files.root, explain(error))

    def finish(self) -> None:
        """Wait for what goes on beside the batches."""
        if self._cleaning is not None:
            self._cleaning.join()

    def prepare(self, session: SparkSession) -> None:
        """Let the main output's sink prepare for the next batch, in a thread of its own."""
        self._preparing = threading.Thread(target=self._prepare, args=(session,), daemon=True)
        self._preparing.start()

    def _prepare(self, session: SparkSession) -> None:
        # Nothing depends on it: what is wrong with a table, a write to it will say.
        with contextlib.suppress(Exception):
            self._progress.prepare()
        with contextlib.suppress(Exception):
            self._sinks[OUTPUT].prepare(session)

    def _targets(self, session: SparkSession, batch_id: int) -> dict[int, FileTarget]:
        """Give where the workers write an output themselves, by the output's kind."""
        targets = {}
        for output, (kind, schema) in self._plan.outputs.items():
            target = self._sinks[output].target(session, schema, WriteContext(self._query_id, output, batch_id))
            if target is not None:
                targets[kind] = target
        return targets

    def _write_outputs(
        self,
        emitted: DataFrame,
        report: BatchReport,
        files: Mapping[int, list[WrittenFile]],
        durations: dict[str, float],
    ) -> dict[str, Any]:
        """Write, or make count, the outputs that have rows; gives what the manifest says of each."""
        written = {}
        for output, (kind, schema) in self._plan.outputs.items():
            if report.emitted.get(output):
                started = time.perf_counter()
                context = WriteContext(self._query_id, output, report.batch_id, may_repeat=self._is_first)
                _check_count(files.get(kind), report.emitted[output], context)
                place = self._write(emitted, kind, schema, files.get(kind), context)
                written[output] = {**place, "batch_id": report.batch_id}
                durations[output] = _since(started)
        return written

    def _write(
        self, emitted: DataFrame, kind: int, schema: pa.Schema, files: list[WrittenFile] | None, context: WriteContext
    ) -> dict[str, Any]:
        sink = self._sinks[context.output]
        try:
            if files is None:
                return sink.write(unpack(emitted, kind, schema), context)
            return sink.commit(emitted.sparkSession, schema, files, context)
        except Exception as error:
            msg = f"batch {context.batch_id}: {context.output} to {sink.describe()}: {explain(error)}"
            raise QueryFailedError(msg) from error

    def _execute(
        self, emitted: DataFrame, targets: Mapping[int, FileTarget], durations: dict[str, float]
    ) -> tuple[list[dict[str, Any]], dict[int, list[WrittenFile]]]:
        """Run the calls, once: the action that collects what they say of themselves also fills what the sinks read."""
        started = time.perf_counter()
        may_count = self._may_count and self._row_sizes.are_small
        with counted_by_rows(emitted.sparkSession) if may_count else contextlib.nullcontext():
            rows = emitted.where(F.col("kind").isin(STATISTICS, *targets)).collect()
        statistics: list[dict[str, Any]] = [json.loads(row.payload) for row in rows if row.kind == STATISTICS]
        self._row_sizes.observe(statistics)
        files: dict[int, list[WrittenFile]] = {kind: [] for kind in targets}
        for row in rows:
            if row.kind in files:
                files[row.kind].append(WrittenFile.read(row.payload))
        durations["execute"] = _since(started)
        durations["calls"] = round(sum(each["call_ms"] for each in statistics), 1)
        return statistics, files

    def _report(self, batch_id: int, statistics: list[dict[str, Any]]) -> BatchReport:
        left, right = self._plan.inputs
        if not statistics:
            # No row came at all, as from an empty file, so no key group was called and nothing has changed.
            last = self._last or BatchReport.before_the_first((left.name, right.name))
            return replace(last, batch_id=batch_id, emitted=dict.fromkeys(self._plan.outputs, 0))
        return BatchReport.merge(batch_id, (left.name, right.name), statistics)


def _check_count(files: list[WrittenFile] | None, emitted: int, context: WriteContext) -> None:
    """See that the workers' files hold what the calls gave out: nothing is lost in silence."""
    if files is not None and sum(file.rows for file in files) != emitted:
        written = f"{len(files)} files with {sum(file.rows for file in files):,} rows"
        msg = (
            f"batch {context.batch_id}: {context.output}: expected files with {emitted:,} rows, the workers wrote "
            f"{written}; nothing was committed, start the query again"
        )
        raise QueryFailedError(msg)


def _is_the_same(report: BatchReport, last: BatchReport | None) -> bool:
    """Tell whether nothing but time has passed since the last batch."""
    if last is None:
        return False
    clockless = replace(last, batch_id=report.batch_id, processing_time=report.processing_time, emitted=report.emitted)
    sizes: dict[str, Any] = {
        name: getattr(report, name) for name in ("state_bytes", "state_bytes_by_key_group", "segment_bytes_written")
    }
    return replace(clockless, **sizes) == report


def _since(started: float) -> float:
    return round(1000 * (time.perf_counter() - started), 1)
