"""What the tasks of a batch do: send their records to the topic and, exactly once, commit them with the batch's marker.

A task decides by the marker that it reads after it has fenced off all others: a batch that is there from the same
execution is not written again, one from another execution is refused, and so is all that a run writes which was taken
over. A task whose rows are fewer or more than the batch has aborts. Each task ends with one line that says what came
of it, so that a refusal is not tried again by Spark.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from cojoin.delta.table_batches import FencedOffError
from cojoin.engine.values.types import parse_schema
from cojoin.errors import CheckpointError, CojoinError, QueryFailedError
from cojoin.kafka.sink.topic_marker import NO_BATCH, RETIRED, TopicMarker
from cojoin.kafka.sink.topic_producer import TopicProducer, TopicTarget
from cojoin.kafka.sink.topic_transactions import FencedError, TopicTransactions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cojoin.spark.sinks.batch_marker import BatchMarker

__all__ = ["OUTCOME", "BatchTask", "Outcome", "check_marker"]

OUTCOME = "task int, result string, message string, rows long"
_SCHEMA = parse_schema(OUTCOME)


@dataclass(frozen=True)
class Outcome:
    """What came of a task.

    Attributes:
        task: Which one.
        result: ``"written"``, ``"there"`` for a batch that the topic had already, ``"fenced"`` where another producer
            has begun, or ``"failed"``.
        message: Why it failed.
        rows: How many rows it had.
    """

    task: int
    result: str
    message: str = ""
    rows: int = 0


@dataclass(frozen=True)
class BatchTask:
    """A task of a batch, as the workers run it.

    Attributes:
        target: The output.
        batch: The batch's identity; None sends the records at least once, without transactions.
        known: The last batch that the topic has, as the run knows.
        cure: What to do if the batch is there from another execution, as the end of a message.
    """

    target: TopicTarget
    batch: BatchMarker | None
    known: int
    cure: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the records of a task; yields what came of it."""
        context = TaskContext.get()
        number = 0 if self.target.tasks == 1 or context is None else context.partitionId()
        try:
            outcome = self._plain(number, batches) if self.batch is None else self._once(number, batches, self.batch)
        except FencedError as error:
            outcome = Outcome(number, "fenced", str(error))
        except CojoinError as error:
            outcome = Outcome(number, "failed", str(error))
        yield pa.RecordBatch.from_pylist([asdict(outcome)], schema=_SCHEMA)

    def _plain(self, number: int, batches: Iterable[pa.RecordBatch]) -> Outcome:
        producer = TopicProducer(self.target)
        rows = _send(producer, batches)
        producer.flush()
        return Outcome(number, "written", rows=rows)

    def _once(self, number: int, batches: Iterable[pa.RecordBatch], batch: BatchMarker) -> Outcome:
        with closing(TopicTransactions(self.target, number)) as transactions:
            return self._written(transactions, number, batches, batch)

    def _written(
        self, transactions: TopicTransactions, number: int, batches: Iterable[pa.RecordBatch], batch: BatchMarker
    ) -> Outcome:
        found = transactions.take_over()
        if found is None and self.known != NO_BATCH:
            self._check_topic(transactions)
        check_marker(found, self.target, batch.batch_id, self.known)
        if found is not None and found.batch is not None and found.newest == batch.batch_id:
            difference = batch.refusal(found.batch, f"topic {self.target.topic!r}", self.cure)
            if difference is not None:
                raise QueryFailedError(difference)
            return Outcome(number, "there", rows=sum(each.num_rows for each in batches))
        marker = TopicMarker(batch.batch_id, self.target.epoch, self.target.tasks, batch)
        try:
            transactions.begin()
            rows = _send(transactions, batches)
            self._check_count(rows, batch)
            transactions.mark(marker)
            transactions.commit()
        except BaseException:
            transactions.abort()
            raise
        return Outcome(number, "written", rows=rows)

    def _check_topic(self, transactions: TopicTransactions) -> None:
        """Check that a marker that is gone has expired, and did not go with the topic."""
        known, found = self.target.facts.topic_id, transactions.facts().topic_id
        if known != found:
            msg = (
                f"{self.target.what}: topic {self.target.topic!r} was deleted and made anew while the query ran (its "
                f"id was {known} and is {found}), with the rows of all batches up to {self.known}; nothing was "
                f"written. Start a new query"
            )
            raise QueryFailedError(msg)

    def _check_count(self, rows: int, batch: BatchMarker) -> None:
        if self.target.tasks == 1 and rows != batch.rows:
            msg = (
                f"{self.target.what}: expected {batch.rows:,} rows, got {rows:,}; nothing was committed, start the "
                f"query again"
            )
            raise QueryFailedError(msg)


def check_marker(found: TopicMarker | None, target: TopicTarget, batch_id: int, known: int) -> None:
    """Check that the marker that a topic has allows a run to write a batch.

    A marker that is gone while the query runs has expired, since only this run could have written another one.

    Args:
        found: The marker.
        target: The output, with the epoch of the run.
        batch_id: The batch.
        known: The last batch that the topic has, as the run knows.

    Raises:
        CheckpointError: Another query goes on in the topic.
        FencedOffError: Another run has taken over.
        QueryFailedError: Another run has gone on, or the topic is not as this run left it.
    """
    if found is None:
        return
    if found.epoch >= RETIRED:
        msg = (
            f"another query, which was restored from this one's checkpoint, goes on in topic {target.topic!r}; this "
            f"one is over: restore into a new checkpoint, with a new topic"
        )
        raise CheckpointError(msg)
    if found.epoch > target.epoch:
        msg = (
            f"fenced off: another run of this query has taken over at epoch {found.epoch}, and this one is of epoch "
            f"{target.epoch}; nothing was written"
        )
        raise FencedOffError(msg, found.epoch)
    if found.newest > batch_id:
        msg = (
            f"topic {target.topic!r} has the query's batches up to {found.newest} already, so another run has gone on "
            f"meanwhile; nothing was written"
        )
        raise QueryFailedError(msg)
    if found.newest < known:
        msg = (
            f"topic {target.topic!r} had the query's batches up to {known}, and now it has those up to {found.newest}: "
            f"it, or consumer group {target.application!r}, was put back while the query ran; nothing was written. "
            f"Start a new query, with a new topic"
        )
        raise QueryFailedError(msg)


def _send(producer: TopicProducer, batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    for batch in batches:
        producer.send(batch)
        rows += batch.num_rows
    return rows
