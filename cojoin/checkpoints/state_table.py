"""The ``state`` table: one row for each key group and snapshot, with the content only where it changed.

A row with content has a separate data file (the table is partitioned by batch and segment), so cleaning deletes whole
files and rewrites none. A snapshot is one commit; written again, it replaces the rows that it wrote before
(``state_commits``).

Rows are read from the Parquet files that the table's log names, chosen by their batches and segments, so that the
session needs no Delta. Where rows differ from those of the files (deletion vectors, column mapping), Spark's reader of
Delta's tables reads them.

The cleaning (``StateCleaner``) deletes the rows that no snapshot needs. It first lists the files, then checks whether
they still must go, and removes only those. However long it is suspended in between, it does not touch the rows that a
later snapshot of the same batch has written. Of a snapshot that is being removed, the content to which others point
stays, and so does that to which a savepoint may point that is being taken. A savepoint that counts as interrupted can't
commit its rows any more. Neither can a savepoint of a batch whose content is being removed, since its rows could
replace that content; if one has committed, the cleaning checks again.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from cojoin.checkpoints.lease import holder
from cojoin.checkpoints.segment_files import SegmentFolder
from cojoin.checkpoints.snapshot_row import (
    STATE_SCHEMA,
    are_whole,
    describe_content,
    files_of,
    open_content,
    seal_of,
)
from cojoin.checkpoints.snapshots import BeingRemovedError, SnapshotIndex, SnapshotKind, Snapshots, named
from cojoin.checkpoints.state_commits import PARTITIONS, STATE_TABLE, ClaimGoneError, StateCommits, partition_folder
from cojoin.delta.table_checks import why_not_plain
from cojoin.delta.table_log import TableLog, UnreadableLogError
from cojoin.errors import CheckpointError, CodecError, QueryFailedError
from cojoin.session.arrow_types import spark_schema
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import empty_frame
from cojoin.session.spark_errors import SPARK_ERRORS, first_line, names_missing_file
from cojoin.storage.locations import literally

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from cojoin.checkpoints.manifest import Manifest
    from cojoin.checkpoints.state_commits import Claim
    from cojoin.delta.actions import DataFile
    from cojoin.storage.store import Store

    Wanted: TypeAlias = Mapping[int, Collection[int] | None]
    """Rows of the table: for each batch the segments, or None for all rows of the batch."""


_INDEX = [name for name in STATE_SCHEMA.names if name not in ("content", *PARTITIONS)]
"""The columns from which a snapshot's index and its headers are made."""
_Expected: TypeAlias = "tuple[str, list[tuple[str, int, str]]]"
"""The fingerprint of a key group's content, and each table's name, number of rows and columns as DDL."""

STATE_LOCK = threading.RLock()
"""Held in this process while a savepoint is taken or snapshots are cleaned: the two must not overlap."""

_TRIES = 5


class _RowsGoneError(CheckpointError):
    """The table lacks rows of a snapshot, or has others than were written."""


class StateTable:
    """The state table of one checkpoint, at a version, or, with None, at the newest at the time of each job.

    ``commits`` are those with which the caller writes several snapshots.
    """

    def __init__(
        self, spark: SparkSession, files: Store, version: int | None = None, commits: StateCommits | None = None
    ) -> None:
        self._spark, self._files, self._version, self._commits = spark, files, version, commits
        self._path, self._log = files.path(STATE_TABLE), TableLog(files, STATE_TABLE)
        self._snapshots = Snapshots(files)

    @property
    def segments(self) -> SegmentFolder:
        """The folder of the files that contents name."""
        return SegmentFolder.of(self._files)

    def pinned(self, snapshot: SnapshotIndex) -> StateTable:
        """Return the table at its present version, which has a snapshot's rows whatever a query cleans meanwhile.

        A job that reads it later fails where files of the snapshot were deleted since, and does not miss their rows.
        Raises ``CheckpointError`` where the snapshot is being removed.
        """
        with self._errors_named(snapshot):
            table = self._log.newest()
        # After the version is known.
        self.check_unchanged(snapshot)
        return self if table is None else StateTable(self._spark, self._files, table.version)

    def check_unchanged(self, snapshot: SnapshotIndex) -> None:
        """Check that a snapshot still counts, as it did when its index was read.

        Its query may continue, and clean, or execute the batch again. It marks a snapshot as removed before it removes
        rows; a reader in between may have missed some without an error.
        """
        now = self._snapshots.read(snapshot.batch_id)
        if now is None or now.seal != snapshot.seal:
            msg = (
                f"{self._label(snapshot)}: its query has removed or replaced it while it was read; start again, which "
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
        claim: Claim,
        check: Callable[[], None] = lambda: None,
    ) -> SnapshotIndex | None:
        """Write a snapshot's rows, in place of those of an earlier attempt, and make it count.

        The rows are of ``STATE_SCHEMA``. ``remembered``: the query's own state points to the snapshot. The claim keeps
        the rows out of the table where another writer has committed since. ``check`` raises an error where the snapshot
        must not count, and is called right before it is made to. Returns None where some key group has no row, so that
        the snapshot could not be restored. Raises ``BeingRemovedError`` for a savepoint that counts as interrupted, or
        was replaced, and ``QueryFailedError`` where a later run of the query has taken over.
        """
        commits = self._commits or StateCommits(self._spark, self._files)
        try:
            # The index is made from the rows as written: rows that a task computes again may have other fingerprints.
            written = commits.replace(rows, manifest.batch_id, claim)
            if written is None:
                written = self._rows({manifest.batch_id: None}, _INDEX).collect()
        except ClaimGoneError as error:
            check()
            raise self._refused(manifest, kind) from error
        except (QueryFailedError, *SPARK_ERRORS):
            # Where another run has taken over, that is the reason, which the check raises.
            check()
            raise
        if sorted(row.key_group for row in written) != [*range(key_groups)]:
            return None
        index = sorted(map(_entry, written), key=itemgetter("key_group"))
        holders: dict[str, list[int]] = {}
        for row in index:
            holders.setdefault(str(row["content_batch_id"]), []).append(row["key_group"])
        of_contents = sum(row["content_bytes"] for row in index)
        files = {name for row in written for name in files_of(row.header)}
        snapshot = SnapshotIndex(
            # Its files stay as long as the snapshot, those of its rows as well as those of the batch.
            replace(manifest, segments=tuple(sorted(files.union(manifest.segments)))),
            kind,
            key_groups,
            rows=sum(row["rows"] for row in index),
            state_bytes=manifest.report.state_bytes if files or manifest.segments else of_contents,
            written_bytes=sum(row["content_bytes"] for row in index if row["content_batch_id"] == manifest.batch_id),
            content_batch_ids=holders,
            seal=seal_of(*(row["seal"] for row in index)),
            remembered=remembered,
            claim=claim.savepoint,
        )

        def check_all() -> None:
            check()
            if snapshot.claim and not commits.has_claim(claim):
                raise self._refused(manifest, kind)

        self._snapshots.write(snapshot, check_all)
        return snapshot

    def _refused(self, manifest: Manifest, kind: SnapshotKind) -> CheckpointError | QueryFailedError:
        where = f"{self._files.named}: the snapshot of batch {manifest.batch_id} was not written"
        if kind == "savepoint":
            return BeingRemovedError(f"{where}: other savepoints were, or a cleaning has taken it for interrupted")
        return QueryFailedError(
            f"{where}: fenced off: the table {STATE_TABLE} has snapshots of a run of this epoch ({manifest.epoch}) or "
            f"of a later one; nothing else was written, start the query again"
        )

    def headers(self, snapshot: SnapshotIndex) -> list[Row]:
        """Check a snapshot's rows against its index, and return them without their content, by key group."""
        with self._errors_named(snapshot):
            rows = {row.key_group: row for row in self._rows({snapshot.batch_id: None}, _INDEX).collect()}
        if len(rows) != snapshot.key_groups:
            expected = f"expected the rows of {snapshot.key_groups} key groups, found {len(rows)}"
            raise self._gone(snapshot, f"{expected}; the table {STATE_TABLE} was changed")
        rows_in_order = [rows[group] for group in sorted(rows)]
        if not are_whole(rows_in_order, snapshot):
            raise self._gone(snapshot, f"its rows in the table {STATE_TABLE} are not those that were written")
        return rows_in_order

    def contents(self, snapshot: SnapshotIndex) -> DataFrame:
        """Return ``(key_group, content)`` of a snapshot, also where the content is in earlier snapshots' rows."""
        wanted = {int(batch_id): groups for batch_id, groups in snapshot.content_batch_ids.items() if groups}
        if not wanted:
            msg = f"{self._label(snapshot)}: it names no content; restore another snapshot"
            raise CheckpointError(msg)
        with self._errors_named(snapshot):
            return self._rows(wanted, ["key_group", "content"])

    def check(self, snapshot: SnapshotIndex) -> None:
        """Check all of a snapshot's content against its fingerprints."""
        label, segments = self._label(snapshot), self.segments
        expected = {
            row.key_group: (row.fingerprint, [(each.name, each.rows, each.columns) for each in row.tables])
            for row in self.headers(snapshot)
        }

        def faults(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                groups = batch.column("key_group").to_pylist()
                texts = [
                    _fault(content.as_py(), expected[group], f"{label}, key group {group}", segments)
                    for group, content in zip(groups, batch.column("content"), strict=True)
                ]
                columns = [pa.array(groups, pa.int32()), pa.array(texts, pa.string())]
                yield pa.RecordBatch.from_arrays(columns, names=["key_group", "fault"])

        with self._errors_named(snapshot):
            checked = self.contents(snapshot).mapInArrow(for_workers(faults), "key_group int, fault string").collect()
        messages = sorted(row.fault for row in checked if row.fault is not None)
        missing = sorted(set(expected) - {row.key_group for row in checked})
        if messages or missing:
            self.check_unchanged(snapshot)
        if messages:
            raise CheckpointError(messages[0])
        if missing:
            msg = (
                f"{label}: the content of key group {missing[0]} (of {len(missing)} in all) is missing; "
                f"the table's files were removed; restore another snapshot"
            )
            raise CheckpointError(msg)

    def has(self, snapshot: SnapshotIndex) -> bool:
        """Return whether the table has a snapshot's rows as they were written."""
        try:
            self.headers(snapshot)
        except _RowsGoneError:
            return False
        return True

    def has_rows_of(self, batch_id: int) -> bool:
        """Return whether files of a batch exist, whether they count or not."""
        return bool(self._files.names(f"{STATE_TABLE}/batch_id={batch_id}"))

    def _rows(self, wanted: Wanted, columns: list[str]) -> DataFrame:
        """Return columns of some rows, in no order; a file that is gone may be named now, or when they are read."""
        table = self._log.newest() if self._version is None else self._log.at(self._version)
        if table is None:
            msg = f"{self._files.named}: it has no table {STATE_TABLE!r}, so no snapshot; restore another checkpoint"
            raise _RowsGoneError(msg)
        files = _wanted_files(self._log.files(table.version), wanted)
        why = why_not_plain(table.protocol, table.metadata)
        if why is not None or any(each.deletion_vector for each in files):
            return self._rows_by_delta(wanted, columns, why or "its deletion vectors")
        schema = pa.schema([STATE_SCHEMA.field(name) for name in columns])
        if not files:
            return empty_frame(self._spark, schema)
        # Without the columns of the partitions, which the files do not have.
        paths = (literally(f"{self._path}/{each.path}") for each in files)
        return self._spark.read.schema(spark_schema(schema)).parquet(*paths)

    def _rows_by_delta(self, wanted: Wanted, columns: list[str], why: str) -> DataFrame:
        # Of the newest version without its number: Delta refuses numbers of versions that are old.
        options = {} if self._version is None else {"versionAsOf": self._version}
        try:
            return (
                self._spark.read.format("delta")
                .options(**options)
                .load(self._path)
                .where(_condition(wanted))
                .select(*columns)
            )
        except SPARK_ERRORS as error:
            msg = (
                f"{self._files.named}: {why} makes Spark's reader of Delta necessary for its table "
                f"{STATE_TABLE}, and that failed: {first_line(error)}; see that the session has "
                f"Delta, as that of cojoin.spark_session() has, or restore another checkpoint"
            )
            raise CheckpointError(msg) from error

    @contextlib.contextmanager
    def _errors_named(self, snapshot: SnapshotIndex) -> Iterator[None]:
        """Raise errors of reading a snapshot's rows as errors of the snapshot."""
        try:
            yield
        except (UnreadableLogError, *SPARK_ERRORS) as error:
            if names_missing_file(error):
                raise self._gone(snapshot, f"files of its table {STATE_TABLE} are gone, vacuumed or deleted") from error
            why = f"its table {STATE_TABLE} can't be read: {first_line(error)}"
            msg = f"{self._label(snapshot)}: {why}; restore another snapshot"
            raise CheckpointError(msg) from error

    def _gone(self, snapshot: SnapshotIndex, reason: str) -> _RowsGoneError:
        """Return the error of a snapshot whose rows are not those of its index; raise if its query has removed it."""
        self.check_unchanged(snapshot)
        running = holder(self._files)
        again = f"; if its query still runs ({running}), it may be writing this batch again: then start again"
        return _RowsGoneError(f"{self._label(snapshot)}: {reason}; restore another snapshot{again if running else ''}")

    def _label(self, snapshot: SnapshotIndex) -> str:
        return f"{self._files.named}: snapshot of batch {snapshot.batch_id}"


def _fault(content: bytes | None, expected: _Expected, where: str, segments: SegmentFolder) -> str | None:
    fingerprint, described = expected
    try:
        files, tables = open_content(content, fingerprint, where)
        files.check(segments)
    except (CheckpointError, CodecError) as error:
        return str(error)
    if described != [(each["name"], each["rows"], each["columns"]) for each in describe_content(files, tables)]:
        return (
            f"{where}: its row in the table {STATE_TABLE} describes other tables than it has; restore another snapshot"
        )
    return None


def _wanted_files(files: Iterable[DataFile], wanted: Wanted) -> list[DataFile]:
    """Return the files with wanted rows, by the values of their partitions, which in a damaged log may be any texts."""
    segments = {str(batch_id): None if some is None else set(map(str, some)) for batch_id, some in wanted.items()}
    chosen = []
    for file in files:
        batch_id, segment = (file.partition_values.get(name) for name in PARTITIONS)
        if batch_id in segments and ((some := segments[batch_id]) is None or segment in some):
            chosen.append(file)
    return chosen


def _condition(wanted: Wanted) -> Any:
    """Return the condition on wanted rows, for Spark's reader."""
    condition = F.lit(value=False)
    for batch_id, segments in wanted.items():
        of_batch = F.col("batch_id") == batch_id
        condition |= of_batch if segments is None else of_batch & F.col("segment").isin([*segments])
    return condition


def _entry(row: Row) -> dict[str, Any]:
    fields = row.asDict()
    entry = {name: fields[name] for name in ("key_group", "content_batch_id", "content_bytes", "seal")}
    return entry | {"rows": sum(table.rows for table in row.tables)}


class StateCleaner:
    """Deletes snapshots of one checkpoint with their rows."""

    def __init__(self, spark: SparkSession, files: Store) -> None:
        self._files, self._commits = files, StateCommits(spark, files)
        self._snapshots = Snapshots(files)

    def clean(
        self,
        batch_ids: Sequence[int],
        *,
        savepoints_too: bool = True,
        known: int | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> int:
        """Delete snapshots with their files, except content to which other snapshots point; return the deleted bytes.

        With ``savepoints_too``, one that has become a savepoint meanwhile is deleted, too. ``known`` is the batch of
        the newest snapshot that the caller has written, or None: where a listing lacks it, nothing is deleted, and
        ``CheckpointError`` is raised. ``check`` raises an error where the caller must not delete; it is called once the
        files are listed.
        """
        for batch_id in batch_ids:
            self._snapshots.remove(batch_id, savepoints_too=savepoints_too)
        removed = [each for each in self._snapshots.removed() if self._snapshots.bar(each)]
        if any(each.is_begun for each in removed):
            # From here on their rows are in the table already, or never will be.
            self._commits.end_savepoints()
        known = None if known in batch_ids else known
        promised, needed, freed = self._delete_unneeded(removed, known, check)
        # Content that savepoints being taken may not need in the end is checked again later.
        waiting = {batch_id for batch_id, _ in promised - needed}
        for snapshot in removed:
            if waiting.isdisjoint(_holders(snapshot)):
                self._snapshots.forget(snapshot.batch_id)
        return freed

    def _delete_unneeded(
        self, removed: Sequence[SnapshotIndex], known: int | None, check: Callable[[], None]
    ) -> tuple[set[tuple[int, int]], set[tuple[int, int | None]], int]:
        """Delete what removed snapshots had or pointed to and no other needs.

        Returns the partitions that savepoints may point to, those that snapshots need, and the size of the deleted
        files.
        """
        batch_ids = {each.batch_id for each in removed}
        promised, needed, gone = self._look(removed, known)
        if {batch_id for batch_id, _ in gone} <= batch_ids:
            return promised, needed, self._delete(gone, batch_ids, None, check) or 0
        for _ in range(_TRIES):
            # A savepoint of one of the other batches may be about to count, with rows in the place of this content.
            ended = self._commits.end_savepoints()
            promised, needed, gone = self._look(removed, known)
            freed = self._delete(gone, batch_ids, ended, check)
            if freed is not None:
                return promised, needed, freed
        msg = (
            f"{self._files.named}: savepoints were taken all the time while old snapshots were removed, "
            f"{_TRIES} times; the next cleaning removes them"
        )
        raise CheckpointError(msg)

    def _delete(
        self,
        gone: Sequence[tuple[int, int | None]],
        removed: Collection[int],
        ended: Claim | None,
        check: Callable[[], None],
    ) -> int | None:
        """Delete the files of partitions, and return their size; None where a savepoint was written meanwhile.

        ``removed`` are the batches whose snapshots are being removed; ``ended`` is the claim that has ended the
        savepoints of other batches, None without others.
        """
        if not gone:
            return 0
        partitions = {partition_folder(*each): each for each in gone}
        # Files without a commit, or of a commit that was replaced, are not in the log.
        listed = [f"{folder}/{name}" for folder in partitions for name in self._files.names(f"{STATE_TABLE}/{folder}")]
        logged = self._commits.files()
        check()
        finished = {each for each in removed if not self._snapshots.still_removed(each)}
        left = {folder: each for folder, each in partitions.items() if each[0] not in finished}
        paths = {path for path, partition in logged.items() if partition in left.values()}
        if not self._commits.remove(paths, [*left.values()], ended):
            return None
        freed = 0
        for name in sorted({*paths, *(each for each in listed if each.rpartition("/")[0] in left)}):
            freed += self._files.size(f"{STATE_TABLE}/{name}")
            self._files.delete(f"{STATE_TABLE}/{name}")
        for folder in left:
            self._files.delete_empty_directory(f"{STATE_TABLE}/{folder}")
        for batch_id in sorted({each[0] for each in left.values()}):
            self._files.delete_empty_directory(f"{STATE_TABLE}/batch_id={batch_id}")
        return freed

    def _look(
        self, removed: Sequence[SnapshotIndex], known: int | None
    ) -> tuple[set[tuple[int, int]], set[tuple[int, int | None]], list[tuple[int, int | None]]]:
        """Return the partitions that savepoints may point to, those that snapshots need, and those that may go."""
        # First the content that savepoints may point to, and then that which they do: one may count meanwhile.
        promised = self._snapshots.promised({each.batch_id for each in removed})
        needed = self._needed(known)
        return promised, needed, self._unneeded(removed, needed | promised)

    def _needed(self, known: int | None) -> set[tuple[int, int | None]]:
        """Return the partitions (batch and segment) that snapshots have or point to; a ``known`` one must be listed."""
        kept = self._snapshots.listed(known)
        return {*named(kept), *((snapshot.batch_id, None) for snapshot in kept)}

    def _unneeded(
        self, removed: Sequence[SnapshotIndex], needed: Collection[tuple[int, int | None]]
    ) -> list[tuple[int, int | None]]:
        """Return the partitions (batch and segment) that removed snapshots had or pointed to, and no other needs.

        Other partitions are left unchanged: they may belong to a snapshot that is being written.
        """
        partitions = [
            (batch_id, int(value) if (value := name.partition("=")[2]).isdigit() else None)
            for batch_id in sorted({holder for snapshot in removed for holder in _holders(snapshot)})
            for name in self._files.names(f"{STATE_TABLE}/batch_id={batch_id}")
        ]
        return [each for each in partitions if each not in needed]


def _holders(snapshot: SnapshotIndex) -> set[int]:
    """Return the batches that have rows of a snapshot, or content to which it points."""
    return {snapshot.batch_id, *map(int, snapshot.content_batch_ids)}
