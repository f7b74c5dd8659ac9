"""A producer for one task: it sends records to a topic, and the brokers take every record, or an error names one.

It keeps librdkafka's queue of at most 128 MB. Keys are spread over the partitions as by Kafka's own clients in Java
(murmur2), so the records of a key are in one partition, in the order in which they were sent; records without a key go
to any partition. A record is sent once, also if a broker fails meanwhile (``enable.idempotence``), unless the producer
itself ends. An error of the brokers is raised with what was expected, their own words, and what to do.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any, NoReturn

from cojoin.errors import ConfigurationError, QueryFailedError, did_you_mean
from cojoin.kafka.client import UNKNOWN_ERRORS, Connection, allowed_operations, topic_id_of
from cojoin.kafka.sink.record_encoding import HEADERS, KEY, TIMESTAMP, VALUE

with contextlib.suppress(ImportError):  # an optional dependency: ``check_installed`` reports it
    from confluent_kafka import KafkaException, Producer, TopicCollection

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import KafkaError

    from cojoin.kafka.client import ClusterOptions


DEFAULT_TRANSACTION_TIMEOUT_MS = 300_000
_DEFAULTS = {
    "partitioner": "murmur2_random",
    "compression.type": "lz4",
    "linger.ms": "20",
    "queue.buffering.max.messages": "200000",
    "queue.buffering.max.kbytes": "131072",
    "transaction.timeout.ms": str(DEFAULT_TRANSACTION_TIMEOUT_MS),
}
_MOST_BYTES = 1_000_000_000
"""The largest ``message.max.bytes`` of librdkafka; a topic may allow more."""

_ROOM_SECONDS = 0.1


@dataclass(frozen=True)
class TopicFacts:
    """The ids and the size limit of a topic, as the brokers report them.

    An id is None where there is none, a topic's before Kafka 2.8. ``max_bytes`` is the topic's ``max.message.bytes``;
    None where this user may not read it.
    """

    cluster_id: str | None
    topic_id: str | None
    max_bytes: int | None


@dataclass(frozen=True)
class TopicTarget:
    """One output of a query in a topic, as the workers need it.

    ``application`` is the beginning of the transactional ids and of the groups, ``cojoin-QUERY-OUTPUT``; ``tasks`` the
    number of parts in which a batch is written, and ``facts`` those of the run's start.
    """

    cluster: ClusterOptions
    topic: str
    application: str
    label: str
    headers: tuple[str, ...] = ()
    epoch: int = 0
    tasks: int = 1
    facts: TopicFacts = field(default_factory=lambda: TopicFacts(None, None, None))
    is_transactional: bool = True

    @property
    def needs(self) -> set[str]:
        """The operations on the topic that a user needs rights for; commits of its offsets need READ."""
        return {"WRITE", "READ"} if self.is_transactional else {"WRITE"}

    @property
    def transaction_timeout_ms(self) -> int:
        """The longest time of a transaction."""
        return int(self.cluster.settings.get("transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS))

    def producer_settings(self) -> dict[str, str]:
        """Return librdkafka's settings of a producer; those of the user come first."""
        most = self.facts.max_bytes
        # The brokers hold a whole batch of records against the topic's limit, with what frames them.
        size = {}
        if most is not None:
            size["message.max.bytes"] = str(min(_MOST_BYTES, max(1_000, most)))
            size["batch.size"] = str(min(1_000_000, max(1, most * 9 // 10)))
        return {**_DEFAULTS, **size, **self.cluster.settings, "enable.idempotence": "true"}


class TopicConnection(Connection):
    """A connection to a topic's cluster, which explains what the brokers refuse to a sink."""

    def __init__(self, target: TopicTarget, *, at_start: bool = False) -> None:
        super().__init__(target.cluster, target.label, at_start=at_start)
        self._target = target

    def facts(self) -> TopicFacts:
        """Return the topic's ids and size limit, after a check that it exists and that this user may write to it."""
        topic, cluster_id = self._target.topic, ""

        def ask(timeout: float) -> Any:
            nonlocal cluster_id
            # Asked for one topic, brokers might create it.
            cluster_id = str(self._client.list_topics(timeout=timeout).cluster_id or "")
            wanted = TopicCollection([topic])
            answers = self._client.describe_topics(wanted, include_authorized_operations=True, request_timeout=timeout)
            try:
                return answers[topic].result()
            except KafkaException as error:
                if error.args[0].name() in UNKNOWN_ERRORS:
                    return None
                raise

        described = self._patiently(ask)
        if described is None:
            self._refuse_unknown()
        allowed = allowed_operations(described)
        lacking = sorted(self._target.needs - allowed)
        if allowed and "ALL" not in allowed and lacking:
            msg = (
                f"{self._label}: {self._servers} do not let this user {' and '.join(lacking)} topic {topic!r}: grant "
                f"it WRITE, READ and DESCRIBE on the topic; without READ, only delivery='at_least_once' can be had"
            )
            raise ConfigurationError(msg)
        most = self.setting(topic, "max.message.bytes")
        return TopicFacts(cluster_id or None, topic_id_of(described), None if most is None else int(most))

    def _refuse_unknown(self) -> NoReturn:
        topic = self._target.topic
        names = self._patiently(lambda timeout: list(self._client.list_topics(timeout=timeout).topics))
        near = did_you_mean(topic, [name for name in names if not name.startswith("__")])
        msg = f"{self._label}: {self._servers} have no topic {topic!r}, and cojoin creates none; create it{near}"
        raise ConfigurationError(msg)

    def _give_up(self, waited: float, reason: KafkaError) -> NoReturn:
        if reason.name() in UNKNOWN_ERRORS:
            # It was waited for, since a broker that has just started knows no topics yet.
            self._refuse(reason)
        super()._give_up(waited, reason)

    def _refuse(self, reason: KafkaError) -> NoReturn:
        advice = _send_problem(
            reason.name(), self.text(reason), topic=self._target.topic, application=self._target.application
        )
        if advice is None:
            super()._refuse(reason)
        msg = f"{self._label}: {advice}"
        raise ConfigurationError(msg) from None


class TopicProducer(TopicConnection):
    """Sends a task's records, each at least once."""

    def __init__(self, target: TopicTarget, settings: dict[str, str] | None = None, *, at_start: bool = False) -> None:
        super().__init__(target, at_start=at_start)
        self._failed: list[KafkaError] = []
        config: dict[str, Any] = {**target.producer_settings(), **(settings or {})}
        config |= {"delivery.report.only.error": True, "on_delivery": self._undelivered}
        self._producer: Producer = self._made(Producer, config)

    def send(self, records: pa.RecordBatch) -> None:
        """Send records, in their order; returns when they are queued."""
        names = records.schema.names
        keys, values = (records.column(name).to_pylist() for name in (KEY, VALUE))
        count, topic, produce = len(values), self._target.topic, self._producer.produce
        times = records.column(TIMESTAMP).to_pylist() if TIMESTAMP in names else None
        headers = records.column(HEADERS).to_pylist() if HEADERS in names else None
        # Without a time, or with 0, a record has that at which it is sent.
        further: list[dict[str, Any]] = [{} for _ in range(0 if times is None and headers is None else count)]
        for at, sent_at in enumerate(times or ()):
            further[at]["timestamp"] = sent_at or 0
        for at, contents in enumerate(headers or ()):
            further[at]["headers"] = list(zip(self._target.headers, contents, strict=True))
        try:
            for key, value, options in zip(keys, values, further or repeat({}), strict=False):
                while True:
                    try:
                        produce(topic, value, key, **options)
                        break
                    except BufferError:
                        self._make_room()
        except KafkaException as error:
            raise self._failure(error.args[0], key, value) from None
        self._producer.poll(0)
        self._check_delivered()

    def flush(self) -> None:
        """Wait until the brokers have taken all records that were sent."""
        left, moved = len(self._producer), time.monotonic()
        while left:
            still = self._producer.flush(1)
            self._check_delivered()
            moved = time.monotonic() if still < left else moved
            self._check_moving(moved)
            left = still

    def _make_room(self) -> None:
        before, begin = len(self._producer), time.monotonic()
        while len(self._producer) >= before:
            self._producer.poll(_ROOM_SECONDS)
            self._check_delivered()
            self._check_moving(begin)

    def _check_moving(self, since: float) -> None:
        waited = time.monotonic() - since
        if self.patience_ms is not None and waited > self.patience_ms / 1_000:
            msg = (
                f"{self._label}: {self._servers} have taken no record for {waited:.0f} s; see that the brokers run and "
                f"can be reached, or wait for longer with patience=, and start the query again"
            )
            raise QueryFailedError(msg)

    def _undelivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None and len(self._failed) < 10:
            self._failed.append(error)

    def _check_delivered(self) -> None:
        if self._failed:
            raise self._failure(self._failed[0])

    def _failure(self, error: KafkaError, key: bytes | None = None, value: bytes | None = None) -> QueryFailedError:
        """Return the error of a record that was not taken; the record is named by its key and its size."""
        text = self.text(error)
        if value is not None and error.name() == "MSG_SIZE_TOO_LARGE":
            shown = "no key" if key is None else f"the key {key[:80].decode(errors='replace')!r}"
            text = f"{len(value):,} bytes, with {shown}, where {self._largest()} is the most"
        advice = _send_problem(error.name(), text, topic=self._target.topic, application=self._target.application)
        return QueryFailedError(f"{self._label}: {advice or f'the brokers do not take a record: {text}'}")

    def _largest(self) -> str:
        return f"{int(self._target.producer_settings().get('message.max.bytes', 1_000_000)):,}"


LOST = {
    *("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING", "INVALID_TXN_STATE"),
    *("_FATAL", "_STATE", "_PURGE_QUEUE", "_PURGE_INFLIGHT", "UNKNOWN_PRODUCER_ID", "TRANSACTION_ABORTABLE"),
}
"""The errors of a transaction that was ended by others: by a later producer of its id, or because it took too long."""

_TRANSACTION_TIMEOUT = "transaction.timeout.ms"


_KINDS = {
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (
        "the brokers do not let this user write transactions: {text}; grant it WRITE and DESCRIBE on the transactional "
        "ids that begin with 'cojoin-', such as {application!r}, or use delivery='at_least_once'"
    ),
    "GROUP_AUTHORIZATION_FAILED": (
        "the brokers do not let this user keep its position: {text}; grant it READ and DESCRIBE on the consumer groups "
        "that begin with 'cojoin-', such as {application!r}, or use delivery='at_least_once'"
    ),
    "TOPIC_AUTHORIZATION_FAILED": (
        "the brokers do not let this user write: {text}; grant it WRITE, READ and DESCRIBE on the topic {topic!r}"
    ),
    "UNKNOWN_TOPIC_OR_PART": "topic {topic!r} no longer exists: {text}; create it, and start a new query",
    "INVALID_TRANSACTION_TIMEOUT": (
        "option transaction.timeout.ms: {text}; expected at most the brokers' transaction.max.timeout.ms, which is 15 "
        "minutes by default: give the option a smaller value, or the brokers a larger one"
    ),
    "UNSUPPORTED_VERSION": (
        "the brokers have no transactions: {text}; expected Kafka 2.5 or later, or use delivery='at_least_once'"
    ),
    "MSG_SIZE_TOO_LARGE": (
        "a record is larger than topic {topic!r} takes: {text}; nothing of the batch was committed. Give the topic a "
        "larger max.message.bytes and start the query again, or write fewer or smaller columns in a new query"
    ),
    "OFFSET_METADATA_TOO_LARGE": (
        "the brokers' offset.metadata.max.bytes is too small: {text}; expected its default, 4096, or more"
    ),
    "INVALID_RECORD": (
        "topic {topic!r} does not take a record: {text}; a compacted topic needs a key in each record: give key=, with "
        "a column that is never null"
    ),
}
_SAME = {
    "CLUSTER_AUTHORIZATION_FAILED": "TOPIC_AUTHORIZATION_FAILED",
    "UNKNOWN_TOPIC_ID": "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_PARTITION": "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_TOPIC": "UNKNOWN_TOPIC_OR_PART",
    "_UNSUPPORTED_FEATURE": "UNSUPPORTED_VERSION",
}


def _send_problem(name: str, cause: str, *, topic: str, application: str) -> str | None:
    """Return the message for an error of a producer, by librdkafka's name and text, with advice; None without.

    >>> print(_send_problem("UNKNOWN_TOPIC_ID", "unknown", topic="enriched", application="cojoin-0b8e-output"))
    topic 'enriched' no longer exists: unknown; create it, and start a new query
    """
    text = _KINDS.get(_SAME.get(name, name))
    return None if text is None else text.format(text=cause, topic=topic, application=application)


def timeout_problem(seconds: float, timeout_ms: int) -> str:
    """Return the message for a transaction that the brokers ended because it took too long."""
    return (
        f"its transaction took {seconds:.0f} s, and the brokers end one after {timeout_ms / 1000:g} s "
        f"({_TRANSACTION_TIMEOUT}); nothing of the batch was written. Give the option {_TRANSACTION_TIMEOUT} a larger "
        f"value (up to the brokers' transaction.max.timeout.ms), or read fewer rows a batch, and start the query again"
    )
