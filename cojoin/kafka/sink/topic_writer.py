"""Writes one output of a query to a topic: each batch in one transaction, or in one for each task.

At the start of a run it fences off all earlier ones, compares the marker of the topic (``topic_transactions``) with the
checkpoint, and writes the run's epoch into it. Then a task of each batch writes the rows; the driver writes none. A
task decides by the marker that it reads after it has fenced off all others: a batch that the topic has from the same
execution is not written again, one from another execution is refused, and so is everything from a run that was taken
over. A task aborts if its number of rows is not the batch's. Each task ends with one line of its outcome, so that a
refusal is not tried again by Spark. What fences what:

- Kafka refuses the producer of an earlier run, or of an earlier attempt at a task, once a later one has begun.
- An earlier run that wakes up later begins a new producer, which ends what the later run is writing. It then reads the
  epoch of the later run in the marker, and writes nothing. The later run sees that it was fenced, and writes its batch
  again.
- A run that writes in another number of tasks than the last one has other transactional ids. Before its first batch it
  takes over the former ones too, and writes its number of tasks into their markers.

The marker expires with the group's offset, ``offsets.retention.minutes`` after the last commit (7 days by default). A
run refreshes it at its start, with each batch that has rows, and after an hour with one that has none. When it is gone
although batches count, the query does not start: the topic may have a batch that was begun, and the checkpoint may be
an older one that was put back. The user can rule out the latter (``missing_marker="expired"``).
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyspark import TaskContext

from cojoin.delta.table_batches import FencedOffError
from cojoin.engine.values.types import parse_schema
from cojoin.errors import CheckpointError, CojoinError, QueryFailedError
from cojoin.kafka.sink.record_encoding import KEY, VALUE, RecordEncoding
from cojoin.kafka.sink.topic_producer import TopicConnection, TopicFacts, TopicProducer, TopicTarget
from cojoin.kafka.sink.topic_transactions import (
    NO_BATCH,
    RETIRED,
    FencedError,
    TopicMarker,
    TopicTransactions,
    layouts_since,
)
from cojoin.session.sealed import for_workers
from cojoin.spark.sinks.batch_marker import BatchMarker
from cojoin.spark.sinks.sink import Position, SinkWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame


_TRIES = 3
_REFRESH_SECONDS = 3_600.0


class TopicWriter(SinkWriter):
    """Writes one output of a query to a topic.

    ``place`` is the manifest's entry before anything is written. If ``may_be_expired``, a marker that is gone has
    expired where no batch was begun.
    """

    def __init__(
        self,
        target: TopicTarget,
        encoding: RecordEncoding,
        *,
        is_transactional: bool,
        place: Mapping[str, Any],
        may_be_expired: bool = False,
    ) -> None:
        self._target, self._encoding, self._place = target, encoding, place
        self._is_transactional, self._may_be_expired = is_transactional, may_be_expired
        self._markers: list[TopicMarker] = []
        self._cure, self._marked = "start the query again", 0.0

    def check(self, position: Position) -> None:
        """Fence off earlier runs, and check that the topic has the batches of the checkpoint, and none after."""
        facts = TopicConnection(self._target, at_start=True).facts()
        self._target = replace(self._target, facts=facts)
        written = position.written if position.written.get("kafka") == self._target.topic else {}
        self._check_topic(written, facts, position)
        if not self._is_transactional:
            return
        self._cure = position.cure("a new topic")
        known = NO_BATCH if written.get("batch_id") is None else int(written["batch_id"])
        counted, tasks = int(written.get("tasks") or self._target.tasks), self._target.tasks
        layouts = layouts_since(self._target, counted, takes_over=True)
        if position.is_planned and layouts[-1] != tasks:
            msg = (
                f"{self._where(position)}: it was last written in {layouts[-1]} tasks, and would now be written in "
                f"{tasks}, while batch {position.next_batch} may be in the topic in part; start the query once with "
                f"delivery= and tasks= as they were"
            )
            raise CheckpointError(msg)
        # The topic may have what was begun with these tasks; otherwise others wrote all batches that count.
        is_new = (counted != tasks or _is_at_least_once(written)) and not position.is_planned
        for layout in layouts:
            for task in range(layout if layout != tasks else 0):
                self._taken_over(replace(self._target, tasks=layout), task, known, position, is_new=layout != counted)
        self._markers = [self._taken_over(self._target, task, known, position, is_new=is_new) for task in range(tasks)]
        self._marked = time.monotonic()

    def _check_topic(self, written: Mapping[str, Any], facts: TopicFacts, position: Position) -> None:
        """Check that the topic is that of the checkpoint, and not one that was created again, or of another cluster."""
        for name, current in (("cluster", facts.cluster_id), ("topic_id", facts.topic_id)):
            known = written.get(name)
            if None not in (known, current) and known != current:
                kind = "topic of that name" if name == "topic_id" else "Kafka cluster"
                msg = (
                    f"{self._where(position)}: by the checkpoint, batch {written.get('batch_id')} was written to it, "
                    f"and it is another {kind} (its id was {known} and is {current}). To continue would leave rows "
                    f"out; restore into a new checkpoint, with "
                    f"restore_from=cojoin.Snapshot({position.checkpoint!r}) and a new output"
                )
                raise CheckpointError(msg)

    def _taken_over(
        self, target: TopicTarget, task: int, known: int, position: Position, *, is_new: bool = False
    ) -> TopicMarker:
        """Fence off earlier runs from one task; returns its marker, which then has the run's epoch.

        ``known`` is the last batch that the topic has, according to the checkpoint. If ``is_new``, the task may have
        had no part in that batch.
        """
        with closing(TopicTransactions(target, task, at_start=True)) as transactions:
            marker = self._checked(transactions.take_over(), target, known, position, is_new=is_new)
            ours = replace(marker, epoch=self._target.epoch, tasks=self._target.tasks)
            transactions.write_marker(ours)
        return ours

    def _checked(
        self, marker: TopicMarker | None, target: TopicTarget, known: int, position: Position, *, is_new: bool
    ) -> TopicMarker:
        """Return the marker of a task, after a check that it is as the checkpoint left it."""
        if (marker is None or marker.newest < known) and position.is_planned and _is_at_least_once(position.written):
            msg = (
                f"{self._where(position)}: batch {position.next_batch} was begun with delivery='at_least_once', and "
                f"may be in the topic; start the query once with it, and then with another delivery="
            )
            raise CheckpointError(msg)
        was_begun = position.is_planned and (position.written.get("kafka") or not position.written)
        was_counted = known != NO_BATCH and not is_new and not self._may_be_expired
        if marker is None and (was_begun or was_counted):
            self._refuse_gone(known, position)
        if marker is not None:
            _check_marker(marker, target, max(marker.newest, position.next_batch), NO_BATCH)
        if marker is None or (is_new and marker.newest < known):
            batch = None if known == NO_BATCH else BatchMarker(known, 0, None, None)
            marker = TopicMarker(known, 0, target.tasks, batch)
        position.check_not_behind(self._where(position), marker.newest, self._cure)
        if marker.newest < known:
            msg = (
                f"{self._where(position)}: by the checkpoint, batch {known} was written, and it has the query's "
                f"batches up to {marker.newest}: it was put back from a backup. Going on would leave rows out; "
                f"{self._cure}"
            )
            raise CheckpointError(msg)
        return marker

    def _refuse_gone(self, known: int, position: Position) -> NoReturn:
        last = "no batch was counted yet" if known == NO_BATCH else f"the checkpoint has batch {known}"
        unknown, more = f"batch {position.next_batch} was begun, so it can't be known whether the topic has it", ""
        if not position.is_planned:
            unknown = "it can't be known whether the topic has later ones, as after a backup was put back"
            more = "if it is the newest checkpoint, start the query once with missing_marker='expired'. Otherwise "
        cure = f"{more}{self._cure}"
        msg = (
            f"{self._where(position)}: the marker of the batches that the topic has is gone (consumer group "
            f"{self._target.application!r}), {last}, and {unknown}. The brokers delete a marker "
            f"offsets.retention.minutes after the query stopped (7 days by default), or with the topic or the group. "
            f"{cure[0].upper()}{cure[1:]}; and give the brokers a longer offsets.retention.minutes where a query may "
            f"stand still for longer"
        )
        raise CheckpointError(msg)

    def _where(self, position: Position) -> str:
        return f"checkpoint {position.checkpoint}: {self._target.label}"

    def write(self, frame: DataFrame, marker: BatchMarker) -> dict[str, Any]:
        """Write a batch's rows, unless the topic has them already; return the manifest's entry."""
        if not self._markers or any(each.newest != marker.batch_id for each in self._markers):
            self._write(self._in_parts(self._encoding.encode(frame)), marker)
        return {
            **self._place,
            "cluster": self._target.facts.cluster_id,
            "topic_id": self._target.facts.topic_id,
        }

    def _in_parts(self, records: DataFrame) -> DataFrame:
        """Return a batch's records in as many parts as there are tasks; the rows of a key keep their order."""
        if not self._is_transactional:
            return records
        if self._target.tasks == 1:
            return records.repartition(1)
        # A batch that is run again must have the same rows in each part.
        return records.repartition(self._target.tasks, VALUE if self._encoding.key is None else KEY)

    def _write(self, records: DataFrame, marker: BatchMarker) -> None:
        known = min((each.newest for each in self._markers), default=NO_BATCH)
        task = BatchTask(self._target, marker if self._is_transactional else None, known, self._cure)
        tried = 0
        while True:
            outcomes = records.mapInArrow(for_workers(task), _OUTCOME).collect()
            tried += 1
            failed = next((each.message for each in outcomes if each.result == "failed"), None)
            fenced = next((each.message for each in outcomes if each.result == "fenced"), None)
            if failed is not None or (fenced is not None and tried == _TRIES):
                raise QueryFailedError(failed or fenced)
            # Another run has begun to write: if it has taken over, the next try finds its epoch in the marker.
            if fenced is None:
                break
        rows = sum(each.rows for each in outcomes)
        if rows != marker.rows:
            msg = (
                f"{self._target.label}: expected {marker.rows:,} rows, and {rows:,} were written: the batch gave other "
                f"rows when it was read again; start a new query, with a new topic"
            )
            raise QueryFailedError(msg)
        self._markers = [each.of_batch(marker) for each in self._markers]
        self._marked = time.monotonic()

    def compare(self, marker: BatchMarker) -> None:
        """Check that the topic does not have this batch from a different execution, even without rows."""
        place = f"topic {self._target.topic!r}"
        for own in self._markers:
            if own.newest > marker.batch_id:
                msg = f"{place} has the query's batches up to {own.newest} already; nothing was written: {self._cure}"
                raise QueryFailedError(msg)
            if own.batch is not None and own.newest == marker.batch_id:
                marker.compare(own.batch, place, self._cure)

    def write_nothing(self, marker: BatchMarker, check: Callable[[], None] = lambda: None) -> None:
        """Refresh the markers now and then, since the brokers delete old ones; ``check`` refuses an old run."""
        del marker
        if not self._markers or time.monotonic() - self._marked < _REFRESH_SECONDS:
            return
        check()
        for task, ours in enumerate(self._markers):
            with closing(TopicTransactions(self._target, task)) as transactions:
                _check_marker(transactions.take_over(), self._target, ours.newest, ours.newest)
                transactions.write_marker(ours)
        self._marked = time.monotonic()


def _is_at_least_once(written: Mapping[str, Any]) -> bool:
    """Return whether the last batch that counts was written to a topic without a marker."""
    return written.get("kafka") is not None and written.get("tasks") is None


_OUTCOME = "task int, result string, message string, rows long"
_SCHEMA = parse_schema(_OUTCOME)


@dataclass(frozen=True)
class _Outcome:
    """The outcome of a task: a reason if it failed, otherwise its number of rows.

    The result is ``"written"``, ``"there"`` for a batch that the topic had already, ``"fenced"`` where another producer
    has begun, or ``"failed"``.
    """

    task: int
    result: str
    message: str = ""
    rows: int = 0


@dataclass(frozen=True)
class BatchTask:
    """A task of a batch, as the workers run it.

    Without a batch's identity it sends the records at least once, without transactions. ``known`` is the last batch
    that the topic has, as far as the run knows; ``cure`` the advice for a batch that it has from another execution.
    """

    target: TopicTarget
    batch: BatchMarker | None
    known: int
    cure: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the records of a task; yields its outcome."""
        context = TaskContext.get()
        number = 0 if self.target.tasks == 1 or context is None else context.partitionId()
        try:
            outcome = self._plain(number, batches) if self.batch is None else self._once(number, batches, self.batch)
        except FencedError as error:
            outcome = _Outcome(number, "fenced", str(error))
        except CojoinError as error:
            outcome = _Outcome(number, "failed", str(error))
        yield pa.RecordBatch.from_pylist([asdict(outcome)], schema=_SCHEMA)

    def _plain(self, number: int, batches: Iterable[pa.RecordBatch]) -> _Outcome:
        producer = TopicProducer(self.target)
        rows = _send(producer, batches)
        producer.flush()
        return _Outcome(number, "written", rows=rows)

    def _once(self, number: int, batches: Iterable[pa.RecordBatch], batch: BatchMarker) -> _Outcome:
        with closing(TopicTransactions(self.target, number)) as transactions:
            former = transactions.take_over()
            if former is None and self.known != NO_BATCH:
                self._check_topic(transactions)
            _check_marker(former, self.target, batch.batch_id, self.known)
            if former is not None and former.batch is not None and former.newest == batch.batch_id:
                batch.compare(former.batch, f"topic {self.target.topic!r}", self.cure)
                return _Outcome(number, "there", rows=sum(each.num_rows for each in batches))
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
        return _Outcome(number, "written", rows=rows)

    def _check_topic(self, transactions: TopicTransactions) -> None:
        """Check that a marker that is gone has expired, and did not go with the topic."""
        known, current = self.target.facts.topic_id, transactions.facts().topic_id
        if known != current:
            msg = (
                f"{self.target.label}: topic {self.target.topic!r} was deleted and created again while the query ran "
                f"(its id was {known} and is {current}), with the rows of all batches up to {self.known}; nothing was "
                f"written. Start a new query"
            )
            raise QueryFailedError(msg)

    def _check_count(self, rows: int, batch: BatchMarker) -> None:
        if self.target.tasks == 1 and rows != batch.rows:
            msg = (
                f"{self.target.label}: expected {batch.rows:,} rows, got {rows:,}; nothing was committed, start the "
                f"query again"
            )
            raise QueryFailedError(msg)


def _check_marker(marker: TopicMarker | None, target: TopicTarget, batch_id: int, known: int) -> None:
    """Check that the marker that a topic has allows a run to write a batch.

    A marker that is gone while the query runs has expired, since only this run could have written another one.
    ``known`` is the last batch that the topic has, as far as the run knows. A topic that another query continues is a
    CheckpointError, a run that was taken over a FencedOffError, and any other difference a QueryFailedError.
    """
    if marker is None:
        return
    if marker.epoch >= RETIRED:
        msg = (
            f"another query, which was restored from this one's checkpoint, continues topic {target.topic!r}; this "
            f"one is over: restore into a new checkpoint, with a new topic"
        )
        raise CheckpointError(msg)
    if marker.epoch > target.epoch:
        msg = (
            f"fenced off: another run of this query has taken over at epoch {marker.epoch}, and this one is of epoch "
            f"{target.epoch}; nothing was written"
        )
        raise FencedOffError(msg, marker.epoch)
    if marker.newest > batch_id:
        msg = (
            f"topic {target.topic!r} has the query's batches up to {marker.newest} already, so another run wrote them "
            f"meanwhile; nothing was written"
        )
        raise QueryFailedError(msg)
    if marker.newest < known:
        msg = (
            f"topic {target.topic!r} had the query's batches up to {known}, and now it has those up to "
            f"{marker.newest}: it, or consumer group {target.application!r}, was put back while the query ran; nothing "
            f"was written. Start a new query, with a new topic"
        )
        raise QueryFailedError(msg)


def _send(producer: TopicProducer, batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    for batch in batches:
        producer.send(batch)
        rows += batch.num_rows
    return rows
