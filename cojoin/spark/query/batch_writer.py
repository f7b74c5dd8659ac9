"""What the driver does with each micro-batch: execute it once, write its outputs, and make it count.

One action executes the calls: the workers write the outputs whose sinks let them into files that count for nothing yet,
the others stay packed and persisted, and their sinks read what that action kept. Output, rejected rows and side outputs
become visible each by a transaction of its own, only where there are any; the manifest comes last. A batch that is run
again is executed again, since Spark's state needs it, and each output that has it already must have it from the same
execution (``batch_marker``). One that only the clock asked for, and that changed nothing, leaves no trace. Where the
calls say that a snapshot is due, its rows are written before the manifest. A run whose checkpoint another run has taken
over stops before each write.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.control import source_offsets
from cojoin.checkpoints.manifest import Manifest
from cojoin.checkpoints.segment_files import SegmentCleaner
from cojoin.checkpoints.snapshot_row import STATE_SCHEMA
from cojoin.checkpoints.snapshots import SnapshotKind, Snapshots
from cojoin.checkpoints.state_table import STATE_LOCK, StateTable
from cojoin.engine.batch_report import BatchReport
from cojoin.engine.operator import OUTPUT
from cojoin.engine.values.row_digest import add_digests
from cojoin.errors import QueryFailedError
from cojoin.spark.batch.arrow_limits import RowSizes, counted_by_rows
from cojoin.spark.batch.call import SNAPSHOT, STATISTICS, Plan
from cojoin.spark.batch.unpacking import unpack
from cojoin.spark.query.failures import explain
from cojoin.spark.restore.source_logs import LogDigests
from cojoin.spark.sinks.batch_marker import BatchMarker, offsets_digest
from cojoin.spark.sinks.written_files import write_files
from cojoin.storage.delta_files import WrittenFile, keep_checksums_small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.lease import Lease
    from cojoin.checkpoints.manifest import Manifests
    from cojoin.checkpoints.progress_table import ProgressTable
    from cojoin.spark.sinks.sink import Sink, SinkWriter
    from cojoin.spark.sinks.written_files import FileTarget
    from cojoin.storage.small_files import CheckpointFiles

__all__ = ["BatchWriter"]

_LOG = logging.getLogger(__name__)


class BatchWriter:
    """Takes each micro-batch of one query.

    Args:
        plan: What the workers were told.
        query_id: The query's own id.
        sinks: Where each of the plan's outputs goes.
        writers: What writes there.
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
        writers: Mapping[str, SinkWriter],
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
        self._sinks, self._writers, self._settings = sinks, writers, _settings(plan)
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
        self._is_first, self._log_digests = True, LogDigests(files)
        self._row_sizes, self._may_count = RowSizes(), may_count

    def __call__(self, emitted: DataFrame, batch_id: int) -> None:
        """Write a micro-batch; Spark commits it afterwards."""
        durations: dict[str, float] = {}
        self._lease.check()
        # Each time: a drain's last batch has a session of its own.
        keep_checksums_small(emitted.sparkSession)
        targets = self._targets(batch_id)
        if targets:
            emitted = write_files(emitted, targets)
        emitted.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            statistics, files = self._execute(emitted, targets, durations)
            report = self._report(batch_id, statistics)
            if self._preparing is not None:
                self._preparing.join()
            planned = source_offsets(self._files, batch_id)
            written = self._write_outputs(emitted, report, self._markers(report, statistics, planned), files, durations)
            offsets = self._offsets_after(batch_id, planned)
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
                self._lease.check()
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
            self.prepare()
        outlived = self._cleaner.take(manifest)
        if saved or outlived:
            self._clean(emitted.sparkSession, outlived)

    def _offsets_after(self, batch_id: int, planned: Sequence[str]) -> list[str]:
        if batch_id or self._begins_at is None:
            return list(planned)
        return [*self._begins_at, planned[-1]]

    def _markers(
        self, report: BatchReport, statistics: Sequence[Mapping[str, Any]], planned: Sequence[str]
    ) -> dict[str, BatchMarker]:
        """Return what makes each output's part of a batch the same when it is run again."""
        offsets = offsets_digest([*planned, *self._log_digests.of(planned)])
        return {
            output: BatchMarker(
                report.batch_id,
                report.emitted.get(output, 0),
                add_digests(*(each["digests"].get(output, 0) for each in statistics)),
                offsets,
                self._settings,
            )
            for output in self._plan.outputs
        }

    def _snapshot(self, emitted: DataFrame, manifest: Manifest) -> None:
        is_first = self._begins_at is not None and manifest.batch_id == 0
        rows = unpack(emitted, SNAPSHOT, STATE_SCHEMA)
        table = StateTable(emitted.sparkSession, self._files)
        kind: SnapshotKind = "restored" if is_first else "checkpoint"
        table.write(rows, manifest, kind, self._plan.key_groups, remembered=True, check=self._lease.check)

    def _clean(self, session: SparkSession, outlived: Sequence[str]) -> None:
        """Remove the snapshots that are too many, and segments, in a thread of its own."""
        if self._cleaning is not None:
            self._cleaning.join()
        self._cleaning = threading.Thread(target=self._remove_obsolete, args=(session, outlived), daemon=True)
        self._cleaning.start()

    def _remove_obsolete(self, session: SparkSession, outlived: Sequence[str]) -> None:
        try:
            with STATE_LOCK:
                self._cleaner.remove(outlived)
                obsolete = Snapshots(self._files).obsolete(self._retention)
                if obsolete:
                    StateTable(session, self._files).clean(obsolete)
        except Exception as error:  # noqa: BLE001 - what is not removed now is removed after the next snapshot
            _LOG.warning("checkpoint %s: old snapshots could not be removed: %s", self._files.root, explain(error))

    def finish(self) -> None:
        """Wait for what goes on beside the batches."""
        if self._cleaning is not None:
            self._cleaning.join()

    def prepare(self) -> None:
        """Let the main output's writer prepare for the next batch, in a thread of its own."""
        self._preparing = threading.Thread(target=self._prepare, daemon=True)
        self._preparing.start()

    def _prepare(self) -> None:
        # Nothing depends on it: what is wrong with a table, a write to it will say.
        with contextlib.suppress(Exception):
            self._progress.prepare()
        with contextlib.suppress(Exception):
            self._writers[OUTPUT].prepare()

    def _targets(self, batch_id: int) -> dict[int, FileTarget]:
        """Return where the workers write an output themselves, by the output's kind."""
        targets = {}
        for output, (kind, schema) in self._plan.outputs.items():
            target = self._writers[output].target(schema, batch_id)
            if target is not None:
                targets[kind] = target
        return targets

    def _write_outputs(
        self,
        emitted: DataFrame,
        report: BatchReport,
        markers: Mapping[str, BatchMarker],
        files: Mapping[int, list[WrittenFile]],
        durations: dict[str, float],
    ) -> dict[str, Any]:
        """Write, or make count, the outputs that have rows; return what the manifest says of each."""
        # All of them before any is written: none shall hold a batch in a form that another one refuses.
        for output in self._plan.outputs:
            with self._named(output, report.batch_id):
                self._writers[output].compare(markers[output])
        written = {}
        for output, (kind, schema) in self._plan.outputs.items():
            marker, started = markers[output], time.perf_counter()
            if marker.rows:
                # What came before may have taken long: whoever was taken over meanwhile writes nothing more.
                self._lease.check()
            _check_count(files.get(kind), marker, output)
            place = self._write(emitted, output, kind, schema, files.get(kind), marker)
            if place is not None:
                written[output] = {**place, "batch_id": report.batch_id}
                durations[output] = _since(started)
        return written

    def _write(
        self,
        emitted: DataFrame,
        output: str,
        kind: int,
        schema: pa.Schema,
        files: list[WrittenFile] | None,
        marker: BatchMarker,
    ) -> dict[str, Any] | None:
        writer = self._writers[output]
        with self._named(output, marker.batch_id):
            if not marker.rows:
                writer.write_nothing(marker)
                return None
            if files is None:
                return writer.write(unpack(emitted, kind, schema), marker)
            return writer.commit(schema, files, marker)

    @contextlib.contextmanager
    def _named(self, output: str, batch_id: int) -> Iterator[None]:
        """Have what goes wrong with an output name it and the batch."""
        try:
            yield
        except Exception as error:
            msg = f"batch {batch_id}: {output} to {self._sinks[output].describe()}: {explain(error)}"
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


def _check_count(files: list[WrittenFile] | None, marker: BatchMarker, output: str) -> None:
    """See that the workers' files hold what the calls gave out: nothing is lost in silence."""
    if files is not None and sum(file.rows for file in files) != marker.rows:
        written = f"{len(files)} files with {sum(file.rows for file in files):,} rows"
        msg = (
            f"batch {marker.batch_id}: {output}: expected files with {marker.rows:,} rows, the workers wrote "
            f"{written}; nothing was committed, start the query again"
        )
        raise QueryFailedError(msg)


def _settings(plan: Plan) -> dict[str, str]:
    """Return the settings that decide which rows come out when, for the message of a batch that differs."""
    found = {"what idle inputs do to time": str(plan.time)}
    for spec in plan.inputs:
        # What an object of the user's has no text for is named by where it lies in memory.
        found[f"the watermark of {spec.name!r}"] = re.sub(r" at 0x[0-9a-f]+", "", str(spec.watermark))
        found[f"late= of {spec.name!r}"] = str(spec.late)
        found[f"max_ahead= of {spec.name!r}"] = "None" if spec.max_ahead_ms is None else f"{spec.max_ahead_ms} ms"
    return found


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
