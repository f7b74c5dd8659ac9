"""The sinks ``delta`` and ``parquet``, a user's callable as a sink, and the check of what is declared as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import DataFrame

from cojoin.engine.upsert import Conflict, Upsert
from cojoin.errors import ConfigurationError
from cojoin.spark.sinks.delta_sink import DeltaSink
from cojoin.spark.sinks.parquet_sink import ParquetSink
from cojoin.spark.sinks.sink import Sink, SinkWriter
from cojoin.spark.sources.options import as_options
from cojoin.storage.locations import Location, as_location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cojoin.spark.sinks.batch_marker import BatchMarker
    from cojoin.spark.sinks.sink import OutputId

__all__ = ["CallableSink", "DeltaSink", "ParquetSink", "Sink", "SinkLike", "as_sink", "delta", "parquet"]

SinkLike: TypeAlias = Sink | Callable[[DataFrame, int], Any]
"""A sink, or a callable that takes a batch's DataFrame and its id."""


@dataclass(frozen=True)
class CallableSink(Sink):
    """A user's function of a batch's DataFrame and its id, as a sink."""

    function: Callable[[DataFrame, int], Any]

    def open(self, session: SparkSession, output: OutputId) -> CallableWriter:
        """Return the writer that calls the function with each batch."""
        del session, output
        return CallableWriter(self)

    def describe(self) -> str:
        """Return the function's name, for messages."""
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))


class CallableWriter(SinkWriter):
    """Calls a user's function with each batch that has rows. The function may receive a batch twice."""

    def __init__(self, sink: CallableSink) -> None:
        self._sink = sink

    def write(self, frame: DataFrame, marker: BatchMarker) -> dict[str, Any]:
        """Call the function, and return the manifest's entry."""
        self._sink.function(frame, marker.batch_id)
        return {"callable": self._sink.describe()}


def delta(
    location: Location,
    *,
    partition_by: str | Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    upsert: str | Sequence[str] = (),
    conflict: Conflict = "last",
    order_by: str | Sequence[str] | None = None,
    deletes: str | None = None,
) -> DeltaSink:
    """Return a sink that appends or upserts to a Delta table, exactly once, and fences off a driver that was replaced.

    With ``upsert`` the table has one row for each key, and which one does not depend on the batches. Of the rows of one
    key the last stays, in event-time order; rows with one event time are compared by the left's ``sequence`` and then
    by their content. This holds for temporal joins, and for as-of joins that look backward. The rows of all other
    operations are compared by ``order_by``. A plain table is written without the JVM: files with replaced rows are
    written again without them. Spark's MERGE upserts into any other table, such as one with partitions, deletion
    vectors or a change feed.

    A driver that was suspended can't commit after its successor has begun: Delta's own transaction compares the epochs
    of their leases. Where Spark writes the rows (such as on HDFS, with ``partition_by`` or ``options``, or on local
    paths with Spark Connect), the epochs are compared right before the transaction instead.

    Args:
        location: A path (with a ``/``, or a ``pathlib.Path``), or a table's name. The table is created if it does not
            exist.
        partition_by: The column or columns by which a new table is partitioned.
        options: Delta's writer options, such as ``mergeSchema``.
        upsert: The column or columns of the key, of the types of a key. A row with a null in it is left out, with a
            warning in the log and a count in ``BatchReport.upserts``. Empty: rows are appended.
        conflict: Which row of a key stays: ``"last"``, ``"first"``, or ``"error"``, which ends the query at a key that
            comes twice.
        order_by: The column or columns of the output by which rows of a key are compared, with the stored row as well.
            Ties are broken by the rows' content. It is needed where others write rows of these keys, too, and where
            rows are not emitted in event-time order: by functions, interval joins, and as-of joins that look forward or
            both ways, and where late left rows are applied.
        deletes: A boolean column of the output. Where it is true, the row removes the one that the table has. It is not
            stored, and does not go with ``order_by``.

    Returns:
        The sink, for ``Joined.start``.

    Raises:
        ConfigurationError: The location, the columns, the rule or the options are invalid.

    Example:
        >>> delta("/lake/enriched", partition_by="day", options={"mergeSchema": True}).options
        (('mergeSchema', 'true'),)
        >>> delta("/lake/newest", upsert="trade_id").upsert.key
        ('trade_id',)
    """
    place = as_location(location, "sinks.delta", expected="a path or a table's name")
    columns = (partition_by,) if isinstance(partition_by, str) else partition_by
    is_list = isinstance(columns, (list, tuple)) and all(isinstance(each, str) and each for each in columns)
    if not is_list or len({each.lower() for each in columns}) < len(columns):
        msg = f"sinks.delta: partition_by: expected a column's name, or a list of distinct names, got {partition_by!r}"
        raise ConfigurationError(msg)
    rule = Upsert.of(upsert, conflict, order_by, deletes, "sinks.delta")
    return DeltaSink(place, tuple(columns), tuple(as_options(options, "sinks.delta").items()), rule)


def parquet(path: Location) -> ParquetSink:
    """Return a sink that writes a folder of parquet files, with one folder ``batch_id=N`` per batch.

    It is exactly once for readers that read the whole folder between two batches. It is not fenced: a driver that was
    suspended while it wrote a batch may finish the batch after another driver has taken over. Both write the same rows.

    Args:
        path: The folder. A query must not share it with another query.

    Returns:
        The sink, for ``Joined.start``.

    Raises:
        ConfigurationError: The path is invalid.
    """
    return ParquetSink(as_location(path, "sinks.parquet"))


def as_sink(declared: Any, role: str) -> Sink:
    """Return the sink that the user declared for an output; a callable is wrapped. ``role`` names the output.

    Raises:
        ConfigurationError: It is neither a sink nor a callable, or it is a class: a batch would only make an instance.
    """
    if isinstance(declared, Sink):
        return declared
    hint = ""
    if isinstance(declared, type):
        hint = f"; a class writes nothing, make an instance: {declared.__name__}(...)"
    elif callable(declared) and f"{getattr(declared, '__module__', None)}.".startswith("cojoin."):
        hint = "; call it with a location"
    elif callable(declared):
        return CallableSink(declared)
    elif isinstance(declared, (str, PathLike)):
        hint = f"; did you mean cojoin.sinks.delta({declared!r})?"
    msg = (
        f"{role}: expected cojoin.sinks.delta(...), cojoin.sinks.kafka(...), cojoin.sinks.parquet(...), "
        f"cojoin.sinks.sql(...) or a callable, got {declared!r}{hint}"
    )
    raise ConfigurationError(msg)
