"""An archive of a topic's older records, opened: its index is counted, and kept until its files change.

An archive is a Delta table or a folder of parquet files. It is read as of the moment at which it is opened; when it is
opened again, it is counted again only if its files have changed.

An archive is refused if pyarrow would read it differently from Spark: files with deleted rows (``archive_counts``),
renamed columns, or needed columns that are only in the folders' names (``archive_columns``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.values.rows import back_quoted
from cojoin.errors import ConfigurationError
from cojoin.kafka.archive.archive_columns import folder_columns, layout_of
from cojoin.kafka.archive.archive_counts import check_shares, counted, counted_blocks
from cojoin.kafka.archive.archive_index import ArchivedPartition, ArchiveIndex, Blocks, Piece
from cojoin.session.failures import explain
from cojoin.session.spark_errors import JAVA_ERRORS
from cojoin.session.stores import places_of
from cojoin.spark.sources.sources import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cojoin.kafka.client import Partition
    from cojoin.kafka.ranges import Range
    from cojoin.kafka.topics import Topics

__all__ = ["Archive", "Wanted"]


@dataclass(frozen=True)
class Wanted:
    """What an input needs of an archive.

    Attributes:
        what: The input, for messages.
        topics: The topics and partitions that are read.
        schema: DDL of the value's columns; None where the value is not read.
        parts: The other parts of a record that are read.
        max_drift_ms: How far partitions may be apart, in milliseconds.
        range: Where reading begins and ends; its times begin buckets of their own.
    """

    what: str
    topics: Topics
    schema: str | None
    parts: tuple[str, ...]
    max_drift_ms: int
    range: Range

    @property
    def times(self) -> tuple[int, ...]:
        """The times of the range, in epoch milliseconds."""
        points = [*self.range.from_.values(), *(self.range.to or {}).values()]
        return tuple(sorted({each.value for each in points if each.kind == "time"}))

    def reads(self, partition: Partition) -> bool:
        """Return whether a partition is read."""
        topic, number = partition
        if topic in self.topics.only:
            return number in self.topics.only[topic]
        pattern = self.topics.pattern
        matches = pattern is not None and not topic.startswith("__") and re.fullmatch(pattern, topic)
        return topic in self.topics.names or bool(matches)


class Archive:
    """An archive that is opened by the first request for its index, which it keeps.

    Args:
        source: Where it is.
        what: The input, for messages.

    Raises:
        ConfigurationError: It is neither a Delta table nor a folder of parquet files.
    """

    def __init__(self, source: Source, what: str) -> None:
        if not isinstance(source, Source) or source.format not in {"delta", "parquet"} or source.begins_with_snapshot:
            got = f"a source of the format {source.format!r}" if isinstance(source, Source) else repr(source)
            got = "the changes of a table" if isinstance(source, Source) and source.begins_with_snapshot else got
            hint = f"; did you mean cojoin.sources.delta({source!r})?" if isinstance(source, str) else ""
            msg = f"{what}: archive: expected cojoin.sources.delta() or .files() of parquet, got {got}{hint}"
            raise ConfigurationError(msg)
        self.source = source
        self._known: dict[str, tuple[frozenset[str], ArchiveIndex]] = {}

    def __repr__(self) -> str:
        return f"archive {self.source.format} {self.source.location}"

    def index(self, wanted: Wanted, *, again: bool = False) -> ArchiveIndex:
        """Return what the archive holds, read with the active Spark session.

        Args:
            wanted: What the input needs.
            again: Whether to check if its files have changed since the last request.

        Raises:
            SchemaError: A column is missing or of another type.
            ConfigurationError: There is no session, the archive can't be read, or the tasks would read it differently
                from Spark.
        """
        known = self._known.get(repr(wanted))
        if known is not None and not again:
            return known[1]
        what = f"{wanted.what}: {self}"
        try:
            frame = self.source.open(streaming=False)
            files = frozenset(frame.inputFiles())
            if known is None or files != known[0]:
                known = (files, _opened(self.source, frame, wanted, what))
        except JAVA_ERRORS as error:
            msg = f"{what} can't be read: {explain(error)}"
            raise ConfigurationError(msg) from error
        self._known[repr(wanted)] = known
        return known[1]


def _opened(source: Source, frame: DataFrame, wanted: Wanted, what: str) -> ArchiveIndex:
    layout = layout_of(frame, wanted.schema, wanted.parts, what)
    names, folders = layout.names, folder_columns(source, frame, layout, what)
    if names["topic"] in folders and wanted.topics.pattern is None:
        frame = frame.where(F.col(back_quoted(names["topic"])).isin(list(wanted.topics.names)))
    shares, buckets, width = counted(frame, names, wanted.times, wanted.max_drift_ms, wanted.range.trusted_until)
    places = places_of(frame.sparkSession, [each.file for each in shares])
    check_shares(shares, names["offset"], wanted.reads, what, places)
    pieces: dict[Partition, list[Piece]] = {}
    for each in shares:
        if wanted.reads(each.partition):
            pieces.setdefault(each.partition, []).append(Piece(each.file, each.partition, each.begin, each.end + 1))
    last = {partition: max(each.last for each in shares if each.partition == partition) for partition in pieces}
    spans = {
        partition: (min(each.begin for each in found), max(each.end for each in found))
        for partition, found in pieces.items()
    }
    counts = {each: sum(share.rows for share in shares if share.partition == each) for each in spans}
    holed = {each: span for each, span in spans.items() if counts[each] < span[1] - span[0]}
    blocks = counted_blocks(frame, names, holed)
    archived = {
        partition: ArchivedPartition.of(*buckets[partition], last[partition], found, blocks.get(partition, Blocks()))
        for partition, found in pieces.items()
    }
    for partition, part in archived.items():
        count = counts[partition]
        if count > part.cut - part.begin:
            msg = (
                f"{what}: it has {count:,} rows of topic {partition[0]} partition {partition[1]}, of offsets "
                f"{part.begin:,} to {part.cut - 1:,}: some are there twice; rewrite it with each record once"
            )
            raise ConfigurationError(msg)
    layout = replace(layout, places=places)
    return ArchiveIndex(f"archive {source.format} {source.location}", width, wanted.times, archived, layout)
