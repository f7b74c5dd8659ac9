"""The arguments of ``cojoin.kafka.source``: checked, and made into a ``KafkaSource``.

Each argument is refused here if it can't be right, before any broker is asked. What only the brokers know, such as
whether a topic exists, is checked when a query starts (``KafkaSource.check``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from cojoin.engine.values.arguments import Duration, milliseconds
from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.kafka.archive.archive import Archive
from cojoin.kafka.cluster_options import ClusterOptions
from cojoin.kafka.formats.record_formats import (
    AvroFormat,
    DebeziumFormat,
    JsonFormat,
    JsonSchemaFormat,
    ProtobufFormat,
)
from cojoin.kafka.kafka_source import DataLoss, KafkaSource, Tombstones, Undecodable
from cojoin.kafka.ranges import Range
from cojoin.kafka.record_columns import check_columns
from cojoin.kafka.record_columns import key as key_column
from cojoin.kafka.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cojoin.kafka.formats.record_formats import ValueFormat
    from cojoin.kafka.points import Bound
    from cojoin.kafka.record_columns import RecordColumn
    from cojoin.kafka.records import Record
    from cojoin.kafka.tokens import Token
    from cojoin.spark.sources.sources import Source

__all__ = ["source"]

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
        from_: Where a new query begins, inclusive: ``"earliest"``, ``"latest"``, a time or an offset; or a dict of
            these by topic, or by topic and partition. Times are compared with the records' timestamps.
        to: Where a bounded run ends, exclusive, in the same forms; None ends it at what is there when it starts.
        max_drift: The largest distance to expect between a record's timestamp and its event time, or its arrival in
            the topic. In the history, a partition or a whole topic without records for longer than this does not hold
            back the join. A larger value buffers more rows; a smaller value relies
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
        group: A consumer group to which a query (``Joined.start``) commits the offsets that its batches have read, once
            they count, so that tools which watch a group's lag see it: at the end of a topic the lag is 0, markers of
            transactions included. Nothing is read from the group, and it must have no members. It is a group of your
            own, one for each input of a topic. A commit that fails is logged, counted as a metric and tried again; the
            query goes on. The process that started the query commits. ``to_dataframe`` commits nothing.
        token: Your own function that returns a token for SASL's OAUTHBEARER, and its lifetime in seconds; or a
            ``Token``. It takes no arguments and runs on the driver and on the workers, again for each new token. The
            login goes by TLS unless ``options`` says otherwise.
        options: librdkafka's settings, such as ``{"security.protocol": "SASL_SSL"}``. They are never stored, and never
            shown where they may be secret. The user needs READ and DESCRIBE on the topics, READ on ``group`` where one
            is given, and otherwise no rights on consumer groups.

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
    cluster = ClusterOptions.of(bootstrap_servers, options, patience, token, what)
    further = dict(columns or {})
    if isinstance(key, str):
        further, key = {"key": key_column(key), **further}, None
    if value is not None and (schema is not None or decode is not None):
        msg = f"{what}: expected value=, or schema= for plain JSON, or schema= and decode=, got value= and another"
        raise ConfigurationError(msg)
    _check_formats(what, value, key, tombstones)
    if isinstance(value, JsonFormat):
        schema, value = value.schema, None
    check_columns(what, schema, further, decode, has_format=value is not None or key is not None)
    for name, word, valid in (
        ("undecodable", undecodable, get_args(Undecodable)),
        ("tombstones", tombstones, get_args(Tombstones)),
        ("data_loss", data_loss, get_args(DataLoss)),
    ):
        if word not in valid:
            msg = f"{what}: {name}: expected {' or '.join(map(repr, valid))}, got {word!r}"
            raise ConfigurationError(msg + did_you_mean(str(word), valid))
    if isinstance(max_records, bool) or not isinstance(max_records, int) or max_records < 1:
        msg = f"{what}: max_records: expected a whole number of 1 or more, got {max_records!r}"
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
        range=Range.of(from_, to, what=what),
        columns=further,
        decode=decode,
        value=value,
        key=key,
        limit=max_records,
        max_drift_ms=milliseconds(max_drift, f"{what}: max_drift"),
        undecodable=undecodable,
        tombstones=tombstones,
        data_loss=data_loss,
        archive=None if archive is None else Archive(archive, what),
        group=_checked_group(what, group),
    )


def _checked_group(what: str, group: Any) -> str | None:
    """Return a consumer group, after a check that it can be one of the user's own."""
    if group is not None and (not isinstance(group, str) or not group.strip()):
        msg = f"{what}: group: expected the id of a consumer group, such as 'enrich-trades', or None, got {group!r}"
        raise ConfigurationError(msg)
    if group is not None and group.startswith(_OWN_GROUPS):
        msg = f"{what}: group: {group!r} begins as cojoin's own groups do; expected a group of yours"
        raise ConfigurationError(msg)
    return group


_FORMATS = (JsonFormat, AvroFormat, ProtobufFormat, JsonSchemaFormat)


def _check_formats(what: str, value: Any, key: Any, tombstones: str) -> None:
    if value is not None and not isinstance(value, (*_FORMATS, DebeziumFormat)):
        msg = (
            f"{what}: value: expected a format such as cojoin.kafka.avro('http://localhost:8081'), got {value!r}; "
            f"the columns of plain JSON are schema="
        )
        raise ConfigurationError(msg)
    if key is not None and not isinstance(key, _FORMATS):
        msg = f"{what}: key: expected a plain type such as 'long', or a format such as cojoin.kafka.avro, got {key!r}"
        raise ConfigurationError(msg)
    if isinstance(value, DebeziumFormat) and tombstones == "keep":
        msg = (
            f"{what}: tombstones: expected the default for Debezium, got 'keep': a tombstone there repeats a delete, "
            f"which has come before"
        )
        raise ConfigurationError(msg)
