"""The PySpark data source of an input's topics: a reader on the driver, and tasks on the workers.

The reader chooses where each micro-batch ends (``alignment``). It knows both inputs, so the other input's reader, which
runs in a process of its own, chooses the same time. Spark keeps the reader's offsets: the next offset of each
partition, and the time up to which both inputs are read. A task reads ranges of offsets and returns Arrow batches.

Where a slice ends at a time, each partition's *mark* is sent with the rows. A mark says that the partition is read up
to this time, as its next record confirms (``times``), less the drift that the user allows. So a partition that is
silent or at its end does not hold back the watermark. A run without an end has no marks once it has caught up: from
then on only ``with_idleness`` distinguishes silence from delay.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from cojoin.errors import QueryFailedError
from cojoin.kafka.alignment import Side, confirmed_positions, next_slice, part_of
from cojoin.kafka.archive.hybrid_cluster import connected
from cojoin.kafka.peeking import Peeking
from cojoin.kafka.positions import offset_of, positions_of, unread_of
from cojoin.kafka.records import RecordFormat, read_task
from cojoin.kafka.tasks import Task, make_tasks
from cojoin.kafka.times import Times
from cojoin.kafka.topic_ids import difference, merged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from cojoin.kafka.archive.archive import ArchiveIndex
    from cojoin.kafka.client import ClusterOptions, Partition
    from cojoin.kafka.ranges import Range
    from cojoin.kafka.topics import Topics

__all__ = ["Reading", "data_source"]

_NO_LIMIT = 1 << 62


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

    def records(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's records, those of the archive first; runs on a worker."""
        assert isinstance(task, Task)
        held: dict[Partition, set[int]] = {}
        if task.archived:
            from cojoin.kafka.archive.archive_files import archived  # noqa: PLC0415 - takes as long as all other imports

            yield from archived(task.archived, self.format, self.what, held)
        yield from read_task(task, self.cluster, self.format, self.what, held)

    def on_a_worker(self) -> Reading:
        """Return what a worker needs to know, without anything that grows with the archive."""
        return replace(self, archive=None, beside=None)


class _Log:
    """The topics of one input, with the connections through which the reader asks about them."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.cluster = connected(reading.cluster, reading.what, reading.archive)
        self.peeking = Peeking(self.cluster, reading.what)
        self.times = Times(self.cluster, self.peeking, reading.limit, reading.max_drift_ms)
        self.stood: tuple[int, dict[Partition, int]] = (0, {})
        """A time up to which all was read, in epoch milliseconds, and the positions there."""

        self._known = {"topics": dict(reading.topic_ids)}

    def check_topics(self, partitions: Iterable[Partition]) -> None:
        """Check that no topic was created anew since the source was opened, or since the topic was first read.

        Raises:
            QueryFailedError: A topic was created anew.
        """
        found = {"topics": self.cluster.describe(topic for topic, _ in partitions)}
        problem = difference(self._known, found, self.reading.cluster.bootstrap_servers)
        if problem is not None:
            msg = f"{self.reading.what}: {problem}"
            raise QueryFailedError(msg)
        self._known = merged(self._known, found)

    def partitions(self) -> list[Partition]:
        """Return the partitions that exist now."""
        topics = self.reading.topics
        return topics.found(self.cluster.partitions(topics.names), self.reading.what)

    def begins(self, *, skip_lost: bool = False) -> dict[Partition, int]:
        """Return the offsets at which the range begins."""
        return self.reading.range.begin(self.cluster, self.partitions(), skip_lost=skip_lost)

    def ends(self) -> dict[Partition, int]:
        """Return the offsets at which reading ends now: before open transactions, unless the settings say otherwise."""
        partitions = self.partitions()
        ends = self.reading.range.end(self.cluster, partitions)
        return self.cluster.latest(partitions) if ends is None else ends

    def newest(self, side: Side) -> int:
        """Return the largest timestamp up to the end of an input, in epoch milliseconds; -1 where it is empty."""
        until = self.reading.range.to_ms
        # Where the end is a time, the records after it show that all records before it are there.
        ends = side.ends if until is None else self.cluster.latest(side.ends)
        found = self.times.newest(self.cluster.earliest(ends), ends)
        return -1 if found is None else found if until is None else min(found, until - 1)

    def close(self) -> None:
        """Close the connections."""
        self.peeking.close()
        self.cluster.close()


class AlignedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader that plans the batches of one input, aligned with the other.

    Args:
        reading: The input.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._connected: list[_Log] = []
        self._ends: list[dict[Partition, int]] | None = None
        self._hint = 20

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to the workers."""
        return {**self.__dict__, "_reading": self._reading.on_a_worker(), "_connected": []}

    @property
    def _logs(self) -> list[_Log]:
        """This input's topics and the other's, connected at first use, because the reader is sent to the workers."""
        if not self._connected:
            self._connected = [_Log(each) for each in (self._reading, self._reading.beside) if each is not None]
        return self._connected

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the position at which the range begins."""
        return offset_of(0, None, self._logs[0].begins())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Set what is there now as the run's end."""
        self._ends = [log.ends() for log in self._logs]

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return how many records a batch may hold."""
        return ReadMaxRows(self._reading.limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the next batch ends, or the start itself where there is nothing to read."""
        after, trusted_until = int(start["time"]), self._reading.range.trusted_until
        for log in self._logs:
            log.times.trusted_until = log.reading.range.trusted_until
        ends = [log.ends() for log in self._logs] if self._ends is None else self._ends
        no_limit = isinstance(limit, ReadAllAvailable)
        _check_ends(self._logs[0], ends[0], positions_of(start))
        own = _side(self._logs[0], ends[0], positions_of(start), no_limit=no_limit)
        if trusted_until is not None and after > trusted_until:
            # A checkpoint may have come so far when all timestamps were trusted: time begins again at the next records.
            unread = {each: at for each, at in own.positions.items() if at < own.ends[each]}
            stamp = self._logs[0].times.next_stamp(trusted_until, unread, own.ends)
            after = self._logs[0].newest(own) + 1 if not unread or stamp is None else stamp
        until, parts = start.get("until"), int(start.get("parts", 0))
        others = []
        if not parts:
            others = [
                _standing_at(log, each, after, no_limit=no_limit)
                for log, each in zip(self._logs[1:], ends[1:], strict=True)
            ]
            sides = [own, *others]
            if all(side.is_read for side in sides):
                return start
            until, parts = self._next(sides, after)
        found = own.ends if until is None else confirmed_positions(own, until)
        if parts > 1 or not own.fits(found):
            # The time does not advance until the last part is read.
            found = found if own.fits(found) else part_of(own, found)
            rest = {"until": until, "parts": max(1, parts - 1)}
            return offset_of(after, None, found, own.ends, trusted_until) | rest
        if until is not None:
            return offset_of(until, self._mark(until, found, own.ends), found, own.ends, trusted_until)
        if own.is_read and self._ends is None:
            return start
        newest = [log.newest(side) for log, side in zip(self._logs, [own, *others], strict=True)]
        until = max(after, *(each + 1 for each in newest))
        if own.is_read and until == after:
            return start
        return offset_of(until, None if self._ends is None else self._mark(until, {}, {}), found, None, trusted_until)

    def _next(self, sides: Sequence[Side], after: int) -> tuple[int | None, int]:
        """Return the time at which the next slice ends, and in how many parts it is read."""
        # Records before the range are not read, so time begins where the range begins.
        begun = min(log.reading.range.from_ms or 0 for log in self._logs)
        found = next_slice(sides, max(after, begun), self._hint)
        self._hint = found.hint
        return found.time, found.parts

    def _mark(self, until: int, positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> int | None:
        """Return every partition's mark once all records before a time are read; None where it can't be known.

        Args:
            until: The time, in epoch milliseconds.
            positions: The positions up to which partitions are read.
            ends: The offsets at which they end.
        """
        drift, asked = self._reading.max_drift_ms, self._reading.range
        # After an end that is an offset there may be records of any time.
        if asked.is_bounded and asked.to_ms is None:
            return None
        confirmed = self._logs[0].times.next_stamp(until, positions, ends)
        # Records that are younger than the drift may not have arrived in their topic yet.
        return None if confirmed is None else min(confirmed, int(1000 * time.time()) - drift) - drift

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a batch's tasks.

        Raises:
            QueryFailedError: Records that were to be read next no longer exist, and losses are not skipped; or a topic
                was created anew.
        """
        ends = positions_of(end)
        self._logs[0].check_topics(ends)
        return make_tasks(
            self._logs[0].cluster,
            positions_of(start),
            ends,
            end["mark"] if end["time"] != start["time"] else None,
            self._reading.tasks,
            unread=unread_of(end),
            trusted_until=end.get("believed"),
            what=self._reading.what,
            skips_losses=self._reading.skips_losses,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return a task's records; runs on a worker."""
        return self._reading.records(partition)

    def stop(self) -> None:
        """Close the connections."""
        for log in self._connected:
            log.close()


class WholeReader(DataSourceReader):
    """The reader of an input's whole range as it is now, in no particular order.

    Args:
        reading: The input.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to the workers."""
        return {"_reading": self._reading.on_a_worker()}

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        log = _Log(self._reading)
        return make_tasks(
            log.cluster,
            log.begins(),
            log.ends(),
            None,
            self._reading.tasks,
            what=self._reading.what,
            skips_losses=False,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return a task's records; runs on a worker."""
        return self._reading.records(partition)


def data_source(name: str, reading: Reading) -> type[DataSource]:
    """Return a data source class for an input; the class holds the description, because Spark shows its options.

    Args:
        name: The name of the data source's format.
        reading: The input.
    """

    def stream_reader(self: DataSource, schema: Any) -> AlignedReader:
        del self, schema
        return AlignedReader(reading)

    def reader(self: DataSource, schema: Any) -> WholeReader:
        del self, schema
        return WholeReader(reading)

    def schema(self: DataSource) -> Any:
        del self
        return from_arrow_schema(reading.format.schema)

    def named(cls: type[DataSource]) -> str:
        del cls
        return name

    members = {
        "name": classmethod(named),
        "schema": schema,
        "streamReader": stream_reader,
        "reader": reader,
    }
    return type("KafkaDataSource", (DataSource,), members)


def _check_ends(log: _Log, ends: Mapping[Partition, int], positions: Mapping[Partition, int]) -> None:
    """Check that no partition's log ends before its position; an end that is given by ``to`` may."""
    read = [each for each, position in positions.items() if ends.get(each, position) < position]
    for (topic, number), end in (log.cluster.latest(read) if read else {}).items():
        if end < positions[topic, number]:
            msg = (
                f"{log.reading.what}: topic {topic} partition {number} ends at offset {end:,}, before the "
                f"{positions[topic, number]:,} that are read: the topic was made anew or cut off since; "
                f"start a new query"
            )
            raise QueryFailedError(msg)


def _side(
    log: _Log, target: Mapping[Partition, int], positions: Mapping[Partition, int], *, no_limit: bool = False
) -> Side:
    # A partition created later is read from its beginning; one created after a bounded run's start, by the next run.
    new = [each for each in target if each not in positions]
    everywhere = {**positions, **(log.cluster.earliest(new) if new else {})}
    ends = {each: max(position, target.get(each, 0)) for each, position in everywhere.items()}

    def first_at(moment: int) -> dict[Partition, tuple[int, int] | None]:
        return log.times.first_at(moment, everywhere, ends)

    def confirms(moment: int) -> bool:
        return log.times.confirms(moment, everywhere, ends)

    return Side(everywhere, ends, _NO_LIMIT if no_limit else log.reading.limit, first_at, confirms)


def _standing_at(log: _Log, target: Mapping[Partition, int], moment: int, *, no_limit: bool) -> Side:
    """Return the other input as it is once all its records before a time are read."""
    if not moment:
        return _side(log, target, log.begins(skip_lost=True), no_limit=no_limit)
    before, stood = log.stood
    side = _side(log, target, stood if before <= moment else {}, no_limit=no_limit)
    log.stood = (moment, confirmed_positions(side, moment))
    return _side(log, target, log.stood[1], no_limit=no_limit)
