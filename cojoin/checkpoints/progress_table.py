"""The ``progress`` table: one row for each batch with content, for users to query.

Rows are added in groups, so that the table has few files. Until then they are in the manifests, so a crash loses none:
the next run adds those that are missing. Times are timestamps. A watermark is null where there is none yet, and after
the end of all inputs.

The table is read and written without the JVM on local disks and object stores (``cojoin/delta``). Spark does it where
only Hadoop reaches the store, where a session's default properties for new tables are others than that writer gives,
and where someone has given the table a feature that it does not know.
"""

from __future__ import annotations

import io
import threading
import time
import uuid
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.progress_rows import PROGRESS_SCHEMA, has_progress_table, progress_row
from cojoin.checkpoints.table_transactions import TableTransactions
from cojoin.delta.delta_errors import check_deltalake
from cojoin.delta.place import place_of
from cojoin.delta.table_batches import NO_BATCH
from cojoin.delta.table_rows import TableRows
from cojoin.engine.values.encoding import encode_rows
from cojoin.storage.file_statistics import file_statistics
from cojoin.storage.written_file import WrittenFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cojoin.checkpoints.manifest import Manifest, Manifests
    from cojoin.storage.store import Store

__all__ = ["ProgressTable"]

_FOLDER = "progress"
_GROUP_BATCHES, _GROUP_SECONDS = 20, 60.0
_KEPT_MANIFESTS, _TRIES = 100, 5


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
        """Load what the first commit needs, which would make a batch wait for it."""
        if not self._is_spark_needed:
            check_deltalake()
            return

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
        """Write the batches of the group beside other work, where this takes more than a moment."""
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

        A former run that stood still may have finished a batch after this one had looked for its manifest.
        """
        waiting = [each for each in self._waiting if each.batch_id > newest]
        seen = {each.batch_id for each in waiting}
        last = max(seen, default=newest)
        if len(seen) < last - newest:
            # A batch without content has no manifest, so a gap may be one of those as well.
            unseen = (each for each in self._manifests.batch_ids() if newest < each < last and each not in seen)
            waiting = sorted([*waiting, *self._manifests.read_all(unseen)], key=lambda each: each.batch_id)
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
        found = [newest]

        def is_done(now: int) -> bool:
            found.append(now)
            return now > newest

        # For a few rows, a file and a commit take a small part of the time of a Spark job.
        files = [self._write_file(rows)]
        transactions.append(PROGRESS_SCHEMA, files, last.batch_id, query_id=last.query_id, is_done=is_done)
        return found[-1] == newest

    def _write_file(self, rows: pa.Table) -> WrittenFile:
        made = io.BytesIO()
        pq.write_table(rows, made, store_schema=False)
        name, content = f"part-{uuid.uuid4()}.snappy.parquet", made.getvalue()
        self._files.write_bytes(f"progress/{name}", content)
        statistics = file_statistics(pq.read_metadata(io.BytesIO(content)), rows.schema)
        return WrittenFile(name, rows.num_rows, len(content), int(1000 * time.time()), statistics)
