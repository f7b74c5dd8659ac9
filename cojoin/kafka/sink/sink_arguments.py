"""The arguments of ``cojoin.sinks.kafka``: checked, and made into a ``KafkaSink``.

Each argument is refused here if it can't be right, before any broker is asked. What only the brokers know, such as
whether the topic exists, is checked when a query starts (``KafkaSink.check_place``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.kafka.cluster_options import ClusterOptions
from cojoin.kafka.formats.record_formats import (
    AvroFormat,
    DebeziumFormat,
    JsonFormat,
    JsonSchemaFormat,
    ProtobufFormat,
)
from cojoin.kafka.sink.kafka_sink import Delivery, KafkaSink, MissingMarker
from cojoin.kafka.sink.record_encoding import JSON, RecordEncoding
from cojoin.spark.sources.format_options import as_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from cojoin.engine.values.arguments import Duration
    from cojoin.kafka.sink.value_schema import RegistryFormat
    from cojoin.kafka.tokens import Token

__all__ = ["kafka"]

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OURS = {
    "transactional.id": "each query and output has one of its own",
    "enable.idempotence": "it is always on",
    "group.id": "each query and output has one of its own",
    "bootstrap.servers": "give bootstrap_servers",
}
_TASKS = 4
_SPELLED = {AvroFormat: "avro", ProtobufFormat: "protobuf", JsonSchemaFormat: "json_schema"}


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
    ``missing_marker="expired"`` lets it go on. One that was killed within a batch can't, since nobody knows whether
    the topic has that batch.

    A run that takes over fences off earlier ones: Kafka refuses their producers, and the marker holds the epoch of the
    run. A topic can't be cut back, so a restored query goes on in the same topic only from a snapshot after which
    nothing was written.

    Args:
        bootstrap_servers: The brokers' addresses, such as ``"localhost:9092"``.
        topic: The topic, which must exist.
        key: The column of the record's key: its text or its bytes; a number, a boolean or a date as text. Or several
            columns, which make a JSON object. None writes records without a key, to any partition.
        value: ``"json"`` writes all columns as JSON, and a list of columns those. The name of a column of texts or
            bytes writes that alone, as it is; its null is a tombstone. ``cojoin.kafka.avro(registry)``, ``protobuf``
            and ``json_schema`` write the wire format of a schema registry: with the version ``schema=`` of ``subject=``
            (``<topic>-value``), or the newest, whose fields say which columns are written; a subject that does not
            exist gets a schema of all columns. A run keeps the schema that it began with. A row that does not fit ends
            the query. In Protobuf a null leaves its field unset, which reads as 0 or "" where it is not ``optional``.
        headers: Headers by name, each with the column that holds its value.
        timestamp: The column of the record's timestamp, such as the event time; None takes the time of writing.
        delivery: ``"exactly_once"``; ``"exactly_once_parallel"``, where several tasks write a batch in a transaction
            each: exactly once, not atomic by batch; or ``"at_least_once"``, where all tasks write without transactions,
            and a batch that is run again is in the topic twice.
        tasks: With ``"exactly_once_parallel"``, in how many tasks a batch is written; 4 by default.
        missing_marker: ``"refuse"``, or ``"expired"`` where a query stands still for longer than the brokers keep a
            marker, as one that runs once a week may: it then goes on without. Never use that with a checkpoint that was
            put back from a backup: rows could be in the topic twice, and nothing would tell.
        patience: How long to wait while no broker answers, before the query ends with an error; None waits forever.
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
    what = "sinks.kafka" if not isinstance(topic, str) else f"sinks.kafka {topic!r}"
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        msg = f"{what}: topic: expected a topic's name of letters, digits, '.', '_' and '-', got {topic!r}"
        raise ConfigurationError(msg)
    if delivery not in get_args(Delivery):
        valid = get_args(Delivery)
        msg = f"{what}: delivery: expected {', '.join(map(repr, valid))}, got {delivery!r}"
        raise ConfigurationError(msg + did_you_mean(str(delivery), valid))
    if missing_marker not in get_args(MissingMarker):
        msg = f"{what}: missing_marker: expected 'refuse' or 'expired', got {missing_marker!r}"
        raise ConfigurationError(msg)
    settings = as_options(options, what)
    for name, why in _OURS.items():
        if name in settings:
            msg = f"{what}: option {name!r} can't be given: {why}"
            raise ConfigurationError(msg)
    if settings.get("acks", settings.get("request.required.acks", "all")) not in {"all", "-1"}:
        msg = f"{what}: option 'acks': expected 'all', got {settings.get('acks')!r}: fewer acknowledgements lose rows"
        raise ConfigurationError(msg)
    encoding = RecordEncoding(
        None if key is None else _columns(key, f"{what}: key"),
        _value(value, topic, key, delivery, what),
        _headers(headers, what),
        timestamp if timestamp is None else _column(timestamp, f"{what}: timestamp"),
    )
    cluster = ClusterOptions.of(bootstrap_servers, settings, patience, token, what)
    return KafkaSink(cluster, topic, encoding, delivery, _checked_tasks(tasks, delivery, what), missing_marker)


def _checked_tasks(tasks: Any, delivery: Delivery, what: str) -> int:
    """Return in how many tasks a batch is written."""
    if tasks is None:
        return _TASKS if delivery == "exactly_once_parallel" else 1
    if delivery != "exactly_once_parallel":
        msg = f"{what}: tasks: expected none with delivery={delivery!r}; it belongs to 'exactly_once_parallel'"
        raise ConfigurationError(msg)
    if isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < 2:
        msg = f"{what}: tasks: expected a whole number of 2 or more, got {tasks!r}"
        raise ConfigurationError(msg)
    return tasks


def _columns(declared: Any, what: str) -> str | tuple[str, ...]:
    """Return one column, or several."""
    if isinstance(declared, str):
        return _column(declared, what)
    is_list = isinstance(declared, Sequence) and not isinstance(declared, (bytes, bytearray))
    if not is_list or not declared:
        msg = f"{what}: expected a column's name, or a list of names, got {declared!r}"
        raise ConfigurationError(msg)
    columns = tuple(_column(each, what) for each in declared)
    if len({each.lower() for each in columns}) < len(columns):
        msg = f"{what}: expected each column once, got {declared!r}"
        raise ConfigurationError(msg)
    return columns


def _value(declared: Any, topic: str, key: Any, delivery: str, what: str) -> str | tuple[str, ...] | RegistryFormat:
    """Return the columns of the value, or its format."""
    if isinstance(declared, (JsonFormat, DebeziumFormat)):
        kind = type(declared).__name__.removesuffix("Format")
        msg = f"{what}: value: expected columns, avro(), protobuf() or json_schema() of cojoin.kafka, got {kind}, "
        raise ConfigurationError(msg + "which sinks do not write; 'json' writes all columns as JSON")
    if not isinstance(declared, (AvroFormat, ProtobufFormat, JsonSchemaFormat)):
        return _columns(declared, f"{what}: value")
    form = _SPELLED[type(declared)]
    if isinstance(declared.schema, str):
        msg = (
            f"{what}: value: {form}: schema: expected a version of the subject, or none, got columns as DDL: they are "
            f"those of the output; leave schema= out"
        )
        raise ConfigurationError(msg)
    if key is None and delivery == "exactly_once_parallel":
        # A batch that is run again with another version would have its rows in other parts.
        msg = f"{what}: key: expected columns with value={form}(...) and delivery={delivery!r}, got none"
        raise ConfigurationError(msg)
    return replace(declared, subject=declared.subject or f"{topic}-value")


def _column(declared: Any, what: str) -> str:
    if not isinstance(declared, str) or not declared:
        msg = f"{what}: expected a column's name, got {declared!r}"
        raise ConfigurationError(msg)
    return declared


def _headers(declared: Any, what: str) -> tuple[tuple[str, str], ...]:
    """Return the headers' names, each with its column."""
    if declared is None:
        return ()
    if not isinstance(declared, Mapping) or not all(isinstance(name, str) and name for name in declared):
        msg = f"{what}: headers: expected a dict of names with their columns, got {declared!r}"
        raise ConfigurationError(msg)
    return tuple((name, _column(column, f"{what}: header {name!r}")) for name, column in declared.items())
