"""The ``progress`` table: one row for each batch with content, for users to query.

Rows are added in groups, so that the table has few files. Until then they are in the manifests, so a crash loses none:
the next run adds those that are missing, and both together are the progress.

The table is read and written without the JVM on local disks and object stores (``cojoin/delta``). Spark does it where
only Hadoop reaches the store, where that writer can't give a session's default properties for new tables, and where the
table has been given a feature that the writer does not support.
"""

from __future__ import annotations

import io
import threading
import time
import uuid
from operator import attrgetter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.output_tables import TableTransactions
from cojoin.checkpoints.progress_rows import PROGRESS_SCHEMA, progress_rows
from cojoin.delta.deltalake_table import why_unreachable
from cojoin.delta.table_batches import NO_BATCH
from cojoin.delta.table_log import LOG, TableRows
from cojoin.session.delta_tables import check_sparks_delta
from cojoin.storage.parquet_files import WrittenFile, file_statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.manifest import Manifest
    from cojoin.storage.store import Store

_FOLDER = "progress"
_GROUP_BATCHES, _GROUP_SECONDS = 20, 60.0
_KEPT_MANIFESTS, _TRIES = 100, 5


def newest_batch(table: DataFrame) -> int:
    """Return the newest batch that a progress table has, as Spark reads it; ``NO_BATCH`` without one."""
    row = table.agg(F.max("batch_id")).first()
    return NO_BATCH if row is None or row[0] is None else int(row[0])


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
    newest = pc.max(rows["batch_id"]).as_py()
    waiting = Manifests(files).read_after(NO_BATCH if newest is None else newest)
    return pa.concat_tables([rows, progress_rows(waiting)]).sort_by("batch_id")


class ProgressTable:
    """Writes batches to the progress table, in groups.

    ``why_spark`` is the reason why Spark writes its rows, as of the start or the last group; None where it does not.
    """

    def __init__(self, spark: SparkSession, files: Store, manifests: Manifests) -> None:
        self._spark = spark
        self._manifests = manifests
        self._files = files
        self._path, self.why_spark = files.path(_FOLDER), why_unreachable(files, _FOLDER)
        self._is_spark_needed = self.why_spark is not None
        self._waiting: list[Manifest] = []
        self._written = -1
        self._since = time.monotonic()
        # A drain's last batch runs while those before it are written.
        self._lock = threading.RLock()

    def recover(self) -> None:
        """Read the manifests of the batches that are not yet in the table, to be written with the next group."""
        rows = None if self._is_spark_needed else TableRows(self._files, _FOLDER)
        if rows is not None:
            self.why_spark = rows.why_not_appended
        if rows is not None and rows.why_not is None:
            newest = rows.largest("batch_id")
            self._written = NO_BATCH if newest is None else newest
        elif any(name.endswith(".json") for name in self._files.names(f"{_FOLDER}/{LOG}")):
            self._check_spark(self.why_spark if rows is None else rows.why_not)
            self._written = newest_batch(self._spark.read.format("delta").load(self._path))
        self._waiting = self._manifests.read_after(self._written)

    def prepare(self) -> None:
        """Import what the first commit needs, so that no batch waits for it."""
        if not self._is_spark_needed:
            import deltalake  # noqa: F401, PLC0415 - it takes a third of a second

    def add(self, manifest: Manifest) -> None:
        """Add a batch to the group, which is written once it has 20 batches or is 60 seconds old."""
        with self._lock:
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
            if not self._waiting:
                return
            last, path = self._waiting[-1], self._path
            transactions = TableTransactions(self._spark, path, f"cojoin-{last.query_id}-progress", is_shared=True)
            for _ in range(_TRIES):
                # Another driver, which held the lease before or after this one, may have written some of them.
                _, newest = transactions.look()
                waiting = self._following(newest)
                if not waiting or self._append(waiting, newest, transactions):
                    break
            self._waiting = []
            self._written = last.batch_id
            self._manifests.clean(last.batch_id - _KEPT_MANIFESTS)

    def _check_spark(self, why: str | None) -> None:
        check_sparks_delta(self._spark, why, f"{self._files.named}: its table {_FOLDER!r}")

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
        rows, last = progress_rows(waiting), waiting[-1]
        self.why_spark = transactions.why_spark(PROGRESS_SCHEMA)
        if self.why_spark is not None:
            self._check_spark(self.why_spark)
            # An Arrow table becomes a local relation; Python rows would start a Python worker.
            writer = self._spark.createDataFrame(rows).coalesce(1).write.format("delta")
            writer = writer.option("txnAppId", transactions.app_id).option("txnVersion", last.batch_id)
            table = transactions.table()
            if table is not None and table.properties.get("delta.appendOnly", "").lower() == "true":
                writer.mode("append").save(self._path)
            else:
                # Another driver may write some of the batches between the look and Delta's own; they are replaced.
                ids = ", ".join(str(each.batch_id) for each in waiting)
                writer.mode("overwrite").option("replaceWhere", f"batch_id IN ({ids})").save(self._path)
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
        statistics = file_statistics(pq.read_metadata(pa.BufferReader(content)), rows.schema)
        return WrittenFile(name, rows.num_rows, len(content), int(1000 * time.time()), statistics)
