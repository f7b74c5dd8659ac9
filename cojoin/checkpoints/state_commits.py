"""The commits of the ``state`` table: each adds data files that tasks have written, together with a claim.

*Files.* A row with content gets its own file, in the folder of its batch and key group; the rows of a task without
content share one. The driver gets each row with the name of its file, and commits only files whose names it got. Of the
two files of a task that is run twice, it gets the name of one. A task that fails deletes its files. The uncommitted
files of other tasks, such as killed ones, stay until the batch's snapshot is removed (``StateCleaner``). It finds them
by listing the folder, so their names are final from the start: a listing would leave out hidden files.

*Claims* are Delta's transaction ids, written with the rows. The table's log has the last number of each of two
applications, the query's runs and its savepoints. A run writes a number made of its epoch and batch with every
snapshot, and one of its epoch alone when it takes over. A savepoint writes a greater number than the last, with its
rows. A further number ends all savepoints that have begun, when one counts or a cleaning takes one for interrupted. No
two attempts draw the same number. A commit whose number is less than the last is refused, at the very version on which
it would be made. So a run that was suspended does not overwrite the rows of its successor. A savepoint that was
suspended does not bring back files that a cleaning has deleted, nor replace the rows of a savepoint that counts.

*Commits* are made without the JVM (``cojoin/delta``) on local disks and object stores: the claim is compared on the
very version on which the commit is made, and again after any commit in between. Spark's own writer commits where only
Hadoop reaches the store, where Spark encrypts its files, where the writer without the JVM can't set a session's default
properties for new tables, and where it does not support a feature of the table. Then the claim is compared just before
the commit, and Delta skips a commit whose claim is not greater than the last (``txnAppId``, ``txnVersion``).
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from cojoin.checkpoints.snapshot_row import STATE_SCHEMA
from cojoin.delta.actions import DataFile
from cojoin.delta.deltalake_table import TableRefusedError, why_unreachable
from cojoin.delta.table_checks import why_not_removable
from cojoin.delta.table_log import TableLog
from cojoin.delta.table_writer import Change, NewTable, TableWriter, why_not_creatable
from cojoin.errors import CheckpointError
from cojoin.session.arrow_types import spark_schema
from cojoin.session.delta_tables import check_sparks_delta, default_properties, quoted_table
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import adapter_of, empty_frame
from cojoin.session.spark_errors import SPARK_ERRORS, names_same_transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from cojoin.storage.object_store import ObjectStore
    from cojoin.storage.object_store_settings import Settings
    from cojoin.storage.store import Store

_RUNS, SAVEPOINTS = "cojoin-state-runs", "cojoin-state-savepoints"
_BATCHES = 1 << 32
_DRAWN = 1 << 31
"""A savepoint draws one of this many numbers above the last one."""

STATE_TABLE = "state"
"""The table's folder below the checkpoint."""

PARTITIONS = ("batch_id", "segment")
"""The columns by which the table is partitioned."""

NO_SEGMENT = "__HIVE_DEFAULT_PARTITION__"
_FILE = "file"
_FILE_SCHEMA = pa.schema([field for field in STATE_SCHEMA if field.name not in PARTITIONS])
_WRITTEN = pa.schema(
    [*(field for field in STATE_SCHEMA if field.name not in ("batch_id", "content")), (_FILE, pa.string())]
)

_INTERVAL = {"delta.checkpointInterval": "10"}
"""Commits are few, and opening the table reads all since the last checkpoint of its log."""


class ClaimGoneError(CheckpointError):
    """A claim is outdated, because a later run, another savepoint or a cleaning has committed a later one."""


class Claim(NamedTuple):
    """The transaction id of one commit: an application, and the version that it writes.

    >>> Claim.of_run(3, 7)
    Claim(app_id='cojoin-state-runs', version=12884901896)
    """

    app_id: str
    version: int

    @property
    def savepoint(self) -> int:
        """The number of a savepoint's claim; 0 for a run's claim."""
        return self.version if self.app_id == SAVEPOINTS else 0

    @property
    def transaction(self) -> dict[str, int]:
        """The claim as the transaction id of a ``Change``."""
        return {self.app_id: self.version}

    @classmethod
    def of_run(cls, epoch: int, batch_id: int) -> Claim:
        """Return the claim of a run's snapshot; a later batch or run has a greater one."""
        return cls(_RUNS, epoch * _BATCHES + batch_id + 1)

    @classmethod
    def of_epoch(cls, epoch: int) -> Claim:
        """Return the claim of a run that has not written yet; the claim of epoch 0 is less than all others."""
        return cls(_RUNS, epoch * _BATCHES)

    @classmethod
    def of_savepoint(cls, last: int) -> Claim:
        """Return the claim of a savepoint that begins now, after the last number that savepoints have written."""
        return cls(SAVEPOINTS, last + 1 + uuid.uuid4().int % _DRAWN)

    @classmethod
    def above_savepoints(cls, last: int) -> Claim:
        """Return the claim that ends all savepoints begun so far; ``last`` is the last number that one has written."""
        return cls(SAVEPOINTS, last + 1 + _DRAWN)

    def is_made(self, version: Callable[[str], int | None]) -> bool:
        """Return whether this claim is the newest of its application in the table.

        ``version`` returns the number of an application's newest claim, or None. Raises ``ClaimGoneError`` where that
        is a later claim.
        """
        last = version(self.app_id)
        if last is not None and last > self.version:
            msg = f"the claim {self.version} of {self.app_id} is outdated: the table has the later claim {last}"
            raise ClaimGoneError(msg)
        return last == self.version


def partition_folder(batch_id: int, segment: int | None) -> str:
    """Return the folder of a partition, below the table's.

    >>> partition_folder(7, 3), partition_folder(7, None)
    ('batch_id=7/segment=3', 'batch_id=7/segment=__HIVE_DEFAULT_PARTITION__')
    """
    return f"batch_id={batch_id}/segment={NO_SEGMENT if segment is None else segment}"


@dataclass(frozen=True)
class StateFolder:
    """The table's folder, on a local disk or an object store; it is serialized with the tasks."""

    path: str
    settings: Settings | None = None

    @classmethod
    def of(cls, files: Store) -> StateFolder:
        """Return the folder of a checkpoint on a local disk or an object store."""
        path, settings = files.path(STATE_TABLE), files.for_tasks()
        if settings is None:
            return cls(path.removeprefix("file:"))
        return cls(path, replace(settings, prefix=f"{settings.prefix}/{STATE_TABLE}".lstrip("/")))

    def opened(self) -> _OpenFolder:
        """Return the folder, open for a task."""
        if self.settings is None:
            return _OpenFolder(self.path)
        from cojoin.storage.object_store import ObjectStore  # noqa: PLC0415 - for local files, obstore is not loaded

        return _OpenFolder(self.path, ObjectStore.of(self.settings, self.path))


class _OpenFolder:
    """The table's folder in a task, with the names of the files that the task has written."""

    def __init__(self, path: str, objects: ObjectStore | None = None) -> None:
        self._path, self._objects = Path(path), objects
        self._names: list[str] = []

    def write(self, name: str, content: pa.Buffer) -> None:
        self._names.append(name)
        if self._objects is not None:
            self._objects.write_bytes(name, content.to_pybytes())
            return
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(memoryview(content))

    def delete_written(self) -> None:
        """Delete the files that were written, as far as that is possible."""
        for name in self._names:
            with contextlib.suppress(OSError, CheckpointError):
                if self._objects is not None:
                    self._objects.delete(name)
                else:
                    (self._path / name).unlink(missing_ok=True)


def write_rows(rows: DataFrame, folder: StateFolder, batch_id: int) -> list[Row]:
    """Write a batch's snapshot, rows of ``STATE_SCHEMA``, as files below the table's folder, in one Spark job.

    Returns the rows without content. Their column ``file`` describes the file with the row, for ``data_files``.
    """
    written: list[Row] = rows.mapInArrow(for_workers(_Writer(folder, batch_id)), spark_schema(_WRITTEN)).collect()
    return written


def data_files(rows: Sequence[Any]) -> list[DataFile]:
    """Return the files that rows of ``write_rows`` name."""
    described = {row.file: row.segment for row in rows}
    return [_data_file(json.loads(text), segment) for text, segment in described.items()]


def _data_file(about: dict[str, Any], segment: int | None) -> DataFile:
    values = {"batch_id": str(about["batch_id"]), "segment": None if segment is None else str(segment)}
    statistics = json.dumps({"numRecords": about["rows"]})
    return DataFile(about["name"], about["size"], about["modified"], statistics, values)


@dataclass(frozen=True)
class _Writer:
    """Writes a task's rows; it is serialized with the tasks."""

    folder: StateFolder
    batch_id: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folder = self.folder.opened()
        without_content = []
        try:
            for row in (pa.Table.from_batches([batch.slice(n, 1)]) for batch in batches for n in range(len(batch))):
                segment = row.column("segment")[0].as_py()
                if segment is None:
                    without_content.append(row)
                else:
                    yield from self._write(folder, row, segment)
            if without_content:
                yield from self._write(folder, pa.concat_tables(without_content), None)
        except BaseException:
            folder.delete_written()
            raise
        # Otherwise an idle worker keeps this memory until the next task.
        pa.default_memory_pool().release_unused()

    def _write(self, folder: _OpenFolder, rows: pa.Table, segment: int | None) -> list[pa.RecordBatch]:
        """Write a file, and return its rows without their content."""
        name = f"{partition_folder(self.batch_id, segment)}/part-{uuid.uuid4()}.snappy.parquet"
        content = _parquet(rows.select(_FILE_SCHEMA.names).cast(_FILE_SCHEMA))
        folder.write(name, content)
        about = {"name": name, "size": content.size, "rows": len(rows), "batch_id": self.batch_id}
        text = json.dumps({**about, "modified": int(1000 * time.time())})
        with_file = rows.append_column(_FILE, pa.array([text] * len(rows), pa.string()))
        written: list[pa.RecordBatch] = with_file.select(_WRITTEN.names).cast(_WRITTEN).to_batches()
        return written


def _parquet(rows: pa.Table) -> pa.Buffer:
    """Return rows as a Parquet file without statistics, since its readers choose by partitions alone."""
    made = pa.BufferOutputStream()
    # By the page checksums, as in Spark's files, readers notice that a disk has changed a file.
    pq.write_table(
        rows, made, store_schema=False, use_dictionary=False, write_statistics=False, write_page_checksum=True
    )
    return made.getvalue()


class StateCommits:
    """The commits of one checkpoint's state table.

    Callers with several commits keep one instance, since opening the table costs more than a commit.
    """

    def __init__(self, spark: SparkSession, files: Store) -> None:
        self._spark, self._files, self._path = spark, files, files.path(STATE_TABLE)
        self._log = TableLog(files, STATE_TABLE)
        self._made: TableWriter | None = None
        self.why_spark = self._why_by_place()
        """Why Spark makes the commits, as of the last commit, or at first by the store alone; None if it does not."""

    def has_claim(self, claim: Claim) -> bool:
        """Return whether a claim is the newest one of its application."""
        return self._claimed(claim.app_id) == claim.version

    def next_savepoint(self) -> Claim:
        """Return the claim of a savepoint that begins now."""
        return Claim.of_savepoint(self._claimed(SAVEPOINTS) or 0)

    def end_savepoints(self) -> Claim:
        """Write a claim by which the table, if it exists, refuses all savepoints begun so far, and return it."""
        claim = Claim.above_savepoints(self._claimed(SAVEPOINTS) or 0)
        self._claim(claim)
        return claim

    def fence_runs(self, epoch: int) -> None:
        """Write a claim by which the table, if it exists, refuses the runs of earlier epochs."""
        self._claim(Claim.of_epoch(epoch))

    def create(self) -> None:
        """Create the empty table where it does not exist."""
        if self._log.newest() is not None:
            return
        (writer, new), first = self._writer_and_new(), Claim.of_epoch(0)
        if writer is not None:
            # If two processes create it at once, one of them finds the other's claim.
            writer.commit(Change(first.transaction), lambda version: version(first.app_id) is not None, new=new)
        else:
            self._check_spark()
            empty = empty_frame(self._spark, STATE_SCHEMA)
            empty.write.format("delta").mode("append").partitionBy(*PARTITIONS).save(self._path)

    def replace(self, rows: DataFrame, batch_id: int, claim: Claim) -> list[Row] | None:
        """Write a batch's snapshot in place of an earlier attempt's rows, together with a claim, in one commit.

        Returns the written rows without content; None where they can only be read from the table, such as where the
        commit was made already. Raises ``ClaimGoneError``, with the table unchanged, where the claim is outdated; other
        errors are those of ``TableWriter.commit``.
        """
        writer, new = self._writer_and_new()
        if writer is None:
            self._replace_by_spark(rows, batch_id, claim)
            return None
        written = write_rows(rows, StateFolder.of(self._files), batch_id)
        added = data_files(written)

        def change(present: Sequence[DataFile]) -> Change:
            # An earlier attempt's rows are removed: their state may be in another order, with other fingerprints.
            former = [each for each in present if _partition(each)[0] == batch_id]
            return Change(claim.transaction, STATE_SCHEMA, added, former)

        try:
            done = writer.commit(change, claim.is_made, new=new)
        except TableRefusedError:
            # A cleaning may have ended the claim since it was compared, and deleted the files: then this raises.
            claim.is_made(self._claimed)
            raise
        return written if done.is_new else None

    def files(self) -> dict[str, tuple[int, int | None]]:
        """Return the partition (batch and segment) of each of the table's files; none where Spark commits."""
        writer = self._writer()
        return {} if writer is None else {each.path: _partition(each) for each in writer.files()}

    def remove(
        self, paths: Collection[str], partitions: Collection[tuple[int, int | None]], ended: Claim | None
    ) -> bool:
        """Remove those of the files that the table still has; with ``ended`` also end the savepoints begun since.

        ``partitions`` are those of the files; where Spark commits, it removes all their rows. ``ended`` is the claim of
        ``end_savepoints``, None where no savepoint must be ended. Returns False where the table may still have them,
        since a savepoint or another cleaning has committed meanwhile.
        """
        if self._log.newest() is None:
            return True
        again = None if ended is None else Claim.above_savepoints(ended.version)
        writer = self._writer()
        try:
            if writer is None:
                self._remove_by_spark(partitions, ended, again)
                return True

            def change(present: Sequence[DataFile]) -> Change | None:
                gone = [each for each in present if each.path in paths]
                return Change({} if again is None else again.transaction, removed=gone) if gone or again else None

            done = writer.commit(change, lambda version: _is_ended(version, ended, again))
        except ClaimGoneError:
            return False
        # Another cleaning may have written the same claim.
        return done.is_new or not any(each.path in paths for each in writer.files())

    def _claimed(self, app_id: str) -> int | None:
        table = self._log.newest()
        return None if table is None else table.transaction(app_id)

    def _claim(self, claim: Claim) -> None:
        """Write a claim without rows, unless the table is missing, or has this or a later claim of its application."""
        if self._log.newest() is None or (self._claimed(claim.app_id) or 0) >= claim.version:
            return
        writer = self._writer()
        if writer is not None:
            writer.commit(Change(claim.transaction), lambda version: (version(claim.app_id) or 0) >= claim.version)
            return
        self._check_spark()
        rows = self._spark.read.format("delta").load(self._path).limit(0)
        into = rows.write.format("delta").mode("append").partitionBy(*PARTITIONS)
        into.option("txnAppId", claim.app_id).option("txnVersion", str(claim.version)).save(self._path)

    def _writer(self) -> TableWriter | None:
        """Return the writer without the JVM; None where Spark commits."""
        return self._writer_and_new()[0]

    def _writer_and_new(self) -> tuple[TableWriter | None, NewTable]:
        """Return the writer without the JVM, None where Spark commits, and the table to make where it is missing."""
        table = self._log.newest()
        properties = {} if table is not None else default_properties(self._spark)
        new = NewTable(STATE_SCHEMA, PARTITIONS, {**_INTERVAL, **properties})
        why = self._why_by_place()
        if why is None and table is None:
            why = why_not_creatable(new.properties)
        elif why is None and table is not None:
            why = why_not_removable(table.protocol, table.metadata)
        self.why_spark = why
        if why is None and self._made is None:
            self._made = TableWriter(self._files, STATE_TABLE, log=self._log)
        return self._made if why is None else None, new

    def _why_by_place(self) -> str | None:
        why = why_unreachable(self._files, STATE_TABLE)
        return "Spark encrypts its files" if why is None and adapter_of(self._spark).encrypts_files() else why

    def _check_spark(self) -> None:
        check_sparks_delta(self._spark, self.why_spark, f"{self._files.named}: its table {STATE_TABLE!r}")

    def _replace_by_spark(self, rows: DataFrame, batch_id: int, claim: Claim) -> None:
        if claim.is_made(self._claimed):
            return
        self._check_spark()
        writer = rows.write.format("delta").mode("overwrite").partitionBy(*PARTITIONS)
        writer = writer.option("replaceWhere", f"batch_id = {batch_id}")
        try:
            writer.option("txnAppId", claim.app_id).option("txnVersion", str(claim.version)).save(self._path)
        except SPARK_ERRORS as error:
            if names_same_transaction(error):
                msg = f"the claim {claim.version} of {claim.app_id} is outdated: another commit has written it"
                raise ClaimGoneError(msg) from error
            raise
        claim.is_made(self._claimed)

    def _remove_by_spark(
        self, partitions: Collection[tuple[int, int | None]], ended: Claim | None, again: Claim | None
    ) -> None:
        _is_ended(self._claimed, ended, again)
        if partitions:
            self._check_spark()
            # Spark looks the rows up again, so this could also remove those of a later savepoint of the same batch.
            conditions = " OR ".join(f"({_condition(*each)})" for each in partitions)
            self._spark.sql(f"DELETE FROM {quoted_table(self._path)} WHERE {conditions}")  # noqa: S608 - numbers only
        if again is not None:
            self._claim(again)


def _is_ended(version: Callable[[str], int | None], ended: Claim | None, again: Claim | None) -> bool:
    """Return whether ``again`` is written already; ``ClaimGoneError`` where a savepoint was written after ``ended``."""
    if ended is None or again is None:
        return False
    last = version(ended.app_id)
    if last not in (ended.version, again.version):
        msg = f"a savepoint was written after the claim {ended.version}: the table has the later claim {last}"
        raise ClaimGoneError(msg)
    return last == again.version


def _partition(file: DataFile) -> tuple[int, int | None]:
    batch_id, segment = (file.partition_values[name] for name in PARTITIONS)
    return int(batch_id or -1), None if segment is None else int(segment)


def _condition(batch_id: int, segment: int | None) -> str:
    """Return the condition on the rows of a partition, as SQL."""
    return f"batch_id = {batch_id} AND segment {'IS NULL' if segment is None else f'= {segment}'}"
