"""The index of an archive of older records: the offsets and times that its files hold.

Positions remain Kafka's offsets. Of each partition the archive holds the offsets from its first up to its *cut*, one
after its last; all others are on the brokers. The archive's records are counted by buckets of time, and a time within a
bucket counts as the start of the next one. So a slice may read slightly more than it needs, but never less; the times
of ``from_`` and ``to`` begin buckets, too, so a range is exact. Offsets are counted by blocks, to know where some are
missing.

Where the archive has holes and the brokers still have those offsets, both are read, and each record is returned once.
Where the brokers no longer have them, a block of offsets without any record is a loss, unless the topic is compacted;
smaller holes count as what transactions and compaction leave. It costs no more requests than Kafka alone, and the
memory of an index: some bytes for each bucket, block and file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from cojoin.kafka.client import Partition
    from cojoin.storage.object_store_settings import Settings


class Piece(NamedTuple):
    """The part of a partition that one file holds: from its smallest offset to one after its largest."""

    path: str
    partition: Partition
    begin: int
    end: int


class Section(NamedTuple):
    """A range of offsets, from its first to one after its last, that lies in one place."""

    begin: int
    end: int
    is_archived: bool


class Blocks(NamedTuple):
    """The blocks of offsets that the archive lacks in part (``holed``) or completely (``empty``), as ordered ranges."""

    holed: tuple[tuple[int, int], ...] = ()
    empty: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, begin: int, cut: int, width: int, rows: Mapping[int, int]) -> Blocks:
        """Return the blocks with holes of a partition, from its smallest offset to its cut.

        ``width`` is the number of offsets in a block, of which the first begins at offset 0; ``rows`` the number of
        records in each block, by the block's number.

        >>> Blocks.of(5, 60, 10, {0: 5, 1: 9, 2: 10, 5: 10})
        Blocks(holed=((10, 20), (30, 50)), empty=((30, 50),))
        """
        numbers = np.arange(begin // width, (cut - 1) // width + 1, dtype=np.int64)
        begins, ends = np.maximum(numbers * width, begin), np.minimum((numbers + 1) * width, cut)
        counts = np.array([rows.get(number, 0) for number in numbers.tolist()], np.int64)
        return cls(_runs(begins, ends, counts < ends - begins), _runs(begins, ends, counts == 0))


_WITHOUT_HOLES = Blocks()


def _runs(begins: NDArray[np.int64], ends: NDArray[np.int64], wanted: NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    """Return the wanted ranges, neighbours joined."""
    runs: list[tuple[int, int]] = []
    for begin, end in zip(begins[wanted].tolist(), ends[wanted].tolist(), strict=True):
        if runs and runs[-1][1] == begin:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((begin, end))
    return tuple(runs)


@dataclass(frozen=True)
class Layout:
    """The names of the archive's columns, and where its files are.

    ``names`` has the columns by the reader's own names, such as ``offset`` or ``VALUE``. ``fields`` are those that hold
    the decoded value, in the order of the schema; None where it is raw. ``places`` has the settings of object stores.
    """

    names: Mapping[str, str]
    fields: tuple[str, ...] | None
    places: Mapping[str, Settings] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False)
class ArchivedPartition:
    """The part of a partition that lies in the archive: from its smallest offset to its ``cut``, one after its largest.

    ``last`` is the largest timestamp, in epoch milliseconds. ``begins`` are the first milliseconds of the buckets of
    time that hold records, in order; ``offsets`` has for each the smallest offset of its records and those of all later
    buckets. ``blocks`` has the missing offsets.
    """

    begin: int
    cut: int
    last: int
    begins: NDArray[np.int64]
    offsets: NDArray[np.int64]
    pieces: tuple[Piece, ...]
    blocks: Blocks = _WITHOUT_HOLES

    @classmethod
    def of(
        cls,
        begins: NDArray[np.int64],
        smallest: NDArray[np.int64],
        last: int,
        pieces: Iterable[Piece],
        blocks: Blocks = _WITHOUT_HOLES,
    ) -> ArchivedPartition:
        """Return the archived part of a partition with these buckets and pieces.

        ``begins`` has each bucket's first millisecond, in any order, possibly more than once; ``smallest`` the smallest
        offset of each.
        """
        order = np.argsort(begins, kind="stable")
        distinct, first = np.unique(begins[order], return_index=True)
        later = np.minimum.accumulate(smallest[order][::-1])[::-1]
        held = tuple(sorted(pieces, key=lambda piece: (piece.begin, piece.path)))
        return cls(held[0].begin, max(each.end for each in held), last, distinct, later[first], held, blocks)

    def has_holes_at(self, offset: int) -> bool:
        """Return whether an offset is in a block with holes."""
        return any(begin <= offset < end for begin, end in self.blocks.holed)

    def parts(self, begin: int, end: int, kept: int) -> list[tuple[int, int, bool]]:
        """Return the parts of a range in order, each with whether the brokers fill the archive's holes in it."""
        parts: list[tuple[int, int, bool]] = []
        at = begin
        for holed, stop in self.blocks.holed:
            first, last = max(holed, at, kept), min(stop, end)
            if first < last:
                parts += [(at, first, False)] if at < first else []
                parts.append((first, last, True))
                at = last
        return [*parts, (at, end, False)] if at < end else parts


@dataclass(frozen=True, eq=False)
class ArchiveIndex:
    """The offsets and times of an archive's records, as of the moment at which it was opened. It can be pickled.

    ``width`` is that of a bucket of time, in milliseconds; ``times``, in epoch milliseconds, begin buckets, too.

    >>> piece = Piece("file:/lake/a.parquet", ("trades", 0), 10, 30)
    >>> begins, smallest = np.array([0, 1000, 2000]), np.array([10, 20, 18])
    >>> held = ArchivedPartition.of(begins, smallest, 2345, [piece])
    >>> index = ArchiveIndex("archive", 1000, (), {("trades", 0): held}, Layout({}, None))
    >>> [index.first_at(("trades", 0), time) for time in (0, 1, 1001, 2001)]
    [(10, 0), (18, 1000), (18, 2000), None]
    >>> index.sections(("trades", 0), 5, 40)
    [Section(begin=5, end=10, is_archived=False), Section(begin=10, end=30, is_archived=True), \
Section(begin=30, end=40, is_archived=False)]
    """

    label: str
    width: int
    times: tuple[int, ...]
    archived: Mapping[Partition, ArchivedPartition]
    layout: Layout | None = field(repr=False)

    def is_archived(self, partition: Partition, offset: int) -> bool:
        """Return whether an offset lies in the archive."""
        part = self.archived.get(partition)
        return part is not None and part.begin <= offset < part.cut

    def earliest(self, log_starts: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return each partition's first offset, in the archive or on the brokers, whose log starts are known."""
        archived = self.archived
        return {each: min(at, archived[each].begin) if each in archived else at for each, at in log_starts.items()}

    def first_at(self, partition: Partition, timestamp_ms: int) -> tuple[int, int] | None:
        """Return the offset and time at which records of a time or later begin; None where the archive has none.

        A time within a bucket counts as the start of the next one.
        """
        part = self.archived[partition]
        ceiling = -(-timestamp_ms // self.width) * self.width
        ceiling = min([ceiling, *(each for each in self.times if each >= timestamp_ms)])
        at = int(np.searchsorted(part.begins, ceiling))
        return None if at == len(part.begins) else (int(part.offsets[at]), int(part.begins[at]))

    def sections(self, partition: Partition, begin: int, end: int) -> list[Section]:
        """Return the parts of a range, split by where they lie."""
        part = self.archived.get(partition)
        first, cut = (begin, begin) if part is None else (part.begin, part.cut)
        parts = [
            Section(begin, min(end, first), is_archived=False),
            Section(max(begin, first), min(end, cut), is_archived=True),
            Section(max(begin, cut), end, is_archived=False),
        ]
        return [each for each in parts if each.begin < each.end]

    def pieces(self, partition: Partition, begin: int, end: int) -> tuple[Piece, ...]:
        """Return the files' parts that overlap a range of offsets."""
        return tuple(each for each in self.archived[partition].pieces if each.begin < end and begin < each.end)


def bucket_begins(times: Any, width: int, own: Sequence[int]) -> NDArray[np.int64]:
    """Return the first millisecond of each time's bucket; the times of ``own`` begin buckets, too.

    >>> bucket_begins([5, 12, 17, 23], 10, [15]).tolist()
    [0, 10, 15, 20]
    """
    moments = np.asarray(times, np.int64)
    begins = moments - moments % width
    for time in own:
        begins = np.where(moments >= time, np.maximum(begins, time), begins)
    return begins


NO_ARCHIVE = ArchiveIndex("", 1, (), {}, None)
"""The index of an input whose records are all on the brokers."""
