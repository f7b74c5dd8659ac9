"""The PySpark data source of an input's topics: a reader on the driver, and tasks on the workers.

The reader chooses where each micro-batch ends (``alignment``). It knows both inputs, so the other input's reader, which
runs in another process, chooses the same time. For each input it keeps an admin client and a consumer. Spark keeps the
reader's offsets (``positions``). A task reads ranges of offsets and returns Arrow batches.

Where a slice ends at a time, each partition's *mark* is sent with the rows: the partition is read up to this time, as
its next record confirms (``offsets_for_times``), less the drift that the user allows. So a partition that is silent or
at its end does not hold back the watermark. A run without an end has no marks once it has caught up: from then on only
``with_idleness`` distinguishes silence from delay.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from cojoin.errors import QueryFailedError
from cojoin.kafka.alignment import UnreadInput, confirmed_positions, next_slice, part_of
from cojoin.kafka.archive_index import NO_ARCHIVE
from cojoin.kafka.client import Cluster, name_of
from cojoin.kafka.offsets_for_times import RecordLookup, Times
from cojoin.kafka.positions import offset_of, positions_of, unread_of
from cojoin.kafka.records import RecordFormat, read_task
from cojoin.kafka.tasks import Task, make_tasks
from cojoin.kafka.topics import id_problem, merged_ids
from cojoin.session.arrow_types import spark_schema
from cojoin.session.sealed import Sealed, sealed_call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from cojoin.kafka.archive_index import ArchiveIndex
    from cojoin.kafka.client import ClusterOptions, Partition
    from cojoin.kafka.packed_records import PackedRecords
    from cojoin.kafka.ranges import Range
    from cojoin.kafka.topics import Topics


@dataclass(frozen=True)
class InputReading:
    """The description of an input that a reader needs; it is sent to the workers, and has no connections.

    ``limit`` is the largest number of records of a batch, ``tasks`` that of its tasks. ``max_drift_ms`` is the largest
    distance of a partition behind the time up to which all are read. ``other`` is the other input of the join, whose
    records are read up to the same times; None where this one is read alone. ``packing`` packs rows in the task that
    reads their records; None leaves that to the map side.
    """

    label: str
    cluster: ClusterOptions
    topics: Topics
    range: Range
    limit: int
    max_drift_ms: int
    skips_losses: bool
    format: RecordFormat
    tasks: int
    archive: ArchiveIndex = field(default=NO_ARCHIVE, repr=False)
    other: InputReading | None = field(default=None, repr=False)
    topic_ids: Mapping[str, str] = field(default_factory=dict, repr=False)
    packing: PackedRecords | None = field(default=None, repr=False)

    @property
    def schema(self) -> pa.Schema:
        """The columns of a task's batches."""
        return self.format.schema if self.packing is None else self.packing.schema(self.format.schema)

    def records(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's records, those of the archive first; runs on a worker."""
        assert isinstance(task, Task)
        records = self._records(task)
        yield from records if self.packing is None else self.packing(records)

    def _records(self, task: Task) -> Iterator[pa.RecordBatch]:
        held: dict[Partition, set[int]] = {}
        if task.archived:
            from cojoin.kafka.archive_files import archived  # noqa: PLC0415 - takes as long as all other imports

            yield from archived(task.archived, self.format, self.label, held)
        yield from read_task(task, self.cluster, self.format, self.label, held)

    def on_a_worker(self) -> InputReading:
        """Return the description for a worker, without anything that grows with the archive."""
        return replace(self, archive=NO_ARCHIVE, other=None)


_NO_LIMIT = 1 << 62


class ConnectedInput:
    """The topics of one input, with the connections through which the reader asks about them."""

    def __init__(self, reading: InputReading) -> None:
        self.reading = reading
        self.cluster = Cluster(reading.cluster, reading.label, reading.archive)
        self._lookup = RecordLookup(self.cluster, reading.label)
        self.times = Times(self.cluster, self._lookup, reading.limit, reading.max_drift_ms)
        self._stood: tuple[int, dict[Partition, int]] = (0, {})
        """A time up to which all was read, in epoch milliseconds, and the positions at that time."""

        self._known = {"topics": dict(reading.topic_ids)}

    def check_topics(self, partitions: Iterable[Partition]) -> None:
        """Refuse topics that were created again since the source was opened, or since they were first read."""
        ids = {"topics": self.cluster.describe(topic for topic, _ in partitions)}
        problem = id_problem(self._known, ids, self.reading.cluster.bootstrap_servers)
        if problem is not None:
            msg = f"{self.reading.label}: {problem}"
            raise QueryFailedError(msg)
        self._known = merged_ids(self._known, ids)

    def partitions(self) -> list[Partition]:
        """Return the partitions that exist now."""
        topics = self.reading.topics
        return topics.select(self.cluster.partitions(topics.names), self.reading.label)

    def begins(self, *, skip_lost: bool = False) -> dict[Partition, int]:
        """Return the offsets at which the range begins."""
        return self.reading.range.begin(self.cluster, self.partitions(), skip_lost=skip_lost)

    def ends(self) -> dict[Partition, int]:
        """Return the offsets at which reading ends now: before open transactions, unless the settings say otherwise."""
        partitions = self.partitions()
        ends = self.reading.range.end(self.cluster, partitions)
        return self.cluster.latest(partitions) if ends is None else ends

    def check_ends(self, ends: Mapping[Partition, int], positions: Mapping[Partition, int]) -> None:
        """Refuse a partition whose log ends before its position; an end that is set by ``to`` may."""
        read = [each for each, position in positions.items() if ends.get(each, position) < position]
        for partition, end in (self.cluster.latest(read) if read else {}).items():
            if end < positions[partition]:
                msg = (
                    f"{self.reading.label}: {name_of(partition)} ends at offset {end:,}, before the "
                    f"{positions[partition]:,} that are read: the topic was created again or cut off since; start a "
                    f"new query"
                )
                raise QueryFailedError(msg)

    def side(
        self, target: Mapping[Partition, int], positions: Mapping[Partition, int], *, no_limit: bool = False
    ) -> UnreadInput:
        """Return the unread part, from the positions that are known so far to the offsets of ``target``."""
        # A partition created later is read from its beginning; after a bounded run's start, it is read by the next run.
        new = [each for each in target if each not in positions]
        everywhere = {**positions, **(self.cluster.earliest(new) if new else {})}
        ends = {each: max(position, target.get(each, 0)) for each, position in everywhere.items()}

        def first_at(moment: int) -> dict[Partition, tuple[int, int] | None]:
            return self.times.first_at(moment, everywhere, ends)

        def confirms(moment: int) -> bool:
            return self.times.confirms(moment, everywhere, ends)

        return UnreadInput(everywhere, ends, _NO_LIMIT if no_limit else self.reading.limit, first_at, confirms)

    def standing_at(self, target: Mapping[Partition, int], moment: int, *, no_limit: bool) -> UnreadInput:
        """Return the unread part once all before a time, in epoch milliseconds, is read; 0 where nothing was read."""
        if not moment:
            return self.side(target, self.begins(skip_lost=True), no_limit=no_limit)
        before, stood = self._stood
        side = self.side(target, stood if before <= moment else {}, no_limit=no_limit)
        self._stood = (moment, confirmed_positions(side, moment))
        return self.side(target, self._stood[1], no_limit=no_limit)

    def newest(self, side: UnreadInput) -> int:
        """Return the largest timestamp up to the end of the input, in epoch milliseconds; -1 where it is empty."""
        until = self.reading.range.to_ms
        # Where the end is a time, the records after it show that all records before it have arrived.
        ends = side.ends if until is None else self.cluster.latest(side.ends)
        newest_stamp = self.times.newest(self.cluster.earliest(ends), ends)
        return -1 if newest_stamp is None else newest_stamp if until is None else min(newest_stamp, until - 1)

    def close(self) -> None:
        """Close the connections."""
        self._lookup.close()
        self.cluster.close()


class AlignedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader that plans the batches of one input, aligned with the other."""

    def __init__(self, reading: InputReading) -> None:
        self._reading = reading
        self._connected: list[ConnectedInput] = []
        self._ends: list[dict[Partition, int]] | None = None
        self._hint = 20

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the reader as it is sent to the workers, which read tasks with it."""
        return sealed_call(AlignedReader, self._reading.on_a_worker())

    @property
    def _inputs(self) -> list[ConnectedInput]:
        """This input and the other, connected at first use, because the reader is sent to the workers."""
        if not self._connected:
            inputs = (self._reading, self._reading.other)
            self._connected = [ConnectedInput(each) for each in inputs if each is not None]
        return self._connected

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the position at which the range begins."""
        return offset_of(0, None, self._inputs[0].begins())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Set the present ends as the run's end."""
        self._ends = [each.ends() for each in self._inputs]

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the largest number of records of a batch."""
        return ReadMaxRows(self._reading.limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the next batch ends, or the start itself where there is nothing to read."""
        after, trusted_until = int(start["time"]), self._reading.range.trusted_until
        ends = [each.ends() for each in self._inputs] if self._ends is None else self._ends
        for connected_input in self._inputs:
            connected_input.times.begin_batch(connected_input.reading.range.trusted_until)
        no_limit = isinstance(limit, ReadAllAvailable)
        self._inputs[0].check_ends(ends[0], positions_of(start))
        own = self._inputs[0].side(ends[0], positions_of(start), no_limit=no_limit)
        if trusted_until is not None and after > trusted_until:
            # A checkpoint may have come so far when all timestamps were trusted: time begins again at the next records.
            unread = {each: at for each, at in own.positions.items() if at < own.ends[each]}
            stamp = self._inputs[0].times.next_stamp(trusted_until, unread, own.ends)
            after = self._inputs[0].newest(own) + 1 if not unread or stamp is None else stamp
        until, parts = start.get("until"), int(start.get("parts", 0))
        others = []
        if not parts:
            others = [
                other.standing_at(end, after, no_limit=no_limit)
                for other, end in zip(self._inputs[1:], ends[1:], strict=True)
            ]
            sides = [own, *others]
            if all(side.is_exhausted for side in sides):
                return start
            until, parts = self._next(sides, after)
        positions = own.ends if until is None else confirmed_positions(own, until)
        if parts > 1 or not own.fits(positions):
            # The time does not advance until the last part is read.
            positions = positions if own.fits(positions) else part_of(own, positions)
            rest = {"until": until, "parts": max(1, parts - 1)}
            return offset_of(after, None, positions, own.ends, trusted_until) | rest
        if until is not None:
            return offset_of(until, self._mark(until, positions, own.ends), positions, own.ends, trusted_until)
        if own.is_exhausted and self._ends is None:
            return start
        newest = [each.newest(side) for each, side in zip(self._inputs, [own, *others], strict=True)]
        until = max(after, *(each + 1 for each in newest))
        if own.is_exhausted and until == after:
            return start
        return offset_of(
            until, None if self._ends is None else self._mark(until, {}, {}), positions, None, trusted_until
        )

    def _next(self, sides: Sequence[UnreadInput], after: int) -> tuple[int | None, int]:
        """Return the time at which the next slice ends, and the number of parts in which it is read."""
        # Records before the range are not read, so time begins where the range begins.
        begun = min(each.reading.range.from_ms or 0 for each in self._inputs)
        chosen = next_slice(sides, max(after, begun), self._hint)
        self._hint = chosen.hint
        return chosen.time, chosen.parts

    def _mark(self, until: int, positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> int | None:
        """Return every partition's mark once all records before a time are read; None where it can't be known."""
        drift, span = self._reading.max_drift_ms, self._reading.range
        # After an end that is an offset there may be records of any time.
        if span.is_bounded and span.to_ms is None:
            return None
        confirmed = self._inputs[0].times.next_stamp(until, positions, ends)
        # Records that are younger than the drift may not have arrived in their topic yet.
        return None if confirmed is None else min(confirmed, int(1000 * time.time()) - drift) - drift

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a batch's tasks, after a check that no topic was created again."""
        ends = positions_of(end)
        self._inputs[0].check_topics(ends)
        return make_tasks(
            self._inputs[0].cluster,
            positions_of(start),
            ends,
            end["mark"] if end["time"] != start["time"] else None,
            self._reading.tasks,
            unread=unread_of(end),
            trusted_until=end.get("believed"),
            label=self._reading.label,
            skips_losses=self._reading.skips_losses,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return a task's records; runs on a worker."""
        return self._reading.records(partition)

    def stop(self) -> None:
        """Close the connections."""
        for connected_input in self._connected:
            connected_input.close()


class WholeReader(DataSourceReader):
    """The reader of an input's whole range as it is now, in no particular order."""

    def __init__(self, reading: InputReading) -> None:
        self._reading = reading

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the reader as it is sent to the workers, which read tasks with it."""
        return sealed_call(WholeReader, self._reading.on_a_worker())

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        whole = ConnectedInput(self._reading)
        tasks = make_tasks(
            whole.cluster,
            whole.begins(),
            whole.ends(),
            None,
            self._reading.tasks,
            label=self._reading.label,
            skips_losses=False,
        )
        # Of no tasks PySpark makes one that is None.
        return tasks or [Task([], {}, [])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return a task's records; runs on a worker."""
        return self._reading.records(partition)


def data_source(name: str, reading: InputReading) -> type[DataSource]:
    """Return a data source class for an input; the class holds the description, because Spark shows its options.

    Spark pickles the class by value, since no module has it. What its methods use is sealed, so the process in which
    Spark plans with it has this cojoin.
    """
    part = Sealed(partial(_part, reading))
    members = {
        "name": classmethod(lambda _: name),
        "schema": lambda _: part("schema"),
        "streamReader": lambda *_, **_schema: part("stream"),
        "reader": lambda *_, **_schema: part("whole"),
    }
    return type("KafkaDataSource", (DataSource,), members)


def _part(reading: InputReading, name: str) -> Any:
    if name == "schema":
        return spark_schema(reading.schema)
    return AlignedReader(reading) if name == "stream" else WholeReader(reading)
