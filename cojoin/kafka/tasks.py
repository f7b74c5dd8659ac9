"""The tasks of a batch: its ranges of offsets, cut into about equal numbers of records.

A batch of few records is one task, because a task costs more than they do. A task may read several ranges of a
partition, from the archive and from the brokers; where the archive has holes and the brokers have the records, both are
read. Where a part of a range no longer exists, the query ends with an error that gives its size; or, if losses are
skipped, the range begins later and a fault is counted.

Marks are the times that event time has reached in partitions. A partition that never held a record gets none, so that
it does not hold back the watermark, unless no partition of the input ever held one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from cojoin.errors import QueryFailedError
from cojoin.kafka.client import Gap, Span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.kafka.archive_index import ArchiveIndex, Piece
    from cojoin.kafka.client import Cluster, Partition

_FEW_RECORDS = 20_000


@dataclass(frozen=True)
class ArchivedSpan(Span):
    """A range of offsets in the archive, with the parts of files that overlap it; the brokers may fill its holes."""

    pieces: tuple[Piece, ...] = ()
    is_filled: bool = False


class Task(InputPartition):
    """The ranges that a task reads, each partition's in order, with its marks, in epoch milliseconds, and its gaps.

    ``unread`` has the partitions with marks that hold more records. ``trusted_until`` is the latest trusted timestamp,
    in epoch milliseconds; None trusts all.
    """

    def __init__(
        self,
        spans: list[Span],
        marks: dict[Partition, int],
        gaps: list[Gap],
        unread: frozenset[Partition] = frozenset(),
        trusted_until: int | None = None,
    ) -> None:
        super().__init__(None)
        self.trusted_until = trusted_until
        self.archived = [span for span in spans if isinstance(span, ArchivedSpan)]
        self.spans = [span for span in spans if not isinstance(span, ArchivedSpan)]
        self.marks, self.gaps, self.unread = marks, gaps, unread

    @property
    def from_brokers(self) -> list[Span]:
        """The ranges that the brokers are asked for, each partition's in order."""
        filled = [Span(span.partition, span.begin, span.end) for span in self.archived if span.is_filled]
        return sorted([*self.spans, *filled], key=lambda span: span.begin)


def make_tasks(
    cluster: Cluster,
    begins: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    mark: int | None,
    tasks: int,
    *,
    label: str,
    skips_losses: bool,
    unread: frozenset[Partition] = frozenset(),
    trusted_until: int | None = None,
) -> list[Task]:
    """Return the tasks of a batch; records that no longer exist are a QueryFailedError, unless losses are skipped.

    A partition that ``begins`` lacks begins at its earliest offset. ``mark`` is the time that event time has reached in
    each partition, in epoch milliseconds; None makes no marks.
    """
    kept = cluster.log_starts(ends)
    earliest = cluster.archive.earliest(kept)
    spans: list[Span] = []
    gaps: list[Gap] = []
    for partition, end in ends.items():
        begin = min(begins.get(partition, earliest[partition]), end)
        gaps += cluster.lost(partition, begin, end, kept[partition])
        for span in _placed(cluster.archive, Span(partition, begin, end), kept[partition]):
            first = span.begin if isinstance(span, ArchivedSpan) else max(span.begin, min(kept[partition], span.end))
            if span.begin < first:
                gaps.append(Gap(partition, span.begin, first))
            if first < span.end:
                spans.append(replace(span, begin=first))
    if gaps and not skips_losses:
        msg = (
            f"{label}: records that were to be read next are gone: {'; '.join(map(str, gaps))}; they aged out, or were "
            f'deleted, before they were read. Start a new query, or skip them with data_loss="skip"'
        )
        raise QueryFailedError(msg + cluster.unknown_policies)
    holding = {partition for partition, end in ends.items() if end} | unread
    marks = {} if mark is None else dict.fromkeys(sorted(holding or ends), mark)
    held = unread.intersection(marks)
    pieces = _cut(spans, tasks)
    if not pieces and (marks or gaps):
        pieces = [[]]
    return [
        Task(piece, {} if number else marks, [] if number else gaps, frozenset() if number else held, trusted_until)
        for number, piece in enumerate(pieces)
    ]


def _placed(archive: ArchiveIndex, span: Span, kept: int) -> list[Span]:
    """Return the parts of a range that lie in the archive or on the brokers."""
    partition = span.partition
    placed: list[Span] = []
    for begin, end, is_archived in archive.sections(partition, span.begin, span.end):
        if not is_archived:
            placed.append(Span(partition, begin, end))
            continue
        for one, two, is_filled in archive.archived[partition].parts(begin, end, kept):
            placed.append(ArchivedSpan(partition, one, two, archive.pieces(partition, one, two), is_filled))
    return placed


def _cut(spans: list[Span], tasks: int) -> list[list[Span]]:
    """Return the ranges that each task reads; a partition's neighbours go to the same task."""
    total = sum(span.end - span.begin for span in spans)
    share = max(_FEW_RECORDS, -(-total // max(1, tasks)))
    cut: list[list[Span]] = []
    room = 0
    for span in spans:
        begin = span.begin
        while begin < span.end:
            if not room:
                cut.append([])
                room = share
            end = min(span.end, begin + room)
            cut[-1].append(replace(span, begin=begin, end=end))
            room -= end - begin
            begin = end
    return cut
