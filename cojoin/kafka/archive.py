"""History in files beside a topic: which offsets the archive holds, and a cluster that answers for both parts.

Positions stay Kafka's offsets. Of each partition the archive holds those from its first up to its *cut*, one after its
last; all others are the brokers'. Its records are counted by buckets of time, so a time within a bucket becomes the
next bucket's begin: a slice may read a little more than need be, never less; the times of ``from_`` and ``to`` begin
buckets of their own, so a range is exact. Holes within an archive are taken for what compaction left. Costs no more
questions than Kafka alone, and the memory of an index: some bytes a bucket and file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cojoin.errors import ConfigurationError
from cojoin.kafka.client import Cluster, ClusterOptions, Partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["ArchiveIndex", "Layout", "Piece", "Section", "Spliced", "Stretch", "bucket_begins", "connected"]


class Piece(NamedTuple):
    """What a file holds of a partition.

    Attributes:
        path: The file's URI.
        partition: The partition.
        begin: Its smallest offset there.
        end: One after its largest there.
    """

    path: str
    partition: Partition
    begin: int
    end: int


class Section(NamedTuple):
    """Offsets that lie in one place.

    Attributes:
        begin: The first.
        end: One after the last.
        is_archived: Whether they lie in the archive.
    """

    begin: int
    end: int
    is_archived: bool


@dataclass(frozen=True)
class Layout:
    """How the archive's columns are called.

    Attributes:
        names: By the reader's own names, such as ``offset`` or ``VALUE``, those that the archive has.
        fields: The columns that hold the decoded value, in the order of the schema; None where it is raw.
    """

    names: Mapping[str, str]
    fields: tuple[str, ...] | None


@dataclass(frozen=True, eq=False)
class Stretch:
    """A partition's part of the archive.

    Attributes:
        begin: Its smallest offset there.
        cut: One after its largest.
        last: The largest timestamp, in epoch milliseconds.
        begins: The buckets of time that hold records, by their first milliseconds, in order.
        offsets: For each of them, the smallest offset of its records and all later buckets'.
        pieces: The files' shares, in the order of their first offsets.
    """

    begin: int
    cut: int
    last: int
    begins: NDArray[np.int64]
    offsets: NDArray[np.int64]
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, begins: NDArray[np.int64], smallest: NDArray[np.int64], last: int, pieces: Iterable[Piece]) -> Stretch:
        """Put one together.

        Args:
            begins: Each bucket's first millisecond, in any order, also more than once.
            smallest: The smallest offset of each.
            last: The largest timestamp.
            pieces: The files' shares.
        """
        order = np.argsort(begins, kind="stable")
        found, first = np.unique(begins[order], return_index=True)
        later = np.minimum.accumulate(smallest[order][::-1])[::-1]
        held = tuple(sorted(pieces, key=lambda each: (each.begin, each.path)))
        return cls(held[0].begin, max(each.end for each in held), last, found, later[first], held)


@dataclass(frozen=True, eq=False)
class ArchiveIndex:
    """What an archive holds, as of the moment at which it was opened. It can be pickled.

    Attributes:
        what: The archive, for messages.
        width: Of a bucket of time, in milliseconds.
        times: Times that begin a bucket of their own, in epoch milliseconds.
        stretches: Each partition's part; one that is not there has none.
        layout: How its columns are called.

    >>> piece = Piece("file:/lake/a.parquet", ("trades", 0), 10, 30)
    >>> begins, smallest = np.array([0, 1000, 2000]), np.array([10, 20, 18])
    >>> held = Stretch.of(begins, smallest, 2345, [piece])
    >>> index = ArchiveIndex("archive", 1000, (), {("trades", 0): held}, Layout({}, None))
    >>> [index.first_at(("trades", 0), time) for time in (0, 1, 1001, 2001)]
    [(10, 0), (18, 1000), (18, 2000), None]
    >>> index.sections(("trades", 0), 5, 40)
    [Section(begin=5, end=10, is_archived=False), Section(begin=10, end=30, is_archived=True), \
Section(begin=30, end=40, is_archived=False)]
    """

    what: str
    width: int
    times: tuple[int, ...]
    stretches: Mapping[Partition, Stretch]
    layout: Layout = field(repr=False)

    def first_at(self, partition: Partition, timestamp_ms: int) -> tuple[int, int] | None:
        """Give where the records of a time or later begin: an offset and a time; None where the archive has none.

        Args:
            partition: One of the archive's.
            timestamp_ms: In epoch milliseconds; one within a bucket is taken for the next one's begin.
        """
        stretch = self.stretches[partition]
        ceiling = -(-timestamp_ms // self.width) * self.width
        ceiling = min([ceiling, *(each for each in self.times if each >= timestamp_ms)])
        at = int(np.searchsorted(stretch.begins, ceiling))
        return None if at == len(stretch.begins) else (int(stretch.offsets[at]), int(stretch.begins[at]))

    def sections(self, partition: Partition, begin: int, end: int) -> list[Section]:
        """Cut offsets by where they lie."""
        stretch = self.stretches.get(partition)
        first, cut = (begin, begin) if stretch is None else (stretch.begin, stretch.cut)
        parts = [
            Section(begin, min(end, first), is_archived=False),
            Section(max(begin, first), min(end, cut), is_archived=True),
            Section(max(begin, cut), end, is_archived=False),
        ]
        return [each for each in parts if each.begin < each.end]

    def pieces(self, partition: Partition, begin: int, end: int) -> tuple[Piece, ...]:
        """Give the files' shares that meet some offsets."""
        return tuple(each for each in self.stretches[partition].pieces if each.begin < end and begin < each.end)


class Spliced(Cluster):
    """A cluster whose older records lie in an archive: it answers for both parts, as if they were one.

    Args:
        options: How the cluster is reached.
        what: Who asks, for messages.
        archive: What the archive holds.
    """

    def __init__(self, options: ClusterOptions, what: str, archive: ArchiveIndex) -> None:
        super().__init__(options, what)
        self.archive = archive

    def kept(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Give each partition's first offset that the brokers still have."""
        return super().earliest(partitions)

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Give each partition's first offset, in the archive or with the brokers."""
        stretches = self.archive.stretches
        kept = self.kept(partitions)
        return {each: min(at, stretches[each].begin) if each in stretches else at for each, at in kept.items()}

    def first_at(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, tuple[int, int] | None]:
        """Find each partition's first record at or after a time; in the archive to the bucket."""
        found = super().first_at(partitions, timestamp_ms)
        for each in found.keys() & self.archive.stretches.keys():
            stretch, brokers = self.archive.stretches[each], found[each]
            if brokers is not None and brokers[0] < stretch.begin:
                continue
            archived = self.archive.first_at(each, timestamp_ms)
            if archived is not None:
                found[each] = archived
            elif brokers is not None:
                found[each] = (max(brokers[0], stretch.cut), brokers[1])
        return found

    def last_timestamps(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """Give each partition's largest record timestamp in epoch milliseconds; None of an empty one."""
        found = super().last_timestamps(partitions)
        for each in found.keys() & self.archive.stretches.keys():
            found[each] = max(self.archive.stretches[each].last, found[each] or 0)
        return found

    def next_there(self, positions: Mapping[Partition, int]) -> dict[Partition, int]:
        """Give the first offset at or after each position that is in the archive or with the brokers."""
        kept = self.kept(positions)
        return {each: self._next_there(each, at, kept[each]) for each, at in positions.items()}

    def _next_there(self, partition: Partition, position: int, kept: int) -> int:
        stretch = self.archive.stretches.get(partition)
        if stretch is None or position >= stretch.cut:
            return max(position, kept)
        return position if position >= stretch.begin else max(position, min(kept, stretch.begin))

    def check_ends(self, partitions: Iterable[Partition]) -> None:
        """See that the archive is one of these topics.

        Raises:
            ConfigurationError: It has a partition that the topic has not, or offsets beyond the topic's end.
        """
        read = list(partitions)
        there, ends = self.partitions(), self.latest(read)
        for (topic, number), stretch in self.archive.stretches.items():
            problem = None
            if topic in there and number not in there[topic]:
                problem = f"has records of topic {topic} partition {number}, and the topic has partitions"
                problem += f" {there[topic]}"
            elif ends.get((topic, number), stretch.cut) < stretch.cut:
                problem = f"goes up to offset {stretch.cut - 1:,} of topic {topic} partition {number}, and the topic"
                problem += f" ends before {ends[topic, number]:,}"
            if problem is not None:
                msg = f"{self._what}: {self.archive.what} {problem}: it was made anew, or the archive is another one's"
                raise ConfigurationError(msg)

    def check_seam(self, begins: Mapping[Partition, int], ends: Mapping[Partition, int] | None) -> None:
        """See that the brokers have what the archive has not.

        Args:
            begins: Where reading begins.
            ends: Where it ends; None is all that is there.

        Raises:
            ConfigurationError: Some of what is to be read is in neither part.
        """
        kept, wrong = self.kept(begins), []
        for partition, begin in begins.items():
            end = max(begin, kept[partition]) if ends is None else ends[partition]
            for section in self.archive.sections(partition, begin, end):
                gone = min(section.end, kept[partition])
                if not section.is_archived and section.begin < gone:
                    topic, number = partition
                    count = f"({gone - section.begin:,} records)"
                    wrong.append(f"topic {topic} partition {number}: offsets {section.begin:,} to {gone - 1:,} {count}")
        if wrong:
            msg = (
                f"{self._what}: {'; '.join(wrong)}: neither {self.archive.what} nor the brokers have them; archive "
                f'them, begin later, or go on without them with data_loss="skip"'
            )
            raise ConfigurationError(msg)


def connected(options: ClusterOptions, what: str, archive: ArchiveIndex | None) -> Cluster:
    """Reach a cluster, with its archive where there is one."""
    return Cluster(options, what) if archive is None else Spliced(options, what, archive)


def bucket_begins(times: Any, width: int, own: Sequence[int]) -> NDArray[np.int64]:
    """Give the first millisecond of each time's bucket.

    Args:
        times: In epoch milliseconds.
        width: Of a bucket.
        own: The times that begin buckets of their own.

    >>> bucket_begins([5, 12, 17, 23], 10, [15]).tolist()
    [0, 10, 15, 20]
    """
    moments = np.asarray(times, np.int64)
    begins = moments - moments % width
    for each in own:
        begins = np.where(moments >= each, np.maximum(begins, each), begins)
    return begins
