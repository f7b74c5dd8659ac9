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
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from cojoin.kafka.alignment import UnreadInput, confirmed_positions, next_slice, part_of
from cojoin.kafka.connected_input import ConnectedInput
from cojoin.kafka.positions import offset_of, positions_of, unread_of
from cojoin.kafka.tasks import Task, make_tasks
from cojoin.session.arrow_types import spark_schema
from cojoin.session.sealed import Sealed, sealed_call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from cojoin.kafka.client import Partition
    from cojoin.kafka.reading import Reading

__all__ = ["AlignedReader", "data_source"]


class AlignedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader that plans the batches of one input, aligned with the other.

    Args:
        reading: The input.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._connected: list[ConnectedInput] = []
        self._ends: list[dict[Partition, int]] | None = None
        self._hint = 20

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what is sent to the workers, which read tasks with it."""
        return sealed_call(AlignedReader, self._reading.on_a_worker())

    @property
    def _inputs(self) -> list[ConnectedInput]:
        """This input and the other, connected at first use, because the reader is sent to the workers."""
        if not self._connected:
            inputs = (self._reading, self._reading.beside)
            self._connected = [ConnectedInput(each) for each in inputs if each is not None]
        return self._connected

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the position at which the range begins."""
        return offset_of(0, None, self._inputs[0].begins())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Set what is there now as the run's end."""
        self._ends = [each.ends() for each in self._inputs]

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return how many records a batch may hold."""
        return ReadMaxRows(self._reading.limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the next batch ends, or the start itself where there is nothing to read."""
        after, trusted_until = int(start["time"]), self._reading.range.trusted_until
        ends = [each.ends() for each in self._inputs] if self._ends is None else self._ends
        for each in self._inputs:
            each.times.begin_batch(each.reading.range.trusted_until)
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
        found = own.ends if until is None else confirmed_positions(own, until)
        if parts > 1 or not own.fits(found):
            # The time does not advance until the last part is read.
            found = found if own.fits(found) else part_of(own, found)
            rest = {"until": until, "parts": max(1, parts - 1)}
            return offset_of(after, None, found, own.ends, trusted_until) | rest
        if until is not None:
            return offset_of(until, self._mark(until, found, own.ends), found, own.ends, trusted_until)
        if own.is_exhausted and self._ends is None:
            return start
        newest = [each.newest(side) for each, side in zip(self._inputs, [own, *others], strict=True)]
        until = max(after, *(each + 1 for each in newest))
        if own.is_exhausted and until == after:
            return start
        return offset_of(until, None if self._ends is None else self._mark(until, {}, {}), found, None, trusted_until)

    def _next(self, sides: Sequence[UnreadInput], after: int) -> tuple[int | None, int]:
        """Return the time at which the next slice ends, and in how many parts it is read."""
        # Records before the range are not read, so time begins where the range begins.
        begun = min(each.reading.range.from_ms or 0 for each in self._inputs)
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
        confirmed = self._inputs[0].times.next_stamp(until, positions, ends)
        # Records that are younger than the drift may not have arrived in their topic yet.
        return None if confirmed is None else min(confirmed, int(1000 * time.time()) - drift) - drift

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a batch's tasks.

        Raises:
            QueryFailedError: Records that were to be read next no longer exist, and losses are not skipped; or a topic
                was created anew.
        """
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
            what=self._reading.what,
            skips_losses=self._reading.skips_losses,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return a task's records; runs on a worker."""
        return self._reading.records(partition)

    def stop(self) -> None:
        """Close the connections."""
        for each in self._connected:
            each.close()


class WholeReader(DataSourceReader):
    """The reader of an input's whole range as it is now, in no particular order.

    Args:
        reading: The input.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what is sent to the workers, which read tasks with it."""
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
            what=self._reading.what,
            skips_losses=False,
        )
        # Of no tasks PySpark makes one that is None.
        return tasks or [Task([], {}, [])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return a task's records; runs on a worker."""
        return self._reading.records(partition)


def data_source(name: str, reading: Reading) -> type[DataSource]:
    """Return a data source class for an input; the class holds the description, because Spark shows its options.

    Spark pickles the class by value, since no module has it. What its methods use is sealed, so the process in which
    Spark plans with it has this cojoin.

    Args:
        name: The name of the data source's format.
        reading: The input.
    """
    part = Sealed(partial(_part, reading))

    def stream_reader(self: DataSource, schema: Any) -> Any:
        del self, schema
        return part("stream")

    def reader(self: DataSource, schema: Any) -> Any:
        del self, schema
        return part("whole")

    def schema(self: DataSource) -> Any:
        del self
        return part("schema")

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


def _part(reading: Reading, name: str) -> Any:
    """Return what a data source gives to Spark."""
    if name == "schema":
        return spark_schema(reading.schema)
    return AlignedReader(reading) if name == "stream" else WholeReader(reading)
