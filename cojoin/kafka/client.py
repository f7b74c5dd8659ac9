"""Requests to a Kafka cluster: its topics, their ids and settings, their offsets, and the offsets of times.

It keeps one connection, opened by the first request, which waits while no broker answers (``connection``). Offsets in
answers are the next to be read; times are epoch milliseconds. A topic or partition that does not exist, or that this
user may not read, is an error at once.

It costs one round trip per request for all its partitions: less than a millisecond for 8 partitions on one machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeAlias

from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.kafka.cluster_options import ClusterOptions
from cojoin.kafka.connection import PERMISSION_ERRORS, UNKNOWN_ERRORS, Connection

try:
    from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
    from confluent_kafka.admin import ConfigResource, OffsetSpec  # type: ignore[attr-defined]
except ImportError:
    pass  # an optional dependency: ``check_installed`` reports it

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from confluent_kafka.admin import ListOffsetsResultInfo  # type: ignore[attr-defined]

__all__ = ["Cluster", "ClusterOptions", "Partition"]

Partition: TypeAlias = tuple[str, int]
"""The name of a topic and the number of one of its partitions."""

_NO_RECORD = -1
_READS = {"READ", "ALL"}
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # the zero UUID, as Kafka encodes it


class Cluster(Connection):
    """A Kafka cluster and a connection to it, for one thread of one process.

    Args:
        options: How the cluster is reached.
        what: The caller, for messages, such as ``"input 'trades'"``.
        at_start: Whether no query runs yet; see ``Connection``.

    Raises:
        EnvironmentSetupError: confluent-kafka is not installed.
        ConfigurationError: A setting is unknown, or its value is wrong. Each request raises it, too, where the login or
            a permission is refused, or a topic or partition does not exist.
        QueryFailedError: Each request raises it where no broker answers in time.

    >>> cluster = Cluster(ClusterOptions("localhost:9092"), "input 'trades'")  # doctest: +SKIP
    >>> cluster.latest([("trades", 0), ("trades", 1)])  # doctest: +SKIP
    {('trades', 0): 1200, ('trades', 1): 0}
    """

    def __init__(self, options: ClusterOptions, what: str, *, at_start: bool = False) -> None:
        super().__init__(options, what, at_start=at_start)
        self.cluster_id: str | None = None
        uncommitted = options.settings.get("isolation.level", "").lower() == "read_uncommitted"
        self._isolation = IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED

    def partitions(self, named: Iterable[str] = ()) -> dict[str, list[int]]:
        """Return every topic's partition numbers, including the cluster's internal topics.

        Afterwards ``cluster_id`` is the cluster's own id, or None where it has none.

        Args:
            named: Topics to check for a missing permission if they are not listed, because a cluster lists only the
                topics that the user may see.
        """

        def ask(timeout: float) -> dict[str, list[int]]:
            answer = self._client.list_topics(timeout=timeout)
            self.cluster_id = answer.cluster_id or None
            # A topic without partitions is being created or deleted.
            return {name: sorted(topic.partitions) for name, topic in sorted(answer.topics.items()) if topic.partitions}

        found = self._patiently(ask)
        self.describe(name for name in named if name not in found)
        return found

    def describe(self, topics: Iterable[str]) -> dict[str, str | None]:
        """Return the topics' ids, after a check that this user may read them.

        Args:
            topics: Their names; a topic that does not exist is skipped.

        Returns:
            The ids by name; a topic that is created anew gets another id. None where the brokers, before Kafka 2.8,
            have no ids.
        """
        names = list(dict.fromkeys(topics))
        found: dict[str, str | None] = {}

        def ask(timeout: float) -> None:
            asked = TopicCollection([name for name in names if name not in found])
            described = self._client.describe_topics(asked, include_authorized_operations=True, request_timeout=timeout)
            failed: KafkaException | None = None
            for name, future in described.items():
                error = future.exception()
                if isinstance(error, KafkaException):
                    failed = error if self._may_pass(name, error.args[0]) else failed
                    continue
                topic = future.result()
                # Brokers before Kafka 2.3 do not report the authorized operations.
                allowed = {str(getattr(each, "name", each)) for each in topic.authorized_operations or ()}
                if allowed and not _READS & allowed:
                    self._refuse_topic(name)
                found[name] = None if str(topic.topic_id) == _NO_ID else str(topic.topic_id)
            if failed is not None:
                raise failed

        if names:
            self._patiently(ask)
        return found

    def setting(self, topic: str, name: str) -> str | None:
        """Return a setting of a topic, such as ``cleanup.policy``; None where this user may not read it."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

        def ask(timeout: float) -> str | None:
            (answer,) = self._client.describe_configs([resource], request_timeout=timeout).values()
            try:
                return str(answer.result()[name].value)
            except KafkaException as error:
                if error.args[0].name() in PERMISSION_ERRORS:
                    return None
                raise

        return self._patiently(ask)

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return each partition's log start offset; of an empty partition, its end offset."""
        return {each: found.offset for each, found in self._offsets(partitions, OffsetSpec.earliest).items()}

    def log_starts(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return each partition's log start offset, the first offset that the brokers still have."""
        return Cluster.earliest(self, partitions)

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return each partition's end offset, the one after its last record.

        Records of transactions that are still open lie after the end, unless the settings have
        ``isolation.level=read_uncommitted``.
        """
        return {each: found.offset for each, found in self._offsets(partitions, OffsetSpec.latest).items()}

    def written(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset after each partition's last record, even of a transaction that is still open."""
        found = self._offsets(partitions, OffsetSpec.latest, isolation=IsolationLevel.READ_UNCOMMITTED)
        return {each: answer.offset for each, answer in found.items()}

    def first_at(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, tuple[int, int] | None]:
        """Return each partition's first record, by offset, whose timestamp is at or after a time.

        A broker's answer may be a commit marker, whose timestamp is the time of the commit: see ``times``.

        Args:
            partitions: The partitions.
            timestamp_ms: The time in epoch milliseconds.

        Returns:
            The record's offset and timestamp in milliseconds; None where there is no such record.
        """
        # Kafka has no times before 1970; negative ones stand for other requests.
        return self._records(partitions, lambda: OffsetSpec.for_timestamp(max(0, timestamp_ms)))

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
            f"{self._what}: {self._servers} do not let this user read topic {name!r}, or there is none: grant it READ "
            f"and DESCRIBE on the topic; rights on consumer groups are not needed"
        )
        raise ConfigurationError(msg)

    def _records(
        self, partitions: Iterable[Partition], wanted: Callable[[], OffsetSpec]
    ) -> dict[Partition, tuple[int, int] | None]:
        found = self._offsets(partitions, wanted, least=_NO_RECORD)
        return {each: None if at.offset == _NO_RECORD else (at.offset, at.timestamp) for each, at in found.items()}

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
            asked = {TopicPartition(*each): wanted() for each in order if each not in answers}
            if not asked:
                return
            level = self._isolation if isolation is None else isolation
            futures = self._client.list_offsets(asked, isolation_level=level, request_timeout=timeout)
            failed: dict[Partition, KafkaException] = {}
            for each, future in futures.items():
                partition = (str(each.topic), int(each.partition))
                error = future.exception()
                if isinstance(error, KafkaException):
                    failed[partition] = error
                # An offset of -1001 without an error is how librdkafka reports that a broker has not answered in time.
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
        """Raise an error for topics or partitions that do not exist, or that may not be read."""
        names = {each: error.args[0].name() for each, error in failed.items()}
        for (topic, _), name in names.items():
            if name in PERMISSION_ERRORS:
                self._refuse_topic(topic)
        unknown = [each for each, name in names.items() if name in UNKNOWN_ERRORS]
        # A broker that has just started may not know its topics yet: those that exist are asked for again.
        there = self.partitions([topic for topic, _ in unknown]) if unknown else {}
        for topic, number in unknown:
            if topic not in there:
                near = did_you_mean(topic, [each for each in there if not each.startswith("__")])
                msg = f"{self._what}: {self._servers} have no topic {topic!r}{near}"
                raise ConfigurationError(msg)
            if number not in there[topic]:
                msg = f"{self._what}: topic {topic!r} has no partition {number}; it has {there[topic]}"
                raise ConfigurationError(msg)


def _no_answer(timeout: float) -> KafkaError:
    return KafkaError(KafkaError._TIMED_OUT, f"no answer within {timeout:.0f} s")  # noqa: SLF001 - its public name
