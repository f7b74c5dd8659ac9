"""The ``progress`` table: one row for each batch with content, for users to query.

Rows are added in groups, so that the table has few files. Until then they are in the manifests, so a crash loses none:
the next run adds those that are missing, and both together are the progress. Times are timestamps. A watermark is null
before the first one, and after the end of all inputs.

The table is read and written without the JVM on local disks and object stores (``cojoin/delta``). Spark does it where
only Hadoop reaches the store, where that writer can't give a session's default properties for new tables, and where the
table has been given a feature that the writer does not support.
"""

from __future__ import annotations

import io
import json
import threading
import time
import uuid
from datetime import datetime, timezone
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.output_tables import TableTransactions
from cojoin.delta.deltalake_table import check_deltalake, place_of
from cojoin.delta.table_batches import NO_BATCH
from cojoin.delta.table_log import TableRows
from cojoin.engine.time.watermarks import END_OF_TIME, NONE
from cojoin.engine.values.encoding import encode_rows
from cojoin.engine.values.types import parse_schema
from cojoin.storage.parquet_files import WrittenFile, file_statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from cojoin.checkpoints.manifest import Manifest
    from cojoin.storage.store import Store

PROGRESS_DDL = """
    batch_id bigint, query_id string, processing_time timestamp, watermark timestamp, holding_input string, drained
    boolean, inputs array<struct<name: string, rows_in: bigint, done: bigint, buffered: bigint, rejected: map<string,
    bigint>,
        late_applied: bigint, watermark: timestamp, max_timestamp: timestamp, lag_ms: bigint, status: string,
        holding_partition: string, partitions: map<string, timestamp>, idle_partitions: array<string>>>,
    rows_out bigint, emitted map<string, bigint>, state_bytes bigint,
    state_bytes_by_key_group map<string, bigint>, output_delay_ms bigint, details map<string, bigint>,
    durations_ms map<string, double>, offsets array<string>, outputs string
"""

PROGRESS_SCHEMA = parse_schema(PROGRESS_DDL, label="progress")
"""The table's columns."""
_FOLDER = "progress"
_GROUP_BATCHES, _GROUP_SECONDS = 20, 60.0
_KEPT_MANIFESTS, _TRIES = 100, 5


def has_progress_table(files: Store) -> bool:
    """Return whether a checkpoint's progress table has its first commit."""
    return any(name.endswith(".json") for name in files.names("progress/_delta_log"))


def read_progress_rows(files: Store) -> pa.Table | None:
    """Return the progress of a checkpoint's query, one row for each batch, the newest last; None if only Spark can.

    Raises ``UnreadableLogError`` where the table is damaged, and ``CheckpointError`` where a manifest is, or the store
    can't be reached.
    """
    # The table is opened before the manifests are listed, so a batch that is moved meanwhile is read from these.
    table = TableRows(files, "progress")
    if table.why_not is not None:
        return None
    rows = table.read(PROGRESS_SCHEMA)
    written, manifests = pc.max(rows["batch_id"]).as_py(), Manifests(files)
    waiting = manifests.read_all(each for each in manifests.batch_ids() if written is None or each > written)
    more = encode_rows([progress_row(each) for each in waiting], PROGRESS_SCHEMA, "progress")
    return pa.concat_tables([rows, more]).sort_by("batch_id")


def progress_row(manifest: Manifest) -> dict[str, Any]:
    """Return a batch's row."""
    report = manifest.report
    inputs = [
        {
            "name": progress.name,
            "rows_in": progress.rows_in,
            "done": progress.done,
            "buffered": progress.buffered,
            "rejected": dict(progress.rejected),
            "late_applied": progress.late_applied,
            "watermark": _timestamp(progress.watermark),
            "max_timestamp": _timestamp(progress.max_timestamp),
            "lag_ms": progress.lag,
            "status": progress.status,
            "holding_partition": progress.holding_partition,
            "partitions": {name: _timestamp(watermark) for name, watermark in progress.partitions.items()},
            "idle_partitions": list(progress.idle_partitions),
        }
        for progress in report.inputs
    ]
    return {
        "batch_id": report.batch_id,
        "query_id": manifest.query_id,
        "processing_time": _timestamp(report.processing_time) if report.processing_time else None,
        "watermark": _timestamp(report.watermark),
        "holding_input": report.holding_input,
        "drained": report.drained,
        "inputs": inputs,
        "rows_out": report.rows_out,
        "emitted": dict(report.emitted),
        "state_bytes": report.state_bytes,
        "state_bytes_by_key_group": dict(report.state_bytes_by_key_group),
        "output_delay_ms": report.output_delay_ms,
        "details": dict(report.details),
        "durations_ms": {name: float(value) for name, value in manifest.durations_ms.items()},
        "offsets": list(manifest.offsets),
        "outputs": json.dumps(manifest.outputs),
    }


def _timestamp(millis: int) -> datetime | None:
    """Return a time as a datetime; None where a timestamp can't represent it."""
    if millis in (NONE, END_OF_TIME):
        return None
    try:
        whole = datetime.fromtimestamp(millis // 1000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None
    return whole.replace(microsecond=millis % 1000 * 1000)


class ProgressTable:
    """Writes batches to the progress table, in groups."""

    def __init__(self, spark: SparkSession, files: Store, manifests: Manifests) -> None:
        self._spark = spark
        self._manifests = manifests
        self._files = files
        self._path, self._is_spark_needed = files.path(_FOLDER), place_of(files, _FOLDER) is None
        self._waiting: list[Manifest] = []
        self._written = -1
        self._since = time.monotonic()
        # A drain's last batch runs while those before it are written.
        self._lock = threading.RLock()

    def recover(self) -> None:
        """Read the manifests of the batches that are not yet in the table, to be written with the next group."""
        rows = None if self._is_spark_needed else TableRows(self._files, _FOLDER)
        if rows is not None and rows.why_not is None:
            newest = rows.largest("batch_id")
            self._written = NO_BATCH if newest is None else newest
        elif has_progress_table(self._files):
            row = self._spark.read.format("delta").load(self._path).agg(F.max("batch_id")).first()
            self._written = NO_BATCH if row is None or row[0] is None else int(row[0])
        self._waiting = self._manifests.read_all(each for each in self._manifests.batch_ids() if each > self._written)

    def prepare(self) -> None:
        """Import what the first commit needs, so that no batch waits for it."""
        if not self._is_spark_needed:
            check_deltalake()

    def add(self, manifest: Manifest) -> None:
        """Add a batch to the group, which is written once it has 20 batches or is 60 seconds old."""
        with self._lock:
            self._add(manifest)

    def _add(self, manifest: Manifest) -> None:
        if manifest.batch_id <= self._written:
            # The batch's row was written before a crash made Spark run the batch again.
            return
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting = [waiting for waiting in self._waiting if waiting.batch_id != manifest.batch_id]
        self._waiting.append(manifest)
        if len(self._waiting) >= _GROUP_BATCHES or time.monotonic() - self._since >= _GROUP_SECONDS:
            self.flush()

    def flush_early(self) -> None:
        """Write the batches of the group next to other work, where this takes more than a moment."""
        if self._is_spark_needed:
            self.flush()

    def flush(self) -> None:
        """Write the batches of the group, and delete old manifests that are no longer needed."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        last = self._waiting[-1]
        transactions = TableTransactions(self._spark, self._path, f"cojoin-{last.query_id}-progress", is_shared=True)
        for _ in range(_TRIES):
            # Another driver, which held the lease before or after this one, may have written some of them.
            _, newest = transactions.look()
            waiting = self._following(newest)
            if not waiting or self._append(waiting, newest, transactions):
                break
        self._waiting = []
        self._written = last.batch_id
        self._manifests.clean(last.batch_id - _KEPT_MANIFESTS)

    def _following(self, newest: int) -> list[Manifest]:
        """Return the batches that follow the table's newest one, with those that this run has not seen.

        A former run that was suspended may have finished a batch after this one had looked for its manifest.
        """
        waiting = [each for each in self._waiting if each.batch_id > newest]
        seen = {each.batch_id for each in waiting}
        last = max(seen, default=newest)
        if len(seen) < last - newest:
            # A batch without content has no manifest, so a gap may be one of those as well.
            unseen = (each for each in self._manifests.batch_ids() if newest < each < last and each not in seen)
            waiting = sorted([*waiting, *self._manifests.read_all(unseen)], key=attrgetter("batch_id"))
        return waiting

    def _append(self, waiting: Sequence[Manifest], newest: int, transactions: TableTransactions) -> bool:
        """Write batches that follow the table's newest batch; return whether that was still the newest."""
        rows = encode_rows([progress_row(each) for each in waiting], PROGRESS_SCHEMA, "progress")
        last = waiting[-1]
        if transactions.why_spark(PROGRESS_SCHEMA) is not None:
            # An Arrow table becomes a local relation; Python rows would start a Python worker.
            writer = self._spark.createDataFrame(rows).coalesce(1).write.format("delta").mode("append")
            writer.option("txnAppId", transactions.app_id).option("txnVersion", last.batch_id).save(self._path)
            return True
        versions = [newest]

        def is_done(now: int) -> bool:
            versions.append(now)
            return now > newest

        # For a few rows, a file and a commit take a small part of the time of a Spark job.
        files = [self._write_file(rows)]
        transactions.batches().append(PROGRESS_SCHEMA, files, last.batch_id, query_id=last.query_id, is_done=is_done)
        return versions[-1] == newest

    def _write_file(self, rows: pa.Table) -> WrittenFile:
        made = io.BytesIO()
        pq.write_table(rows, made, store_schema=False)
        name, content = f"part-{uuid.uuid4()}.snappy.parquet", made.getvalue()
        self._files.write_bytes(f"progress/{name}", content)
        statistics = file_statistics(pq.read_metadata(io.BytesIO(content)), rows.schema)
        return WrittenFile(name, rows.num_rows, len(content), int(1000 * time.time()), statistics)
