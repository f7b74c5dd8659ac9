"""An archive of a topic's older records: its columns checked, its records counted by Spark, its files by their footers.

An archive is a Delta table or a folder of parquet files. It is read as of the moment at which it is opened; when it is
opened again, it is counted again only if its files have changed. Each row has ``topic``, ``partition``, ``offset`` and
the record's ``timestamp``, as Spark's Kafka source writes them, and either the decoded columns of the schema or the raw
``value``.

Tasks read the files with pyarrow. An archive is refused if pyarrow would read it differently from Spark: columns with
other names in the files, needed columns that are only in the folders' names, or files with more rows than Spark reads
from them, because rows were deleted without rewriting them.

Records are counted by file, by partition and by bucket of time. A bucket is at most a quarter of the allowed drift,
unless there are too many buckets; the times of ``from_`` and ``to`` begin buckets, too. Where a partition lacks
offsets, a second pass counts them by blocks. Opening costs a pass over four columns, and over the files' footers.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.values.rows import back_quoted
from cojoin.engine.values.types import parse_schema
from cojoin.errors import ConfigurationError, SchemaError
from cojoin.kafka.archive_files import footer
from cojoin.kafka.archive_index import ArchivedPartition, ArchiveIndex, Blocks, Layout, Piece, bucket_begins
from cojoin.kafka.client import name_of
from cojoin.kafka.records import HEADERS, KEY, TIME, VALUE
from cojoin.session.arrow_types import spark_data_type
from cojoin.session.delta_tables import table_in_sql
from cojoin.session.sessions import places_of
from cojoin.session.spark_errors import JAVA_ERRORS, explain
from cojoin.spark.sources.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame

    from cojoin.kafka.client import Partition
    from cojoin.kafka.ranges import Range
    from cojoin.kafka.topics import Topics
    from cojoin.storage.object_store_settings import Settings


@dataclass(frozen=True)
class Wanted:
    """The needs of an input, which its archive must meet.

    ``schema`` is DDL of the value's columns, or None where the value is not read; ``parts`` are the other parts of a
    record that are read. Partitions are at most ``max_drift_ms`` apart. The times of ``range`` begin buckets.
    """

    label: str
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


class Archive:
    """An archive that is opened by the first request for its index, which it keeps."""

    def __init__(self, source: Source, label: str) -> None:
        if not isinstance(source, Source) or source.format not in {"delta", "parquet"} or source.begins_with_snapshot:
            got = f"a source of the format {source.format!r}" if isinstance(source, Source) else repr(source)
            got = "the changes of a table" if isinstance(source, Source) and source.begins_with_snapshot else got
            hint = f"; did you mean cojoin.sources.delta({source!r})?" if isinstance(source, str) else ""
            msg = f"{label}: archive: expected cojoin.sources.delta() or .files() of parquet, got {got}{hint}"
            raise ConfigurationError(msg)
        self.source = source
        self._known: dict[str, tuple[frozenset[str], ArchiveIndex]] = {}

    def __repr__(self) -> str:
        return f"archive {self.source.format} {self.source.location}"

    def index(self, wanted: Wanted, *, again: bool = False) -> ArchiveIndex:
        """Return the index of the archive, read with the active Spark session.

        It is checked ``again`` whether the archive's files have changed. A column that is missing or of another type is
        a SchemaError; an archive that can't be read, or that the tasks would read differently from Spark, is a
        ConfigurationError.
        """
        known = self._known.get(repr(wanted))
        if known is not None and not again:
            return known[1]
        label = f"{wanted.label}: {self}"
        try:
            frame = self.source.open(streaming=False)
            files = frozenset(frame.inputFiles())
            if known is None or files != known[0]:
                known = (files, _opened(self.source, frame, wanted, label))
        except JAVA_ERRORS as error:
            msg = f"{label} can't be read: {explain(error)}"
            raise ConfigurationError(msg) from error
        self._known[repr(wanted)] = known
        return known[1]


def _opened(source: Source, frame: DataFrame, wanted: Wanted, label: str) -> ArchiveIndex:
    layout = _layout_of(frame, wanted.schema, wanted.parts, label)
    names, folders = layout.names, _folder_columns(source, frame, layout, label)
    if names["topic"] in folders and wanted.topics.pattern is None:
        frame = frame.where(F.col(back_quoted(names["topic"])).isin(list(wanted.topics.names)))
    shares, buckets, width = _counted(frame, names, wanted.times, wanted.max_drift_ms, wanted.range.trusted_until)
    places = places_of(frame.sparkSession, [each.file for each in shares])
    _check_shares(shares, names["offset"], wanted.topics.reads, label, places)
    pieces: dict[Partition, list[Piece]] = {}
    for share in shares:
        if wanted.topics.reads(share.partition):
            piece = Piece(share.file, share.partition, share.begin, share.end + 1)
            pieces.setdefault(share.partition, []).append(piece)
    last = {partition: max(each.last for each in shares if each.partition == partition) for partition in pieces}
    spans = {
        partition: (min(each.begin for each in parts), max(each.end for each in parts))
        for partition, parts in pieces.items()
    }
    counts = {each: sum(share.rows for share in shares if share.partition == each) for each in spans}
    holed = {each: span for each, span in spans.items() if counts[each] < span[1] - span[0]}
    blocks = _counted_blocks(frame, names, holed)
    archived = {
        partition: ArchivedPartition.of(*buckets[partition], last[partition], parts, blocks.get(partition, Blocks()))
        for partition, parts in pieces.items()
    }
    for partition, part in archived.items():
        count = counts[partition]
        if count > part.cut - part.begin:
            msg = (
                f"{label}: it has {count:,} rows of {name_of(partition)}, of offsets "
                f"{part.begin:,} to {part.cut - 1:,}: some occur twice; rewrite it with each record once"
            )
            raise ConfigurationError(msg)
    layout = replace(layout, places=places)
    return ArchiveIndex(f"archive {source.format} {source.location}", width, wanted.times, archived, layout)


_NEEDED = {"topic": "topic", "partition": "partition", "offset": "offset", TIME: "timestamp"}
_OPTIONAL = {VALUE: "value", KEY: "key", HEADERS: "headers"}
_SPELLED = {"topic": ("string",), "partition": ("int", "bigint", "smallint", "tinyint"), "offset": ("bigint", "int")}
_SPELLED |= {TIME: ("timestamp",), VALUE: ("binary",), KEY: ("binary", "string")}
_SPELLED |= {HEADERS: ("array<struct<key:string,value:binary>>",)}


def _layout_of(frame: DataFrame, schema: str | None, wanted: Sequence[str], label: str) -> Layout:
    """Return the archive's columns, after a check of their types; for the arguments see ``Wanted``."""
    columns = {each.name.lower(): each for each in frame.schema.fields}
    missing = [name for name in _NEEDED.values() if name not in columns]
    if missing:
        msg = (
            f"{label}: it has no column {', '.join(missing)}; an archive carries topic, partition, offset and the "
            f"record's timestamp, as Spark's Kafka source gives them; it has {', '.join(frame.columns)}"
        )
        raise SchemaError(msg)
    wrong = ["no schema= to decode it by"] if schema is None else _misfits(columns, schema, wanted)
    fields = None
    if schema is not None and not wrong:
        fields = tuple(columns[name.lower()].name for name in parse_schema(schema).names)
    parts = {*wanted, *([VALUE] if fields is None else [])} - {TIME}
    optional = {own: name for own, name in _OPTIONAL.items() if name in columns}
    absent = sorted(parts - optional.keys())
    if VALUE in absent:
        msg = (
            f"{label}: expected the columns of the schema, or the raw value (binary): got no value, {', '.join(wrong)}"
        )
        raise SchemaError(msg)
    if absent:
        lacking = ", ".join(_OPTIONAL[own] for own in absent)
        msg = f"{label}: it has no column {lacking}, of which columns= makes one; it has {', '.join(frame.columns)}"
        raise SchemaError(msg)
    names: dict[str, str] = {}
    for own, name in (_NEEDED | optional).items():
        actual, expected = columns[name].dataType.simpleString(), _SPELLED[own]
        if actual in expected:
            names[own] = columns[name].name
        elif own in _NEEDED or own in parts:
            msg = f"{label}: column {name}: expected {' or '.join(expected)}, got {actual}"
            raise SchemaError(msg)
    return Layout(names, fields)


def _misfits(columns: Mapping[str, Any], schema: str, parts: Sequence[str]) -> list[str]:
    """Return how an archive's columns differ from a schema; a column of the record's own can't be one of the value."""
    taken = {*_NEEDED.values(), *(_OPTIONAL[part] for part in parts if part in _OPTIONAL)}
    wrong = []
    for field in parse_schema(schema):
        column, expected = columns.get(field.name.lower()), spark_data_type(field.type).simpleString()
        if field.name.lower() in taken:
            wrong.append(f"{field.name} is the record's own")
        elif column is None:
            wrong.append(f"no {field.name}")
        elif column.dataType.simpleString() != expected:
            wrong.append(f"{field.name} is {column.dataType.simpleString()} instead of {expected}")
    return wrong


def _folder_columns(source: Source, frame: DataFrame, layout: Layout, label: str) -> set[str]:
    """Return the columns that are in the folders' names instead of the files, after a check that tasks need none.

    Columns that have other names in the files are refused, too.
    """
    names, folders = layout.names, _folders(source, frame, label)
    needed = {*names.values(), *(layout.fields or ())} - {names["topic"], names["partition"]}
    if needed & folders:
        msg = (
            f"{label}: it is partitioned by {sorted(needed & folders)}, which its files do not hold; partition it by "
            f"topic, partition or columns that are not read"
        )
        raise ConfigurationError(msg)
    return folders


def _folders(source: Source, frame: DataFrame, label: str) -> set[str]:
    if source.format == "delta":
        named = table_in_sql(frame.sparkSession, str(source.location))
        row = frame.sparkSession.sql(f"DESCRIBE DETAIL {named}").select("partitionColumns", "properties").collect()[0]
        mode = row.properties.get("delta.columnMapping.mode", "none")
        if mode != "none":
            msg = (
                f"{label}: its columns are mapped (delta.columnMapping.mode = {mode}), so its files have other names "
                f"for them; give a copy of it without column mapping"
            )
            raise ConfigurationError(msg)
        return set(row.partitionColumns)
    path = next(iter(frame.inputFiles()), "")
    return {part.partition("=")[0] for part in path.split("/") if "=" in part} & set(frame.columns)


_FINER = 4
"""A bucket is at most the drift divided by this, as long as there are not too many buckets."""

_MANY, _MOST_BUCKETS = 5_000_000, 500_000
_FOOTERS_AT_ONCE = 16

_BLOCK, _MOST_BLOCKS = 20_000, 1_000
"""The minimal number of offsets in a block, and about the maximal number of blocks in a partition."""


class _Share(NamedTuple):
    """The rows of a partition that a file holds, by number; ``known`` are those with an offset.

    ``begin`` and ``end`` are the smallest and the largest offset. ``last`` is the largest timestamp, in epoch
    milliseconds, or -1.
    """

    file: str
    partition: Partition
    rows: int
    known: int
    begin: int
    end: int
    last: int


_Buckets: TypeAlias = "dict[Partition, tuple[NDArray[np.int64], NDArray[np.int64]]]"


def _counted(
    frame: DataFrame, names: Mapping[str, str], times: Sequence[int], max_drift_ms: int, trusted_until: int | None
) -> tuple[list[_Share], _Buckets, int]:
    """Return what each file holds of each partition, each partition's smallest offset by bucket, and their width.

    ``times`` begin buckets; they and ``trusted_until``, the latest timestamp that is trusted (None trusts all), are in
    epoch milliseconds.
    """
    widest = 1 << max(0, max_drift_ms.bit_length() - 1)
    width = max(1, widest // _FINER)
    millis = F.coalesce(F.unix_millis(_col(names[TIME])), F.lit(-1))
    if trusted_until is not None:
        # A timestamp that is not trusted is treated as missing.
        millis = F.when(millis > trusted_until, F.lit(-1)).otherwise(millis)
    rows = frame.select(
        F.col("_metadata.file_path").alias("file"),
        _col(names["topic"]).alias("topic"),
        _col(names["partition"]).cast("int").alias("number"),
        _col(names["offset"]).cast("bigint").alias("offset"),
        millis.alias("millis"),
    )
    bucket = _bucket(F.col("millis"), width, times).alias("bucket")
    fine = rows.groupBy("file", "topic", "number", bucket).agg(
        F.count(F.lit(1)).alias("rows"),
        F.count("offset").alias("known"),
        F.min("offset").alias("begin"),
        F.max("offset").alias("end"),
        F.max("millis").alias("last"),
    )
    fine.persist()
    try:
        sums = [F.sum(name).alias(name) for name in ("rows", "known")]
        span = [F.min("begin").alias("begin"), F.max("end").alias("end"), F.max("last").alias("last")]
        shares = fine.groupBy("file", "topic", "number").agg(*sums, *span).toArrow().to_pylist()
        if fine.count() > _MANY:
            width = widest
            fine = fine.withColumn("bucket", _bucket(F.col("bucket"), width, times))
        smallest = fine.groupBy("topic", "number", "bucket").agg(F.min("begin").alias("begin")).toArrow()
    finally:
        fine.unpersist()
    held = [_Share(each.pop("file"), (each.pop("topic"), each.pop("number")), **each) for each in shares]
    return held, *_by_partition(smallest, width, times)


def _by_partition(table: pa.Table, width: int, times: Sequence[int]) -> tuple[_Buckets, int]:
    """Return each partition's buckets, and their width, which is doubled until there are few enough."""
    begins, smallest = (table[name].to_numpy() for name in ("bucket", "begin"))
    places = list(zip(table["topic"].to_pylist(), table["number"].to_pylist(), strict=True))
    order = {place: at for at, place in enumerate(dict.fromkeys(places))}
    place = np.array([order[each] for each in places], np.int64)
    while len(np.unique(np.stack([place, begins]), axis=1)[0]) > _MOST_BUCKETS:
        width *= 2
        begins = bucket_begins(begins, width, times)
    return {each: (begins[place == at], smallest[place == at]) for each, at in order.items()}, width


def _bucket(millis: Column, width: int, own: Sequence[int]) -> Column:
    """Return the first millisecond of a time's bucket, as ``bucket_begins`` does."""
    begin = millis - F.pmod(millis, F.lit(width))
    later = [F.when(millis >= each, F.lit(each)) for each in own]
    return F.greatest(begin, *later) if later else begin


def _counted_blocks(
    frame: DataFrame, names: Mapping[str, str], spans: Mapping[Partition, tuple[int, int]]
) -> dict[Partition, Blocks]:
    """Return where partitions lack offsets between their first and their last; it costs nothing without partitions.

    ``spans`` has the first offset of each partition that lacks some, and one after its last.
    """
    if not spans:
        return {}
    width = max(_BLOCK, *((cut - begin) // _MOST_BLOCKS for begin, cut in spans.values()))
    numbered = frame.where(_col(names["topic"]).isin(sorted({topic for topic, _ in spans}))).select(
        _col(names["topic"]).alias("topic"),
        _col(names["partition"]).cast("int").alias("number"),
        F.floor(_col(names["offset"]) / width).alias("block"),
    )
    counts = numbered.groupBy("topic", "number", "block").agg(F.count(F.lit(1)).alias("rows")).toArrow()
    rows: dict[Partition, dict[int, int]] = {each: {} for each in spans}
    for row in counts.to_pylist():
        rows.get((row["topic"], row["number"]), {})[row["block"]] = row["rows"]
    return {each: Blocks.of(*span, width, rows[each]) for each, span in spans.items()}


def _check_shares(
    shares: Sequence[_Share],
    offset: str,
    reads: Callable[[Partition], bool],
    label: str,
    places: Mapping[str, Settings],
) -> None:
    """Check that the files that are read hold the rows that Spark reads, so that the tasks read the same ones."""
    for share in shares:
        if None in share.partition or share.known < share.rows:
            msg = f"{label}: {share.file} has rows without topic, partition or offset; rewrite it without them"
            raise ConfigurationError(msg)
    rows: dict[str, int] = {}
    for share in shares:
        rows[share.file] = rows.get(share.file, 0) + share.rows
    read = sorted({each.file for each in shares if reads(each.partition)})
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        footers = pool.map(lambda file: footer(file, label, places), read)
        for file, stored in zip(read, footers, strict=True):
            if offset.lower() not in {name.lower() for name in stored.columns}:
                msg = f"{label}: {file} has no column {offset}; it has {', '.join(sorted(stored.columns))}"
                raise ConfigurationError(msg)
            if stored.rows != rows[file]:
                msg = (
                    f"{label}: {file} holds {stored.rows:,} rows, of which Spark reads {rows[file]:,}: rows were "
                    f"deleted without rewriting it; run REORG TABLE ... APPLY (PURGE)"
                )
                raise ConfigurationError(msg)


def _col(name: str) -> Column:
    return F.col(back_quoted(name))
