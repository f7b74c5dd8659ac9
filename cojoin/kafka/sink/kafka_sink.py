"""A Kafka topic as a sink: what is checked before a query starts, and what a restored query may do with the topic.

A topic can't be rolled back. So a query that begins with the state of another one goes on in that one's topic only if
nothing was written there after the snapshot; the other query is then ended, and fenced off in the topic. The new query
has transactional ids and groups of its own.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.kafka.cluster_options import ClusterOptions, check_installed
from cojoin.kafka.sink.record_encoding import RecordEncoding
from cojoin.kafka.sink.topic_marker import NO_BATCH, RETIRED, TopicMarker
from cojoin.kafka.sink.topic_producer import TopicConnection, TopicTarget
from cojoin.kafka.sink.topic_transactions import TopicTransactions, layouts_since
from cojoin.kafka.sink.topic_writer import TopicWriter
from cojoin.spark.sinks.sink import OutputId, Sink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["Delivery", "KafkaSink", "MissingMarker"]

_KAFKA = "cojoin.kafka"
"""The format of sources of topics, whose class needs a later version of Spark."""

Delivery: TypeAlias = Literal["exactly_once", "exactly_once_parallel", "at_least_once"]
"""How often a batch's rows are in the topic.

- ``"exactly_once"``: one transaction holds all rows of a batch; one task writes it.
- ``"exactly_once_parallel"``: several tasks write a batch, each in a transaction of its own. Each row is there once,
  but consumers may see a part of a batch before the rest of it.
- ``"at_least_once"``: every task writes without transactions; a batch that is run again is there twice.
"""

MissingMarker: TypeAlias = Literal["refuse", "expired"]
"""What it means where the brokers have no marker, although batches count and none was begun.

- ``"refuse"``: the query does not start.
- ``"expired"``: it stood still for longer than the brokers keep a marker, and goes on.
"""


@dataclass(frozen=True)
class KafkaSink(Sink):
    """A Kafka topic; ``cojoin.sinks.kafka`` makes one.

    Attributes:
        cluster: How the cluster is reached.
        topic: The topic.
        encoding: How rows become records.
        delivery: How often a batch's rows are in the topic.
        tasks: In how many parts a batch is written with ``"exactly_once_parallel"``, and otherwise 1.
        missing_marker: What a marker means that is gone while no batch was begun.
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
            encoding = encoding.resolved(output.schema, self.topic, target.what)
        return TopicWriter(
            target,
            encoding,
            is_transactional=self.is_transactional,
            place=self.place(),
            may_be_expired=self.missing_marker == "expired",
        )

    def target(self, output: OutputId) -> TopicTarget:
        """Return an output of a query in the topic."""
        what = f"{output.name}, sink kafka {self.topic}"
        return TopicTarget(
            self.cluster,
            self.topic,
            output.app_id,
            what,
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

        Args:
            session: The session.
            output: The output's name, for messages.

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

        Args:
            sources: The inputs that are sources of cojoin's.
            output: The output, for the message.

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
                msg = f"{output}: {self.describe()} is read by the query ({source.title}); give it a topic of its own"
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

        Args:
            schema: The output's columns.
            role: The output, for the message.

        Raises:
            ConfigurationError: They do not.
        """
        self.encoding.check(schema, self.topic, f"{role}: sinks.kafka {self.topic!r}")

    def goes_on_in(self, written: Mapping[str, Any], former: OutputId, *, successor: str, ends: bool) -> bool:
        """Check whether a new query may go on in the topic of the query whose snapshot it begins with.

        Args:
            written: The snapshot's entry for the output.
            former: The output of the former query.
            successor: The checkpoint of the new query.
            ends: Whether that query is ended by now, so that it is fenced off in the topic.

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
                f"it is not known what it wrote there after the snapshot; name a new topic"
            )
            raise CheckpointError(msg)
        known = int(written["batch_id"]) if written.get("batch_id") is not None else NO_BATCH
        counted = int(written["tasks"])
        for tasks in layouts_since(self.target(former), counted, takes_over=ends):
            target = replace(self.target(former), tasks=tasks)
            for task in range(tasks):
                with closing(TopicTransactions(target, task, at_start=True)) as transactions:
                    found = transactions.take_over() if ends else transactions.marker()
                    # A query that went on in other tasks may have ended before it wrote one.
                    if tasks == counted or (found is not None and found.newest > known):
                        self._check_newest(found, known, former, successor)
                    if ends:
                        ended = replace(found or TopicMarker(NO_BATCH, 0, tasks), epoch=RETIRED, successor=successor)
                        transactions.write_marker(ended)
        return True

    def _check_newest(self, found: TopicMarker | None, known: int, former: OutputId, successor: str) -> None:
        if found is not None and found.successor not in {None, successor}:
            msg = (
                f"restore_from: {former.name} goes to {self.describe()}, in which the query of checkpoint "
                f"{found.successor} goes on already: a topic can't be cut back; start that query, or name a new topic"
            )
            raise CheckpointError(msg)
        newest = NO_BATCH if found is None else found.newest
        if newest != known:
            there = "no marker of its batches" if found is None else f"its batches up to {newest}"
            msg = (
                f"restore_from: {former.name} goes to {self.describe()}, which has {there}, and the snapshot knows "
                f"those up to {known}: a topic can't be cut back. Restore the query's newest snapshot, such as a "
                f"savepoint that is taken after its last batch, or name a new topic"
            )
            raise CheckpointError(msg)
