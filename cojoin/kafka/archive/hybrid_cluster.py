"""A cluster whose older records lie in an archive.

Where the archive has holes and the brokers still have those offsets, both are read, and each record is returned once.
Where the brokers no longer have them, a block of offsets without any record is a loss, unless the topic is compacted;
smaller holes count as what transactions and compaction leave. It costs no more requests than Kafka alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cojoin.errors import ConfigurationError
from cojoin.kafka.client import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cojoin.kafka.archive.archive_index import ArchiveIndex
    from cojoin.kafka.client import Partition
    from cojoin.kafka.cluster_options import ClusterOptions

__all__ = ["HybridCluster", "connected"]


class HybridCluster(Cluster):
    """A cluster whose older records lie in an archive; it answers for both parts as if they were one.

    Args:
        options: How the cluster is reached.
        what: The caller, for messages.
        archive: What the archive holds.
        at_start: Whether no query runs yet.
    """

    def __init__(self, options: ClusterOptions, what: str, archive: ArchiveIndex, *, at_start: bool = False) -> None:
        super().__init__(options, what, at_start=at_start)
        self.archive = archive
        self._compacted: dict[str, bool] = {}

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return each partition's first offset, in the archive or on the brokers."""
        archived = self.archive.archived
        log_starts = self.log_starts(partitions)
        return {each: min(at, archived[each].begin) if each in archived else at for each, at in log_starts.items()}

    def first_at(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, tuple[int, int] | None]:
        """Return each partition's first record at or after a time; in the archive, to the precision of a bucket."""
        found = super().first_at(partitions, timestamp_ms)
        for each in found.keys() & self.archive.archived.keys():
            part, brokers = self.archive.archived[each], found[each]
            if brokers is not None and brokers[0] < part.begin:
                continue
            archived = self.archive.first_at(each, timestamp_ms)
            if brokers is not None and part.has_holes_at(brokers[0]):
                found[each] = brokers if archived is None else min(archived, brokers)
            elif archived is not None:
                found[each] = archived
            elif brokers is not None:
                found[each] = (max(brokers[0], part.cut), brokers[1])
        return found

    def lost(self, partition: Partition, begin: int, end: int, log_start: int) -> list[tuple[int, int]]:
        """Return the offsets within the archive that neither part has, and that were not compacted away.

        Args:
            partition: A partition of the archive.
            begin: The first offset that is read.
            end: One after the last.
            log_start: The log start offset, the first that the brokers still have.
        """
        part = self.archive.archived.get(partition)
        empty = [] if part is None else part.blocks.empty
        found = [(max(one, begin), min(two, end, log_start)) for one, two in empty]
        missing = [each for each in found if each[0] < each[1]]
        return [] if missing and self._is_compacted(partition[0]) else missing

    def _is_compacted(self, topic: str) -> bool:
        if topic not in self._compacted:
            policy = self.setting(topic, "cleanup.policy")
            # Without the setting a loss can't be distinguished from what compaction leaves.
            self._compacted[topic] = policy is None or "compact" in policy
        return self._compacted[topic]

    def next_there(self, positions: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the first offset at or after each position that is in the archive or on the brokers."""
        log_starts = self.log_starts(positions)
        return {each: self._next_there(each, at, log_starts[each]) for each, at in positions.items()}

    def _next_there(self, partition: Partition, position: int, log_start: int) -> int:
        part = self.archive.archived.get(partition)
        if part is None or position >= part.cut:
            return max(position, log_start)
        return position if position >= part.begin else max(position, min(log_start, part.begin))

    def check_ends(self, partitions: Iterable[Partition]) -> None:
        """Check that the archive belongs to these topics.

        Raises:
            ConfigurationError: It has a partition that the topic does not have, or offsets beyond the topic's end.
        """
        read = list(partitions)
        there, ends = self.partitions(), self.latest(read)
        for (topic, number), part in self.archive.archived.items():
            problem = None
            if topic in there and number not in there[topic]:
                problem = f"has records of topic {topic} partition {number}, and the topic has partitions"
                problem += f" {there[topic]}"
            elif ends.get((topic, number), part.cut) < part.cut:
                problem = f"goes up to offset {part.cut - 1:,} of topic {topic} partition {number}, and the topic"
                problem += f" ends before {ends[topic, number]:,}"
            if problem is not None:
                msg = f"{self._what}: {self.archive.what} {problem}: it was made anew, or the archive is another one's"
                raise ConfigurationError(msg)

    def check_seam(self, begins: Mapping[Partition, int], ends: Mapping[Partition, int] | None) -> None:
        """Check that the brokers have all records that the archive lacks.

        Args:
            begins: The offsets at which reading begins.
            ends: The offsets at which it ends; None reads all records.

        Raises:
            ConfigurationError: Some of the records to be read are in neither part.
        """
        log_starts, wrong = self.log_starts(begins), []
        for partition, begin in begins.items():
            first = log_starts[partition]
            end = max(begin, first) if ends is None else ends[partition]
            sections = self.archive.sections(partition, begin, end)
            gone = [(each.begin, min(each.end, first)) for each in sections if not each.is_archived]
            part = self.archive.archived.get(partition)
            end = end if part is None or ends is not None else max(end, part.cut)
            for one, two in sorted([*gone, *self.lost(partition, begin, end, first)]):
                if one < two:
                    topic, number = partition
                    wrong.append(
                        f"topic {topic} partition {number}: offsets {one:,} to {two - 1:,} ({two - one:,} records)"
                    )
        if wrong:
            msg = (
                f"{self._what}: {'; '.join(wrong)}: neither {self.archive.what} nor the brokers have them; archive "
                f'them, begin later, or set data_loss="skip" to go on without them, which is right if they were '
                f"records of aborted transactions"
            )
            raise ConfigurationError(msg)


def connected(options: ClusterOptions, what: str, archive: ArchiveIndex | None, *, at_start: bool = False) -> Cluster:
    """Return a connection to a cluster and its archive, if there is one; for the arguments see ``HybridCluster``."""
    if archive is None:
        return Cluster(options, what, at_start=at_start)
    return HybridCluster(options, what, archive, at_start=at_start)
