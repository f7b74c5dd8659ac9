"""Transactions that write a batch's rows and its marker to a topic, or neither.

The marker of an output holds the batch that the topic has last, its execution, and the run that wrote it. It is an
offset that cojoin commits to a consumer group of the output, for partition 0 of the topic: the offset is the next
batch, and its metadata has the batch's identity (``batch_marker``) and the epoch of the run's lease. A run that begins
writes its epoch into the marker, before its first batch. A run that reads a higher epoch than its own was taken over:
it writes nothing any more, even if Kafka would let it.

A transaction can't span processes, so each task of a batch has another transactional id; an exactly-once output has one
task. ``take_over`` comes first: Kafka then ends what an earlier producer of that id has begun, and refuses all that it
still tries. Only then the marker is read, without those that are not yet certain (``require_stable``). So of two
processes that write the same batch, whichever comes later sees what the other has committed, or has aborted it.

It costs a connection and some 50 ms for each batch and task, on one machine.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from cojoin.errors import CheckpointError, QueryFailedError
from cojoin.kafka.sink.topic_producer import LOST, TopicProducer, TopicTarget, timeout_problem
from cojoin.spark.sinks.batch_marker import BatchMarker

with contextlib.suppress(ImportError):  # an optional dependency: ``check_installed`` reports it
    from confluent_kafka import Consumer, KafkaException, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


NO_BATCH = -1
RETIRED = 1 << 53
"""The epoch of an output that another query continues: higher than that of any run."""

_MOST_CHARACTERS = 3_000
"""Brokers take 4,096 bytes (``offset.metadata.max.bytes``)."""


@dataclass(frozen=True)
class TopicMarker:
    """The marker that a topic has of an output: the last batch whose rows it has, and the epoch of the run.

    ``newest`` is ``NO_BATCH``, and ``batch`` None, before the first batch. ``tasks`` is the number of parts in which
    the rows are written, each with its marker; in a marker of a former number of parts, the number with which the query
    continued. ``successor`` is the checkpoint of the query that continues the topic; None if there is none.
    """

    newest: int
    epoch: int
    tasks: int
    batch: BatchMarker | None = None
    successor: str | None = None

    @property
    def offset(self) -> int:
        """The offset that stands for it: the next batch."""
        return self.newest + 1

    def of_batch(self, batch: BatchMarker) -> TopicMarker:
        """Return the marker once a batch is written."""
        return replace(self, newest=batch.batch_id, batch=batch)

    def to_metadata(self) -> str:
        """Return the offset's metadata. Settings, which only serve messages, are left out where they are long.

        >>> marker = TopicMarker(7, 2, 1, BatchMarker(7, 3, 255, "ab"))
        >>> TopicMarker.read(marker.offset, marker.to_metadata()) == marker
        True
        """
        document: dict[str, object] = {"epoch": self.epoch, "tasks": self.tasks}
        document |= {} if self.successor is None else {"successor": self.successor}
        if self.batch is None:
            return json.dumps(document)
        full = json.dumps(json.loads(self.batch.to_json()) | document)
        if len(full) <= _MOST_CHARACTERS:
            return full
        return json.dumps(json.loads(replace(self.batch, settings={}).to_json()) | document)

    @classmethod
    def read(cls, offset: int, metadata: str | None) -> TopicMarker | None:
        """Return the marker of an offset, None where there is none; an offset that is not a marker is a ValueError.

        >>> TopicMarker.read(0, '{"epoch": 1, "tasks": 1}')
        TopicMarker(newest=-1, epoch=1, tasks=1, batch=None, successor=None)
        >>> TopicMarker.read(-1001, None) is None
        True
        """
        if offset < 0:
            return None
        batch = BatchMarker.from_json(metadata)
        try:
            document = json.loads(metadata or "")
            successor = document.get("successor")
            marker = cls(offset - 1, int(document["epoch"]), int(document["tasks"]), batch, successor)
        except (AttributeError, TypeError, KeyError) as error:
            raise ValueError(str(error)) from error
        if marker.newest != (NO_BATCH if batch is None else batch.batch_id):
            msg = f"an offset of batch {marker.newest} with the metadata of another"
            raise ValueError(msg)
        return marker


_PARTITION = 0
"""The partition of the topic whose offset is the marker."""

_ABORT_SECONDS = 10.0


class FencedError(QueryFailedError):
    """Another producer of the same transactional id has begun meanwhile."""


class TopicTransactions(TopicProducer):
    """The transactions of one task of an output."""

    def __init__(self, target: TopicTarget, task: int = 0, *, at_start: bool = False) -> None:
        self._id = target.application if target.tasks == 1 else f"{target.application}-{task}"
        super().__init__(target, {"transactional.id": self._id}, at_start=at_start)
        self._begun: float | None = None
        # It never joins the group. Offsets of a transaction that is still being ended are waited for; the AdminClient,
        # which does so too, has been seen to end the process where a coordinator is slow to answer.
        settings = {**target.cluster.settings, "group.id": self._id, "isolation.level": "read_committed"}
        self._member: Consumer = self._made(Consumer, settings)

    def take_over(self) -> TopicMarker | None:
        """End what earlier producers of the id have begun, and return the marker; None if there is none."""
        self._patiently(self._producer.init_transactions)
        return self.marker()

    def marker(self) -> TopicMarker | None:
        """Return the marker as it is committed; None if there is none. Nothing is written, and no run is fenced off."""
        place = TopicPartition(self._target.topic, _PARTITION)

        def ask(timeout: float) -> TopicPartition:
            try:
                (committed,) = self._member.committed([place], timeout)
            except KafkaException:
                # What keeps it from its coordinator, such as a missing permission, is only in this event.
                event = self._member.poll(0)
                reason = None if event is None else event.error()
                if reason is None:
                    raise
                raise KafkaException(reason) from None
            if committed.error is not None:
                raise KafkaException(committed.error)
            return committed

        offset = self._patiently(ask)
        try:
            return TopicMarker.read(offset.offset, offset.metadata)
        except ValueError as error:
            msg = (
                f"{self._label}: consumer group {self._id!r} has an offset for topic {self._target.topic!r} that this "
                f"version of cojoin has not written, or can't read: {error}; use the version that wrote it, and let no "
                f"other program commit to that group"
            )
            raise CheckpointError(msg) from error

    def begin(self) -> None:
        """Begin a transaction."""
        self._begun = time.monotonic()
        self._patiently(lambda _: self._producer.begin_transaction())

    def mark(self, marker: TopicMarker) -> None:
        """Write the marker in the transaction."""
        offset = TopicPartition(self._target.topic, _PARTITION, marker.offset, marker.to_metadata())
        group = self._member.consumer_group_metadata()
        self._patiently(lambda timeout: self._producer.send_offsets_to_transaction([offset], group, timeout))

    def commit(self) -> None:
        """Commit the transaction, once the brokers have taken all records; after an error nothing is written."""
        self.flush()
        self._patiently(self._producer.commit_transaction)
        self._begun = None

    def abort(self) -> None:
        """Abort the transaction if one is open; errors do not matter, since the next producer of the id aborts it."""
        if self._begun is not None:
            self._begun = None
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(_ABORT_SECONDS)

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self._member.close()
        super().close()

    def write_marker(self, marker: TopicMarker) -> None:
        """Write a marker in a transaction without rows."""
        try:
            self.begin()
            self.mark(marker)
            self.commit()
        except BaseException:
            self.abort()
            raise

    def _refuse(self, reason: KafkaError) -> NoReturn:
        if reason.name() in LOST:
            raise self._lost(reason) from None
        super()._refuse(reason)

    def _failure(self, error: KafkaError, key: bytes | None = None, value: bytes | None = None) -> QueryFailedError:
        return self._lost(error) if error.name() in LOST else super()._failure(error, key, value)

    def _lost(self, error: KafkaError) -> QueryFailedError:
        """Return the error of a transaction that was ended by others."""
        took, most = 0.0 if self._begun is None else time.monotonic() - self._begun, self._target.transaction_timeout_ms
        if took * 1_000 >= most:
            return QueryFailedError(f"{self._label}: {timeout_problem(took, most)}")
        msg = (
            f"{self._label}: fenced off: another process has begun to write this output (transactional id "
            f"{self._id!r}), as another run of this query does that has taken over: {self.text(error)}; see that "
            f"only one runs, and start it again: it continues where it stopped"
        )
        return FencedError(msg)


def layouts_since(target: TopicTarget, tasks: int, *, takes_over: bool) -> list[int]:
    """Return the numbers of tasks in which an output was written, from one that is known to the newest one.

    The markers of each number have the one with which the query continued (``topic_writer``). Earlier runs are fenced
    off if ``takes_over``.
    """
    layouts = [tasks]
    while True:
        with contextlib.closing(TopicTransactions(replace(target, tasks=layouts[-1]), at_start=True)) as transactions:
            marker = transactions.take_over() if takes_over else transactions.marker()
        if marker is None or marker.tasks in layouts:
            return layouts
        layouts.append(marker.tasks)
