"""The driver's part of each of Spark's micro-batches: execute it once, write its outputs, and commit it.

One action executes the calls. The workers write the files of those outputs whose sinks allow it; readers do not see
these files yet. The rows of the other outputs, and of a snapshot, stay packed and persisted, and are read from the
cache. If none of these are expected, nothing is persisted, which saves a tenth of a second. The order of the writes is
that of ``batch_protocol``.

If persisted blocks are lost, or a snapshot was not foreseen, later actions execute the calls again. Files of workers
and snapshots are safe from that: the files are those of the first action, and a snapshot's index is made from the rows
that were written. The rows that Spark itself writes to a sink are not compared with the marker, so they rely on calls
that return the same rows again.

Spark Connect's server calls the function of ``foreachBatch`` in a separate Python process. That process executes and
writes the batches (``RemoteWriter``), in a session that it opens at the same server. The process that started the query
keeps the lease alive, and this one checks it: if the former ends, the query continues until another start takes the
lease over. Each phase of a query has a new process, which continues from the newest manifest. The calls receive the
facts of their batch in a setting of the session, since only a driver within the JVM can set Spark's local properties.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.claimed_checkpoint import ClaimedCheckpoint
from cojoin.checkpoints.lease import Lease
from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.progress_table import ProgressTable
from cojoin.checkpoints.snapshot_row import DueSnapshots
from cojoin.errors import ConfigurationError
from cojoin.session.delta_tables import keep_checksums_small
from cojoin.session.sealed import pickling_error
from cojoin.session.sessions import adapter_of, open_store
from cojoin.session.spark_checkpoint import logged_time
from cojoin.session.workers import begun
from cojoin.spark.batch.batch_facts import CLOCK_PROPERTY, FILES_PROPERTY, PLACES_PROPERTY, STATE_PROPERTY, BatchFacts
from cojoin.spark.batch.call import STATISTICS
from cojoin.spark.batch.packing import RowSizes, counted_by_rows, unpack
from cojoin.spark.batch.written_files import write_files
from cojoin.spark.query.batch_protocol import Batch, BatchProtocol
from cojoin.spark.query.input_progress import HistoryHolds
from cojoin.spark.query.outputs import open_outputs, shared_places
from cojoin.spark.query.table_loads import TableLoads
from cojoin.storage.parquet_files import WrittenFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from cojoin.checkpoints.lease import LeaseRecord
    from cojoin.checkpoints.manifest import Manifest
    from cojoin.checkpoints.snapshot_row import SnapshotCadence
    from cojoin.engine.plan import Plan
    from cojoin.session.workers import SharedPlaces
    from cojoin.spark.batch.written_files import FileTarget
    from cojoin.spark.query.batch_protocol import OpenOutput
    from cojoin.spark.query.input_progress import InputStreams
    from cojoin.spark.query.table_loads import StaticSide
    from cojoin.spark.sinks.sink import Sink

_Opened: TypeAlias = "tuple[BatchWriter, HistoryHolds, TableLoads | None, SharedPlaces | None]"


class BatchWriter(BatchProtocol):
    """Executes and writes each of Spark's micro-batches of one query, in the steps of ``BatchProtocol``.

    ``row_limit_only`` means that Arrow batches of small rows may be limited by ``maxRecordsPerBatch`` only. ``cadence``
    is None on a Spark Connect server, where any batch may have a snapshot. ``places`` are the paths that all workers
    must see; None where they are this process's children.
    """

    def __init__(
        self,
        plan: Plan,
        checkpoint: ClaimedCheckpoint,
        outputs: Mapping[str, OpenOutput],
        on_batch: Callable[[Manifest], None],
        retained: int,
        row_limit_only: bool,
        cadence: SnapshotCadence | None = None,
        places: SharedPlaces | None = None,
    ) -> None:
        super().__init__(plan, checkpoint, outputs, on_batch, retained)
        self._row_sizes, self._row_limit_only, self._places = RowSizes(), row_limit_only, places
        is_new = checkpoint.last is None and checkpoint.begins_at is None
        self._due = None if cadence is None else DueSnapshots(cadence, plan.key_groups, is_new=is_new)

    def __call__(self, emitted: DataFrame, batch_id: int) -> None:
        """Write a micro-batch; Spark commits it afterwards."""
        if adapter_of(emitted.sparkSession).has_local_properties:
            context = emitted.sparkSession.sparkContext
            if any(spec.max_ahead_ms is not None for spec in self._plan.inputs):
                context.setLocalProperty(CLOCK_PROPERTY, str(logged_time(self._files, batch_id)))
            context.setLocalProperty(STATE_PROPERTY, json.dumps(self.state_before(batch_id)))
            if self._places is not None:
                context.setLocalProperty(PLACES_PROPERTY, self._places.as_text())
        if self._places is not None:
            self._places.before_batch(emitted.sparkSession)
        of_query = self._row_sizes, self._row_limit_only, self._due, len(self._outputs), self._places
        self.run(_SparkBatch(emitted, batch_id, *of_query))

    def and_then(self, loads: TableLoads | None) -> Callable[[DataFrame, int], None]:
        """Return a function that writes a micro-batch, and then the next load of a static side where it is due."""
        if loads is None:
            return self

        def write(emitted: DataFrame, batch_id: int) -> None:
            self(emitted, batch_id)
            loads.after(emitted.sparkSession, self.last_report)

        return write


class _SparkBatch(Batch):
    """A micro-batch of Spark, as ``foreachBatch`` passes it."""

    def __init__(
        self,
        emitted: DataFrame,
        batch_id: int,
        row_sizes: RowSizes,
        row_limit_only: bool,
        due: DueSnapshots | None,
        outputs: int,
        places: SharedPlaces | None,
    ) -> None:
        self.batch_id, self.session = batch_id, emitted.sparkSession
        self._emitted, self._row_sizes, self._row_limit_only = emitted, row_sizes, row_limit_only
        self._due, self._outputs, self._places, self._is_persisted = due, outputs, places, False

    def execute(self, targets: Mapping[int, FileTarget]) -> tuple[list[dict[str, Any]], dict[int, list[WrittenFile]]]:
        """Execute the calls once: collect their statistics and the files that the workers wrote, and fill the cache."""
        # This is set for each batch, because the last batch of a drain has its own session.
        keep_checksums_small(self.session)
        if targets:
            self._emitted = write_files(self._emitted, targets)
        now = int(1000 * time.time())
        if len(targets) < self._outputs or self._due is None or self._due.may_have(self.batch_id, now):
            self._emitted.persist(StorageLevel.MEMORY_AND_DISK)
            self._is_persisted = True
        row_limit_only = self._row_limit_only and self._row_sizes.are_small
        with (
            counted_by_rows(self.session) if row_limit_only else contextlib.nullcontext(),
            self._passed_folders(targets),
        ):
            rows = self._emitted.where(F.col("kind").isin(STATISTICS, *targets)).collect()
        if self._places is not None:
            # Executors that have come in the meantime answer before anything is committed.
            self._places.ask(self.session)
        statistics: list[dict[str, Any]] = [json.loads(row.payload) for row in rows if row.kind == STATISTICS]
        self._row_sizes.observe(statistics)
        if self._due is not None:
            self._due.observe(statistics)
        files: dict[int, list[WrittenFile]] = {kind: [] for kind in targets}
        for row in rows:
            if row.kind in files:
                files[row.kind].append(WrittenFile.read(row.payload))
        return statistics, files

    @contextlib.contextmanager
    def _passed_folders(self, targets: Mapping[int, FileTarget]) -> Iterator[None]:
        """Pass the folders to which calls may write files to the jobs of the block, and to no others."""
        places = {kind: target.as_dict() for kind, target in targets.items() if target.is_local}
        if not places:
            yield
            return
        context = self.session.sparkContext
        context.setLocalProperty(FILES_PROPERTY, json.dumps(places))
        try:
            yield
        finally:
            context.setLocalProperty(FILES_PROPERTY, "{}")

    def rows(self, kind: int, schema: pa.Schema) -> DataFrame:
        """Return the rows of one output, or of the snapshot."""
        return unpack(self._emitted, kind, schema)

    def release(self) -> None:
        """Release the persisted rows."""
        if self._is_persisted:
            self._emitted.unpersist()


def setting_of(query_id: str) -> str:
    """Return the name of the setting that carries the facts of a query's micro-batch (``BatchFacts``)."""
    # Spark passes settings to the workers whose names begin with "spark.".
    return f"spark.cojoin.batch.{query_id}"


@dataclass
class RemoteWriter:
    """Executes and writes micro-batches; it is sent to the server, and opens the checkpoint on it.

    ``begins_at`` has the source offsets after a restored query's first batch, one JSON line each; ``described`` is the
    epoch of the run that last wrote ``query.json``; ``side`` is the right input, if it is a static side.
    """

    plan: Plan
    sinks: Mapping[str, Sink]
    checkpoint: str
    query_id: str
    lease: LeaseRecord
    streams: InputStreams
    retained: int
    begins_at: tuple[str, ...] | None = None
    described: int = 0
    side: StaticSide | None = None
    _opened: _Opened | None = field(default=None, init=False, repr=False)

    def check(self) -> None:
        """Raise a ConfigurationError if a sink's function can't be pickled."""
        for name, sink in self.sinks.items():
            reason = pickling_error(sink)
            if reason is not None:
                msg = (
                    f"{name}: {sink.describe()} can't be sent to the Spark Connect server, which calls it: {reason}; "
                    f"create objects that can't be pickled inside of the function"
                )
                raise ConfigurationError(msg)

    def __call__(self, emitted: DataFrame, batch_id: int) -> None:
        """Execute and write a micro-batch; Spark commits it afterwards."""
        session: Any = emitted.sparkSession
        if self._opened is None:
            self._opened = self._open(session)
        writer, holds, tables, places = self._opened
        limits, loads = holds.after(session, batch_id)
        tokens = None if places is None else places.as_text()
        facts = BatchFacts(batch_id, limits, writer.state_before(batch_id), loads, places=tokens)
        session.conf.set(setting_of(self.query_id), facts.to_json())
        # The server may end this process after any batch.
        with contextlib.nullcontext() if places is None else begun(places, session, to_the_end=True):
            writer.and_then(tables)(emitted, batch_id)
        writer.finish()

    def _open(self, session: Any) -> _Opened:
        files = open_store(session, self.checkpoint)
        manifests = Manifests(files)
        progress = ProgressTable(session, files, manifests)
        progress.recover()
        lease = Lease(files, self.lease, takes_over=True)
        lease.check()
        last = manifests.last()
        opened = ClaimedCheckpoint(
            files, self.query_id, lease, manifests, progress, last, self.begins_at, self.described
        )
        outputs = open_outputs(session, self.sinks, opened, self.plan)
        # The process that started the query reads the manifests itself.
        writer = BatchWriter(self.plan, opened, outputs, lambda _: None, self.retained, row_limit_only=False)
        tables = None if self.side is None else TableLoads(self.side, files, lease.check)
        places = shared_places(session, files, self.sinks)
        return writer, HistoryHolds(self.streams, files, self.begins_at), tables, places
