"""A Kafka topic as a sink: its arguments, the checks before a query starts, and the topic of a restored query.

``kafka`` makes a sink, and refuses each argument that can't be right before any broker is asked. Facts that only the
brokers have, such as whether the topic exists, are checked when a query starts (``KafkaSink.check_place``).

A topic can't be rolled back. So a query that begins with the state of another one continues that one's topic only if
nothing was written there after the snapshot; the other query is then ended, and fenced off in the topic. The new query
has other transactional ids and groups.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from cojoin.engine.values.arguments import check_word
from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.kafka.client import ClusterOptions, check_installed
from cojoin.kafka.formats.record_formats import KINDS, DebeziumFormat, JsonFormat, RegistryFormat
from cojoin.kafka.sink.record_encoding import JSON, RecordEncoding
from cojoin.kafka.sink.topic_producer import TopicConnection, TopicTarget
from cojoin.kafka.sink.topic_transactions import NO_BATCH, RETIRED, TopicMarker, TopicTransactions, layouts_since
from cojoin.kafka.sink.topic_writer import TopicWriter
from cojoin.spark.sinks.sink import OutputId, Sink
from cojoin.spark.sources.options import as_options

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cojoin.engine.values.arguments import Duration
    from cojoin.kafka.tokens import Token


_KAFKA = "cojoin.kafka"
"""The format of sources of topics, whose class needs a later version of Spark."""

Delivery: TypeAlias = Literal["exactly_once", "exactly_once_parallel", "at_least_once"]
"""The number of times that a batch's rows are in the topic.

- ``"exactly_once"``: one transaction holds all rows of a batch; one task writes it.
- ``"exactly_once_parallel"``: several tasks write a batch, each in another transaction. Each row is in the topic once,
  but consumers may see a part of a batch before the rest of it.
- ``"at_least_once"``: every task writes without transactions; a batch that is run again is in the topic twice.
"""

MissingMarker: TypeAlias = Literal["refuse", "expired"]
"""The meaning of a missing marker, where batches count and none was begun.

- ``"refuse"``: the query does not start.
- ``"expired"``: it stood still for longer than the brokers keep a marker, and continues.
"""


@dataclass(frozen=True)
class KafkaSink(Sink):
    """A Kafka topic; ``cojoin.sinks.kafka`` makes one.

    Attributes:
        cluster: The cluster's address and settings.
        topic: The topic.
        encoding: The encoding of rows as records.
        delivery: The number of times that a batch's rows are in the topic.
        tasks: The number of parts in which ``"exactly_once_parallel"`` writes a batch, and otherwise 1.
        missing_marker: The meaning of a missing marker while no batch was begun.
    """

    cluster: ClusterOptions
    topic: str
    encoding: RecordEncoding = field(default_factory=RecordEncoding)
    delivery: Delivery = "exactly_once"
    tasks: int = 1
    missing_marker: MissingMarker = "refuse"

    def open(self, session: SparkSession, output: OutputId) -> TopicWriter:
        """Return the writer of a query's output to the topic."""
        del session
        target = replace(self.target(output), headers=tuple(name for name, _ in self.encoding.headers))
        encoding = self.encoding
        if output.schema is not None:
            encoding = encoding.resolved(output.schema, self.topic, target.label)
        return TopicWriter(
            target,
            encoding,
            is_transactional=self.is_transactional,
            place=self.place(),
            may_be_expired=self.missing_marker == "expired",
        )

    def target(self, output: OutputId) -> TopicTarget:
        """Return an output of a query in the topic."""
        label = f"{output.name}, sink kafka {self.topic}"
        return TopicTarget(
            self.cluster,
            self.topic,
            output.app_id,
            label,
            epoch=output.epoch or 0,
            tasks=self.tasks,
            is_transactional=self.is_transactional,
        )

    @property
    def is_transactional(self) -> bool:
        """Whether batches are written in transactions."""
        return self.delivery != "at_least_once"

    def check_place(self, session: SparkSession, output: str) -> None:
        """Check, before the query starts, that the topic exists and that this user may write to it.

        Raises:
            EnvironmentSetupError: confluent-kafka is not installed.
            ConfigurationError: The topic does not exist, the user may not write to it, or the brokers refuse the login.
            QueryFailedError: No broker answers in time.
        """
        del session
        check_installed(f"{output}: sinks.kafka")
        TopicConnection(self.target(OutputId("", output)), at_start=True).facts()

    def check_inputs(self, sources: Sequence[Any], output: str) -> None:
        """Check that the topic is not an input of the query.

        Raises:
            ConfigurationError: It is.
        """
        own = {address.strip() for address in self.cluster.bootstrap_servers.split(",")}
        for source in sources:
            if source.format != _KAFKA:
                continue
            cluster: ClusterOptions = source.cluster
            servers = {address.strip() for address in cluster.bootstrap_servers.split(",")}
            topics = source.topics
            is_read = self.topic in topics.names or bool(topics.pattern and re.fullmatch(topics.pattern, self.topic))
            if own & servers and is_read:
                msg = f"{output}: {self.describe()} is read by the query ({source.title}); name another topic"
                raise ConfigurationError(msg)

    def describe(self) -> str:
        """Return the topic and the brokers, for messages."""
        return self.cluster.mask(f"Kafka topic {self.topic} at {self.cluster.bootstrap_servers}")

    def place(self) -> dict[str, Any]:
        """Return the manifest's entry for the topic before anything is written."""
        return {"kafka": self.topic} | ({"tasks": self.tasks} if self.is_transactional else {})

    def unique_place(self) -> str:
        """Return the topic with its cluster, as no other sink has it."""
        return f"kafka:{','.join(sorted(self.cluster.bootstrap_servers.split(',')))}#{self.topic}"

    def check_columns(self, schema: pa.Schema, role: str) -> None:
        """Check that the columns of key, value, headers and timestamp exist, with types that can be written.

        A schema of a registry is looked up for it.

        Raises:
            ConfigurationError: They do not.
        """
        self.encoding.check(schema, self.topic, f"{role}: sinks.kafka {self.topic!r}")

    def continues_output_of(self, written: Mapping[str, Any], former: OutputId, *, successor: str, ends: bool) -> bool:
        """Check whether a new query may continue the topic of the query whose snapshot it begins with.

        Returns:
            Whether both have the same topic.

        Raises:
            CheckpointError: The topic has rows of the former query from after the snapshot, or it is not known.
        """
        if written.get("kafka") != self.topic:
            return False
        if not self.is_transactional or written.get("tasks") is None:
            if written.get("batch_id") is None:
                return True
            msg = (
                f"restore_from: {former.name} goes to {self.describe()}, to which the old query writes at least once: "
                f"it is not known which rows it wrote after the snapshot; name a new topic"
            )
            raise CheckpointError(msg)
        known = int(written["batch_id"]) if written.get("batch_id") is not None else NO_BATCH
        counted = int(written["tasks"])
        for tasks in layouts_since(self.target(former), counted, takes_over=ends):
            target = replace(self.target(former), tasks=tasks)
            for task in range(tasks):
                with closing(TopicTransactions(target, task, at_start=True)) as transactions:
                    marker = transactions.take_over() if ends else transactions.marker()
                    # A query that continued in other tasks may have ended before it wrote one.
                    if tasks == counted or (marker is not None and marker.newest > known):
                        self._check_newest(marker, known, former, successor)
                    if ends:
                        ended = replace(marker or TopicMarker(NO_BATCH, 0, tasks), epoch=RETIRED, successor=successor)
                        transactions.write_marker(ended)
        return True

    def _check_newest(self, marker: TopicMarker | None, known: int, former: OutputId, successor: str) -> None:
        if marker is not None and marker.successor not in {None, successor}:
            msg = (
                f"restore_from: {former.name} goes to {self.describe()}, which the query of checkpoint "
                f"{marker.successor} continues already: a topic can't be cut back; start that query, or name a new "
                f"topic"
            )
            raise CheckpointError(msg)
        newest = NO_BATCH if marker is None else marker.newest
        if newest != known:
            state = "no marker of its batches" if marker is None else f"its batches up to {newest}"
            msg = (
                f"restore_from: {former.name} goes to {self.describe()}, which has {state}, and the snapshot has "
                f"those up to {known}: a topic can't be cut back. Restore the query's newest snapshot, such as a "
                f"savepoint that is taken after its last batch, or name a new topic"
            )
            raise CheckpointError(msg)


_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OURS = {
    "transactional.id": "cojoin sets one for each query and output",
    "enable.idempotence": "it is always on",
    "group.id": "cojoin sets one for each query and output",
    "bootstrap.servers": "give bootstrap_servers",
}
_TASKS = 4


def kafka(
    bootstrap_servers: str,
    topic: str,
    *,
    key: str | Sequence[str] | None = None,
    value: str | Sequence[str] | RegistryFormat = JSON,
    headers: Mapping[str, str] | None = None,
    timestamp: str | None = None,
    delivery: Delivery = "exactly_once",
    tasks: int | None = None,
    missing_marker: MissingMarker = "refuse",
    patience: Duration | None = "1 minute",
    token: Callable[[], Token | tuple[str, float]] | None = None,
    options: Mapping[str, Any] | None = None,
) -> KafkaSink:
    """Return a sink that writes each row as a record of a Kafka topic, exactly once for ``read_committed`` consumers.

    Each batch is one transaction, which also commits the batch's marker, as an offset of the consumer group
    ``cojoin-QUERY-OUTPUT``. A batch that is run again is skipped if the marker says that it is the same, and refused if
    it is another one. A transaction can't span processes, so one task writes all rows of a batch. Consumers see
    committed batches only with ``isolation.level=read_committed``, which is not the default of Kafka's own clients; for
    librdkafka's it is.

    The rows of a key are in one partition, by Kafka's own partitioner, in the order in which the join emits them.

    JSON is written as Spark's ``to_json`` writes it, in UTC and with microseconds: ``2026-01-05T09:30:00.000125Z``.
    Binary is base64, decimals are numbers, NaN is ``"NaN"``, maps are objects, and fields that are null are left out.
    ``cojoin.kafka.source`` reads all of these back.

    Kafka deletes a group's offset, and with it the marker, ``offsets.retention.minutes`` after the last commit, 7 days
    by default. A running query refreshes it. A query that stood still for longer is refused: the checkpoint may be an
    older one that was put back, and the topic may have later batches. If it is the newest one, and no batch was begun,
    ``missing_marker="expired"`` lets it continue. One that was killed within a batch can't, since the topic may
    have that batch or not.

    A run that takes over fences off earlier ones: Kafka refuses their producers, and the marker holds the epoch of the
    run. A topic can't be cut back, so a restored query continues the same topic only from a snapshot after which
    nothing was written.

    Args:
        bootstrap_servers: The brokers' addresses, such as ``"localhost:9092"``.
        topic: The topic, which must exist.
        key: The column of the record's key: its text or its bytes; a number, a boolean or a date as text. Or several
            columns, which make a JSON object. None writes records without a key, to any partition.
        value: ``"json"`` writes all columns as JSON, and a list of columns those. The name of a column of texts or
            bytes writes that alone, as it is; its null is a tombstone. ``cojoin.kafka.avro(registry)``, ``protobuf``
            and ``json_schema`` write the wire format of a schema registry: with the version ``schema=`` of ``subject=``
            (``<topic>-value``), or the newest, whose fields are the columns that are written; a subject that does not
            exist gets a schema of all columns. A run keeps the schema that it began with. A row that does not fit ends
            the query. In Protobuf a null leaves its field unset, which reads as 0 or "" where it is not ``optional``.
        headers: Headers by name, each with the column that holds its value.
        timestamp: The column of the record's timestamp, such as the event time; None takes the time of writing.
        delivery: ``"exactly_once"``; ``"exactly_once_parallel"``, where several tasks write a batch in a transaction
            each: exactly once, not atomic by batch; or ``"at_least_once"``, where all tasks write without transactions,
            and a batch that is run again is in the topic twice.
        tasks: With ``"exactly_once_parallel"``, the number of tasks that write a batch; 4 by default.
        missing_marker: ``"refuse"``, or ``"expired"`` where a query stands still for longer than the brokers keep a
            marker, as one that runs once a week may: it then continues without. Never use that with a checkpoint that
            was put back from a backup: rows could be in the topic twice, without an error.
        patience: The time to wait while no broker answers, before the query ends with an error; None waits forever.
        token: A function that returns tokens for OAUTHBEARER; see ``cojoin.kafka.source``.
        options: librdkafka's settings, such as ``{"security.protocol": "SASL_SSL"}``. They are never stored, and never
            shown where they may be secret. ``transaction.timeout.ms``, 5 minutes by default, must be longer than
            writing a batch takes; while a killed run's transaction is open, consumers wait at most for so long. The
            user needs WRITE, READ and DESCRIBE on the topic (Kafka asks for READ where the marker is committed), WRITE
            on the transactional ids and READ on the groups that begin with ``cojoin-``. At least once, WRITE and
            DESCRIBE on the topic are enough.

    Returns:
        The sink, for ``Joined.start``.

    Raises:
        ConfigurationError: An argument is not valid.

    Example:
        >>> kafka("localhost:9092", "enriched", key="customer_id").topic
        'enriched'
    """
    label = "sinks.kafka" if not isinstance(topic, str) else f"sinks.kafka {topic!r}"
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        msg = f"{label}: topic: expected a topic's name of letters, digits, '.', '_' and '-', got {topic!r}"
        raise ConfigurationError(msg)
    check_word(f"{label}: delivery", delivery, get_args(Delivery))
    check_word(f"{label}: missing_marker", missing_marker, get_args(MissingMarker))
    settings = as_options(options, label)
    for name, why in _OURS.items():
        if name in settings:
            msg = f"{label}: option {name!r} can't be given: {why}"
            raise ConfigurationError(msg)
    if settings.get("acks", settings.get("request.required.acks", "all")) not in {"all", "-1"}:
        msg = f"{label}: option 'acks': expected 'all', got {settings.get('acks')!r}: fewer acknowledgements lose rows"
        raise ConfigurationError(msg)
    encoding = RecordEncoding(
        None if key is None else _columns(key, f"{label}: key"),
        _value(value, topic, key, delivery, label),
        _headers(headers, label),
        timestamp if timestamp is None else _column(timestamp, f"{label}: timestamp"),
    )
    cluster = ClusterOptions.of(bootstrap_servers, settings, patience, token, label)
    return KafkaSink(cluster, topic, encoding, delivery, _checked_tasks(tasks, delivery, label), missing_marker)


def _checked_tasks(tasks: Any, delivery: Delivery, label: str) -> int:
    if tasks is None:
        return _TASKS if delivery == "exactly_once_parallel" else 1
    if delivery != "exactly_once_parallel":
        msg = f"{label}: tasks: expected none with delivery={delivery!r}; it belongs to 'exactly_once_parallel'"
        raise ConfigurationError(msg)
    if isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < 2:
        msg = f"{label}: tasks: expected a whole number of 2 or more, got {tasks!r}"
        raise ConfigurationError(msg)
    return tasks


def _columns(declared: Any, label: str) -> str | tuple[str, ...]:
    if isinstance(declared, str):
        return _column(declared, label)
    is_list = isinstance(declared, Sequence) and not isinstance(declared, (bytes, bytearray))
    if not is_list or not declared:
        msg = f"{label}: expected a column's name, or a list of names, got {declared!r}"
        raise ConfigurationError(msg)
    columns = tuple(_column(each, label) for each in declared)
    if len({each.lower() for each in columns}) < len(columns):
        msg = f"{label}: expected each column once, got {declared!r}"
        raise ConfigurationError(msg)
    return columns


def _value(declared: Any, topic: str, key: Any, delivery: str, label: str) -> str | tuple[str, ...] | RegistryFormat:
    if isinstance(declared, (JsonFormat, DebeziumFormat)):
        kind = type(declared).__name__.removesuffix("Format")
        msg = f"{label}: value: expected columns, avro(), protobuf() or json_schema() of cojoin.kafka, got {kind}, "
        raise ConfigurationError(msg + "which sinks do not write; 'json' writes all columns as JSON")
    if not isinstance(declared, RegistryFormat):
        return _columns(declared, f"{label}: value")
    form = KINDS[type(declared)].maker
    if isinstance(declared.schema, str):
        msg = (
            f"{label}: value: {form}: schema: expected a version of the subject, or none, got columns as DDL: they are "
            f"those of the output; leave schema= out"
        )
        raise ConfigurationError(msg)
    if key is None and delivery == "exactly_once_parallel":
        # A batch that is run again with another version would have its rows in other parts.
        msg = f"{label}: key: expected columns with value={form}(...) and delivery={delivery!r}, got none"
        raise ConfigurationError(msg)
    return replace(declared, subject=declared.subject or f"{topic}-value")


def _column(declared: Any, label: str) -> str:
    if not isinstance(declared, str) or not declared:
        msg = f"{label}: expected a column's name, got {declared!r}"
        raise ConfigurationError(msg)
    return declared


def _headers(declared: Any, label: str) -> tuple[tuple[str, str], ...]:
    if declared is None:
        return ()
    if not isinstance(declared, Mapping) or not all(isinstance(name, str) and name for name in declared):
        msg = f"{label}: headers: expected a dict of names with their columns, got {declared!r}"
        raise ConfigurationError(msg)
    return tuple((name, _column(column, f"{label}: header {name!r}")) for name, column in declared.items())
