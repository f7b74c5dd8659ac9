"""Records of a task: ranges of offsets, read from the brokers and returned as Arrow batches of bounded size.

Each record is a row with its topic, partition and offset, and those of its other parts that the query needs. A record
that can't be used has a *fault*: its reason, a colon, and the value. Some rows are not records: a *mark* is the time
that event time has reached in its partition, a newest timestamp lets the join decide whether to use the marks, and a
fault may stand for records that no longer exist.

Batches have at most 20,000 records and 16 MB, or one larger record. A range is read until all offsets up to its end are
passed, whether they have records or not, because compaction and transactions leave holes. It holds one batch and what
librdkafka has fetched ahead (16 MB, and one fetch more), and nothing that grows with the range. A record costs about 2
microseconds.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from cojoin.engine.values.encoding import coercer, encode_column
from cojoin.errors import ConfigurationError, QueryFailedError
from cojoin.kafka.client import GONE_ERRORS, Cluster, name_of
from cojoin.kafka.formats.wire_format import schema_head, undecodable
from cojoin.kafka.offsets_for_times import LAST_MILLIS, stamp_of, time_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from cojoin.kafka.archive_index import Layout
    from cojoin.kafka.client import ClusterOptions, Partition, Span
    from cojoin.kafka.formats.decoding import Decoder
    from cojoin.kafka.formats.wire_format import SchemaHead
    from cojoin.kafka.tasks import Task


KEY, VALUE, TIME, HEADERS = "__cojoin_key", "__cojoin_value", "__cojoin_time", "__cojoin_headers"
DECODED, DECODED_KEY = "__cojoin_decoded", "__cojoin_decoded_key"
MARK, FAULT, NEWEST = "__cojoin_mark", "__cojoin_fault", "__cojoin_newest"
TOMBSTONE = "tombstone: the record has no value"

_PLACE_SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
_SIGNS = pa.schema([(MARK, pa.int64()), (FAULT, pa.string()), (NEWEST, pa.int64())])
PARTS: dict[str, pa.DataType] = {
    KEY: pa.binary(),
    VALUE: pa.binary(),
    TIME: pa.timestamp("us", "UTC"),
    HEADERS: pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}

_LOOKED_AT = 50


class Record(NamedTuple):
    """A record as a user's ``decode`` function receives it.

    Attributes:
        topic: The name of its topic.
        partition: The number of its partition.
        offset: Its offset.
        timestamp: Its timestamp in epoch milliseconds; None where it has none.
        key: Its key; None where it has none.
        value: Its value; never None, because tombstones are not decoded.
        headers: Its headers, in their order.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes
    headers: Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class RecordFormat:
    """The parts of a record that its row has, some of ``KEY``, ``VALUE``, ``TIME`` and ``HEADERS``, and its decoders.

    ``decode`` converts a record into a value of type ``decoded``, which an archive may also hold; None leaves that to
    the decoders ``value`` and ``key``, and where these are None, to Spark. ``keeps_tombstones`` makes a record without
    a value a row like others, with nulls.
    """

    parts: tuple[str, ...]
    decode: Callable[[Record], Any] | None
    decoded: pa.StructType | None
    keeps_tombstones: bool
    archive: Layout | None = None
    value: Decoder | None = None
    key: Decoder | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns that a task returns."""
        own = [] if self.decoded is None else [pa.field(DECODED, self.decoded)]
        own += [] if self.key is None else [pa.field(DECODED_KEY, self.key.dtype)]
        return pa.schema([*_PLACE_SCHEMA, *(pa.field(name, PARTS[name]) for name in self.parts), *own, *_SIGNS])


def read_task(
    task: Task,
    options: ClusterOptions,
    form: RecordFormat,
    label: str,
    held: Mapping[Partition, Collection[int]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read a task's records from the brokers, without the offsets of ``held``, then its marks and gaps."""
    spans = task.from_brokers
    if spans:
        with closing(Cluster(options, label)) as cluster:
            newest: dict[Partition, int] = {}
            for messages in fetched(cluster, spans, options, label, held):
                _note_newest(messages, newest, task.trusted_until)
                yield _rows(messages, form)
            yield markers(None, newest, form)
    if task.marks or task.gaps:
        yield markers(task, {}, form)


def _note_newest(messages: Sequence[Any], newest: dict[Partition, int], trusted_until: int | None) -> None:
    """Update each partition's newest trusted timestamp from a sample of records, which may be minutes off."""
    for message in [*messages[::_LOOKED_AT], messages[-1]]:
        partition, moment = (message.topic(), message.partition()), time_of(message)
        if moment is not None and (trusted_until is None or moment <= trusted_until):
            newest[partition] = max(newest.get(partition, moment), moment)


def _rows(messages: Sequence[Any], form: RecordFormat) -> pa.RecordBatch:
    values = [message.value() for message in messages]
    columns: dict[str, Any] = {
        "topic": pa.array([message.topic() for message in messages], pa.string()),
        "partition": pa.array([message.partition() for message in messages], pa.int32()),
        "offset": pa.array([message.offset() for message in messages], pa.int64()),
    }
    faults: list[str | None] = [None] * len(messages)
    for part in form.parts:
        if part != VALUE or form.value is None:
            part_values = _times(messages, faults) if part == TIME else _part(part, messages, values)
            columns[part] = pa.array(part_values, PARTS[part])
    if form.decode is not None and form.decoded is not None:
        columns[DECODED] = decode_all(map(_record, messages, values), form.decode, form.decoded, faults)
    elif form.decoded is not None:
        columns[DECODED] = pa.nulls(len(messages), form.decoded)
    keys = [] if form.key is None else _part(KEY, messages, values)
    headers = [message.headers() for message in messages] if form.value or form.key else []
    columns |= decode_parts(form, values, keys, faults, headers if any(headers) else None)
    if not form.keeps_tombstones:
        faults = [TOMBSTONE if value is None else fault for value, fault in zip(values, faults, strict=True)]
    columns[MARK] = columns[NEWEST] = pa.nulls(len(messages), pa.int64())
    columns[FAULT] = pa.array(faults, pa.string())
    return pa.RecordBatch.from_arrays([columns[name] for name in form.schema.names], schema=form.schema)


def _part(part: str, messages: Sequence[Any], values: list[bytes | None]) -> list[Any]:
    if part == VALUE:
        return values
    if part == KEY:
        return [message.key() for message in messages]
    return [[{"key": key, "value": value} for key, value in message.headers() or ()] for message in messages]


def _times(messages: Sequence[Any], faults: list[str | None]) -> list[int | None]:
    """Return the records' timestamps in microseconds; one that their column can't hold becomes a fault."""
    stamps = [stamp_of(each) for each in messages]
    for at, stamp in enumerate(stamps):
        if stamp is not None and abs(stamp) > LAST_MILLIS:
            stamps[at] = None
            faults[at] = (
                f"undecodable: the record's timestamp is {stamp}: expected milliseconds since 1970, of at most "
                f"{LAST_MILLIS}; see that its producer does not write nanoseconds"
            )
    return [None if stamp is None else 1000 * stamp for stamp in stamps]


def _record(message: Any, value: bytes | None) -> Record | None:
    if value is None:
        return None
    place = (message.topic(), message.partition(), message.offset())
    return Record(*place, stamp_of(message), message.key(), value, message.headers() or ())


def decode_parts(
    form: RecordFormat,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None],
    faults: list[str | None],
    headers: Sequence[Sequence[tuple[str, bytes | None]] | None] | None = None,
) -> dict[str, pa.Array]:
    """Return the columns of decoded values and keys, if the form has decoders; new faults are added to ``faults``.

    ``keys`` is empty where none is decoded. ``headers`` may name schemas; None where no record has one.
    """
    columns = {}

    def heads(part: str) -> list[SchemaHead | None] | None:
        return None if headers is None else [schema_head(each or (), part) for each in headers]

    if form.value is not None:
        rows = form.value.decode(values, faults, heads("value"))
        columns[DECODED if pa.types.is_struct(rows.type) else VALUE] = rows
    if form.key is not None:
        columns[DECODED_KEY] = form.key.decode(keys, faults, heads("key"))
    return columns


def decode_all(
    records: Iterable[Record | None],
    decode: Callable[[Record], Any],
    dtype: pa.StructType,
    faults: list[str | None],
) -> pa.Array:
    """Return records decoded by the user's function, null for None; where it fails, the record gets a fault."""
    convert = coercer(dtype, "decode")
    decoded: list[Any] = []
    for at, record in enumerate(records):
        decoded.append(None)
        if record is None:
            continue
        try:
            decoded[at] = convert(decode(record))
        except Exception as error:  # noqa: BLE001 - whatever it raises, the record could not be decoded
            faults[at] = _undecodable(error)
    try:
        return encode_column(decoded, dtype)
    except ValueError:  # such as text that is not valid Unicode, which only Arrow detects
        return _encoded(decoded, dtype, faults)


def _encoded(decoded: list[Any], dtype: pa.StructType, faults: list[str | None]) -> pa.Array:
    """Return encoded values; those that can't be encoded become null, and the records' faults."""
    for at, value in enumerate(decoded):
        try:
            encode_column([value], dtype)
        except ValueError as error:  # noqa: PERF203 - each value is tried by itself
            decoded[at], faults[at] = None, _undecodable(error)
    return encode_column(decoded, dtype)


def _undecodable(error: Exception) -> str:
    return undecodable(f"{type(error).__name__}: {error}")


def markers(task: Task | None, newest: Mapping[Partition, int], form: RecordFormat) -> pa.RecordBatch:
    """Return the rows that are not records: a task's marks and gaps, if any, and newest timestamps.

    The mark of a partition that holds more has a newest timestamp as well, whose value has no meaning. From ``newest``
    the join decides whether to use marks.
    """
    marks, gaps, unread = ({}, [], frozenset()) if task is None else (task.marks, task.gaps, task.unread)
    partitions = [*marks, *(gap.partition for gap in gaps), *newest]
    nothing = [[None] * len(each) for each in (marks, gaps, newest)]
    columns: dict[str, Any] = {field.name: pa.nulls(len(partitions), field.type) for field in form.schema}
    columns["topic"] = pa.array([topic for topic, _ in partitions], pa.string())
    columns["partition"] = pa.array([number for _, number in partitions], pa.int32())
    columns["offset"] = pa.array([*nothing[0], *(gap.begin for gap in gaps), *nothing[2]], pa.int64())
    columns[MARK] = pa.array([*marks.values(), *nothing[1], *nothing[2]], pa.int64())
    columns[FAULT] = pa.array([*nothing[0], *(f"gone: {gap}" for gap in gaps), *nothing[2]], pa.string())
    more = [0 if each in unread else None for each in marks]
    columns[NEWEST] = pa.array([*more, *nothing[1], *newest.values()], pa.int64())
    return pa.RecordBatch.from_arrays([columns[name] for name in form.schema.names], schema=form.schema)


PIECE_RECORDS, PIECE_BYTES = 20_000, 16 << 20

_WAIT_SECONDS = 0.5
_END = "_PARTITION_EOF"

# The consumer is in no group and needs no rights on any, but librdkafka asks for a coordinator nevertheless.
_OF_GROUPS = {"GROUP_AUTHORIZATION_FAILED", "INVALID_GROUP_ID"}


def fetched(
    cluster: Cluster,
    spans: Sequence[Span],
    options: ClusterOptions,
    label: str,
    held: Mapping[Partition, Collection[int]] | None = None,
) -> Iterator[list[Any]]:
    """Read ranges of offsets, each partition's in order, without those of ``held``.

    Yields lists of confluent-kafka's messages, never empty and never more than a piece.
    """
    waiting: list[Any] = []
    size = 0
    with closing(cluster.consumer()) as consumer:
        for one_round in _rounds(spans):
            for message in _consumed(consumer, cluster, one_round, options, label):
                partition = (message.topic(), message.partition())
                if held and message.offset() in held.get(partition, ()):
                    continue
                more = _size(message)
                if waiting and (len(waiting) >= PIECE_RECORDS or size + more > PIECE_BYTES):
                    yield waiting
                    waiting, size = [], 0
                waiting.append(message)
                size += more
        if waiting:
            yield waiting


def _rounds(spans: Sequence[Span]) -> list[list[Span]]:
    """Split ranges into rounds of at most one range per partition: a consumer is assigned each partition once."""
    rounds: list[list[Span]] = []
    seen: dict[Partition, int] = {}
    for span in spans:
        at = seen[span.partition] = seen.get(span.partition, -1) + 1
        if at == len(rounds):
            rounds.append([])
        rounds[at].append(span)
    return rounds


def _size(message: Any) -> int:
    """Return a record's approximate size in bytes."""
    size = len(message.value() or b"") + len(message.key() or b"")
    for name, value in message.headers() or ():
        size += len(name) + len(value or b"")
    return size


def _consumed(
    consumer: Any, cluster: Cluster, spans: Sequence[Span], options: ClusterOptions, label: str
) -> Iterator[Any]:
    from confluent_kafka import TopicPartition  # noqa: PLC0415 - optional, but the cluster exists, so it is installed

    left: dict[Partition, Span] = {span.partition: span for span in spans}
    consumer.assign([TopicPartition(*span.partition, span.begin) for span in spans])
    answered_at = time.monotonic()
    while left:
        # The queue is bounded by bytes, but a consumer that waits for many records fetches beyond that bound.
        messages = consumer.consume(1, _WAIT_SECONDS)
        messages += consumer.consume(PIECE_RECORDS, 0) if messages else []
        if any(message.error() is None or message.error().name() == _END for message in messages):
            answered_at = time.monotonic()
        else:
            partition, span = next(iter(left.items()))
            expected = f"those of {name_of(partition)} up to offset {span.end - 1:,}"
            cluster.check_patience(time.monotonic() - answered_at, expected)
        done = []
        for message in messages:
            error = message.error()
            if error is not None and error.name() != _END:
                _judge(cluster, error, message, options, label)
                continue
            partition, offset = (message.topic(), message.partition()), message.offset()
            wanted = left.get(partition)
            # Records that were fetched for an earlier range of the partition may still arrive.
            if wanted is None or offset < wanted.begin:
                continue
            if error is None and offset < wanted.end:
                yield message
            if offset >= wanted.end - (error is None):
                del left[partition]
                done.append(TopicPartition(*partition))
        if done and left:
            consumer.incremental_unassign(done)


def _judge(cluster: Cluster, error: Any, message: Any, options: ClusterOptions, label: str) -> None:
    if cluster.is_passing(error) or error.name() in _OF_GROUPS:
        return
    where = name_of((message.topic(), message.partition()))
    if error.name() == "TOPIC_AUTHORIZATION_FAILED":
        msg = (
            f"{label}: {options.bootstrap_servers} do not let this user read topic {message.topic()!r}: "
            f"grant it READ and DESCRIBE on the topic"
        )
        raise ConfigurationError(msg)
    if error.name() in GONE_ERRORS:
        msg = f"{label}: {where}: the records at offset {message.offset():,} were deleted while they were to be read"
    else:
        msg = f"{label}: {where}: {cluster.text(error)} ({error.name()})"
    raise QueryFailedError(msg)
