"""The steps of a micro-batch on the driver, without Spark: the order of the writes, and the checks before each.

The calls are executed once (``Batch``). Then each output with rows is written in a separate transaction: the output,
the rejected rows, the side outputs. No transaction spans two outputs. The manifest comes last, and commits the batch.
If a snapshot is due, its rows are written before the manifest.

A replayed batch is executed again, because Spark's state must be updated. An output that already has the batch must
have it with the same fingerprint (``batch_marker``; cf. Delta's ``txnAppId`` and ``txnVersion``). A no-data batch that
changed nothing gets no manifest. The lease is checked before each write to an output, the snapshots or the manifests,
and before each removal that belongs to a batch, so a fenced-off run stops.

Snapshots and segment files that are no longer needed are removed in a thread of ``Cleaning``. If that fails, the error
is only logged, and the removal is tried again after the next snapshot.

``batch_writer`` has the batches of Spark. The tests run these same steps on a simulated store and clock
(``tests/simulation``).
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints.manifest import Manifest
from cojoin.checkpoints.segment_files import SegmentCleaner
from cojoin.checkpoints.snapshot_row import STATE_SCHEMA
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.checkpoints.state_commits import Claim, StateCommits
from cojoin.checkpoints.state_table import STATE_LOCK, StateCleaner, StateTable
from cojoin.engine.batch_report import BatchReport, merge_reports
from cojoin.engine.operator import OUTPUT
from cojoin.engine.values.hashes import add_digests
from cojoin.engine.values.rows import free_name
from cojoin.errors import QueryFailedError
from cojoin.session.spark_checkpoint import LogDigests, source_offsets
from cojoin.session.spark_errors import explain
from cojoin.spark.batch.call import SNAPSHOT
from cojoin.spark.sinks.batch_marker import BatchMarker, offsets_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.claimed_checkpoint import ClaimedCheckpoint
    from cojoin.checkpoints.snapshots import SnapshotKind
    from cojoin.engine.plan import Plan
    from cojoin.spark.batch.written_files import FileTarget
    from cojoin.spark.sinks.sink import Sink, SinkWriter
    from cojoin.storage.parquet_files import WrittenFile

_LOG = logging.getLogger(__name__)

_CLEANED_EVERY = 100
"""Without snapshots or segments to remove, the cleaning runs after the first batch, and then once in so many."""


class Cleaning:
    """Removes snapshots and segments that are no longer needed; ``retained`` snapshots and all savepoints stay."""

    def __init__(self, checkpoint: ClaimedCheckpoint, retained: int) -> None:
        self._files, self._lease, self._retained = checkpoint.files, checkpoint.lease, retained
        self._segments = SegmentCleaner(checkpoint.files, checkpoint.manifests)
        self._thread: threading.Thread | None = None
        self._newest: int | None = None
        self._until_looked = 0

    def after(
        self, manifest: Manifest, session: SparkSession, *, has_snapshot: bool, unnamed: Collection[str] = ()
    ) -> None:
        """Start to remove files that are no longer needed after a batch whose manifest is written.

        ``unnamed`` are files that the batch has written, and that its manifest does not name.
        """
        segments = self._segments.take(manifest, unnamed)
        if segments or has_snapshot or not self._until_looked:
            self._until_looked = _CLEANED_EVERY
            self.finish()
            self._newest = manifest.batch_id if has_snapshot else self._newest
            self._thread = threading.Thread(target=self._remove, args=(session, segments), daemon=True)
            self._thread.start()
        self._until_looked -= 1

    def finish(self) -> None:
        """Wait for the removal that is running, if any."""
        if self._thread is not None:
            self._thread.join()

    def _remove(self, session: SparkSession, segments: Sequence[str]) -> None:
        try:
            with STATE_LOCK:
                # A run that was taken over would remove what its successor writes.
                self._lease.check()
                snapshots = Snapshots(self._files)
                try:
                    obsolete = snapshots.obsolete(self._retained)
                    # A crash may have left removals unfinished.
                    if obsolete or snapshots.removed():
                        known = self._known(snapshots)
                        cleaner = StateCleaner(session, self._files)
                        cleaner.clean(obsolete, savepoints_too=False, known=known, check=self._lease.check)
                finally:
                    self._lease.check()
                    self._segments.remove(segments, lambda: snapshots.segments(self._newest))
        except Exception as error:  # noqa: BLE001 - the next cleaning tries again
            _LOG.warning("checkpoint %s: old snapshots could not be removed: %s", self._files.root, explain(error))

    def _known(self, snapshots: Snapshots) -> int | None:
        """Return the newest snapshot that must be in every listing from now on; None where none is known."""
        listed = max(snapshots.batch_ids(), default=None)
        if self._newest is None or (listed is not None and listed > self._newest):
            return listed
        # A snapshot that lacked a key group's row has no index.
        return self._newest if snapshots.read(self._newest) is not None else listed


@dataclass(frozen=True)
class OpenOutput:
    """An output of a query: its sink, and the writer that the sink has opened."""

    sink: Sink
    writer: SinkWriter


class Batch(ABC):
    """A micro-batch, whose calls are executed once, in its own session."""

    batch_id: int
    session: SparkSession

    @abstractmethod
    def execute(self, targets: Mapping[int, FileTarget]) -> tuple[list[dict[str, Any]], dict[int, list[WrittenFile]]]:
        """Execute the calls; return their statistics, and the files that the workers wrote to the targets, by kind."""

    @abstractmethod
    def rows(self, kind: int, schema: pa.Schema) -> DataFrame:
        """Return the rows of one output, or of the snapshot, once the calls are executed."""

    @abstractmethod
    def release(self) -> None:
        """Release persisted rows; also called where ``execute`` has failed."""


class BatchProtocol:
    """The steps of each micro-batch of one query.

    Args:
        plan: What the workers execute.
        checkpoint: The query's checkpoint.
        outputs: The outputs of the plan, by name.
        on_batch: Called with each batch's manifest once the batch is committed.
        retained: How many snapshots are kept, not counting savepoints.
    """

    def __init__(
        self,
        plan: Plan,
        checkpoint: ClaimedCheckpoint,
        outputs: Mapping[str, OpenOutput],
        on_batch: Callable[[Manifest], None],
        retained: int,
    ) -> None:
        self._plan, self._checkpoint, self._outputs, self._on_batch = plan, checkpoint, outputs, on_batch
        self._files, self._lease, last = checkpoint.files, checkpoint.lease, checkpoint.last
        self._settings = _settings(plan)
        self.last_report = checkpoint.last_report
        self._preparing: threading.Thread | None = None
        self._offsets = [] if last is None else list(last.offsets)
        # Outputs without rows so far are included, so that no other query can write to the same place.
        declared = {name: {**each.sink.place(), "batch_id": None} for name, each in outputs.items()}
        self._written: dict[str, Any] = declared | ({} if last is None else dict(last.outputs))
        self._cleaning = Cleaning(checkpoint, retained)
        self._segments = () if last is None else tuple(last.segments)
        self._state_commits: StateCommits | None = None
        self._last_manifest = last
        self._is_first, self._log_digests = True, LogDigests(checkpoint.files)
        # Each batch's report has its own large key; the first one of a run is logged.
        self._has_logged_key = False

    def run(self, batch: Batch) -> None:
        """Execute and write a micro-batch; Spark commits it afterwards."""
        batch_id = batch.batch_id
        durations: dict[str, float] = {}
        self._lease.check()
        targets = self._targets(batch_id)
        try:
            started = time.perf_counter()
            statistics, files = batch.execute(targets)
            durations["execute"] = _since(started)
            durations["calls"] = round(sum(each["call_ms"] for each in statistics), 1)
            report = self._report(batch, statistics)
            if self._preparing is not None:
                self._preparing.join()
            planned = self._planned(batch_id)
            written = self._write_outputs(batch, report, self._markers(report, statistics, planned), files, durations)
            upserts = {name: counts for name in written if (counts := self._outputs[name].writer.upserts) is not None}
            report = replace(report, upserts=upserts)
            offsets = self._offsets_after(batch_id, planned)
            snapshot_batch_ids = {each["content_batch_id"] for each in statistics} - {None}
            segments = tuple(sorted({name for each in statistics for name in each["segments"]}))
            segments = segments if statistics else self._segments
            is_same = (offsets, segments) == (self._offsets, self._segments) and _is_unchanged(report, self.last_report)
            # Nothing has changed, so no manifest is needed, and a snapshot would equal the last one.
            if not written and batch_id not in snapshot_batch_ids and is_same:
                return
            self._written.update(written)
            outputs = dict(self._written)
            manifest = Manifest(
                self._checkpoint.query_id,
                report,
                offsets,
                outputs,
                durations,
                self._lease.epoch,
                segments,
                self._checkpoint.described,
                batch_id if statistics else self.called_before(batch_id),
                None if (before := self._before(batch_id)) is None else (before.batch_id, before.epoch),
                self._log_digests.sums(planned),
            )
            if snapshot_batch_ids:
                started = time.perf_counter()
                self._lease.check()
                self._snapshot(batch, manifest)
                durations["snapshot"] = _since(started)
            elif self._is_first:
                # An earlier attempt at this batch may have written a snapshot to which the state does not refer.
                Snapshots(self._files).remove(batch_id, self._lease.check, savepoints_too=False)
        finally:
            batch.release()
        self._lease.check()
        self._checkpoint.manifests.write(manifest)
        self._lease.note_counted(batch_id)
        self._is_first = False
        self._offsets, self._segments = offsets, segments
        self._checkpoint.progress.add(manifest)
        self.last_report, self._last_manifest = report, manifest
        self._on_batch(manifest)
        if not targets:
            # Now Spark commits and plans, and the cores are idle.
            self.prepare()
        unnamed = {name for each in statistics for name in each.get("unnamed", ())}
        self._cleaning.after(manifest, batch.session, has_snapshot=bool(snapshot_batch_ids), unnamed=unnamed)

    def state_before(self, batch_id: int) -> dict[str, Any]:
        """Return the facts of the state that a batch begins with, for its calls (``STATE_PROPERTY``)."""
        return {"called": self.called_before(batch_id), "query_id": self._checkpoint.query_id}

    def called_before(self, batch_id: int) -> int | None:
        """Return the last batch before ``batch_id`` in which the key groups were called; None where it is not known."""
        before = self._before(batch_id)
        return None if before is None else before.called

    def _before(self, batch_id: int) -> Manifest | None:
        """Return the manifest before a batch; None where there is none."""
        last = self._last_manifest
        if last is None or last.batch_id < batch_id:
            return last
        # A batch that has a manifest already is run again, and begins with the state before it.
        return self._checkpoint.manifests.at_or_before(batch_id - 1)

    def _offsets_after(self, batch_id: int, planned: Sequence[str]) -> list[str]:
        """Return the source offsets for the manifest; a restored query's first batch has those of the old query."""
        begins_at = self._checkpoint.begins_at
        return list(planned) if batch_id or begins_at is None else [*begins_at, planned[-1]]

    def _markers(
        self, report: BatchReport, statistics: Sequence[Mapping[str, Any]], planned: Sequence[str]
    ) -> dict[str, BatchMarker]:
        """Return the marker of each output, which is the same when the batch is run again with the same result."""
        offsets = offsets_digest([*planned, *self._log_digests.of(planned)])
        return {
            output: BatchMarker(
                report.batch_id,
                report.emitted.get(output, 0),
                add_digests(*(each["digests"].get(output, 0) for each in statistics)),
                offsets,
                self._settings,
                self._outputs[output].writer.upsert_rule,
            )
            for output in self._plan.outputs
        }

    def _snapshot(self, batch: Batch, manifest: Manifest) -> None:
        is_first = self._checkpoint.begins_at is not None and manifest.batch_id == 0
        rows = batch.rows(SNAPSHOT, STATE_SCHEMA)
        table = StateTable(batch.session, self._files, commits=self._commits_of(batch))
        kind: SnapshotKind = "restored" if is_first else "checkpoint"
        claim = Claim.of_run(manifest.epoch, manifest.batch_id)
        check = self._lease.check
        table.write(rows, manifest, kind, self._plan.key_groups, remembered=True, check=check, claim=claim)

    def _commits_of(self, batch: Batch) -> StateCommits:
        if self._state_commits is None:
            self._state_commits = StateCommits(batch.session, self._files)
        return self._state_commits

    def finish(self) -> None:
        """Wait for the cleaning."""
        self._cleaning.finish()

    def prepare(self) -> None:
        """Prepare the main output for the next batch in a thread, and with a Delta table the progress table, too."""
        self._preparing = threading.Thread(target=self._prepare, daemon=True)
        self._preparing.start()

    def _prepare(self) -> None:
        # If a table is broken, the next write to it raises.
        with contextlib.suppress(Exception):
            if "delta" in self._outputs[OUTPUT].sink.place():
                # With other sinks, loading Delta now would slow the first batch by a second; it is loaded at the end.
                self._checkpoint.progress.prepare()
        with contextlib.suppress(Exception):
            self._outputs[OUTPUT].writer.prepare()

    def _targets(self, batch_id: int) -> dict[int, FileTarget]:
        """Return the targets of the outputs that the workers write themselves, by the output's kind."""
        targets = {}
        for output, (kind, schema) in self._plan.outputs.items():
            target = self._outputs[output].writer.target(schema, batch_id)
            if target is not None:
                targets[kind] = target
        return targets

    def _write_outputs(
        self,
        batch: Batch,
        report: BatchReport,
        markers: Mapping[str, BatchMarker],
        files: Mapping[int, list[WrittenFile]],
        durations: dict[str, float],
    ) -> dict[str, Any]:
        """Write or commit the outputs that have rows, and return the manifest's entry for each."""
        # All are compared before any is written, so that if one refuses the batch, none gets it.
        for output in self._plan.outputs:
            with self._errors_named(output, report.batch_id):
                self._outputs[output].writer.compare(markers[output])
        written = {}
        for output, (kind, schema) in self._plan.outputs.items():
            marker, started = markers[output], time.perf_counter()
            if marker.rows:
                # The outputs before may have taken long, and another run may have taken over meanwhile.
                self._lease.check()
            _check_count(files.get(kind), marker, output)
            place = self._write(batch, output, kind, schema, files.get(kind), marker)
            if place is not None:
                written[output] = {**place, "batch_id": report.batch_id}
                # A side output may have the name of this part of a batch.
                durations[free_name(output, ["snapshot"])] = _since(started)
        return written

    def _write(
        self,
        batch: Batch,
        output: str,
        kind: int,
        schema: pa.Schema,
        files: list[WrittenFile] | None,
        marker: BatchMarker,
    ) -> dict[str, Any] | None:
        writer = self._outputs[output].writer
        with self._errors_named(output, marker.batch_id):
            if not marker.rows:
                writer.write_nothing(marker, self._lease.check)
                return None
            if files is None:
                return writer.write(batch.rows(kind, schema), marker)
            return writer.commit(schema, files, marker)

    @contextlib.contextmanager
    def _errors_named(self, output: str, batch_id: int) -> Iterator[None]:
        """Raise errors of an output with the names of the output and the batch."""
        try:
            yield
        except Exception as error:
            msg = f"batch {batch_id}: {output} to {self._outputs[output].sink.describe()}: {explain(error)}"
            raise QueryFailedError(msg) from error

    def _planned(self, batch_id: int) -> list[str]:
        """Return the sources' end offsets of a batch; without them, a restart would plan other ends for the batch."""
        planned = source_offsets(self._files, batch_id)
        if not planned:
            msg = (
                f"{self._files.named}: spark/offsets/{batch_id} is missing, and Spark runs this batch: the file was "
                f"deleted, or not written, which Spark's AbortableStreamBasedCheckpointFileManager only logs; start "
                f"the query again, with Spark's usual spark.sql.streaming.checkpointFileManagerClass"
            )
            raise QueryFailedError(msg)
        return planned

    def _report(self, batch: Batch, statistics: list[dict[str, Any]]) -> BatchReport:
        batch_id, (left, right) = batch.batch_id, self._plan.inputs
        if not statistics:
            # Without any row, as from an empty file, no key group is called and nothing changes.
            last = self.last_report or BatchReport.before_the_first((left.name, right.name))
            emitted = dict.fromkeys(self._plan.outputs, 0)
            return replace(last, batch_id=batch_id, emitted=emitted, upserts={}, large_key=None)
        why = {name: each.writer.why_spark for name, each in self._outputs.items()}
        why["checkpoint/state"] = self._commits_of(batch).why_spark
        why["checkpoint/progress"] = self._checkpoint.progress.why_spark
        by_spark = {name: reason for name, reason in why.items() if reason is not None}
        merged = merge_reports(batch_id, (left.name, right.name), statistics)
        if merged.large_key is not None and not self._has_logged_key:
            _LOG.warning("%s: batch %d: %s", self._files.named, batch_id, *merged.oversized())
            self._has_logged_key = True
        return replace(merged, written_by_spark=by_spark)


def _check_count(files: list[WrittenFile] | None, marker: BatchMarker, output: str) -> None:
    """Check that the workers' files hold as many rows as the calls emitted."""
    rows = sum(file.rows for file in files or ())
    if files is not None and rows != marker.rows:
        msg = (
            f"batch {marker.batch_id}: {output}: expected files with {marker.rows:,} rows, the workers wrote "
            f"{len(files)} files with {rows:,} rows; nothing was committed, start the query again"
        )
        raise QueryFailedError(msg)


def _settings(plan: Plan) -> dict[str, str]:
    """Return the settings that determine which rows are emitted when, for the error about a batch that differs."""
    settings = {"what idle inputs do to time": str(plan.time)}
    for spec in plan.inputs:
        # The default text of an object has its address in memory, which differs from run to run.
        settings[f"the watermark of {spec.name!r}"] = re.sub(r" at 0x[0-9a-f]+", "", str(spec.watermark))
        settings[f"late= of {spec.name!r}"] = str(spec.late)
        settings[f"max_ahead= of {spec.name!r}"] = "None" if spec.max_ahead_ms is None else f"{spec.max_ahead_ms} ms"
        if spec.null_key != "reject":
            settings[f"null_key= of {spec.name!r}"] = spec.null_key
    return settings


def _is_unchanged(report: BatchReport, last: BatchReport | None) -> bool:
    """Return whether a report equals the last one but for batch id, processing time, emitted rows and state sizes."""
    if last is None:
        return False
    own = ("batch_id", "processing_time", "emitted", "upserts")
    sizes = ("state_bytes", "state_bytes_by_key_group", "segment_bytes_written", "large_key")
    not_compared: dict[str, Any] = {name: getattr(report, name) for name in (*own, *sizes)}
    return replace(last, **not_compared) == report


def _since(started: float) -> float:
    return round(1000 * (time.perf_counter() - started), 1)
