"""The source of an input's Kafka topics: the topics that are read, over which range, and how records are decoded.

``source`` makes one, and refuses each argument that can't be right before any broker is asked. Facts that only the
brokers have, such as whether a topic exists, are checked when a query starts (``KafkaSource.check``). A source can be
shown and logged: what may be secret is only in ``options``, which no ``repr`` shows, no Spark option holds and no
checkpoint keeps.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

from cojoin.engine.input_spec import DIRECT
from cojoin.engine.values.arguments import Duration, check_word, milliseconds
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.kafka.archive import Archive, Wanted
from cojoin.kafka.archive_index import NO_ARCHIVE
from cojoin.kafka.client import Cluster, ClusterOptions
from cojoin.kafka.consumer_group import TopicMonitor
from cojoin.kafka.formats.debezium import FEED, ChangeReading
from cojoin.kafka.formats.record_formats import DebeziumFormat, JsonFormat, RegistryFormat
from cojoin.kafka.packed_records import PackedRecords, why_through_spark
from cojoin.kafka.positions import gaps_since, positions_of, skip_gaps
from cojoin.kafka.ranges import ALL, EARLIEST, LATEST, Point, Range
from cojoin.kafka.reader import InputReading, data_source
from cojoin.kafka.record_columns import RecordDescription, check_columns
from cojoin.kafka.record_columns import key as key_column
from cojoin.kafka.records import FAULT, MARK, NEWEST
from cojoin.kafka.topics import Topics, id_problem, merged_ids
from cojoin.session.sessions import adapter_of
from cojoin.spark.sources.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cojoin.engine.input import Input
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.row_changes import ChangeFeed
    from cojoin.kafka.archive_index import ArchiveIndex
    from cojoin.kafka.client import Gap, Partition
    from cojoin.kafka.formats.record_formats import ResolvedFormat, ValueFormat
    from cojoin.kafka.ranges import Bound
    from cojoin.kafka.record_columns import RecordColumn
    from cojoin.kafka.records import Record
    from cojoin.kafka.tokens import Token
    from cojoin.spark.batch.packing import Grouping
    from cojoin.spark.sources.sources import PlacedAt


Undecodable: TypeAlias = Literal["reject", "fail"]
"""The treatment of a record that can't be decoded.

- *reject*: it goes to the ``rejected`` output, with its topic, partition and offset, its beginning and the reason.
- *fail*: it ends the query.
"""

Tombstones: TypeAlias = Literal["reject", "keep"]
"""The treatment of a record without a value, a tombstone.

- *reject*: it goes to the ``rejected`` output.
- *keep*: it is a row whose value columns are null, which a ``temporal_join`` takes for a delete.
"""

DataLoss: TypeAlias = Literal["fail", "skip"]
"""The treatment of records that the brokers no longer have when a query is to read them.

- *fail*: the query ends with an error that names the missing records and their number.
- *skip*: the query continues with the first record that is left; each gap is a row of the ``rejected`` output.
"""

_FORMAT = "cojoin-kafka"


@dataclass(frozen=True)
class KafkaSource(Source):
    """Topics of a Kafka cluster, read by event time; ``cojoin.sources.kafka`` makes one.

    A checkpoint keeps the cluster's id and the topics' ids. Another cluster, or a topic that was deleted and created
    again, is refused at every start; such a topic is also refused while a query runs (``cojoin.kafka.topics``).

    Attributes:
        cluster: The cluster's address and settings.
        topics: The topics and partitions that are read.
        range: The range that is read.
        columns: Further columns by name, from the record's key, headers or timestamp.
        decode: The user's own function that decodes records; None reads JSON, or the format of ``value``.
        value: The format of values; None is plain JSON of ``schema``, or what ``decode`` takes.
        key: The format of keys; None makes no columns of them.
        limit: The largest number of records of this input in a micro-batch.
        max_drift_ms: The largest distance of a partition behind the others, in milliseconds.
        undecodable: The treatment of a record that can't be decoded.
        tombstones: The treatment of a record without a value.
        data_loss: The treatment of next records that no longer exist.
        archive: The archive of older records, if not all are on the brokers.
        group: The consumer group to which the offsets of finished batches are committed; None for none.
        changes: The reading of Debezium's change events.
        input_name: The input's name, for messages.
    """

    cluster: ClusterOptions = field(default_factory=lambda: ClusterOptions(""))
    topics: Topics = field(default_factory=Topics)
    range: Range = field(default_factory=lambda: Range.of(label=""))
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
    """The other input of the join, if that is read from Kafka, too."""

    changes: ChangeReading = field(default_factory=ChangeReading)
    input_name: str = field(default="", repr=False, compare=False)
    is_in_python: ClassVar[bool] = True
    resolved: dict[str, ResolvedFormat] = field(default_factory=dict, repr=False, compare=False)
    """The columns that formats were resolved to when the source was first opened, by the part of a record."""

    @property
    def feed(self) -> ChangeFeed | None:
        """Debezium's change events; None for other formats."""
        return FEED if isinstance(self.value, DebeziumFormat) else None

    @property
    def title(self) -> str:
        """The source in words, without secrets."""
        return self.cluster.mask(f"kafka {self.topics} at {self.cluster.bootstrap_servers}")

    @property
    def label(self) -> str:
        """The source's name in messages."""
        return f"source kafka {self.topics}"

    def together_with(self, other: Source) -> KafkaSource:
        """Return this source as it is read together with another: if both are read from Kafka, up to the same times.

        Raises:
            ConfigurationError: The sources have different values of ``max_drift``, or would commit the offsets of one
                topic to one consumer group.
        """
        if not isinstance(other, KafkaSource):
            return self
        shared = {*self.topics.names} & {*other.topics.names}
        if self.group is not None and self.group == other.group and (shared or self.topics == other.topics):
            msg = (
                f"group: both inputs would commit their offsets of kafka {self.topics} to {self.group!r}; give each "
                f"another group"
            )
            raise ConfigurationError(msg)
        if other.max_drift_ms != self.max_drift_ms:
            msg = (
                f"max_drift: {self.label} has {self.max_drift_ms} ms, {other.label} has {other.max_drift_ms} ms; "
                f"both are read up to the same times, so give them the same"
            )
            raise ConfigurationError(msg)
        return replace(self, beside=replace(other, beside=None))

    def of_input(self, name: str, declared: Input | None = None) -> KafkaSource:
        """Return this source with its input's name, which the error for a record names, and settings.

        Record timestamps further ahead of the clock than ``max_ahead`` are not trusted. The key and the known times are
        those by which change events are read.
        """
        if declared is None:
            return replace(self, input_name=name)
        ahead = None if declared.max_ahead is None else milliseconds(declared.max_ahead, "max_ahead")
        changes = ChangeReading(max_ahead_ms=ahead)
        if self.feed is not None:
            key = [declared.key] if isinstance(declared.key, str) else declared.key
            has_known = declared.known_at is not None or declared.delay is not None
            is_commit = str(declared.known_at).lower() == self.feed.committed_at
            changes = ChangeReading(
                # Values that are not names are refused once the columns are known.
                tuple(each for each in (key if isinstance(key, Sequence) else ()) if isinstance(each, str)),
                declared.event_time if has_known and isinstance(declared.event_time, str) else None,
                is_commit and declared.snapshot_known == "at_event_time",
                ahead,
            )
        return replace(self, input_name=name, range=replace(self.range, max_ahead_ms=ahead), changes=changes)

    def why_endless(self) -> str | None:
        """Return the advice for a source without an end; None where it has one."""
        return None if self.range.is_bounded else f"{self.label} has no to=; set its end, such as to='latest'"

    def identity(self, spark: SparkSession) -> dict[str, str | None]:
        """Return what distinguishes this source from others: its topics, sorted by name."""
        del spark
        return {"format": self.format, "location": str(replace(self.topics, names=tuple(sorted(self.topics.names))))}

    def recognised(self, spark: SparkSession, label: str, known: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the identity with the ids of the cluster and topics, after a check that what was read is still read.

        Topics may be added from start to start: one that the checkpoint does not have is read from its beginning.

        Raises:
            CheckpointError: A topic was created again or is left out, or it is another cluster.
        """
        if known is not None and known.get("format") == self.format:
            self.topics.check_kept(str(known.get("location")), known.get("topics") or (), label)
        with closing(self._connect(label)) as cluster:
            ids = self._surveyed(cluster, label)[1]
        problem = id_problem(known or {}, ids, self.cluster.bootstrap_servers)
        if problem is not None:
            msg = f"{label}: {problem}"
            raise CheckpointError(msg)
        return {**self.identity(spark), **merged_ids(known or {}, ids)}

    def check(self, *, is_new: bool) -> list[str]:
        """Check the source against the brokers before the query starts, and return warnings.

        Raises:
            ConfigurationError: A topic or partition does not exist or may not be read, the range is wrong, a part of it
                no longer exists, or the cluster can't be reached with these options.
            QueryFailedError: No broker answers.
        """
        return self._checked(is_new=is_new)[1]

    def _checked(self, *, is_new: bool) -> tuple[dict[str, str], list[str]]:
        """Check as ``check`` does, and return the topics' ids, and warnings."""
        warned: list[str] = []
        with closing(self._connect(self.label)) as cluster:
            partitions, ids = self._surveyed(cluster, self.label)
            if self.archive is not None:
                cluster.check_ends(partitions)
            if is_new:
                begins, ends = self.range.resolve(cluster, partitions)
                if self.archive is not None and self.data_loss == "fail":
                    cluster.check_seam(begins, ends)
                warned = self.range.aged_out(cluster, begins) if self.data_loss == "fail" else []
            else:
                self.range.end(cluster, partitions)
        return dict(ids["topics"]), warned

    def _surveyed(self, cluster: Cluster, label: str) -> tuple[list[Partition], dict[str, Any]]:
        """Return the partitions that are read, and the ids of their cluster and topics."""
        partitions = self.topics.select(cluster.partitions(self.topics.names), label)
        ids = {name: each for name, each in cluster.describe(name for name, _ in partitions).items() if each}
        return partitions, {"cluster": cluster.cluster_id, "topics": ids}

    def look_ahead(self) -> tuple[tuple[int, int] | None, list[str]]:
        """Return the range's first and last timestamp at the moment, in epoch milliseconds; None where it is empty.

        The texts are for each partition in which open transactions hold back records of the range.
        """
        with closing(self._connect(self.label)) as cluster:
            partitions = self.topics.select(cluster.partitions(), self.label)
            return self.range.span(cluster, partitions), self.range.held_back(cluster, partitions)

    @property
    def ends_with_present_rows(self) -> bool:
        """Whether a run over what is there reads all of it: where no ``to=`` is set, or the latest offsets are."""
        return all(point.kind == "latest" for point in (self.range.to or {}).values())

    def without_end(self) -> KafkaSource:
        """Return these topics without ``to=``, as a run without an end reads them."""
        if self.range.to is None:
            return self
        return replace(self, range=replace(self.range, to=None))

    def open(self, *, streaming: bool = True) -> DataFrame:
        """Return the topics as a stream with the join's columns of marks and faults, or what can be decoded now.

        Raises:
            ConfigurationError: No session is active, or a topic does not exist.
            QueryFailedError: No broker answers.
        """
        rows = self._opened(None, streaming=streaming)
        return rows if streaming else rows.where(rows[FAULT].isNull() & rows[NEWEST].isNull()).drop(FAULT, MARK, NEWEST)

    def how_packed(self, spec: InputSpec) -> str:
        """Return ``DIRECT`` if the tasks that read records pack their rows, otherwise the reason why not."""
        return why_through_spark(self._records, spec, has_archive=self.archive is not None) or DIRECT

    def open_packed(self, grouping: Grouping) -> DataFrame:
        """Return the topics as a stream of packed rows, and of the records that Spark decodes."""
        records = self._records
        parts = records.parts(grouping.schema.names)
        assert parts is not None
        return self._opened(PackedRecords(grouping, parts, records.columns, records.json), streaming=True)

    def _opened(self, packing: PackedRecords | None, *, streaming: bool) -> DataFrame:
        spark = self.session()
        index = self._archived(again=True)
        name = f"{_FORMAT}-{uuid.uuid4().hex[:8]}"
        ids, _ = self._checked(is_new=False)
        reading = replace(self.reading(adapter_of(spark).parallel_tasks()), topic_ids=ids, packing=packing)
        spark.dataSource.register(data_source(name, reading))
        reader: Any = spark.readStream if streaming else spark.read
        fails_for = f"input {self.input_name!r}" if self.input_name else self.label
        return self._records.rows(
            reader.format(name).load(),
            fails_for=fails_for if self.undecodable == "fail" else None,
            archive=index.layout,
            changes=self.changes,
        )

    def lost_since(self, spark: SparkSession, label: str, offset: str | None) -> list[str]:
        """Return a text for each gap of records that no longer exist after a position of Spark's offset log."""
        del spark
        return [f"{label}: {gap}" for gap in self._gaps(label, offset)]

    def with_losses_accepted(self, spark: SparkSession, label: str, offset: str | None) -> str | None:
        """Return a position moved past the records that no longer exist."""
        del spark
        gaps = self._gaps(label, offset)
        return skip_gaps(gaps, offset) if gaps and offset is not None else offset

    def between(self, label: str, begin: str | None, ends: Sequence[str]) -> tuple[DataFrame, PlacedAt]:
        """Return the records between positions that can be decoded, and a function that returns the place of each row.

        Raises:
            ConfigurationError: Records of the range no longer exist.
            QueryFailedError: No broker answers.
        """
        read = [positions_of(json.loads(end)) for end in ends]
        if begin is None:
            first = dict(self.range.from_)
        else:
            # A partition that did not exist at the last position is not read.
            begun = positions_of(json.loads(begin))
            first = {ALL: LATEST, **{each: EARLIEST if each not in begun else _at(begun[each]) for each in read[-1]}}
        wanted = Range(first, {each: _at(offset) for each, offset in read[-1].items()}, label)
        frame = replace(self, range=wanted, beside=None).open(streaming=False)

        def places(rows: pa.Table) -> list[int]:
            columns = [rows.column(name).to_pylist() for name in (*self.partition, *self.sequence)]
            return [
                next((place for place, end in enumerate(read) if offset < end.get((topic, number), 0)), len(read))
                for topic, number, offset in zip(*columns, strict=True)
            ]

        return frame, places

    def monitor(self, label: str) -> TopicMonitor:
        """Return the monitor that commits offsets to ``group``, and counts unread ones."""
        return TopicMonitor(self.cluster, self.topics, self.group, label)

    def _gaps(self, label: str, offset: str | None) -> list[Gap]:
        with closing(self._connect(label)) as cluster:
            return gaps_since(cluster, self.topics, label, offset)

    def reading(self, tasks: int) -> InputReading:
        """Return the description of the source that its reader needs."""
        index = self._archived()
        return InputReading(
            label=self.label,
            cluster=self.cluster,
            topics=self.topics,
            range=self.range,
            limit=self.limit,
            max_drift_ms=self.max_drift_ms,
            skips_losses=self.data_loss == "skip",
            format=self._records.record_format(keeps_tombstones=self.tombstones == "keep", archive=index.layout),
            tasks=tasks,
            archive=index,
            other=None if self.beside is None else self.beside.reading(tasks),
        )

    @property
    def _records(self) -> RecordDescription:
        formats = {"value": self.value, "key": self.key}
        return RecordDescription(
            self.label, self.topics, self.schema, self.columns, self.decode, formats, self.resolved
        )

    def _connect(self, label: str) -> Cluster:
        return Cluster(self.cluster, label, self._archived(), at_start=True)

    def _archived(self, *, again: bool = False) -> ArchiveIndex:
        """Return the archive's index, an empty one without; ``again`` checks whether its files have changed."""
        if self.archive is None:
            return NO_ARCHIVE
        records = self._records
        parts, schema = records.archived_parts, records.archived_schema
        wanted = Wanted(self.label, self.topics, schema, parts, self.max_drift_ms, self.range)
        return self.archive.index(wanted, again=again)


def _at(offset: int) -> Point:
    return Point("offset", offset)


_OWN_GROUPS = "cojoin-"


def source(
    bootstrap_servers: str,
    topics: str | Sequence[str] | None = None,
    *,
    topic_pattern: str | None = None,
    partitions: Mapping[str, Sequence[int]] | None = None,
    schema: str | None = None,
    value: ValueFormat | None = None,
    key: ValueFormat | str | None = None,
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
    group: str | None = None,
    token: Callable[[], Token | tuple[str, float]] | None = None,
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
        schema: DDL of the columns that a value holds, as plain JSON or as ``decode`` returns them.
        value: The format of values, where it is not plain JSON: ``cojoin.kafka.avro(registry)``, ``protobuf``,
            ``json_schema``, or ``debezium`` of one of them.
        key: The format of keys. The fields of a record's key become columns; a key that is one value becomes a column
            ``key``, also by a plain type as DDL, such as ``"long"``.
        decode: Your own function that decodes a record: it takes a ``Record`` and returns a dict or tuple of
            ``schema``, or None for nulls. It runs on the workers. If it raises an exception, the record counts as
            undecodable.
        columns: Further columns by name, such as ``{"customer_id": cojoin.kafka.key("long")}``.
        from_: The begin of a new query, inclusive: ``"earliest"``, ``"latest"``, a time or an offset; or a dict of
            these by topic, or by topic and partition. Times are compared with the records' timestamps.
        to: The end of a bounded run, exclusive, in the same forms; None ends it at the records that exist at its start.
        max_drift: The largest distance to expect between a record's timestamp and its event time, or its arrival in
            the topic. In the history, a partition or a whole topic without records for longer than this does not hold
            back the join. A larger value buffers more rows; a smaller value relies more on the timestamps.
        max_records: The largest number of records of this input in a micro-batch. Tasks read them in pieces of 16 MB,
            but a micro-batch of large records holds all their bytes: 10,000 records of 1 MB are 10 GB.
        undecodable: Whether a record that can't be decoded goes to ``rejected`` or ends the query.
        tombstones: Whether a record without a value goes to ``rejected`` or is kept as a row of nulls.
        data_loss: Whether records that were deleted before they were read end the query, or are skipped and reported in
            ``rejected``. A topic that was deleted and created again always ends the query, because it holds
            different records.
        patience: The time to wait while no broker answers, before the query ends with an error; None waits forever.
        archive: The source of the older records, such as ``cojoin.sources.delta("/lake/trades")``: a Delta table or
            parquet files with ``topic``, ``partition``, ``offset`` and ``timestamp`` as Spark's Kafka source gives
            them, and the columns of ``schema`` or the raw ``value``. Each partition's newer records, after the
            archive's last offset, are read from Kafka.
        group: A consumer group to which a query (``Joined.start``) commits the offsets of finished batches, so that
            tools which watch a group's lag see it: at the end of a topic the lag is 0, markers of transactions
            included. Nothing is read from the group, and it must have no members. It is your own group, another one
            for each input of a topic. A commit that fails is logged, counted as a metric and tried again; the query
            continues. The process that started the query commits. ``to_dataframe`` commits nothing.
        token: Your own function that returns a token for SASL's OAUTHBEARER, and its lifetime in seconds; or a
            ``Token``. It takes no arguments and runs on the driver and on the workers, again for each new token. The
            login goes by TLS unless ``options`` sets another protocol.
        options: librdkafka's settings, such as ``{"security.protocol": "SASL_SSL"}``. They are never stored, and never
            shown where they may be secret. The user needs READ and DESCRIBE on the topics, with ``archive``
            DESCRIBE_CONFIGS, too, READ on ``group`` if there is one, and no other rights on consumer groups.

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
    label = f"source kafka {chosen}"
    cluster = ClusterOptions.of(bootstrap_servers, options, patience, token, label)
    further = dict(columns or {})
    if isinstance(key, str):
        further, key = {"key": key_column(key), **further}, None
    if value is not None and (schema is not None or decode is not None):
        msg = f"{label}: expected value=, or schema= for plain JSON, or schema= and decode=, got value= and another"
        raise ConfigurationError(msg)
    _check_formats(label, value, key, tombstones)
    if isinstance(value, JsonFormat):
        schema, value = value.schema, None
    check_columns(label, schema, further, decode, has_format=value is not None or key is not None)
    check_word(f"{label}: undecodable", undecodable, get_args(Undecodable))
    check_word(f"{label}: tombstones", tombstones, get_args(Tombstones))
    check_word(f"{label}: data_loss", data_loss, get_args(DataLoss))
    if isinstance(max_records, bool) or not isinstance(max_records, int) or max_records < 1:
        msg = f"{label}: max_records: expected a whole number of 1 or more, got {max_records!r}"
        raise ConfigurationError(msg)
    return KafkaSource(
        format="cojoin.kafka",
        location=str(chosen),
        schema=schema,
        options=cluster.settings,
        partition=("topic", "partition"),
        sequence=("offset",),
        cluster=cluster,
        topics=chosen,
        range=Range.of(from_, to, label=label),
        columns=further,
        decode=decode,
        value=value,
        key=key,
        limit=max_records,
        max_drift_ms=milliseconds(max_drift, f"{label}: max_drift"),
        undecodable=undecodable,
        tombstones=tombstones,
        data_loss=data_loss,
        archive=None if archive is None else Archive(archive, label),
        group=_checked_group(label, group),
    )


def _checked_group(label: str, group: Any) -> str | None:
    """Return a consumer group, after a check that it can be one of the user's own."""
    if group is not None and (not isinstance(group, str) or not group.strip()):
        msg = f"{label}: group: expected the id of a consumer group, such as 'enrich-trades', or None, got {group!r}"
        raise ConfigurationError(msg)
    if group is not None and group.startswith(_OWN_GROUPS):
        msg = f"{label}: group: {group!r}: group ids that begin with {_OWN_GROUPS!r} are reserved; choose another"
        raise ConfigurationError(msg)
    return group


_FORMATS = (JsonFormat, RegistryFormat)


def _check_formats(label: str, value: Any, key: Any, tombstones: str) -> None:
    if value is not None and not isinstance(value, (*_FORMATS, DebeziumFormat)):
        msg = (
            f"{label}: value: expected a format such as cojoin.kafka.avro('http://localhost:8081'), got {value!r}; "
            f"the columns of plain JSON are schema="
        )
        raise ConfigurationError(msg)
    if key is not None and not isinstance(key, _FORMATS):
        msg = f"{label}: key: expected a plain type such as 'long', or a format such as cojoin.kafka.avro, got {key!r}"
        raise ConfigurationError(msg)
    if isinstance(value, DebeziumFormat) and tombstones == "keep":
        msg = (
            f"{label}: tombstones: expected the default for Debezium, got 'keep': its tombstones only repeat the "
            f"deletes before them"
        )
        raise ConfigurationError(msg)
