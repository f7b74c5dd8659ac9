"""What an archive's files hold of each partition: Spark counts it in one pass, and the files' footers confirm it.

Records are counted by file, by partition and by bucket of time. A bucket is at most a quarter of the allowed drift,
unless there are too many buckets; the times of ``from_`` and ``to`` begin buckets of their own. Where a partition lacks
offsets, a second pass counts them by blocks.

A file that holds other rows than those that Spark finds in it, because rows were deleted without rewriting it, is
refused: tasks would read what Spark does not. It costs a pass over four columns, and the reading of each file's footer.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from pyspark.sql import functions as F  # noqa: N812

from cojoin.engine.values.rows import back_quoted
from cojoin.errors import ConfigurationError
from cojoin.kafka.archive.archive_files import footer
from cojoin.kafka.archive.archive_index import Blocks, bucket_begins
from cojoin.kafka.records import TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame

    from cojoin.kafka.client import Partition
    from cojoin.storage.object_store_settings import Settings

__all__ = ["Share", "check_shares", "counted", "counted_blocks"]

_FINER = 4
"""A bucket is at most the drift divided by this, as long as there are not too many buckets."""

_MANY, _MOST_BUCKETS = 5_000_000, 500_000
_FOOTERS_AT_ONCE = 16

_BLOCK, _MOST_BLOCKS = 20_000, 1_000
"""The minimal number of offsets in a block, and about the maximal number of blocks in a partition."""


class Share(NamedTuple):
    """What a file holds of a partition.

    Attributes:
        file: The file's URI.
        partition: The partition.
        rows: The number of rows.
        known: How many of them have an offset.
        begin: The smallest offset.
        end: The largest offset.
        last: The largest timestamp in epoch milliseconds; -1 where there is none.
    """

    file: str
    partition: Partition
    rows: int
    known: int
    begin: int
    end: int
    last: int


_Buckets: TypeAlias = "dict[Partition, tuple[NDArray[np.int64], NDArray[np.int64]]]"


def counted(
    frame: DataFrame, names: Mapping[str, str], times: Sequence[int], max_drift_ms: int, trusted_until: int | None
) -> tuple[list[Share], _Buckets, int]:
    """Return what each file holds of each partition, each partition's smallest offset by bucket, and their width.

    Args:
        frame: The archive.
        names: Its columns, by the reader's own names.
        times: Times that begin buckets of their own, in epoch milliseconds.
        max_drift_ms: How far partitions may be apart, in milliseconds.
        trusted_until: The latest timestamp that is trusted, in epoch milliseconds; None trusts all.
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
        found = fine.groupBy("topic", "number", "bucket").agg(F.min("begin").alias("begin")).toArrow()
    finally:
        fine.unpersist()
    held = [Share(each.pop("file"), (each.pop("topic"), each.pop("number")), **each) for each in shares]
    return held, *_by_partition(found, width, times)


def _by_partition(found: pa.Table, width: int, times: Sequence[int]) -> tuple[_Buckets, int]:
    """Return each partition's buckets, and their width, which is doubled until there are few enough."""
    begins, smallest = (found[name].to_numpy() for name in ("bucket", "begin"))
    places = list(zip(found["topic"].to_pylist(), found["number"].to_pylist(), strict=True))
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


def counted_blocks(
    frame: DataFrame, names: Mapping[str, str], spans: Mapping[Partition, tuple[int, int]]
) -> dict[Partition, Blocks]:
    """Return where partitions lack offsets between their first and their last; it costs nothing without partitions.

    Args:
        frame: The archive.
        names: Its columns, by the reader's own names.
        spans: The partitions that lack offsets, with their first offset and one after their last.
    """
    if not spans:
        return {}
    width = max(_BLOCK, *((cut - begin) // _MOST_BLOCKS for begin, cut in spans.values()))
    numbered = frame.where(_col(names["topic"]).isin(sorted({topic for topic, _ in spans}))).select(
        _col(names["topic"]).alias("topic"),
        _col(names["partition"]).cast("int").alias("number"),
        F.floor(_col(names["offset"]) / width).alias("block"),
    )
    found = numbered.groupBy("topic", "number", "block").agg(F.count(F.lit(1)).alias("rows")).toArrow()
    rows: dict[Partition, dict[int, int]] = {each: {} for each in spans}
    for each in found.to_pylist():
        rows.get((each["topic"], each["number"]), {})[each["block"]] = each["rows"]
    return {each: Blocks.of(*span, width, rows[each]) for each, span in spans.items()}


def check_shares(
    shares: Sequence[Share],
    offset: str,
    reads: Callable[[Partition], bool],
    what: str,
    places: Mapping[str, Settings],
) -> None:
    """Check that the files hold the rows that Spark finds in them, so that the tasks find the same ones.

    Args:
        shares: What each file holds of each partition.
        offset: The name of the offset's column.
        reads: Returns whether a partition is read; the footers of other files are not.
        what: The archive, for messages.
        places: How to reach object stores.

    Raises:
        ConfigurationError: A file holds other rows than those that Spark finds in it, or rows without an offset.
    """
    for each in shares:
        if None in each.partition or each.known < each.rows:
            msg = f"{what}: {each.file} has rows without topic, partition or offset; rewrite it without them"
            raise ConfigurationError(msg)
    rows: dict[str, int] = {}
    for each in shares:
        rows[each.file] = rows.get(each.file, 0) + each.rows
    read = sorted({each.file for each in shares if reads(each.partition)})
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        footers = pool.map(lambda file: footer(file, what, places), read)
        for file, found in zip(read, footers, strict=True):
            if offset.lower() not in {name.lower() for name in found.columns}:
                msg = f"{what}: {file} has no column {offset}; it has {', '.join(sorted(found.columns))}"
                raise ConfigurationError(msg)
            if found.rows != rows[file]:
                msg = (
                    f"{what}: {file} holds {found.rows:,} rows, of which Spark reads {rows[file]:,}: rows were deleted "
                    f"without rewriting it; run REORG TABLE ... APPLY (PURGE)"
                )
                raise ConfigurationError(msg)


def _col(name: str) -> Column:
    return F.col(back_quoted(name))
