"""The description of an input's Kafka topics: what is read, over which range, and how it is decoded.

The description is checked when it is made (``source_arguments``), and against the brokers when it is opened. It can be
shown and logged: what may be secret is only in ``options``, which no ``repr`` shows, no Spark option holds and no
checkpoint keeps.
"""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from cojoin.engine.input_spec import DIRECT
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.kafka.archive.archive import Archive, Wanted
from cojoin.kafka.archive.hybrid_cluster import HybridCluster, connected
from cojoin.kafka.cluster_options import ClusterOptions
from cojoin.kafka.formats.debezium_envelope import FEED
from cojoin.kafka.formats.record_formats import DebeziumFormat
from cojoin.kafka.losses import gaps_since, moved_behind
from cojoin.kafka.open_transactions import held_back
from cojoin.kafka.packed_records import PackedRecords
from cojoin.kafka.packing_choice import why_through_spark
from cojoin.kafka.points import ALL, EARLIEST, LATEST, Point
from cojoin.kafka.positions import positions_of
from cojoin.kafka.ranges import Range
from cojoin.kafka.reader import data_source
from cojoin.kafka.reading import Reading
from cojoin.kafka.record_description import RecordDescription
from cojoin.kafka.records import FAULT, MARK, NEWEST
from cojoin.kafka.topic_ids import difference, merged
from cojoin.kafka.topic_monitor import TopicMonitor
from cojoin.kafka.topics import Topics
from cojoin.session.kinds import active_session, adapter_of
from cojoin.spark.sources.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.row_changes import ChangeFeed
    from cojoin.kafka.archive.archive_index import ArchiveIndex
    from cojoin.kafka.client import Cluster, Partition
    from cojoin.kafka.formats.record_formats import ResolvedFormat, ValueFormat
    from cojoin.kafka.record_columns import RecordColumn
    from cojoin.kafka.records import Record
    from cojoin.kafka.tasks import Gap
    from cojoin.spark.batch.grouping import Grouping
    from cojoin.spark.sources.sources import PlacedAt

__all__ = ["DataLoss", "KafkaSource", "Tombstones", "Undecodable"]

Undecodable: TypeAlias = Literal["reject", "fail"]
"""What happens to a record that can't be decoded.

- *reject*: it goes to the ``rejected`` output, with its topic, partition and offset, its beginning and the reason.
- *fail*: it ends the query.
"""

Tombstones: TypeAlias = Literal["reject", "keep"]
"""What happens to a record without a value, a tombstone.

- *reject*: it goes to the ``rejected`` output.
- *keep*: it is a row whose value columns are null, which a ``temporal_join`` takes for a delete.
"""

DataLoss: TypeAlias = Literal["fail", "skip"]
"""What happens to a query whose next records the brokers no longer have.

- *fail*: it ends with an error that says which records are missing and how many.
- *skip*: it goes on with the first record that is left; each gap is a row of the ``rejected`` output.
"""

_FORMAT = "cojoin-kafka"


@dataclass(frozen=True)
class KafkaSource(Source):
    """Topics of a Kafka cluster, read by event time; ``source`` makes one.

    A checkpoint keeps the cluster's id and the topics' ids. Another cluster, or a topic that was deleted and created
    anew, is refused at every start; such a topic is also refused while a query runs (``cojoin.kafka.topic_ids``).

    Attributes:
        cluster: How the cluster is reached.
        topics: The topics and partitions that are read.
        range: Where reading begins and ends.
        columns: Further columns by name, from the record's key, headers or timestamp.
        decode: The user's own function that decodes records; None reads JSON, or the format of ``value``.
        value: The format of values; None is plain JSON of ``schema``, or what ``decode`` takes.
        key: The format of keys; None makes no columns of them.
        limit: How many records of this input a micro-batch may hold.
        max_drift_ms: How far a partition may be behind the others, in milliseconds.
        undecodable: What happens to a record that can't be decoded.
        tombstones: What happens to a record without a value.
        data_loss: What happens to a query whose next records no longer exist.
        archive: Where its older records are, if not only on the brokers.
        group: The consumer group to which the offsets of counted batches are committed; None for none.
        beside: The other input of the join, if that is read from Kafka, too.
        moves_by: The input's key columns, where the rows are Debezium's change events.
        input_name: The input's name, for messages.
    """

    cluster: ClusterOptions = field(default_factory=lambda: ClusterOptions(""))
    topics: Topics = field(default_factory=Topics)
    range: Range = field(default_factory=lambda: Range.of(what=""))
    columns: Mapping[str, RecordColumn] = field(default_factory=dict)
    decode: Callable[[Record], Any] | None = None
    value: ValueFormat | None = None
    key: ValueFormat | None = None
    limit: int = 500_000
    max_drift_ms: int = 600_000
    undecodable: Undecodable = "reject"
    tombstones: Tombstones = "reject"
    data_loss: DataLoss = "fail"
    archive: Archive | None = field(default=None, compare=False)
    group: str | None = None
    beside: KafkaSource | None = field(default=None, repr=False)
    moves_by: tuple[str, ...] = ()
    input_name: str = field(default="", repr=False, compare=False)
    is_in_python: ClassVar[bool] = True
    resolved: dict[str, ResolvedFormat] = field(default_factory=dict, repr=False, compare=False)
    """The columns that formats were resolved to when the source was first opened, by the part of a record."""

    @property
    def max_apart_ms(self) -> int:
        """How far a record's timestamp may be after its event time for marks to be used, in milliseconds."""
        return self.max_drift_ms

    @property
    def feed(self) -> ChangeFeed | None:
        """Debezium's change events; None for other formats."""
        return FEED if isinstance(self.value, DebeziumFormat) else None

    @property
    def has_log(self) -> bool:
        """Whether Spark keeps a log of its own of what it has read; for Kafka it keeps only offsets."""
        return False

    @property
    def title(self) -> str:
        """The source in words, without secrets."""
        return self.cluster.mask(f"kafka {self.topics} at {self.cluster.bootstrap_servers}")

    @property
    def what(self) -> str:
        """The source's name in messages."""
        return f"source kafka {self.topics}"

    def together_with(self, other: Source) -> KafkaSource:
        """Return this source as it is read beside another: if both are read from Kafka, up to the same times.

        Raises:
            ConfigurationError: The sources have different values of ``max_drift``, or would commit the offsets of one
                topic to one consumer group.
        """
        if not isinstance(other, KafkaSource):
            return self
        shared = {*self.topics.names} & {*other.topics.names}
        if self.group is not None and self.group == other.group and (shared or self.topics == other.topics):
            msg = (
                f"group: both inputs would commit their offsets of kafka {self.topics} to {self.group!r}; give each a "
                f"group of its own"
            )
            raise ConfigurationError(msg)
        if other.max_drift_ms != self.max_drift_ms:
            msg = (
                f"max_drift: {self.what} has {self.max_drift_ms} ms, {other.what} has {other.max_drift_ms} ms; "
                f"both are read up to the same times, so give them the same"
            )
            raise ConfigurationError(msg)
        return replace(self, beside=replace(other, beside=None))

    def with_key(self, key: tuple[str, ...]) -> KafkaSource:
        """Return this source for a key: a change event that moves a row to another key deletes the former one's."""
        return self if self.feed is None else replace(self, moves_by=key)

    def of_input(self, name: str) -> KafkaSource:
        """Return this source with its input's name, which the error for a record names."""
        return replace(self, input_name=name)

    def with_max_ahead(self, max_ahead_ms: int) -> KafkaSource:
        """Return this source with a limit on record timestamps: those further ahead of the clock are not trusted."""
        return replace(self, range=replace(self.range, max_ahead_ms=max_ahead_ms))

    def why_endless(self) -> str | None:
        """Return what to do about a source without an end; None where it has one."""
        return None if self.range.is_bounded else f"{self.what} has no to=; say where it ends, such as to='latest'"

    def identity(self, spark: SparkSession) -> dict[str, str | None]:
        """Return what distinguishes this source from others: its topics, sorted by name."""
        del spark
        return {"format": self.format, "location": str(replace(self.topics, names=tuple(sorted(self.topics.names))))}

    def recognised(self, spark: SparkSession, what: str, known: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the identity with the ids of the cluster and topics, after a check that what was read is still read.

        Topics may be added from start to start: what the checkpoint does not know is read from its beginning.

        Args:
            spark: The session.
            what: The input, for messages.
            known: What the checkpoint keeps; None where nothing was read yet.

        Raises:
            CheckpointError: A topic was created anew or is left out, or it is another cluster.
        """
        if known is not None and known.get("format") == self.format:
            self.topics.check_kept(str(known.get("location")), known.get("topics") or (), what)
        with closing(self._connect(what)) as cluster:
            found = self._surveyed(cluster, what)[1]
        problem = difference(known or {}, found, self.cluster.bootstrap_servers)
        if problem is not None:
            msg = f"{what}: {problem}"
            raise CheckpointError(msg)
        return {**self.identity(spark), **merged(known or {}, found)}

    def check(self, *, is_new: bool) -> None:
        """Check the source against the brokers before the query starts.

        Args:
            is_new: Whether the query begins with this range; otherwise it goes on from a checkpoint.

        Raises:
            ConfigurationError: A topic or partition does not exist or may not be read, the range is wrong, a part of it
                no longer exists, or the cluster can't be reached with these options.
            QueryFailedError: No broker answers.
        """
        self._checked(is_new=is_new)

    def _checked(self, *, is_new: bool) -> dict[str, str]:
        """Check the same as ``check``, and return the topics' ids."""
        with closing(self._connect(self.what)) as cluster:
            partitions, found = self._surveyed(cluster, self.what)
            if isinstance(cluster, HybridCluster):
                cluster.check_ends(partitions)
            if is_new:
                begins, ends = self.range.resolve(cluster, partitions)
                if isinstance(cluster, HybridCluster) and self.data_loss == "fail":
                    cluster.check_seam(begins, ends)
            else:
                self.range.end(cluster, partitions)
        return dict(found["topics"])

    def _surveyed(self, cluster: Cluster, what: str) -> tuple[list[Partition], dict[str, Any]]:
        """Return the partitions that are read, and the ids of their cluster and topics."""
        partitions = self.topics.found(cluster.partitions(self.topics.names), what)
        ids = {name: each for name, each in cluster.describe(name for name, _ in partitions).items() if each}
        return partitions, {"cluster": cluster.cluster_id, "topics": ids}

    def span(self) -> tuple[int, int] | None:
        """Return the range's first and last timestamp at the moment, in epoch milliseconds; None where it is empty."""
        with closing(self._connect(self.what)) as cluster:
            partitions = self.topics.found(cluster.partitions(), self.what)
            return self.range.span(cluster, partitions)

    @property
    def ends_with_what_is_there(self) -> bool:
        """Whether a run over what is there reads all of it: where no ``to=`` is set, or the latest offsets are."""
        return all(point.kind == "latest" for point in (self.range.to or {}).values())

    def without_end(self) -> KafkaSource:
        """Return these topics without ``to=``, as a run without an end reads them."""
        if self.range.to is None:
            return self
        return replace(self, range=replace(self.range, to=None))

    def held_back(self) -> list[str]:
        """Return a text for each partition in which open transactions hold back records of the range."""
        with closing(self._connect(self.what)) as cluster:
            return held_back(cluster, self.topics.found(cluster.partitions(), self.what), self.range)

    def open(self, *, streaming: bool = True) -> DataFrame:
        """Return the topics as a DataFrame of the active Spark session.

        Args:
            streaming: Whether to return a stream, whose last columns ``__cojoin_mark``, ``__cojoin_fault`` and
                ``__cojoin_newest`` are for the join; otherwise all records of the range that can be decoded, without
                these columns.

        Raises:
            ConfigurationError: There is no active session, or a topic does not exist.
            QueryFailedError: No broker answers.
        """
        rows = self._opened(None, streaming=streaming)
        return rows if streaming else rows.where(rows[FAULT].isNull() & rows[NEWEST].isNull()).drop(FAULT, MARK, NEWEST)

    def how_packed(self, spec: InputSpec) -> str:
        """Return how the rows are packed: ``DIRECT`` by the tasks that read them, otherwise why not, in words.

        Args:
            spec: The input.
        """
        return why_through_spark(self._records, spec, has_archive=self.archive is not None) or DIRECT

    def open_packed(self, grouping: Grouping) -> DataFrame:
        """Return the topics as a stream of packed rows, and of the records that Spark decodes.

        Args:
            grouping: The input's columns, and how its rows are distributed to key groups.
        """
        records = self._records
        parts = records.parts(grouping.schema.names)
        assert parts is not None
        return self._opened(PackedRecords(grouping, parts, records.columns, records.json), streaming=True)

    def _opened(self, packing: PackedRecords | None, *, streaming: bool) -> DataFrame:
        spark = active_session()
        if spark is None:
            msg = f"{self.what}: there is no Spark session; make one with cojoin.spark_session()"
            raise ConfigurationError(msg)
        index = self._archived(again=True)
        name = f"{_FORMAT}-{uuid.uuid4().hex[:8]}"
        ids = self._checked(is_new=False)
        reading = replace(self.reading(adapter_of(spark).parallel_tasks()), topic_ids=ids, packing=packing)
        spark.dataSource.register(data_source(name, reading))
        reader: Any = spark.readStream if streaming else spark.read
        layout = None if index is None else index.layout
        fails_for = f"input {self.input_name!r}" if self.input_name else self.what
        return self._records.rows(
            reader.format(name).load(),
            fails_for=fails_for if self.undecodable == "fail" else None,
            archive=layout,
            moves_by=self.moves_by,
        )

    def lost_since(self, spark: SparkSession, what: str, offset: str | None) -> list[str]:
        """Return a text for each gap of records that no longer exist after a position of Spark's offset log."""
        del spark
        return [f"{what}: {gap}" for gap in self._gaps(what, offset)]

    def with_losses_accepted(self, spark: SparkSession, what: str, offset: str | None) -> str | None:
        """Return a position moved past the records that no longer exist."""
        del spark
        gaps = self._gaps(what, offset)
        return moved_behind(gaps, offset) if gaps and offset is not None else offset

    def between(self, what: str, begin: str | None, ends: Sequence[str]) -> tuple[DataFrame, PlacedAt]:
        """Return the records between positions that can be decoded, and a function that says where a row is.

        Raises:
            ConfigurationError: Records of the range no longer exist.
            QueryFailedError: No broker answers.
        """
        read = [positions_of(json.loads(end)) for end in ends]
        if begin is None:
            first = dict(self.range.from_)
        else:
            # A partition that the query did not know at the last position is not read.
            begun = positions_of(json.loads(begin))
            first = {ALL: LATEST, **{each: EARLIEST if each not in begun else _at(begun[each]) for each in read[-1]}}
        asked = Range(first, {each: _at(offset) for each, offset in read[-1].items()}, what)
        frame = replace(self, range=asked, beside=None).open(streaming=False)

        def places(rows: pa.Table) -> list[int]:
            columns = [rows.column(name).to_pylist() for name in (*self.partition, *self.sequence)]
            return [
                next((place for place, end in enumerate(read) if offset < end.get((topic, number), 0)), len(read))
                for topic, number, offset in zip(*columns, strict=True)
            ]

        return frame, places

    def monitor(self, what: str) -> TopicMonitor:
        """Return what commits offsets to ``group``, and asks how many are unread."""
        return TopicMonitor(self.cluster, self.topics, self.group, what)

    def _gaps(self, what: str, offset: str | None) -> list[Gap]:
        with closing(self._connect(what)) as cluster:
            return gaps_since(cluster, self.topics, what, offset)

    def reading(self, tasks: int) -> Reading:
        """Return what the source's reader needs to know.

        Args:
            tasks: The number of tasks into which a batch is cut.
        """
        index = self._archived()
        layout = None if index is None else index.layout
        return Reading(
            what=self.what,
            cluster=self.cluster,
            topics=self.topics,
            range=self.range,
            limit=self.limit,
            max_drift_ms=self.max_drift_ms,
            skips_losses=self.data_loss == "skip",
            format=self._records.record_format(keeps_tombstones=self.tombstones == "keep", archive=layout),
            tasks=tasks,
            archive=index,
            beside=None if self.beside is None else self.beside.reading(tasks),
        )

    @property
    def _records(self) -> RecordDescription:
        """What the records hold."""
        formats = {"value": self.value, "key": self.key}
        return RecordDescription(self.what, self.topics, self.schema, self.columns, self.decode, formats, self.resolved)

    def _connect(self, what: str) -> Cluster:
        return connected(self.cluster, what, self._archived(), at_start=True)

    def _archived(self, *, again: bool = False) -> ArchiveIndex | None:
        """Return what the archive holds, if there is one; ``again`` checks whether its files have changed."""
        if self.archive is None:
            return None
        records = self._records
        parts, schema = records.archived_parts, records.archived_schema
        wanted = Wanted(self.what, self.topics, schema, parts, self.max_drift_ms, self.range)
        return self.archive.index(wanted, again=again)


def _at(offset: int) -> Point:
    return Point("offset", offset)
