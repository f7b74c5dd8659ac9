"""One input as its reader sees it: where its topics begin and end now, and which part of them is unread.

It keeps the connections through which a reader asks the cluster, what it has looked up of records and times, and the
last time up to which all was read. It refuses a topic that was created anew, and a partition that ends before what is
read. A reader has one for each input of the join, on the driver only; each costs an admin client and a consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.errors import QueryFailedError
from cojoin.kafka.alignment import UnreadInput, confirmed_positions
from cojoin.kafka.archive.hybrid_cluster import connected
from cojoin.kafka.peeking import Peeking
from cojoin.kafka.times import Times
from cojoin.kafka.topic_ids import difference, merged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cojoin.kafka.client import Partition
    from cojoin.kafka.reading import Reading

__all__ = ["ConnectedInput"]

_NO_LIMIT = 1 << 62


class ConnectedInput:
    """The topics of one input, with the connections through which the reader asks about them.

    Args:
        reading: The input.

    Attributes:
        reading: The input.
        cluster: The cluster, and the archive of its older records, if there is one.
        times: The offsets of times in its partitions.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.cluster = connected(reading.cluster, reading.what, reading.archive)
        self._peeking = Peeking(self.cluster, reading.what)
        self.times = Times(self.cluster, self._peeking, reading.limit, reading.max_drift_ms)
        self._stood: tuple[int, dict[Partition, int]] = (0, {})
        """A time up to which all was read, in epoch milliseconds, and the positions there."""

        self._known = {"topics": dict(reading.topic_ids)}

    def check_topics(self, partitions: Iterable[Partition]) -> None:
        """Check that no topic was created anew since the source was opened, or since the topic was first read.

        Raises:
            QueryFailedError: A topic was created anew.
        """
        found = {"topics": self.cluster.describe(topic for topic, _ in partitions)}
        problem = difference(self._known, found, self.reading.cluster.bootstrap_servers)
        if problem is not None:
            msg = f"{self.reading.what}: {problem}"
            raise QueryFailedError(msg)
        self._known = merged(self._known, found)

    def partitions(self) -> list[Partition]:
        """Return the partitions that exist now."""
        topics = self.reading.topics
        return topics.found(self.cluster.partitions(topics.names), self.reading.what)

    def begins(self, *, skip_lost: bool = False) -> dict[Partition, int]:
        """Return the offsets at which the range begins."""
        return self.reading.range.begin(self.cluster, self.partitions(), skip_lost=skip_lost)

    def ends(self) -> dict[Partition, int]:
        """Return the offsets at which reading ends now: before open transactions, unless the settings say otherwise."""
        partitions = self.partitions()
        ends = self.reading.range.end(self.cluster, partitions)
        return self.cluster.latest(partitions) if ends is None else ends

    def check_ends(self, ends: Mapping[Partition, int], positions: Mapping[Partition, int]) -> None:
        """Check that no partition's log ends before its position; an end that is given by ``to`` may.

        Raises:
            QueryFailedError: A log ends before its position.
        """
        read = [each for each, position in positions.items() if ends.get(each, position) < position]
        for (topic, number), end in (self.cluster.latest(read) if read else {}).items():
            if end < positions[topic, number]:
                msg = (
                    f"{self.reading.what}: topic {topic} partition {number} ends at offset {end:,}, before the "
                    f"{positions[topic, number]:,} that are read: the topic was made anew or cut off since; "
                    f"start a new query"
                )
                raise QueryFailedError(msg)

    def side(
        self, target: Mapping[Partition, int], positions: Mapping[Partition, int], *, no_limit: bool = False
    ) -> UnreadInput:
        """Return the unread part.

        Args:
            target: The offsets at which reading ends.
            positions: The next offset to be read of each partition that is known so far.
            no_limit: Whether a batch may hold any number of records.
        """
        # A partition created later is read from its beginning; after a bounded run's start, it is read by the next run.
        new = [each for each in target if each not in positions]
        everywhere = {**positions, **(self.cluster.earliest(new) if new else {})}
        ends = {each: max(position, target.get(each, 0)) for each, position in everywhere.items()}

        def first_at(moment: int) -> dict[Partition, tuple[int, int] | None]:
            return self.times.first_at(moment, everywhere, ends)

        def confirms(moment: int) -> bool:
            return self.times.confirms(moment, everywhere, ends)

        return UnreadInput(everywhere, ends, _NO_LIMIT if no_limit else self.reading.limit, first_at, confirms)

    def standing_at(self, target: Mapping[Partition, int], moment: int, *, no_limit: bool) -> UnreadInput:
        """Return the unread part once all records before a time are read.

        Args:
            target: The offsets at which reading ends.
            moment: The time in epoch milliseconds; 0 where nothing was read yet.
            no_limit: Whether a batch may hold any number of records.
        """
        if not moment:
            return self.side(target, self.begins(skip_lost=True), no_limit=no_limit)
        before, stood = self._stood
        side = self.side(target, stood if before <= moment else {}, no_limit=no_limit)
        self._stood = (moment, confirmed_positions(side, moment))
        return self.side(target, self._stood[1], no_limit=no_limit)

    def newest(self, side: UnreadInput) -> int:
        """Return the largest timestamp up to the end of the input, in epoch milliseconds; -1 where it is empty."""
        until = self.reading.range.to_ms
        # Where the end is a time, the records after it show that all records before it are there.
        ends = side.ends if until is None else self.cluster.latest(side.ends)
        found = self.times.newest(self.cluster.earliest(ends), ends)
        return -1 if found is None else found if until is None else min(found, until - 1)

    def close(self) -> None:
        """Close the connections."""
        self._peeking.close()
        self.cluster.close()
