"""The ``state`` table: one row for each key group and snapshot, with the content only where it changed.

A row with content has a data file of its own (the table is partitioned by batch and segment), so cleaning deletes whole
files and rewrites none. A snapshot is one commit; written again, it replaces the rows that it wrote before.

Cleaning first notes which files there are, then looks whether they still must go, and removes only those. However long
it stands still in between, it does not touch what a later snapshot of the same batch has written.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.snapshot_row import STATE_SCHEMA, are_whole, read_content, seal_of
from cojoin.checkpoints.snapshots import Snapshot, SnapshotKind, Snapshots
from cojoin.engine.values.types import schema_to_ddl
from cojoin.errors import CheckpointError, CodecError
from cojoin.storage.arrow_types import spark_schema
from cojoin.storage.delta_files import commit_applications, partition_files, table_log
from cojoin.storage.session_settings import is_connect
from cojoin.storage.table_version import quoted_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from cojoin.checkpoints.manifest import Manifest
    from cojoin.storage.store import Store

__all__ = ["STATE_LOCK", "StateTable"]

STATE_LOCK = threading.RLock()
"""Held in this process while a savepoint is taken or snapshots are cleaned: the two must not overlap."""

_NAME = "state"
_PARTITIONS = ("batch_id", "segment")
_NO_SEGMENT = "__HIVE_DEFAULT_PARTITION__"
_WITHOUT_CONTENT = spark_schema(
    pa.schema([field for field in STATE_SCHEMA if field.name not in ("content", *_PARTITIONS)])
)
_LOOKED_AT = 20
"""How many of the newest files of the Delta log, checksum files included, are searched for the commit just made."""


class StateTable:
    """The state table of one checkpoint."""

    def __init__(self, spark: SparkSession, files: Store) -> None:
        self._spark, self._files = spark, files
        self._path = files.path(_NAME)
        self._snapshots = Snapshots(files)

    def write(
        self,
        rows: DataFrame,
        manifest: Manifest,
        kind: SnapshotKind,
        key_groups: int,
        *,
        remembered: bool,
        check: Callable[[], None] = lambda: None,
    ) -> Snapshot | None:
        """Write a snapshot's rows, in place of those of an earlier attempt, and make it count.

        Args:
            rows: Rows of ``STATE_SCHEMA``.
            manifest: The manifest of the batch.
            kind: Why the snapshot is taken.
            key_groups: The number of key groups.
            remembered: Whether the query's own state points to the snapshot.
            check: Raises an error where the snapshot must not count; called right before it is made to.

        Returns:
            The snapshot; None where some key group has no row, so that the snapshot could not be restored.
        """
        # An earlier attempt's rows must go: their state may be in another order, with other fingerprints.
        writer = rows.write.format("delta").mode("overwrite").partitionBy(*_PARTITIONS)
        writer.option("replaceWhere", f"batch_id = {manifest.batch_id}").save(self._path)
        # The index is made from the rows as written: rows that a task computes again may have other fingerprints.
        written = self._read_written(manifest.batch_id, key_groups)
        if len(written) != key_groups:
            return None
        index = sorted((_entry(row) for row in written), key=lambda each: each["key_group"])
        holders: dict[str, list[int]] = {}
        for row in index:
            holders.setdefault(str(row["content_batch_id"]), []).append(row["key_group"])
        snapshot = Snapshot(
            manifest,
            kind,
            key_groups,
            rows=sum(row["rows"] for row in index),
            state_bytes=sum(row["content_bytes"] for row in index),
            written_bytes=sum(row["content_bytes"] for row in index if row["content_batch_id"] == manifest.batch_id),
            content_batch_ids=holders,
            seal=seal_of(*(row["seal"] for row in index)),
            remembered=remembered,
        )
        self._snapshots.write(snapshot, check)
        return snapshot

    def _read_written(self, batch_id: int, key_groups: int) -> list[Row]:
        """Return the rows of a batch that the newest commit wrote, without their content.

        They are read from that commit's data files, in one small job. To read the table would take several jobs, and
        most of a small snapshot's time; it is read only where the files can't be read or lack a key group.
        """
        files = self._newest_files(batch_id)
        # Spark takes a path such as ``[a]`` for a glob pattern, which matches no file.
        with contextlib.suppress(PySparkException, Py4JError):
            rows = self._spark.read.schema(_WITHOUT_CONTENT).parquet(*(f"{self._path}/{file}" for file in files))
            found: list[Row] = rows.collect()
            if sorted(row.key_group for row in found if row.key_group is not None) == [*range(key_groups)]:
                return found
        return list(self._load().where(F.col("batch_id") == batch_id).drop("content").collect())

    def _newest_files(self, batch_id: int) -> list[str]:
        """Return the data files of a batch that were added by the newest commit with such files."""
        for name in sorted(self._files.names(f"{_NAME}/_delta_log"), reverse=True)[:_LOOKED_AT]:
            commit = self._files.read(f"{_NAME}/_delta_log/{name}") if name.endswith(".json") else None
            added = [action["add"] for line in (commit or "").splitlines() if "add" in (action := json.loads(line))]
            files = [
                unquote(each["path"]) for each in added if each["partitionValues"].get("batch_id") == str(batch_id)
            ]
            if files:
                return files
        return []

    def headers(self, snapshot: Snapshot) -> list[Row]:
        """Check a snapshot's rows against its index, and return them without their content, by key group.

        Raises:
            CheckpointError: The table or its files are missing or were changed.
        """
        rows = self._load().where(F.col("batch_id") == snapshot.batch_id).drop("content")
        found = {row.key_group: row for row in self._collect(rows, snapshot)}
        if len(found) != snapshot.key_groups:
            msg = (
                f"{self._what(snapshot)}: expected the rows of {snapshot.key_groups} key groups, found {len(found)}; "
                f"the table {_NAME} was changed; restore another snapshot"
            )
            raise CheckpointError(msg)
        rows_in_order = [found[group] for group in sorted(found)]
        if not are_whole(rows_in_order, snapshot):
            msg = (
                f"{self._what(snapshot)}: its rows in the table {_NAME} are not those that were written; "
                f"restore another snapshot"
            )
            raise CheckpointError(msg)
        return rows_in_order

    def contents(self, snapshot: Snapshot) -> DataFrame:
        """Return ``(key_group, content)`` of a snapshot, also where the content is in earlier snapshots' rows.

        Raises:
            CheckpointError: The snapshot's index names no content, or the table does not exist or can't be read.
        """
        held = None
        for batch_id, groups in snapshot.content_batch_ids.items():
            here = (F.col("batch_id") == int(batch_id)) & F.col("segment").isin(groups)
            held = here if held is None else held | here
        if held is None:
            msg = f"{self._what(snapshot)}: it names no content; restore another snapshot"
            raise CheckpointError(msg)
        return self._load().where(held).select("key_group", "content")

    def check(self, snapshot: Snapshot) -> None:
        """Check all of a snapshot's content against its fingerprints.

        Raises:
            CheckpointError: Something is missing or was changed; the message says what.
        """
        what = self._what(snapshot)
        expected = {
            row.key_group: (row.fingerprint, [(each.name, each.rows, each.columns) for each in row.tables])
            for row in self.headers(snapshot)
        }

        def faults(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _faults(batches, expected, what)

        found = self._collect(self.contents(snapshot).mapInArrow(faults, "key_group int, fault string"), snapshot)
        told = sorted(row.fault for row in found if row.fault is not None)
        if told:
            raise CheckpointError(told[0])
        missing = sorted(set(expected) - {row.key_group for row in found})
        if missing:
            msg = (
                f"{what}: the content of key group {missing[0]} (of {len(missing)} in all) is not there; "
                f"the table's files were removed; restore another snapshot"
            )
            raise CheckpointError(msg)

    def clean(
        self,
        batch_ids: Sequence[int],
        *,
        savepoints_too: bool = True,
        known: int | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> int:
        """Delete snapshots with their files, except content to which other snapshots point.

        Args:
            batch_ids: The snapshots' batches.
            savepoints_too: Whether one that has become a savepoint meanwhile is deleted, too.
            known: The batch of the newest snapshot that the caller has written; None where it has written none.
            check: Raises an error where the caller must not delete; called once it is known which files there are.

        Returns:
            The size of the deleted files, in bytes.

        Raises:
            CheckpointError: The listing of the snapshots is older than that snapshot, so it is not known what is still
                needed; nothing was deleted.
        """
        for batch_id in batch_ids:
            self._snapshots.remove(batch_id, savepoints_too=savepoints_too)
        removed = [each for each in self._snapshots.removed() if self._snapshots.bar(each)]
        gone = self._unneeded(removed, None if known in batch_ids else known)
        freed = self._delete(gone, {each.batch_id for each in removed}, check) if gone else 0
        for snapshot in removed:
            self._snapshots.forget(snapshot.batch_id)
        return freed

    def _delete(
        self, gone: Sequence[tuple[int, int | None]], removed: Collection[int], check: Callable[[], None]
    ) -> int:
        """Delete the files of partitions, and return their size.

        Args:
            gone: The partitions (batch and segment).
            removed: The batches whose snapshots are being removed.
            check: Raises an error where nothing must be deleted.
        """
        partitions = {_folder(*each): each for each in gone}
        # Files without a commit, or of a commit that was replaced, are not in the log.
        listed = [f"{folder}/{name}" for folder in partitions for name in self._files.names(f"{_NAME}/{folder}")]
        log = None if is_connect(self._spark) else table_log(self._spark, self._path)
        transaction = None if log is None else log.startTransaction()
        conditions = " OR ".join(f"({_condition(*each)})" for each in gone)
        is_there = transaction is not None and transaction.readVersion() >= 0
        logged = partition_files(self._spark, transaction, conditions) if is_there else {}
        check()
        finished = {each for each in removed if not self._snapshots.still_removed(each)}
        there = {folder: each for folder, each in partitions.items() if each[0] not in finished}
        actions = [action for name, action in logged.items() if name.rpartition("/")[0] in there]
        if actions:
            commit_applications(self._spark, transaction, {}, query_id="", added=actions)
        elif transaction is None and there:
            # Spark Connect has no transactions of its own: only rows of the same batch's later savepoint are at risk.
            conditions = " OR ".join(f"({_condition(*each)})" for each in there.values())
            self._spark.sql(f"DELETE FROM {quoted_table(self._path)} WHERE {conditions}")  # noqa: S608 - numbers only
        freed = 0
        for name in listed:
            if name.rpartition("/")[0] in there:
                freed += self._files.size(f"{_NAME}/{name}")
                self._files.delete(f"{_NAME}/{name}")
        for folder in there:
            self._files.delete_empty_directory(f"{_NAME}/{folder}")
        for batch_id in sorted({each[0] for each in there.values()}):
            self._files.delete_empty_directory(f"{_NAME}/batch_id={batch_id}")
        return freed

    def has(self, snapshot: Snapshot) -> bool:
        """Return whether the table has a snapshot's rows as they were written."""
        try:
            self.headers(snapshot)
        except CheckpointError:
            return False
        return True

    def has_rows_of(self, batch_id: int) -> bool:
        """Return whether there are files of a batch, whether they count or not."""
        return bool(self._files.names(f"{_NAME}/batch_id={batch_id}"))

    def _unneeded(self, removed: Sequence[Snapshot], known: int | None) -> list[tuple[int, int | None]]:
        """Return the partitions (batch and segment) that removed snapshots had or pointed to, and no other needs.

        Other partitions are left unchanged: they may belong to a snapshot that is being written.
        """
        needed: dict[int, set[int]] = {}
        kept = self._snapshots.all()
        for snapshot in kept:
            for holder, groups in snapshot.content_batch_ids.items():
                needed.setdefault(int(holder), set()).update(groups)
        alive = {snapshot.batch_id for snapshot in kept}
        if known is not None and known not in alive:
            msg = (
                f"checkpoint {self._files.root}: the listing of its snapshots lacks that of batch {known}, which was "
                f"written before; nothing was deleted, the next cleaning looks again"
            )
            raise CheckpointError(msg)
        theirs = {snapshot.batch_id for snapshot in removed}
        theirs |= {int(holder) for snapshot in removed for holder in snapshot.content_batch_ids}
        found: list[tuple[int, int | None]] = []
        for batch_id in sorted(theirs):
            found += self._obsolete(batch_id, needed.get(batch_id, set()), is_alive=batch_id in alive)
        return found

    def _obsolete(self, batch_id: int, needed: set[int], *, is_alive: bool) -> list[tuple[int, int | None]]:
        segments = [
            int(value) if (value := name.partition("=")[2]).isdigit() else None
            for name in self._files.names(f"{_NAME}/batch_id={batch_id}")
        ]
        unneeded = [each for each in segments if (not is_alive if each is None else each not in needed)]
        return [(batch_id, each) for each in unneeded]

    def _load(self) -> DataFrame:
        if not self._files.exists(f"{_NAME}/_delta_log"):
            msg = (
                f"checkpoint {self._files.root}: it has no table {_NAME!r}, so no snapshot; restore another checkpoint"
            )
            raise CheckpointError(msg)
        try:
            return self._spark.read.format("delta").load(self._path)
        except (PySparkException, Py4JError) as error:
            msg = f"checkpoint {self._files.root}: {self._unreadable(error)}; restore another checkpoint"
            raise CheckpointError(msg) from error

    def _collect(self, frame: DataFrame, snapshot: Snapshot) -> list[Row]:
        try:
            rows: list[Row] = frame.collect()
        except (PySparkException, Py4JError) as error:
            text = str(error)
            if "FILE_NOT_EXIST" in text or "FileNotFound" in text or "does not exist" in text:
                msg = (
                    f"{self._what(snapshot)}: files of its table {_NAME} are gone, vacuumed or deleted; "
                    f"restore another snapshot"
                )
                raise CheckpointError(msg) from error
            msg = f"{self._what(snapshot)}: {self._unreadable(error)}; restore another snapshot"
            raise CheckpointError(msg) from error
        return rows

    @staticmethod
    def _unreadable(error: BaseException) -> str:
        return f"its table {_NAME} can't be read: {str(error).strip().partition(chr(10))[0]}"

    def _what(self, snapshot: Snapshot) -> str:
        return f"checkpoint {self._files.root}: snapshot of batch {snapshot.batch_id}"


def _folder(batch_id: int, segment: int | None) -> str:
    """Return the folder of a partition, below the table's."""
    return f"batch_id={batch_id}/segment={_NO_SEGMENT if segment is None else segment}"


def _condition(batch_id: int, segment: int | None) -> str:
    """Return the condition on the rows of a partition, as SQL."""
    return f"batch_id = {batch_id} AND segment {'IS NULL' if segment is None else f'= {segment}'}"


_Expected: TypeAlias = "tuple[str, list[tuple[str, int, str]]]"
"""The fingerprint of a key group's content, and each table's name, number of rows and columns as DDL."""


def _faults(batches: Iterable[pa.RecordBatch], expected: dict[int, _Expected], what: str) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        groups = batch.column("key_group").to_pylist()
        faults = [
            _fault(content.as_py(), expected[group], f"{what}, key group {group}")
            for group, content in zip(groups, batch.column("content"), strict=True)
        ]
        columns = [pa.array(groups, pa.int32()), pa.array(faults, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, names=["key_group", "fault"])


def _fault(content: bytes | None, expected: _Expected, where: str) -> str | None:
    fingerprint, described = expected
    try:
        tables = read_content(content, fingerprint, where)
    except CodecError as error:
        return str(error)
    if described != [(name, table.num_rows, schema_to_ddl(table.schema)) for name, table in tables.items()]:
        return f"{where}: its row in the table {_NAME} describes other tables than there are; restore another snapshot"
    return None


def _entry(row: Row) -> dict[str, Any]:
    fields = row.asDict()
    entry = {name: fields[name] for name in ("key_group", "content_batch_id", "content_bytes", "seal")}
    return entry | {"rows": sum(table.rows for table in row.tables)}
