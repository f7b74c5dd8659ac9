"""What a reader needs to know of an input, on the driver and on the workers, where a task's records are read with it.

It has no connections, so it can be pickled: Spark sends it to the workers with the reader, without what grows with the
archive. A task reads the archive's records first, because the brokers only fill the holes of the archive.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cojoin.kafka.records import RecordFormat, read_task
from cojoin.kafka.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from cojoin.kafka.archive.archive_index import ArchiveIndex
    from cojoin.kafka.client import ClusterOptions, Partition
    from cojoin.kafka.packed_records import PackedRecords
    from cojoin.kafka.ranges import Range
    from cojoin.kafka.topics import Topics

__all__ = ["Reading"]


@dataclass(frozen=True)
class Reading:
    """What a reader needs to know of an input; it is sent to the workers.

    Attributes:
        what: The input, for messages.
        cluster: How the cluster is reached.
        topics: The topics and partitions that are read.
        range: Where reading begins and ends.
        limit: How many records a batch may hold.
        max_drift_ms: How far a partition may be behind the time up to which all are read, in milliseconds.
        skips_losses: Whether records that no longer exist are skipped and counted; otherwise they end the query.
        format: Which parts of a record its row has.
        tasks: The number of tasks into which a batch is cut, if it has enough records.
        archive: What the archive of its older records holds, where there is one.
        beside: The other input, whose records are read up to the same times; None where this input is read alone.
        topic_ids: The topics' ids when the source was opened, by name.
        packing: What packs the rows of records in the task that reads them; None leaves that to the map side.
    """

    what: str
    cluster: ClusterOptions
    topics: Topics
    range: Range
    limit: int
    max_drift_ms: int
    skips_losses: bool
    format: RecordFormat
    tasks: int
    archive: ArchiveIndex | None = field(default=None, repr=False)
    beside: Reading | None = field(default=None, repr=False)
    topic_ids: Mapping[str, str] = field(default_factory=dict, repr=False)
    packing: PackedRecords | None = field(default=None, repr=False)

    @property
    def schema(self) -> pa.Schema:
        """The columns of what a task returns."""
        return self.format.schema if self.packing is None else self.packing.schema(self.format.schema)

    def records(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's records, those of the archive first, packed where that is asked; runs on a worker."""
        assert isinstance(task, Task)
        records = self._records(task)
        yield from records if self.packing is None else self.packing(records)

    def _records(self, task: Task) -> Iterator[pa.RecordBatch]:
        held: dict[Partition, set[int]] = {}
        if task.archived:
            from cojoin.kafka.archive.archive_files import archived  # noqa: PLC0415 - takes as long as all other imports

            yield from archived(task.archived, self.format, self.what, held)
        yield from read_task(task, self.cluster, self.format, self.what, held)

    def on_a_worker(self) -> Reading:
        """Return what a worker needs to know, without anything that grows with the archive."""
        return replace(self, archive=None, beside=None)
