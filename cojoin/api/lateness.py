"""``lateness``: how late rows come, from which a user chooses the bound of a watermark strategy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cojoin.api.connect import is_of_spark, not_an_input
from cojoin.embedded.frames import frame_lateness, is_frame
from cojoin.engine.input import Input
from cojoin.errors import ConfigurationError
from cojoin.installed_packages import check_packages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.engine.lateness import Lateness
    from cojoin.engine.values.arguments import Duration


def lateness(
    source: Any,
    *,
    event_time: Any,
    arrival: str | None = None,
    partition: str | Sequence[str] = (),
    every: Duration | None = None,
    max_ahead: Duration | None = "1 day",
) -> Lateness:
    """Return the lateness of rows: the share of them that is late, by the bound of the watermark strategy.

    A row's lateness is how far its event time is behind the largest one of its source partition that had arrived
    before it. With ``WatermarkStrategy.for_bounded_out_of_orderness(bound)`` it is late if that is more than the bound.
    Rows that arrive at one time come in one micro-batch, and none makes another one late.

    In a query no more rows are late than that, and often fewer: larger micro-batches, partitions that are behind, and
    another input that is behind all hold the watermark back. There is one exception, a partition that does not hold
    time back because it is idle, or because it is a DataFrame's and has had no row yet. When its rows come, the
    others have moved time on. Without ``partition`` rows are compared with those of all partitions, which is the most
    that this can be.

    Args:
        source: The rows of the past: a static DataFrame of Spark's, or rows in memory as in ``Input`` (pandas, pyarrow,
            Polars, DuckDB). Or a source, of which the present content is read: ``cojoin.sources.delta(...)``,
            ``cojoin.sources.files(...)`` or ``cojoin.kafka.source(..., to=...)``.
        event_time: The event-time column, a ``timestamp``; of Spark's rows also an expression, as in ``Input``.
        arrival: The column by which the rows arrived: a ``timestamp``, a ``date`` or whole numbers, such as offsets.
            None is, of rows in memory, the order in which they are given; of a topic the ``offset`` within each
            partition; of files their modification time, ``_file_modification_time``; and of a Delta table the time of
            the commit that wrote the row, ``_commit_timestamp``. A DataFrame of Spark's has no order, so it needs a
            column.
        partition: The columns that identify a row's source partition, as in ``Input``. A Kafka source sets them itself.
        every: The interval of a scheduled job, such as ``"1 day"``: the rows whose arrivals are in one window of this
            length, which is aligned to 1970 in UTC, are one micro-batch. Of whole numbers or dates it is not possible.
        max_ahead: As in ``Input``: a row further ahead of its arrival is rejected and moves nothing; where arrivals are
            not timestamps, one further ahead of the present moment. None sets no limit.

    Returns:
        The counts; printed, it is a table with usual bounds and the bounds for 99 %, 99.9 % and all of the rows. Rows
        without event time, without arrival and too far ahead are counted apart. ``cojoin.plots.plot_lateness`` draws
        it.

        The arrival of a Delta table's row is unknown where OPTIMIZE or the like has rewritten its file, and where its
        commit has left the log, after 30 days by default. A row that an UPDATE or MERGE has copied counts as arrived
        with that.

    Raises:
        ConfigurationError: The rows can't be read, are a stream, or do not fit into memory; or an argument is invalid.
        SchemaError: A column does not exist or has the wrong type.

    In memory it sorts the rows once, in some ten seconds for 20 million. On Spark it reads them once and keeps event
    time, arrival and partition, some 30 bytes a row, on the executors' disks until it returns. They are cut by arrival
    into ranges of about a million rows, so that the order of all rows takes no single task: each range is sorted by
    itself, on disk if need be, and begins with the largest event time of the ranges before it. Only counts leave the
    tasks, some 10,000 numbers each at most. It costs four passes over these columns and a shuffle of them: 100 to 180
    seconds for 20 million rows, measured on two busy cores.

    Flink (``numLateRecordsDropped``), Spark (``numRowsDroppedByWatermark``) and Kafka Streams (``dropped-records``)
    count the late rows of a running query, for the one bound that it has.

    Example:
        >>> import pandas as pd
        >>> at = lambda *times: pd.to_datetime([f"2026-01-15 {time}" for time in times], utc=True)
        >>> orders = pd.DataFrame({"ordered_at": at("09:00", "09:10", "09:02", "09:11")})
        >>> found = lateness(orders, event_time="ordered_at")
        >>> found.share_late("5 minutes"), found.bound_for(1.0)
        (0.25, datetime.timedelta(seconds=480))
        >>> print(found)
        Lateness of 4 rows in the order given
        bound       late rows  share late
        ----------  ---------  ----------
        0 s                 1  25 %
        1 s                 1  25 %
        10 s                1  25 %
        1 min 0 s           1  25 %
        10 min 0 s          0  0 %
        Bound for rows on time: 99 % 8 min 0 s, 99.9 % 8 min 0 s, all 8 min 0 s.
    """
    if isinstance(source, Input):
        msg = "lateness: expected rows, got an Input; give its source, and its partition= if it has one"
        raise ConfigurationError(msg)
    if event_time is None:
        msg = "lateness: event_time: expected a column's name, got None"
        raise ConfigurationError(msg)
    now_ms = int(time.time() * 1_000)
    if is_frame(source):
        return frame_lateness(source, event_time, arrival, partition, every, max_ahead, now_ms)
    if not is_of_spark(source):
        raise ConfigurationError(not_an_input(source, "lateness"))
    check_packages("lateness", "spark")
    from cojoin.spark.spark_lateness import spark_lateness  # noqa: PLC0415 - rows in memory need no Spark

    return spark_lateness(source, event_time, arrival, partition, every, max_ahead, now_ms)
