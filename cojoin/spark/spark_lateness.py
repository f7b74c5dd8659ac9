"""The lateness of rows on Spark (``engine.lateness``), in bounded memory although it needs the order of all rows.

The rows' times are kept on the executors' disks, and cut by arrival into ranges of about a million rows, at most 256.
The largest timestamps of each partition in each range, which are few, give the largest one before each range; that is
added to the range as a first row, which is not counted. Then each task sorts its ranges, on disk if need be, and counts
them in one pass. Rows with one arrival are in one range, however many.

Rows arrive in the order of a column: the offset, a file's time, or the time of a Delta commit. The commit that wrote a
row of a Delta table is known by the row's file: the log has it as added in that commit. It is not known for a file that
was added without a change of data, as OPTIMIZE does, nor where the commit has left the log. A file that was added
several times, as with deletion vectors, has its first commit. It costs the reading of the log's commits, and a join of
the rows with the names of their files. (Delta's protocol, "Add File and Remove File".)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.storagelevel import StorageLevel

from cojoin.engine.input import Input
from cojoin.engine.lateness import Lateness, LatenessCounter, arrival_order
from cojoin.engine.row_changes import COMMITTED_AT
from cojoin.engine.values.rows import back_quoted
from cojoin.errors import ConfigurationError, QueryFailedError
from cojoin.session.delta_tables import table_log
from cojoin.session.sealed import for_workers
from cojoin.session.sessions import active_session, adapter_of, check_session
from cojoin.session.spark_errors import JAVA_ERRORS, explain
from cojoin.spark.bound_input import BoundInput
from cojoin.spark.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cojoin.delta.table_log import TableLog
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.lateness import ArrivalOrder
    from cojoin.engine.values.arguments import Duration

_FILE_TIME = "_file_modification_time"
_FILE = "__cojoin_file"


def _with_arrival(source: Source, arrival: Any, label: str) -> tuple[DataFrame, Any]:
    """Return the present rows of a source, and the column by which they arrived, which is added if need be.

    ``arrival`` is the column that the user names; None is the source's own.
    """
    endless = source.why_endless()
    if endless is not None:
        msg = f"{label} has no end: {endless}"
        raise ConfigurationError(msg)
    frame = source.open(streaming=False)
    own = _own_arrival(source)
    if arrival not in (None, own) or own in frame.columns:
        return frame, own if arrival is None else arrival
    if own == _FILE_TIME:
        return frame.select("*", F.col("_metadata.file_modification_time").alias(_FILE_TIME)), own
    if own == COMMITTED_AT:
        return _with_commit_time(frame, source), own
    return frame, own


def _own_arrival(source: Source) -> str:
    if source.format == "delta":
        return COMMITTED_AT
    return source.sequence[0] if source.sequence else _FILE_TIME


def _with_commit_time(frame: DataFrame, source: Source) -> DataFrame:
    """Return the rows of a Delta table with the time of the commit that wrote each."""
    spark = active_session()
    assert spark is not None
    log = table_log(spark, str(source.location))
    assert log is not None
    names = [F.col(back_quoted(name)) for name in frame.columns]
    files = _commit_times(spark, log)
    rows = frame.select(*names, F.col("_metadata.file_name").alias(_FILE))
    return rows.join(F.broadcast(files), _FILE, "left").select(*names, COMMITTED_AT)


def _commit_times(spark: SparkSession, log: TableLog) -> DataFrame:
    """Return the names of a table's files, with the times of the commits that added them."""
    latest, times = -1, dict[str, int]()
    for version in log.versions():
        commit = log.commit(version)
        if commit.timestamp is None:
            continue
        # As Delta does it: a commit that a slow clock dates before the former one is a millisecond after that.
        latest = max(latest + 1, commit.timestamp)
        for file in commit.added:
            if file.changes_data:
                times.setdefault(file.path.rpartition("/")[2], latest)
    rows = pa.table({_FILE: pa.array(list(times), pa.string()), "millis": pa.array(list(times.values()), pa.int64())})
    return spark.createDataFrame(rows).select(_FILE, F.timestamp_millis("millis").alias(COMMITTED_AT))


_NAME, _LABEL = "source", "input 'source'"
_RANGE_ROWS, _MOST_RANGES, _SAMPLED = 1_000_000, 256, 1_000
_FIRST = -(1 << 63)
"""An arrival before all others."""

_COUNTS_DDL = "lateness bigint, rows bigint, largest bigint"


def spark_lateness(
    source: Any,
    event_time: Any,
    arrival: Any,
    partition: str | Sequence[str],
    every: Duration | None,
    max_ahead: Duration | None,
    now_ms: int,
) -> Lateness:
    """Return how late rows of Spark's come; ``cojoin.lateness`` documents the arguments, and the errors."""
    if isinstance(source, Source):
        try:
            frame, arrival = _with_arrival(source.of_input(_NAME), arrival, _LABEL)
        except JAVA_ERRORS as error:
            msg = f"{_LABEL}: {source.title} can't be read: {explain(error)}"
            raise ConfigurationError(msg) from error
        partition = partition or source.partition
    else:
        frame = source
        check_session(frame.sparkSession, _LABEL)
    if frame.isStreaming:
        msg = f"{_LABEL} is a stream, which has no end; read its present rows with spark.read"
        raise ConfigurationError(msg)
    if arrival is None:
        msg = (
            "arrival: expected a column's name, got None: the rows of a DataFrame have no order; name the column with "
            "the time of loading, the offset or the version"
        )
        raise ConfigurationError(msg)
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    order = arrival_order(types, arrival, every, max_ahead, now_ms)
    declared = Input(frame, key=(), event_time=event_time, name=_NAME, partition=partition)
    bound = BoundInput(declared, _NAME, 1, takes_axis=False)
    rows = _times(bound.frame, bound.spec, order).persist(StorageLevel.DISK_ONLY)
    try:
        return _counted(rows, bound.spec, order)
    except PySparkException as error:
        raise QueryFailedError(explain(error)) from error
    finally:
        rows.unpersist()


def _times(frame: DataFrame, spec: InputSpec, order: ArrivalOrder) -> DataFrame:
    """Return each row's partition, arrival and timestamp as numbers, and why it is left out, if it is."""
    arrival = F.col(back_quoted(order.column or ""))
    if order.kind == "timestamp":
        arrival = F.unix_micros(arrival)
    elif order.kind == "date":
        arrival = F.unix_date(arrival).cast("bigint")
    arrival = arrival.cast("bigint")
    length, to_end = order.window_us
    arrival = arrival - F.pmod(arrival, F.lit(length))
    timestamp = F.unix_millis(F.col(back_quoted(spec.event_time or "")))
    reason = F.when(timestamp.isNull(), "null_event_time").when(arrival.isNull(), "null_arrival")
    if order.max_ahead_ms is not None:
        # The end of the window, rounded up to milliseconds.
        end = F.unix_millis(F.timestamp_micros(arrival + (to_end + 999)))
        clock = end if order.has_clock else F.lit(order.now_ms)
        reason = reason.when(timestamp > clock + order.max_ahead_ms, "too_far_ahead")
    parts: list[Column] = []
    for name in spec.partition:
        column = F.col(back_quoted(name))
        parts += [column, column.isNull()]
    partition = F.xxhash64(*parts) if parts else F.lit(0).cast("bigint")
    return frame.select(partition.alias("p"), arrival.alias("a"), timestamp.alias("t"), reason.alias("reason"))


def _counted(rows: DataFrame, spec: InputSpec, order: ArrivalOrder) -> Lateness:
    reasons = {row.reason: int(row["count"]) for row in rows.groupBy("reason").count().collect()}
    known = reasons.pop(None, 0)
    counted = rows.where("reason IS NULL").select("p", "a", "t")
    counter = LatenessCounter()
    if known:
        counted_ranges = _by_range(counted, known).mapInArrow(for_workers(_count), _COUNTS_DDL).toArrow().to_pydict()
        for lateness, number, largest in zip(
            counted_ranges["lateness"], counted_ranges["rows"], counted_ranges["largest"], strict=True
        ):
            counter.merge({lateness: number}, largest)
    names = ("null_event_time", "null_arrival", "too_far_ahead")
    return Lateness(
        order.words(spec.partition),
        known + sum(reasons.values()),
        dict(sorted(counter.counts.items())),
        counter.largest_ms,
        {name: reasons[name] for name in names if name in reasons},
    )


def _by_range(rows: DataFrame, known: int) -> DataFrame:
    """Return the rows by ranges of arrival, sorted, each range after the largest timestamps of its partitions so far.

    The column ``w`` is 1 for a row, and 0 for such a largest timestamp.
    """
    count = min(-(-known // _RANGE_ROWS), _MOST_RANGES)
    if count == 1:
        one = rows.select(F.lit(0).alias("b"), "*", F.lit(1).alias("w"))
        return one.coalesce(1).sortWithinPartitions("p", "a")
    steps = F.array(*(F.lit(place / count) for place in range(1, count)))
    # The ranges need not be equal, so a sample is enough.
    sample = rows.sample(min(1.0, _SAMPLED * count / known), seed=0)
    row = sample.agg(F.percentile_approx("a", steps, 10 * count)).first()
    bounds = sorted(set(row[0] or ())) if row is not None else []
    cut = rows.select(_place(bounds, 0).alias("b"), "p", "a", "t", F.lit(1).alias("w"))
    largest = cut.groupBy("b", "p").agg(F.max("t").alias("t"))
    earlier = Window.partitionBy("p").orderBy("b").rowsBetween(Window.unboundedPreceding, -1)
    before = F.max("t").over(earlier).alias("t")
    firsts = largest.select("b", "p", F.lit(_FIRST).alias("a"), before, F.lit(0).alias("w"))
    tasks = max(adapter_of(rows.sparkSession).parallel_tasks(), count)
    whole = cut.union(firsts.where("t IS NOT NULL"))
    return whole.repartition(tasks, "b").sortWithinPartitions("b", "p", "a")


def _place(bounds: Sequence[int], first: int) -> Column:
    """Return the number of the bounds that are not above an arrival, plus a number, by a binary search."""
    if not bounds:
        return F.lit(first)
    middle = len(bounds) // 2
    below, above = _place(bounds[:middle], first), _place(bounds[middle + 1 :], first + middle + 1)
    return F.when(F.col("a") < bounds[middle], below).otherwise(above)


def _count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the counts of a task's rows, which come sorted by range, partition and arrival."""
    total, counter, newest = LatenessCounter(), LatenessCounter(), None
    for batch in batches:
        ranges, partitions, arrivals, timestamps, weights = (column.to_numpy() for column in batch.columns)
        for piece in np.split(np.arange(len(ranges)), np.flatnonzero(np.diff(ranges)) + 1):
            if not len(piece):
                continue
            at = slice(int(piece[0]), int(piece[-1]) + 1)
            if ranges[at.start] != newest:
                total.merge(counter.counts, counter.largest_ms)
                counter, newest = LatenessCounter(), ranges[at.start]
            counter.add(partitions[at], arrivals[at], timestamps[at], weights[at] == 1)
    total.merge(counter.counts, counter.largest_ms)
    counts = sorted(total.counts.items())
    yield pa.RecordBatch.from_pydict(
        {
            "lateness": pa.array([lateness for lateness, _ in counts], pa.int64()),
            "rows": pa.array([rows for _, rows in counts], pa.int64()),
            "largest": pa.array([total.largest_ms] * len(counts), pa.int64()),
        }
    )
