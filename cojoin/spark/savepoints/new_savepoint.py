"""Writes a savepoint that no query has taken into a directory of its own, from the contents of its key groups.

The directory is leased while it is written. The note (``written_state``) comes first, then the rows of the state table,
the logs of file sources, the index of the snapshot, and last of all the description of the query, which makes the
directory a checkpoint. Killed before that, the directory is refused by whoever would begin with it, and written anew by
whoever writes again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel

from cojoin.checkpoints.identity import describe_written
from cojoin.checkpoints.lease import Lease
from cojoin.checkpoints.manifest import Manifest
from cojoin.checkpoints.snapshot_row import STATE_SCHEMA, snapshot_row
from cojoin.checkpoints.state_claims import Claim
from cojoin.checkpoints.state_table import StateTable
from cojoin.checkpoints.written_state import WrittenState, check_free, delete_unfinished
from cojoin.engine.values import codec
from cojoin.errors import CheckpointError
from cojoin.session import source_logs
from cojoin.session.arrow_types import spark_schema
from cojoin.session.kinds import adapter_of
from cojoin.session.offset_log import NOTHING_READ
from cojoin.session.sealed import for_workers
from cojoin.session.shared_places import SharedPlaces, begun
from cojoin.storage.local_store import LocalStore
from cojoin.storage.place_tokens import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.checkpoints.identity import SourceDescription
    from cojoin.engine.batch_report import BatchReport
    from cojoin.storage.store import Store

__all__ = ["GroupFacts", "NewSavepoint", "Positions", "keep", "told_of"]

_CONTROL_SOURCE = "2"
"""The number of the control input among a query's sources; its messages stay in its own checkpoint."""


@dataclass(frozen=True)
class Positions:
    """Where the sources of a query that begins with a savepoint go on, and what its outputs have.

    Attributes:
        query_id: The id of the query whose outputs go on; a new one where there is none.
        sources: The descriptions of the inputs' sources.
        manifest: The manifest that is followed; None where nothing was read and written.
        files: The checkpoint that has the manifest, and the logs of its file sources.
    """

    query_id: str
    sources: Sequence[SourceDescription]
    manifest: Manifest | None = None
    files: Store | None = None

    def of(self, report: BatchReport) -> Manifest:
        """Return the manifest of a savepoint with these positions."""
        if self.manifest is None:
            return Manifest(self.query_id, report, [NOTHING_READ] * 3, {}, {})
        # What belongs to the other checkpoint alone is left out: its control input, its runs, its segments.
        return replace(
            self.manifest,
            report=report,
            offsets=[*self.manifest.offsets[:-1], NOTHING_READ],
            logs={n: each for n, each in self.manifest.logs.items() if n != _CONTROL_SOURCE},
            durations_ms={},
            epoch=0,
            segments=(),
            described=0,
            called=None,
            previous=None,
        )


@dataclass(frozen=True)
class GroupFacts:
    """What the tasks tell of the key groups.

    Attributes:
        rows: The rows of each table, by key group.
        sizes: The size of each content in bytes.
        told: What else they tell, by key group.
        faults: What is wrong with the rows, and how many are.
    """

    rows: Mapping[int, Mapping[str, int]]
    sizes: Mapping[int, int]
    told: Mapping[int, Mapping[str, Any]]
    faults: Mapping[str, int]


@dataclass(frozen=True)
class NewSavepoint:
    """A savepoint that is about to be written.

    Attributes:
        spark: The session.
        files: Its directory.
        note: Who writes it.
        query: The description of the query that can begin with it.
        positions: Where its sources and outputs go on.
    """

    spark: SparkSession
    files: Store
    note: WrittenState
    query: Mapping[str, Any]
    positions: Positions

    def write(
        self,
        contents: DataFrame,
        headers: Mapping[int, str],
        report: BatchReport,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the savepoint.

        Args:
            contents: ``key_group int, content binary`` of all key groups.
            headers: Each key group's header, as JSON.
            report: The report of the batch after which it is.
            check: Raises an error where it must not count; called right before it is made to.

        Raises:
            CheckpointError: The directory holds something else, or another process writes into it.
        """
        files = self.files
        check_free(files, self.note.by)
        is_local = isinstance(files, LocalStore) and adapter_of(self.spark).has_other_hosts
        places = SharedPlaces([Place("checkpoint", files.root.removeprefix("file:"))]) if is_local else None
        with begun(places, self.spark, to_the_end=True):
            self._write(contents, headers, report, check)

    def _write(
        self, contents: DataFrame, headers: Mapping[int, str], report: BatchReport, check: Callable[[], None]
    ) -> None:
        files, manifest = self.files, self.positions.of(report)
        lease = Lease.acquire(files)
        try:
            check_free(files, self.note.by)
            self.note.write(files)
            delete_unfinished(files)
            rows = _snapshot_rows(contents, headers, report.batch_id)
            self._write_logs(manifest.offsets, lease)
            lease.check()
            table, claim = StateTable(self.spark, files), Claim.of_run(lease.epoch, report.batch_id)
            taken = table.write(
                rows, manifest, "savepoint", len(headers), remembered=False, claim=claim, check=lease.check
            )
            if taken is None:
                msg = f"checkpoint {files.root}: not all key groups were written; write the state again"
                raise CheckpointError(msg)
            check()
            lease.check()
            describe_written(files, self.positions.query_id, self.query, self.positions.sources)
        finally:
            lease.release()

    def _write_logs(self, offsets: Sequence[str], lease: Lease) -> None:
        """Write the logs of the file sources up to the offsets."""
        origin = self.positions.files
        if origin is None:
            return
        interval = source_logs.compact_interval(self.spark)
        for number, (source, offset) in enumerate(zip(self.positions.sources, offsets, strict=False)):
            if source is None or source["format"] == "delta" or offset == NOTHING_READ:
                continue
            position = json.loads(offset)
            if position.keys() == {"logOffset"}:
                entries, last = source_logs.entries(origin, number), int(position["logOffset"])
                source_logs.write_log(self.files, number, entries, last, interval=interval, check=lease.check)


def _snapshot_rows(contents: DataFrame, headers: Mapping[int, str], batch_id: int) -> DataFrame:
    """Return the rows of a snapshot."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for group, content in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                _, tables = codec.decode(content.as_buffer().to_pybytes())
                row, _ = snapshot_row(group, batch_id, json.loads(headers[group]), tables)
                yield from row.to_batches()

    return contents.select("key_group", "content").mapInArrow(for_workers(rows), spark_schema(STATE_SCHEMA))


def keep(contents: DataFrame) -> DataFrame:
    """Return contents that are computed once: they are looked at before anything is written of them."""
    return contents.persist(StorageLevel.DISK_ONLY)


def told_of(contents: DataFrame, key_groups: int) -> GroupFacts:
    """Compute contents, and return what the tasks tell of them.

    Args:
        contents: Rows of ``CONTENT_DDL``.
        key_groups: How many key groups there are.

    Raises:
        CheckpointError: A key group is missing or there twice.
    """
    found = contents.selectExpr("key_group", "told", "length(content) AS size").collect()
    if sorted(row.key_group for row in found) != [*range(key_groups)]:
        msg = f"the state has the key groups {sorted(row.key_group for row in found)}, expected all of {key_groups}"
        raise CheckpointError(msg)
    told = {row.key_group: json.loads(row.told) for row in sorted(found, key=lambda row: int(row.key_group))}
    faults: dict[str, int] = {}
    for each in told.values():
        for why, count in each["faults"].items():
            faults[why] = faults.get(why, 0) + count
    rows = {group: each["rows"] for group, each in told.items()}
    return GroupFacts(rows, {row.key_group: row.size for row in found}, told, faults)
