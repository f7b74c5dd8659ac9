"""A Kafka cluster: how it is reached, the connection to it, and the requests for topics, offsets and times.

A connection keeps one client of librdkafka, made with the settings of the user. While no broker answers, a request is
repeated until ``patience_ms`` has passed since the first try. An error that waiting does not resolve (a wrong password,
no permission, a topic that does not exist) is raised at once. Before a query starts, a listener that speaks another
protocol is an error within seconds (``refusals``). While a query runs, a refused token may be an old one, so another
one is tried until the patience ends. Offsets in answers are the next to be read; times are epoch milliseconds.

No message contains a token or the value of a setting that may be secret. The log of librdkafka goes to the logger
``cojoin.kafka.client`` at the level ``DEBUG``, with its secrets masked. The first request costs some 60 ms, and with a
token (``tokens``) a second more; a later one costs one round trip for all its partitions.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from cojoin.engine.values.arguments import milliseconds
from cojoin.errors import ConfigurationError, QueryFailedError, did_you_mean
from cojoin.installed_packages import check_packages
from cojoin.kafka.archive_index import NO_ARCHIVE
from cojoin.kafka.refusals import (
    ConnectionLog,
    is_alert,
    is_ended,
    login_problem,
    protocol_problem,
    setting_problem,
)
from cojoin.spark.sources.options import Secrets

with contextlib.suppress(ImportError):  # an optional dependency: ``check_installed`` reports it
    from confluent_kafka import (
        Consumer,
        IsolationLevel,
        KafkaError,
        KafkaException,
        TopicCollection,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from confluent_kafka.admin import ListOffsetsResultInfo  # type: ignore[attr-defined]

    from cojoin.kafka.archive_index import ArchiveIndex
    from cojoin.kafka.tokens import TokenFunction, Tokens


# Named after the client, which is the name that users look for.
_LOG = logging.getLogger("cojoin.kafka.client")


@dataclass(frozen=True)
class ClusterOptions:
    """The address, login and settings of a Kafka cluster. It can be pickled, and its ``repr`` shows only the servers.

    While no broker answers, a request waits for ``patience_ms``; None waits forever. ``token`` is the user's function
    that returns tokens for OAUTHBEARER; None for other logins.

    >>> ClusterOptions("localhost:9092", {"sasl.password": "opensesame"})
    ClusterOptions(bootstrap_servers='localhost:9092')
    """

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    patience_ms: int | None = field(default=60_000, repr=False)
    token: TokenFunction | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, bootstrap_servers: Any, options: Mapping[str, Any] | None, patience: Any, token: Any, label: str
    ) -> ClusterOptions:
        """Return the options that a user wrote, checked as far as possible without a broker."""
        if not isinstance(bootstrap_servers, str) or not bootstrap_servers.strip():
            msg = f"{label}: bootstrap_servers: expected such as 'localhost:9092', got {bootstrap_servers!r}"
            raise ConfigurationError(msg)
        called = [str(name) for name, value in (options or {}).items() if callable(value)]
        if called:
            msg = f"{label}: option {called[0]!r}: expected a text, got a function; one that returns tokens is token="
            raise ConfigurationError(msg)
        settings = {str(name): str(value) for name, value in (options or {}).items()}
        patience_ms = None if patience is None else milliseconds(patience, f"{label}: patience")
        if token is None:
            return cls(bootstrap_servers, settings, patience_ms)
        from cojoin.kafka.tokens import TokenFunction, with_token_login  # noqa: PLC0415 - most logins have none

        function = TokenFunction.of(token, label)
        return cls(bootstrap_servers, with_token_login(settings, label), patience_ms, function)

    def mask(self, text: str) -> str:
        """Return a text in which the value of every setting that may be secret is masked."""
        return Secrets.of_settings(self.settings).mask(text)


@dataclass(frozen=True)
class DebugLog:
    """A logger for librdkafka: ``mask`` removes secrets from each line, which ``listen`` then takes."""

    mask: Callable[[str], str]
    listen: Callable[[str], None]

    def log(self, level: int, text: str, *values: object) -> None:
        """Write a line of librdkafka's to the log, without secrets."""
        del level  # a broker that is away for a moment is not an error of the program
        line = self.mask(text % values)
        self.listen(line)
        _LOG.debug("%s", line)


def check_installed(label: str) -> None:
    """Check that confluent-kafka is installed."""
    check_packages(label, "kafka", "confluent_kafka")


_Answer = TypeVar("_Answer")

_FIRST_TRY_SECONDS, _LONGEST_TRY_SECONDS, _PAUSE_SECONDS = 1.0, 10.0, 0.5

# A broker that is still starting closes connections just like a listener of another protocol.
_OTHER_PROTOCOL_SECONDS = 6.0

# librdkafka waits up to 10 s by default, so a broker that is back would still seem to be away.
_DEFAULTS = {"reconnect.backoff.ms": "100", "reconnect.backoff.max.ms": "1000"}

# Errors by librdkafka's names; those that begin with "_" are its own, the others come from a broker.
UNKNOWN_ERRORS = {"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_NOENT"}
"""The errors of a topic or partition that does not exist, or that a broker has not loaded since its start."""

PERMISSION_ERRORS = {"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"}
"""The errors of a user who lacks a permission."""

GONE_ERRORS = {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}
"""The errors of a consumer at an offset that no longer exists."""

_LOGIN = {
    "_AUTHENTICATION",
    "_SSL",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "ILLEGAL_SASL_STATE",
}
_MOVED = {"FENCED_LEADER_EPOCH", "NOT_LEADER_FOR_PARTITION", "UNKNOWN_LEADER_EPOCH"}
_PASSING = _MOVED | {
    *("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_RESOLVE", "_WAIT_COORD", "_WAIT_CACHE"),
    *("_DESTROY_BROKER", "BROKER_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR", "LEADER_NOT_AVAILABLE"),
    *("NETWORK_EXCEPTION", "OFFSET_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE"),
    *("REQUEST_TIMED_OUT", "THROTTLING_QUOTA_EXCEEDED"),
    # Those of a coordinator that is just starting or moves, or that still ends an earlier transaction.
    *("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    *("CONCURRENT_TRANSACTIONS", "UNSTABLE_OFFSET_COMMIT"),
}

# A range is read once, so fetching beyond it (64 MB by default) only costs memory. A full queue must not wait long.
_READING = {"queued.max.messages.kbytes": "16384", "fetch.queue.backoff.ms": "5"}

_NO_GROUP = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
}


class Connection:
    """A connection to a Kafka cluster, for one thread of one process.

    ``at_start`` means that no query runs yet. Then a listener that speaks another protocol is an error after seconds;
    otherwise it is treated as a broker that is still starting. Each request raises a ConfigurationError where the login
    or a permission is refused, and a QueryFailedError where no broker answers in time.
    """

    def __init__(self, options: ClusterOptions, label: str, *, at_start: bool = False) -> None:
        check_installed(label)
        self._options, self._label, self._at_start = options, label, at_start
        self._errors: list[KafkaError] = []
        self._log = ConnectionLog()
        self._tokens: Tokens | None = None
        if options.token is not None:
            from cojoin.kafka.tokens import Tokens  # noqa: PLC0415 - most logins have none

            self._tokens = Tokens(options.token, label, Secrets.of_settings(options.settings))
        # A client with a token takes a second, which a task that only consumes does without.
        self._admin: AdminClient | None = None if self._tokens else self._made(AdminClient, options.settings)
        self._is_closed = False

    @property
    def patience_ms(self) -> int | None:
        """The time for which a request waits while no broker answers, in milliseconds; None waits forever."""
        return self._options.patience_ms

    def consumer(self, fetching: Mapping[str, str] | None = None) -> Consumer:
        """Return a consumer for ``assign``: it is in no group, commits nothing, and reports each partition's end.

        An offset that does not exist is an error of the consumer: it does not skip to another one. ``fetching`` has
        librdkafka's settings for how much is fetched at once. The caller closes it.
        """
        group = {"group.id": f"cojoin-{uuid.uuid4().hex}"}
        return self._made(Consumer, group | _READING | dict(self._options.settings) | dict(fetching or {}) | _NO_GROUP)

    def setting(self, topic: str, name: str) -> str | None:
        """Return a setting of a topic, such as ``cleanup.policy``; None without it, or without the right."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

        def ask(timeout: float) -> str | None:
            (answer,) = self._client.describe_configs([resource], request_timeout=timeout).values()
            try:
                setting = answer.result().get(name)
                return None if setting is None else str(setting.value)
            except KafkaException as error:
                if error.args[0].name() in PERMISSION_ERRORS:
                    return None
                raise

        return self._patiently(ask)

    def is_passing(self, error: KafkaError) -> bool:
        """Return whether an error, such as a consumer's, may pass by itself, as when a broker is away."""
        return error.name() in _PASSING or error.retriable()

    def text(self, error: KafkaError) -> str:
        """Return an error's text, without secrets."""
        return self._mask(error.str().strip())

    @property
    def last_problem(self) -> str | None:
        """The last problem of a login or a token, without secrets; None where there was none."""
        problems = [self.text(each) for each in self._errors if _is_login(each)]
        problem = None if self._tokens is None else self._tokens.problem
        return problem or (problems[-1] if problems else None)

    def check_patience(self, waited: float, expected: str) -> None:
        """Raise a QueryFailedError if no record has come for so many seconds, and the patience has ended."""
        patience = None if self.patience_ms is None else self.patience_ms / 1_000
        if patience is not None and waited > patience:
            problem = "" if self.last_problem is None else f" ({self.last_problem})"
            msg = (
                f"{self._label}: {self._servers} gave no record for {patience:.0f} s{problem}; expected {expected}; "
                f"see that its brokers run, or wait for longer with patience="
            )
            raise QueryFailedError(msg)

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self._admin, self._is_closed = None, True

    @property
    def _client(self) -> AdminClient:
        assert not self._is_closed, "the cluster was closed"
        if self._admin is None:
            self._admin = self._made(AdminClient, self._options.settings)
        return self._admin

    def _mask(self, text: str) -> str:
        return self._options.mask(text) if self._tokens is None else self._tokens.mask(text)

    def _patiently(self, ask: Callable[[float], _Answer]) -> _Answer:
        """Repeat a request until there is an answer or the patience ends; each try waits longer than the one before."""
        begin, patience = time.monotonic(), self._options.patience_ms
        seconds, self._errors, self._log = _FIRST_TRY_SECONDS, [], ConnectionLog()
        while True:
            left = None if patience is None else begin + patience / 1_000 - time.monotonic()
            timeout = seconds if left is None else min(seconds, max(left, _FIRST_TRY_SECONDS))
            try:
                self._client.poll(0)  # where librdkafka wants another token since the last request
                return ask(timeout)
            except KafkaException as error:
                reason: KafkaError = error.args[0]
            finally:
                self._client.poll(0)  # runs the callbacks of the log and of connection errors
            if reason.name() in _MOVED:
                # librdkafka would keep asking the partition leaders that it knows, so a new client is made.
                self._admin = self._made(AdminClient, self._options.settings)
            waited = time.monotonic() - begin
            if reason.name() not in UNKNOWN_ERRORS and not self.is_passing(reason) and not self._may_renew(reason):
                self._refuse(reason)
            for failure in self._errors:
                # A login whose connection was closed may be due to a broker that stops or starts.
                if _is_login(failure) and not self._may_renew(failure):
                    self._refuse(failure)
            if self._at_start and waited > _OTHER_PROTOCOL_SECONDS and self._log.ended is not None:
                break
            if patience is not None and waited + _PAUSE_SECONDS >= patience / 1_000:
                self._give_up(waited, reason)
            seconds = min(2 * seconds, _LONGEST_TRY_SECONDS)
            time.sleep(_PAUSE_SECONDS)
        ended = str(self._log.ended)
        msg = f"{self._label}: {protocol_problem(self._servers, self._options.settings, ended)}"
        raise ConfigurationError(msg)

    def _may_renew(self, reason: KafkaError) -> bool:
        """Return whether a refused login may be one of a token that has just expired."""
        if self._tokens is None or not _is_login(reason):
            return False
        self._tokens.forget()
        return not self._at_start

    def _refuse(self, reason: KafkaError) -> NoReturn:
        if _is_login(reason) or reason.name() in _LOGIN:
            msg = f"{self._label}: {login_problem(self._servers, self._options.settings, self.text(reason))}"
            raise ConfigurationError(msg) from None
        if reason.name() in PERMISSION_ERRORS:
            msg = f"{self._label}: {self._servers} do not let this user ask: {self.text(reason)}"
            raise ConfigurationError(msg) from None
        msg = f"{self._label}: {self._servers} answered with an error: {self.text(reason)} ({reason.name()})"
        raise QueryFailedError(msg) from None

    def _give_up(self, waited: float, reason: KafkaError) -> NoReturn:
        problem = None if self._tokens is None else self._tokens.problem
        others = [each for each in self._errors if each.name() != "_ALL_BROKERS_DOWN"]
        last = self.text(others[-1] if others else reason)
        ended = self._log.ended
        if ended is not None:
            last = protocol_problem(self._servers, self._options.settings, ended)
        last = problem or last
        msg = (
            f"{self._label}: {self._servers} did not answer as a Kafka cluster for {waited:.0f} s: {last}; see that "
            f"the brokers run and can be reached, or wait for longer with patience="
        )
        raise QueryFailedError(msg) from None

    @property
    def _servers(self) -> str:
        return self._options.bootstrap_servers

    def _made(self, kind: Callable[..., _Answer], settings: Mapping[str, str]) -> _Answer:
        defaults = {} if _DEFAULTS.keys() & settings.keys() else _DEFAULTS
        config: dict[str, Any] = {**defaults, **settings, "bootstrap.servers": self._servers}
        if self._tokens is not None:
            self._tokens.fetch(self._options.patience_ms, at_start=self._at_start)
            config["oauth_cb"] = self._tokens
        try:
            return kind(config | {"error_cb": self._on_error, "logger": DebugLog(self._mask, self._on_log)})
        except KafkaException as error:
            text = self._mask(error.args[0].str().strip())
        # Not in the except block: the error's context would hold librdkafka's text, which may quote a value.
        msg = f"{self._label}: {setting_problem(self._options.settings, text)}"
        raise ConfigurationError(msg)

    def _on_error(self, error: KafkaError) -> None:
        self._errors = [*self._errors[-9:], error]
        self._on_log(self.text(error))

    def _on_log(self, text: str) -> None:
        self._log.add(text)


def _is_login(error: KafkaError) -> bool:
    """Return whether brokers refuse a login; one whose connection only ended may be due to a broker that stops."""
    return is_alert(error.str()) or (error.name() in _LOGIN and not is_ended(error.str()))


Partition: TypeAlias = tuple[str, int]
"""The name of a topic and the number of one of its partitions."""


def name_of(partition: tuple[str | None, int | None]) -> str:
    """Return a partition as messages name it; a topic where it has no number."""
    topic, number = partition
    return f"topic {topic}" if number is None else f"topic {topic} partition {number}"


@dataclass(frozen=True)
class Span:
    """A range of offsets of a partition, from its begin to before its end."""

    partition: Partition
    begin: int
    end: int


@dataclass(frozen=True)
class Gap(Span):
    """A range of offsets that no longer exists."""

    def __str__(self) -> str:
        count = self.end - self.begin
        return f"{name_of(self.partition)}: offsets {self.begin:,} to {self.end - 1:,} ({count:,} records)"


_NO_RECORD = -1
_READS = {"READ", "ALL"}
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # the zero UUID, as Kafka encodes it


class Cluster(Connection):
    """A Kafka cluster and a connection to it, for one thread of one process; for the arguments see ``Connection``.

    Where older records lie in an archive, it answers for both parts as if they were one. Each request raises a
    ConfigurationError, too, where a topic or partition does not exist.

    >>> cluster = Cluster(ClusterOptions("localhost:9092"), "input 'trades'")  # doctest: +SKIP
    >>> cluster.latest([("trades", 0), ("trades", 1)])  # doctest: +SKIP
    {('trades', 0): 1200, ('trades', 1): 0}
    """

    def __init__(
        self, options: ClusterOptions, label: str, archive: ArchiveIndex = NO_ARCHIVE, *, at_start: bool = False
    ) -> None:
        super().__init__(options, label, at_start=at_start)
        self.archive = archive
        self.cluster_id: str | None = None
        self._policies: dict[str, str | None] = {}
        uncommitted = options.settings.get("isolation.level", "").lower() == "read_uncommitted"
        self._isolation = IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED

    def partitions(self, named: Iterable[str] = ()) -> dict[str, list[int]]:
        """Return every topic's partition numbers, including the cluster's internal topics.

        Afterwards ``cluster_id`` is the cluster's own id, or None where it has none. Topics of ``named`` that are not
        listed are checked for a missing permission, because a cluster lists only the topics that the user may see.
        """

        def ask(timeout: float) -> dict[str, list[int]]:
            answer = self._client.list_topics(timeout=timeout)
            self.cluster_id = answer.cluster_id or None
            # A topic without partitions is being created or deleted.
            return {name: sorted(topic.partitions) for name, topic in sorted(answer.topics.items()) if topic.partitions}

        listed = self._patiently(ask)
        self.describe(name for name in named if name not in listed)
        return listed

    def describe(self, topics: Iterable[str]) -> dict[str, str | None]:
        """Return the topics' ids by name, after a check that this user may read them; a missing topic is skipped.

        A topic that is created again gets another id. It is None where the brokers, before Kafka 2.8, have no ids.
        """
        names = list(dict.fromkeys(topics))
        ids: dict[str, str | None] = {}

        def ask(timeout: float) -> None:
            missing = TopicCollection([name for name in names if name not in ids])
            described = self._client.describe_topics(
                missing, include_authorized_operations=True, request_timeout=timeout
            )
            failed: KafkaException | None = None
            for name, future in described.items():
                error = future.exception()
                if isinstance(error, KafkaException):
                    failed = error if self._may_pass(name, error.args[0]) else failed
                    continue
                topic = future.result()
                allowed = allowed_operations(topic)
                if allowed and not _READS & allowed:
                    self._refuse_topic(name)
                ids[name] = topic_id_of(topic)
            if failed is not None:
                raise failed

        if names:
            self._patiently(ask)
        return ids

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return each partition's first offset, in the archive or on the brokers; of an empty one, its end offset."""
        return self.archive.earliest(self.log_starts(partitions))

    def log_starts(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return each partition's log start offset, the first offset that the brokers still have."""
        return {each: answer.offset for each, answer in self._offsets(partitions, OffsetSpec.earliest).items()}

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return each partition's end offset, the one after its last record.

        Records of transactions that are still open lie after the end, unless the settings have
        ``isolation.level=read_uncommitted``.
        """
        return {each: answer.offset for each, answer in self._offsets(partitions, OffsetSpec.latest).items()}

    def written(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset after each partition's last record, even of a transaction that is still open."""
        answers = self._offsets(partitions, OffsetSpec.latest, isolation=IsolationLevel.READ_UNCOMMITTED)
        return {each: answer.offset for each, answer in answers.items()}

    def first_at(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, tuple[int, int] | None]:
        """Return each partition's first record, by offset, at or after a time: its offset and timestamp, or None.

        A broker's answer may be a commit marker, whose timestamp is the time of the commit: see ``offsets_for_times``.
        In the archive it is exact to a bucket of time.
        """
        # Kafka has no times before 1970; negative ones stand for other requests.
        wanted = partial(OffsetSpec.for_timestamp, max(0, timestamp_ms))
        answers = self._offsets(partitions, wanted, least=_NO_RECORD)
        records = {each: None if at.offset == _NO_RECORD else (at.offset, at.timestamp) for each, at in answers.items()}
        for partition in records.keys() & self.archive.archived.keys():
            part, brokers = self.archive.archived[partition], records[partition]
            if brokers is not None and brokers[0] < part.begin:
                continue
            archived = self.archive.first_at(partition, timestamp_ms)
            if brokers is not None and part.has_holes_at(brokers[0]):
                records[partition] = brokers if archived is None else min(archived, brokers)
            elif archived is not None:
                records[partition] = archived
            elif brokers is not None:
                records[partition] = (max(brokers[0], part.cut), brokers[1])
        return records

    def lost(self, partition: Partition, begin: int, end: int, log_start: int) -> list[Gap]:
        """Return the offsets within the archive that neither part has, and that were not compacted away."""
        part = self.archive.archived.get(partition)
        empty = [] if part is None else part.blocks.empty
        overlaps = [Gap(partition, max(one, begin), min(two, end, log_start)) for one, two in empty]
        missing = [each for each in overlaps if each.begin < each.end]
        return [] if missing and self._is_compacted(partition[0]) else missing

    def _is_compacted(self, topic: str) -> bool:
        if topic not in self._policies:
            self._policies[topic] = self.setting(topic, "cleanup.policy")
        return "compact" in (self._policies[topic] or "")

    @property
    def unknown_policies(self) -> str:
        """The advice about losses that may be compaction's, as the end of a message; empty where it is known."""
        names = [repr(topic) for topic, policy in self._policies.items() if policy is None]
        if not names:
            return ""
        return f". Whether compaction removed them is not known: grant DESCRIBE_CONFIGS on topic {', '.join(names)}"

    def next_existing(self, positions: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the first offset at or after each position that is in the archive or on the brokers."""
        log_starts = self.log_starts(positions)
        return {each: self._next_existing(each, at, log_starts[each]) for each, at in positions.items()}

    def _next_existing(self, partition: Partition, position: int, log_start: int) -> int:
        part = self.archive.archived.get(partition)
        if part is None or position >= part.cut:
            return max(position, log_start)
        return position if position >= part.begin else max(position, min(log_start, part.begin))

    def check_ends(self, partitions: Iterable[Partition]) -> None:
        """Check that the archive belongs to these topics, which must have its partitions and its offsets."""
        read = list(partitions)
        archived = self.archive.archived
        topics, ends = self.partitions(topic for topic, _ in archived), self.latest(read)
        for partition, part in archived.items():
            (topic, number), problem = partition, None
            why = "it was created again, or the archive is another topic's"
            if topic not in topics:
                problem = f"has records of topic {topic!r}, and the brokers have no such topic"
                why = "only topics of the brokers are read; take its records out of the archive, or, in a new query, "
                why += "the topic out of topic_pattern="
            elif number not in topics[topic]:
                problem = f"has records of {name_of(partition)}, and the topic has partitions {topics[topic]}"
            elif ends.get(partition, part.cut) < part.cut:
                problem = f"goes up to offset {part.cut - 1:,} of {name_of(partition)}, and the topic ends before"
                problem += f" {ends[partition]:,}"
            if problem is not None:
                msg = f"{self._label}: {self.archive.label} {problem}: {why}"
                raise ConfigurationError(msg)

    def check_seam(self, begins: Mapping[Partition, int], ends: Mapping[Partition, int] | None) -> None:
        """Check that the brokers have all records to be read that the archive lacks; without ``ends`` all are read."""
        log_starts, wrong = self.log_starts(begins), []
        for partition, begin in begins.items():
            first = log_starts[partition]
            end = max(begin, first) if ends is None else ends[partition]
            sections = self.archive.sections(partition, begin, end)
            gone = [Gap(partition, each.begin, min(each.end, first)) for each in sections if not each.is_archived]
            part = self.archive.archived.get(partition)
            end = end if part is None or ends is not None else max(end, part.cut)
            gaps = sorted([*gone, *self.lost(partition, begin, end, first)], key=lambda gap: gap.begin)
            wrong += [str(gap) for gap in gaps if gap.begin < gap.end]
        if wrong:
            msg = (
                f"{self._label}: {'; '.join(wrong)}: neither {self.archive.label} nor the brokers have them; archive "
                f'them, begin later, or set data_loss="skip" to leave them out, which is right if they were '
                f"records of aborted transactions"
            )
            raise ConfigurationError(msg + self.unknown_policies)

    def _may_pass(self, topic: str, error: KafkaError) -> bool:
        """Return whether to ask for a topic again; not where it does not exist, or the brokers lack the request."""
        if error.name() in PERMISSION_ERRORS:
            self._refuse_topic(topic)
        if error.name() in UNKNOWN_ERRORS or error.name() == "_UNSUPPORTED_FEATURE":
            return False
        if not self.is_passing(error):
            self._refuse(error)
        return True

    def _refuse_topic(self, name: str) -> NoReturn:
        msg = (
            f"{self._label}: {self._servers} do not let this user read topic {name!r}, or it does not exist: grant it "
            f"READ and DESCRIBE on the topic; rights on consumer groups are not needed"
        )
        raise ConfigurationError(msg)

    def _offsets(
        self,
        partitions: Iterable[Partition],
        wanted: Callable[[], OffsetSpec],
        least: int = 0,
        isolation: IsolationLevel | None = None,
    ) -> dict[Partition, ListOffsetsResultInfo]:
        order = list(dict.fromkeys(partitions))
        answers: dict[Partition, ListOffsetsResultInfo] = {}

        def ask(timeout: float) -> None:
            missing = {TopicPartition(*each): wanted() for each in order if each not in answers}
            if not missing:
                return
            level = self._isolation if isolation is None else isolation
            futures = self._client.list_offsets(missing, isolation_level=level, request_timeout=timeout)
            failed: dict[Partition, KafkaException] = {}
            for listed, future in futures.items():
                partition = (str(listed.topic), int(listed.partition))
                error = future.exception()
                if isinstance(error, KafkaException):
                    failed[partition] = error
                # An offset of -1001 without an error is how librdkafka reports that a broker has not answered in time.
                elif future.result().offset < least:
                    failed[partition] = no_answer(timeout)
                else:
                    answers[partition] = future.result()
            self._check_topics(failed)
            if failed:
                raise next(iter(failed.values()))

        self._patiently(ask)
        return {each: answers[each] for each in order}

    def _check_topics(self, failed: Mapping[Partition, KafkaException]) -> None:
        """Raise an error for topics or partitions that do not exist, or that may not be read."""
        names = {each: error.args[0].name() for each, error in failed.items()}
        for (topic, _), name in names.items():
            if name in PERMISSION_ERRORS:
                self._refuse_topic(topic)
        unknown = [each for each, name in names.items() if name in UNKNOWN_ERRORS]
        # A broker that has just started may not have loaded its topics yet: those that exist are asked for again.
        topics = self.partitions([topic for topic, _ in unknown]) if unknown else {}
        for topic, number in unknown:
            if topic not in topics:
                near = did_you_mean(topic, [each for each in topics if not each.startswith("__")])
                msg = f"{self._label}: {self._servers} have no topic {topic!r}{near}"
                raise ConfigurationError(msg)
            if number not in topics[topic]:
                msg = f"{self._label}: topic {topic!r} has no partition {number}; it has {topics[topic]}"
                raise ConfigurationError(msg)


def topic_id_of(described: Any) -> str | None:
    """Return a topic's id from the brokers' description; None where the brokers, before Kafka 2.8, have no ids."""
    return None if str(described.topic_id) == _NO_ID else str(described.topic_id)


def allowed_operations(described: Any) -> set[str]:
    """Return the operations that this user may do on a topic; none where brokers, before Kafka 2.3, report none."""
    return {str(getattr(each, "name", each)) for each in described.authorized_operations or ()}


def no_answer(timeout: float) -> KafkaException:
    """Return the error of a request that brokers have not answered in so many seconds."""
    code = KafkaError._TIMED_OUT  # noqa: SLF001 - its public name
    return KafkaException(KafkaError(code, f"no answer within {timeout:.0f} s"))
