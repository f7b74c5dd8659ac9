"""What is asked of a Kafka cluster, in our words, with patience.

Keeps: one connection, made by the first question. Answers are offsets, each the next to be read, and times in epoch
milliseconds. While no broker answers, a question is asked again about every second, until ``patience_ms`` has passed
since it was asked first; what patience can't mend (a wrong password, no permission, no such topic) is an error at once.
No value of a setting that may be secret stands in a message, and what librdkafka logs goes to the logger
``cojoin.kafka.client``, at the level ``DEBUG`` and with its secrets masked. Costs: one round trip a question, for all
its partitions: less than a millisecond for 8 of them on one machine; the first question, some 60 ms.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from cojoin.errors import ConfigurationError, EnvironmentSetupError, QueryFailedError, did_you_mean

try:
    from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
except ImportError:  # an extra of the package's
    _IS_INSTALLED = False
else:
    _IS_INSTALLED = True

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from confluent_kafka.admin import ListOffsetsResultInfo  # type: ignore[attr-defined]

__all__ = ["Cluster", "ClusterOptions", "Partition"]

Partition: TypeAlias = tuple[str, int]
"""A topic and the number of one of its partitions."""

_Answer = TypeVar("_Answer")

_LOG = logging.getLogger(__name__)
_SECRET = re.compile(r"password|secret|token|key|jaas|\.pem|oauthbearer\.config", re.IGNORECASE)
_FIRST_TRY_SECONDS, _LONGEST_TRY_SECONDS, _PAUSE_SECONDS = 1.0, 10.0, 0.5

# librdkafka's own waits are up to 10 s: a broker that is back would look as if it were not.
_DEFAULTS = {"reconnect.backoff.ms": "100", "reconnect.backoff.max.ms": "1000"}

_NO_RECORD = -1

# Errors by librdkafka's names; those that begin with "_" are its own, the others a broker's.
_UNKNOWN = {"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_NOENT"}
_LOGIN = {
    "_AUTHENTICATION",
    "_SSL",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "ILLEGAL_SASL_STATE",
}
_PERMISSION = {"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"}
_MOVED = {"FENCED_LEADER_EPOCH", "NOT_LEADER_FOR_PARTITION", "UNKNOWN_LEADER_EPOCH"}
_PASSING = _MOVED | {
    *("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_RESOLVE", "_WAIT_COORD", "_WAIT_CACHE"),
    *("_DESTROY_BROKER", "BROKER_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR", "LEADER_NOT_AVAILABLE"),
    *("NETWORK_EXCEPTION", "OFFSET_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE"),
    *("REQUEST_TIMED_OUT", "THROTTLING_QUOTA_EXCEEDED"),
}

# A range is read once: what is fetched beyond it, 64 MB by default, is only memory. A full queue must not wait long.
_READING = {"queued.max.messages.kbytes": "16384", "fetch.queue.backoff.ms": "5"}

_NO_GROUP = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
}


@dataclass(frozen=True)
class ClusterOptions:
    """How a Kafka cluster is reached. It can be pickled, and shows its servers alone.

    Attributes:
        bootstrap_servers: Such as ``"localhost:9092"``.
        settings: librdkafka's, such as ``security.protocol``; they may hold secrets.
        patience_ms: For how many milliseconds no broker may answer; None is for ever.

    >>> ClusterOptions("localhost:9092", {"sasl.password": "opensesame"})
    ClusterOptions(bootstrap_servers='localhost:9092')
    """

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    patience_ms: int | None = field(default=60_000, repr=False)

    def mask(self, text: str) -> str:
        """Give a text with the value of every setting that may be secret replaced."""
        secrets = {str(value) for name, value in self.settings.items() if _SECRET.search(name)} - {""}
        # The longest first: a part of a value must not break the mask of the whole.
        for value in sorted(secrets, key=len, reverse=True):
            text = text.replace(value, "***")
        return text


class Cluster:
    """A Kafka cluster, for one thread of one process.

    Args:
        options: How it is reached.
        what: Who asks, for messages, such as ``"input 'trades'"``.

    Raises:
        EnvironmentSetupError: confluent-kafka is not installed.
        ConfigurationError: A setting is unknown, or its value is wrong. Each question raises one, too, where the
            login or a permission is refused or a topic or partition is not there; and ``QueryFailedError`` where no
            broker answers in time.

    >>> cluster = Cluster(ClusterOptions("localhost:9092"), "input 'trades'")  # doctest: +SKIP
    >>> cluster.latest([("trades", 0), ("trades", 1)])  # doctest: +SKIP
    {('trades', 0): 1200, ('trades', 1): 0}
    """

    def __init__(self, options: ClusterOptions, what: str) -> None:
        if not _IS_INSTALLED:
            msg = f'{what}: expected the package confluent-kafka, found none; run: pip install "cojoin[kafka]"'
            raise EnvironmentSetupError(msg)
        self._options, self._what = options, what
        self._heard: list[KafkaError] = []
        self._admin: AdminClient | None = self._made(AdminClient, options.settings)
        uncommitted = options.settings.get("isolation.level", "").lower() == "read_uncommitted"
        self._isolation = IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED

    def partitions(self) -> dict[str, list[int]]:
        """Give every topic's partition numbers, the cluster's internal topics among them."""

        def ask(timeout: float) -> dict[str, list[int]]:
            topics = self._client.list_topics(timeout=timeout).topics
            # A topic without partitions is one that is being made or deleted.
            return {name: sorted(topic.partitions) for name, topic in sorted(topics.items()) if topic.partitions}

        return self._patiently(ask)

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Give each partition's first offset that is still there; of an empty one, its end."""
        return {each: found.offset for each, found in self._offsets(partitions, OffsetSpec.earliest).items()}

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Give each partition's end: the offset behind the last record.

        Records of transactions that are still open lie behind the end, unless the settings say
        ``isolation.level=read_uncommitted``.
        """
        return {each: found.offset for each, found in self._offsets(partitions, OffsetSpec.latest).items()}

    def first_at(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, tuple[int, int] | None]:
        """Find each partition's first record, by offset, whose timestamp is at or after a time.

        Args:
            partitions: The partitions.
            timestamp_ms: The time in epoch milliseconds.

        Returns:
            The record's offset and timestamp in milliseconds; None where there is no such record.
        """
        # Kafka knows no time before 1970, and takes negative ones for other questions.
        return self._records(partitions, lambda: OffsetSpec.for_timestamp(max(0, timestamp_ms)))

    def last_timestamps(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """Give each partition's largest record timestamp in epoch milliseconds; None of an empty one."""
        found = self._records(partitions, OffsetSpec.max_timestamp)
        return {each: None if record is None else record[1] for each, record in found.items()}

    def consumer(self) -> Consumer:
        """Make a consumer for ``assign``: in no group, committing nothing, telling of each partition's end.

        An offset that is not there is its error: nothing is passed over. The caller closes it.
        """
        group = {"group.id": f"cojoin-{uuid.uuid4().hex}"}
        return self._made(Consumer, group | _READING | dict(self._options.settings) | _NO_GROUP)

    def is_passing(self, error: KafkaError) -> bool:
        """Say whether an error, such as a consumer's, is one that may pass by itself: a broker is away."""
        return error.name() in _PASSING or error.retriable()

    def text(self, error: KafkaError) -> str:
        """Give an error's words, without secrets."""
        return self._options.mask(error.str().strip())

    def close(self) -> None:
        """Give up the connection; a second call does nothing."""
        self._admin = None

    @property
    def _client(self) -> AdminClient:
        assert self._admin is not None, "the cluster was closed"
        return self._admin

    def _records(
        self, partitions: Iterable[Partition], wanted: Callable[[], OffsetSpec]
    ) -> dict[Partition, tuple[int, int] | None]:
        found = self._offsets(partitions, wanted, least=_NO_RECORD)
        return {each: None if at.offset == _NO_RECORD else (at.offset, at.timestamp) for each, at in found.items()}

    def _offsets(
        self, partitions: Iterable[Partition], wanted: Callable[[], OffsetSpec], least: int = 0
    ) -> dict[Partition, ListOffsetsResultInfo]:
        order = list(dict.fromkeys(partitions))
        answers: dict[Partition, ListOffsetsResultInfo] = {}

        def ask(timeout: float) -> None:
            asked = {TopicPartition(*each): wanted() for each in order if each not in answers}
            if not asked:
                return
            futures = self._client.list_offsets(asked, isolation_level=self._isolation, request_timeout=timeout)
            failed: dict[Partition, KafkaException] = {}
            for each, future in futures.items():
                partition = (str(each.topic), int(each.partition))
                error = future.exception()
                if isinstance(error, KafkaException):
                    failed[partition] = error
                # So librdkafka says, without an error, that a broker has not answered in time: an offset of -1001.
                elif future.result().offset < least:
                    failed[partition] = KafkaException(_no_answer(timeout))
                else:
                    answers[partition] = future.result()
            self._check_topics(failed)
            if failed:
                raise next(iter(failed.values()))

        self._patiently(ask)
        return {each: answers[each] for each in order}

    def _check_topics(self, failed: Mapping[Partition, KafkaException]) -> None:
        """Refuse what no patience mends: partitions that are not there, or that may not be read."""
        names = {each: error.args[0].name() for each, error in failed.items()}
        for (topic, _), name in names.items():
            if name in _PERMISSION:
                msg = f"{self._what}: {self._servers} do not let this user read topic {topic!r}: give it the permission"
                raise ConfigurationError(msg)
        unknown = [each for each, name in names.items() if name in _UNKNOWN]
        # A broker that has just started may not know its topics yet: those that are there are asked again.
        there = self.partitions() if unknown else {}
        for topic, number in unknown:
            if topic not in there:
                near = did_you_mean(topic, [each for each in there if not each.startswith("__")])
                msg = f"{self._what}: {self._servers} have no topic {topic!r}{near}"
                raise ConfigurationError(msg)
            if number not in there[topic]:
                msg = f"{self._what}: topic {topic!r} has no partition {number}; it has {there[topic]}"
                raise ConfigurationError(msg)

    def _patiently(self, ask: Callable[[float], _Answer]) -> _Answer:
        """Ask until there is an answer, or patience ends; each try waits for longer than the one before."""
        begin, patience = time.monotonic(), self._options.patience_ms
        seconds, self._heard = _FIRST_TRY_SECONDS, []
        while True:
            left = None if patience is None else begin + patience / 1_000 - time.monotonic()
            timeout = seconds if left is None else min(seconds, max(left, _FIRST_TRY_SECONDS))
            try:
                return ask(timeout)
            except KafkaException as error:
                reason: KafkaError = error.args[0]
            finally:
                self._client.poll(0)  # what was logged, and heard of connections, meanwhile
            if reason.name() in _MOVED:
                # librdkafka would ask by the leaders that it knows, for ever.
                self._admin = self._made(AdminClient, self._options.settings)
            waited = time.monotonic() - begin
            if reason.name() not in _UNKNOWN and not self.is_passing(reason):
                self._refuse(reason)
            for heard in self._heard:
                if heard.name() in _LOGIN:
                    self._refuse(heard)
            if patience is not None and waited + _PAUSE_SECONDS >= patience / 1_000:
                self._give_up(waited, reason)
            seconds = min(2 * seconds, _LONGEST_TRY_SECONDS)
            time.sleep(_PAUSE_SECONDS)

    def _refuse(self, reason: KafkaError) -> NoReturn:
        if reason.name() in _LOGIN:
            msg = (
                f"{self._what}: {self._servers} refused the login: {self.text(reason)}; "
                f"see the options security.protocol, sasl.* and ssl.*"
            )
            raise ConfigurationError(msg) from None
        if reason.name() in _PERMISSION:
            msg = f"{self._what}: {self._servers} do not let this user ask: {self.text(reason)}"
            raise ConfigurationError(msg) from None
        msg = f"{self._what}: {self._servers} answered with an error: {self.text(reason)} ({reason.name()})"
        raise QueryFailedError(msg) from None

    def _give_up(self, waited: float, reason: KafkaError) -> NoReturn:
        telling = [each for each in self._heard if each.name() != "_ALL_BROKERS_DOWN"]
        last = self.text(telling[-1] if telling else reason)
        msg = (
            f"{self._what}: {self._servers} did not answer as a Kafka cluster for {waited:.0f} s: {last}; see that the "
            f"brokers run and can be reached, or wait for longer with patience="
        )
        raise QueryFailedError(msg) from None

    @property
    def _servers(self) -> str:
        return self._options.bootstrap_servers

    def _made(self, kind: Callable[..., _Answer], settings: Mapping[str, str]) -> _Answer:
        defaults = {} if _DEFAULTS.keys() & settings.keys() else _DEFAULTS
        config: dict[str, Any] = {**defaults, **settings, "bootstrap.servers": self._servers}
        try:
            return kind(config | {"error_cb": self._hear, "logger": _DebugLog(self._options)})
        except KafkaException as error:
            text = error.args[0].str().strip()
        # Here, not above: an error's context would hold librdkafka's text, which may quote a value.
        return self._refuse_setting(text)

    def _refuse_setting(self, text: str) -> NoReturn:
        settings = self._options.settings
        name = max((name for name in settings if name in text), key=len, default=None)
        setting = "options" if name is None else f"option {name!r}"
        if name is not None and settings[name]:
            text = re.sub(rf"(?<![\w.-]){re.escape(settings[name])}(?![\w.-])", "***", text)
        hint = ""
        if any(name.startswith("kafka.") for name in settings):
            hint = "; librdkafka's names have no 'kafka.' in front"
        elif "JAAS" in text:
            hint = "; expected sasl.mechanism, sasl.username and sasl.password instead of sasl.jaas.config"
        msg = f"{self._what}: {setting}: librdkafka refuses it: {self._options.mask(text)}{hint}"
        raise ConfigurationError(msg)

    def _hear(self, error: KafkaError) -> None:
        self._heard = [*self._heard[-9:], error]


def _no_answer(timeout: float) -> KafkaError:
    return KafkaError(KafkaError._TIMED_OUT, f"no answer within {timeout:.0f} s")  # noqa: SLF001 - its public name


@dataclass(frozen=True)
class _DebugLog:
    """What librdkafka takes for a logger."""

    options: ClusterOptions

    def log(self, level: int, text: str, *values: object) -> None:
        del level  # a broker that is away for a moment is no error of the program's
        if _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("%s", self.options.mask(text % values))
