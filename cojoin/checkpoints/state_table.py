"""The ``state`` table: one row for each key group and snapshot, with the content only where it changed.

A row with content has a data file of its own (the table is partitioned by batch and segment), so cleaning
(``state_cleaner``) deletes whole files and rewrites none. A snapshot is one commit; written again, it replaces the rows
that it wrote before.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.lease_record import holder
from cojoin.checkpoints.snapshot_record import Snapshot, SnapshotKind
from cojoin.checkpoints.snapshot_row import STATE_SCHEMA, are_whole, read_content, seal_of
from cojoin.checkpoints.snapshots import BeingRemovedError, Snapshots
from cojoin.checkpoints.state_claims import has_claim
from cojoin.engine.values.types import schema_to_ddl
from cojoin.errors import CheckpointError, CodecError, QueryFailedError
from cojoin.session.arrow_types import spark_schema
from cojoin.session.delta_tables import read_table
from cojoin.session.sealed import for_workers
from cojoin.session.spark_errors import SPARK_ERRORS, names_missing_file
from cojoin.storage.locations import literally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from cojoin.checkpoints.manifest import Manifest
    from cojoin.checkpoints.state_claims import Claim
    from cojoin.storage.store import Store

__all__ = ["STATE_TABLE", "StateTable"]

STATE_TABLE = "state"
"""The table's folder below the checkpoint."""

_PARTITIONS = ("batch_id", "segment")
_WITHOUT_CONTENT = spark_schema(
    pa.schema([field for field in STATE_SCHEMA if field.name not in ("content", *_PARTITIONS)])
)
_LOOKED_AT = 20
"""How many of the newest files of the Delta log, checksum files included, are searched for the commit just made."""


class _RowsGoneError(CheckpointError):
    """The table lacks rows of a snapshot, or has others than were written."""


class StateTable:
    """The state table of one checkpoint.

    Args:
        spark: The session.
        files: The checkpoint.
        version: The table's version that is read; None reads the newest at the time of each job.
    """

    def __init__(self, spark: SparkSession, files: Store, version: int | None = None) -> None:
        self._spark, self._files, self._version = spark, files, version
        self._path = files.path(STATE_TABLE)
        self._snapshots = Snapshots(files)

    def pinned(self, snapshot: Snapshot) -> StateTable:
        """Return the table at its present version, which has a snapshot's rows whatever a query cleans meanwhile.

        A job that reads it later fails where files of the snapshot were deleted since, and does not miss their rows.

        Raises:
            CheckpointError: The snapshot is being removed.
        """
        table = read_table(self._spark, self._path)
        # After the version is known.
        self.check_unchanged(snapshot)
        return self if table is None else StateTable(self._spark, self._files, table.version)

    def check_unchanged(self, snapshot: Snapshot) -> None:
        """Check that a snapshot still counts, as it was when its index was read.

        Its query may go on, and clean, or execute the batch again. It marks a snapshot as removed before it removes
        rows; who read them in between may have missed some without an error.

        Raises:
            CheckpointError: Its query has removed or replaced it.
        """
        now = self._snapshots.read(snapshot.batch_id)
        if now is None or now.seal != snapshot.seal:
            msg = (
                f"{self._what(snapshot)}: its query has removed or replaced it while it was read; start again, which "
                f"takes a newer one, or use a savepoint, which stays"
            )
            raise _RowsGoneError(msg)

    def write(
        self,
        rows: DataFrame,
        manifest: Manifest,
        kind: SnapshotKind,
        key_groups: int,
        *,
        remembered: bool,
        check: Callable[[], None] = lambda: None,
        claim: Claim | None = None,
    ) -> Snapshot | None:
        """Write a snapshot's rows, in place of those of an earlier attempt, and make it count.

        Args:
            rows: Rows of ``STATE_SCHEMA``.
            manifest: The manifest of the batch.
            kind: Why the snapshot is taken.
            key_groups: The number of key groups.
            remembered: Whether the query's own state points to the snapshot.
            check: Raises an error where the snapshot must not count; called right before it is made to.
            claim: What keeps the rows out of the table where another writer has gone on; None where there is no other.

        Returns:
            The snapshot; None where some key group has no row, so that the snapshot could not be restored.

        Raises:
            BeingRemovedError: It is a savepoint, and a cleaning has taken it for interrupted, or another one has
                replaced it.
            QueryFailedError: A later run of the query has taken over.
        """
        # An earlier attempt's rows must go: their state may be in another order, with other fingerprints.
        writer = rows.write.format("delta").mode("overwrite").partitionBy(*_PARTITIONS)
        writer = writer.option("replaceWhere", f"batch_id = {manifest.batch_id}")
        if claim is not None:
            writer = writer.option("txnAppId", claim.app_id).option("txnVersion", str(claim.version))
        try:
            writer.save(self._path)
        except SPARK_ERRORS:
            # Where another run has taken over, that is the reason, and this says so.
            check()
            raise
        # The index is made from the rows as written: rows that a task computes again may have other fingerprints.
        files = self._newest_files(manifest.batch_id, claim)
        if claim is not None and not files and not has_claim(self._spark, self._path, claim):
            # Delta skips a commit whose application has gone on.
            check()
            raise self._refused(manifest, kind)
        written = self._read_written(manifest.batch_id, key_groups, files)
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
            claim=0 if claim is None else claim.savepoint,
        )

        def check_all() -> None:
            check()
            if snapshot.claim and claim is not None and not has_claim(self._spark, self._path, claim):
                raise self._refused(manifest, kind)

        self._snapshots.write(snapshot, check_all)
        return snapshot

    def _refused(self, manifest: Manifest, kind: SnapshotKind) -> CheckpointError | QueryFailedError:
        where = f"checkpoint {self._files.root}: the snapshot of batch {manifest.batch_id} was not written"
        if kind == "savepoint":
            return BeingRemovedError(f"{where}: other savepoints were, or a cleaning has taken it for interrupted")
        return QueryFailedError(
            f"{where}: fenced off: the table {STATE_TABLE} has snapshots of a run of this epoch ({manifest.epoch}) or "
            f"of a later one; nothing else was written, start the query again"
        )

    def create(self) -> None:
        """Create the empty table where there is none."""
        if not self._files.exists(f"{STATE_TABLE}/_delta_log"):
            empty = self._spark.createDataFrame([], spark_schema(STATE_SCHEMA))
            empty.write.format("delta").mode("append").partitionBy(*_PARTITIONS).save(self._path)

    @property
    def path(self) -> str:
        """The table's folder."""
        return self._path

    def _read_written(self, batch_id: int, key_groups: int, files: Sequence[str]) -> list[Row]:
        """Return the rows of a batch that the newest commit wrote, without their content.

        They are read from that commit's data files, in one small job. To read the table would take several jobs, and
        most of a small snapshot's time; it is read only where the files can't be read or lack a key group.
        """
        with contextlib.suppress(*SPARK_ERRORS):
            paths = [literally(f"{self._path}/{file}") for file in files]
            rows = self._spark.read.schema(_WITHOUT_CONTENT).parquet(*paths)
            found: list[Row] = rows.collect()
            if sorted(row.key_group for row in found if row.key_group is not None) == [*range(key_groups)]:
                return found
        return list(self._load().where(F.col("batch_id") == batch_id).drop("content").collect())

    def _newest_files(self, batch_id: int, claim: Claim | None = None) -> list[str]:
        """Return the data files of a batch that were added by the newest commit with such files, and with a claim."""
        for name in sorted(self._files.names(f"{STATE_TABLE}/_delta_log"), reverse=True)[:_LOOKED_AT]:
            commit = self._files.read(f"{STATE_TABLE}/_delta_log/{name}") if name.endswith(".json") else None
            actions = [json.loads(line) for line in (commit or "").splitlines()]
            added = [action["add"] for action in actions if "add" in action]
            written = [action["txn"] for action in actions if "txn" in action]
            files = [
                unquote(each["path"]) for each in added if each["partitionValues"].get("batch_id") == str(batch_id)
            ]
            if files and (claim is None or (claim.app_id, claim.version) in _ids(written)):
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
            expected = f"expected the rows of {snapshot.key_groups} key groups, found {len(found)}"
            raise self._gone(snapshot, f"{expected}; the table {STATE_TABLE} was changed")
        rows_in_order = [found[group] for group in sorted(found)]
        if not are_whole(rows_in_order, snapshot):
            raise self._gone(snapshot, f"its rows in the table {STATE_TABLE} are not those that were written")
        return rows_in_order

    def contents(self, snapshot: Snapshot) -> DataFrame:
        """Return ``(key_group, content)`` of a snapshot, also where the content is in earlier snapshots' rows.

        Raises:
            CheckpointError: The snapshot's index names no content, or the table does not exist or can't be read.
        """
        held = None
        for batch_id, groups in snapshot.content_batch_ids.items():
            if groups:
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

        found = self._collect(
            self.contents(snapshot).mapInArrow(for_workers(faults), "key_group int, fault string"), snapshot
        )
        told = sorted(row.fault for row in found if row.fault is not None)
        missing = sorted(set(expected) - {row.key_group for row in found})
        if told or missing:
            self.check_unchanged(snapshot)
        if told:
            raise CheckpointError(told[0])
        if missing:
            msg = (
                f"{what}: the content of key group {missing[0]} (of {len(missing)} in all) is not there; "
                f"the table's files were removed; restore another snapshot"
            )
            raise CheckpointError(msg)

    def has(self, snapshot: Snapshot) -> bool:
        """Return whether the table has a snapshot's rows as they were written.

        Raises:
            CheckpointError: The table can't be read.
        """
        try:
            self.headers(snapshot)
        except _RowsGoneError:
            return False
        return True

    def has_rows_of(self, batch_id: int) -> bool:
        """Return whether there are files of a batch, whether they count or not."""
        return bool(self._files.names(f"{STATE_TABLE}/batch_id={batch_id}"))

    def _load(self) -> DataFrame:
        if not self._files.exists(f"{STATE_TABLE}/_delta_log"):
            msg = (
                f"checkpoint {self._files.root}: it has no table {STATE_TABLE!r}, so no snapshot; "
                f"restore another checkpoint"
            )
            raise _RowsGoneError(msg)
        reader = self._spark.read.format("delta")
        if self._version is not None:
            reader = reader.option("versionAsOf", self._version)
        try:
            return reader.load(self._path)
        except SPARK_ERRORS as error:
            msg = f"checkpoint {self._files.root}: {self._unreadable(error)}; restore another checkpoint"
            raise CheckpointError(msg) from error

    def _collect(self, frame: DataFrame, snapshot: Snapshot) -> list[Row]:
        try:
            rows: list[Row] = frame.collect()
        except SPARK_ERRORS as error:
            if names_missing_file(error):
                raise self._gone(snapshot, f"files of its table {STATE_TABLE} are gone, vacuumed or deleted") from error
            msg = f"{self._what(snapshot)}: {self._unreadable(error)}; restore another snapshot"
            raise CheckpointError(msg) from error
        return rows

    def _gone(self, snapshot: Snapshot, found: str) -> _RowsGoneError:
        """Return the error of a snapshot whose rows are not what its index says.

        Raises:
            CheckpointError: Its query has removed or replaced it, which is the reason.
        """
        self.check_unchanged(snapshot)
        running = holder(self._files)
        again = f"; if its query still runs ({running}), it may be writing this batch again: then start again"
        return _RowsGoneError(f"{self._what(snapshot)}: {found}; restore another snapshot{again if running else ''}")

    @staticmethod
    def _unreadable(error: BaseException) -> str:
        return f"its table {STATE_TABLE} can't be read: {str(error).strip().partition(chr(10))[0]}"

    def _what(self, snapshot: Snapshot) -> str:
        return f"checkpoint {self._files.root}: snapshot of batch {snapshot.batch_id}"


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
        return (
            f"{where}: its row in the table {STATE_TABLE} describes other tables than there are; "
            f"restore another snapshot"
        )
    return None


def _ids(transactions: Iterable[dict[str, Any]]) -> set[tuple[str, int]]:
    return {(each["appId"], int(each["version"])) for each in transactions}


def _entry(row: Row) -> dict[str, Any]:
    fields = row.asDict()
    entry = {name: fields[name] for name in ("key_group", "content_batch_id", "content_bytes", "seal")}
    return entry | {"rows": sum(table.rows for table in row.tables)}
