"""The description of an input's Kafka topics: what is read, over which range, and how it is decoded.

The description is checked when it is made, and against the brokers when it is opened. It can be shown and logged: what
may be secret is only in ``options``, which no ``repr`` shows, no Spark option holds and no checkpoint keeps.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import pyarrow as pa
from pyspark.sql import SparkSession

from cojoin.engine.time.durations import Duration, milliseconds
from cojoin.engine.values.types import parse_schema
from cojoin.errors import CheckpointError, ConfigurationError, did_you_mean
from cojoin.kafka.archive.archive_index import Archive, Wanted
from cojoin.kafka.archive.hybrid_cluster import HybridCluster, connected
from cojoin.kafka.cluster_options import ClusterOptions
from cojoin.kafka.losses import gaps_since, moved_behind
from cojoin.kafka.ranges import Bound, Range
from cojoin.kafka.reader import Reading, data_source
from cojoin.kafka.record_columns import RecordColumn, check_columns, decoded
from cojoin.kafka.records import FAULT, MARK, NEWEST, VALUE, Record, RecordFormat
from cojoin.kafka.topic_ids import difference, merged
from cojoin.kafka.topics import Topics
from cojoin.spark.sources.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from cojoin.kafka.archive.archive import ArchiveIndex
    from cojoin.kafka.client import Cluster, Partition
    from cojoin.kafka.tasks import Gap

__all__ = ["KafkaSource", "source"]

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
        decode: The user's own function that decodes records; None reads JSON.
        limit: How many records of this input a micro-batch may hold.
        max_drift_ms: How far a partition may be behind the others, in milliseconds.
        undecodable: What happens to a record that can't be decoded.
        tombstones: What happens to a record without a value.
        data_loss: What happens to a query whose next records no longer exist.
        archive: Where its older records are, if not only on the brokers.
        beside: The other input of the join, if that is read from Kafka, too.
    """

    cluster: ClusterOptions = field(default_factory=lambda: ClusterOptions(""))
    topics: Topics = field(default_factory=Topics)
    range: Range = field(default_factory=lambda: Range.of(what=""))
    columns: Mapping[str, RecordColumn] = field(default_factory=dict)
    decode: Callable[[Record], Any] | None = None
    limit: int = 500_000
    max_drift_ms: int = 600_000
    undecodable: Undecodable = "reject"
    tombstones: Tombstones = "reject"
    data_loss: DataLoss = "fail"
    archive: Archive | None = field(default=None, compare=False)
    beside: KafkaSource | None = field(default=None, repr=False)

    @property
    def max_apart_ms(self) -> int:
        """How far a record's timestamp may be after its event time for marks to be used, in milliseconds."""
        return self.max_drift_ms

    @property
    def has_log(self) -> bool:
        """Whether Spark keeps a log of its own of what it has read; for Kafka it keeps only offsets."""
        return False

    @property
    def what(self) -> str:
        """The source's name in messages."""
        return f"source kafka {self.topics}"

    def together_with(self, other: Source) -> KafkaSource:
        """Return this source as it is read beside another: if both are read from Kafka, up to the same times.

        Raises:
            ConfigurationError: The sources have different values of ``max_drift``.
        """
        if not isinstance(other, KafkaSource):
            return self
        if other.max_drift_ms != self.max_drift_ms:
            msg = (
                f"max_drift: {self.what} has {self.max_drift_ms} ms, {other.what} has {other.max_drift_ms} ms; "
                f"both are read up to the same times, so give them the same"
            )
            raise ConfigurationError(msg)
        return replace(self, beside=replace(other, beside=None))

    def with_max_ahead(self, max_ahead_ms: int) -> KafkaSource:
        """Return this source with a limit on record timestamps: those further ahead of the clock are not trusted."""
        return replace(self, range=replace(self.range, max_ahead_ms=max_ahead_ms))

    def identity(self, spark: SparkSession) -> dict[str, str | None]:
        """Return what distinguishes this source from others: its topics, sorted by name."""
        del spark
        return {"format": self.format, "location": str(replace(self.topics, names=tuple(sorted(self.topics.names))))}

    def recognised(self, spark: SparkSession, what: str, known: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the identity with the ids of the cluster and topics, after a check that they are the known ones.

        Args:
            spark: The session.
            what: The input, for messages.
            known: What the checkpoint keeps; None where nothing was read yet.

        Raises:
            CheckpointError: A topic was created anew, or it is another cluster.
        """
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
        spark = SparkSession.getActiveSession()
        if spark is None:
            msg = f"{self.what}: there is no Spark session; make one with cojoin.spark_session()"
            raise ConfigurationError(msg)
        index = self._archived(again=True)
        name = f"{_FORMAT}-{uuid.uuid4().hex[:8]}"
        ids = self._checked(is_new=False)
        reading = replace(self.reading(spark.sparkContext.defaultParallelism), topic_ids=ids)
        spark.dataSource.register(data_source(name, reading))
        reader: Any = spark.readStream if streaming else spark.read
        rows = decoded(
            reader.format(name).load(),
            self.schema,
            self.columns,
            fails=self.undecodable == "fail",
            in_python=self.decode is not None,
            archived=index is not None and index.layout.fields is not None,
        )
        return rows if streaming else rows.where(rows[FAULT].isNull() & rows[NEWEST].isNull()).drop(FAULT, MARK, NEWEST)

    def lost_since(self, spark: SparkSession, what: str, offset: str | None) -> list[str]:
        """Return a text for each gap of records that no longer exist after a position of Spark's offset log."""
        del spark
        return [f"{what}: {gap}" for gap in self._gaps(what, offset)]

    def with_losses_accepted(self, spark: SparkSession, what: str, offset: str | None) -> str | None:
        """Return a position moved past the records that no longer exist."""
        del spark
        gaps = self._gaps(what, offset)
        return moved_behind(gaps, offset) if gaps and offset is not None else offset

    def _gaps(self, what: str, offset: str | None) -> list[Gap]:
        with closing(self._connect(what)) as cluster:
            return gaps_since(cluster, self.topics, what, offset)

    def reading(self, tasks: int) -> Reading:
        """Return what the source's reader needs to know.

        Args:
            tasks: The number of tasks into which a batch is cut.
        """
        parts = {column.source for column in self.columns.values()}
        in_python = self.decode is not None
        dtype = None if not in_python or self.schema is None else _struct(self.schema)
        value = [] if in_python else [VALUE]
        index = self._archived()
        if dtype is None and self.schema is not None and index is not None and index.layout.fields is not None:
            dtype = pa.struct([each.with_nullable(True) for each in _struct(self.schema)])
        return Reading(
            what=self.what,
            cluster=self.cluster,
            topics=self.topics,
            range=self.range,
            limit=self.limit,
            max_drift_ms=self.max_drift_ms,
            skips_losses=self.data_loss == "skip",
            format=RecordFormat(
                (*value, *sorted(parts)),
                self.decode,
                dtype,
                self.tombstones == "keep",
                None if index is None else index.layout,
            ),
            tasks=tasks,
            archive=index,
            beside=None if self.beside is None else self.beside.reading(tasks),
        )

    def _connect(self, what: str) -> Cluster:
        return connected(self.cluster, what, self._archived(), at_start=True)

    def _archived(self, *, again: bool = False) -> ArchiveIndex | None:
        """Return what the archive holds, if there is one; ``again`` checks whether its files have changed."""
        if self.archive is None:
            return None
        parts = tuple(sorted({column.source for column in self.columns.values()}))
        wanted = Wanted(self.what, self.topics, self.schema, parts, self.max_drift_ms, self.range)
        return self.archive.index(wanted, again=again)


def source(
    bootstrap_servers: str,
    topics: str | Sequence[str] | None = None,
    *,
    topic_pattern: str | None = None,
    partitions: Mapping[str, Sequence[int]] | None = None,
    schema: str | None = None,
    decode: Callable[[Record], Any] | None = None,
    columns: Mapping[str, RecordColumn] | None = None,
    from_: Bound = "earliest",
    to: Bound | None = None,
    max_drift: Duration = "10 minutes",
    max_records: int = 500_000,
    undecodable: Undecodable = "reject",
    tombstones: Tombstones = "reject",
    data_loss: DataLoss = "fail",
    patience: Duration | None = "1 minute",
    archive: Source | None = None,
    options: Mapping[str, Any] | None = None,
) -> KafkaSource:
    """Return a source of Kafka topics for one ``Input``: history, live records, or first the one and then the other.

    If both inputs of a join are read this way, all their partitions advance together through event time: each
    micro-batch ends at the same time everywhere, by the records' timestamps. So the state stays small, however much
    longer one topic is than the other, and partitions that are silent or at their end do not hold back the join. Once a
    live query has caught up, a silent partition does, unless the watermark strategy has ``with_idleness``.

    Args:
        bootstrap_servers: The brokers' addresses, such as ``"localhost:9092"``.
        topics: The name of a topic, or several names.
        topic_pattern: A regular expression. All topics whose whole name matches are read, including those created
            later.
        partitions: Topics of which only some partitions are read, such as ``{"trades": [0, 1]}``.
        schema: DDL of the columns that a value holds, as JSON or as ``decode`` returns them.
        decode: Your own function that decodes a record: it takes a ``Record`` and returns a dict or tuple of
            ``schema``, or None for nulls. It runs on the workers. If it raises an exception, the record counts as
            undecodable.
        columns: Further columns by name, such as ``{"customer_id": cojoin.kafka.key("long")}``.
        from_: Where a new query begins, inclusive: ``"earliest"``, ``"latest"``, a time or an offset; or a dict of
            these by topic, or by topic and partition. Times are compared with the records' timestamps.
        to: Where a bounded run ends, exclusive, in the same forms; None ends it at what is there when it starts.
        max_drift: How far a partition may be behind the others: a record's event time, and its arrival in the topic,
            must be at most this far from its timestamp. In the history, a partition or a whole topic without records
            for longer than this does not hold back the join. A larger value buffers more rows; a smaller value relies
            more on the timestamps.
        max_records: How many records of this input a micro-batch may hold. Tasks read them in pieces of 16 MB, but a
            micro-batch of large records holds all their bytes: 10,000 records of 1 MB are 10 GB.
        undecodable: Whether a record that can't be decoded goes to ``rejected`` or ends the query.
        tombstones: Whether a record without a value goes to ``rejected`` or is kept as a row of nulls.
        data_loss: Whether records that were deleted before they were read end the query, or are skipped and reported in
            ``rejected``. A topic that was deleted and created anew always ends the query, because its records are other
            ones.
        patience: How long to wait while no broker answers, before the query ends with an error; None waits forever.
        archive: Where the older records are, such as ``cojoin.sources.delta("/lake/trades")``: a Delta table or parquet
            files with ``topic``, ``partition``, ``offset`` and ``timestamp`` as Spark's Kafka source gives them, and
            the columns of ``schema`` or the raw ``value``. Each partition's newer records, after the archive's last
            offset, are read from Kafka.
        options: librdkafka's settings, such as ``{"security.protocol": "SASL_SSL"}``. They are never stored, and never
            shown where they may be secret. The user needs READ and DESCRIBE on the topics, and no rights on consumer
            groups.

    Returns:
        A source with the value's columns, then the further columns, then ``topic``, ``partition`` and ``offset``.

    Raises:
        ConfigurationError: An argument is not valid.
        SchemaError: A schema or type does not parse, or two columns have the same name.

    Example:
        >>> trades = source("localhost:9092", "trades", schema="trade_id long, customer_id long, event_time timestamp")
        >>> trades.topics.names
        ('trades',)
    """
    chosen = Topics.of(topics, topic_pattern, partitions)
    what = f"source kafka {chosen}"
    if not isinstance(bootstrap_servers, str) or not bootstrap_servers.strip():
        msg = f"{what}: bootstrap_servers: expected such as 'localhost:9092', got {bootstrap_servers!r}"
        raise ConfigurationError(msg)
    further = dict(columns or {})
    check_columns(what, schema, further, decode)
    for name, value, valid in (
        ("undecodable", undecodable, get_args(Undecodable)),
        ("tombstones", tombstones, get_args(Tombstones)),
        ("data_loss", data_loss, get_args(DataLoss)),
    ):
        if value not in valid:
            msg = f"{what}: {name}: expected {' or '.join(map(repr, valid))}, got {value!r}"
            raise ConfigurationError(msg + did_you_mean(str(value), valid))
    if isinstance(max_records, bool) or not isinstance(max_records, int) or max_records < 1:
        msg = f"{what}: max_records: expected a whole number of 1 or more, got {max_records!r}"
        raise ConfigurationError(msg)
    settings = {str(name): str(value) for name, value in (options or {}).items()}
    patience_ms = None if patience is None else milliseconds(patience, f"{what}: patience")
    return KafkaSource(
        format="cojoin.kafka",
        location=str(chosen),
        schema=schema,
        options=settings,
        partition=("topic", "partition"),
        sequence=("offset",),
        cluster=ClusterOptions(bootstrap_servers, settings, patience_ms),
        topics=chosen,
        range=Range.of(from_, to, what=what),
        columns=further,
        decode=decode,
        limit=max_records,
        max_drift_ms=milliseconds(max_drift, f"{what}: max_drift"),
        undecodable=undecodable,
        tombstones=tombstones,
        data_loss=data_loss,
        archive=None if archive is None else Archive(archive, what),
    )


def _struct(schema: str) -> pa.StructType:
    return pa.struct(list(parse_schema(schema, what="schema")))
