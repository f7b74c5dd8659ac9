"""How a batch's ranges of offsets are cut into tasks.

As many tasks as asked, of about as many records each; a batch of few records is one task, for a task costs more than
they do. A task may read several ranges of a partition, of the archive and of the brokers. Where the archive has holes
and the brokers have the records, both are read. Ranges of which a part is gone are an error with its size, or begin
later, with a fault that is counted. Marks say how far time has come in a partition; a partition that never held a
record gets none, so that it holds nothing, unless none of the input's did.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from cojoin.errors import QueryFailedError
from cojoin.kafka.archive.hybrid_cluster import HybridCluster

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cojoin.kafka.archive.archive import Piece
    from cojoin.kafka.client import Cluster, Partition

__all__ = ["ArchivedSpan", "Gap", "Span", "Task", "make_tasks"]

_FEW_RECORDS = 20_000


@dataclass(frozen=True)
class Span:
    """Offsets of a partition, from the first to before the end."""

    partition: Partition
    begin: int
    end: int


@dataclass(frozen=True)
class ArchivedSpan(Span):
    """Offsets that lie in the archive, with the files' shares that meet them.

    Where it is filled, the archive has holes there that the brokers may fill.
    """

    pieces: tuple[Piece, ...] = ()
    is_filled: bool = False


@dataclass(frozen=True)
class Gap(Span):
    """Offsets that the broker no longer has."""

    def __str__(self) -> str:
        topic, number = self.partition
        count = self.end - self.begin
        return f"topic {topic} partition {number}: offsets {self.begin:,} to {self.end - 1:,} ({count:,} records)"


class Task(InputPartition):
    """What a task reads.

    Args:
        spans: Offsets, each once, a partition's in order; those in the archive become ``archived``.
        marks: How far time has come in partitions, in epoch milliseconds.
        gaps: What can't be read any more.
        unread: Partitions with marks that hold more.
        trusted_until: The latest stamp that says a time, in epoch milliseconds; None where any does.
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
        """What is asked of the brokers, each partition's in order."""
        filled = [Span(each.partition, each.begin, each.end) for each in self.archived if each.is_filled]
        return sorted([*self.spans, *filled], key=lambda each: each.begin)


def make_tasks(
    cluster: Cluster,
    begins: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    mark: int | None,
    tasks: int,
    *,
    what: str,
    skips_losses: bool,
    unread: frozenset[Partition] = frozenset(),
    trusted_until: int | None = None,
) -> list[Task]:
    """Cut a batch.

    Args:
        cluster: Where the records are.
        begins: The first offset of each partition; one that is not there begins where its log does.
        ends: Each partition's end.
        mark: How far time has come in each of them, in epoch milliseconds; None says nothing.
        tasks: Into how many tasks.
        what: The input, for messages.
        skips_losses: Whether records that are gone are passed over.
        unread: The partitions that hold more.
        trusted_until: The latest stamp that says a time, in epoch milliseconds; None where any does.

    Raises:
        QueryFailedError: Records are gone, and may not be passed over.
    """
    earliest = cluster.earliest(ends)
    kept = cluster.log_starts(ends) if isinstance(cluster, HybridCluster) else earliest
    spans: list[Span] = []
    gaps: list[Gap] = []
    for partition, end in ends.items():
        begin = min(begins.get(partition, earliest[partition]), end)
        if isinstance(cluster, HybridCluster):
            gaps += [Gap(partition, *each) for each in cluster.lost(partition, begin, end, kept[partition])]
        for span in _placed(cluster, Span(partition, begin, end), kept[partition]):
            there = span.begin if isinstance(span, ArchivedSpan) else max(span.begin, min(kept[partition], span.end))
            if span.begin < there:
                gaps.append(Gap(partition, span.begin, there))
            if there < span.end:
                spans.append(replace(span, begin=there))
    if gaps and not skips_losses:
        msg = (
            f"{what}: records that were to be read next are gone: {'; '.join(map(str, gaps))}; they aged out, or were "
            f'deleted, before they were read. Start a new query, or go on without them with data_loss="skip"'
        )
        raise QueryFailedError(msg)
    holding = {partition for partition, end in ends.items() if end} | unread
    marks = {} if mark is None else dict.fromkeys(sorted(holding or ends), mark)
    held = unread.intersection(marks)
    pieces = _cut(spans, tasks)
    if not pieces and (marks or gaps):
        pieces = [[]]
    return [
        Task(each, {} if number else marks, [] if number else gaps, frozenset() if number else held, trusted_until)
        for number, each in enumerate(pieces)
    ]


def _placed(cluster: Cluster, span: Span, kept: int) -> list[Span]:
    """Cut a range by where it lies."""
    if not isinstance(cluster, HybridCluster):
        return [span]
    archive, partition = cluster.archive, span.partition
    placed: list[Span] = []
    for begin, end, is_archived in archive.sections(partition, span.begin, span.end):
        if not is_archived:
            placed.append(Span(partition, begin, end))
            continue
        for one, two, is_filled in archive.stretches[partition].parts(begin, end, kept):
            placed.append(ArchivedSpan(partition, one, two, archive.pieces(partition, one, two), is_filled))
    return placed


def _cut(spans: list[Span], tasks: int) -> list[list[Span]]:
    """Share ranges out to tasks, a partition's neighbours to the same one."""
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
