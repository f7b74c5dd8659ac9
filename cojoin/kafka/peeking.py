"""Single records, read by the driver to find out how far event time has come in a partition.

It keeps one consumer, made by the first lookup, which fetches little at once. A lookup reads from an offset on, in all
partitions at once. It skips transaction markers and records of aborted transactions, which consumers never see. It
costs one fetch, a few milliseconds, and one more for the end of a partition.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from cojoin.errors import QueryFailedError
from cojoin.kafka.times import Stamp, time_of

with contextlib.suppress(ImportError):  # optional: the cluster reports that it is missing
    from confluent_kafka import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cojoin.kafka.client import Cluster, Partition

__all__ = ["Peeking"]

_LITTLE = {
    "fetch.message.max.bytes": "16384",
    "fetch.wait.max.ms": "10",
    "fetch.queue.backoff.ms": "1",
    "queued.max.messages.kbytes": "1024",
}
_AT_ONCE, _SOON_SECONDS, _WAIT_SECONDS = 500, 0.02, 0.2
_GONE = {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}

_MOST_PASSED = 10_000
"""How many untrusted records a lookup skips before it gives up."""


class Peeking:
    """The ``RecordLookup`` of a cluster, for one thread; ``close`` ends it.

    Args:
        cluster: The cluster that holds the records.
        what: The input, for messages.
    """

    def __init__(self, cluster: Cluster, what: str) -> None:
        self._cluster, self._what = cluster, what
        self._consumer: Any = None

    def next_records(
        self, offsets: Mapping[Partition, int], ends: Mapping[Partition, int], trusted_until: int | None
    ) -> dict[Partition, Stamp | None]:
        """Return each partition's first record at or after an offset whose timestamp is trusted.

        Args:
            offsets: The offset at which each lookup begins.
            ends: The offset at which it ends.
            trusted_until: The latest timestamp that is trusted, in epoch milliseconds; None trusts all.

        Returns:
            The record; None where there is none before the end. Where very many are not trusted, a ``Stamp`` without a
            timestamp.

        Raises:
            QueryFailedError: No broker answered for longer than the patience allows.
        """
        found: dict[Partition, Stamp | None] = {}
        passed = dict.fromkeys(offsets, 0)

        def take(partition: Partition, message: Any) -> bool:
            stamp = time_of(message)
            if stamp is not None and (trusted_until is None or stamp <= trusted_until):
                found[partition] = Stamp(message.offset(), stamp)
                return True
            passed[partition] += 1
            if passed[partition] < _MOST_PASSED:
                return False
            found[partition] = Stamp(offsets[partition], None)
            return True

        self._read(offsets, ends, take, one_each=True)
        return {each: found.get(each) for each in offsets}

    def stamps(
        self, begins: Mapping[Partition, int], ends: Mapping[Partition, int], trusted_until: int | None
    ) -> dict[Partition, list[tuple[int, int]]]:
        """Return the offsets and timestamps of all trusted records in a range of each partition.

        Args:
            begins: The offset at which each range begins.
            ends: The offset at which it ends.
            trusted_until: The latest timestamp that is trusted, in epoch milliseconds; None trusts all.

        Raises:
            QueryFailedError: No broker answered for longer than the patience allows.
        """
        found: dict[Partition, list[tuple[int, int]]] = {each: [] for each in begins}

        def take(partition: Partition, message: Any) -> bool:
            stamp = time_of(message)
            if stamp is not None and (trusted_until is None or stamp <= trusted_until):
                found[partition].append((message.offset(), stamp))
            return False

        self._read(begins, ends, take, one_each=False)
        return found

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None

    def _read(
        self,
        begins: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        take: Callable[[Partition, Any], bool],
        *,
        one_each: bool,
    ) -> None:
        """Pass records to `take`, each partition's in order, until it has enough or the range ends."""
        left = {each: begin for each, begin in begins.items() if begin < ends[each]}
        if not left:
            return
        if self._consumer is None:
            self._consumer = self._cluster.consumer(_LITTLE)
        self._consumer.assign([TopicPartition(*each, begin) for each, begin in left.items()])
        heard = time.monotonic()
        try:
            while left:
                # `consume` waits for this many messages: each partition sends at least one record, or reports its end.
                asked = (len(left), _WAIT_SECONDS) if one_each else (_AT_ONCE, _SOON_SECONDS)
                messages = self._consumer.consume(*asked)
                if messages:
                    heard = time.monotonic()
                else:
                    self._check_patience(time.monotonic() - heard, next(iter(left)))
                asked_for = set(left)
                for message in messages:
                    self._pass_on(message, left, ends, take)
                done = asked_for - left.keys()
                if done and left:
                    # A broker sends a batch larger than the little asked for only to the first partition of a fetch,
                    # so one that is done would keep the others from theirs until it was read to its end.
                    self._consumer.incremental_unassign([TopicPartition(*each) for each in done])
        finally:
            self._consumer.unassign()

    def _pass_on(
        self,
        message: Any,
        left: dict[Partition, int],
        ends: Mapping[Partition, int],
        take: Callable[[Partition, Any], bool],
    ) -> None:
        """Pass a record to `take`; a partition that needs no more is not left."""
        partition = (message.topic(), message.partition())
        if partition not in left:
            return
        if message.error() is not None:
            self._go_on_after(message, left, ends[partition])
        # Messages that are left over from an earlier lookup are ignored.
        elif message.offset() >= left[partition]:
            has_enough = message.offset() >= ends[partition] or take(partition, message)
            if has_enough or message.offset() >= ends[partition] - 1:
                del left[partition]

    def _go_on_after(self, message: Any, left: dict[Partition, int], end: int) -> None:
        """Continue after a message that is not a record: a partition's end, offsets that no longer exist, an error."""
        error, partition = message.error(), (message.topic(), message.partition())
        if error.name() == "_PARTITION_EOF":
            if message.offset() >= left[partition]:
                del left[partition]
        elif error.name() in _GONE:
            begin = max(left.pop(partition) + 1, self._cluster.log_starts([partition])[partition])
            if begin < end:
                left[partition] = begin
                self._consumer.incremental_unassign([TopicPartition(*partition)])
                self._consumer.incremental_assign([TopicPartition(*partition, begin)])
        elif not self._cluster.is_passing(error):
            topic, number = partition
            msg = f"{self._what}: topic {topic} partition {number}: {self._cluster.text(error)} ({error.name()})"
            raise QueryFailedError(msg)

    def _check_patience(self, waited: float, partition: Partition) -> None:
        patience = self._cluster.patience_ms
        if patience is not None and 1000 * waited > patience:
            topic, number = partition
            problem = self._cluster.last_problem
            why = "" if problem is None else f" ({problem})"
            msg = (
                f"{self._what}: the brokers gave no record for {waited:.0f} s{why}; expected one of topic {topic} "
                f"partition {number}; see that its brokers run, or wait for longer with patience="
            )
            raise QueryFailedError(msg)
