"""The reading of an input's topics as PySpark's own kind of data source: a reader on the driver, tasks on the workers.

The reader chooses where each micro-batch ends (``alignment``); it knows both inputs, so the other one's reader, which
runs in a process of its own, chooses the same time. Spark keeps its offsets: the next offset of each partition, and the
time up to which both inputs are read. A batch's task reads ranges of offsets and gives Arrow batches. Where a slice
ends at a time, each partition's *mark* travels with the rows: all of it up to there is read, less the drift that the
user allows; so a partition that is silent, or at its end, holds nothing. In a run without an end nothing is marked once
it has caught up: there only ``with_idleness`` tells silence from delay.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from cojoin.errors import QueryFailedError
from cojoin.kafka.alignment import Side, next_time, positions_at
from cojoin.kafka.archive import ArchiveIndex, connected
from cojoin.kafka.records import RecordFormat, read_task
from cojoin.kafka.tasks import Task, make_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from cojoin.kafka.client import ClusterOptions, Partition
    from cojoin.kafka.ranges import Range
    from cojoin.kafka.topics import Topics

__all__ = ["Reading", "data_source", "positions_of"]

_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class Reading:
    """What a reader is told of an input; it travels to the workers.

    Attributes:
        what: The input, for messages.
        cluster: Where it is.
        topics: What is read there.
        range: From where to where.
        limit: How many records a batch may hold.
        max_drift_ms: How far a partition may be behind the time up to which all are read.
        skips_losses: Whether records that aged out are passed over, and counted, or end the query.
        format: What becomes of a record.
        tasks: Into how many tasks a batch is cut, if it has enough records.
        archive: What the archive of its older records holds, where there is one.
        beside: The other input, whose records are read up to the same times; None reads alone.
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

    def records(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give a task's records, of the archive first; runs on a worker."""
        assert isinstance(task, Task)
        if task.archived:
            from cojoin.kafka.archive_files import archived  # noqa: PLC0415 - it takes as long as all the rest

            yield from archived(task.archived, self.format, self.what)
        yield from read_task(task, self.cluster, self.format, self.what)

    def on_a_worker(self) -> Reading:
        """Give what a worker needs to know: nothing that grows with the archive."""
        return replace(self, archive=None, beside=None)


class _Log:
    """One input's topics, as a reader asks them."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.cluster = connected(reading.cluster, reading.what, reading.archive)

    def partitions(self) -> list[Partition]:
        """Give the partitions that are there now."""
        return self.reading.topics.found(self.cluster.partitions(), self.reading.what)

    def begins(self, *, skip_lost: bool = False) -> dict[Partition, int]:
        """Give where the range begins."""
        return self.reading.range.begin(self.cluster, self.partitions(), skip_lost=skip_lost)

    def target(self) -> _Target:
        """Give where reading ends as of now."""
        partitions = self.partitions()
        # Asked before the ends: no record of that time or before may come behind them unseen.
        last = self.cluster.last_timestamps(partitions)
        ends = self.reading.range.end(self.cluster, partitions)
        found = max((each for each in last.values() if each is not None), default=-1)
        until = self.reading.range.to_ms
        return _Target(
            self.cluster.latest(partitions) if ends is None else ends,
            found if until is None else min(found, until - 1),
        )


@dataclass(frozen=True)
class _Target:
    """Where reading ends: the partitions' offsets, and the largest timestamp before."""

    ends: Mapping[Partition, int]
    last: int


class AlignedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of one input, beside the other.

    Args:
        reading: The input.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._connected: list[_Log] = []
        self._targets: list[_Target] | None = None
        self._hint = 20

    def __getstate__(self) -> dict[str, Any]:
        """Give what travels to the workers."""
        return {**self.__dict__, "_reading": self._reading.on_a_worker(), "_connected": []}

    @property
    def _logs(self) -> list[_Log]:
        """The input's own topics and the other's; connected at first use, for the reader travels to the workers."""
        if not self._connected:
            self._connected = [_Log(each) for each in (self._reading, self._reading.beside) if each is not None]
        return self._connected

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Give where the range begins."""
        return _offset(0, None, self._logs[0].begins())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Take what is there now as the run's end."""
        self._targets = [log.target() for log in self._logs]

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Give the limit of a batch's records."""
        return ReadMaxRows(self._reading.limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Give where the next batch ends; the start itself where there is nothing to read."""
        after = int(start["time"])
        targets = [log.target() for log in self._logs] if self._targets is None else self._targets
        no_limit = isinstance(limit, ReadAllAvailable)
        _check_ends(self._logs[0], targets[0], positions_of(start))
        own = _side(self._logs[0], targets[0], positions_of(start), no_limit=no_limit)
        others = zip(self._logs[1:], targets[1:], strict=True)
        sides = [own, *(_standing_at(log, each, after, no_limit=no_limit) for log, each in others)]
        if all(side.is_read for side in sides):
            return start
        # What lies before the range is not read: time begins with it.
        begun = min(log.reading.range.from_ms or 0 for log in self._logs)
        until, self._hint = next_time(sides, max(after, begun), self._hint)
        if until is None and own.is_read and self._targets is None:
            return start
        if until is not None:
            return _offset(until, self._mark(until), positions_at(own, until), own.ends)
        until = max(after, *(each.last + 1 for each in targets))
        return _offset(until, None if self._targets is None else self._mark(until), own.ends)

    def _mark(self, until: int) -> int | None:
        """Give how far time has come in every partition once all before a time is read; None where nobody can tell."""
        drift, asked = self._reading.max_drift_ms, self._reading.range
        # Behind an end that is an offset there may be records of any time.
        if asked.is_bounded and asked.to_ms is None:
            return None
        # What is younger than the drift may still be on its way to its topic.
        return min(until, int(1000 * time.time()) - drift) - drift

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Give a batch's tasks.

        Raises:
            QueryFailedError: Records that were to be read next are gone, and that is not allowed.
        """
        return make_tasks(
            self._logs[0].cluster,
            positions_of(start),
            positions_of(end),
            end["mark"] if end["time"] != start["time"] else None,
            self._reading.tasks,
            unread=unread_of(end),
            what=self._reading.what,
            skips_losses=self._reading.skips_losses,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give a task's records; runs on a worker."""
        return self._reading.records(partition)

    def stop(self) -> None:
        """Give up the connections."""
        for log in self._connected:
            log.cluster.close()


class WholeReader(DataSourceReader):
    """Reads an input's range as it is now, in no order.

    Args:
        reading: The input.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def __getstate__(self) -> dict[str, Any]:
        """Give what travels to the workers."""
        return {"_reading": self._reading.on_a_worker()}

    def partitions(self) -> Sequence[InputPartition]:
        """Give the tasks."""
        log = _Log(self._reading)
        return make_tasks(
            log.cluster,
            log.begins(),
            log.target().ends,
            None,
            self._reading.tasks,
            what=self._reading.what,
            skips_losses=False,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give a task's records; runs on a worker."""
        return self._reading.records(partition)


def data_source(name: str, reading: Reading) -> type[DataSource]:
    """Make the class that Spark reads an input by; what it is told stands in the class, not in options Spark shows.

    Args:
        name: The name of its format.
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


def _check_ends(log: _Log, target: _Target, positions: Mapping[Partition, int]) -> None:
    """See that no partition ends before what is read of it: a ``to`` may, a topic that was made anew must not."""
    read = [each for each, position in positions.items() if target.ends.get(each, position) < position]
    for (topic, number), end in (log.cluster.latest(read) if read else {}).items():
        if end < positions[topic, number]:
            msg = (
                f"{log.reading.what}: topic {topic} partition {number} ends at offset {end:,}, before the "
                f"{positions[topic, number]:,} that are read: the topic was made anew or cut off since; "
                f"start a new query"
            )
            raise QueryFailedError(msg)


def _side(log: _Log, target: _Target, positions: Mapping[Partition, int], *, no_limit: bool = False) -> Side:
    # One that came after the range was begun is read from its own beginning; after a bounded run's start, in the next.
    new = [each for each in target.ends if each not in positions]
    everywhere = {**positions, **(log.cluster.earliest(new) if new else {})}
    ends = {each: max(position, target.ends.get(each, 0)) for each, position in everywhere.items()}

    def first_at(moment: int) -> dict[Partition, tuple[int, int] | None]:
        return log.cluster.first_at(everywhere, moment)

    return Side(everywhere, ends, _NO_LIMIT if no_limit else log.reading.limit, first_at)


def _standing_at(log: _Log, target: _Target, moment: int, *, no_limit: bool) -> Side:
    """Give the other input as it stands once all before a time is read."""
    side = _side(log, target, {} if moment else log.begins(skip_lost=True), no_limit=no_limit)
    return replace(side, positions=positions_at(side, moment)) if moment else side


def _offset(
    until: int, mark: int | None, positions: Mapping[Partition, int], ends: Mapping[Partition, int] | None = None
) -> dict[str, Any]:
    """Spell an offset as Spark keeps it: the time up to which all is read, what that says of time, and the offsets.

    It also says which partitions hold more, so that a batch that is run again is told the same.
    """
    spelled: dict[str, dict[str, int]] = {}
    unread: dict[str, dict[str, bool]] = {}
    for (topic, number), position in sorted(positions.items()):
        spelled.setdefault(topic, {})[str(number)] = position
        if ends is not None and position < ends[topic, number]:
            unread.setdefault(topic, {})[str(number)] = True
    return {"time": until, "mark": mark, "positions": spelled, "unread": unread}


def unread_of(offset: Mapping[str, Any]) -> frozenset[Partition]:
    """Give the partitions that held more when a batch was planned."""
    return frozenset((topic, int(number)) for topic, numbers in offset["unread"].items() for number in numbers)


def positions_of(offset: Mapping[str, Any]) -> dict[Partition, int]:
    """Give the next offset of each partition, as an offset that Spark keeps spells them."""
    return {
        (topic, int(number)): int(position)
        for topic, positions in offset["positions"].items()
        for number, position in positions.items()
    }
